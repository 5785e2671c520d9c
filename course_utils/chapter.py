"""What the setup cell of every chapter calls."""

import os
import warnings

from . import hardware, notebook
from .launch import warm


def describe(full=False):
    """Print what this machine is (in `full`, all that chapter 00 reads) and start the forkserver in the background.

    By the time the setup cell has been read, the forkserver has torch imported, and the first launch is as quick as
    every later one. From now on float32 is float32 here, as it is in every worker.
    """
    # or torch's profiler tells of a missing GPU in every cell that uses it
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    # or a product that begins a GPU's backward pass tells of a context, which it then makes; workers take this over
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
    warm()
    notebook.say(hardware.describe(full))
    hardware.full_precision()
