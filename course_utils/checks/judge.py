"""Run an answer in worker processes, with a deadline."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from ..launch import NotSendable, WorkerError, launch, patiently, unannounced
from ..launch.forkserver.protocol import Phase, Reached
from ..launch.worker import worker
from .expect import Wrong, expect_function, unchanged
from .intact import intact

# Right answers take less than 1 s; a deadlock should be reported soon.
DEADLINE_S = 8


def run(judge: Callable[..., object], answer: object, *args: Any, world_size: int = 1) -> list[Any]:
    """Call `judge(answer, *args)` on each of `world_size` ranks, and return the results, one per rank.

    Workers see no GPU, and the process group uses gloo: the checks' tensors are small and on the CPU.

    Raises Wrong if `judge` does, if the answer is not a function, or if it cannot be pickled. Raises WorkerError if the
    answer fails on a rank, or runs for more than DEADLINE_S seconds, not counting time in which ranks wait for a core.
    """
    expect_function(answer)
    try:
        with unannounced(), patiently(), _on_the_cpu():
            done = launch(
                _until_it_returns, judge, answer, *args, world_size=world_size, timeout=DEADLINE_S, backend="gloo"
            )
            return done.results
    except NotSendable as error:
        raise Wrong(
            f"your function uses something that cannot be sent to the worker that tries it ({error.reason}): let it "
            "make what it needs itself"
        ) from None
    except WorkerError as error:
        # Raised in the worker, not returned: launch then stops other ranks that may be waiting for this one.
        if error.is_a(Wrong):
            raise Wrong(error.message) from None
        raise


@contextlib.contextmanager
def _on_the_cpu() -> Iterator[None]:
    """Launch without GPUs, to which `fully_shard` and `nn.DataParallel` would move a model, but not its labels."""
    before = os.environ.get("COURSE_DEVICE")
    os.environ["COURSE_DEVICE"] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COURSE_DEVICE"]
        else:
            os.environ["COURSE_DEVICE"] = before


def _until_it_returns(judge, answer, *args):
    try:
        with unchanged(), intact():  # PyTorch's modes, and the judging functions
            return judge(answer, *args)
    except SystemExit:  # launch would take it for a normal end, a check for a pass
        raise RuntimeError("sys.exit(), exit() or quit() ended the program before your function returned") from None


def wait_for_the_others() -> None:
    """Wait until the answer has returned on every rank.

    If a rank is stopped while it waits here, the report says that its answer had returned.
    """
    import torch.distributed as dist

    worker.send(Reached(Phase.ANSWERED))
    dist.barrier()
