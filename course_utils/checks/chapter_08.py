"""Checks of chapter 08: what messages make of tensors, which messages those were, and that nobody waits for ever."""

import contextlib
import numbers
import reprlib
import time

import torch
import torch.distributed as dist

from ..parallel import ring
from ..parallel.messages import Traffic
from .wrong import DEADLOCK_S, expect, run_answer


def _expect_messages_only(traffics, where):
    for rank, traffic in enumerate(traffics):
        names = sorted({name for name, _ in traffic["collectives"]})
        expect(not names, f"{where}, rank {rank} called a collective ({', '.join(names)}): build it from messages alone")


def _plain(traffic):
    """What a Traffic has counted, in plain values; messages without content do not count."""
    return {
        "sent": [(rank, num_bytes) for rank, num_bytes in traffic.sent if num_bytes],
        "received": [(rank, num_bytes) for rank, num_bytes in traffic.received if num_bytes],
        "collectives": traffic.collectives,
    }


def _come_late(rank):
    """Let rank `rank` begin after the others, so that what is read before it has come is wrong, and not by chance right."""
    if dist.get_rank() == rank:
        time.sleep(0.03)


def _ranks(ranks):
    ranks = sorted(ranks)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


# ---- 8.1 ----------------------------------------------------------------------------------------------------------

_WORLD_SIZES = 2, 3, 4, 5, 7  # ⌈log2⌉ of 5 is not the nearest whole number; a heap's tree is deeper than need be from 7 on


def check_8_1(broadcast_tree):
    """`broadcast_tree(x, root)` gives every rank root's x, in place, in ⌈log2(world_size)⌉ rounds of messages."""
    for world_size in _WORLD_SIZES:
        roots = sorted({0, 1, world_size - 1})
        by_root = zip(*run_answer(_broadcast, broadcast_tree, roots, world_size=world_size, timeout=DEADLOCK_S))
        for root, seen in zip(roots, by_root):
            _judge_broadcast(seen, root, world_size, f"with {world_size} ranks and root {root}")
    return f"{', '.join(map(str, _WORLD_SIZES))} ranks, from several roots: all hold the root's tensor after as few rounds as can be."


def _judge_broadcast(seen, root, world_size, where):
    befores, afters, traffics = zip(*seen)
    _expect_messages_only(traffics, where)
    expect(torch.equal(afters[root], befores[root]), f"{where}, the root's own tensor has changed")
    own = [rank for rank in range(world_size) if rank != root and torch.equal(afters[rank], befores[rank])]
    expect(not own, f"{where}, {_ranks(own or [0])} still had what it began with: x itself must be filled, on every rank")
    for rank in range(world_size):
        theirs = [other for other in range(world_size) if torch.equal(afters[rank], befores[other])]
        whose = f"rank {theirs[0]}'s" if theirs else "a tensor that no rank had at the start"
        expect(theirs == [root], f"{where}, rank {rank} ended with {whose}")
    for rank, traffic in enumerate(traffics):
        times = len(traffic["received"])
        expect(times == (rank != root), f"{where}, rank {rank} received {times} messages: "
               + ("it has the tensor from the start" if rank == root else "one is enough, with the whole tensor"))
    num_sent = sum(len(traffic["sent"]) for traffic in traffics)
    expect(num_sent < world_size, f"{where}, {num_sent} messages were sent, and only {world_size - 1} received: to whom do the others go?")
    rounds = _rounds([[dst for dst, _ in traffic["sent"]] for traffic in traffics], root)
    least = (world_size - 1).bit_length()
    busiest = max(len(traffic["sent"]) for traffic in traffics)
    expect(rounds <= least, f"{where}, the last rank has it after {rounds} rounds of one message for each rank, where {least} are enough: "
           + ("who else could pass it on meanwhile?" if busiest > least else "does everyone who has it send in every round?"))


def _rounds(destinations, root):
    """After how many rounds the last rank is reached; a rank sends one message a round, from the round after its own came."""
    reached, order = {root: 0}, [root]
    for rank in order:  # grows while it is read
        for i, dst in enumerate(destinations[rank], 1):
            reached[dst] = reached[rank] + i
            order.append(dst)
    return max(reached.values())


