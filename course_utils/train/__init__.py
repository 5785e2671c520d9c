"""The course's training program: one network, six ways to divide the work, the same parameters at the end.

`program` says how to run it, `strategies` holds what differs, `options` the command line, `places` where the ranks come
from, and `state` what a checkpoint holds.
"""

from .places import Refused
from .program import main, peak_bytes
from .strategies import CUTS

__all__ = ["CUTS", "Refused", "main", "peak_bytes"]
