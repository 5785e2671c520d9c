"""Ending on SIGTERM, with which Slurm, torchrun and most schedulers announce that they will kill a job soon."""

import signal
import threading

import torch
import torch.distributed as dist

from .. import hardware


class Stopped(Exception):
    """Raised on all ranks when the run was told to stop; its state is saved, and the message says where it is."""


class Stop:
    """Notes SIGTERM while the block runs, and lets all ranks agree on the step after which they stop.

    A rank may hear the signal a step before the others. If it stopped at once, they would wait for it in their next
    message. The earlier handler is restored at the end.
    """

    def __init__(self, is_on):
        # Python lets only the main thread set handlers.
        self.is_on = is_on and threading.current_thread() is threading.main_thread()
        self.is_told = False

    def __enter__(self):
        if self.is_on:
            self.before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *error):
        if self.is_on:
            signal.signal(signal.SIGTERM, self.before or signal.SIG_DFL)

    def _note(self, number, frame):
        self.is_told = True

    def agreed(self):
        """Return whether any rank was told to stop; all ranks must call it after each step."""
        if not dist.is_initialized():
            return self.is_told
        # A number on the CPU where gloo can send it: on a GPU it would have to wait for the step's kernels.
        device = torch.device("cpu") if "gloo" in str(dist.get_backend_config()) else hardware.rank_device()
        told = torch.tensor(float(self.is_told), device=device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return bool(told)
