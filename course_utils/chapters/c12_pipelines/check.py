"""Checks of chapter 12: the autograd pair, any schedule, no deadlock, a measured bubble, a mesh's groups."""

import copy
import gc
import itertools
import random
import weakref

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ...checks.expect import (
    Wrong,
    case,
    expect,
    expect_number,
    expect_row,
    expect_tensor,
    explain,
    same,
    short,
    unchanged,
)
from ...checks.judge import run, wait_for_the_others
from ...checks.watch.calls import forbid
from ...checks.watch.collectives import Collectives
from ...checks.watch.meeting import hear, tell
from ...checks.watch.messages import Messages
from ...parallel import pipeline
from ...parallel.pipeline.schedules import Task, needs
from .mesh_table import check_12_5 as check_12_5
from .neighbours import Neighbours
from .played_clocks import Clocks

# ---- 12.1 ---------------------------------------------------------------------------------------------------------

_READY_MADE = (
    "course_utils.parallel.tensor",
    *(f"torch.distributed.{name}" for name in ("nn", "tensor", "_functional_collectives")),
)
_SHAPES = ((4, 3), torch.float64), ((5,), torch.float32), ((), torch.float64), ((2, 3, 2), torch.float64)
_RANKS = 2, 3, 1


def check_12_1(autograd_pair):
    """`autograd_pair()` returns copy_to_ranks and sum_over_ranks."""
    for world_size in _RANKS:
        for facts in zip(*run(_try_pair, autograd_pair, world_size=world_size)):
            for rank, (got, truth, suspects, said, otherwise) in enumerate(facts):
                with case(f"rank {rank} of {world_size}"):
                    explain(
                        got, truth, suspects, said=said, otherwise=otherwise, close=1e-5 if _is_float32(truth) else 1e-9
                    )
    return "both directions of both functions are right, and so is a split MLP with a layer before it, on 1 to 3 ranks."


def _is_float32(truth):
    return isinstance(truth, torch.Tensor) and truth.dtype == torch.float32


def _try_pair(autograd_pair):
    """Return comparisons for `explain`, (found, truth, suspects, said, otherwise), the most important first."""
    with forbid(*_READY_MADE, instead="call the collectives of dist yourself"):
        pair = expect_row(autograd_pair(), 2, "what autograd_pair returned", of="the two functions")
        expect(all(map(callable, pair)), f"autograd_pair returned {short(pair)}, not the two functions")
        (to_ranks, total), facts = pair, []
        for (shape, dtype), seed in zip(_SHAPES, itertools.count(121)):
            facts += [*_copied(to_ranks, shape, dtype, seed), *_summed(total, shape, dtype, seed)]
        for more in (_called_twice, _shared, _in_a_network, _without_gradients):
            facts += more(to_ranks, total)
        return facts


def _of_each_rank(shape, seed, dtype=torch.float64):
    """Return the tensors of all ranks, the same on every rank; matrices are transposed in memory."""
    numbers = torch.randn(
        dist.get_world_size(), *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)
    return list(numbers.mT.contiguous().mT if len(shape) == 2 else numbers)


def _call(function, name, x):
    """Return `function(x)` and the names of the collectives that it called."""
    with unchanged(**{f"the tensor given to {name}": x}), Collectives() as called:
        y = function(x)
    called.expect_waited()
    expect(called.in_default, f"{name} works in a group of its own, and is to work in the default group")
    expect_tensor(y, x, f"what {name} returned")
    return y, called.called


def _pull_back(y, x, gradient, name):
    """Return the gradient of x for the `gradient` of y, and the names of the collectives called for it."""
    expect(
        y.requires_grad,
        f"what {name} returned has no autograd graph: backward() would end there. Is it the operation's apply?",
    )
    with unchanged(**{f"the gradient handed to {name}": gradient}), Collectives() as called:
        (pulled,) = torch.autograd.grad(y, x, gradient, retain_graph=True, allow_unused=True)
    called.expect_waited()
    expect(
        pulled is not None,
        f"after backward() through {name} its input has no gradient: what does your backward return?",
    )
    return pulled, called.called


