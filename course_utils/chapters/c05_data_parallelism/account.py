"""Account for a step's time when threads do its work: every second has one cause."""

import contextlib
import functools
import statistics
import time

from ... import hardware

COMPUTING, WAITING, STARTING = "computing", "waiting", "starting, joining threads"
# On a GPU, autograd asks for the backward pass from a thread of its own, while the thread that called it waits.
WAITING_ON_GPU = "waiting, and backward calls"


class Account:
    """Adds up the seconds of one step by cause: `seconds` is {cause: seconds}.

    `with account("messages"):` adds the time of the block to that cause.
    `with account.threads() as watch:` splits the time of the block in three; the threads must run `watch(function)`
    instead of `function`. Starting and joining: before the first thread begins and after the last ends. Computing: the
    processor time of a thread, as the mean over threads. Waiting: the rest, for the interpreter's lock, a core or a
    GPU. On a GPU this rest includes the processor time of the backward pass, whose operations autograd calls in a
    thread of its own, and its name says so. Blocks must not be nested.
    """

    def __init__(self):
        self.seconds = {}

    @contextlib.contextmanager
    def __call__(self, cause):
        begin = _now()
        yield
        self._put(cause, _now() - begin)

    @contextlib.contextmanager
    def threads(self):
        spans = []
        begin = _now()
        yield lambda function: _watched(function, spans)
        whole = _now() - begin
        in_threads = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
        computing = statistics.mean(computed for _, _, computed in spans)
        self._put(COMPUTING, computing)
        self._put(WAITING_ON_GPU if hardware.gpus_in_use() else WAITING, in_threads - computing)
        self._put(STARTING, whole - in_threads)

    @property
    def total_s(self):
        return sum(self.seconds.values())

    @property
    def milliseconds(self):
        return {cause: 1e3 * seconds for cause, seconds in self.seconds.items()}

    def _put(self, cause, seconds):
        self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds


def typical(run, repeats=9, warmup=2):
    """Call `run(account)`, one step, `warmup` + `repeats` times; return the account with the median total."""
    accounts = [Account() for _ in range(warmup + repeats)]
    for account in accounts:
        run(account)
    return sorted(accounts[warmup:], key=lambda account: account.total_s)[repeats // 2]


def compared(first, second):
    """Return a table of two accounts with the same causes, in ms, and by how much the second is larger."""
    rows = [f"{'ms':28s}{'one':>8s}{'two':>8s}{'more':>9s}"]
    pairs = [(cause, first.seconds[cause], spent) for cause, spent in second.seconds.items()]
    for cause, a, b in [*pairs, ("all of it", first.total_s, second.total_s)]:
        rows.append(f"{cause:28s}{1e3 * a:8.2f}{1e3 * b:8.2f}{1e3 * (b - a):+9.2f}")
    return "\n".join(rows)


def _watched(function, spans):
    @functools.wraps(function)
    def watched(*args):
        begin, computed = time.perf_counter(), time.thread_time()
        result = function(*args)
        computed = time.thread_time() - computed
        spans.append((begin, _now(), computed))
        return result

    return watched


def _now():
    hardware.wait_for_gpus()
    return time.perf_counter()