def _broadcast(broadcast_tree, roots):
    seen = []
    for root in roots:
        generator = torch.Generator().manual_seed(10 * root + dist.get_rank())
        x = torch.randn(3, 5, generator=generator, dtype=torch.float64) if root else torch.randint(1000, (7,), generator=generator)
        before = x.clone()
        _come_late(root)
        with Traffic() as traffic:
            broadcast_tree(x, root)
        seen.append((before, x.clone(), _plain(traffic)))  # as it is now: what comes later comes too late
        dist.barrier()
    return seen


# ---- 8.2 and 8.3 --------------------------------------------------------------------------------------------------

_LENGTHS = 12, 11, 6, 3, 2  # for 2, 3 and 4 ranks: some divide, some do not, some leave ranks without an element


def check_8_2(ring_reduce_scatter):
    """`ring_reduce_scatter(x)` leaves in chunk number `rank` of x its sum over all ranks; the rest may be anything."""
    for world_size in (2, 3, 4):
        by_length = zip(*run_answer(_reduce_scatter, ring_reduce_scatter, world_size=world_size, timeout=DEADLOCK_S))
        for length, seen in zip(_LENGTHS, by_length):
            where = f"with {world_size} ranks and {length} numbers"
            digits, numbers, truths, traffics = zip(*seen)
            _expect_messages_only(traffics, where)
            for rank in range(world_size):
                _judge_sum(digits[rank], rank, world_size, where)
                apart = (numbers[rank].tensor_split(world_size)[rank] - truths[rank].tensor_split(world_size)[rank]).abs()
                expect(not apart.numel() or apart.max() < 1e-9, f"{where}, chunk {rank} on rank {rank} is not the sum of random "
                       "float64 numbers, though it is that of small whole ones: is anything rounded or cast?")
            _expect_ring(traffics, length, world_size, 0, where)
    return "2, 3 and 4 ranks, chunks of equal and unequal length: each rank ends with the sum of its own, after world_size − 1 steps."


