"""What the notebooks of "From One GPU to Many" import."""

from .chapter import describe
from .checks import check
from .hardware import rank_device
from .launch import Nodes, Slurm, WorkerError, launch, log

__all__ = ["Nodes", "Slurm", "WorkerError", "check", "describe", "launch", "log", "rank_device"]
