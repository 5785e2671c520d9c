"""Checks of chapter 16: attention in blocks, a step of the ring, packed documents, bytes, what fits, checkpointing."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...checks.expect import (
    EQUAL,
    case,
    expect,
    expect_error,
    expect_finite,
    expect_number,
    expect_row,
    expect_tensor,
    expect_whole,
    explain,
    same,
    short,
    unchanged,
)
from ...checks.judge import run, wait_for_the_others
from ...measure import alive, memory
from ...parallel import context, messages
from ...parallel.ulysses import ulysses_attention

_SINGLE = "in float32"


def _close(odd):
    return 1e-4 if odd == _SINGLE else EQUAL


def _plural(number, what):
    return f"{number} {what}{'s' * (number != 1)}"


# ---- 16.1 ---------------------------------------------------------------------------------------------------------

_ABOVE, _BELOW = "scores up to 2000", "all scores below −800"
_ROWS = (  # (b, heads, s_q), s_k, width of a head, block_size, peculiarity
    ((2, 3, 5), 12, 4, 4, ""),
    ((1, 2, 7), 10, 3, 4, ""),
    ((1, 1, 1), 6, 5, 9, ""),
    ((3, 1, 4), 5, 2, 1, _SINGLE),
    ((1, 1, 6), 9, 4, 4, _ABOVE),
    ((1, 1, 6), 9, 4, 4, _BELOW),
)
_LONG = (1, 1, 24), 256, 2, 8


def check_16_1(attend_in_blocks):
    """`attend_in_blocks(q, k, v, block_size)` returns (o, lse) of whole rows."""
    run(_judge_blocks, attend_in_blocks)
    return "output and lse are those of whole rows, for blocks of any size and scores of any size, a block at a time."


def _judge_blocks(attend_in_blocks):
    torch.manual_seed(161)
    for rows, s_k, width, block_size, odd in _ROWS:
        q, k, v = torch.randn(*rows, width), *torch.randn(2, *rows[:2], s_k, width)
        if odd == _ABOVE:
            k = 500 * k
        elif odd == _BELOW:
            q, k = q.abs() + 1, -400 - k.abs()
        q, k, v = (x.to(torch.float32 if odd == _SINGLE else torch.float64) for x in (q, k, v))
        said = f"{_plural(rows[-1], 'query').replace('querys', 'queries')}, {s_k} keys, blocks of {block_size}"
        with case(said + (odd and f", {odd}")):
            with unchanged(q=q, k=k, v=v):
                results = attend_in_blocks(q, k, v, block_size)
            _judge_rows(results, q, k, v, block_size, _close(odd))
    (*_, s_q), s_k, width, block_size = _LONG[0], *_LONG[1:]
    q, k, v = torch.randn(1, 1, s_q, width), *torch.randn(2, 1, 1, s_k, width)
    with case(f"{s_q} queries, {s_k} keys, blocks of {block_size}"):
        with _Blocks([q, k, v]) as watched:
            results = attend_in_blocks(q, k, v, block_size)
        _judge_rows(results, q, k, v, block_size, 1e-4)
        expect(
            watched.num_keys <= block_size,
            f"the result is right, but PyTorch's attention was given {watched.num_keys} keys at once, and a block has "
            f"{block_size}",
        )
        most = max(watched.num_bytes, default=0) - memory.num_bytes([q, k, v])
        expect(
            most <= s_q * s_k * q.itemsize * 3 // 4,
            f"the result is right, but at one moment {most:,} bytes were held beside q, k and v, and all "
            f"{s_q} × {s_k} scores have {s_q * s_k * q.itemsize:,}: which scores are needed once their block is done?",
        )


class _Blocks(alive.Alive):
    """Also notes the most keys that PyTorch's own attention was given, in `num_keys`."""

    num_keys = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "scaled_dot_product" in function.__name__:
            self.num_keys = max(self.num_keys, args[1].shape[-2])
        return super().__torch_dispatch__(function, types, args, kwargs)


