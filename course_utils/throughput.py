"""Clocks that do not lie: the device is synchronised before one is read, warm-up is thrown away, and it is repeated."""

import statistics
import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat of something that handles `num_samples` samples."""

    seconds: tuple
    num_samples: int = 1

    @property
    def median_s(self):
        return statistics.median(self.seconds)

    @property
    def samples_per_s(self):
        return self.num_samples / self.median_s

    @property
    def samples_per_s_range(self):
        """The slowest and the fastest repeat, in samples/s."""
        return self.num_samples / max(self.seconds), self.num_samples / min(self.seconds)

    def __str__(self):
        low, high = min(self.seconds) * 1e3, max(self.seconds) * 1e3
        return f"{self.median_s * 1e3:.1f} ms (median of {len(self.seconds)}, {low:.1f}–{high:.1f})"


def measure(step, num_samples=1, device="cpu", warmup=2, repeats=7):
    """Time `step()`, which handles `num_samples` samples on `device`, `repeats` times after `warmup` calls.

    In a worker every rank calls it alike: the collectives in `step` keep the ranks together.
    """
    for _ in range(warmup):
        step()
    seconds = []
    for _ in range(repeats):
        _synchronize(device)
        begin = time.perf_counter()
        step()
        _synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return Timing(tuple(seconds), num_samples)


def _synchronize(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
