"""Run another program under torchrun, and print when Python has started and when torch is imported.

torchrun … phases.py PROGRAM [ARGUMENT ...]
"""

print("phase: Python has started", flush=True)  # first, before any import takes time

import runpy  # noqa: E402
import sys  # noqa: E402

import torch.distributed  # noqa: E402, F401

print("phase: torch is imported", flush=True)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
