"""Records throughput and memory of the ranks of a launch over time."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import psutil

from ...hardware import nvml

if TYPE_CHECKING:
    from ..watch.rows import Rows

_PAUSE_S = 0.25
_MOST = 1_000
_WINDOWS_S = 2.0, 10.0, 50.0  # over which a rate is computed: the first in which each rank has logged so many rows
_FEWEST = 20
_STOPPED_S, _STOPPED = 5.0, 3.0
NO_VALUES = ("samples", "total")  # names of what is logged to tell the rate and progress


# `seconds` since the launch began. Each other field has a value per rank: rows logged, samples in them, bytes of memory
# on the host and on GPUs (None if unknown), and the latest number logged as `History.logged_name` (NaN if none).
class Moment(NamedTuple):
    seconds: float
    rows: list[int]
    samples: list[float]
    host_bytes: list[int | None]
    gpu_bytes: list[int | None]
    logged: Sequence[float] = ()


class History:
    """Moments of a launch, in bounded memory: beyond a limit, every other is kept, then one in four, and so on."""

    def __init__(self, started, on_gpus=False):
        self.moments = []
        self.started, self._on_gpus = started, on_gpus
        self._pause_s, self._next = _PAUSE_S, 0.0
        self._processes = {}
        self.logged_name = ""  # "loss" if a number is logged under that name, else the first name of a number

    def sample(self, rows: Rows, pids: Mapping[int, int]) -> None:
        """Add a Moment if it is time for one; `pids` is {rank: pid} of the ranks still alive."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._pause_s
        ranks = range(len(rows.counts))
        on_gpus = nvml.memory_of_processes() if self._on_gpus else {}
        host = [self._resident_bytes(rank, pids.get(rank)) for rank in ranks]
        gpu = [on_gpus.get(pids.get(rank, -1)) for rank in ranks]
        logged = self._logged(rows)
        self.moments.append(Moment(now - self.started, list(rows.counts), list(rows.samples), host, gpu, logged))
        if len(self.moments) > _MOST:
            del self.moments[1::2]
            self._pause_s *= 2

    def _logged(self, rows):
        values = [{} if logged is None else logged.values for logged in rows.latest]
        if self.logged_name != "loss":
            numbers = [[name for name in each if math.isfinite(_number(each[name]))] for each in values]
            found = [name for names in numbers for name in names if name not in NO_VALUES]
            name = "loss" if "loss" in found else self.logged_name or next(iter(found), "")
            if name != self.logged_name:  # what was kept has another name
                self.logged_name = name
                self.moments = [moment._replace(logged=[math.nan] * len(values)) for moment in self.moments]
        # A rank's latest row may have other names: then what it was before.
        before = self.moments[-1].logged if self.moments else [math.nan] * len(values)
        return [_number(each.get(self.logged_name, old)) for each, old in zip(values, before, strict=True)]

    def _resident_bytes(self, rank, pid):
        if pid is None:
            return None
        try:
            process = self._processes.get(rank)
            if process is None or process.pid != pid:
                process = self._processes[rank] = psutil.Process(pid)
            return process.memory_info().rss
        except (psutil.Error, OSError):  # it has just ended, or no descriptors are left
            return None

    @property
    def unit(self) -> str:
        """What rates count: "samples" if `log(samples=…)` was called, else "steps", which are logged rows."""
        return "samples" if self.moments and any(self.moments[-1].samples) else "steps"

    def rates(self) -> list[list[float]]:
        """Return each rank's rate per second over the last seconds, for each moment but the first."""
        return [self._rates_at(i) for i in range(1, len(self.moments))]

    def latest_rates(self) -> Sequence[float]:
        """Return the last entry of `rates`, but 0 for ranks that have stopped logging; () if there is none."""
        if len(self.moments) < 2:
            return ()
        return [0.0 if self._has_stopped(r) else rate for r, rate in enumerate(self._rates_at(len(self.moments) - 1))]

    def _has_stopped(self, rank):
        """Return whether a rank has logged nothing for five seconds, and three times as long as it usually needs."""
        now = self.moments[-1]
        last = next((moment for moment in reversed(self.moments) if moment.rows[rank] < now.rows[rank]), None)
        if last is None:
            return False
        return now.seconds - last.seconds > max(_STOPPED_S, _STOPPED * last.seconds / max(1, last.rows[rank]))

    def _rates_at(self, i):
        moments, now = self.moments, self.moments[i]
        then = now
        for window_s in _WINDOWS_S:
            first = bisect.bisect_left(moments, now.seconds - window_s, key=lambda moment: moment.seconds)
            then = moments[min(first, i - 1)]
            if min(now.rows) - min(then.rows) >= _FEWEST:
                break
        counts = zip(getattr(now, self._counted), getattr(then, self._counted), strict=True)
        return [(count - before) / (now.seconds - then.seconds) for count, before in counts]

    @property
    def _counted(self):
        return "samples" if self.unit == "samples" else "rows"


def _number(value):
    """Return a logged value as a float, NaN if it is none."""
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan
