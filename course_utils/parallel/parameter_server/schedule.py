"""When each worker would compute, by a rule and the time that each takes for a step: an idea, without messages."""

import heapq
from collections import namedtuple

Step = namedtuple("Step", "worker step begin end")


def schedule(rule, paces, until):
    """The Steps that workers begin before the time `until`, if worker i takes `paces[i]` for a
    step, in order of their begin.
    """
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
