"""Checks of chapter 12: the autograd pair, any schedule, a pipeline without deadlock, a measured bubble."""

import datetime
import numbers
import random
import reprlib
import time
import weakref

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..launch import WorkerError
from ..parallel import pipeline
from ..parallel.messages import Traffic
from .wrong import DEADLOCK_S, EQUAL, Wrong, expect, is_near, max_difference, run_answer


def _judge_in_workers(judge, answer, *args, world_size):
    """Run `judge(answer, *args)` on every rank, and return what it returned; raise Wrong as the first rank that does.

    Ended after a few seconds: these exercises are about standing still.
    """
    try:
        return run_answer(judge, answer, *args, world_size=world_size, timeout=DEADLOCK_S)
    except WorkerError as error:
        # Raised, not returned: the other ranks may be waiting for this one, and so end at once.
        expect(error.type_name != Wrong.__name__, error.message)
        raise


# ---- 12.1 ---------------------------------------------------------------------------------------------------------


def check_12_1(autograd_pair):
    """`autograd_pair()` returns copy_to_ranks and sum_over_ranks."""
    for world_size in (3, 2):
        _judge_in_workers(_judge_pair, autograd_pair, world_size=world_size)
    return "both directions of both functions are right, and so is a split MLP with a layer before it, on 2 and 3 ranks."


def _of_each_rank(shape, seed):
    """What every rank holds of its own, known to all."""
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(dist.get_world_size(), *shape, generator=generator, dtype=torch.float64))


def _call(function, name, x):
    before = x.detach().clone()
    y = function(x)
    expect(isinstance(y, torch.Tensor), f"{name} returned {reprlib.repr(y)}, not a tensor")
    expect(torch.equal(x.detach(), before), f"{name} changed the tensor that it was given: it belongs to the caller")
    expect(y.shape == x.shape and y.dtype == x.dtype, f"{name} was given {tuple(x.shape)}, {x.dtype}, and returned {tuple(y.shape)}, {y.dtype}")
    return y


def _pull_back(y, x, gradient, name):
    """x's gradient for the `gradient` of y, after it is certain that autograd can go back."""
    expect(y.requires_grad, f"what {name} returns has no autograd graph: backward() would end there. Is it the operation's `apply`?")
    given = gradient.clone()
    y.backward(given, retain_graph=True)
    expect(torch.equal(given, gradient), f"{name} changed the gradient that it was handed: autograd may use it elsewhere too")
    expect(x.grad is not None, f"after backward() through {name} its input has no gradient: what does your backward return?")
    return x.grad


def _judge_pair(autograd_pair):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pair = autograd_pair()
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(map(callable, pair))
    expect(is_pair, f"autograd_pair() returned {reprlib.repr(pair)}, not the two functions")
    copy, total = pair
    time.sleep(0.03 * (rank == world_size - 1))  # so that who does not wait for a sum is too early, and not right by chance
    for shape, seed in (((4, 3), 121), ((5,), 122), ((2, 3, 2), 123)):
        own, pulls = _of_each_rank(shape, seed), _of_each_rank(shape, seed + 10)
        x = own[0].clone().requires_grad_()  # equal on all ranks
        with Traffic() as forward:
            y = _call(copy, "copy_to_ranks", x)
        expect(not is_near(y.detach(), world_size * x.detach()), "copy_to_ranks returned the sum over ranks: are the two functions exchanged?")
        expect(torch.equal(y.detach(), x.detach()), "copy_to_ranks does not return what it was given")
        _expect_silence(forward, "what copy_to_ranks returns", "forward")
        grad = _pull_back(y, x, pulls[rank], "copy_to_ranks")
        _expect_sum(grad, pulls, "the gradient behind copy_to_ranks")

        x = own[rank].clone().requires_grad_()
        y = _call(total, "sum_over_ranks", x)
        _expect_sum(y.detach(), own, "what sum_over_ranks returns")
        with Traffic() as backward:
            grad = _pull_back(y, x, pulls[0], "sum_over_ranks")  # equal on all ranks
        many = f"the gradient behind sum_over_ranks is {world_size} times too large: it was summed over ranks that all have the same"
        expect(not is_near(grad, world_size * pulls[0]), many)
        expect(is_near(grad, pulls[0]), f"the gradient behind sum_over_ranks is off by {max_difference(grad, pulls[0]):.2g}: the sum's own is asked")
        _expect_silence(backward, "the gradient behind sum_over_ranks", "backward")
    _judge_two_calls(copy, total)
    _judge_shared_gradient(copy, total)
    _judge_split_mlp(copy, total)


