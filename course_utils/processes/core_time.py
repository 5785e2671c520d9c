"""How long processes waited for cores that other programs used."""

import time

from . import linux


class Turns:
    """Measures waiting for `num_cores` cores from call to call; `asked` is the time of the last call."""

    def __init__(self, num_cores):
        self._num_cores, self.asked, self._before = num_cores, time.monotonic(), {}

    def held_up_s(self, pids):
        """Return for how many seconds since the last call `pids` waited for cores that other programs used.

        Includes their descendants. Returns 0.0 if the system does not tell. A process that sleeps, or waits for
        another process, does not wait for a core.
        The result is at most the elapsed time minus the processes' own core time (of the busiest process, or of all
        divided by the number of cores), so processes that compute for ever still reach their timeout.
        """
        now = time.monotonic()
        seconds, self.asked = now - self.asked, now
        before, self._before = self._before, {}
        for pid in pids:
            self._before |= linux.core_seconds(pid)
        added = [(0.0, 0.0)]
        for pid, times in self._before.items():
            had, waited = (new - old for new, old in zip(times, before.get(pid, (0.0, 0.0)), strict=True))
            added.append((max(0.0, had), max(0.0, waited)))  # sums fall when a thread has ended
        had, waited = zip(*added, strict=True)
        return min(sum(waited), max(0.0, seconds - max(*had, sum(had) / self._num_cores)))
