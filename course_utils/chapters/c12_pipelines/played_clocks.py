"""Clocks that go on only while a rank works or waits, by as much as a check says: what is measured is then exact."""

import time
import timeit

import torch.distributed as dist

from ...checks.watch.collectives import Collectives

_CLOCKS = "perf_counter", "monotonic", "time", "clock_gettime"


class Clocks(Collectives):
    """A rank's clocks, which show `apart` seconds more than `now`; in a collective a rank waits until the last has
    come, and leaves it a moment after the rank before it.

    Those are the clocks of `time`, under whichever name `answer` has them; `were_read` says whether one was.
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
            # from time import …
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
