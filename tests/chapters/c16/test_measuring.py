"""What chapter 16 measures with: bytes sent, how many pairs and how long ranks compute."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.chapters.c16_long_sequences import busy, moved
from course_utils.parallel import context, messages
from course_utils.parallel.messages import Traffic


def test_a_collective_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="broadcast"):
        moved.sent_bytes(SimpleNamespace(sent_bytes=0, collectives=[("broadcast", 8)]), 2)


def test_idle_is_what_no_rank_computed():
    two_rounds = [[(1.0, 2.0), (2.0, 2.0)], [(2.0, 2.0), (1.0, 4.0)]]
    assert busy.idle_share(two_rounds) == [0.25, 0.5]


def send_all_ways():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, found = torch.zeros(12), {}
    calls = {
        "message": lambda: messages.exchange(x, (rank + 1) % world_size, torch.empty(12), (rank - 1) % world_size),
        "all-reduce": lambda: dist.all_reduce(x),
        "all-gather": lambda: dist.all_gather_into_tensor(torch.empty(36), x),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(torch.empty(4), x),
        "all-to-all": lambda: dist.all_to_all_single(torch.empty(12), x),
    }
    for name, call in calls.items():
        with Traffic() as traffic:
            call()
        found[name] = moved.sent_bytes(traffic, world_size)
    return found


def compute_on_rank_0():
    ends = []

    def step():
        begin = time.thread_time()
        while dist.get_rank() == 0 and time.thread_time() < begin + 0.05:
            pass
        ends.append(time.perf_counter())

    times = busy.time_ranks(step, rounds=2)
    return times, ends[-1], time.perf_counter()


def test_with_three_ranks():
    found = launch(lambda: (send_all_ways(), compute_on_rank_0()), world_size=3)
    assert found[0][0] == {
        "message": 48, "all-reduce": 64, "all-gather": 96, "reduce-scatter": 32, "all-to-all": 32,
    }  # fmt: skip
    times, waits, ends = zip(*(each[1] for each in found))
    assert all(computing >= 0.05 for computing, _ in times[0])
    assert all(waiting[0] < working[0] for waiting, working in zip(times[1], times[0]))
    assert min(ends) >= waits[0]  # nobody is done before the rank that computes


def test_partly_seen_pieces_are_computed_whole_and_unseen_ones_not():
    # 16 pieces of 8 tokens: a piece of queries has its own piece of keys and those before it
    for order, pieces in ((context.contiguous, [10, 26, 42, 58]), (context.zigzag, [34] * 4)):
        assert busy.computed_pairs(order(128, 4), 4) == [8 * 8 * n for n in pieces]
    assert busy.computed_pairs(context.contiguous(6, 2), 3) == [6, 15]  # pieces of one token: only what is seen