def _copied(to_ranks, shape, dtype, seed):
    rank, N = dist.get_rank(), dist.get_world_size()
    x, pulls = _of_each_rank(shape, seed, dtype)[0], _of_each_rank(shape, seed + 10, dtype)  # x is equal on all ranks
    x = x.clone().requires_grad_()
    y, called = _call(to_ranks, "copy_to_ranks", x)
    pulled, _ = _pull_back(y, x, pulls[rank], "copy_to_ranks")
    exchanged = {"are the two functions exchanged?": N * x.detach()}
    yield y.detach(), x.detach(), exchanged, "what copy_to_ranks returned is not what it was given", ""
    yield _silence(called, "what copy_to_ranks returned", "forward")
    yield _sum(pulled, pulls, "the gradient behind copy_to_ranks")


def _summed(total, shape, dtype, seed):
    rank, N = dist.get_rank(), dist.get_world_size()
    own, pull = _of_each_rank(shape, seed, dtype), _of_each_rank(shape, seed + 10, dtype)[0]  # equal on all ranks
    x = own[rank].clone().requires_grad_()
    y, _ = _call(total, "sum_over_ranks", x)
    pulled, called = _pull_back(y, x, pull, "sum_over_ranks")
    yield _sum(y.detach(), own, "what sum_over_ranks returned")
    many = {"it was summed over ranks that all have the same": N * pull}
    yield pulled, pull, many, "the gradient behind sum_over_ranks is not the sum's own", ""
    yield _silence(called, "the gradient behind sum_over_ranks", "backward")


def _sum(found, parts, what):
    N, own = len(parts), parts[dist.get_rank()]
    suspects = {
        "it is this rank's own": own,
        "it is the mean over ranks": sum(parts) / N,
        "it is the largest of the ranks'": torch.stack(parts).amax(0),
    }
    return found, sum(parts), suspects, f"{what} is not the sum over ranks", "what is added to what?"


def _silence(called, what, direction):
    return (
        called,
        [],
        (),
        f"{what} is right, but {', '.join(called)} was called for it, and the table says “nothing” {direction}",
        "",
    )


def _called_twice(to_ranks, total):
    """Check that neither a second call nor a second backward pass changes earlier results."""
    one, other = (torch.full((3,), number, dtype=torch.float64, requires_grad=True) for number in (1.0, 2.0))
    first, copied = total(one), to_ranks(one)
    with unchanged(**{"what the first of two sum_over_ranks returned": first}):
        total(other)
    (gradient,) = torch.autograd.grad(copied, one, torch.ones_like(one), retain_graph=True)
    with unchanged(**{"the gradient of the first of two copy_to_ranks": gradient}):
        torch.autograd.grad(to_ranks(other), other, torch.full_like(other, 5.0))
    (again,) = torch.autograd.grad(copied, one, torch.ones_like(one))
    yield again, gradient, (), "a second backward pass through copy_to_ranks gave another gradient", ""


def _shared(to_ranks, total):
    """Check y = x + to_ranks(x): autograd passes the same gradient tensor to both summands."""
    rank, pulls = dist.get_rank(), _of_each_rank((3, 2), 124)
    pulls[0] *= 0.0
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    with Collectives():
        (x + to_ranks(x)).backward(pulls[rank])
    both = {"both of its parts were summed over ranks, and only one came through copy_to_ranks": 2 * sum(pulls)}
    otherwise = "autograd hands one gradient to both summands"
    yield x.grad, pulls[rank] + sum(pulls), both, "x + copy_to_ranks(x) gives x a wrong gradient", otherwise
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    total(total(x) * 2.0).sum().backward()
    yield x.grad, torch.full_like(x, 2.0).detach(), (), "two sum_over_ranks in a row give a wrong gradient", ""


def _without_gradients(to_ranks, total):
    own = _of_each_rank((2, 3), 126)
    for grad_mode in (torch.enable_grad, torch.no_grad):
        with grad_mode():
            copied, _ = _call(to_ranks, "copy_to_ranks", own[0])
            yield copied, own[0], (), "copy_to_ranks returned another tensor where none needs a gradient", ""
            summed, _ = _call(total, "sum_over_ranks", own[dist.get_rank()])
        yield _sum(summed, own, "what sum_over_ranks returned where nothing needs a gradient")


