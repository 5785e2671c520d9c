"""What hides behind what: ways to order the same computing and the same all-reduce, and when each part of them ran."""

import contextlib
import time

import torch.distributed as dist

ALL_REDUCE = "all-reduce"


def quickest(ways, link, num_rounds=25):
    """Run each way of {name: way} in `num_rounds` rounds, in turn; {name: the spans of its quickest round} on this
    rank.

    Every rank calls `way(span, all_reduce)` alike. Under a `with span("a name"):` it computes; `all_reduce(tensor)`
    sums the tensor over the ranks, in place and over an `overlap.Link`, and returns at once: the sum is there when
    `wait()` of what it returned is over. Spans are (begin, end, name), in ms since all ranks began together.

    For tensors on the CPU, with gloo: a GPU's stream would not wait for the link.
    """
    found = {name: [] for name in ways}
    for _ in range(num_rounds):
        for name, way in ways.items():
            found[name].append(_run(way, link))
    return {name: min(rounds, key=length) for name, rounds in found.items()}


def length(spans):
    """When the last span ended."""
    return max(end for _, end, _ in spans)


def exposed(spans):
    """How many ms of the time until the last span's end this rank did not compute."""
    return length(spans) - sum(end - begin for begin, end, name in spans if name != ALL_REDUCE)


def rows(found):
    """{row: spans} for `plots.timeline`: for each way one row of what it computed, and one of its messages."""
    sent = {False: "computes", True: "sends"}
    return {
        f"{way}: {word}": [span for span in spans if (span[2] == ALL_REDUCE) == is_sent]
        for way, spans in found.items()
        for is_sent, word in sent.items()
    }


class Sum:
    """An all-reduce on its way over a link; `end` is when it arrived, once it has been waited for."""

    def __init__(self, tensor, link):
        self.begin, self._arrival = time.perf_counter(), link.arrival(tensor.nbytes)
        self._work = dist.all_reduce(tensor, async_op=True)

    def wait(self):
        late = not self._work.is_completed()
        self._work.wait()
        self.end = max(self._arrival, time.perf_counter()) if late else self._arrival
        time.sleep(max(0.0, self._arrival - time.perf_counter()))


def _run(way, link):
    spans, sums = [], []

    @contextlib.contextmanager
    def span(name):
        begin = time.perf_counter()
        yield
        spans.append((begin, time.perf_counter(), name))

    def all_reduce(tensor):
        sums.append(Sum(tensor, link))
        return sums[-1]

    dist.barrier()
    start = time.perf_counter()
    way(span, all_reduce)
    spans += [(each.begin, each.end, ALL_REDUCE) for each in sums]
    return sorted((1e3 * (begin - start), 1e3 * (end - start), name) for begin, end, name in spans)
