"""Checks of chapter 14: a worker with several servers, bounded delay, bytes into the busiest process, an outer step."""

import random
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ...checks.expect import case, expect, expect_error, expect_number, explain, short, unchanged
from ...checks.judge import run, wait_for_the_others
from ...parallel import messages
from ...parallel.parameter_server import Asynchronous, Client, Plan, serve

# ---- 14.1 ---------------------------------------------------------------------------------------------------------

_SHARES, _NUM_STEPS = (5, 3), 4  # images of each of the two workers in a step
_BATCH, _NUM_SERVERS = sum(_SHARES), 2


def check_14_1(work_step):
    """`work_step(model, x, y, batch_size, owner)` is a worker's part of a step with several servers."""
    *held, _, _ = run(_train, work_step, world_size=_NUM_SERVERS + len(_SHARES))
    found = {name: value for part in held for name, value in part.items()}
    names = [name for name, _ in _make_model().named_parameters()]
    truth, found = _imitate(), [found[name] for name in names]
    explain(found, truth, {
        "do the parameters that were received come into the model?": _imitate(is_stale=True),
        "is what was received in the step before still in the gradient?": _imitate(accumulates=True),
        "is the worker with 5 images worth as much as the one with 3?": _imitate(weigh=lambda n: 1 / len(_SHARES)),
        "each worker's mean counts as if its images were the whole batch": _imitate(weigh=lambda n: 1.0),
        "that is the gradient of a sum over images, not of a mean": _imitate(weigh=float),
        "is the division by the number of images made twice?": _imitate(weigh=lambda n: 1 / _BATCH),
        "are gradients pushed, or parameters?": _imitate(pushes_parameters=True),
        "is the gradient's sign changed?": _imitate(weigh=lambda n: -n / _BATCH),
    }, said="after 4 steps the servers do not hold the parameters of one process",
        otherwise="which parameters, which gradient and which weight has each worker?")  # fmt: skip
    return "2 servers and 2 workers with 5 and 3 images end at the parameters of one process."


def _train(work_step):
    model, rank = _make_model(), dist.get_rank()
    owner = {name: i % _NUM_SERVERS for i, (name, _) in enumerate(model.named_parameters())}
    if rank < _NUM_SERVERS:
        return _serve({name: p for name, p in model.named_parameters() if owner[name] == rank})
    torch.manual_seed(rank)
    for p in model.parameters():
        nn.init.normal_(p)  # a worker's initial parameters must not matter
    for x, y in _data():
        x, y = (each.split(_SHARES)[rank - _NUM_SERVERS] for each in (x, y))
        with unchanged(x=x, y=y, owner=owner):
            work_step(model, x, y, _BATCH, dict(owner))
    wait_for_the_others()
    return {}


def _serve(held):
    optimizer, workers = _make_optimizer(held.values()), range(_NUM_SERVERS, _NUM_SERVERS + len(_SHARES))
    for _ in range(_NUM_STEPS):
        for worker in workers:
            for p in held.values():
                messages.send(p, worker)
        optimizer.zero_grad()
        for worker in workers:
            for p in held.values():
                gradient = torch.empty_like(p)
                messages.recv(gradient, worker)
                p.grad = gradient if p.grad is None else p.grad + gradient
        optimizer.step()
    wait_for_the_others()
    return {name: p.detach() for name, p in held.items()}


def _make_model():
    torch.manual_seed(14)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def _make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


def _data():
    generator = torch.Generator().manual_seed(141)
    images = torch.randn(_NUM_STEPS, _BATCH, 6, generator=generator, dtype=torch.float64)
    return list(zip(images, torch.randint(4, (_NUM_STEPS, _BATCH), generator=generator)))


def _imitate(weigh=lambda n: n / _BATCH, is_stale=False, accumulates=False, pushes_parameters=False):
    """Return the servers' parameters after all steps, correctly or with a mistake.

    `weigh` gives the factor for the mean loss of n images.
    """
    model = _make_model()
    parameters = list(model.parameters())
    optimizer, kept = _make_optimizer(parameters), [[torch.zeros_like(p) for p in parameters] for _ in _SHARES]
    own = []  # parameters of stale workers: their initial ones
    for rank in range(_NUM_SERVERS, _NUM_SERVERS + len(_SHARES)):
        torch.manual_seed(rank)
        own.append(_make_model())
        torch.manual_seed(rank)
        for p in own[-1].parameters():
            nn.init.normal_(p)
    for x, y in _data():
        sums = [torch.zeros_like(p) for p in parameters]
        for worker, (mine, labels) in enumerate(zip(x.split(_SHARES), y.split(_SHARES))):
            net = own[worker] if is_stale else model
            loss = F.cross_entropy(net(mine), labels) * weigh(len(mine))
            for i, gradient in enumerate(torch.autograd.grad(loss, list(net.parameters()))):
                kept[worker][i] = gradient + kept[worker][i] if accumulates else gradient
                sums[i] += parameters[i].detach() if pushes_parameters else kept[worker][i]
        for p, gradient in zip(parameters, sums):
            p.grad = gradient
        optimizer.step()
    return [p.detach() for p in parameters]


