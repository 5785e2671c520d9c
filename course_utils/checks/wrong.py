"""What the checks share: the exception that refuses an answer, running one, and comparisons that say what differs."""

import math
import numbers
import reprlib

from ..launch import NotSendable, launch, unannounced

TIME_LIMIT_S = 30  # the right answers take less than one
EQUAL = 1e-9  # in float64; the shortest honest path from one sum to another differs by less
DEADLOCK_S = 8  # where ranks may wait for one another: nobody should wait half a minute to hear of it


class Wrong(Exception):
    """The answer is wrong; the message says how it shows, and what to look at."""


def expect(condition, reason):
    """Raise Wrong(reason) unless `condition` holds."""
    if not condition:
        raise Wrong(reason)


def expect_function(answer):
    """Raise Wrong unless `answer` can be called."""
    expect(callable(answer), f"check was given {reprlib.repr(answer)}: give it your function's name, without calling it")


def run_answer(worker, answer, *args, world_size, timeout=math.inf):
    """Return what `worker(answer, *args)` returned, a value per rank.

    The process group is gloo's on every machine, because the checks' tensors are small and on the CPU. Raises Wrong if
    the answer is no function or cannot travel to a worker, and WorkerError if a rank failed, or if `timeout` seconds or
    TIME_LIMIT_S were over.
    """
    expect_function(answer)
    limits = {"world_size": world_size, "backend": "gloo", "timeout": min(timeout, TIME_LIMIT_S)}
    try:
        with unannounced():
            return launch(_until_it_returns, worker, answer, *args, **limits).results
    except NotSendable as error:
        raise Wrong(f"your function uses something that cannot be sent to the worker that tries it ({error.reason}): let it "
                    "make what it needs itself") from None


def _until_it_returns(worker, answer, *args):
    try:
        return worker(answer, *args)
    except SystemExit:  # to launch a program that ends well, which a check would take for a verdict
        raise RuntimeError("sys.exit(), exit() or quit() ended the program before your function returned") from None


def is_whole(value):
    """Whether `value` is a whole number: an int or one of NumPy's, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


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


def is_near(a, b):
    """Whether two float64 tensors have one shape and differ by less than EQUAL, or than EQUAL of the largest number in `b`."""
    return a.shape == b.shape and max_difference(a, b) < EQUAL * max(1.0, b.abs().max().item())
