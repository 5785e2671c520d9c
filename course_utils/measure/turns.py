"""Timing several alternatives in turn, so that interference hits all of them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from . import throughput


def in_turn(
    ways: Mapping[Any, Callable[[], object]], rounds: int = 8, warmup: int = 3, repeats: int = 2
) -> dict[Any, throughput.Timing]:
    """Call every step of {name: step} `warmup` times, then time it `repeats` times in each of `rounds` rounds.

    Returns {name: Timing} over all repeats. In a worker every rank must call it, as for `throughput.measure`. The ranks
    meet before each turn, so a rank whose step does nothing stays idle while the others work.
    """
    seconds = {name: _turn(step, warmup, 0) for name, step in ways.items()}
    for _ in range(rounds):
        for name, step in ways.items():
            seconds[name] += _turn(step, 0, repeats)
    return {name: throughput.Timing(each) for name, each in seconds.items()}


def _turn(step, warmup, repeats):
    if dist.is_initialized():
        dist.barrier()
    return throughput.measure(step, warmup=warmup, repeats=repeats).seconds
