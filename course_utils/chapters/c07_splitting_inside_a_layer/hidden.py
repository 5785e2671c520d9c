"""Orders of the same computing and the same all-reduce, timed to see which parts overlap."""

import contextlib
import time

import torch.distributed as dist

ALL_REDUCE = "all-reduce"


def typical(ways, link, num_rounds=25):
    """Run each way of {name: way} in turn for `num_rounds` rounds; return {name: spans of the round of median length}.

    Call it on every rank; the spans are this rank's. `way(span, all_reduce)` computes inside `with span("a name"):`.
    `all_reduce(tensor)` sums over the ranks, in place and over an `overlap.Link`, and returns at once; the sum is there
    after `wait()` on what it returned. Spans are (begin, end, name), in ms since the round began.

    Only for CPU tensors with gloo: a GPU's stream would not wait for the link.
    """
    found = {name: [] for name in ways}
    for _ in range(num_rounds):
        for name, way in ways.items():
            found[name].append(_run(way, link))
    return {name: sorted(rounds, key=length)[len(rounds) // 2] for name, rounds in found.items()}


def length(spans):
    """Return the end of the last span, in ms."""
    return max(end for _, end, _ in spans)


def exposed(spans):
    """Return the ms up to the last span's end in which this rank did not compute."""
    return length(spans) - sum(end - begin for begin, end, name in spans if name != ALL_REDUCE)


def rows(found):
    """Return {row: spans} for `plots.timeline`: for each way one row of computing and one of messages."""
    sent = {False: "computes", True: "sends"}
    return {
        f"{way}: {word}": [span for span in spans if (span[2] == ALL_REDUCE) == is_sent]
        for way, spans in found.items()
        for is_sent, word in sent.items()
    }


class Sum:
    """An all-reduce under way on a link; after `wait()`, `end` is its time of arrival."""

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
