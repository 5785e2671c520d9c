"""Checks of chapter 08: tensors after messages, the messages sent, and the absence of deadlocks."""

import time

import torch
import torch.distributed as dist

from ...checks.expect import case, expect, expect_number, expect_row, explain, same, short, unchanged
from ...checks.judge import run, wait_for_the_others
from ...checks.watch.messages import Messages
from ...launch import WorkerError
from ...parallel import ring
from ...parallel.messages import Traffic


def _call(answer, x, *args):
    """Call `answer(x, *args)`; return the contents of x's memory afterwards, and the messages.

    It returns once all ranks have called it, so that their later messages are not counted.
    """
    memory = x.detach()
    with unchanged(x=x, allow=("values",)), Messages() as messages:
        answer(x, *args)
    messages.expect_waited()
    wait_for_the_others()
    return memory.clone(), messages.plain()


def _with_gaps(x):
    """Return `x` as a view whose numbers are neither adjacent nor evenly spaced in memory."""
    view = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 1, dtype=x.dtype)[..., 1::2]
    return view.copy_(x)


def _run_with_gaps(judge, answer, *args):
    """Return the results of 3 ranks, or None if the answer, like torch's send and recv, needs contiguous tensors."""
    try:
        return run(judge, answer, *args, world_size=3)
    except WorkerError as error:
        if "contiguous" not in error.message:
            raise


def _expect_messages_only(traffics):
    for rank, traffic in enumerate(traffics):
        names = ", ".join(traffic["collectives"])
        expect(not names, f"rank {rank} called a collective ({names}): build it from messages alone")
    sent_as, received_as = (set.union(*(traffic[key] for traffic in traffics)) for key in ("sent_as", "received_as"))
    what = f"the ranks send {_words(sent_as)} and receive into {_words(received_as)}"
    expect(sent_as == received_as, f"{what}: what becomes of the bytes?")


def _ranks(ranks):
    return f"rank{'s' * (len(ranks) > 1)} {_words(ranks)}"


def _words(values):
    *others, last = [str(value).removeprefix("torch.") for value in sorted(values, key=str)] or ["nothing"]
    return f"{', '.join(others)} and {last}" if others else last


def _with(num_ranks):
    return f"with {num_ranks} rank{'s' * (num_ranks > 1)}"


# ---- 8.1 ----------------------------------------------------------------------------------------------------------

# For 5, rounding log2 to the nearest whole number is wrong; from 7 on, a binary heap is too deep.
_WORLD_SIZES = 2, 3, 4, 5, 7, 1
_TENSORS = ((7,), torch.int64), ((3, 5), torch.float64), ((2, 1, 4), torch.bfloat16)


def check_8_1(broadcast_tree):
    """`broadcast_tree(x, root)` gives every rank root's x, in place, in ⌈log2(world_size)⌉ rounds of messages."""
    for world_size in _WORLD_SIZES:
        roots = sorted({0, 1 % world_size, world_size - 1})
        for root, seen in zip(roots, zip(*run(_broadcast, broadcast_tree, roots, world_size=world_size))):
            with case(_with(world_size)), case(f"root {root}"):
                _judge_broadcast(*zip(*seen), root)
    with case("with 3 ranks"), case("where x is a view with gaps in memory"), case("root 1"):
        for seen in zip(*_run_with_gaps(_broadcast, broadcast_tree, [1] * len(_TENSORS), True) or ()):
            _judge_broadcast(*zip(*seen), 1)
    return "1 to 5 ranks and 7, from several roots: all hold the root's tensor after as few rounds as can be."


def _broadcast(broadcast_tree, roots, has_gaps=False):
    seen = []
    for root, (shape, dtype) in zip(roots, _TENSORS):
        generator = torch.Generator().manual_seed(10 * root + dist.get_rank())
        before = torch.randint(2**62, shape, generator=generator).to(dtype)  # other dtypes would lose digits
        x = _with_gaps(before) if has_gaps else before.clone()
        seen.append((before, *_call(broadcast_tree, x, root)))
    return seen