# ---- 14.2 ---------------------------------------------------------------------------------------------------------

_ASKED = (  # steps of the asking worker, steps of the others, tau
    (0, (0, 0), 0), (1, (0, 1), 0), (1, (1, 1), 0), (3, (5, 9), 0), (2, (0, 2), 2), (3, (0, 9), 2), (3, (1, 9), 2),
    (7, (4, 7), 2), (7, (5, 6), 2), (12, (12, 2), 9), (12, (12, 2), 10), (5, (), 0), (4, (9,), 1),
    (100, (0, 40), 99), (100, (1, 40), 99),
)  # fmt: skip


def check_14_2(may_begin):
    """`may_begin(step, clocks, tau)` implements the rule of bounded delay."""
    run(_judge_answers, may_begin)
    for tau in (0, 2):
        with case(f"3 workers that sleep by chance, tau = {tau}"):
            served, *_ = run(_push_by_the_rule, may_begin, tau, world_size=4)
            most = max(push.ahead for push in served.pushes)
            expect(most <= tau, f"a worker began a step {most} steps ahead of the slowest")
    return (
        f"{len(_ASKED)} questions, then 600 gradients on real servers: nobody was too far ahead, and nobody waited "
        "for ever."
    )


def _judge_answers(may_begin):
    for step, others, tau in _ASKED:
        clocks = {1: step} | {2 + i: other for i, other in enumerate(others)}
        with case(f"may_begin({step}, {clocks}, tau={tau})"), unchanged(clocks=clocks):
            found = may_begin(step, clocks, tau)
            expect(isinstance(found, bool), f"{short(found)} came back, and True or False is asked")
            slowest = min(clocks.values())
            if found and step - slowest > tau:
                expect(
                    False, f"it may begin, and is {step - slowest} steps ahead of worker {min(clocks, key=clocks.get)}"
                )
            why = "it is not ahead of anybody" if step == slowest else f"it is {step - slowest} ahead of the slowest"
            expect(found or step - slowest > tau, f"it has to wait, although {why}: how far may it be?")
    for tau in (-1, -3):
        with case(f"tau = {tau}"):
            expect_error(ValueError, lambda tau=tau: may_begin(0, {1: 0, 2: 0}, tau), naming=[tau])


class _Given(Asynchronous):
    def __init__(self, answer, tau):
        self._answer, self._tau = answer, tau

    def may_begin(self, step, clocks):
        return self._answer(step, dict(clocks), self._tau)


def _push_by_the_rule(may_begin, tau):
    held = {"w": torch.zeros(2)}
    plan, rank = Plan(held, [0], [1, 2, 3]), dist.get_rank()
    if rank == 0:
        return serve(plan, held, lambda parameters: torch.optim.SGD(parameters, lr=0.1), _Given(may_begin, tau))
    client, chance = Client(plan), random.Random(rank)
    for _ in range(100):
        client.pull(held)
        if chance.random() < 0.2:
            time.sleep(0.005 * chance.random())
        client.push(held)
    client.leave()


# ---- 14.3 ---------------------------------------------------------------------------------------------------------

_DEALT = (
    ([100, 100, 100, 100], 1, 3),
    ([100, 100, 100, 100], 4, 3),
    ([30, 10, 60, 20, 40], 2, 3),
    ([8192, 128, 1280, 40], 1, 2),
    ([128, 8192, 40, 1280], 3, 5),
    ([7], 1, 1),
    ([5, 4, 3, 3, 3], 2, 8),
    ([1, 1, 1, 1, 1, 5], 3, 100),
    ([64] * 8, 8, 8),
)


def check_14_3(bytes_in):
    """`bytes_in` counts the bytes that enter the busiest server, a worker, and a process of a ring.

    Its arguments are `key_bytes, num_servers, num_workers`.
    """
    run(_judge_bytes, bytes_in)
    return f"{len(_DEALT)} plans: the bytes into servers, workers and rings are right."


