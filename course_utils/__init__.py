"""What the notebooks of "From One GPU to Many" import."""

from .chapter import describe
from .checks import check
from .hardware import rank_device
from .launch import Nodes, Ranks, Slurm, WorkerError, latest_run, launch, log
from .predictions import predict, reveal
from .processes import terminal

__all__ = [
    "Nodes",
    "Ranks",
    "Slurm",
    "WorkerError",
    "check",
    "describe",
    "latest_run",
    "launch",
    "log",
    "predict",
    "rank_device",
    "reveal",
]

terminal.print_what_can_be()  # here, for each `python -m course_utils.…`, and for scripts that launch