def _judge_broadcast(befores, afters, traffics, root):
    everyone = range(len(befores))
    _expect_messages_only(traffics)
    expect(torch.equal(afters[root], befores[root]), "the root's own tensor has changed")
    own = [rank for rank in everyone if rank != root and torch.equal(afters[rank], befores[rank])]
    expect(not own, f"{_ranks(own or [0])} still had what it began with: x itself must be filled, on every rank")
    for rank in everyone:
        theirs = [other for other in everyone if torch.equal(afters[rank], befores[other])]
        whose = f"rank {theirs[0]}'s" if theirs else "a tensor that no rank had at the start"
        expect(theirs == [root], f"rank {rank} ended with {whose}")
    for rank, traffic in enumerate(traffics):
        times = len(traffic["received"])
        question = "it has the tensor from the start" if rank == root else "one is enough, with the whole tensor"
        expect(times == (rank != root), f"rank {rank} received {times} messages: {question}")
    destinations, least = [[dst for dst, _ in traffic["sent"]] for traffic in traffics], max(everyone).bit_length()
    rounds, is_one_busy = _rounds(destinations, root), max(map(len, destinations)) > least
    question = (
        "who else could pass it on meanwhile?" if is_one_busy else "does everyone who has it send in every round?"
    )
    expect(rounds <= least, f"the last rank has it after {rounds} rounds, and fewer are enough: {question}")


def _rounds(destinations, root):
    """Return the number of rounds until the last rank is reached.

    A rank sends one message per round, beginning in the round after it received its own.
    """
    reached, order = {root: 0}, [root]
    for rank in order:  # grows during the loop
        for i, dst in enumerate(destinations[rank], 1):
            if dst not in reached:
                reached[dst] = reached[rank] + i
                order.append(dst)
    return max(reached.values())


# ---- 8.2 and 8.3 --------------------------------------------------------------------------------------------------

_RINGS = 2, 3, 5, 1
_LENGTHS = 12, 11, 6, 3, 2, 1, 0  # equal chunks, unequal chunks, and empty chunks


def check_8_2(ring_reduce_scatter):
    """`ring_reduce_scatter(x)` leaves in chunk `rank` of x its sum over all ranks; the rest may be anything."""
    _check_ring(ring_reduce_scatter, (_digits, _random), _judge_sum, ahead=0)
    return (
        "1 to 3 ranks and 5, chunks of equal and unequal length: each rank ends with the sum of its own, after "
        "world_size − 1 steps."
    )


def check_8_3(ring_all_gather):
    """`ring_all_gather(x)` fills x on every rank from the chunks `rank` that are right at the start."""
    _check_ring(ring_all_gather, (_own_chunk,), _judge_gathered, ahead=1)
    return "1 to 3 ranks and 5, chunks of equal and unequal length, some of them empty: all ranks end with everything."


def _check_ring(answer, makes, judge, ahead):
    """Judge x on each rank, and the chunks sent: all but number `rank + ahead`, modulo the world size."""
    for world_size in _RINGS:
        by_case = zip(*run(_go_round, answer, makes, _LENGTHS, world_size=world_size))
        for (length, make), seen in zip([(length, make) for length in _LENGTHS for make in makes], by_case):
            with case(_with(world_size)), case(f"{length} number{'s' * (length != 1)}"):
                xs, traffics = zip(*seen)
                _expect_messages_only(traffics)
                for rank, x in enumerate(xs):
                    with case(f"rank {rank}"):
                        judge(make, x, rank, world_size)
                for rank, traffic in enumerate(traffics):
                    with case(f"rank {rank}"):
                        _judge_ring(traffic["sent"], length, rank, world_size, ahead)
    with case("with 3 ranks"), case("where x is a view with gaps in memory"):
        for seen in zip(*_run_with_gaps(_go_round, answer, makes[:1], [12], True) or ()):
            for rank, (x, _) in enumerate(seen):
                with case(f"rank {rank}"):
                    judge(makes[0], x, rank, 3)


def _go_round(answer, makes, lengths, has_gaps=False):
    seen = []
    for length in lengths:
        for make in makes:
            x = make(length, dist.get_rank(), dist.get_world_size())
            seen.append(_call(answer, _with_gaps(x) if has_gaps else x))
    return seen


def _judge_ring(sent, length, rank, world_size, ahead):
    next_rank = (rank + 1) % world_size
    others = {dst for dst, _ in sent} - {next_rank}
    expect(not others, f"it sent to {_ranks(others or [0])}: in the ring it sends to rank {next_rank} only")
    chunks = [8 * len(chunk) for chunk in torch.empty(length).tensor_split(world_size)]
    del chunks[(rank + ahead) % world_size]
    messages = [num_bytes for _, num_bytes in sent]
    explain(sum(messages), sum(chunks), {}, said=f"the result is right, but {sum(messages)} bytes were sent",
            otherwise="is it one chunk in each of world_size − 1 steps, and each but one exactly once?")  # fmt: skip
    expect(
        sorted(messages) == sorted(filter(None, chunks)),
        f"the result is right, but it went in messages of {messages} bytes: "
        "does each chunk but one leave whole, and once?",
    )


def _digits(length, rank, world_size):
    return torch.full((length,), 10**rank)  # the sum's digits count each rank's contributions