def _expect_silence(traffic, what, direction):
    names = [name for name, _ in traffic.collectives] + ["send"] * len(traffic.sent)
    expect(not names, f"{what} is right, but {', '.join(names)} was called for it, and the table says “nothing” {direction}")


def _judge_two_calls(copy, total):
    """What a second call returns has nothing to do with what the first one did."""
    one, other = (torch.full((3,), number, dtype=torch.float64, requires_grad=True) for number in (1.0, 2.0))
    first, copied = total(one), copy(one)
    before = first.detach().clone()
    total(other)
    expect(torch.equal(first.detach(), before), "a second sum_over_ranks changed what the first one had returned")
    (gradient,) = torch.autograd.grad(copied, one, torch.ones_like(one))
    before = gradient.clone()
    torch.autograd.grad(copy(other), other, torch.full_like(other, 5.0))
    expect(torch.equal(gradient, before), "a second backward through copy_to_ranks changed the gradient that the first one had returned")


def _expect_sum(ours, parts, what):
    right, own = sum(parts), parts[dist.get_rank()]
    expect(ours.shape == right.shape, f"{what} has shape {tuple(ours.shape)}, and should have {tuple(right.shape)}")
    if not is_near(ours, right):
        told = f"on rank {dist.get_rank()}, {what} is off by {max_difference(ours, right):.2g}"
        expect(not is_near(ours, own), f"{told}: it is this rank's own, and a sum over ranks is asked")
        expect(not is_near(ours, right / len(parts)), f"{told}: it is the mean over ranks, and a sum is asked")
        raise Wrong(f"{told}: a sum over ranks is asked")


def _judge_shared_gradient(copy, total):
    """y = x + copy(x): autograd hands the same gradient to both summands."""
    rank, pulls = dist.get_rank(), _of_each_rank((3, 2), 124)
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    (x + copy(x)).backward(pulls[rank])
    apart = max_difference(x.grad, pulls[rank] + sum(pulls))
    expect(not is_near(x.grad, 2 * sum(pulls)), "x + copy_to_ranks(x) gives x a gradient whose two parts were both summed over ranks, and "
           "only one came through copy_to_ranks")
    expect(apart < EQUAL, f"x + copy_to_ranks(x) gives x a gradient that is off by {apart:.2g}: autograd hands one gradient to both summands, "
                           "so a backward must not change it in place")
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    total(total(x) * 2.0).sum().backward()
    apart = max_difference(x.grad, torch.full_like(x, 2.0))
    expect(apart < EQUAL, f"two sum_over_ranks in a row give a gradient that is off by {apart:.2g}")


