"""When each worker would compute, given a rule and each worker's time per step; messages take no time."""

import heapq
from collections import namedtuple

Step = namedtuple("Step", "worker step begin end")


def schedule(rule, paces, until):
    """The Steps that workers begin before time `until`, in order of their begin; worker i takes `paces[i]` per step."""
    clocks = dict.fromkeys(range(len(paces)), 0)
    steps, waiting, ends = [], list(clocks), [(0.0, -1)]
    while ends:
        now, worker = heapq.heappop(ends)
        if worker >= 0:
            clocks[worker] += 1
            waiting.append(worker)
        if ends and ends[0][0] == now:
            continue  # others end at the same time
        for worker in [w for w in sorted(waiting) if now < until and rule.may_begin(clocks[w], clocks)]:
            waiting.remove(worker)
            steps.append(Step(worker, clocks[worker], now, now + paces[worker]))
            heapq.heappush(ends, (now + paces[worker], worker))
    return steps