def _judge_rows(results, q, k, v, block_size, close):
    o, lse = expect_row(results, 2, "what came back", of="o, lse")
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    truth = scores.softmax(-1) @ v, scores.logsumexp(-1)
    for name, got, right, suspects in zip(
        ("o", "lse"), (o, lse), truth, zip(*_suspects_of_blocks(q, k, v, block_size))
    ):
        expect_finite(got, name, _OVERFLOW)
        got = expect_tensor(got, like=right, what=name)
        suspects = {reason: suspect for (reason, suspect) in suspects if suspect is not None}
        with case(name):
            explain(got, right, suspects, otherwise=_OF_ROWS[name], close=close)


_OF_ROWS = {
    "o": "is what the earlier blocks gave scaled down, when a later one brings more?",
    "lse": "it is the logarithm of the sum of all exponentials of a row's scores",
}


_OVERFLOW = (
    "exp of a large score overflows, and where all scores are far below 0 their exp "
    "vanishes; what is subtracted first, and with what does the running maximum begin?"
)


def _suspects_of_blocks(q, k, v, block_size):
    """Yield ((reason, o), (reason, lse)) of mistakes; None where one of them would be right."""
    plain = q @ k.mT
    scores = plain / math.sqrt(q.shape[-1])
    largest, lse = scores.amax(-1), scores.logsumexp(-1)
    pieces = list(zip(scores.split(block_size, -1), v.split(block_size, -2)))
    sums = [(x - x.amax(-1, keepdim=True)).exp() for x, _ in pieces]
    above, below = sum(e @ values for e, (_, values) in zip(sums, pieces)), sum(e.sum(-1) for e in sums)
    of_pieces = [(x.softmax(-1) @ values, x.logsumexp(-1)) for x, values in pieces]

    def both(reason, o, lse):
        return (reason, o), (reason, lse)

    yield both(
        "was every score divided by √e, e being the width of a head?", plain.softmax(-1) @ v, plain.logsumexp(-1)
    )
    yield both(
        "the blocks' sums belong to different maxima, and were added as they are", above / below.unsqueeze(-1),
        below.log() + largest,
    )  # fmt: skip
    yield both("sums that belong to different maxima were added", *_unshrunk(pieces))
    yield both("it is the last block's own; what did the others give?", *of_pieces[-1])
    yield both("it is the mean of the blocks' own results", *(sum(x) / len(pieces) for x in zip(*of_pieces)))
    whole = k.shape[-2] // block_size * block_size
    if 0 < whole < k.shape[-2]:
        fewer = scores[..., :whole]
        last = "the last, shorter block is missing"
        yield both(last, fewer.softmax(-1) @ v[..., :whole, :], fewer.logsumexp(-1))
    undivided = (scores - largest.unsqueeze(-1)).exp() @ v
    yield both("the sum of weighted values is not divided by the sum of weights", undivided, None)
    yield both("the maximum was subtracted and not added again", None, lse - largest)
    yield both("it is the row's maximum alone", None, largest)
    yield both("it is a sum of exponentials, and its logarithm is asked", None, lse.exp())


def _unshrunk(pieces):
    """(o, lse) where each block's weights are of the maximum so far, and what was summed before never shrinks."""
    m, above, below = -torch.inf, 0, 0
    for scores, values in pieces:
        m = scores.amax(-1, keepdim=True).clamp(min=m)
        weights = (scores - m).exp()
        above, below = above + weights @ values, below + weights.sum(-1)
    return above / below.unsqueeze(-1), m.squeeze(-1) + below.log()


# ---- 16.2 ---------------------------------------------------------------------------------------------------------

_STEPS = (  # what is said of it, positions of queries and of keys, of keys that were seen before, peculiarity
    ("its own keys, first of all", [4, 5, 6, 7], [4, 5, 6, 7], [], ""),
    ("keys that all come before its queries", [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], ""),
    ("keys that all come after its queries", [0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], ""),
    ("zigzag, keys from the middle of the sequence", [0, 1, 6, 7], [2, 3, 4, 5], [0, 1, 6, 7], ""),
    ("zigzag, where some queries have seen no key yet", [0, 1, 6, 7], [2, 3, 4, 5], [], ""),
    ("keys that all come after, and no key seen yet", [0, 1], [4, 5, 6], [], ""),
    ("positions in any order, more keys than queries", [9, 2, 5], [8, 1, 6, 3, 0], [9, 2, 5], ""),
    ("zigzag", [0, 1, 6, 7], [2, 3, 4, 5], [0, 1, 6, 7], _ABOVE),
    ("zigzag", [0, 1, 6, 7], [2, 3, 4, 5], [0, 1, 6, 7], _SINGLE),
)
_RING_LENGTH = 11


