"""When a rank computes and when it sends during a backward pass, and what a slower link would change."""

import time

import torch.distributed as dist
from torch.profiler import profile, record_function

from . import throughput


def marked_backward(loss):
    """`loss.backward()`, which all ranks begin together, marked for `backward_spans`."""
    throughput.now()  # a GPU has finished its forward pass, too
    dist.barrier()
    with record_function("backward"):
        loss.backward()


def backward_spans(step):
    """Run `step()` under torch's profiler; what it computed and sent, as a sorted list of (begin, end, kind), in ms.

    `step` runs its backward pass with `marked_backward`, and 0 is the moment when that begins. The kind is "computing"
    or "all-reduce". On a GPU the spans are kernels, NCCL's being the messages; elsewhere they are what autograd runs
    for each operation. An all-reduce of gloo's lasts from the call until the sum is there: waiting included.
    """
    with profile() as trace:
        step()
    events = trace.events()
    start = next(e.time_range.start for e in events if e.name == "backward")
    kernels = [e for e in events if e.device_type.name == "CUDA" and not e.is_user_annotation]
    kinds = [("all-reduce" if "nccl" in e.name else "computing", e) for e in kernels]
    if not kernels:
        kinds = [("computing", e) for e in events if e.name.startswith("autograd::engine::evaluate_function")]
    kinds += [("all-reduce", e) for e in events if e.name == "gloo:all_reduce"]
    spans = [((e.time_range.start - start) / 1e3, (e.time_range.end - start) / 1e3, kind) for kind, e in kinds]
    return sorted(span for span in spans if span[0] >= 0)


def waiting(spans_of_ranks):
    """(waiting, moving) in ms for each all-reduce, from the `backward_spans` of every rank, their zeros at one moment.

    An all-reduce moves nothing before the last rank has called it. Until then the first rank waits for the others.
    """
    messages = zip(*([span for span in spans if span[2] == "all-reduce"] for spans in spans_of_ranks))
    calls = [([begin for begin, _, _ in message], max(end for _, end, _ in message)) for message in messages]
    return [(max(begins) - min(begins), end - max(begins)) for begins, end in calls]


class Link:
    """A link that carries `bytes_per_s` and no more, one message after the other: the state of `average_over`."""

    def __init__(self, bytes_per_s):
        self._bytes_per_s, self._free_s = bytes_per_s, 0.0

    def arrival(self, num_bytes):
        """When `num_bytes`, sent now, will have arrived, in seconds of time.perf_counter()."""
        self._free_s = max(self._free_s, time.perf_counter()) + num_bytes / self._bytes_per_s
        return self._free_s


def average_over(link, bucket):
    """A communication hook for DDP that averages as DDP does, but over a `Link`: `register_comm_hook(link,
    average_over)`.

    While a message is on the link nobody computes for it, as with a network. For tensors on the CPU, with gloo: a GPU's
    stream would not wait.
    """
    mean = bucket.buffer().div_(dist.get_world_size())
    arrives_s = link.arrival(mean.nbytes)

    def deliver(done):
        time.sleep(max(0.0, arrives_s - time.perf_counter()))
        return done.value()[0]

    return dist.all_reduce(mean, async_op=True).get_future().then(deliver)
