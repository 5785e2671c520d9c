"""When a rank computes and sends during a backward pass, and the effect of a slower link."""

import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch.profiler import profile, record_function

from . import profiled, throughput


def marked_backward(loss: torch.Tensor) -> None:
    """Run `loss.backward()`, started by all ranks together and marked for `backward_spans`."""
    throughput.now()  # waits for the forward pass on a GPU
    dist.barrier()
    with record_function("backward"):
        loss.backward()


def backward_spans(step: Callable[[], object]) -> list[tuple[float, float, str]]:
    """Run `step()` under torch's profiler and return its spans: a sorted list of (begin, end, kind) in ms.

    `step` runs its backward pass with `marked_backward`; time 0 is the start of that pass. The kind is "computing" or
    "all-reduce". On a GPU the spans are kernels, NCCL's kernels being the all-reduces. On a CPU they are the functions
    that autograd runs for each operation, and gloo's all-reduce lasts from the call until the sum has arrived, waiting
    included. Spans that begin before the pass, such as the barrier's kernel, are left out, and copies and fills: of a
    message that gloo carries for GPUs, and between gradients and buckets.
    """
    with profile() as trace:
        step()
    events = trace.events()
    start = next(e.time_range.start for e in events if e.name == "backward" and e.device_type.name == "CPU")
    events = [e for e in events if e.time_range.start >= start]
    kinds = [("all-reduce" if "nccl" in e.name else "computing", e) for e in profiled.kernels(events)]
    if not profiled.on_gpu(events):
        kinds = [("computing", e) for e in events if e.name.startswith("autograd::engine::evaluate_function")]
    kinds += [("all-reduce", e) for e in events if e.name == "gloo:all_reduce"]
    return sorted(((e.time_range.start - start) / 1e3, (e.time_range.end - start) / 1e3, kind) for kind, e in kinds)


def waiting(spans_of_ranks: Iterable[list[tuple[float, float, str]]]) -> list[tuple[float, float]]:
    """The (waiting, moving) ms of each all-reduce, from all ranks' `backward_spans` with a common zero.

    An all-reduce moves nothing before the last rank has called it; until then the earlier ranks wait.
    """
    messages = zip(*([span for span in spans if span[2] == "all-reduce"] for spans in spans_of_ranks))
    calls = [([begin for begin, _, _ in message], max(end for _, end, _ in message)) for message in messages]
    return [(max(begins) - min(begins), end - max(begins)) for begins, end in calls]


def num_hidden(spans: Iterable[tuple[float, float, str]]) -> int:
    """The number of all-reduces during which the rank computes, with more to compute later, from `backward_spans`.

    The last all-reduce never counts: its bucket is full only when the last gradient is there. What may run beside it is
    no gradient's computing, but DDP's own work on earlier buckets.
    """
    spans = list(spans)
    computing = [(begin, end) for begin, end, kind in spans if kind == "computing"]
    sending = sorted((begin, end) for begin, end, kind in spans if kind == "all-reduce")[:-1]
    last = max((begin for begin, _ in computing), default=0.0)
    return sum(begin < last and any(b < end and begin < e for b, e in computing) for begin, end in sending)


class Link:
    """A link of `bytes_per_s` that carries one message after the other: the state of `average_over`."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._free_s = bytes_per_s, 0.0

    def arrival(self, num_bytes: int) -> float:
        """The time.perf_counter() at which `num_bytes` sent now will have arrived."""
        self._free_s = max(self._free_s, time.perf_counter()) + num_bytes / self._bytes_per_s
        return self._free_s


def average_over(link: Link, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A DDP communication hook that averages as DDP does, over a `Link`: `register_comm_hook(link, average_over)`.

    The transfer takes no CPU time, as with a real network. Use it with CPU tensors and gloo: a GPU's stream would not
    wait.
    """
    mean = bucket.buffer().div_(dist.get_world_size())
    arrives_s = link.arrival(mean.nbytes)

    def deliver(done):
        time.sleep(max(0.0, arrives_s - time.perf_counter()))
        return done.value()[0]

    return dist.all_reduce(mean, async_op=True).get_future().then(deliver)
