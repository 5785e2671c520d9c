"""What the checks share: the exception that refuses an answer, running one, and comparisons that say what differs."""

from ..launch import launch, unannounced

TIME_LIMIT_S = 30  # the right answers take less than one


class Wrong(Exception):
    """The answer is wrong; the message says how it shows, and what to look at."""


def expect(condition, reason):
    """Raise Wrong(reason) unless `condition` holds."""
    if not condition:
        raise Wrong(reason)


def run_answer(worker, answer, *args, world_size):
    """Return what `worker(answer, *args)` returned, a value per rank.

    The process group is gloo's on every machine, because the checks' tensors are small and on the CPU. Raises Wrong if
    the answer is no function or cannot travel to a worker, and WorkerError if a rank failed or TIME_LIMIT_S was over.
    """
    expect(callable(answer), f"check was given {answer!r}: give it your function's name, without calling it")
    try:
        with unannounced():
            return launch(worker, answer, *args, world_size=world_size, backend="gloo", timeout=TIME_LIMIT_S).results
    except TypeError as error:  # the function uses something that cannot be pickled
        raise Wrong(str(error)) from None


def judge_in_worker(judge, answer):
    """Run `judge(answer)` in one worker, so that a loop without end is stopped. Raises Wrong where `judge` does."""
    (reason,) = run_answer(_reason_against, answer, judge, world_size=1)
    expect(reason is None, reason)


def _reason_against(answer, judge):
    try:
        judge(answer)
    except Wrong as wrong:
        return str(wrong)


def max_difference(a, b):
    """Return the largest absolute difference between two tensors, or two lists of tensors, as a float.

    It is infinite where one of them is not a number. Raises Wrong if shapes or lengths differ.
    """
    import torch

    if isinstance(a, torch.Tensor):
        a, b = [a], [b]
    expect(len(a) == len(b), f"{len(a)} tensors came back where {len(b)} were expected")
    largest = 0.0
    for ours, theirs in zip(a, b):
        expect(ours.shape == theirs.shape, f"a tensor has shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}")
        if ours.numel():
            apart = (ours - theirs).abs().max().item()
            largest = max(largest, float("inf") if apart != apart else apart)  # max() would pass a NaN over
    return largest