def _in_a_network(to_ranks, total):
    """Check a layer and an MLP split over ranks, applied twice: gradients must equal the whole network's."""
    rank, N = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(125)
    stem, up, down = (nn.Linear(a, b, bias=False).double().weight for a, b in ((5, 4), (4, 6 * N), (6 * N, 4)))
    x = torch.randn(7, 5, dtype=torch.float64)

    def gradients(weights, before, after):
        weights = [w.detach().clone().requires_grad_() for w in weights]
        h = F.linear(x, weights[0])
        for _ in range(2):
            h = h + after(F.linear(torch.tanh(F.linear(before(h), weights[1])), weights[2]))
        return torch.autograd.grad(h.square().sum(), weights)

    whole = gradients([stem, up, down], lambda h: h, lambda h: h)
    right = [whole[0], whole[1].chunk(N)[rank], whole[2].chunk(N, 1)[rank]]
    for name, found, truth in zip(
        ("the layer before it", "its columns", "its rows"),
        gradients([stem, up.chunk(N)[rank], down.chunk(N, 1)[rank]], to_ranks, total),
        right,
    ):
        yield (
            found,
            truth,
            (),
            f"in an MLP between your two functions, the gradient of {name} is not the whole network's",
            "",
        )


# ---- 12.2 and 12.3 ------------------------------------------------------------------------------------------------


class _Network:
    """`K` stages, `M` micro-batches with unequal weights, and their results in a single process."""

    def __init__(self, K, M):
        torch.manual_seed(126)
        self.stages = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(K)]
        self.xs, self._ys = (torch.randn(M, 2, 5, dtype=torch.float64) for _ in range(2))
        self._weights = torch.rand(M, dtype=torch.float64) + 0.5
        parameters = [p for stage in self.stages for p in stage.parameters()]
        self.given, self.carried = {}, {}  # {task: its stage's input}, {task: the tensor that it sends}
        self.losses, self.gradients = [], []  # [micro-batch], [micro-batch][stage]
        for m in range(M):
            held = [self.xs[m].clone().requires_grad_()]
            for stage in self.stages:
                held.append(stage(held[-1]))
            loss = self.loss_of(m, held[-1])
            grads = torch.autograd.grad(loss, [*held[:-1], *parameters])
            for stage in range(K):
                self.given[Task(stage, m, "forward")] = held[stage].detach()
                self.carried |= {Task(stage, m, "forward"): held[stage + 1].detach()} if stage < K - 1 else {}
                self.carried |= {Task(stage, m, "backward"): grads[stage]} if stage else {}
            self.losses.append(loss.item())
            self.gradients.append([grads[K + 2 * stage :][:2] for stage in range(K)])

    def loss_of(self, m, output):
        return self._weights[m] * F.mse_loss(output, self._ys[m])

    def expect_gradients(self, stage, found):
        """Raise Wrong unless `found`, a stage's gradients, are the sums over micro-batches."""
        expect(all(gradient is not None for gradient in found), "a p.grad is None afterwards")
        of_each = [list(gradients[stage]) for gradients in self.gradients]
        total = [sum(gradients) for gradients in zip(*of_each)]
        suspects = {
            "they are the mean over micro-batches": [gradient / len(of_each) for gradient in total],
            "they are those of one micro-batch alone": next((one for one in of_each if same(found, one)), None),
        }
        explain(
            found,
            total,
            suspects,
            said="the gradients are not the sums over micro-batches",
            otherwise="did each backward get the "
            "gradient of its own micro-batch, and was every tensor left alone as long as it was needed?",
        )

    def expect_loss(self, found):
        """Raise Wrong unless `found` is the sum of the losses."""
        found = expect_number(found, "what came back")
        suspects = {
            "that is their mean": sum(self.losses) / len(self.losses),
            "that is the loss of one micro-batch alone": next(
                (loss for loss in self.losses if same(found, loss)), None
            ),
        }
        explain(found, sum(self.losses), suspects, said=f"{found:.6g} came back, not the sum of the losses", close=1e-6)


