"""Run another program under torchrun, and print when Python has started, torch is imported, and so on.

torchrun … phases.py PROGRAM [ARGUMENT ...]
"""

print("phase: Python has started", flush=True)  # first, before any import takes time

import functools  # noqa: E402
import runpy  # noqa: E402
import sys  # noqa: E402

import torch.distributed  # noqa: E402

print("phase: torch is imported", flush=True)


def marked(function, what):
    """Return `function`, which then also prints a line when it is done."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        print(f"phase: {what}", flush=True)
        return result

    return call


torch.distributed.init_process_group = marked(torch.distributed.init_process_group, "the group is joined")
torch.load = marked(torch.load, "the checkpoint is loaded")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
