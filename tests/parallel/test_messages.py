"""Messages arrive for any tensor layout, ring and tree compute the right results, and everything is counted."""

import re

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch
from course_utils.parallel import messages, ring, tree

DTYPES = torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool


def run(worker, *args, world_size=2):
    return launch(worker, *args, world_size=world_size, backend="gloo", timeout=60).results


def send_forth_and_back():
    for dtype in DTYPES:
        for shape in ((), (5,), (3, 4), (0,), (2, 0)):
            there = (torch.arange(torch.Size(shape).numel()) % 2).to(dtype).view(shape)
            back = torch.full(shape, 0, dtype=dtype)
            if dist.get_rank() == 0:
                messages.send(there, 1)
                messages.recv(back, 1)
            else:
                messages.recv(back, 0)
                messages.send(back, 0)
            assert torch.equal(back, there), (dtype, shape)


def test_tensors_of_any_shape_and_dtype_go_forth_and_back():
    run(send_forth_and_back)


def exchange_columns():
    rank, partner = dist.get_rank(), 1 - dist.get_rank()
    mine = torch.nn.Parameter(torch.arange(12.0).view(3, 4) + 100 * rank)
    into = torch.zeros(3, 4)
    messages.exchange(mine[:, 1], partner, into[:, 2], partner)  # neither lies in one piece
    swapped = into.clone()
    if rank == 0:
        messages.recv(into[:, 3], 1)
    else:
        messages.send(mine[:, 0], 0)
    return swapped, into


def test_columns_of_a_parameter_are_sent_and_received_in_place():
    (first, received), (second, _) = run(exchange_columns)
    for rank, into in enumerate((first, second)):
        assert into[:, 2].tolist() == [100 * (1 - rank) + n for n in (1, 5, 9)]
        assert not into[:, [0, 1, 3]].any()
    assert received[:, 3].tolist() == [100, 104, 108]


def pass_round(num_rounds, length):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here, new = torch.full((length,), rank), torch.empty(length, dtype=torch.int64)
    for _ in range(num_rounds):
        messages.exchange(here, (rank + 1) % world_size, new, (rank - 1) % world_size)
        here, new = new, here
    return here[0].item(), here[-1].item()


@pytest.mark.parametrize("length", [1, 3_000_000])  # the second is far more than a socket takes in
def test_all_ranks_of_a_ring_exchange_at_once(length):
    assert run(pass_round, 5, length, world_size=3) == [((rank - 5) % 3,) * 2 for rank in range(3)]


def exchange_of_unequal_lengths():
    rank, partner = dist.get_rank(), 1 - dist.get_rank()
    outgoing, incoming = torch.full((3 * rank,), 7.0), torch.zeros(3 * partner)
    messages.exchange(outgoing, partner, incoming, partner)
    return incoming.tolist()


def test_an_exchange_may_have_one_direction_only():
    assert run(exchange_of_unequal_lengths) == [[7.0] * 3, []]


def start_and_go_on(group_of):
    """Rank 1 of two starts only after rank 0 has, which a call that waited for it would never see."""
    group = None if group_of is None else dist.new_group(group_of)
    ranks = group_of or [0, 1]
    if dist.get_rank() not in ranks:
        return None
    me, store = ranks.index(dist.get_rank()), dist.distributed_c10d._get_default_store()
    partner, mine, theirs = ranks[1 - me], torch.full((4,), me), torch.full((2, 4), -1)
    if me == 1:
        store.wait(["rank 0 has started both"])
    waiting = [messages.start_exchange(mine + 10 * tag, partner, theirs[tag], partner, tag, group) for tag in (0, 1)]
    if me == 0:
        store.set("rank 0 has started both", "")
    for message in reversed(waiting):
        message.wait()
    messages.exchange(mine, partner, mine := torch.empty_like(mine), partner, group=group)
    return theirs.tolist(), mine.tolist()


@pytest.mark.parametrize("world_size, group_of", [(2, None), (4, [1, 3])])
def test_an_exchange_that_was_started_does_not_hold_up_what_follows(world_size, group_of):
    results = run(start_and_go_on, group_of, world_size=world_size)
    first, second = (results[rank] for rank in group_of or [0, 1])
    assert first == ([[1] * 4, [11] * 4], [1] * 4) and second == ([[0] * 4, [10] * 4], [0] * 4)


def refusals():
    """What rank 0 is told that names a rank which is not there, or itself."""
    x, y, said = torch.ones(1), torch.ones(1), []
    for rank in (0, 2, -1, "1", None) if dist.get_rank() == 0 else ():
        for call in (
            lambda rank: messages.send(x, rank),
            lambda rank: messages.recv(x, rank),
            lambda rank: messages.exchange(x, 1, y, rank),
        ):
            with pytest.raises(ValueError) as caught:
                call(rank)
            said.append((rank, str(caught.value)))
    return said


def test_a_rank_that_is_not_there_is_named():
    said = run(refusals)[0]
    assert len(said) == 15
    for rank, message in said:
        assert re.match(rf"rank 0 cannot (send to|receive from) rank {rank!r}: the other ranks of 2", message)


