"""The course's training program: one network, six ways to divide the work, the same parameters at the end.

`program` says how to run it, `strategies` holds what differs between them, `options` the command line, `places` the
ranks and their process group, `state` and `sharded` the checkpoints, and `stopping` what happens on SIGTERM.
"""

from .places import Refused
from .program import main, peak_bytes
from .stopping import Stopped
from .strategies import CUTS

__all__ = ["CUTS", "Refused", "Stopped", "main", "peak_bytes"]
