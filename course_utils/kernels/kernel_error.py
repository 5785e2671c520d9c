"""The exception of this package."""

from ..launch import WorkerError


class KernelError(WorkerError):
    """A kernel cannot be compiled or launched, or failed; the message says where, and what to look at.

    It is a WorkerError because the simulator runs in a worker, and checks report both alike. `type_name` and `message`
    describe an exception in the kernel; other fields of WorkerError are unused. `results` has the results of the
    simulations before the one that failed; it is None if nothing was simulated.
    """

    results = None