def sum_both_ways(dtype, lengths):
    for length in lengths:
        generator = torch.Generator().manual_seed(100 * length + dist.get_rank())
        ours = (1 + 100 * torch.rand(length, generator=generator, dtype=torch.float64)).to(dtype)
        truth = ours.clone()
        dist.all_reduce(truth)
        begin = ours.data_ptr()
        ring.all_reduce(ours)
        assert ours.data_ptr() == begin
        rtol = {torch.float64: 1e-9, torch.float32: 1.3e-6, torch.bfloat16: 1.6e-2, torch.int64: 0}[dtype]
        torch.testing.assert_close(ours, truth, rtol=rtol, atol=0, msg=lambda why, n=length: f"length {n}: {why}")
    shaped = torch.ones(3, 5, dtype=dtype)
    ring.all_reduce(shaped)
    assert (shaped == dist.get_world_size()).all()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_ring_equals_all_reduce(world_size):
    def sum_each():
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
            sum_both_ways(dtype, (1, 2, 3, 4, 5, 7, 12, 4099))

    run(sum_each, world_size=world_size)


def sum_in_a_group():
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])]
    x = torch.tensor([10 ** dist.get_rank()] * 5)
    with messages.Traffic() as traffic:
        ring.all_reduce(x, group=groups[dist.get_rank() % 2])
    return x.tolist(), {rank for rank, _ in (*traffic.sent, *traffic.received)}


def test_a_ring_of_some_ranks_and_whom_they_send_to():
    sums = [[101] * 5, [1010] * 5] * 2
    assert run(sum_in_a_group, world_size=4) == [(total, {(rank + 2) % 4}) for rank, total in enumerate(sums)]


def equal_on_all_ranks():
    x = torch.randn(1001, generator=torch.Generator().manual_seed(dist.get_rank()))
    ring.all_reduce(x)
    return x


def test_all_ranks_of_the_ring_end_with_the_same_bits():
    first, *others = run(equal_on_all_ranks, world_size=3)
    assert all(torch.equal(first, other) for other in others)


def ring_of_a_column():
    ring.all_reduce(torch.ones(4, 4)[:, 0])


def test_the_ring_refuses_a_tensor_that_does_not_lie_in_one_piece():
    with pytest.raises(WorkerError, match=r"ValueError: the ring adds in place.*give it x.contiguous\(\)"):
        run(ring_of_a_column)


def count_the_ring(length):
    x, after = torch.ones(length, dtype=torch.float64), []
    with messages.Traffic() as traffic:
        ring.all_reduce(x, after_step=lambda: after.append(len(traffic.sent)))
    return traffic.sent, traffic.received, traffic.sent_bytes, traffic.received_bytes, traffic.collectives, after


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_each_rank_of_the_ring_sends_2_p_minus_1_over_p_of_the_bytes_to_the_next(world_size):
    num_bytes = 8 * 12
    share = 2 * (world_size - 1) * num_bytes // world_size
    for rank, (sent, received, *totals, collectives, after) in enumerate(
        run(count_the_ring, 12, world_size=world_size)
    ):
        assert {dst for dst, _ in sent} == {(rank + 1) % world_size} and {src for src, _ in received} == {
            (rank - 1) % world_size
        }
        assert totals == [share, share] and not collectives
        assert after == list(range(1, 2 * (world_size - 1) + 1)), "a message in each step"


def test_nothing_is_sent_for_chunks_without_elements():
    counted = run(count_the_ring, 1, world_size=3)
    assert sum(len(sent) for sent, *_ in counted) == 2 * (3 - 1)
    assert all(num_bytes == 8 for sent, *_ in counted for _, num_bytes in sent)


def call_everything():
    rank, partner = dist.get_rank(), 1 - dist.get_rank()
    x, two = torch.ones(3), torch.ones(2, 3)
    with messages.Traffic() as traffic:
        dist.all_reduce(x)
        dist.broadcast(x, src=0)
        dist.all_gather_into_tensor(two.view(-1), x)
        dist.all_gather([two[0], two[1]], x)
        for work in (dist.irecv(two[0], partner), dist.isend(x.clone(), partner)):
            work.wait()
        dist.send(x, 1) if rank == 0 else dist.recv(x)  # from whoever sends
        dist.barrier()
    dist.all_reduce(x)  # no longer counted
    return (
        traffic.sent,
        traffic.received,
        [num_bytes for _, num_bytes in traffic.collectives[:4]],
        [name for name, _ in traffic.collectives],
    )


def test_traffic_counts_every_call_that_reaches_the_backend():
    (sent, received, num_bytes, names), (sent_1, received_1, *_) = run(call_everything)
    assert (sent, received) == ([(1, 12), (1, 12)], [(1, 12)])
    assert (sent_1, received_1) == ([(0, 12)], [(0, 12), (None, 12)])
    assert num_bytes == [12, 12, 24, 24], "what each fills on this rank"
    assert names == ["allreduce", "broadcast", "allgather_base", "allgather", "barrier"]


def broadcast_down_the_tree():
    x = torch.full((3,), 10 + dist.get_rank())
    with messages.Traffic() as traffic:
        tree.broadcast(x)
    return x.tolist(), traffic.sent, traffic.received


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_a_broadcast_down_the_tree_reaches_everyone_once(world_size):
    first, *others = run(broadcast_down_the_tree, world_size=world_size)
    assert all(x == [10, 10, 10] for x, *_ in (first, *others))
    assert not first[2] and all(len(received) == 1 for *_, received in others)
    assert max(len(sent) for _, sent, _ in (first, *others)) <= (world_size - 1).bit_length()
