"""Checks of chapter 14: ranges on several servers, a bound that spares the slowest, bytes in, an outer step."""

import random
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ...checks.expect import (
    case,
    expect,
    expect_error,
    expect_number,
    expect_row,
    explain,
    short,
    unchanged,
)
from ...checks.judge import run, wait_for_the_others
from ...parallel import messages
from ...parallel.parameter_server import Asynchronous, Client, Plan, serve

# ---- 14.1 ---------------------------------------------------------------------------------------------------------

_SHARES, _NUM_STEPS = (5, 3), 4  # images of each of the two workers in a step
_BATCH, _NUM_SERVERS = sum(_SHARES), 2
# Server 0 has the end: the order of the dict is not that of the ranges. Both cuts lie inside a key.
_CUT, _NUM_NUMBERS = 61, 92
_RANGES = {0: (_CUT, _NUM_NUMBERS), 1: (0, _CUT)}


def check_14_1(work_step):
    """`work_step(model, x, y, batch_size, ranges)` is a worker's part of a step with several servers."""
    *held, _, _ = run(_train, work_step, world_size=_NUM_SERVERS + len(_SHARES))
    truth, found = _imitate(), torch.cat([held[1], held[0]])
    explain(found, truth, {
        "do the parameters that were received come into the model?": partial(_imitate, is_stale=True),
        "the gradients are those of the parameters of the step before": partial(_imitate, is_late=True),
        "is what was received in the step before still in the gradient?": partial(_imitate, accumulates=True),
        "is the worker with 5 images worth as much as the one with 3?": partial(_imitate, lambda n: 1 / len(_SHARES)),
        "each worker's mean counts as if its images were the whole batch": partial(_imitate, lambda n: 1.0),
        "that is the gradient of a sum over images, not of a mean": partial(_imitate, float),
        "is the division by the number of images made twice?": partial(_imitate, lambda n: 1 / _BATCH),
        "are gradients pushed, or parameters?": partial(_imitate, pushes_parameters=True),
        "is the gradient's sign changed?": partial(_imitate, lambda n: -n / _BATCH),
        "they are laid end to end in the order of the dict `ranges`": partial(_imitate, places=_in_order_of_the_dict()),
        "they are laid end to end in the alphabetical order of names": partial(_imitate, places=_in_order(sorted)),
        "they are laid end to end in the order in which layers are used": partial(
            _imitate, places=_in_order(lambda names: sorted(names, key=lambda name: name.startswith("last")))
        ),
    }, said="after 4 steps the servers do not hold the parameters of one process",
        otherwise="each message has the right number of bytes; no mistake known here gives these values")  # fmt: skip
    return "2 servers and 2 workers with 5 and 3 images end at the parameters of one process."


def _train(work_step):
    model, rank = _make_model(), dist.get_rank()
    if rank < _NUM_SERVERS:
        begin, end = _RANGES[rank]
        return servers_of_the_check(_flat(model)[begin:end].clone())
    torch.manual_seed(rank)
    for p in model.parameters():
        nn.init.normal_(p)  # a worker's initial parameters must not matter
    for step, (x, y) in enumerate(_data()):
        x, y = (each.split(_SHARES)[rank - _NUM_SERVERS] for each in (x, y))
        with unchanged(x=x, y=y), messages.Traffic() as traffic:
            work_step(model, x, y, _BATCH, dict(_RANGES))
        _judge_traffic(traffic, f"step {step} of the worker with {len(x)} images")
    wait_for_the_others()
    return None


def _judge_traffic(traffic, where):
    for server, (begin, end) in _RANGES.items():
        for verb, told in (("sent to", traffic.sent), ("received from", traffic.received)):
            num_bytes = sum(size for rank, size in told if rank == server)
            expect(
                num_bytes == 8 * (end - begin),
                f"{where}: {num_bytes} bytes were {verb} server {server}, whose range {begin, end} of float64 numbers "
                f"has {8 * (end - begin)}",
            )