def _judge_split_mlp(copy, total):
    """A layer, then an MLP split over ranks, twice through the same functions: all gradients are the whole network's."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(125)
    stem, up, down = (nn.Linear(a, b, bias=False).double() for a, b in ((5, 4), (4, 6 * world_size), (6 * world_size, 4)))
    x = torch.randn(7, 5, dtype=torch.float64)
    h = stem(x)
    for _ in range(2):
        h = h + down(torch.tanh(up(h)))
    h.square().sum().backward()
    right = [stem.weight.grad, up.weight.grad.chunk(world_size)[rank], down.weight.grad.chunk(world_size, 1)[rank]]
    shards = [stem.weight, up.weight.chunk(world_size)[rank], down.weight.chunk(world_size, 1)[rank]]
    shards = [p.detach().clone().requires_grad_() for p in shards]
    h = F.linear(x, shards[0])
    for _ in range(2):
        h = h + total(F.linear(torch.tanh(F.linear(copy(h), shards[1])), shards[2]))
    h.square().sum().backward()
    for name, shard, truth in zip(("the layer before it", "the columns", "the rows"), shards, right):
        got = shard.grad is not None and is_near(shard.grad, truth)
        expect(got, f"in an MLP between your two functions, on rank {rank}, the gradient of {name} is not the whole network's")


# ---- 12.2 ---------------------------------------------------------------------------------------------------------

_PATIENCE_S = 5  # for a message that a right answer has at once: less, and on a busy machine those who wait speak first


def check_12_2(run_any):
    """`run_any(tasks, stage, inputs, loss_of, receive, send)` runs one stage's tasks of any valid schedule."""
    _judge_in_workers(_judge_schedules, run_any, world_size=3)
    return "naive, GPipe, 1F1B and five random schedules gave the whole batch's loss and gradients, on three stages and on one."


def _random_schedule(num_stages, num_micro_batches, seed):
    draw, waiting, done, schedule = random.Random(seed), set(pipeline.naive(num_stages, num_micro_batches)), {None}, []
    while waiting:
        ready = sorted(task for task in waiting if pipeline.schedules.needs(task, num_stages) in done)
        task = draw.choice(ready)
        waiting.remove(task)
        done.add(task)
        schedule.append(task)
    return schedule


def _judge_schedules(run_any):
    K, M = 3, 6
    named = [("naive", pipeline.naive(K, M)), ("GPipe", pipeline.gpipe(K, M)), ("1F1B", pipeline.one_forward_one_backward(K, M))]
    if dist.get_rank() == 0:
        for seed in (1, 2):
            _judge_run(run_any, _random_schedule(1, M, seed), 1, M, "on a single stage")
    dist.barrier()
    for name, schedule in [*named, *((f"random schedule {seed}", _random_schedule(K, M, seed)) for seed in range(5))]:
        _judge_run(run_any, schedule, K, M, f"{name}, stage {dist.get_rank()}")
        dist.barrier()


class _Messages:
    """receive and send for one stage, and notes of what was done."""

    def __init__(self, like, where):
        self.like, self.where, self.sent, self.received, self.works = like, where, [], [], []
        rank = dist.get_rank()
        self.source = {"forward": rank - 1, "backward": rank + 1}
        self.target = {"forward": rank + 1, "backward": rank - 1}

    def _expect_phase(self, phase):
        expect(phase in ("forward", "backward"), f'{self.where}: the phase of a message is "forward" or "backward", not {phase!r}')

    def _wait_for(self, tensor, phase):
        try:
            dist.irecv(tensor, self.source[phase]).wait(datetime.timedelta(seconds=_PATIENCE_S))
        except RuntimeError:
            raise Wrong(f'{self.where}: it waits in receive("{phase}") and nothing came: did the other stage send it, has it been '
                        "received before, or is it not yet due?") from None

    def receive(self, phase):
        self._expect_phase(phase)
        expect(self.source[phase] in range(dist.get_world_size()) and self.like is not None,
               f'{self.where}: receive("{phase}") was called, and there is no neighbour on that side')
        number, tensor = torch.zeros(2, dtype=torch.int64), torch.empty_like(self.like)
        self._wait_for(number, phase)
        expect(number[1] == (phase == "forward"), f"{self.where}: activations and gradients were mixed up")
        self._wait_for(tensor, phase)
        self.received.append((int(number[0]), weakref.ref(tensor)))
        return int(number[0]), tensor

    def send(self, phase, m, tensor):
        self._expect_phase(phase)
        expect(self.target[phase] in range(dist.get_world_size()) and self.like is not None,
               f'{self.where}: send("{phase}", …) was called, and there is no neighbour on that side')
        expect(isinstance(tensor, torch.Tensor), f'{self.where}: send("{phase}", {m}, …) was given {reprlib.repr(tensor)}, not a tensor')
        expect(tensor.shape == self.like.shape, f'{self.where}: send("{phase}", {m}, …) was given shape {tuple(tensor.shape)}, and '
                                                f"{tuple(self.like.shape)} is due")
        self.sent.append((phase, m))
        for part in (torch.tensor([m, phase == "forward"]), tensor.detach().clone()):
            self.works.append((dist.isend(part, self.target[phase]), part))


