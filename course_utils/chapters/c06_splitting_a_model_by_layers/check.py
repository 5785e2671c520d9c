"""Checks of chapter 06: a network over two devices, micro-batches, schedules, balanced stages."""

import itertools

import torch
from torch import nn

from ...checks.expect import (
    EQUAL,
    Wrong,
    case,
    expect,
    expect_error,
    expect_row,
    expect_tensor,
    expect_whole,
    explain,
    max_difference,
    not_a,
    same,
    short,
    unchanged,
)
from ...checks.judge import run
from ...checks.watch.calls import forbid
from ...checks.watch.devices import Devices
from ...parallel import pipeline

# ---- 6.1 ----------------------------------------------------------------------------------------------------------

_SIDES = {"first": "device0", "second": "device0", "third": "device1", "fourth": "device1"}
_INPUTS = (((5, 6), torch.float64), ((2, 3, 6), torch.float64), ((6,), torch.float64), ((4, 6), torch.float32))
_BOTH_ARROWS = "does the gradient come back along both arrows that cross the cut?"


class _Placed(nn.Module):
    """A layer that refuses inputs from another device; with `meta` some operations would let them pass."""

    def __init__(self, name, device, dtype=torch.float64):
        super().__init__()
        self.name, self.num_calls, self.num_moves = name, 0, 0
        self.linear = nn.Linear(6, 6).to(device, dtype)
        self.place = torch.device(device)

    def forward(self, x):
        self.num_calls += 1
        expect(isinstance(x, torch.Tensor), f"`{self.name}` was given {not_a(x, 'a tensor')}")
        where = f"`{self.name}` is on {_SIDES[self.name]}, here {self.place}, and was given a tensor on {x.device}"
        expect(x.device == self.place, f"{where}: what was to bring it there?")
        out = torch.tanh(self.linear(x) + x)  # keeps its input and its result for the backward pass
        self.node = out.grad_fn  # the output's node in autograd's graph
        return out

    def _apply(self, *args, **kwargs):  # called by a module's .to, .cpu and .cuda
        self.num_moves += 1
        return super()._apply(*args, **kwargs)


def check_6_1(forward_with_skip):
    """`forward_with_skip(x, first, second, third, fourth, device0, device1)`: two devices, a skip across the cut."""
    run(_judge_skip, forward_with_skip)
    return "every tensor was brought where it is needed, and output and gradients are those of one device."


