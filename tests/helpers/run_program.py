"""Worker functions, in a module of its own that is quick to import, since workers do."""

import os
import runpy
import signal
import sys

# What torchrun and launch tell a process of its place.
OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def update_as_on_gpus():
    """Let optimizers of this process update all parameters at once, as they do by default where those are on a GPU."""
    from torch.optim import optimizer

    assert hasattr(optimizer, "_get_foreach_kernels_supported_devices")
    optimizer._get_foreach_kernels_supported_devices = lambda: ["cpu"]


def die_after(num_steps):
    """Kill this process after so many steps of its optimizers."""
    from torch.optim import optimizer

    steps = iter(range(1, num_steps))
    optimizer.register_optimizer_step_post_hook(lambda *_: next(steps, None) or os.kill(os.getpid(), signal.SIGKILL))


def run_program(program, arguments, is_alone, dies_after=None):
    """The program as it runs under torchrun, whose environment `launch` makes; or alone, without any of it.

    With `dies_after`, the last rank is killed after so many of its steps.
    """
    if dies_after is not None and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        die_after(dies_after)
    if is_alone:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            del os.environ[name]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    update_as_on_gpus()
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