def _judge_run(run_any, schedule, K, M, where):
    rank = dist.get_rank() if K > 1 else 0
    is_first, is_last = rank == 0, rank == K - 1
    torch.manual_seed(126)
    layers = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(K)]
    xs, ys = (torch.randn(M, 2, 5, dtype=torch.float64) for _ in range(2))
    weights = torch.rand(M, dtype=torch.float64)  # micro-batches count differently, so that none can stand for another

    def loss_of(m, output):
        return weights[m] * F.mse_loss(output, ys[m])

    whole, inputs_here = nn.Sequential(*layers), []
    for m in range(M):
        h = xs[m]
        for layer in layers[:rank]:
            h = layer(h)
        inputs_here.append(h.detach())
    right_loss = sum(loss_of(m, whole(xs[m])) for m in range(M))
    right = torch.autograd.grad(right_loss, list(layers[rank].parameters()))

    stage, tasks = layers[rank], [task for task in schedule if task.stage == rank]
    did, outputs, most, stale, before = [], [], [0], [0], _copies(stage)
    allowed = max(pipeline.peak_activations(tasks)[rank:] or [0])

    def note(module, inputs, output):
        found = [m for m in range(M) if is_near(inputs[0].detach(), inputs_here[m])]
        expect(found, f"{where}: the stage was given something that is not the input of any micro-batch")
        m = found[0]
        did.append((m, "forward"))
        expect(output.requires_grad, f"{where}: the output of micro-batch {m} has no autograd graph to go back through")
        output.register_hook(lambda gradient: did.append((m, "backward")))
        done = [m for m, phase in did if phase == "backward"][:-1]  # a loop's variables still hold the last one
        stale[0] = max(stale[0], sum(received() is not None for m, received in messages.received if m in done))
        outputs.append(weakref.ref(output))
        most[0] = max(most[0], sum(output() is not None for output in outputs))

    messages = _Messages(xs[0] if K > 1 else None, where)
    hook = stage.register_forward_hook(note)
    given = list(tasks)
    try:
        result = run_any(tasks, stage, list(xs) if is_first else None, loss_of if is_last else None, messages.receive, messages.send)
    finally:
        hook.remove()
    expect(tasks == given, f"{where}: the list of tasks was changed, and it belongs to the caller")
    order = [(task.micro_batch, task.phase) for task in tasks]
    if did != order:
        first = next((i for i, (a, b) in enumerate(zip(did, order)) if a != b), min(len(did), len(order)))
        asked = "the {1} of micro-batch {0}".format(*order[first]) if first < len(order) else "nothing more"
        done = "the {1} of micro-batch {0}".format(*did[first]) if first < len(did) else "nothing more"
        raise Wrong(f"{where}: the schedule asks for {asked} as task number {first + 1}, and {done} was done")
    due = [(phase, m) for m, phase in order if not (is_last if phase == "forward" else is_first)]
    expect(messages.sent == due, f"{where}: {len(due)} messages are due, the first of them {due[:2]}, and {len(messages.sent)} were sent, "
                                 f"{messages.sent[:2]}")
    expect(most[0] <= allowed + 1, f"{where}: the outputs of {most[0]} micro-batches were kept at once, and at most {allowed} are between "
                                   "forward and backward: let go of what is done")
    expect(stale[0] <= 2, f"{where}: {stale[0]} received tensors were still there after their micro-batches' backward: let go of what is done")
    _expect_gradients(stage, before, right, where, "did each backward get the gradient of its own micro-batch, and were all added up?")
    _expect_loss(result, right_loss if is_last else None, where)
    for work, _ in messages.works:
        work.wait(datetime.timedelta(seconds=_PATIENCE_S))


def _is_number(value):
    return isinstance(value, (numbers.Real, torch.Tensor)) and torch.as_tensor(value).numel() == 1