def check_16_2(ring_step):
    """`ring_step(q, k, v, q_positions, k_positions, o, lse)` returns (o, lse) with the visiting keys merged in."""
    run(_judge_steps, ring_step)
    for order in (context.contiguous, context.zigzag):
        run(_judge_ring, ring_step, order, world_size=3)
    return "each kind of visitor is merged in, and rings of 3 ranks made of your step are attention, in both orders."


def _judge_steps(ring_step):
    torch.manual_seed(162)
    for said, own, visiting, before, odd in _STEPS:
        dtype = torch.float32 if odd == _SINGLE else torch.float64
        q_positions, k_positions = torch.tensor(own), torch.tensor(visiting)
        q = torch.randn(2, 3, len(own), 4, dtype=dtype)
        k, v = torch.randn(2, 2, 3, len(visiting), 4, dtype=dtype) * (500 if odd == _ABOVE else 1)
        o, lse = torch.zeros_like(q), torch.full(q.shape[:-1], -torch.inf, dtype=dtype)
        if before:
            seen = torch.randn(2, 2, 3, len(before), 4, dtype=dtype) * (500 if odd == _ABOVE else 1)
            o, lse = context.attend_piece(q, *seen, torch.tensor(before) <= q_positions[:, None])
        with case(said + (odd and f", {odd}")):
            given = dict(q=q, k=k, v=v, q_positions=q_positions, k_positions=k_positions)
            with unchanged(**given):
                results = ring_step(*given.values(), o.clone(), lse.clone())
            _judge_step(results, *given.values(), o, lse, _close(odd))


def _judge_step(results, q, k, v, q_positions, k_positions, o, lse, close):
    got_o, got_lse = expect_row(results, 2, "what came back", of="o, lse")
    sees = k_positions <= q_positions[:, None]
    right_o, right_lse = context.merge(o, lse, *context.attend_piece(q, k, v, sees))
    _expect_no_nan(got_o, "o")
    _expect_no_nan(got_lse, "lse")
    got_o = expect_tensor(got_o, right_o, "o")
    expect_tensor(got_lse.nan_to_num() if isinstance(got_lse, torch.Tensor) else got_lse, right_lse, "lse")
    blind, empty = right_lse == -torch.inf, got_lse == -torch.inf
    expect(
        not (blind & ~empty).any(),
        "some queries have seen no key so far, and their lse is not −inf: what is the sum over no keys, and its log?",
    )
    expect(
        not (empty & ~blind).any(),
        "some queries have seen keys, and their lse is −inf: does a query see itself, and what it has seen before?",
    )
    expect(got_lse[~blind].isfinite().all(), "lse holds inf: are exponentials taken of large scores?")
    expect(
        not got_o[blind].any(),
        "some queries have seen no key so far, and their o is not 0: what do keys weigh that they must not see?",
    )
    suspects = list(_suspects_of_step(q, k, v, sees, o, lse))
    for name, got, right, number in (("lse", got_lse, right_lse, 1), ("o", got_o, right_o, 0)):
        known = {reason: each[number].masked_fill(_like(blind, right), 0) for reason, *each in suspects}
        known = {reason: suspect for reason, suspect in known.items() if suspect.isfinite().all()}
        with case(name):
            explain(
                got.masked_fill(_like(blind, right), 0), right.masked_fill(_like(blind, right), 0), known, close=close,
                otherwise="is each query's mean, old and new, weighted by its part of the sum of both?",
            )  # fmt: skip


def _like(blind, tensor):
    return blind if tensor.dim() == blind.dim() else blind.unsqueeze(-1)


