"""The course's training program: one network, six ways to divide the work, the same parameters at the end.

`program` says how to run it, `strategies` holds what differs between them, `options` the command line, `places` the
ranks and their process group, and `state` the checkpoints.
"""

from .places import Refused
from .program import main, peak_bytes
from .strategies import CUTS

__all__ = ["CUTS", "Refused", "main", "peak_bytes"]
