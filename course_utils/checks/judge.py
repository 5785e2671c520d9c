"""Run an answer where it can do no harm: in worker processes, with a deadline for what never ends."""

from ..launch import NotSendable, WorkerError, launch, patiently, unannounced
from ..launch.forkserver.protocol import Phase, Reached
from ..launch.worker import worker
from .expect import Wrong, expect_function, unchanged
from .intact import intact

# the right answers take less than one; nobody should wait longer to hear that ranks wait for one another
DEADLINE_S = 8


def run(judge, answer, *args, world_size=1):
    """Call `judge(answer, *args)` on each of `world_size` ranks, and return what came back, a value per rank.

    The process group is gloo's on every machine: the checks' tensors are small and on the CPU. Raises Wrong if `judge`
    does so on a rank, or if the answer is no function or cannot travel to a worker; and WorkerError if a rank failed in
    the answer, or if DEADLINE_S seconds were over; those for which ranks waited for a core, on a
    busy machine, are not counted.
    """
    expect_function(answer)
    limits = {"world_size": world_size, "timeout": DEADLINE_S}
    try:
        with unannounced(), patiently():
            return launch(_until_it_returns, judge, answer, *args, backend="gloo", **limits).results
    except NotSendable as error:
        raise Wrong(
            f"your function uses something that cannot be sent to the worker that tries it ({error.reason}): let it "
            "make what it needs itself"
        ) from None
    except WorkerError as error:
        # Raised there, not returned: other ranks may be waiting for the one that was judged, and so end at once.
        if error.is_a(Wrong):
            raise Wrong(error.message) from None
        raise


def _until_it_returns(judge, answer, *args):
    try:
        with unchanged(), intact():  # modes, and what judges
            return judge(answer, *args)
    except SystemExit:  # to launch a program that ends well, which a check would take for a verdict
        raise RuntimeError("sys.exit(), exit() or quit() ended the program before your function returned") from None


def wait_for_the_others():
    """Wait until the answer has returned on every rank; one that is stopped meanwhile is said to have returned."""
    import torch.distributed as dist

    worker.send(Reached(Phase.ANSWERED))
    dist.barrier()