def _copies(stage):
    return [p.detach().clone() for p in stage.parameters()]


def _expect_gradients(stage, before, right, where, hint):
    for p, old, truth in zip(stage.parameters(), before, right):
        expect(torch.equal(p.detach(), old), f"{where}: the parameters have changed, and only their gradients are asked")
        expect(p.grad is not None, f"{where}: a p.grad is None afterwards")
        expect(is_near(p.grad, truth), f"{where}: the gradients are off by {max_difference(p.grad, truth):.2g}: {hint}")


def _expect_loss(result, right, where):
    if right is None:
        expect(result is None, f"{where}: it returned {reprlib.repr(result)}, though it has no loss: None is asked")
        return
    expect(_is_number(result), f"{where}: it returned {reprlib.repr(result)}, not the sum of the losses")
    result, right = (torch.as_tensor(value).detach().item() for value in (result, right))
    expect(abs(result - right) < 1e-6, f"{where}: it returned {result:.6g}, and the losses add up to {right:.6g}")


# ---- 12.3 ---------------------------------------------------------------------------------------------------------


def check_12_3(run_1f1b):
    """`run_1f1b(stage, num_micro_batches, inputs, loss_of, like)`, without deadlock."""
    for K, M in ((2, 4), (3, 5), (4, 2)):
        _judge_in_workers(_judge_1f1b, run_1f1b, M, world_size=K)
    return "2, 3 and 4 stages came to an end, with the right loss and gradients, and held as many micro-batches as 1F1B does."


def _judge_1f1b(run_1f1b, M):
    rank, K = dist.get_rank(), dist.get_world_size()
    is_first, is_last, where = rank == 0, rank == K - 1, f"{K} stages, {M} micro-batches, stage {rank}"
    torch.manual_seed(127)
    layers = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(K)]
    xs, ys = (torch.randn(M, 2, 5, dtype=torch.float64) for _ in range(2))

    def loss_of(m, output):
        return (1 + m) * F.mse_loss(output, ys[m])

    right_loss = sum(loss_of(m, nn.Sequential(*layers)(xs[m])) for m in range(M))
    right, stage = torch.autograd.grad(right_loss, list(layers[rank].parameters())), layers[rank]
    held, before = {"now": 0, "most": 0}, _copies(stage)

    def note(module, inputs, output):
        expect(output.requires_grad, f"{where}: a stage's output has no autograd graph to go back through")
        held["now"] += 1
        held["most"] = max(held["most"], held["now"])
        output.register_hook(lambda gradient: held.update(now=held["now"] - 1))

    stage.register_forward_hook(note)
    time.sleep(0.04 * rank)  # so that a tensor that is changed while it is on its way does change, and not by chance too late
    result = run_1f1b(stage, M, list(xs) if is_first else None, loss_of if is_last else None, torch.empty_like(xs[0]))
    dist.barrier()  # whoever is wrong says so when all have come to their end
    _expect_gradients(stage, before, right, where, "is each the sum over micro-batches, and was every tensor left alone "
                      "while it was on its way or still needed?")
    if is_last:
        _expect_loss(result, right_loss, where)
    else:
        expect(_is_number(result) and float(result) == 0, f"{where}: it returned {reprlib.repr(result)}, not 0, though it has no loss")
    limit = min(K - rank, M)
    expect(held["most"] <= limit, f"{where}: it came to its end, but held {held['most']} micro-batches at once, and 1F1B holds {limit} there "
                                  "at most")
    expect(held["most"] == limit, f"{where}: it came to its end, but held {held['most']} micro-batches at most, where 1F1B holds {limit}: what "
                                  "do the other stages do meanwhile?")


# ---- 12.4 ---------------------------------------------------------------------------------------------------------