def _judge_skip(forward_with_skip):
    runs = {}
    # Every machine has `meta`: it stands for device 1 first, then for both devices, with x on the CPU.
    for places in (("cpu", "meta"), ("meta", "meta")):
        where = f"with device0 = {places[0]} and device1 = {places[1]}"
        with case(where):
            x = torch.randn(5, 6, dtype=torch.float64)
            out, modules = _call_skip(forward_with_skip, x, *places)
            expect(out.device.type == places[1], f"the answer is on {out.device}, and belongs on device1")
            runs[where] = out, modules
    for shape, dtype in _INPUTS:
        torch.manual_seed(61)
        with case(f"with both devices the CPU and x of shape {shape}"):
            _judge_skip_values(
                forward_with_skip, torch.randn(*shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
            )
    # Only here, since on one device a transfer does nothing and so loses no gradient.
    for where, (out, (first, second, *_)) in runs.items():
        is_whole_path = _is_reached(out.grad_fn, second.node) and _is_reached(second.node, first.node)
        is_whole = is_whole_path and _is_reached(out.grad_fn, first.node, avoid=second.node)
        expect(is_whole, f"{where}, gradients cannot reach all modules, though they do on one device: {_BOTH_ARROWS}")


def _call_skip(forward_with_skip, x, device0, device1):
    """Return the output and the modules, each called once."""
    places = {"device0": torch.device(device0), "device1": torch.device(device1)}
    modules = {name: _Placed(name, places[side], x.dtype) for name, side in _SIDES.items()}
    for module in modules.values():
        module.num_moves = 0
    try:
        with unchanged(x=x, **modules), Devices() as watch:
            out = forward_with_skip(x, **modules, **places)
    except RuntimeError:
        _expect_placed(watch)
        raise
    _expect_placed(watch)
    for name, module in modules.items():
        expect(module.num_moves == 0, f"`{name}` was moved: the modules are in their places already, tensors travel")
        expect(module.num_calls == 1, f"`{name}` was called {module.num_calls} times, and should be called once")
    expect(isinstance(out, torch.Tensor), f"the answer is {not_a(out, 'a tensor')}")
    return out, list(modules.values())


def _expect_placed(watch):
    fault = watch.fault or ""
    expect(
        "to the CPU" not in fault,
        f"{fault.partition(':')[0]}: what has to come back from there before the backward pass?",
    )
    expect(not fault, f"{fault}: has everything crossed that the other side needs?")


def _is_reached(node, goal, avoid=None):
    """Return whether a backward pass from `node` reaches `goal` without passing through `avoid`."""
    waiting, seen = [node], {None, avoid}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return goal is not None and goal in seen


def _judge_skip_values(forward_with_skip, x):
    out, (first, second, third, fourth) = _call_skip(forward_with_skip, x, "cpu", "cpu")
    modules, close = (first, second, third, fourth), EQUAL if x.dtype == torch.float64 else 1e-5
    a = first(x)
    b = second(a)
    c = third(b)
    right = fourth(c + a)
    explain(expect_tensor(out, like=right), right.detach(), {
        "the skip connection is missing": fourth(c),
        "the skip hands on x itself, not what `first` made of it": fourth(c + x),
        "the skip is taken after `second`": fourth(c + b),
        "the sum is made after `fourth`": fourth(c) + a,
        "the sum is made before `third`": fourth(third(b + a)),
    }, said="the output is wrong", otherwise="write the formula from the inside out", close=close)  # fmt: skip
    expect(out.requires_grad, "the output has no autograd graph: something on the way, such as detach(), cut it off")
    parameters, pull = [p for module in modules for p in module.parameters()], torch.randn_like(out)
    truth = torch.autograd.grad((right * pull).sum(), parameters)
    try:
        grads = torch.autograd.grad((out * pull).sum(), parameters, allow_unused=True)
    except RuntimeError as error:
        expect(
            "inplace" not in str(error),
            "on one device the backward pass fails: a tensor that it needs was changed in place. "
            "Where a tensor is there already, .to() hands back the tensor itself",
        )
        raise
    without = " and ".join(f"`{name}`" for name, grad in zip(_SIDES, grads[::2]) if grad is None)
    expect(not without, f"no gradient reaches {without}: autograd was cut on the way, by detach() or the like")
    apart = f"max difference {max_difference(grads, truth):.2g}"
    expect(same(grads, truth, close), f"the output is right and the gradients are not ({apart}): {_BOTH_ARROWS}")


# ---- 6.2 ----------------------------------------------------------------------------------------------------------

_PIPELINES = ((4, 8), (1, 1), (1, 5), (2, 1), (2, 2), (4, 2), (3, 7), (5, 5), (6, 4), (8, 16), (7, 1), (2, 9), (3, 4))


def check_6_2(emit_1f1b):
    """`emit_1f1b(num_stages, num_micro_batches)` returns a schedule with 1F1B's bubble and 1F1B's memory."""
    run(_judge_schedules, emit_1f1b)
    return f"{len(_PIPELINES)} sizes: complete, without deadlock, and with 1F1B's memory and bubble."


def _judge_schedules(emit_1f1b):
    for K, M in _PIPELINES:
        with case(f"{K} stage{'s' * (K > 1)}, {M} micro-batch{'es' * (M > 1)}"):
            schedule = _emitted(emit_1f1b, K, M)
            _expect_valid(schedule, K, M)
            for stage, held in enumerate(pipeline.peak_activations(schedule)):
                most, said = min(K - stage, M), f"stage {stage} holds {held} micro-batches at once"
                expect(held <= most, f"{said}, and 1F1B at most {most}: how many forwards may it begin with?")
            idle, best = pipeline.bubble_fraction(pipeline.place(schedule)), (K - 1) / (M + K - 1)
            expect(
                idle < best + EQUAL,
                f"memory is right, but the stages are idle for {idle:.1%} of the time, and 1F1B's for "
                f"{best:.1%}: does a stage wait where it could begin another forward?",
            )


def _emitted(emit, K, M):
    with forbid(pipeline.__name__, instead="how does the order of the tasks come about?"):
        answer = emit(K, M)
    return [_task(task) for task in expect_row(answer, None, of="tasks")]


def _expect_valid(schedule, K, M):
    try:
        pipeline.validate(schedule, K, M)
    except ValueError as error:
        raise Wrong(str(error)) from None


def _task(task):
    is_task = isinstance(task, (tuple, list)) and len(task) == 3 and isinstance(task[2], str)
    expect(is_task, f"{short(task)} is no task (stage, micro_batch, phase)")
    stage, micro_batch, phase = task
    names = f"in {short(task)} the stage", f"in {short(task)} the micro_batch"
    return pipeline.Task(expect_whole(stage, names[0]), expect_whole(micro_batch, names[1]), phase)


# ---- 6.3 ----------------------------------------------------------------------------------------------------------

_CHOICES = (  # {samples of a micro-batch: its time on one stage}, samples in the batch, stages, samples to hold at most
    ({96: 9.0, 48: 5.0, 24: 2.7, 12: 2.0}, 96, 3, 96), ({64: 3.2, 32: 1.6, 16: 1.5, 8: 1.4}, 64, 4, 64),
    ({256: 8.0, 128: 4.1, 64: 2.2, 32: 1.3, 16: 0.9, 8: 0.7}, 256, 4, 256),
    ({256: 8.0, 128: 4.1, 64: 2.2, 32: 1.3, 16: 0.9, 8: 0.7}, 256, 4, 64),
    ({256: 8.0, 128: 4.1, 64: 2.2, 32: 1.3, 16: 0.9, 8: 0.7}, 256, 2, 128),
    ({8: 0.7, 16: 0.9, 32: 1.3, 64: 2.2, 128: 4.1, 256: 8.0}, 256, 8, 100),
    ({12: 5.0, 6: 2.6, 4: 2.0, 2: 1.5, 1: 1.4}, 12, 3, 12), ({12: 5.0, 6: 2.6, 4: 2.0, 2: 1.5, 1: 1.4}, 12, 3, 5),
    ({64: 3.0}, 64, 4, 64), ({1: 0.5}, 8, 2, 2), ({8: 1.0, 4: 0.9}, 8, 1, 8), ({10: 3e-3, 5: 1.4e-3}, 10, 6, 10),
    ({48: 9.0, 24: 4.6, 16: 3.4, 12: 2.5, 8: 1.9}, 48, 16, 48), ({96: 9.0, 48: 5.0, 24: 2.7, 12: 1.6}, 96, 3, 40),
)  # fmt: skip
_NO_CHOICE = (({64: 3.0, 32: 1.6}, 64, 4, 63), ({16: 1.0}, 64, 2, 31), ({8: 1.0, 2: 0.5}, 8, 3, 5))


def check_6_3(choose_count):
    """`choose_count(costs, batch_size, num_stages, max_samples)` returns the M of 1F1B's shortest step that fits."""
    run(_judge_choices, choose_count)
    return f"{len(_CHOICES)} pipelines: the shortest step that fits; and {len(_NO_CHOICE)} that do not fit are refused."


def _judge_choices(choose_count):
    for costs, batch_size, num_stages, max_samples in _CHOICES:
        given = dict(costs)
        said = f"costs {costs}, a batch of {batch_size}, {num_stages} stage{'s' * (num_stages > 1)}"
        with case(f"{said}, at most {max_samples} samples held"):
            try:
                with unchanged(costs=given):
                    answer = choose_count(given, batch_size, num_stages, max_samples)
            except ValueError as error:
                raise Wrong(f"a ValueError was raised ({error}), and there is a size that fits") from None
            _judge_count(expect_whole(answer, "the answer"), costs, batch_size, num_stages, max_samples)
    for costs, batch_size, num_stages, max_samples in _NO_CHOICE:
        said = f"costs {costs}, a batch of {batch_size}, {num_stages} stages"
        with case(f"{said}, at most {max_samples} samples held, which no size allows"):
            expect_error(ValueError, lambda: choose_count(dict(costs), batch_size, num_stages, max_samples))


def _judge_count(M, costs, batch_size, num_stages, max_samples):
    step = {batch_size // size: (batch_size // size + num_stages - 1) * cost for size, cost in costs.items()}
    is_size = M in costs and M not in step
    expect(not is_size, f"the answer is {M}, a size in samples: how many micro-batches of it are in the batch?")
    expect(M in step, f"the answer is {M}, and no size in `costs` cuts the batch into {M} micro-batches")
    held = {count: min(num_stages, count) * (batch_size // count) for count in step}
    said = f"with M = {M}"
    expect(held[M] <= max_samples, f"{said} stage 0 holds {held[M]} samples at once, and {max_samples} are allowed")
    fitting = {count: step[count] for count in step if held[count] <= max_samples}
    best = min(fitting.values())
    if step[M] <= best * (1 + EQUAL):
        return
    said = f"{said} a step takes {step[M]:.4g}, and {best:.4g} is possible"
    work = min(fitting, key=lambda count: count * costs[batch_size // count])
    full = {count: step[count] for count in fitting if num_stages * (batch_size // count) <= max_samples}
    expect(M != work, f"{said}: M micro-batches' time is shortest there, but do not stages also wait for one another?")
    expect(M != max(fitting), f"{said}: the bubble is smallest there, but what does all the work take?")
    is_best_of_full = full and M == min(full, key=full.get)
    expect(not is_best_of_full, f"{said}: was a size left out? Can stage 0 hold more micro-batches than there are?")
    raise Wrong(f"{said}: how many micro-batches' time does a step take?")


# ---- 6.4 ----------------------------------------------------------------------------------------------------------

_CUTS = (  # each layer's forward, its backward, stages, micro-batches, a message
    ([8, 1, 1, 1, 1], [16, 2, 2, 2, 2], 2, 8, 0), ([9, 1, 4, 3], [1, 11, 18, 10], 2, 8, 0),
    ([6, 8, 5, 4, 4], [1, 14, 8, 13, 4], 2, 8, 0), ([1, 2, 1], [2, 4, 2], 1, 4, 1), ([3, 1, 2], [6, 2, 4], 3, 4, 0),
    ([5, 3, 2, 8, 4], [8, 15, 10, 10, 6], 3, 4, 0), ([2, 4, 7, 5, 3], [11, 15, 2, 9, 7], 4, 16, 0.5),
    ([2, 6, 6, 8, 1], [7, 5, 9, 1, 14], 2, 2, 6), ([2.98, 0.69, 5.15, 1.75], [3.15, 1.6, 2.04, 3.39], 3, 8, 0.2),
)  # fmt: skip


def check_6_4(choose_sizes):
    """`choose_sizes(forward_ms, backward_ms, num_stages, num_micro_batches, message_ms)`: 1F1B's shortest step."""
    run(_judge_cuts, choose_sizes)
    return f"{len(_CUTS)} networks are cut for the shortest step."


def _judge_cuts(choose_sizes):
    for forward, backward, num_stages, num_micro_batches, message in _CUTS:
        said = f"forward_ms {forward}, backward_ms {backward}, {num_stages} stage{'s' * (num_stages > 1)}"
        said += f", {num_micro_batches} micro-batch{'es' * (num_micro_batches > 1)}, messages of {message}"
        with case(said):
            given = list(forward), list(backward)
            with unchanged(forward_ms=given[0], backward_ms=given[1]):
                answer = choose_sizes(*given, num_stages, num_micro_batches, message)
            sizes = [expect_whole(size, "a size") for size in expect_row(answer, None, of="sizes")]
            _judge_sizes(sizes, forward, backward, num_stages, num_micro_batches, message)


def _judge_sizes(sizes, forward, backward, K, M, message):
    said, num_layers = f"the answer is {sizes}", len(forward)
    is_cuts = len(sizes) == K - 1 > 0 and sizes == sorted(set(sizes)) and 0 < sizes[0] and sizes[-1] < num_layers
    expect(not is_cuts, f"{said}, {K - 1} of them for {K} stages: are those the cuts? How many layers has each stage?")
    expect(len(sizes) == K, f"{said}, {len(sizes)} sizes for {K} stages")
    expect(min(sizes) >= 1, f"{said}, and every stage needs a layer")
    expect(sum(sizes) == num_layers, f"{said}, together {sum(sizes)} layers, and there are {num_layers}")
    ways = [_sizes(cuts, num_layers) for cuts in itertools.combinations(range(1, num_layers), K - 1)]

    def step(way, forward=forward, backward=backward, M=M, message=message, make=pipeline.one_forward_one_backward):
        costs = _of_stages(way, forward), _of_stages(way, backward)
        return pipeline.length(pipeline.place(make(K, M), *costs, message_s=message))

    def slowest(way):
        return max(map(sum, zip(_of_stages(way, forward), _of_stages(way, backward))))

    steps = {tuple(way): step(way) for way in ways}
    found, best = steps[tuple(sizes)], min(steps.values())
    if found <= best * (1 + EQUAL):
        return
    said += f", a step of {found:.4g}, and {best:.4g} is possible"
    nothing = [0] * num_layers
    suspects = {
        "do not messages take time too?": lambda way: step(way, message=0),
        "does a stage not also go backward?": lambda way: step(way, backward=nothing),
        "does a stage not also go forward?": lambda way: step(way, forward=nothing),
        "the slowest stage is as short as possible, but do not filling and emptying count as well?": slowest,
        "is that the best cut for GPipe?": lambda way: step(way, make=pipeline.gpipe),
    }
    for reason, cost in suspects.items():
        costs = [cost(way) for way in ways]
        expect(cost(sizes) > min(costs) + EQUAL or max(costs) - min(costs) < EQUAL, f"{said}: {reason}")
    is_even = max(sizes) - min(sizes) <= 1
    expect(not is_even, f"{said}: the stages have equally many layers, but are the layers equally long?")
    raise Wrong(f"{said}: were all ways to cut tried?")


def _sizes(cuts, num_layers):
    return [end - begin for begin, end in itertools.pairwise([0, *cuts, num_layers])]


def _of_stages(sizes, costs):
    costs = iter(costs)
    return [sum(itertools.islice(costs, size)) for size in sizes]


# ---- 6.5 ----------------------------------------------------------------------------------------------------------

_SPLIT_PIPELINES = ((4, 8), (1, 1), (1, 3), (2, 2), (2, 5), (3, 3), (3, 7), (4, 4), (5, 9), (6, 6), (8, 16))


def check_6_5(emit_zb_h1):
    """`emit_zb_h1(num_stages, num_micro_batches)` returns a schedule with ZB-H1's length and memory."""
    run(_judge_split_schedules, emit_zb_h1)
    return f"{len(_SPLIT_PIPELINES)} sizes: complete, without deadlock, and with ZB-H1's memory and length."


def _judge_split_schedules(emit_zb_h1):
    for K, M in _SPLIT_PIPELINES:
        with case(f"{K} stage{'s' * (K > 1)}, {M} micro-batch{'es' * (M > 1)}"):
            schedule = _emitted(emit_zb_h1, K, M)
            for task in schedule:
                said = (
                    f"{short(tuple(task))} is in the schedule, and here a backward is two tasks, 'input' and 'weight'"
                )
                expect(task.phase != "backward", said)
            expect(any(task.phase != "forward" for task in schedule), "there are only forwards in the schedule")
            _expect_valid(schedule, K, M)
            for stage in range(K):
                _judge_memory([task for task in schedule if task.stage == stage], stage, K)
            _judge_length(pipeline.place(schedule), K, M)


def _judge_memory(tasks, stage, most):
    held = {"forward": 0, "input": 0, "weight": 0}
    for task in tasks:
        held[task.phase] += 1
        if held["forward"] - held["weight"] > most:
            raise Wrong(
                f"stage {stage} holds {most + 1} micro-batches at once, and at most {most} are allowed: by then it has "
                f"begun {held['forward']} forwards and done {held['input']} input and {held['weight']} weight tasks"
            )


def _judge_length(spans, K, M):
    length, best = pipeline.length(spans), 3 * M + K - 1
    if length <= best:
        return
    said = f"memory is right, but the step takes {length:g} units, and {best} are possible"
    own = [[span for span in spans if span.stage == stage] for stage in range(K)]
    for stage, tasks in enumerate(own):
        num_ahead = [span.phase for span in tasks].index("input")
        expect(
            num_ahead >= K - stage, f"{said}: stage {stage} has only {num_ahead} forwards before its first input task"
        )
    for tasks, later in itertools.pairwise(own):
        first = {after: before for before, after in itertools.pairwise(later)}  # what the next stage did before it
        sent = {span.micro_batch: first.get(span) for span in later if span.phase == "input"}
        for before, span in itertools.pairwise(tasks):
            delay = sent[span.micro_batch] if span.phase == "input" and before.end < span.begin else None
            if delay and delay.phase == "weight":
                raise Wrong(
                    f"{said}: stage {span.stage} waits for the input task of micro-batch {span.micro_batch} on stage "
                    f"{delay.stage}, which does the weight task of micro-batch {delay.micro_batch} first"
                )
    raise Wrong(f"{said}: each stage is idle for {length - 3 * M:g} units, and {K - 1} are enough")
