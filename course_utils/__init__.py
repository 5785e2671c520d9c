"""What the notebooks of "From One GPU to Many" import."""

from .hardware import rank_device
from .launch import WorkerError, launch, log

__all__ = ["WorkerError", "launch", "log", "rank_device"]