def check_12_4(measure_bubble):
    """`measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches)` returns the predicted and the measured bubble."""
    for K, M, name in ((2, 4, "gpipe"), (3, 3, "one_forward_one_backward")):
        ranks = _judge_in_workers(_measure_on_stage, measure_bubble, M, name, world_size=K)
        where, (answers, spans) = f"{K} stages, {M} micro-batches", zip(*ranks)
        for rank, answer in enumerate(answers):
            is_pair = isinstance(answer, (tuple, list)) and len(answer) == 2 and all(map(_is_number, answer))
            expect(is_pair, f"{where}: rank {rank} returned {reprlib.repr(answer)}, not two fractions")
            order = [task for task, _, _ in spans[rank]]
            expect(order == [t for t in getattr(pipeline, name)(K, M) if t.stage == rank], f"{where}: rank {rank} did not run its tasks in order")
        answers = [tuple(map(float, answer)) for answer in answers]
        expect(len(set(answers)) == 1 or max_difference(torch.tensor(answers), torch.tensor(answers[:1] * K)) < 1e-6,
               f"{where}: the ranks returned {[tuple(round(a, 3) for a in answer) for answer in answers]}, and must agree")
        _judge_bubble(*answers[0], [span for found in spans for span in found], K, M, where)
    return "prediction and measurement are right for two pipelines, whose clocks did not agree."


def _measure_on_stage(measure_bubble, M, name):
    """Tasks of a known length: sleeping leaves the cores free, so that there may be more stages than cores."""
    rank, K = dist.get_rank(), dist.get_world_size()
    real, spans, mail, works, waited = time.perf_counter, [], torch.zeros(1), [], []
    neighbour = {"forward": (rank - 1, rank + 1), "backward": (rank + 1, rank - 1)}

    def wait_for(task):
        waited.append(task)
        if neighbour[task.phase][0] in range(K):
            dist.recv(mail, neighbour[task.phase][0])

    def run(task):
        expect(waited[-1:] == [task], f"{K} stages, rank {rank}: run({tuple(task)}) was called without wait_for before it")
        expect(task not in [done for done, _, _ in spans], f"{K} stages, rank {rank}: run({tuple(task)}) was called twice")
        begin = real()
        time.sleep({"forward": 0.015, "backward": 0.03}[task.phase] * (K - rank))  # unequal: the formula is not the measurement
        spans.append((task, begin, real()))
        if neighbour[task.phase][1] in range(K):
            tensor = torch.zeros(1)
            works.append((dist.isend(tensor, neighbour[task.phase][1]), tensor))

    tasks, clocks = [t for t in getattr(pipeline, name)(K, M) if t.stage == rank], {}
    for clock in ("perf_counter", "monotonic", "time"):  # each rank's are years from the others', and too large for float32
        for read, unit in ((clock, 1.0), (f"{clock}_ns", 10**9)):
            clocks[read] = getattr(time, read)
            setattr(time, read, lambda read=clocks[read], apart=10**8 * (1 + rank) * unit: read() + apart)
    if rank == 0:
        time.sleep(0.3)  # ranks come at different times, as after a launch
    try:
        answer = measure_bubble(tasks, wait_for, run, K, M)
    finally:
        for clock, read in clocks.items():
            setattr(time, clock, read)
    for work, _ in works:
        work.wait()
    return answer, spans


def _judge_bubble(predicted, measured, spans, K, M, where):
    right = (K - 1) / (M + K - 1)
    expect(abs(predicted - (K - 1) / M) > 1e-6, f"{where}: the prediction is {predicted:.3f}, idle over busy time; idle over all time is asked")
    expect(abs(predicted - right) < 1e-6, f"{where}: the prediction is {predicted:.3f}, and the formula gives {right:.3f}")
    whole = max(end for _, _, end in spans) - min(begin for _, begin, _ in spans)
    truth = 1 - sum(end - begin for _, begin, end in spans) / (K * whole)
    told = f"{where}: measured was {measured:.3f}, and by a common clock it was {truth:.3f}"
    expect(0 <= measured <= 1, f"{told}: what is no fraction may come of clocks that differ or are rounded, or of only some stages' time")
    expect(abs(measured - truth) < 0.04, f"{told}: does the time of waiting count as running, do all ranks begin together, and do "
                                            "all stages' times come together?")