def servers_of_the_check(held):
    """Serve one range; whatever the order of the answer's calls, both messages of a worker are under way at once."""
    optimizer, workers = _make_optimizer([held]), range(_NUM_SERVERS, _NUM_SERVERS + len(_SHARES))
    for _ in range(_NUM_STEPS):
        gradients = [torch.empty_like(held) for _ in workers]
        works = [dist.irecv(gradient, worker) for worker, gradient in zip(workers, gradients)]
        works += [dist.isend(held, worker) for worker in workers]
        for work in works:
            work.wait()
        held.grad = sum(gradients)
        optimizer.step()
    wait_for_the_others()
    return held


class _Net(nn.Module):
    """A network whose parameters lie in another order than their names' alphabetical one."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(8, 4), nn.Linear(6, 8)

    def forward(self, x):
        return self.last(self.first(x).tanh())


def _make_model():
    torch.manual_seed(14)
    return _Net().double()


def _flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def _in_order(sort):
    """Where a vector in the order of `sort(names)` has each element of one in the model's order."""
    begin, places = 0, {}
    for name, p in _make_model().named_parameters():
        places[name] = torch.arange(begin, begin := begin + p.numel())
    return torch.cat([places[name] for name in sort(list(places))]).argsort()


def _in_order_of_the_dict():
    return torch.cat([torch.arange(*span) for span in _RANGES.values()])


def _make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


def _data():
    generator = torch.Generator().manual_seed(141)
    images = torch.randn(_NUM_STEPS, _BATCH, 6, generator=generator, dtype=torch.float64)
    return list(zip(images, torch.randint(4, (_NUM_STEPS, _BATCH), generator=generator)))


def _imitate(
    weigh=lambda n: n / _BATCH, is_stale=False, is_late=False, accumulates=False, pushes_parameters=False, places=None
):
    """Return the servers' parameters after all steps, end to end, correctly or with a mistake.

    `weigh` gives the factor for the mean loss of n images; `places` says which of the servers' elements come to each
    place of the vector that a worker fills its model with.
    """
    held = _flat(_make_model())
    optimizer, places = _make_optimizer([held]), torch.arange(_NUM_NUMBERS) if places is None else places
    own = [_flat_at_the_start(rank) for rank in range(_NUM_SERVERS, _NUM_SERVERS + len(_SHARES))]
    kept, net = [torch.zeros(_NUM_NUMBERS).double() for _ in _SHARES], _make_model()
    for x, y in _data():
        held.grad = torch.zeros_like(held)
        for worker, (mine, labels) in enumerate(zip(x.split(_SHARES), y.split(_SHARES))):
            used = own[worker] if is_stale or is_late else held.detach()[places]
            own[worker] = own[worker] if is_stale else held.detach().clone()
            nn.utils.vector_to_parameters(used.clone(), net.parameters())
            loss = F.cross_entropy(net(mine), labels) * weigh(len(mine))
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
            kept[worker] = gradient + kept[worker] if accumulates else gradient
            pushed = used if pushes_parameters else kept[worker]
            held.grad[places] += pushed
        optimizer.step()
    return held.detach()


def _flat_at_the_start(rank):
    model = _make_model()
    torch.manual_seed(rank)
    for p in model.parameters():
        nn.init.normal_(p)
    return _flat(model)


# ---- 14.2 ---------------------------------------------------------------------------------------------------------

_ASKED = (  # steps of the asking worker, steps of the others, tau, spared
    (0, (0, 0), 0, 0), (1, (0, 1), 0, 0), (1, (1, 1), 0, 0), (3, (5, 9), 0, 0), (2, (0, 2), 2, 0), (3, (0, 9), 2, 0),
    (3, (1, 9), 2, 0), (7, (4, 7), 2, 0), (7, (5, 6), 2, 0), (12, (12, 2), 9, 0), (12, (12, 2), 10, 0), (5, (), 0, 0),
    (7, (2, 5), 2, 1), (7, (2, 4), 2, 1), (7, (5, 2), 2, 1), (9, (4, 4, 9), 4, 1), (9, (4, 4, 9), 4, 2),
    (9, (4,), 0, 1), (9, (4,), 0, 2), (9, (4, 3), 0, 3), (9, (), 0, 1), (9, (1, 2, 3, 8), 1, 3),
    (9, (1, 2, 3, 8), 0, 3), (3, (9, 9), 0, 1), (9, (1, 2, 3, 7), 1, 3), (100, (0, 40, 1), 99, 0),
    (100, (0, 40, 0), 60, 2), (100, (0, 40, 0), 59, 2), (2, (0, 9, 9), 2, 1),
)  # fmt: skip

