"""Checks of chapter 10: shards by hand, and what they cost."""

import itertools
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ...checks.expect import (
    case,
    expect,
    expect_number,
    expect_row,
    expect_tensor,
    explain,
    same,
    short,
    unchanged,
)
from ...checks.judge import run
from ...checks.watch.collectives import Collectives
from ...checks.watch.fake_gpus import try_on_gpus
from .arrived import Arrived
from .weights import Weights


def _numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _padded(flat, world_size):
    """Return the padded parts of a flat tensor, one row per rank."""
    length = -(-flat.numel() // world_size)
    return F.pad(flat, (0, length * world_size - flat.numel())).view(world_size, length)


def _expect_shard(shard, truth, num_numbers, world_size, num_bytes):
    """Return `shard`; raise Wrong unless it is flat, has the shape and dtype of `truth`, and owns its memory.

    `num_bytes` is the size of its storage. Its values are checked elsewhere.
    """
    if isinstance(shard, torch.Tensor):
        expect(shard.dim() == 1, f"the shard is {short(shard)}: one flat row of numbers is asked")
        n = len(shard)
        told = (
            f"the shard has the length {n}, {world_size} of these hold {world_size * n} numbers, and there are "
            f"{num_numbers}"
        )
        expect(n >= len(truth), f"{told}: where do all of them go, if every part is equally long?")
        expect(n <= len(truth), f"{told}: are so many zeros needed for equal parts?")
    shard = expect_tensor(shard, truth, "the shard")
    is_own = num_bytes <= truth.nbytes
    expect(is_own, f"the shard is a view of {num_bytes} bytes, and keeps all of them in memory: how many are its own?")
    return shard


def _num_bytes(shard):
    return shard.untyped_storage().nbytes() if isinstance(shard, torch.Tensor) else 0


# ---- 10.1 ---------------------------------------------------------------------------------------------------------

_LISTS = {
    "a 3×5 and a 4-vector": lambda: [_numbers(3, 5), _numbers(4, seed=1)],
    "a vector of 10 numbers alone": lambda: [_numbers(10, seed=2)],
    "the parameters of a linear layer": lambda: list(nn.Linear(7, 3).parameters()),
    "a transposed 3×4 and a single number": lambda: [_numbers(4, 3, seed=3).T, _numbers(seed=4)],
    "every second column of a 3×6": lambda: [_numbers(3, 6, seed=6)[:, ::2]],
    "two numbers in bfloat16": lambda: [_numbers(2, seed=5, dtype=torch.bfloat16)],
    "a vector of 3, a 3×4 and a 2×2": lambda: [_numbers(3, seed=8), _numbers(3, 4, seed=9), _numbers(2, 2, seed=10)],
    "an empty tensor and 2×2×2 whole numbers": lambda: [torch.arange(0), torch.arange(1, 9).view(2, 2, 2) + 2**60],
    "a product, which has a graph": lambda: [_numbers(3, seed=7).requires_grad_() * 2],
}


def check_10_1(flatten_pad_shard):
    """`flatten_pad_shard(tensors, rank, world_size)` returns one rank's part of the flattened, padded tensors."""
    run(_judge_shards, flatten_pad_shard)
    return (
        "lists of many shapes and dtypes, for 1 to 7 ranks, also fewer numbers than ranks: equal parts, in memory of "
        "their own."
    )


def _judge_shards(flatten_pad_shard):
    dist.destroy_process_group()  # the answer must use its arguments, not the rank of a group
    for (what, make), world_size in itertools.product(_LISTS.items(), (4, 3, 2, 1, 7)):
        for rank in range(world_size):
            with case(f"with {what}"), case(f"rank {rank} of {world_size}"):
                _judge_shard(flatten_pad_shard, make(), rank, world_size)
    try_on_gpus(lambda gpus: _shard_on(flatten_pad_shard, gpus[0]))


def _judge_shard(flatten_pad_shard, tensors, rank, world_size):
    flat, places = _flat(tensors), [t.data_ptr() for t in tensors]
    with unchanged(tensors=tensors):
        shard = flatten_pad_shard(tensors, rank, world_size)
    expect(
        [t.data_ptr() for t in tensors] == places,
        "a tensor that was given lies elsewhere in memory now: it is the caller's",
    )
    memory = [t.untyped_storage().data_ptr() for t in (*tensors, shard) if isinstance(t, torch.Tensor)]
    parts = _padded(flat, world_size)
    truth, num_zeros = parts[rank], parts.numel() - len(flat)
    numbers = _expect_shard(shard, truth, len(flat), world_size, _num_bytes(shard))
    is_shared = memory[-1] in memory[:-1] and memory[-1]
    expect(
        not is_shared,
        "the shard shares memory with a tensor that was given: where that is freed or changed, so is the shard",
    )
    expect(not shard.requires_grad, "the shard requires a gradient: numbers alone are asked")
    num_real = max(0, min(len(truth), len(flat) - rank * len(truth)))
    orders = [_padded(_flat(order), world_size)[rank] for order in itertools.permutations(tensors)]
    is_reordered = torch.equal(numbers.sort()[0], truth.sort()[0]) or any(torch.equal(numbers, o) for o in orders)
    suspects = {
        "its numbers are right, and what fills it up is not zeros": torch.cat([truth[:num_real], numbers[num_real:]]),
        "it is another rank's": next((part for part in parts if torch.equal(part, numbers)), None),
        "do the zeros stand in front?": F.pad(flat, (num_zeros, 0)).view_as(parts)[rank],
        "was each tensor cut up by itself?": torch.cat(
            [_padded(t.detach().reshape(-1), world_size)[rank] for t in tensors]
        ),
        "were the numbers dealt out one by one? A part is one piece": F.pad(flat, (0, num_zeros))[rank::world_size],
        "do they stand in the order of memory?": _padded(_flat(map(_transposed, tensors)), world_size)[rank],
        "do they stand in another order?": numbers if is_reordered else None,
    }
    held = short([round(number, 3) for number in numbers.tolist()])
    explain(numbers, truth, suspects, said=f"the shard holds {held}", close=0)


def _transposed(tensor):
    return tensor.mT if tensor.dim() == 2 else tensor


def _shard_on(flatten_pad_shard, gpu):
    shard = flatten_pad_shard([torch.ones(3, 5, device=gpu), torch.ones(4, device=gpu)], 1, 2)
    expect(shard.device == gpu, f"with tensors on a GPU, the shard is on {shard.device}: where is it needed?")


# ---- 10.2 ---------------------------------------------------------------------------------------------------------

_CLIPS = {  # {ranks: (numbers per shard, ((kind of gradient, scale per rank, max_norm), …))}
    3: (
        (4, 3),
        (
            ("a gradient twenty times too long", (1.0, 1.0, 1.0), 0.2),
            ("a gradient that is short enough", (0.01, 0.01, 0.01), 5),
            ("a gradient that is long on rank 1 alone", (0.01, 2.0, 0.01), 1.0),
            ("a gradient that is short on each rank, and too long in all, in float32", (0.3, 0.3, 0.3), 1.2),
            ("a gradient of zeros", (0.0, 0.0, 0.0), 1.0),
        ),
    ),
    2: ((5, 2, 1), (("a gradient that is too long, on 2 ranks", (0.5, 1.0), 1.0),)),
    1: ((6,), (("a gradient that is too long, on a single rank", (1.0,), 1.0),)),
}
_LR, _DECAY = 0.5, 0.1


def check_10_2(clipped_step):
    """`clipped_step(optimizer, shards, max_norm)` makes one step with gradients clipped by the norm over all ranks."""
    for world_size, (_, clips) in _CLIPS.items():
        for (what, _, max_norm), ranks in zip(clips, zip(*run(_clip, clipped_step, world_size=world_size))):
            gradients, parameters = ([each[key] for each in ranks] for key in ("gradients", "before"))
            norm = _norm([g for own in gradients for g in own])
            with case(f"for {what} (norm {norm:.4g}, limit {max_norm:g})"):
                for rank, each in enumerate(ranks):
                    with case(f"rank {rank}"):
                        _judge_step(each, gradients, parameters, norm, max_norm)
                        _judge_norm(each, gradients, parameters, norm, max_norm)
    return (
        f"{sum(len(clips) for _, clips in _CLIPS.values())} gradients, cut over 1 to 3 ranks, were clipped as if whole."
    )


def _norm(gradients):
    return math.hypot(*(number for g in gradients for number in g.tolist()))


def _clip(clipped_step):
    rank, seen, (lengths, clips) = dist.get_rank(), [], _CLIPS[dist.get_world_size()]
    for i, (what, scales, max_norm) in enumerate(clips):
        dtype = torch.float32 if "float32" in what else torch.float64
        shards = [nn.Parameter(3 * _numbers(n, seed=i + 50 * k, dtype=dtype)) for k, n in enumerate(lengths)]
        for k, shard in enumerate(shards):
            shard.grad = scales[rank] * _numbers(len(shard), seed=100 + 10 * i + 3 * rank + k, dtype=dtype)
        gradients, before, used = [s.grad.clone() for s in shards], [s.detach().clone() for s in shards], []
        optimizer = torch.optim.SGD(shards, lr=_LR, weight_decay=_DECAY)
        optimizer.register_step_post_hook(lambda *_, used=used, of=shards: used.append([s.grad.clone() for s in of]))
        with case(f"for {what}"), unchanged(shards=shards, allow=("values", "grad")):
            with Collectives() as collectives:
                told = clipped_step(optimizer, shards, max_norm)
            collectives.expect_waited()
        expect(not optimizer._optimizer_step_pre_hooks, "a hook was left on the optimizer: it belongs to the caller")
        after = [s.detach().clone() for s in shards]
        seen.append({"told": told, "used": used, "gradients": gradients, "before": before, "after": after})
    return seen


def _judge_step(each, gradients, parameters, norm, max_norm):
    steps, own = each["used"], each["gradients"]
    expect(len(steps) == 1, f"{len(steps)} optimizer steps were made, and one is asked")
    (used,) = steps
    is_finite = all(g.isfinite().all() for g in used)
    expect(is_finite, "the step was made with a gradient that is no finite number: what divides what?")
    factor = min(1.0, max_norm / (norm or 1.0))
    apart = _norm([u - factor * g for u, g in zip(used, own)])
    if apart > 1e-5 * norm:
        suspects = _suspects_of_step(own, gradients, parameters, norm, max_norm)
        explain(
            used,
            None,
            suspects,
            said="the step was not made with the clipped gradient",
            close=1e-4,
            otherwise=_scaling(used, own, factor),
        )
    moved = [b - _LR * (g + _DECAY * b) for b, g in zip(each["before"], used)]
    has_moved = same(each["after"], moved, 1e-5)
    expect(has_moved, "the parameters are not where the optimizer's step puts them: what else has changed?")


def _scaling(used, own, factor):
    """Return how the gradient that was used comes from this rank's own one."""
    scaled = _norm(used) / (_norm(own) or 1.0)
    if not same(used, [scaled * g for g in own], 1e-4):
        return "it is not this rank's gradient times any number"
    nearly = f"nearly {factor:.6g}: what was rounded, or added to the norm?"
    return f"it was multiplied by {scaled:.6g}, " + (
        nearly if abs(scaled - factor) < 2e-2 * factor else f"where {factor:.6g} leads to the limit"
    )


def _suspects_of_step(own, gradients, parameters, norm, max_norm):
    of_shards = [_norm([g]) for each in gradients for g in each]
    by = {
        "it was clipped by the norm of this rank's shards alone": _norm(own),
        "the ranks' norms were added up: does the norm of a whole come from sums of norms?": sum(map(_norm, gradients)),
        "the shards' norms were added up: does the norm of a whole come from sums of norms?": sum(of_shards),
        "the longest rank's norm decided": max(map(_norm, gradients)),
        "the factor comes from the square of the norm": norm**2,
        "the squares were averaged over ranks": norm / len(gradients) ** 0.5,
        "it was clipped by the norm of the parameters, and the gradients' is limited": _norm(sum(parameters, [])),
    }
    factors = {
        "it is the gradient as it was: was it scaled before the step?": [1.0] * len(own),
        **{reason: [min(1.0, max_norm / (length or 1.0))] * len(own) for reason, length in by.items()},
        "each shard was clipped by its own norm": [min(1.0, max_norm / (_norm([g]) or 1.0)) for g in own],
        "a gradient that was short enough has been stretched to the limit": [max_norm / (norm or 1.0)] * len(own),
    }
    right = min(1.0, max_norm / norm)
    far = {reason: fs for reason, fs in factors.items() if max(abs(f - right) for f in fs) > 1e-2 * right}
    suspects = {reason: [f * g for f, g in zip(fs, own)] for reason, fs in far.items()}
    return {**suspects, "each number was clipped by itself": [g.clamp(-max_norm, max_norm) for g in own]}


def _judge_norm(each, gradients, parameters, norm, max_norm):
    told, own = each["told"], each["gradients"]
    expect(told is not None, "what came back is None: is the norm returned, or only computed?")
    expect(not isinstance(told, torch.Tensor), f"what came back is a tensor, {short(told)}, and a float is asked")
    told = expect_number(told, "what came back")
    suspects = {
        "that is the norm of its own shards": _norm(own),
        "that is the norm after scaling": min(norm, max_norm),
        "that is the square of the norm": norm**2,
        "that is a sum of norms: does the norm of a whole come from sums of norms?": sum(map(_norm, gradients)),
        "that is the norm of the parameters": _norm(sum(parameters, [])),
    }
    explain(told, norm, suspects, said=f"{told:.4g} came back as the norm", close=1e-5)


# ---- 10.3 ---------------------------------------------------------------------------------------------------------

# {ranks: ((dtype, widths), …)}; the weight of layer i has the shape (widths[i + 1], widths[i])
_NETWORKS = {
    2: ((torch.float64, (4, 5, 3)), (torch.float64, (5, 5, 5))),
    3: ((torch.float64, (5, 7, 3, 6, 4, 9)), (torch.float32, (3, 8))),
    4: ((torch.float64, (5, 3, 1, 2, 7)),),  # two weights have fewer numbers than there are ranks
}


def check_10_3(forward_prefetched):
    """`forward_prefetched(shards, shapes, x)` computes a sharded network, gathering the next layer's weights early."""
    for world_size, networks in _NETWORKS.items():
        for (dtype, widths), ranks in zip(networks, zip(*run(_forward, forward_prefetched, world_size=world_size))):
            for rank, seen in enumerate(ranks):
                with case(_layers(widths, world_size)), case(f"rank {rank}"):
                    _judge_forward(seen, *_network(dtype, widths, rank), world_size)
                    _judge_order(seen, len(widths) - 1)
    return (
        "networks of 1 to 5 layers: right, each weight on its way while the layer before it computed, never more "
        "than two."
    )


def _layers(widths, world_size):
    return f"{len(widths) - 1} layer{'s' * (len(widths) > 2)} on {world_size} ranks"


def _network(dtype, widths, rank):
    weights = [_numbers(b, a, seed=i, dtype=dtype) / a**0.5 for i, (a, b) in enumerate(itertools.pairwise(widths))]
    return weights, _numbers(11, widths[0], seed=99 + rank, dtype=dtype)


def _forward(forward_prefetched):
    rank, world_size, everything = dist.get_rank(), dist.get_world_size(), []
    for dtype, widths in _NETWORKS[world_size]:
        weights, x = _network(dtype, widths, rank)
        shapes = [tuple(w.shape) for w in weights]
        shards = [_padded(w.view(-1), world_size)[rank].clone() for w in weights]
        with case(_layers(widths, world_size)), unchanged(shards=shards, shapes=shapes, x=x), Weights(shapes) as watch:
            result = forward_prefetched(shards, shapes, x)
        everything.append({"result": result, "events": watch.events, "alive": watch.most_alive})
    return everything


def _forwards(x, weights, last=torch.tanh):
    for weight in weights[:-1]:
        x = torch.tanh(x @ weight.T)
    return last(x @ weights[-1].T)


def _judge_forward(seen, weights, x, world_size):
    num_gathers, num_waits = (sum(event == kind for event, _ in seen["events"]) for kind in ("gather", "wait"))
    expect(
        num_gathers, "no all-gather was called (all_gather_into_tensor or all_gather): how do the others' numbers come?"
    )
    expect(
        num_gathers == len(weights),
        f"{num_gathers} gathers were called for {len(weights)} layers: each weight comes once",
    )
    forgotten = num_gathers - num_waits
    expect(
        not forgotten,
        f"nobody waited for {forgotten} of the {num_gathers} gathers: until then a tensor holds nothing of use",
    )
    truth, result = _forwards(x, weights), seen["result"]
    is_strange = isinstance(result, torch.Tensor) and not result.isfinite().all()
    expect(not is_strange, "the result holds what is no number: was something read before its gather was waited for?")
    ends = [_padded(w.view(-1), world_size).view(-1)[-w.numel() :].view_as(w) for w in weights]
    suspects = {
        "is there a tanh behind the last layer?": _forwards(x, weights, last=lambda y: y),
        "which of the gathered numbers are the weight, and which are padding?": _forwards(x, ends),
    }
    explain(
        expect_tensor(result, truth, "the result"),
        truth,
        suspects,
        close=1e-9 if truth.dtype == torch.float64 else 1e-5,
        otherwise="is x = torch.tanh(x @ W.T) computed with every weight, one after the other?",
    )


def _judge_order(seen, num_layers):
    first = {event: i for i, event in reversed(list(enumerate(seen["events"])))}  # index of first occurrence
    for layer in range(1, num_layers):
        computed = first.get(("compute", layer - 1))  # None: not recorded
        when = f"when layer {layer - 1} computed, the gather of layer {layer} had"
        expect(
            computed is None or first["gather", layer] < computed,
            f"{when} not been started: what was on its way meanwhile?",
        )
        is_over = computed is not None and first["wait", layer] < computed
        expect(not is_over, f"{when} been waited for already: what was still on its way?")
    expect(
        seen["alive"] <= 2,
        f"{seen['alive']} gathered weights were alive at once, and two are allowed: what still has a name "
        "when the next gather is started?",
    )


# ---- 10.4 ---------------------------------------------------------------------------------------------------------

_SHAPES = ((3, 4), (5,), (2, 3), ())  # 24 numbers: 8 per rank on 3 ranks
_REDUCTIONS = (  # ranks, shapes, {parameter: ranks without its gradient}, detail
    (3, _SHAPES, {}, ""),
    (3, _SHAPES, {1: (0, 1, 2)}, "on every rank"),
    (3, _SHAPES, {0: (1,), 2: (0, 2), 3: (1,)}, "on some ranks"),
    (3, _SHAPES, dict.fromkeys(range(4), (0, 1, 2)), "on every rank"),
    (3, _SHAPES, dict.fromkeys(range(4), (1,)), "on rank 1 alone"),
    (3, ((7,), (3, 2), (1,)), {1: (2,)}, "on rank 2"),  # 14 numbers: 5 per rank, one of padding
    (3, ((2,),), {}, ""),  # fewer numbers than ranks
    (3, ((3, 4), (5,)), {}, "in float32"),
    (2, ((3, 5), (4, 2)), {}, "transposed in memory"),
    (1, ((5,), (2, 2)), {1: (0,)}, "on the only rank"),
)


def check_10_4(reduce_scatter_gradients):
    """`reduce_scatter_gradients(parameters)` returns this rank's shard of the mean gradient and frees the gradients."""
    for world_size in (2, 3, 1):
        reductions = [reduction for reduction in _REDUCTIONS if reduction[0] == world_size]
        for reduction, seen in zip(reductions, zip(*run(_reduce, reduce_scatter_gradients, world_size=world_size))):
            with case(_words(reduction)):
                _judge_reduction(
                    seen, [_flat(_gradients(reduction, rank, or_zeros=True)) for rank in range(world_size)]
                )
    return (
        f"{len(_REDUCTIONS)} cases on 1 to 3 ranks, with padding and missing gradients: shards of the mean, by a "
        "reduce-scatter alone."
    )


def _words(reduction):
    _, shapes, missing, how = reduction
    which = (
        f"of which {', '.join(map(str, missing))} ha{'ve' if len(missing) > 1 else 's'} no gradient"
        if missing
        else "all with gradients"
    )
    return f"with parameters of shapes {list(shapes)}, {which} {how}".rstrip()


def _gradients(reduction, rank, or_zeros=False):
    """Return this rank's gradients, with None, or zeros with `or_zeros`, for missing ones."""
    _, shapes, missing, how = reduction
    dtype = torch.float32 if how == "in float32" else torch.float64
    gradients = [_numbers(*shape, seed=10 * k + rank, dtype=dtype) for k, shape in enumerate(shapes)]
    if how == "transposed in memory":
        gradients = [g.mT.contiguous().mT for g in gradients]
    return [(g * 0 if or_zeros else None) if rank in missing.get(k, ()) else g for k, g in enumerate(gradients)]


def _reduce(reduce_scatter_gradients):
    rank, everything = dist.get_rank(), []
    for reduction in (reduction for reduction in _REDUCTIONS if reduction[0] == dist.get_world_size()):
        # parameters without a gradient on all 3 ranks
        frozen = [len(reduction[2].get(k, ())) == 3 for k in range(len(reduction[1]))]
        zeros = _gradients(reduction, rank, or_zeros=True)
        parameters = [
            nn.Parameter(torch.ones_like(g), requires_grad=not is_frozen) for g, is_frozen in zip(zeros, frozen)
        ]
        for p, gradient in zip(parameters, _gradients(reduction, rank)):
            p.grad = gradient
        with case(_words(reduction)), unchanged(parameters=parameters, allow=("grad",)):
            with Collectives() as collectives:
                shard = reduce_scatter_gradients(parameters)
            collectives.expect_waited()
        shard = shard.detach() if isinstance(shard, torch.Tensor) else shard
        left = sum(p.grad is not None for p in parameters)
        sent = [name for name, _ in collectives.collectives]
        sent = collectives.called if len(collectives.called) == len(sent) else sent
        sent = sent + ["messages from rank to rank"] * bool(collectives.sent)
        everything.append({"shard": shard, "bytes": _num_bytes(shard), "left": left, "sent": sent})
    return everything


def _judge_reduction(seen, held):
    world_size, total = len(held), _padded(sum(held), len(held))
    for rank, (each, truth) in enumerate(zip(seen, total / world_size)):
        with case(f"rank {rank} of {world_size}"):
            shard = _expect_shard(each["shard"], truth, len(held[0]), world_size, each["bytes"])
            suspects = {
                "it is a sum and no mean": total[rank],
                "it is of this rank's own gradients": _padded(held[rank], world_size)[rank],
                "the mean was taken twice": truth / world_size,
                "it is another rank's": next((part for part in total / world_size if same(part, shard)), None),
            }
            nearly = "it is nearly that: what is rounded, or cast?" if same(shard, truth, 1e-5) else ""
            explain(
                shard,
                truth,
                suspects,
                close=1e-9 if truth.dtype == torch.float64 else 1e-6,
                otherwise=nearly or "over how many ranks is the mean, and as what does a missing one count?",
            )
            left, sent = each["left"], ", ".join(each["sent"])
            expect(not left, f"it still holds {left} gradient{'s' * (left > 1)}: what should a .grad be afterwards?")
            is_one = len(each["sent"]) == 1 and "reduce_scatter" in sent or world_size == 1 and not sent
            expect(is_one, f"the shard is right, but it took {sent or 'nothing'}: one reduce-scatter is enough")


# ---- 10.5 ---------------------------------------------------------------------------------------------------------

_STEPS = (  # numbers of parameters per unit, ranks
    ((16, 12, 20, 8), 4),
    ((16,), 2),
    ((100, 10, 10, 10), 4),
    ((10, 10, 10, 100), 4),
    ((10, 10, 60, 10, 10), 2),
    ((7, 5, 9), 4),
    ((3,), 8),
    ((65792, 525568, 525568, 525568, 2560), 4),
    ((12, 30, 31, 6), 1),
    ((41, 40, 39, 43, 1), 16),
    ((5, 200, 1, 90, 90, 3), 3),
    ((2_500_000_001, 5_000_000_000), 1024),
)


def check_10_5(peak_bytes):
    """`peak_bytes(numels, world_size, reshard)` returns a rank's peak memory during a step, in bytes."""
    run(_judge_peaks, peak_bytes)
    return f"{2 * len(_STEPS)} steps, the largest unit first, in the middle and last: the bytes at their worst moments."


def _judge_peaks(peak_bytes):
    for reshard, (numels, world_size) in itertools.product((True, False), _STEPS):
        with case(f"peak_bytes({list(numels)}, {world_size}, {reshard})"):
            numels = list(numels)
            with unchanged(numels=numels):
                answer = peak_bytes(numels, world_size, reshard)
            _judge_peak(expect_number(answer, "what came back"), numels, world_size, reshard)


def _judge_peak(answer, numels, N, reshard):
    truth, shards = _peak(numels, N, reshard), [-(-n // N) for n in numels]
    unpadded = _peak(numels, N, reshard, length=lambda n: n / N)
    suspects = {
        "that is right for the other value of reshard": _peak(numels, N, not reshard),
        "that is the peak of the forward pass alone": _peak(numels, N, reshard, backward=("free",)),
        "that is what is held between steps": 16 * sum(shards),
        "units stay gathered in it when their backward pass is over": _peak(numels, N, reshard, stay=True),
        "something is missing in it that is always there": answer
        if truth - answer in [4 * k * sum(shards) for k in (1, 2, 3)]
        else None,
        "the whole gradients are missing in it": _peak(numels, N, reshard, backward=("shard",)),
        "the shards of gradients are missing in it": _peak(numels, N, reshard, backward=("whole",)),
        "a whole gradient goes in it before its shard has come": _peak(
            numels, N, reshard, backward=("whole", "free", "shard")
        ),
        "shards of gradients are in it that are not made yet": _peak(
            numels, N, reshard, backward=("whole",), reduced=sum(shards)
        ),
        "its backward pass begins with the first unit": _peak(numels[::-1], N, reshard),
        "that is right as a number of numbers: how many bytes has one?": truth / 4,
        "the padding is missing in it": answer if abs(answer - unpadded) < 1 else None,
    }
    much = "much" if answer > truth else "little"
    explain(
        answer,
        truth,
        suspects,
        said=f"{answer:,} came back",
        otherwise=f"that is too {much}: what is there in each moment?",
    )


def _peak(numels, N, reshard, *, backward=("whole", "shard", "free"), reduced=0, stay=False, length=None):
    """Return the peak memory in bytes, from a simulation of a step; the keyword-only arguments imitate mistakes."""
    shards = [length(n) if length else -(-n // N) for n in numels]
    gathered, moments = set(), []
    for unit in range(len(numels)):
        gathered.add(unit)
        moments.append(N * sum(shards[i] for i in gathered))
        if reshard:
            gathered.remove(unit)
    for unit in reversed(range(len(numels))):
        gathered.add(unit)
        gradient = 0
        for event in backward:
            gradient = {"whole": N * shards[unit], "shard": gradient, "free": 0}[event]
            reduced += shards[unit] * (event == "shard")
            moments.append(N * sum(shards[i] for i in gathered) + gradient + reduced)
        if not stay:
            gathered.remove(unit)
    return 12 * sum(shards) + 4 * max(moments)


# ---- 10.6 ---------------------------------------------------------------------------------------------------------

_MATRICES = {  # {ranks: (shapes of matrices, dtype)}; ranks divide the numbers of rows
    2: (((4, 6), (8, 3), (4, 6), (2, 4), (6, 2)), torch.float64),  # rank 0 has three
    3: (((6, 4), (3, 7), (9, 9), (6, 2), (3, 3)), torch.float64),
    4: (((8, 5), (4, 4)), torch.float64),  # two ranks have no matrix
    1: (((3, 5), (4, 2), (5, 5)), torch.float32),
}


def check_10_6(orthogonalise_shards):
    """`orthogonalise_shards(shards, orthogonalise)` lets each matrix's owner orthogonalise it; rows come and go."""
    for world_size in _MATRICES:
        ranks = run(_orthogonalise, orthogonalise_shards, world_size=world_size)
        with case(_matrices(world_size)):
            for rank, seen in enumerate(ranks):
                with case(f"rank {rank}"):
                    _judge_calls(seen["given"], rank, world_size)
            for rank, seen in enumerate(ranks):
                with case(f"rank {rank}"):
                    _judge_rows(seen["rows"], rank, world_size)
            for rank, seen in enumerate(ranks):
                with case(f"rank {rank}"):
                    _judge_bytes(seen, rank, world_size)
    return (
        f"{sum(len(shapes) for shapes, _ in _MATRICES.values())} matrices on 1 to 4 ranks: each was orthogonalised "
        "once, by its owner, at the same time as the others', and no byte travelled for nothing."
    )


def _matrices(world_size):
    return f"{len(_MATRICES[world_size][0])} matrices on {world_size} rank{'s' * (world_size > 1)}"


def _momenta(world_size):
    shapes, dtype = _MATRICES[world_size]
    return [_numbers(*shape, seed=20 + i, dtype=dtype) for i, shape in enumerate(shapes)]


def _polar(matrix):
    """The orthogonal matrix nearest to `matrix`: what Newton–Schulz steps come near to."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


def _orthogonalise(orthogonalise_shards):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [matrix.chunk(world_size)[rank].clone() for matrix in _momenta(world_size)]
    given, come = [], []

    def orthogonalise(matrix):
        expect(isinstance(matrix, torch.Tensor), f"orthogonalise was given {short(matrix)}, and it takes a matrix")
        expect(matrix.dim() == 2, f"orthogonalise was given {short(matrix)}, and it takes a matrix")
        given.append(matrix.detach().clone())
        come.append(arrived.num_bytes)
        return _polar(matrix)

    with case(_matrices(world_size)), unchanged(shards=shards):
        with Collectives() as collectives, Arrived() as arrived:
            rows = orthogonalise_shards(shards, orthogonalise)
        collectives.expect_waited()
    return {"rows": rows, "given": given, "come": come, "bytes": arrived.num_bytes}


def _owned(rank, world_size):
    return range(rank, len(_MATRICES[world_size][0]), world_size)


def _judge_calls(given, rank, world_size):
    matrices = _momenta(world_size)
    for matrix in given:
        known = [i for i, truth in enumerate(matrices) if same(matrix, truth)]
        if not known:
            _explain_given(matrix, matrices, world_size)
        expect(
            known[0] in _owned(rank, world_size),
            f"it orthogonalises matrix {known[0]}, which belongs to rank {known[0] % world_size}: who has that work?",
        )
    num_owned = len(_owned(rank, world_size))
    expect(
        len(given) >= num_owned,
        f"{num_owned} of the matrices belong to it, and it orthogonalises {len(given)}: who takes care of the rest?",
    )
    expect(
        len(given) == num_owned, f"it calls orthogonalise {len(given)} times for its {num_owned}: once each is enough"
    )


def _explain_given(matrix, matrices, world_size):
    said = f"orthogonalise was given {short(matrix)}, which is none of the matrices"
    for whole in matrices:
        parts = whole.chunk(world_size)
        suspects = {
            "are these the rows of one rank alone?": next((part for part in parts if same(matrix, part)), None),
            "do the ranks' rows stand one below the other in it?": torch.cat(parts, dim=1),
            "do the ranks' rows stand in the order of the ranks?": torch.cat(parts[::-1]),
            "it is that of which rows?": whole.T,
        }
        for reason, suspect in suspects.items():
            expect(suspect is None or not same(matrix, suspect), f"{said}: {reason}")
    rounded = any(same(matrix, whole.to(matrix.dtype), 1e-6) for whole in matrices)
    expect(not rounded, f"{said}: it is nearly one, and was rounded on the way")
    expect(False, f"{said}: from where does each of its rows come?")


def _judge_rows(rows, rank, world_size):
    shards = [matrix.chunk(world_size)[rank] for matrix in _momenta(world_size)]
    truths = [_polar(matrix).chunk(world_size) for matrix in _momenta(world_size)]
    rows = expect_row(rows, len(shards), of="one for each matrix")
    for i, (got, shard, truth) in enumerate(zip(rows, shards, truths)):
        with case(f"matrix {i}"):
            is_whole = isinstance(got, torch.Tensor) and got.shape == _MATRICES[world_size][0][i] != shard.shape
            expect(not is_whole, "the whole matrix came back: which of its rows does this rank update?")
            suspects = {
                "they are not orthogonalised at all": shard,
                "they are another rank's": next((part for part in truth if same(part, got)), None),
                "they are those of another matrix": next(
                    (part for other in truths for part in other if same(part, got)), None
                ),
            }
            explain(
                expect_tensor(got, truth[rank], "what came back"),
                truth[rank],
                suspects,
                said="these rows are not right",
                close=1e-9 if shard.dtype == torch.float64 else 1e-5,
                otherwise="from whom did they come?",
            )


def _judge_bytes(seen, rank, world_size):
    sizes = [matrix.nbytes for matrix in _momenta(world_size)]
    own = sum(sizes[i] for i in _owned(rank, world_size)) * (world_size - 1) // world_size
    back = sum(sizes) // world_size - own // max(world_size - 1, 1) if world_size > 1 else 0
    expect(
        seen["bytes"] <= own + back,
        f"{seen['bytes']:,} bytes arrived here from other ranks, and {own + back:,} are enough: who needs which rows?",
    )
    late = max(seen["come"], default=0)
    expect(
        late <= own,
        f"when it orthogonalised its last matrix, {late:,} bytes had arrived, and {own:,} of rows make its own "
        "matrices: for whose result did it wait first?",
    )
