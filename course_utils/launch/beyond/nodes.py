"""Two or more torchrun agents on this machine, each of them a node of its own for the ranks that it starts."""

import io
import time

from ..watch.failure import how_it_failed
from ..watch.supervisor import Supervisor

_PAUSE_S = 0.02


class Agents:
    """The engine of a Follower: agents as workers of the forkserver, from which they inherit an imported torch."""

    start_s = 120.0

    def __init__(self, handle, num_nodes, folder, surroundings_fd, call_fd):
        """The agents' own: `folder` for multiprocessing's temporary files, and two payloads as for any worker."""
        log = io.StringIO()  # what torchrun's agents print is not the student's
        self._agents = Supervisor(handle, num_nodes, folder, surroundings_fd, call_fd, stream=log)

    def start(self):
        self._agents.start()

    def pause(self):
        return self._agents.select(time.monotonic() + _PAUSE_S)

    def take(self, news):
        self._agents.take(news)

    def problem(self):
        failed = sorted((fate for fate in self._agents.fates if fate.has_failed), key=lambda fate: fate.time)
        if failed:
            return f"the agent of node {failed[0].rank} of {self._agents.world_size}: {how_it_failed(failed[0])}"
        return "torchrun's agents ended before their ranks" if self._agents.is_over else None

    @property
    def answers(self):
        return not self._agents.is_over

    @property
    def killed_for_memory(self):
        return self._agents.killed_for_memory

    def stop(self, is_well):
        return self._agents.stop()