_SLOW_STEPS, _FAST_STEPS = 10, 60


def check_14_2(may_begin):
    """`may_begin(step, clocks, tau, spared)` is bounded delay that does not wait for the `spared` slowest workers."""
    run(_judge_answers, may_begin)
    made = {}
    for spared in (0, 1):
        with case(f"3 workers, the last one always slow, tau = 2, spared = {spared}"):
            (most, made[spared]), *_ = run(_push_by_the_rule, may_begin, 2, spared, world_size=4)
            expect(most <= 2, f"a worker began a step {most} steps ahead of the slowest that counts")
    return (
        f"{len(_ASKED)} questions are answered. Then real servers, with one worker always slow: while it made "
        f"{_SLOW_STEPS} steps, the two others made {made[0]} if it counts, {made[1]} if it is spared."
    )


def _judge_answers(may_begin):
    for step, others, tau, spared in _ASKED:
        clocks = {1: step} | {2 + i: other for i, other in enumerate(others)}
        with case(f"may_begin({step}, {clocks}, tau={tau}, spared={spared})"), unchanged(clocks=clocks):
            found = _yes_or_no(may_begin(step, clocks, tau, spared))
            counted = _counted(clocks, spared)
            ahead = step - min(counted, default=step)
            who = f"the slowest of {len(counted)} that count" if spared else "the slowest"
            expect(not found or ahead <= tau, f"it may begin, and is {ahead} steps ahead of {who}")
            why = f"it is {ahead} ahead of {who}" if ahead > 0 else "nobody that counts is behind it"
            expect(found or ahead > tau, f"it has to wait, although {why}")
    for tau, spared in ((-1, 0), (-3, 1), (0, -1), (2, -4)):
        with case(f"tau = {tau}, spared = {spared}"):
            wrong = min(tau, spared)
            expect_error(ValueError, lambda t=tau, s=spared: may_begin(0, {1: 0, 2: 0}, t, s), naming=[wrong])


def _counted(clocks, spared):
    return sorted(clocks.values())[spared:]


def _yes_or_no(found):
    """`found` as True or False; NumPy's and PyTorch's are taken, too."""
    kind = str(getattr(found, "dtype", ""))
    if getattr(found, "shape", None) == () and kind in ("bool", "torch.bool"):
        found = bool(found)
    expect(isinstance(found, bool), f"{short(found)} came back, and True or False is asked")
    return found


class _Given(Asynchronous):
    def __init__(self, answer, tau, spared):
        self._answer, self._tau, self._spared, self.most = answer, tau, spared, 0

    def may_begin(self, step, clocks):
        may = _yes_or_no(self._answer(step, dict(clocks), self._tau, self._spared))
        if may:
            self.most = max(self.most, step - min(_counted(clocks, self._spared), default=step))
        return may


def _push_by_the_rule(may_begin, tau, spared):
    """Return on the server: the most steps ahead at which a worker began one, and the steps of the fast workers."""
    held = {"w": torch.zeros(2)}
    plan, rank = Plan(held, [0], [1, 2, 3]), dist.get_rank()
    if rank == 0:
        rule = _Given(may_begin, tau, spared)
        pushes = serve(plan, held, lambda parameters: torch.optim.SGD(parameters, lr=0.1), rule).pushes
        workers = [push.worker for push in pushes]
        last = len(workers) - 1 - workers[::-1].index(3)
        return rule.most, sum(worker != 3 for worker in workers[:last])
    client, chance = Client(plan), random.Random(rank)
    for _ in range(_SLOW_STEPS if rank == 3 else _FAST_STEPS):
        client.pull(held)
        time.sleep(0.02 if rank == 3 else 0.004 * chance.random())
        client.push(held)
    client.leave()


# ---- 14.3 ---------------------------------------------------------------------------------------------------------

