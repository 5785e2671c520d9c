"""How long processes were kept waiting by whatever else runs on their machine."""

import time

from . import linux


class Turns:
    """Who had one of `num_cores` cores and who waited, from asking to asking; `asked` is when that was last."""

    def __init__(self, num_cores):
        self._num_cores, self.asked, self._before = num_cores, time.monotonic(), {}

    def held_up_s(self, pids):
        """Of the seconds since it was asked last, those for which the processes `pids`, and what they have started,
        wanted to run and other programs had the cores; 0.0 where the system does not say.

        Who waits for another process, or sleeps, wants nothing. What they ran themselves counts, all together as if
        they had had all cores: so what never ends has its seconds, however busy the machine is, or they make it.
        """
        now = time.monotonic()
        seconds, self.asked = now - self.asked, now
        before, self._before = self._before, {}
        for pid in pids:
            self._before |= linux.core_seconds(pid)
        added = [(0.0, 0.0)]
        for pid, times in self._before.items():
            had, waited = (new - old for new, old in zip(times, before.get(pid, (0.0, 0.0)), strict=True))
            added.append((max(0.0, had), max(0.0, waited)))  # a thread that has ended takes its times away
        had, waited = zip(*added, strict=True)
        return min(sum(waited), max(0.0, seconds - max(*had, sum(had) / self._num_cores)))