def check_12_2(run_any):
    """`run_any(tasks, stage, inputs, loss_of, receive, send)` runs one stage's tasks of any valid schedule."""
    for K, M in ((3, 6), (1, 6), (4, 3)):
        found = run(_run_schedules, run_any, M, world_size=K)
        for _, stage, reason in sorted(
            (number, stage, reason) for stage, (number, reason) in enumerate(found) if reason
        ):
            with case(f"{K} stage{'s' * (K > 1)}, {M} micro-batches, stage {stage}"):
                raise Wrong(reason)
    return (
        "naive, GPipe, 1F1B and five random schedules gave the whole batch's loss and gradients, on one stage, three "
        "and four."
    )


def _run_schedules(run_any, M):
    """Return the number of the first schedule that fails on this rank's stage, and the reason, or (0, None)."""
    stage, K = dist.get_rank(), dist.get_world_size()
    network = _Network(K, M)
    named = {"naive": pipeline.naive, "GPipe": pipeline.gpipe, "1F1B": pipeline.one_forward_one_backward}
    schedules = {name: make(K, M) for name, make in named.items()}
    schedules |= {f"random schedule {seed}": _random_schedule(K, M, seed) for seed in range(5)}
    for number, (name, schedule) in enumerate(schedules.items()):
        try:
            with case(name):
                _judge_schedule(run_any, schedule, network, stage, K)
        except Wrong as wrong:
            return number, str(wrong)
    return 0, None


def _random_schedule(K, M, seed):
    draw, waiting, done, schedule = random.Random(seed), set(pipeline.naive(K, M)), {None}, []
    while waiting:
        task = draw.choice(sorted(task for task in waiting if needs(task, K) in done))
        waiting.remove(task)
        done.add(task)
        schedule.append(task)
    return schedule


def _judge_schedule(run_any, schedule, network, number, K):
    tasks = [task for task in schedule if task.stage == number]
    stage = copy.deepcopy(network.stages[number])
    neighbours = Neighbours(schedule, number, K, network.carried)
    is_last = number == K - 1
    did, outputs, most, stale = [], [], [0], [0]

    def do(task):
        did.append(task)
        asked = tasks[len(did) - 1] if len(did) <= len(tasks) else None
        expect(
            asked == task,
            f"the schedule asks for {_words(asked)} as task number {len(did)}, and {_words(task)} was done",
        )

    def note(module, given, output):
        m = next(
            (
                task.micro_batch
                for task, h in network.given.items()
                if task.stage == number and torch.equal(given[0], h)
            ),
            None,
        )
        expect(m is not None, "the stage was given something that is not the input of any micro-batch")
        expect(output.requires_grad, f"the output of micro-batch {m} has no autograd graph to go back through")
        do(Task(number, m, "forward"))
        output.register_hook(lambda gradient: do(Task(number, m, "backward")))
        outputs.append(weakref.ref(output.untyped_storage()))
        most[0] = max(most[0], sum(memory() is not None for memory in outputs))
        # Leave out the last one: loop variables still hold its tensors.
        done = [task.micro_batch for task in did if task.phase == "backward"][:-1]
        stale[0] = max(stale[0], neighbours.num_kept(done))

    stage.register_forward_hook(note)
    inputs = [x.clone() for x in network.xs] if number == 0 else None
    with (
        unchanged(tasks=tasks, stage=stage, allow=("grad",)),
        unchanged(inputs=inputs or [], allow=("grad", "requires_grad")),
    ):
        result = run_any(
            tasks, stage, inputs, network.loss_of if is_last else None, neighbours.receive, neighbours.send
        )
    expect(len(did) == len(tasks), f"{len(did)} of {len(tasks)} tasks were done")
    neighbours.expect_all_sent(tasks)
    network.expect_gradients(number, [p.grad for p in stage.parameters()])
    if is_last:
        network.expect_loss(result)
    expect(is_last or result is None, f"{short(result)} came back, and there is no loss here: None is asked")
    _expect_little_kept(tasks, number, most[0], stale[0], neighbours, len(network.xs))


