"""When ranks compute and send: their spans, what of a message is waiting, a link that is slow."""

import contextlib
import time
import types

import matplotlib
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import launch
from course_utils.measure import overlap

matplotlib.use("agg")


def event(name, kind, start, end, is_user_annotation=False):
    return types.SimpleNamespace(
        name=name,
        device_type=types.SimpleNamespace(name=kind),
        is_user_annotation=is_user_annotation,
        time_range=types.SimpleNamespace(start=1e3 * start, end=1e3 * end),
    )


def spans_of(events, monkeypatch):
    monkeypatch.setattr(
        overlap, "profile", lambda: contextlib.nullcontext(types.SimpleNamespace(events=lambda: events))
    )
    return overlap.backward_spans(lambda: None)


def test_what_a_gpu_computes_and_sends_is_told_by_its_kernels(monkeypatch):
    events = [
        event("backward", "CPU", 1, 2),
        event("backward", "CUDA", 1, 10, is_user_annotation=True),
        event("all_reduce", "CPU", 2, 3),
        event("sgemm", "CUDA", 0, 0.5),
        event("sgemm", "CUDA", 3, 5),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "CUDA", 4, 9),
        event("autograd::engine::evaluate_function: MmBackward0", "CPU", 1, 2),
    ]
    assert spans_of(events, monkeypatch) == [(2, 4, "computing"), (3, 8, "all-reduce")]


def test_an_all_reduce_is_hidden_if_computing_goes_on_meanwhile():
    """With torch 2.15's NCCL, what DDP computes after a bucket waits for the bucket's sum; with 2.11's it does not."""
    sent = [(2, 5, "all-reduce"), (6, 8, "all-reduce"), (9, 11, "all-reduce")]
    goes_on = [(0, 2.1, "computing"), (2.5, 6.1, "computing"), (8, 9.1, "computing")]
    waits = [(0, 2, "computing"), (5, 6, "computing"), (8, 9, "computing")]
    assert overlap.num_hidden(sorted(sent + goes_on)) == 2
    assert overlap.num_hidden(sorted(sent + waits)) == 0
    afterwards = [(10, 10.5, "computing"), (12, 13, "computing")]  # DDP copies earlier sums while the last is sent
    assert overlap.num_hidden(sorted(sent + goes_on + afterwards)) == 2


def test_ranks_that_share_a_gpu_send_with_gloo(monkeypatch):
    events = [event("backward", "CPU", 0, 1), event("sgemm", "CUDA", 2, 4), event("gloo:all_reduce", "CPU", 3, 8)]
    events += [event("Memcpy DtoH (Device -> Pinned)", "CUDA", 3, 4), event("Memset (Device)", "CUDA", 5, 6)]
    assert spans_of(events, monkeypatch) == [(2, 4, "computing"), (3, 8, "all-reduce")]


def test_a_barrier_of_nccl_does_not_make_a_step_on_the_cpu_one_of_a_gpu(monkeypatch):
    """Workers that have a GPU each meet at NCCL's barrier, also before a step on the CPU."""
    events = [
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "CUDA", 0, 1),
        event("backward", "CUDA", 0, 9, is_user_annotation=True),
        event("backward", "CPU", 2, 9),
        event("autograd::engine::evaluate_function: MmBackward0", "CPU", 3, 5),
        event("gloo:all_reduce", "CPU", 4, 8),
    ]
    assert spans_of(events, monkeypatch) == [(1, 3, "computing"), (2, 6, "all-reduce")]


def profile_two_layers():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 400), nn.Linear(400, 4)), bucket_cap_mb=0.001)
    x = torch.ones(2, 4)

    def step():
        overlap.marked_backward(model(x).sum())

    for _ in range(2):
        step()
    return overlap.backward_spans(step)


def test_the_spans_of_workers_hold_every_all_reduce():
    ranks = launch(profile_two_layers, world_size=2).results
    for spans in ranks:
        assert {kind for _, _, kind in spans} == {"computing", "all-reduce"}
        assert all(0 <= begin <= end for begin, end, _ in spans)
    messages = [sum(kind == "all-reduce" for _, _, kind in spans) for spans in ranks]
    assert messages[0] == messages[1] >= 2
    assert len(overlap.waiting(ranks)) == messages[0]


def test_until_the_last_rank_calls_it_is_waiting():
    spans = [(0, 9, "computing"), (1, 7, "all-reduce")], [(4, 6, "all-reduce"), (0, 3, "computing")]
    assert overlap.waiting(spans) == [(3, 3)]


def time_a_slow_step(bytes_per_s):
    model, seconds = DistributedDataParallel(nn.Linear(1000, 10, bias=False)), []
    model.register_comm_hook(overlap.Link(bytes_per_s), overlap.average_over)
    for _ in range(2):
        model.zero_grad()
        begin = time.perf_counter()
        model(torch.full((1, 1000), float(dist.get_rank()))).sum().backward()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), model.module.weight.grad.unique().tolist()


def test_over_a_slow_link_the_same_mean_arrives_later():
    for seconds, gradient in launch(time_a_slow_step, 40_000 / 0.2, world_size=2):
        assert gradient == [0.5]
        assert seconds >= 0.2


def test_messages_follow_one_another_over_a_link(monkeypatch):
    monkeypatch.setattr(overlap.time, "perf_counter", lambda: 10.0)
    link = overlap.Link(100)
    assert [link.arrival(num_bytes) for num_bytes in (50, 100)] == [10.5, 11.5]
    monkeypatch.setattr(overlap.time, "perf_counter", lambda: 20.0)
    assert link.arrival(100) == 21