def _judge_sum(x, rank, world_size, where):
    """`x` as rank `rank` has it, where every number of rank r was 10^r: the digits of a sum say who is in it."""
    chunks = [chunk.tolist() for chunk in x.tensor_split(world_size)]
    everyone = sum(10**r for r in range(world_size))
    complete = [k for k in range(world_size) if chunks[k] and set(chunks[k]) == {everyone}]
    if not chunks[rank] or rank in complete:
        return
    expect(not complete, f"{where}, rank {rank} holds the sum of chunk {complete and complete[0]}, and not of chunk {rank}: with which "
           "chunk must a rank begin so that its own comes to it last?")
    good = [n == everyone for n in chunks[rank]]
    expect(not any(good), f"{where}, only {sum(good)} of the {len(good)} numbers of chunk {rank} on rank {rank} are the sum: are the chunks "
           "those of x.tensor_split?")
    number = chunks[rank][0]
    expect(any(n != 10**rank for chunk in chunks for n in chunk), f"{where}, x on rank {rank} is as it was: the sum belongs into x itself, "
           "and what is added must have come before")
    times = [number // 10**r % 10 for r in range(world_size)]
    inside, missing, several = ([r for r in range(world_size) if is_so(times[r])] for is_so in (bool, lambda n: not n, lambda n: n > 1))
    expect(inside, f"{where}, chunk {rank} on rank {rank} holds {number}, which nobody had")
    expect(number != everyone // world_size, f"{where}, chunk {rank} on rank {rank} is the mean over ranks, and the sum is asked")
    expect(not missing, f"{where}, chunk {rank} on rank {rank} is made of {_ranks(inside)}, without {_ranks(missing or [0])}: is what "
           "arrives added to what is there, once it has come, and are there enough steps?")
    expect(False, f"{where}, chunk {rank} on rank {rank} has {_ranks(several or [0])} in it more than once: which chunk does a rank send "
           "in its next step?")


def _reduce_scatter(ring_reduce_scatter):
    rank, seen = dist.get_rank(), []
    for length in _LENGTHS:
        digits = torch.full((length,), 10**rank)
        numbers = torch.randn(length, generator=torch.Generator().manual_seed(length + 100 * rank), dtype=torch.float64)
        truth = numbers.clone()
        dist.all_reduce(truth)
        if not seen:
            _come_late(dist.get_world_size() - 1)
        with Traffic() as traffic:
            ring_reduce_scatter(digits)
        digits = digits.clone()  # as it is now: what comes later comes too late
        ring_reduce_scatter(numbers)
        seen.append((digits, numbers, truth, _plain(traffic)))
        dist.barrier()
    return seen


def check_8_3(ring_all_gather):
    """`ring_all_gather(x)`, where chunk number `rank` of x is right on each rank, makes all of x right on every rank."""
    for world_size in (2, 3, 4):
        by_length = zip(*run_answer(_all_gather, ring_all_gather, world_size=world_size, timeout=DEADLOCK_S))
        for length, seen in zip(_LENGTHS, by_length):
            where = f"with {world_size} ranks and {length} numbers"
            xs, traffics = zip(*seen)
            _expect_messages_only(traffics, where)
            for rank, x in enumerate(xs):
                _judge_gathered(x, rank, world_size, where)
            _expect_ring(traffics, length, world_size, 1, where)
    return "2, 3 and 4 ranks, chunks of equal and unequal length, some of them empty: all ranks end with everything."


def _judge_gathered(x, rank, world_size, where):
    pairs = list(zip(x.tensor_split(world_size), _thirds(len(x)).tensor_split(world_size)))
    bad = [k for k, (ours, truth) in enumerate(pairs) if not torch.equal(ours, truth)]
    expect(rank not in bad, f"{where}, rank {rank} no longer has its own chunk: where is what arrives written to?")
    if not bad:
        return
    others = [ours for k, (ours, _) in enumerate(pairs) if k != rank]
    expect(any((ours != -1).any() for ours in others), f"{where}, x on rank {rank} is as it was: what arrives belongs into x itself, and "
           "are there enough steps?")
    ours, truth = pairs[bad[0]]
    told = f"{where}, rank {rank} has the wrong numbers in chunk {bad[0]}"
    expect(not torch.equal(ours, truth - 1), f"{told}: was what arrived added to what was there?")
    expect(not torch.equal(ours, truth.float().double()), f"{told}: they are rounded, so what is cast?")
    expect(False, f"{told}: which chunk does the previous rank send in each step, has it come itself by then, and are there enough steps?")


def _thirds(length):
    return torch.arange(length, dtype=torch.float64) / 3  # float32 would round them


def _all_gather(ring_all_gather):
    rank, world_size, seen = dist.get_rank(), dist.get_world_size(), []
    for length in _LENGTHS:
        x = torch.full((length,), -1.0, dtype=torch.float64)
        x.tensor_split(world_size)[rank].copy_(_thirds(length).tensor_split(world_size)[rank])
        if not seen:
            _come_late(world_size - 1)
        with Traffic() as traffic:
            ring_all_gather(x)
        seen.append((x.clone(), _plain(traffic)))
        dist.barrier()
    return seen


def _expect_ring(traffics, length, world_size, ahead, where):
    """Each rank sent to the next one only, and every chunk but number `rank + ahead` once, of numbers of 8 bytes."""
    lengths = [len(chunk) for chunk in torch.empty(length).tensor_split(world_size)]
    for rank, traffic in enumerate(traffics):
        next_rank = (rank + 1) % world_size
        others = sorted({dst for dst, _ in traffic["sent"]} - {next_rank})
        expect(not others, f"{where}, rank {rank} sent to {_ranks(others or [0])}: in the ring it sends to rank {next_rank} only")
        expected = 8 * (length - lengths[(rank + ahead) % world_size])
        num_bytes = sum(num_bytes for _, num_bytes in traffic["sent"])
        expect(num_bytes == expected, f"{where}, the result is right, but rank {rank} sent {num_bytes} bytes, and {expected} are enough: "
               "one chunk in each of world_size − 1 steps")


# ---- 8.4 ----------------------------------------------------------------------------------------------------------


def check_8_4(ring_bytes):
    """`ring_bytes(length, itemsize, rank, world_size)` returns the bytes that `rank` sends in a ring all-reduce."""
    num_cases = 0
    for world_size in (3, 4):
        for seen in zip(*run_answer(_count_ring, ring_bytes, world_size=world_size, timeout=DEADLOCK_S)):
            for case, sent, answer in seen:
                _judge_bytes(*case, sent, answer)
                num_cases += 1
    return f"right in {num_cases} cases, to the byte, as counted where 3 and 4 ranks really sent them."


def _judge_bytes(length, itemsize, rank, world_size, sent, answer):
    case = f"ring_bytes({length}, {itemsize}, {rank}, {world_size})"
    found = _flat(answer)
    is_number = not isinstance(answer, (tuple, list)) and len(found) == 1 and isinstance(found[0], numbers.Real)
    expect(is_number, f"{case} returned {reprlib.repr(answer)}, not a number of bytes")
    answer = found[0]
    hint = "think of the chunks that this rank sends, one by one"
    if answer * 2 == sent:
        hint = "an all-reduce has two halves"
    elif length % world_size:
        hint = f"{length} elements make chunks of unequal length, so which of them does this rank send?"
    expect(answer == sent, f"{case} returned {answer}, and {sent} bytes were counted: {hint}")


def _count_ring(ring_bytes):
    seen = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for length in (12, 24, 13, 14, 2, 1, 1001):
            x = torch.ones(length, dtype=dtype)
            with Traffic() as traffic:
                ring.all_reduce(x)
            case = length, x.itemsize, dist.get_rank(), dist.get_world_size()
            seen.append((case, traffic.sent_bytes, ring_bytes(*case)))
    return seen


# ---- 8.5 ----------------------------------------------------------------------------------------------------------


def check_8_5(share_results):
    """`share_results(values)` returns the previous rank's values, the mean over all, and each rank's largest."""
    # One call in a launch: if a rank goes on alone, the reason says where the others had returned.
    for world_size, length, least in ((2, 4, 0), (3, 3, -150), (4, 5, -40)):  # at least `least`: the second time all are negative
        values = [_values(rank, length, least) for rank in range(world_size)]
        for rank, answer in enumerate(run_answer(_share, share_results, values, world_size=world_size, timeout=DEADLOCK_S)):
            _judge_shared(answer, values, rank, f"with {world_size} ranks and {length} values each, rank {rank}")
    return "2, 3 and 4 ranks all come to an end, with the same answers."


def _judge_shared(answer, values, rank, where):
    mean, largest = torch.stack(values).mean().item(), [one.max().item() for one in values]
    shape = isinstance(answer, (tuple, list)) and len(answer) == 3
    expect(shape, f"{where} returned {type(answer).__name__}, and should return theirs, mean and largest")
    theirs, own_mean, own_largest = (_flat(value) for value in answer)
    expect(theirs == values[rank - 1].tolist(), f"{where} returned {theirs} as the values of rank {(rank - 1) % len(values)}, which had "
           f"{values[rank - 1].tolist()}")
    expect(own_mean != [None], f"{where} returned None as the mean: a collective fills the tensor that it is given, and returns nothing")
    is_mean = len(own_mean) == 1 and isinstance(own_mean[0], numbers.Real) and abs(own_mean[0] - mean) < 1e-4
    expect(is_mean, f"{where} returned the mean {own_mean}, and over all ranks it is {mean:.4f}: what has the last collective to do, "
           "and on which ranks?")
    expect(own_largest == largest, f"{where} returned {own_largest} as the largest of each rank, and they are {largest}")


def _values(rank, length, least):
    return torch.randint(least, least + 100, (length,), generator=torch.Generator().manual_seed(85 + rank)).float()


def _share(share_results, values):
    _come_late(dist.get_world_size() - 1)
    return share_results(values[dist.get_rank()])


def _flat(value):
    """The numbers in a number, a tensor or a list of these."""
    if isinstance(value, (tuple, list)):
        return [number for part in value for number in _flat(part)]
    with contextlib.suppress(AttributeError):
        value = value.reshape(-1).tolist()
    return value if isinstance(value, list) else [value]
