"""The one exception of this package."""

from ..launch import WorkerError


class KernelError(WorkerError):
    """A kernel that cannot be compiled, cannot be launched, or failed; the message says where, and what to look at.

    It is a WorkerError because the simulator runs in a worker: a check that runs a student's kernel there reports both
    alike. Of its fields, `type_name` and `message` are those of an exception in the kernel; the others mean nothing
    here.
    `results`: where one of several simulations failed, what those before it did; None where nothing was simulated.
    """

    results = None