_SENT = (  # bytes of keys, machine of each key's server, keys used by each machine's worker
    ({"a": 100, "b": 30, "c": 7}, {"c": 2, "b": 0, "a": 0}, [{"c"}, {"a"}, {"a", "b"}, set()]),
    ({"a": 100, "b": 100}, {"a": 0, "b": 1}, [{"a", "b"}, {"a", "b"}]),
    ({"a": 100, "b": 30, "c": 7}, {"a": 0, "b": 1, "c": 2}, [{"a", "b", "c"}, {"a", "b", "c"}, {"a", "b", "c"}]),
    ({"hot": 64, "cold": 4096}, {"hot": 1, "cold": 3}, [{"hot"}, {"hot"}, {"hot"}, {"hot"}, {"hot"}]),
    ({"hot": 64, "cold": 4096}, {"hot": 0, "cold": 0}, [{"hot"}, {"cold", "hot"}, {"hot"}]),
    ({"w": 9}, {"w": 0}, [{"w"}]),
    ({"w": 9, "v": 5}, {"w": 2, "v": 2}, [set(), set(), {"w", "v"}]),
    ({7: 3, 8: 40, 9: 500}, {9: 0, 7: 1, 8: 1}, [{7}, {8, 9}]),
)  # fmt: skip


def check_14_3(bytes_in):
    """`bytes_in(key_bytes, owner, used)` counts what enters each machine, which has one worker and one server."""
    run(_judge_bytes, bytes_in)
    return f"{len(_SENT)} steps: the bytes into each machine are right."


def _judge_bytes(bytes_in):
    for key_bytes, owner, used in _SENT:
        with case(f"bytes_in({key_bytes}, {owner}, {used})"):
            found = bytes_in(dict(key_bytes), dict(owner), [set(keys) for keys in used])
            expect(not isinstance(found, dict), "a dict came back, and a list is asked")
            row = expect_row(found.tolist() if hasattr(found, "tolist") else found, len(used), of="bytes")
            row = [expect_number(n, f"what enters machine {i}") for i, n in enumerate(row)]
            _judge_count(row, key_bytes, owner, used)


def _judge_count(found, key_bytes, owner, used):
    def enter(pulls=1, pushes=1, at_home=(0, 0), everything=False):
        into = [0] * len(used)
        for worker, keys in enumerate(used):
            for key in key_bytes if everything else keys:
                is_far = owner[key] != worker
                into[worker] += (pulls if is_far else at_home[0]) * key_bytes[key]
                into[owner[key]] += (pushes if is_far else at_home[1]) * key_bytes[key]
        return into

    suspects = {
        "the gradients are missing": enter(pushes=0),
        "the parameters are missing": enter(pulls=0),
        "messages within a machine are counted, too": enter(at_home=(1, 1)),
        "messages within a machine are counted in one direction": enter(at_home=(1, 0)),
        "every worker is taken to use all keys": enter(everything=True),
        "every worker is taken to use all keys, also those of its own machine": enter(everything=True, at_home=(1, 1)),
        "that is what a machine sends and receives": enter(2, 2),
    }
    explain(found, enter(), suspects, said=f"{short(found)} came back")


# ---- 14.4 ---------------------------------------------------------------------------------------------------------

_RANKS, _MEETINGS, _LOCAL_STEPS = 3, 3, 2


def check_14_4(outer_step):
    """`outer_step(model, anchor, outer)` is an outer step of DiLoCo, and returns the bytes that it all-reduced."""
    for name, options in {
        "an outer rate of 1 without momentum": {"lr": 1.0},
        "a rate of 0.7 with Nesterov momentum": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
    }.items():
        with case(name):
            _judge_outer(run(_meet, outer_step, options, world_size=_RANKS), options)
    return (
        f"{_RANKS} ranks met {_MEETINGS} times: anchors and models are those of one process, by two outer optimizers, "
        "and the bytes are right."
    )