def _expect_no_nan(got, name):
    is_number = isinstance(got, torch.Tensor) and got.is_floating_point()
    expect(
        not is_number or not got.isnan().any(),
        f"{name} holds nan: of a query that has seen no key, lse is −inf, and −inf − (−inf) is no number",
    )


def _suspects_of_step(q, k, v, sees, o, lse):
    """Yield (reason, o, lse) of mistakes."""
    s_q, s_k = sees.shape
    places_q, places_k = torch.arange(s_q)[:, None], torch.arange(s_k)

    def merged(reason, mask, keys=k):
        return reason, *context.merge(o, lse, *context.attend_piece(q, keys, v, mask))

    yield merged("was the mask made from positions in the piece, not in the whole sequence?", places_k <= places_q)
    yield merged("is there a mask? Queries saw keys that come after them", torch.ones_like(sees))
    yield merged("was every score divided by √e, e being the width of a head?", sees, keys=k * math.sqrt(k.shape[-1]))
    new_o, new_lse = context.attend_piece(q, k, v, sees)
    both = torch.logaddexp(lse, new_lse)
    yield "what was known before is not in it", new_o, new_lse
    yield "it is as it was: what do the visiting keys add?", o, lse
    yield "the two outputs were added, and not weighted", o + new_o, lse + new_lse
    yield "the larger of two is not the logarithm of their sum", o, torch.maximum(lse, new_lse)
    swapped = [(each - both.masked_fill(both == -torch.inf, 0)).exp().unsqueeze(-1) for each in (new_lse, lse)]
    yield (
        "the old output has the new one's weight, and the new one the old one's",
        swapped[0] * o + swapped[1] * new_o,
        both,
    )


def _judge_ring(ring_step, order):
    """Every rank's o after a whole ring; the visitors are passed on here."""
    N, rank = dist.get_world_size(), dist.get_rank()
    positions = order(_RING_LENGTH, N)
    generator = torch.Generator().manual_seed(1162)
    q, k, v = torch.randn(3, 1, 2, _RING_LENGTH, 4, generator=generator, dtype=torch.float64)
    own = positions[rank]
    o, lse, seen = torch.zeros_like(q[:, :, own]), q.new_full((1, 2, len(own)), -torch.inf), torch.tensor([]).long()
    kv = torch.stack([k[:, :, own], v[:, :, own]])
    for step in range(N):
        visitor, following = (positions[(rank - step - i) % N] for i in (0, 1))
        with case(f"in a ring of {N} ranks, {order.__name__}"), case(f"rank {rank}, step {step}"):
            before = o.clone(), lse.clone()
            results = ring_step(q[:, :, own], *kv, own, visitor, o, lse)
            _judge_step(results, q[:, :, own], *kv, own, visitor, *before, EQUAL)
        (o, lse), seen = results, torch.cat([seen, visitor])
        if step + 1 < N:
            arriving = kv.new_empty(2, 1, 2, len(following), 4)
            messages.exchange(kv, (rank + 1) % N, arriving, (rank - 1) % N)
            kv = arriving


# ---- 16.3 ---------------------------------------------------------------------------------------------------------

_PACKED = (  # lengths of documents, chunks, ranks
    ([40, 8, 8, 8], 32, 4),
    ([8, 8, 8, 40], 32, 4),
    ([3, 50, 1, 1, 9, 64], 32, 4),
    ([96, 32], 32, 4),
    ([200, 20, 20, 16], 64, 8),
    ([16] * 8, 32, 4),
    ([64], 16, 2),
    ([90, 6], 24, 3),
    ([1] * 32, 16, 4),
    ([7, 121], 32, 1),
)
_MOST = 1.05


def check_16_3(share_out):
    """`share_out(lengths, num_chunks, num_ranks)` returns the numbers of each rank's chunks."""
    run(_judge_packed, share_out)
    return f"in {len(_PACKED)} sequences, the slowest rank's work is at most {_MOST} times the mean."


