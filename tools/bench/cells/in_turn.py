"""One of several notebooks that launch in a loop on a node that they share."""

import time

from course_utils import launch


def work():
    begun = time.monotonic()
    time.sleep(0.05)
    return begun


def launches(begin, how_many):
    """The times of each launch after the moment `begin`: [request, start of its first worker, end]."""
    time.sleep(max(0, begin - time.monotonic()))
    found = []
    for _ in range(how_many):
        asked = time.monotonic()
        begun = min(launch(work, world_size=2).results)
        found.append((asked, begun, time.monotonic()))
    return found


launch(work, world_size=2)  # warm-up
