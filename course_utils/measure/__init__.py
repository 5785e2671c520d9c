"""Measurements of a training step: its time, its memory and its arithmetic intensity.

`throughput` measures seconds, `memory` bytes, `host_memory` pages, `intensity` operations per byte; `profiled` finds
what a GPU did in a profile.
"""