def _judge_packed(share_out):
    for lengths, num_chunks, num_ranks in _PACKED:
        packed = (
            f"documents of {', '.join(map(str, lengths))}"
            if len(lengths) < 8
            else f"{len(lengths)} documents of {lengths[0]}"
        )
        with case(f"{packed} tokens, {num_chunks} chunks, {_plural(num_ranks, 'rank')}"):
            with unchanged(lengths=lengths):
                answer = share_out(lengths, num_chunks, num_ranks)
            shares = [_as_list(share) for share in expect_row(_as_list(answer), num_ranks, of="one row for each rank")]
            _judge_shares(shares, lengths, num_chunks, num_ranks)


def _as_list(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, (range, set, frozenset, tuple)) else value


def _judge_shares(shares, lengths, num_chunks, num_ranks):
    for rank, share in enumerate(shares):
        what = f"rank {rank}'s row"
        shares[rank] = numbers = [expect_whole(n, f"a number in {what}") for n in expect_row(share, None, what)]
        outside = [number for number in numbers if number not in range(num_chunks)]
        expect(not outside, f"{what} has {outside[:1]}, and chunks are numbered from 0 to {num_chunks - 1}")
    times = [sum(share.count(number) for share in shares) for number in range(num_chunks)]
    several = [number for number, count in enumerate(times) if count > 1]
    expect(not several, f"chunk {several[:1]} is given out {max(times)} times: who computes its rows?")
    missing = [number for number, count in enumerate(times) if not count]
    expect(not missing, f"nobody has chunk {missing[:1]}")
    held = [len(share) for share in shares]
    expect(
        min(held) == max(held),
        f"the ranks have {held} chunks, and must have equally many: memory and the other layers go by tokens",
    )
    ratio = _slowest(shares, [own for n in lengths for own in range(1, n + 1)], num_chunks)
    if ratio <= _MOST:
        return
    said = f"the slowest rank's work is {ratio:.3f} times the mean, and at most {_MOST} is asked"
    tokens = sum(lengths)
    expect(_slowest(shares, range(1, tokens + 1), num_chunks) > _MOST,
           f"{said}; it would be equal if all tokens were one document: how many keys does a token see?")  # fmt: skip
    pieces = torch.tensor([own for n in lengths for own in range(1, n + 1)]).view(num_chunks, -1).sum(1)
    dealt = pieces.sort(descending=True).values.view(-1, num_ranks)
    is_dealt = all(
        torch.equal(pieces[torch.tensor(share)].sort(descending=True).values, dealt[:, rank])
        for rank, share in enumerate(shares)
    )
    expect(not is_dealt, f"{said}; in each round of dealing the first rank gets the largest chunk, again and again")
    expect(False, f"{said}: which rank should get the next chunk, if the largest are given out first?")


def _slowest(shares, keys_seen, num_chunks):
    """The largest work of a rank over the mean; `keys_seen` are those of each token of the sequence."""
    pieces = torch.tensor(list(keys_seen), dtype=torch.float64).view(num_chunks, -1).sum(1)
    work = [pieces[torch.tensor(share)].sum().item() for share in shares]
    return max(work) * len(work) / sum(work)


# ---- 16.4 ---------------------------------------------------------------------------------------------------------

_ATTENTIONS = (  # b, heads, heads of keys and values, tokens, width of a head, dtype
    (2, 12, 12, 24, 4, torch.float32),
    (1, 24, 12, 36, 2, torch.float64),
    (3, 36, 12, 12, 5, torch.bfloat16),
)


def check_16_4(attention_bytes):
    """`attention_bytes(b, heads, kv_heads, s, width, itemsize, num_ranks)` returns (ring, ulysses)."""
    num_cases = 0
    for world_size in (3, 4, 1):
        for seen in zip(*run(_count_attention, attention_bytes, world_size=world_size)):
            for arguments, counted, answer in seen:
                with case(f"attention_bytes({', '.join(map(str, arguments))})"):
                    _judge_attention(arguments, counted, answer)
                num_cases += 1
    return f"right in {num_cases} cases, to the byte, as counted where 1, 3 and 4 ranks really sent them."


