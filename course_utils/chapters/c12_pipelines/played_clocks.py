"""Simulated clocks that advance only by amounts that a check sets, so that measurements are exact."""

import time
import timeit

import torch.distributed as dist

from ...checks.watch.collectives import Collectives

_CLOCKS = "perf_counter", "monotonic", "time", "clock_gettime"


class Clocks(Collectives):
    """A rank's simulated clocks; they show `now` + `apart` seconds.

    In a collective, a rank waits for the last rank; ranks leave it a moment apart, in rank order. The clocks replace
    those of `time` and `timeit`, also under names imported into the module of `answer`. `were_read` tells whether one
    was read.
    """

    def __init__(self, answer, now, apart):
        super().__init__()
        self.now, self.apart, self.were_read, self._names = now, apart, False, getattr(answer, "__globals__", {})

    def __enter__(self):
        super().__enter__()
        patches = {(time, name): self._read for name in _CLOCKS} | {
            (time, f"{name}_ns"): self._read_ns for name in _CLOCKS
        }
        patches[timeit, "default_timer"] = self._read
        for (module, name), read in patches.items():
            before = getattr(module, name)
            self._before.append((module, name, before))
            setattr(module, name, read)
            # for `from time import …`
            self._names.update({key: read for key, value in self._names.items() if value is before})
        return self

    def _read(self, *_):
        self.were_read = True
        return self.now + self.apart

    def _read_ns(self, *_):
        return round(self._read() * 1e9)

    def say(self):
        return self.now

    def heard(self, everyone):
        self.now = max(everyone) + 1e-6 * dist.get_rank() * len(self.called)