def _judge_bytes(bytes_in):
    for key_bytes, num_servers, num_workers in _DEALT:
        given = list(key_bytes)
        with case(f"bytes_in({given}, {num_servers}, {num_workers})"), unchanged(key_bytes=given):
            found = bytes_in(given, num_servers, num_workers)
            expect(isinstance(found, dict), f"{short(found)} came back, and a dict is asked")
            expect(
                set(found) == {"server", "worker", "ring"},
                f"its keys are {short(list(found))}, and three others are asked",
            )
            _judge_count(found, key_bytes, num_servers, num_workers)
    for key_bytes, num_servers in (([4, 4], 3), ([9], 2)):
        with case(f"bytes_in({key_bytes}, {num_servers}, 2)"):
            expect_error(ValueError, lambda k=key_bytes, s=num_servers: bytes_in(k, s, 2))


def _judge_count(found, key_bytes, k, n):
    total, most = sum(key_bytes), max(_deal(sorted(key_bytes, reverse=True), k))
    explain(
        expect_number(found["server"], "what enters the server"),
        n * most,
        {
            "that is one worker's, and all of them push": most,
            "that is the mean of all servers, and they do not hold the same": n * total / k,
            "were the keys dealt in the order given?": n * max(_deal(key_bytes, k)),
            "were the keys dealt in turn, whatever the servers hold?": n
            * max(sum(sorted(key_bytes, reverse=True)[i::k]) for i in range(k)),
            "what leaves the server is counted, too": 2 * n * most,
            "that enters all servers together": n * total,
            "that is the server with the fewest bytes": n * min(_deal(sorted(key_bytes, reverse=True), k)),
        },
        said=f"{found['server']:,} bytes are said to enter the busiest server",
        otherwise="who sends it what?",
    )
    explain(expect_number(found["worker"], "what enters a worker"), total, {
        "what it pushes does not enter it": 2 * total,
        "it pulls from all servers": most,
        "that enters all workers together": n * total,
    }, said=f"{found['worker']:,} bytes are said to enter a worker", otherwise="what does it pull?")  # fmt: skip
    explain(
        expect_number(found["ring"], "what enters a process of the ring"),
        2 * (n - 1) / n * total,
        {
            "are there as many chunks as steps?": 2 * (n - 1) * total,
            "a ring has a reduce-scatter and an all-gather": (n - 1) / n * total,
            "servers are no members of the ring": 2 * (n + k - 1) / (n + k) * total,
            "what does a process need not be sent?": 2 * total,
            "that is the busiest server's part only": 2 * (n - 1) / n * most,
        },
        said=f"{found['ring']:,} bytes are said to enter each process of a ring",
        otherwise="chapter 08 counted it",
    )


def _deal(key_bytes, num_servers):
    held = [0] * num_servers
    for num_bytes in key_bytes:
        held[held.index(min(held))] += num_bytes
    return held


# ---- 14.4 ---------------------------------------------------------------------------------------------------------

_RANKS, _MEETINGS, _LOCAL_STEPS = 3, 3, 2


def check_14_4(outer_step):
    """`outer_step(model, anchor, outer)` is an outer step of DiLoCo, after local steps on each rank."""
    for name, options in {
        "an outer rate of 1 without momentum": {"lr": 1.0},
        "a rate of 0.7 with Nesterov momentum": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
    }.items():
        with case(name):
            _judge_outer(run(_meet, outer_step, options, world_size=_RANKS), options)
    return (
        f"{_RANKS} ranks met {_MEETINGS} times: anchors and models are those of one process, by two outer optimizers."
    )


def _judge_outer(found, options):
    truth = _meet_alone(options)
    for rank, (anchors, num_bytes) in enumerate(found):
        explain(anchors, truth, {
            "the gradient leads away from where the ranks have gone; which sign has it?": _meet_alone(options, sign=-1),
            "is the sum over ranks divided by their number?": _meet_alone(options, num=1),
            "the gradient of the last meeting is still in it": _meet_alone(options, accumulates=True),
            "that is the mean itself: who takes a step with `outer`?": _meet_alone({"lr": 1.0}),
            "its momentum is lost between the meetings": _meet_alone(options, forgets=True),
            "this rank moved by what it alone had moved": _meet_alone(options, only=rank),
            "the anchor has not moved at all": [p.detach() for p in _small_model().parameters()],
        }, said=f"on rank {rank} the anchor does not hold the outer optimizer's values",
            otherwise="which gradient has it, and who takes the step?")  # fmt: skip
        most = _MEETINGS * sum(p.nbytes for p in _small_model().parameters())
        expect(
            num_bytes <= 2 * most,
            f"rank {rank} sent {num_bytes:,} bytes in {_MEETINGS} meetings, and its parameters have "
            f"{most // _MEETINGS:,}: each is to be all-reduced once",
        )


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
            outer_step(model, anchor, outer)
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
    return [start.detach().clone() for start in anchor], num_bytes


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
