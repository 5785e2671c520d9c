"""Schedules: which stage does what in which order, independent of durations and of how tensors travel.

A schedule is a list of tasks. Each stage runs its own tasks in list order. Across stages a task waits only for its
input: a forward for the previous stage's forward, a backward for the next stage's backward, and the last stage's
backward for its own forward. One process can run all tasks in list order.

Sources: GPipe, Huang et al. 2019; 1F1B without interleaving, Narayanan et al. 2021.
"""

from collections import Counter
from typing import NamedTuple


class Task(NamedTuple):
    """One task: `stage` runs `phase`, "forward" or "backward", of `micro_batch`; both count from 0."""

    stage: int
    micro_batch: int
    phase: str


def naive(num_stages, num_micro_batches):
    """One micro-batch at a time through all stages and back: only one stage works at any moment."""
    _expect_sizes(num_stages, num_micro_batches)
    schedule = []
    for micro_batch in range(num_micro_batches):
        schedule += [Task(stage, micro_batch, "forward") for stage in range(num_stages)]
        schedule += [Task(stage, micro_batch, "backward") for stage in reversed(range(num_stages))]
    return schedule


def gpipe(num_stages, num_micro_batches):
    """All micro-batches forward, then all of them backward, the last one first."""
    _expect_sizes(num_stages, num_micro_batches)
    micro_batches, stages = range(num_micro_batches), range(num_stages)
    forward = [Task(stage, micro_batch, "forward") for micro_batch in micro_batches for stage in stages]
    return forward + [
        Task(stage, micro_batch, "backward") for micro_batch in reversed(micro_batches) for stage in reversed(stages)
    ]


def one_forward_one_backward(num_stages, num_micro_batches):
    """1F1B: backwards run as early as possible, so that K stages hold at most K, K − 1, … 1 micro-batches.

    A stage begins with one forward per later stage, then alternates forward and backward, then runs the remaining
    backwards.
    """
    _expect_sizes(num_stages, num_micro_batches)
    waiting = []
    for stage in range(num_stages):
        ahead = min(num_stages - 1 - stage, num_micro_batches)
        forward = [Task(stage, micro_batch, "forward") for micro_batch in range(num_micro_batches)]
        backward = [Task(stage, micro_batch, "backward") for micro_batch in range(num_micro_batches)]
        in_turn = [task for pair in zip(forward[ahead:], backward) for task in pair]
        waiting.append(forward[:ahead] + in_turn + backward[num_micro_batches - ahead :])
    return _in_one_order(waiting)


def validate(schedule, num_stages, num_micro_batches):
    """Raise ValueError if a task is missing, unknown or duplicated, or if the stages would deadlock.

    Returns the tasks in an order in which one process can run them.
    """
    _expect_sizes(num_stages, num_micro_batches)
    wanted = set(naive(num_stages, num_micro_batches))
    there = Counter(_tasks(schedule))
    for task in there:
        if task not in wanted:
            raise ValueError(
                f"{_words(task)} is in the schedule, but there are stages 0 to {num_stages - 1}, micro-batches 0 to "
                f"{num_micro_batches - 1} and the phases 'forward' and 'backward'"
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
    return _in_one_order(by_stage(schedule))


def by_stage(schedule):
    """Return each stage's list of tasks, in order; raises ValueError if `schedule` is not a list of tasks."""
    tasks = _tasks(schedule)
    return [[task for task in tasks if task.stage == stage] for stage in range(1 + max(task.stage for task in tasks))]


def needs(task, num_stages):
    """The task whose result `task` waits for; None for a forward on the first stage."""
    stage, micro_batch, phase = task
    if phase == "forward":
        return Task(stage - 1, micro_batch, "forward") if stage else None
    if stage == num_stages - 1:
        return Task(stage, micro_batch, "forward")
    return Task(stage + 1, micro_batch, "backward")


def peak_activations(schedule):
    """Return the most micro-batches that each stage holds at once, one number per stage.

    A stage holds a micro-batch from the start of its forward to the end of its backward.
    """
    peaks = []
    for tasks in by_stage(schedule):
        held = peak = 0
        for task in tasks:
            held += 1 if task.phase == "forward" else -1
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


def _in_one_order(waiting):
    """Merge the stages' own lists into one that a single process can run.

    Raises ValueError if they would deadlock.
    """
    num_stages, schedule, done = len(waiting), [], {None}
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
    words = f"the {task.phase} of micro-batch {task.micro_batch}"
    return words + f" on stage {task.stage}" if whose else words


def _expect_sizes(num_stages, num_micro_batches):
    for name, value in (("num_stages", num_stages), ("num_micro_batches", num_micro_batches)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")
