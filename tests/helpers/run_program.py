"""A worker function, in a module of its own that is quick to import, since workers do."""

import os
import runpy
import sys


def run_program(program, arguments, is_alone):
    """The program as it runs under torchrun, whose environment `launch` makes; or alone, without any of it."""
    if is_alone:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            del os.environ[name]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