def _count_attention(attention_bytes):
    N, rank, seen = dist.get_world_size(), dist.get_rank(), []
    for b, heads, kv_heads, s, width, dtype in _ATTENTIONS:
        positions, counted = context.zigzag(s, N), []
        own = len(positions[rank])
        for attend in (context.ring_attention, ulysses_attention):
            leaves = [
                torch.ones(b, n, own, width, dtype=dtype, requires_grad=True) for n in (heads, kv_heads, kv_heads)
            ]
            with messages.Traffic() as traffic:
                attend(*leaves, positions).sum().backward()
            # A rank keeps one part in N of an all-to-all.
            counted.append(traffic.sent_bytes + sum(n for _, n in traffic.collectives) * (N - 1) // N)
        seen.append(((b, heads, kv_heads, s, width, dtype.itemsize, N), counted))
    wait_for_the_others()
    dist.destroy_process_group()  # `attention_bytes` must work without a process group
    return [(arguments, counted, attention_bytes(*arguments)) for arguments, counted in seen]


def _judge_attention(arguments, counted, answer):
    _, heads, kv_heads, _, _, itemsize, N = arguments
    answer = expect_row(_as_list(answer), 2, "what came back", of="ring, ulysses")
    answer = [expect_number(number, name) for number, name in zip(answer, ("ring", "ulysses"))]
    ring, ulysses = counted
    exchanged = "both numbers are right, and they are exchanged"
    expect(same(answer, counted) or not same(answer, counted[::-1]), exchanged)
    for_ring = {
        "that is the forward pass alone": ring / 3,
        "the backward pass sends more than the forward pass: what travels with the keys and values?": ring * 2 / 3,
        "whose heads travel in the ring?": ring * heads / kv_heads,
        "keys, or values?": ring / 2,
        "do the gradients of a rank's own keys make a hop more?": ring + ring / (3 * (N - 1) or 1),
        "how many hops does a block of keys make to meet every other rank?": ring * N / (N - 1 or 1),
        "what does an element take, in bytes?": ring / itemsize,
        "a rank has only its own tokens": ring * N,
    }
    fourth = ulysses / (2 * (heads + kv_heads))  # one head there and back
    for_ulysses = {
        "that is the forward pass alone": ulysses / 2,
        "whose heads are fewer?": fourth * 4 * heads,
        "the outputs travel back, too": fourth * (heads + 2 * kv_heads),
        "of each tensor a rank keeps a part": ulysses * N / (N - 1 or 1),
        "what does an element take, in bytes?": ulysses / itemsize,
        "a rank has only its own tokens": ulysses * N,
    }
    for name, given, truth, suspects in zip(("ring", "ulysses"), answer, counted, (for_ring, for_ulysses)):
        told = f"{name} is {float(given):,.0f}, and the rank sent {'more' if given < truth else 'fewer'}"
        expect(truth or not given, f"{told}: what does a rank alone send?")
        explain(given, truth, suspects, said=told, otherwise="count the tensors, their heads, and the hops")


# ---- 16.5 ---------------------------------------------------------------------------------------------------------

_MACHINES = (  # memory and states of a rank in bytes, width, layers, ranks, whether layers are recomputed
    (80 * 10**9, 20 * 10**9, 4096, 32, 8, False),
    (80 * 10**9, 20 * 10**9, 4096, 32, 8, True),
    (80 * 10**9, 20 * 10**9, 4096, 32, 1, False),
    (80 * 10**9, 20 * 10**9, 4096, 32, 1, True),
    (10**6, 0, 64, 3, 5, True),
    (10**6, 123_456, 64, 3, 5, False),
    (500_000, 0, 96, 1, 2, False),
    (500_000, 0, 96, 1, 2, True),
    (24 * 10**9, 24 * 10**9, 1024, 24, 4, True),
    (24 * 10**9, 30 * 10**9, 1024, 24, 4, False),
    (200_000, 0, 1024, 2, 4, False),
)


def check_16_5(longest_sequence):
    """`longest_sequence(memory, states, d, num_layers, num_ranks, is_recomputed)` returns a number of tokens."""
    run(_judge_longest, longest_sequence)
    return f"on {len(_MACHINES)} machines: what you name fits, and the next longer sequence does not."


def _judge_longest(longest_sequence):
    for machine in _MACHINES:
        *_, num_ranks, is_recomputed = machine
        with case(f"longest_sequence({', '.join(map(str, machine))})"):
            tokens = expect_whole(longest_sequence(*machine), "what came back")
            _judge_tokens(tokens, 2 * num_ranks, *machine)


def _judge_tokens(tokens, multiple, memory_bytes, states, d, num_layers, num_ranks, is_recomputed):
    def needed(s):
        return states + _activation_bytes(s, d, num_layers, num_ranks, is_recomputed)

    expect(tokens >= 0, f"{tokens} tokens came back: what if not even the weights fit?")
    if needed(multiple) > memory_bytes:
        expect(tokens == 0, f"{tokens} tokens came back, and not even {multiple} fit: then 0 is asked")
        return
    expect(
        tokens % multiple == 0,
        f"{tokens:,} tokens cannot be cut into {multiple} equal chunks, which the zigzag takes",
    )
    if needed(tokens) <= memory_bytes < needed(tokens + multiple):
        return
    too_many = needed(tokens) > memory_bytes
    said = (
        f"{tokens:,} tokens need {needed(tokens):,.0f} bytes, more than there are"
        if too_many
        else f"{tokens:,} tokens came back, and {tokens + multiple:,} fit too"
    )
    free, own = memory_bytes - states, num_ranks
    plain = 34 * d * num_layers
    again = 2 * d * (num_layers - 1) + 34 * d
    each, ring = (again if is_recomputed else plain), 16 * d if num_ranks > 1 else 0
    suspects = {
        "do the weights, gradients and optimizer states take no memory?": (memory_bytes, each + ring, own),
        "that is one rank's part; the sequence is longer": (free, each + ring, 1),
        "what is on its way in the ring takes memory, too": (free, each, own),
        "one rank alone has no ring": (free, each + 16 * d, own),
        "with every layer recomputed, what does a layer keep?": (free, plain + ring, own),
        "without recomputation, does a layer keep its input alone?": (free, again + ring, own),
        "where is the layer that is being recomputed?": (free, 2 * d * num_layers + ring, own),
        "is the input of the layer at work counted twice?": (free, 2 * d * num_layers + 34 * d + ring, own),
        "does every layer have something in the ring, at the same time?": (free, each + num_layers * ring, own),
    }  # fmt: skip
    known = {reason: _rounded(*numbers, multiple) for reason, numbers in suspects.items()}
    right = _rounded(free, each + ring, own, multiple)
    explain(tokens, right, known, said=said, otherwise="what does a rank hold for each token of its own?", close=0)


def _rounded(free, per_token, num_ranks, multiple):
    return int(num_ranks * free // per_token) // multiple * multiple


def _activation_bytes(s, d, num_layers, num_ranks, is_recomputed):
    """Bytes of a rank's activations at the highest moment; `s` tokens over all ranks."""
    layers = 2 * d * (num_layers - 1) + 34 * d if is_recomputed else 34 * d * num_layers
    ring = 16 * d if num_ranks > 1 else 0
    return s // num_ranks * (layers + ring)


# ---- 16.6 ---------------------------------------------------------------------------------------------------------

# blocks, their width, rows of x, whether x requires a gradient, budgets (k, more): what is held with k blocks
# recomputed, plus `more` bytes
_STACKS = (
    (5, 64, 128, False, ((0, 10**6), (0, 0), (0, -1), (2, 0), (3, 9_999), (5, 0), (5, -1))),
    (3, 16, 40, True, ((1, 0), (3, 0), (3, -1))),
    (1, 32, 64, False, ((0, 0), (1, 0), (1, -1))),
)


class _Block(nn.Module):
    """A residual block that draws a random number in each forward pass, as dropout would, and records it."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drawn = []

    def forward(self, x):
        self.drawn.append(torch.rand(()).item())
        return x + self.down(F.gelu(self.up(x)))


def check_16_6(forward_within):
    """`forward_within(blocks, x, budget_bytes)` holds at most the budget and recomputes as few blocks as possible."""
    run(_judge_forward, forward_within)
    return "every budget kept with as few blocks recomputed as possible, equal gradients, and impossible ones refused."


def _judge_forward(forward_within):
    for num_blocks, width, num_rows, wants_gradient, budgets in _STACKS:
        torch.manual_seed(166)
        blocks = [_Block(width) for _ in range(num_blocks)]
        x = torch.randn(num_rows, width, requires_grad=wants_gradient)
        held = [_held(blocks, x, k) for k in range(num_blocks + 1)]  # bytes, with k blocks recomputed
        for k, more in budgets:
            budget = held[k] + more
            least = next((k for k in range(num_blocks + 1) if held[k] <= budget), None)
            with case(f"{num_blocks} block{'s' * (num_blocks > 1)} that hold {held[0]:,} bytes, within {budget:,}"):
                if least is None:
                    expect_error(ValueError, lambda: forward_within(blocks, x, budget))
                    continue
                best = _measure(lambda: _apply(blocks, x, least), blocks, x)
                with unchanged(blocks=blocks, x=x, allow=("grad",)):
                    seen = _measure(lambda: forward_within(blocks, x, budget), blocks, x)
                best["peak"] += held[0] // num_blocks // 2 if least == num_blocks > 1 else math.inf
                _judge_stack(seen, best, least, spare=x.nbytes // 2)


def _judge_stack(seen, best, least, spare):
    missing = sum(not g.any() for g in seen["gradients"])
    expect(not missing, f"{missing} of {len(seen['gradients'])} tensors that want a gradient got none")
    explain(
        seen["output"],
        best["output"],
        close=1e-5,
        otherwise="is it what the last block makes of what the others made of x?",
    )
    explain(
        seen["gradients"], best["gradients"], close=1e-5, said="the gradients are not those that one forward pass has"
    )
    held, calls, peak = seen["held"], seen["calls"], seen["peak"]
    expect(
        held <= best["held"] + spare,
        f"{held:,} bytes were held when the forward pass was over: is that within the budget?",
    )
    expect(calls <= least, f"{calls} block{'s were' if calls > 1 else ' was'} recomputed: are fewer enough?")
    expect(
        peak <= best["peak"],
        f"little was held, but {peak:,} bytes were needed at the highest moment of the backward pass: "
        "how much is recomputed in one go?",
    )


def _apply(blocks, x, num_recomputed):
    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if i < num_recomputed else block(x)
    return x


def _held(blocks, x, num_recomputed):
    with memory.Activations(nn.Sequential(*blocks)) as activations:
        _apply(blocks, x, num_recomputed)
    return activations.num_bytes


def _measure(forward, blocks, x):
    """Return a dict: `output`, `gradients`, `held`, `peak` and `calls`.

    `held` are the bytes held after `forward()`, `peak` the most bytes during the backward pass, and `calls` counts the
    blocks run again in the backward pass.
    """
    seen, leaves = {}, [p for block in blocks for p in block.parameters()] + [x] * x.requires_grad
    for p in leaves:
        p.grad = torch.zeros_like(p)  # allocated before, so that gradients are not measured

    def step(phase):
        with phase("forward"):
            seen["output"] = output = forward()
        expect(
            isinstance(output, torch.Tensor), f"{short(output)} was returned: the output of the last block is wanted"
        )
        expect(output.requires_grad, "nothing can flow back from what was returned: it is cut off from the graph")
        before = [list(block.drawn) for block in blocks]
        with phase("backward"):
            output.square().mean().backward()
        again = [set(block.drawn[len(drawn) :]) - set(drawn) for block, drawn in zip(blocks, before)]
        expect(
            not any(again),
            "a block that was recomputed drew other random numbers than in its forward pass: dropout would differ",
        )
        seen["calls"] = sum(len(block.drawn) - len(drawn) for block, drawn in zip(blocks, before))

    curves = memory.trace(step)
    seen |= {"output": seen["output"].detach(), "gradients": [p.grad for p in leaves]}
    return seen | {"held": curves["forward"][1][-1], "peak": max(curves["backward"][1])}