def _random(length, rank, world_size):
    return torch.randn(length, generator=torch.Generator().manual_seed(length + 100 * rank), dtype=torch.float64)


def _judge_sum(make, x, rank, world_size):
    truth = sum(make(len(x), r, world_size) for r in range(world_size)).tensor_split(world_size)
    chunks = x.tensor_split(world_size)
    if same(chunks[rank], truth[rank]):
        return
    cast = (
        "its chunk is not the sum of random float64 numbers, though it is that of small whole ones: is anything "
        "rounded, or cast?"
    )
    expect(make is _digits, cast)
    complete = [f"chunk {k}" for k in range(world_size) if len(chunks[k]) and torch.equal(chunks[k], truth[k])]
    expect(
        not complete,
        f"it holds the sum of {_words(complete)}, and not of its own chunk: with which chunk must a rank begin so "
        "that its own comes to it last?",
    )
    num_right = int((chunks[rank] == truth[rank]).sum())
    expect(
        not num_right,
        f"only {num_right} of its chunk's {len(chunks[rank])} numbers are the sum: does x.tensor_split cut it so?",
    )
    as_it_was = "x is as it was: is the sum put into x itself, after what arrives has come, and are there enough steps?"
    expect((x != 10**rank).any(), as_it_was)
    number, everyone = chunks[rank][0].item(), int(truth[rank][0])
    times = [number // 10**r % 10 for r in range(world_size)]
    inside, missing = [r for r in range(world_size) if times[r]], [r for r in range(world_size) if not times[r]]
    expect(inside and 0 < number < 10**world_size, f"its chunk holds {number}, which is no sum of what ranks had")
    expect(number != everyone // world_size, "its chunk is the mean over ranks, and the sum is asked")
    expect(
        not missing,
        f"its chunk is made of {_ranks(inside)}, without {_ranks(missing)}: is what arrives added to what is "
        "there, once it has come, and are there enough steps?",
    )
    several = [r for r in range(world_size) if times[r] > 1]
    expect(
        False, f"its chunk has {_ranks(several)} in it more than once: which chunk does a rank send in its next step?"
    )


def _thirds(length):
    return torch.arange(length, dtype=torch.float64) / 3  # float32 would round them


def _own_chunk(length, rank, world_size):
    x = torch.full((length,), -1.0, dtype=torch.float64)
    x.tensor_split(world_size)[rank].copy_(_thirds(length).tensor_split(world_size)[rank])
    return x


def _judge_gathered(make, x, rank, world_size):
    chunks, truth = x.tensor_split(world_size), _thirds(len(x)).tensor_split(world_size)
    bad = [k for k in range(world_size) if not torch.equal(chunks[k], truth[k])]
    expect(rank not in bad, "it no longer has its own chunk: where is what arrives written to?")
    is_as_it_was = bad and torch.equal(x, make(len(x), rank, world_size))
    expect(not is_as_it_was, "x is as it was: what arrives belongs into x itself, and are there enough steps?")
    for k in bad:
        suspects = {
            "was what arrived added to what was there?": truth[k] - 1,
            "they are rounded, so what is cast?": truth[k].float().double(),
        }
        question = (
            "which chunk does the previous rank send in each step, has it come itself by then, and are there enough "
            "steps?"
        )
        explain(
            chunks[k], truth[k], suspects, said=f"it has the wrong numbers in chunk {k}", otherwise=question, close=0
        )


# ---- 8.4 ----------------------------------------------------------------------------------------------------------

_ADDED = (  # number of elements, dtype
    (12, torch.float32),
    (12, torch.bfloat16),
    (24, torch.float64),
    (13, torch.float32),
    (14, torch.uint8),
    (14, torch.float64),
    (2, torch.float32),
    (1, torch.float64),
    (0, torch.float32),
    (1001, torch.bfloat16),
)


def check_8_4(ring_bytes):
    """`ring_bytes(length, itemsize, rank, world_size)` returns the bytes that `rank` sends in a ring all-reduce."""
    num_cases = 0
    for world_size in (3, 5, 2, 1):
        for seen in zip(*run(_count_ring, ring_bytes, world_size=world_size)):
            for arguments, sent, answer in seen:
                with case(f"ring_bytes({', '.join(map(str, arguments))})"):
                    _judge_bytes(*arguments, sent, expect_number(answer, "what came back"))
                num_cases += 1
    return f"right in {num_cases} cases, to the byte, as counted where 1 to 3 ranks and 5 really sent them."


def _count_ring(ring_bytes):
    rank, world_size, counted = dist.get_rank(), dist.get_world_size(), []
    for length, dtype in _ADDED:
        x = torch.ones(length, dtype=dtype)
        with Traffic() as traffic:
            ring.all_reduce(x)
        counted.append(((length, x.itemsize, rank, world_size), traffic.sent_bytes))
    wait_for_the_others()
    dist.destroy_process_group()  # `ring_bytes` must work without a process group
    return [(arguments, sent, ring_bytes(*arguments)) for arguments, sent in counted]


def _judge_bytes(length, itemsize, rank, world_size, sent, answer):
    suspects = {
        "how many bytes has an element here?": sent // itemsize * 4,
        "an all-reduce has two halves": sent / 2,
        "is that bytes, or elements?": sent / itemsize,
        "does a rank send all of x in a step?": 2 * (world_size - 1) * length * itemsize,
    }
    unequal = f"{length} elements make chunks of unequal length, so which of them does this rank send?"
    explain(
        answer,
        sent,
        suspects,
        said=f"{answer} came back, and the rank sent {'more' if answer < sent else 'fewer'}",
        close=0,
        otherwise=unequal if length % world_size else "think of the chunks that this rank sends, one by one",
    )


# ---- 8.5 ----------------------------------------------------------------------------------------------------------

# World size, values per rank, lowest value; in the second case all are negative.
_SHARED = (2, 4, 0), (3, 3, -150), (4, 5, -40), (5, 1, -50)


def check_8_5(share_results):
    """`share_results(values)` returns the previous rank's values, the mean over all, and each rank's largest."""
    # One call per launch: a rank that does not wait then meets ranks that have returned.
    for world_size, length, least in _SHARED:
        values = [_values(rank, length, least) for rank in range(world_size)]
        with case(_with(world_size)), case(f"{length} value{'s' * (length > 1)} each"):
            _judge_shared(run(_share, share_results, values, world_size=world_size), values)
    return "2 to 5 ranks all come to an end, with the same answers."


def _values(rank, length, least):
    return torch.randint(least, least + 100, (length,), generator=torch.Generator().manual_seed(85 + rank)).float()


def _share(share_results, values):
    mine = values[dist.get_rank()]
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(0.03)  # so that reading too early gives a wrong answer
    with unchanged(values=mine), Messages() as messages:
        answer = share_results(mine)
    messages.expect_waited()
    return answer


def _judge_shared(answers, values):
    largest, mean = [one.max().item() for one in values], torch.stack(values).mean().item()
    for rank, answer in enumerate(answers):
        with case(f"rank {rank}"):
            theirs, own_mean, found = expect_row(answer, 3, "what came back", of="theirs, mean and largest")
            theirs, found = _flat(theirs), _flat(found)
            following = values[(rank + 1) % len(values)].tolist()
            suspects = {"those are its own": values[rank].tolist(), "those are the next rank's": following}
            explain(
                theirs,
                values[rank - 1].tolist(),
                suspects,
                said=f"{short(theirs)} came back as the previous rank's values",
                otherwise="has the message come when they are read?",
            )
            _judge_mean(own_mean, mean, values, rank)
            suspects = {
                "no number is below zero in it, and values may be": [max(0.0, value) for value in largest],
                "those are the ranks' sums": [one.sum().item() for one in values],
                "in another order than the ranks'": found
                if sorted(found, key=str) == sorted(largest, key=str)
                else None,
            }
            explain(found, largest, suspects, said=f"{short(found)} came back as the largest of each rank")


def _judge_mean(found, mean, values, rank):
    expect(
        found is not None,
        "None came back as the mean: a collective fills the tensor that it is given, and returns nothing",
    )
    found = expect_number(found.reshape(()) if getattr(found, "shape", ()) == (1,) else found, "the mean")
    total, num_ranks, length = torch.stack(values).sum().item(), len(values), len(values[0])
    own = values[rank].sum().item()
    suspects = {
        "that is the sum, so what divides it?": total,
        "that is the mean of the ranks' sums": total / num_ranks,
        "that is the sum of the ranks' means": total / length,
        "that is the mean of its own values": own / length,
    }
    otherwise = "a sum over what is it, and what divides it?"
    if rank:  # rank 0's mean was judged first, so it is right
        otherwise = "rank 0 has the right one; from whom, and by which call, does this rank learn it?"
    explain(found, mean, suspects, said=f"the mean that came back is {found:.4f}", otherwise=otherwise, close=1e-5)


def _flat(value):
    """Return the numbers in a number, a tensor or nested lists of these, as a flat list."""
    if isinstance(value, (tuple, list)):
        return [number for part in value for number in _flat(part)]
    value = value.reshape(-1).tolist() if hasattr(value, "reshape") else value
    return value if isinstance(value, list) else [value]
