"""How long ranks were kept waiting by whatever else runs on their machine."""

import time

from ..processes import linux


class Turns:
    """Who had a core and who waited for one, from asking to asking; `asked` is when that was last."""

    def __init__(self):
        self.asked, self._before = time.monotonic(), {}

    def held_up_s(self, pids):
        """Of the seconds since it was asked last, those for which the processes `pids` wanted to run and could not; 0.0
        where the system does not say.

        A process that waits for another one, or sleeps, wants nothing. One that never ends has its own seconds counted,
        however many it shares the cores with: no sum of waits is more than what the busiest did not run.
        """
        now = time.monotonic()
        seconds, self.asked = now - self.asked, now
        times = {pid: linux.core_seconds(pid) for pid in pids}
        had, waited = zip(*(map(self._since_then, times, times.values())), strict=True) if times else ((0.0,), (0.0,))
        self._before = times
        return min(sum(waited), max(0.0, seconds - max(had)))

    def _since_then(self, pid, times):
        """What was added; threads that have ended take theirs away."""
        return [max(0.0, new - old) for new, old in zip(times, self._before.get(pid, (0.0, 0.0)), strict=True)]
