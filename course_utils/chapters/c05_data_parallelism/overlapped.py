"""When gradients become complete and when their sums are done: a queue and a group that note it, for any step.

The times are read by Python. On GPUs they say when work was asked for, and not when it was done.
"""

import queue
import time

from ...parallel.device_group import DeviceGroup


class NotedGroup(DeviceGroup):
    """A DeviceGroup that keeps the begin and the end of each `all_reduce`, in seconds, in `spans_s`."""

    def __init__(self, devices):
        super().__init__(devices)
        self.spans_s = []

    def all_reduce(self, tensors):
        begin_s = time.perf_counter()
        super().all_reduce(tensors)
        self.spans_s.append((begin_s, time.perf_counter()))


class NotedQueue(queue.Queue):
    """A queue of (replica, parameter) that keeps the time of each `put`, {(replica, parameter): seconds}."""

    def __init__(self):
        super().__init__()
        self.times_s = {}

    def put(self, item, *args, **kwargs):
        self.times_s[item] = time.perf_counter()
        super().put(item, *args, **kwargs)


def times_ms(ready, group, names):
    """Return {name of a parameter: (ms at which each replica's gradient is complete, the sum's begin, its end)}.

    `ready` is a NotedQueue and `group` a NotedGroup, both of one step; `names` are the parameters' names. The first
    gradient is complete at 0. The dict is in the order of the sums.
    """
    start_s = min(ready.times_s.values())
    since = {
        i: [1e3 * (ready.times_s[replica, i] - start_s) for replica in range(len(group))] for i in range(len(names))
    }
    order = sorted(since, key=lambda i: max(since[i]))  # a sum begins when its last gradient is complete
    spans_ms = [[1e3 * (at - start_s) for at in span] for span in group.spans_s]
    return {names[i]: (since[i], *span) for i, span in zip(order, spans_ms, strict=True)}