def _expect_little_kept(tasks, number, most, stale, neighbours, num_micro_batches):
    """Raise Wrong if too many outputs were kept at once, or received tensors after their backward.

    `most` is the number of outputs, `stale` that of received tensors.
    """
    allowed = max(pipeline.peak_activations(tasks)[number:])
    expect(
        most <= allowed + 1,
        f"the outputs of {most} micro-batches were kept at once, and at most {allowed} are between forward and "
        "backward: let go of what is done",
    )
    everything = range(num_micro_batches)
    if neighbours.num_kept(everything):
        gc.collect()
    stale = max(stale, 3 * neighbours.num_kept(everything))
    expect(stale <= 2, "received tensors were still there after their micro-batch's backward: let go of what is done")


def _words(task):
    return f"the {task.phase} of micro-batch {task.micro_batch}" if task else "nothing more"


def check_12_3(run_1f1b):
    """`run_1f1b(stage, num_micro_batches, inputs, loss_of, like)` runs 1F1B without deadlock."""
    for K, M in ((2, 4), (3, 5), (4, 2), (1, 3)):
        network = _Network(K, M)
        for stage, (gradients, result, held) in enumerate(run(_run_1f1b, run_1f1b, M, world_size=K)):
            with case(f"{K} stage{'s' * (K > 1)}, {M} micro-batches, stage {stage}"):
                network.expect_gradients(stage, gradients)
                if stage == K - 1:
                    network.expect_loss(result)
                else:
                    is_zero = expect_number(result, "what came back") == 0
                    expect(is_zero, f"{short(result)} came back, and there is no loss here: 0 is asked")
                limit = min(K - stage, M)
                expect(
                    held <= limit,
                    f"it came to its end, but held {held} micro-batches at once, more than 1F1B does: how many "
                    "forwards come before this stage's first pair of a forward and a backward?",
                )
                expect(
                    held == limit,
                    f"it came to its end, but held {held} micro-batch{'es' * (held > 1)} at most, and 1F1B more: what "
                    "do the other stages do meanwhile?",
                )
    return (
        "1 to 4 stages came to an end, with the right loss and gradients, and held as many micro-batches as 1F1B does."
    )


def _run_1f1b(run_1f1b, M):
    rank, K = dist.get_rank(), dist.get_world_size()
    network, held = _Network(K, M), {"now": 0, "most": 0}
    stage, inputs = network.stages[rank], [x.clone() for x in network.xs] if rank == 0 else None

    def note(module, given, output):
        expect(output.requires_grad, "a stage's output has no autograd graph to go back through")
        held["now"] += 1
        held["most"] = max(held["most"], held["now"])
        output.register_hook(lambda gradient: held.update(now=held["now"] - 1))

    stage.register_forward_hook(note)
    like = torch.zeros_like(network.xs[0])
    with (
        unchanged(stage=stage, like=like, allow=("grad",)),
        unchanged(inputs=inputs or [], allow=("grad", "requires_grad")),
    ):
        with Messages() as messages:
            result = run_1f1b(stage, M, inputs, network.loss_of if rank == K - 1 else None, like)
        messages.expect_waited()
    wait_for_the_others()  # results are judged once all ranks have ended
    return [p.grad for p in stage.parameters()], result, held["most"]


# ---- 12.4 ---------------------------------------------------------------------------------------------------------

# Seconds on the ranks' simulated clocks; nothing really waits.
_TRAVEL_S, _SECONDS = 0.25, {"forward": 1.0, "backward": 2.0}