def _judge_outer(found, options):
    truth = _meet_alone(options)
    for rank, (anchors, num_bytes, told) in enumerate(found):
        explain(anchors, truth, {
            "the gradient leads away from where the ranks have gone; which sign has it?": _meet_alone(options, sign=-1),
            "is the sum over ranks divided by their number?": _meet_alone(options, num=1),
            "the gradient of the last meeting is still in it": _meet_alone(options, accumulates=True),
            "that is the mean itself: who takes a step with `outer`?": _meet_alone({"lr": 1.0}),
            "its momentum is lost between the meetings": _meet_alone(options, forgets=True),
            "this rank moved by what it alone had moved": _meet_alone(options, only=rank),
            "the anchor has not moved at all": [p.detach() for p in _small_model().parameters()],
        }, said=f"on rank {rank} the anchor does not hold the outer optimizer's values",
            otherwise="none of the mistakes known here gives these values")  # fmt: skip
        once = sum(p.nbytes for p in _small_model().parameters())
        expect(
            num_bytes <= 2 * _MEETINGS * once,
            f"rank {rank} sent {num_bytes:,} bytes in {_MEETINGS} meetings, and its parameters have "
            f"{once:,}: each is to be all-reduced once",
        )
        explain(expect_number(told, "what came back"), once, {
            "that many numbers are all-reduced, not bytes": once / 8,
            "these numbers have 8 bytes each": once / 2,
            "that is the bytes of all ranks together": _RANKS * once,
            "that enters or leaves a rank in a ring": 2 * (_RANKS - 1) / _RANKS * once,
            "that is the bytes of the tensor all-reduced last": [p.nbytes for p in _small_model().parameters()][-1],
        }, said=f"{told:,} came back, and the bytes of what was all-reduced are asked")  # fmt: skip


def _small_model():
    torch.manual_seed(144)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def _local_steps(model, inner, rank, meeting):
    generator = torch.Generator().manual_seed(10 * rank + meeting)
    for _ in range(_LOCAL_STEPS):
        x = torch.randn(7, 5, generator=generator, dtype=torch.float64)
        inner.zero_grad()
        model(x).square().mean().backward()
        inner.step()


def _meet(outer_step, options):
    model, rank, num_bytes = _small_model(), dist.get_rank(), 0
    own = list(model.parameters())
    anchor = [p.detach().clone() for p in own]
    inner, outer = torch.optim.AdamW(own, lr=0.05), torch.optim.SGD(anchor, **options)
    given = list(anchor)
    for meeting in range(_MEETINGS):
        _local_steps(model, inner, rank, meeting)
        with messages.Traffic() as traffic:
            told = outer_step(model, anchor, outer)
        num_bytes += traffic.sent_bytes + sum(size for _, size in traffic.collectives)
        now = list(model.parameters())
        expect(
            len(now) == len(own) and all(a is b for a, b in zip(now, own)),
            "the model has other parameters now, which its inner optimizer does not know: fill the old ones",
        )
        expect(
            len(anchor) == len(given) and all(a is b for a, b in zip(anchor, given)),
            "`anchor` holds other tensors now, which `outer` does not know: copy values into the old ones",
        )
        expect(
            all(torch.equal(p, start) for p, start in zip(now, anchor)),
            "after a meeting the model's own parameters do not hold the anchor's values",
        )
    return [start.detach().clone() for start in anchor], num_bytes, told


def _meet_alone(options, sign=1, num=_RANKS, accumulates=False, forgets=False, only=None):
    """Return the anchor after all meetings, correctly or with a mistake; `num` divides the sum over ranks."""
    models = [_small_model() for _ in range(_RANKS)]
    inner = [torch.optim.AdamW(model.parameters(), lr=0.05) for model in models]
    anchor = [p.detach().clone() for p in models[0].parameters()]
    outer = torch.optim.SGD(anchor, **options)
    for meeting in range(_MEETINGS):
        for rank, model in enumerate(models):
            _local_steps(model, inner[rank], rank, meeting)
        for start, *theirs in zip(anchor, *(model.parameters() for model in models)):
            mean = sum(p.detach() for p in theirs) / num if only is None else theirs[only].detach()
            gradient = sign * (start.detach() - mean)
            start.grad = gradient + start.grad if accumulates and start.grad is not None else gradient
        if forgets:
            outer.state.clear()
        outer.step()
        with torch.no_grad():
            for model in models:
                for p, start in zip(model.parameters(), anchor):
                    p.copy_(start)
    return anchor
