"""Schedules: which stage does what in which order, independent of durations and of how tensors travel.

A schedule is a list of tasks. Each stage runs its own tasks in list order. Across stages a task waits only for its
input: a forward for the previous stage's forward, a backward for the next stage's backward, and the last stage's
backward for its own forward. One process can run all tasks in list order.

A *split* schedule has two tasks in the place of a backward: "input" computes the gradient of the stage's input, which
the previous stage waits for, and "weight" the gradients of its weights, which nobody waits for. With `num_devices`,
several stages share a device: stage s is on device s % num_devices.

Sources: GPipe, Huang et al. 2019; 1F1B, Narayanan et al. 2021.
"""

import itertools
from collections import Counter
from typing import NamedTuple


class Task(NamedTuple):
    """One task: `stage` runs `phase` of `micro_batch`; both count from 0.

    The phases are "forward" and "backward", or "forward", "input" and "weight".
    """

    stage: int
    micro_batch: int
    phase: str


def naive(num_stages, num_micro_batches):
    """One micro-batch at a time through all stages and back: only one stage works at any moment."""
    expect_sizes(num_stages, num_micro_batches)
    schedule = []
    for micro_batch in range(num_micro_batches):
        schedule += [Task(stage, micro_batch, "forward") for stage in range(num_stages)]
        schedule += [Task(stage, micro_batch, "backward") for stage in reversed(range(num_stages))]
    return schedule


def gpipe(num_stages, num_micro_batches):
    """All micro-batches forward, then all of them backward, the last one first."""
    expect_sizes(num_stages, num_micro_batches)
    micro_batches, stages = range(num_micro_batches), range(num_stages)
    forward = [Task(stage, micro_batch, "forward") for micro_batch in micro_batches for stage in stages]
    return forward + [
        Task(stage, micro_batch, "backward") for micro_batch in reversed(micro_batches) for stage in reversed(stages)
    ]


def one_forward_one_backward(num_stages, num_micro_batches, ahead_per_stage=1):
    """1F1B: backwards run as early as possible, so that K stages hold at most K, K − 1, … 1 micro-batches.

    A stage begins with one forward per later stage, or `ahead_per_stage` of them, then alternates forward and backward,
    then runs the remaining backwards. So stage s holds at most `ahead_per_stage` (K − 1 − s) + 1 micro-batches.
    """
    expect_sizes(num_stages, num_micro_batches)
    waiting = []
    for stage in range(num_stages):
        ahead = min(ahead_per_stage * (num_stages - 1 - stage), num_micro_batches)
        forward = [Task(stage, micro_batch, "forward") for micro_batch in range(num_micro_batches)]
        backward = [Task(stage, micro_batch, "backward") for micro_batch in range(num_micro_batches)]
        in_turn = [task for pair in zip(forward[ahead:], backward) for task in pair]
        waiting.append(forward[:ahead] + in_turn + backward[num_micro_batches - ahead :])
    return in_one_order(waiting, num_stages)


def validate(schedule, num_stages, num_micro_batches, num_devices=None):
    """Raise ValueError if a task is missing, unknown or duplicated, or if the devices would deadlock.

    Returns the tasks in an order in which one process can run them. Without `num_devices` each stage has its own.
    """
    expect_sizes(num_stages, num_micro_batches)
    there = Counter(_tasks(schedule))
    phases = ("forward", "input", "weight") if is_split(there) else ("forward", "backward")
    wanted = {Task(*task) for task in itertools.product(range(num_stages), range(num_micro_batches), phases)}
    for task in there:
        if task not in wanted:
            raise ValueError(
                f"{_words(task)} is in the schedule, but there are stages 0 to {num_stages - 1}, micro-batches 0 to "
                f"{num_micro_batches - 1} and the phases {', '.join(map(repr, phases[:-1]))} and {phases[-1]!r}"
            )
    missing = sorted(wanted - set(there))
    if missing:
        raise ValueError(
            f"{_words(missing[0])} is missing from the schedule"
            + (f", and {len(missing) - 1} more" if missing[1:] else "")
        )
    (most, times), *_ = there.most_common(1)
    if times > 1:
        raise ValueError(f"{_words(most)} is in the schedule {times} times")
    return in_one_order(by_device(schedule, num_devices), num_stages)


def is_split(schedule):
    """Return whether the tasks (stage, micro_batch, phase) are those of a split schedule."""
    return any(phase in ("input", "weight") for _, _, phase in schedule)


def by_device(schedule, num_devices=None):
    """Return each device's list of tasks, in order; without `num_devices` each stage has its own.

    Raises ValueError if `schedule` is not a list of tasks.
    """
    tasks = _tasks(schedule)
    num_devices = num_devices or 1 + max(task.stage for task in tasks)
    return [[task for task in tasks if task.stage % num_devices == device] for device in range(num_devices)]


def needs(task, num_stages):
    """The task whose result `task` waits for; None for a forward on the first stage."""
    stage, micro_batch, phase = task
    if phase == "forward":
        return Task(stage - 1, micro_batch, "forward") if stage else None
    if phase == "weight":
        return Task(stage, micro_batch, "input")
    if stage == num_stages - 1:
        return Task(stage, micro_batch, "forward")
    return Task(stage + 1, micro_batch, phase)


def peak_activations(schedule, num_devices=None):
    """Return the most micro-batches that each device holds at once, one number per device.

    A stage holds a micro-batch from the start of its forward to the end of its backward, or of its "weight". If a
    device has several stages, a micro-batch counts once for each of them that holds it.
    """
    changes = {"forward": 1, "input": 0, "weight": -1, "backward": -1}
    peaks = []
    for tasks in by_device(schedule, num_devices):
        held = peak = 0
        for task in tasks:
            held += changes[task.phase]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


def _tasks(schedule):
    try:
        tasks = [Task(*task) for task in schedule]
    except TypeError:
        raise ValueError("a schedule is a list of tasks, each (stage, micro_batch, phase), and this is none") from None
    if not tasks:
        raise ValueError("the schedule is empty: it needs a forward and a backward for each stage and micro-batch")
    return tasks


def in_one_order(waiting, num_stages):
    """Merge the devices' own lists into one that a single process can run.

    Raises ValueError if they would deadlock.
    """
    schedule, done = [], {None}
    queues = [list(reversed(tasks)) for tasks in waiting]
    while any(queues):
        ready = [queue for queue in queues if queue and needs(queue[-1], num_stages) in done]
        if not ready:
            stuck = "; ".join(
                f"stage {queue[-1].stage} waits with {_words(queue[-1], whose=False)} for "
                f"{_words(needs(queue[-1], num_stages))}"
                for queue in queues
                if queue
            )
            raise ValueError(f"the schedule never ends, because {stuck}")
        at_once = [queue.pop() for queue in ready]
        schedule += at_once
        done.update(at_once)
    return schedule


def _words(task, whose=True):
    phase = f"{task.phase} gradient" if task.phase in ("input", "weight") else task.phase
    words = f"the {phase} of micro-batch {task.micro_batch}"
    return words + f" on stage {task.stage}" if whose else words


def expect_sizes(num_stages, num_micro_batches):
    """Raise ValueError unless both are whole numbers, 1 or more."""
    for name, value in (("num_stages", num_stages), ("num_micro_batches", num_micro_batches)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")