def check_12_4(measure_bubble):
    """`measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches)` returns predicted and measured bubble."""
    for K, M, name in (
        (2, 4, "gpipe"),
        (3, 3, "one_forward_one_backward"),
        (4, 6, "one_forward_one_backward"),
        (1, 3, "naive"),
    ):
        with case(f"{K} stage{'s' * (K > 1)}, {M} micro-batches"):
            answers, spans = zip(*run(_measure, measure_bubble, M, name, world_size=K))
            answers = [
                expect_row(answer, 2, f"what rank {rank} returned", of="two fractions")
                for rank, answer in enumerate(answers)
            ]
            pairs = [
                [
                    expect_number(value, f"{what}, from rank {rank},")
                    for what, value in zip(("predicted", "measured"), answer)
                ]
                for rank, answer in enumerate(answers)
            ]
            told = [tuple(round(float(value), 7) for value in pair) for pair in pairs]
            expect(all(pair == pairs[0] for pair in pairs), f"the ranks returned {told}, and must agree")
            _judge_prediction(pairs[0][0], K, M)
            _judge_bubble(pairs[0][1], spans, K, M)
    return "prediction and measurement are right for four pipelines, whose clocks did not agree."


def _measure(measure_bubble, M, name):
    rank, K = dist.get_rank(), dist.get_world_size()
    tasks = [task for task in getattr(pipeline, name)(K, M) if task.stage == rank]
    # Ranks start at different times, as after a launch.
    clocks = Clocks(measure_bubble, now=3.0 * (rank == 0), apart=1e8 * (1 + rank))
    calls, spans = [], []

    def note(call, task):
        words = f"{call}({tuple(task)})"
        expect((call, task) not in calls, f"{words} was called twice")
        expect(call == "wait_for" or ("wait_for", task) in calls, f"{words} was called without wait_for before it")
        expect(tasks[len(calls) // 2 :][:1] == [task], f"{words} was called, and another task comes first in the list")
        calls.append((call, task))

    def wait_for(task):
        note("wait_for", task)
        needed = needs(task, K)
        if needed is not None and needed.stage != rank:
            clocks.now = max(clocks.now, hear(str(needed)) + _TRAVEL_S)

    def work(task):
        note("run", task)
        begin = clocks.now
        clocks.now += _SECONDS[task.phase] * (K - rank)  # unequal, so that the formula does not hold
        spans.append((begin, clocks.now))
        tell(str(task), clocks.now)

    with unchanged(tasks=tasks), clocks:
        come = clocks.now
        answer = measure_bubble(tasks, wait_for, work, K, M)
    expect(len(spans) == len(tasks), f"{len(spans)} of {len(tasks)} tasks were run")
    expect(clocks.were_read, "no clock of the module time was read: with what is a duration measured?")
    return answer, (come, spans)


def _judge_prediction(predicted, K, M):
    right = (K - 1) / (M + K - 1)
    suspects = {
        "that is idle over busy time, and idle over all time is asked": (K - 1) / M,
        "that is in per cent": 100 * right,
        "which of the two numbers counts stages?": (M - 1) / (M + K - 1),
    }
    explain(predicted, right, suspects, said=f"the prediction is {predicted:.3f}, not the formula's", close=1e-6)


def _judge_bubble(measured, seen, K, M):
    begin, end = max(come for come, _ in seen), max(spans[-1][1] for _, spans in seen)
    busy = [sum(end - begin for begin, end in spans) for _, spans in seen]
    truth = 1 - sum(busy) / (K * (end - begin))
    suspects = {
        "that is the share in which they ran": 1 - truth,
        "that is idle over busy time": truth / (1 - truth),
        "that is in per cent": 100 * truth,
        "that is the formula's number": (K - 1) / (M + K - 1),
        "does the time of waiting count as running?": 1
        - sum(spans[-1][1] - begin for _, spans in seen) / (K * (end - begin)),
        "when do all ranks begin together?": 1 - sum(busy) / sum(end - come for come, _ in seen),
        "do all ranks' times go on until all have ended?": 1
        - sum(busy) / sum(spans[-1][1] - begin for _, spans in seen),
        "that is the share of one rank alone": next(
            (1 - b / (end - begin) for b in busy if same(measured, 1 - b / (end - begin), 1e-4)), None
        ),
    }
    said = f"the measured fraction is {measured:.3f}, and by a common clock it is another"
    explain(
        measured,
        truth,
        suspects,
        said=said,
        close=1e-4,
        otherwise="from when to when is each stage's time measured, by whose clock, and is anything rounded?",
    )
