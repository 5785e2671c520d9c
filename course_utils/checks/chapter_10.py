"""Checks of chapter 10: shards by hand, and what they cost."""

import itertools
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .wrong import DEADLOCK_S, EQUAL, expect, is_whole, judge_in_worker, max_difference, run_answer


def _numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _padded(flat, world_size):
    """The parts of a flat tensor after padding, the truth for the checks."""
    length = -(-flat.numel() // world_size)
    whole = flat.new_zeros(length * world_size)
    whole[: flat.numel()] = flat
    return whole.view(world_size, length)


def _expect_shard(shard, truth, case, whole_numel, storage_bytes):
    """`shard` is a tensor like `truth`, with memory of its own of `storage_bytes`. The caller judges its numbers."""
    expect(isinstance(shard, torch.Tensor), f"{case}, the answer was {shard!r:.80}, not a tensor")
    expect(shard.dtype == truth.dtype, f"{case}, the shard's dtype is {shard.dtype}, and the tensors' is {truth.dtype}")
    expect(shard.ndim == 1, f"{case}, the shard has shape {tuple(shard.shape)}, and should be flat")
    expect(
        shard.numel() == truth.numel(),
        f"{case}, the shard has {shard.numel()} numbers and should have {truth.numel()}: equally many on every rank, and no more "
        f"than {whole_numel} numbers need",
    )
    expect(not shard.requires_grad, f"{case}, the shard requires a gradient: it should be numbers alone")
    expect(
        storage_bytes <= truth.nbytes,
        f"{case}, the shard is a view of {storage_bytes} bytes, all of which it keeps in memory; by itself it needs {truth.nbytes}",
    )


def _storage_bytes(tensor):
    return tensor.untyped_storage().nbytes() if isinstance(tensor, torch.Tensor) else None


# ---- 10.1 ---------------------------------------------------------------------------------------------------------


def check_10_1(flatten_pad_shard):
    """`flatten_pad_shard(tensors, rank, world_size)` returns one rank's part of the flattened, padded tensors."""
    judge_in_worker(_judge_shards, flatten_pad_shard)
    return "lists of many shapes and dtypes, for 1 to 7 ranks, also of fewer numbers than ranks: equal parts, in memory of their own."


def _lists_of_tensors():
    yield "a 3×5 and a 4-vector", [_numbers(3, 5), _numbers(4, seed=1)]
    yield "a vector of 10 numbers alone", [_numbers(10, seed=2)]
    yield "parameters of a linear layer", list(nn.Linear(7, 3).parameters())
    yield "a transposed matrix and a single number", [_numbers(4, 3, seed=3).T, _numbers(seed=4)]
    yield "two numbers in bfloat16", [_numbers(2, seed=5, dtype=torch.bfloat16)]
    yield "an empty tensor and 2×2×2 whole numbers", [torch.empty(0, dtype=torch.int64), torch.arange(1, 9).view(2, 2, 2)]


def _judge_shards(flatten_pad_shard):
    dist.destroy_process_group()  # the answer is told its rank; one that asks for it would hear 0 of 1
    for what, tensors in _lists_of_tensors():
        before = [t.detach().clone() for t in tensors]
        flat = torch.cat([t.reshape(-1) for t in before])
        for world_size in (1, 2, 3, 4, 7):
            parts = _padded(flat, world_size)
            for rank, truth in enumerate(parts):
                case = f"with {what}, rank {rank} of {world_size}"
                shard = flatten_pad_shard(list(tensors), rank, world_size)
                _expect_shard(shard, truth, case, flat.numel(), _storage_bytes(shard))
                expect(
                    all(torch.equal(a, b) for a, b in zip(tensors, before)), f"{case}, the tensors given have been changed"
                )
                mine = shard.untyped_storage().data_ptr()
                expect(
                    not mine or all(t.untyped_storage().data_ptr() != mine for t in tensors),
                    f"{case}, the shard shares memory with a tensor given: where that is freed or changed, so is the shard",
                )
                if torch.equal(shard, truth):
                    continue
                num_real = max(0, min(len(truth), flat.numel() - rank * len(truth)))
                expect(
                    not torch.equal(shard[:num_real], truth[:num_real]),
                    f"{case}, the numbers are right, and the padding is {shard[num_real:].tolist()}, not zeros",
                )
                expect(
                    not any(torch.equal(shard, part) for part in parts), f"{case}, the shard belongs to another rank"
                )
                expect(
                    not torch.equal(shard.sort()[0], truth.sort()[0]), f"{case}, the shard's numbers stand in another order"
                )
                expect(False, f"{case}, the shard is {_short(shard)}, and should be {_short(truth)}")


def _short(tensor):
    return [round(value, 3) for value in tensor.tolist()]


# ---- 10.2 ---------------------------------------------------------------------------------------------------------

# (what kind of gradient, its scale on each of three ranks, max_norm)
_CLIPS = (
    ("a gradient twenty times too long", (1.0, 1.0, 1.0), 0.2),
    ("a gradient that is short enough", (0.01, 0.01, 0.01), 5.0),
    ("a gradient that is long on rank 1 alone", (0.01, 2.0, 0.01), 1.0),
    ("a gradient that is short on each rank, and too long in all", (0.3, 0.3, 0.3), 1.2),
    ("a gradient of zeros", (0.0, 0.0, 0.0), 1.0),
)
_LR = 0.5


def check_10_2(clipped_step):
    """`clipped_step(optimizer, shards, max_norm)` makes one step with gradients clipped by the norm over all ranks."""
    for case, ranks in zip(_CLIPS, zip(*run_answer(_clip, clipped_step, world_size=3, timeout=DEADLOCK_S))):
        what, _, max_norm = case
        squares = [[float((g**2).sum()) for g in each["gradients"]] for each in ranks]
        norm = sum(map(sum, squares)) ** 0.5
        scale = min(1.0, max_norm / norm) if norm else 1.0
        for rank, each in enumerate(ranks):
            told, moved, gradients = each["told"], each["moved"], each["gradients"]
            where = f"for {what} (norm {norm:.4g}, limit {max_norm:g}), rank {rank}"
            own = sum(squares[rank]) ** 0.5
            expect(each["steps"] == 1, f"{where} made {each['steps']} optimizer steps, and should make one")
            expect(all(m.isfinite().all() for m in moved), f"{where}'s parameters are no finite numbers: what divides what?")
            expect(
                isinstance(told, (int, float)) and not isinstance(told, bool),
                f"{where} returned {told!r:.60}, not the norm as a float",
            )
            steps = [-m / _LR for m in moved]  # plain SGD: a step is minus the rate times the gradient
            expect(
                max_difference(steps, [scale * g for g in gradients]) < 1e-5 * max(norm, 1),
                f"{where}: {_why_clipped(steps, gradients, squares, rank, norm, max_norm)}",
            )
            expect(
                abs(told - norm) < 1e-6 * max(norm, 1),
                f"{where} returned {told:.4g}, "
                + ("which is the norm of its own shards" if abs(told - own) < 1e-9 else "and not the norm before scaling"),
            )
    return f"{len(_CLIPS)} gradients, cut over 3 ranks and 2 shards each, were clipped as if they were whole."


def _why_clipped(steps, gradients, squares, rank, norm, max_norm):
    def is_scaled_by(factors):
        return max_difference(steps, [f * g for f, g in zip(factors, gradients)]) < 1e-4 * max(norm, max_norm)

    own = sum(squares[rank]) ** 0.5
    added = sum(sum(square) ** 0.5 for square in squares)
    of_tensors = sum(s**0.5 for square in squares for s in square)
    reasons = (
        ((1, 1), "the step was made with the gradient as it was: was it scaled before the step?"),
        ((min(1, max_norm / (own or 1)),) * 2, "the step was clipped by the norm of this rank's shards alone"),
        ([min(1, max_norm / (s**0.5 or 1)) for s in squares[rank]], "each shard was clipped by its own norm"),
        ((max_norm / (norm or 1),) * 2, "a gradient that was short enough has been stretched to the limit"),
        ((min(1, max_norm / (added or 1)),) * 2, "the ranks' norms were added up: does the norm of a whole come from sums of norms?"),
        ((min(1, max_norm / (of_tensors or 1)),) * 2, "norms were added up: does the norm of a whole come from sums of norms?"),
        ((min(1, max_norm / (norm**2 or 1)),) * 2, "the factor comes from the square of the norm"),
        ((min(1, max_norm / (norm / 3**0.5 or 1)),) * 2, "the squares were averaged over ranks, and must be added"),
    )
    right = min(1, max_norm / (norm or 1))
    for factors, reason in reasons:
        if is_scaled_by(factors) and max(abs(f - right) for f in factors) > 1e-2 * right:
            return reason
    if max_difference(steps, [right * g for g in gradients]) < 1e-2 * right * max(norm, max_norm):
        return "the step is nearly that of the clipped gradient: what was rounded, or added to the norm?"
    return "the step is not that of the clipped gradient"


def _clip(clipped_step):
    rank, seen = dist.get_rank(), []
    for i, (_, scales, max_norm) in enumerate(_CLIPS):
        shards = [nn.Parameter(_numbers(4, seed=i)), nn.Parameter(_numbers(3, seed=50 + i))]
        optimizer = torch.optim.SGD(shards, lr=_LR)
        steps = []
        optimizer.register_step_pre_hook(lambda *_, steps=steps: steps.append(1))
        for k, shard in enumerate(shards):
            shard.grad = scales[rank] * _numbers(len(shard), seed=100 + 10 * i + 3 * rank + k)
        gradients, before = [s.grad.clone() for s in shards], [s.detach().clone() for s in shards]
        told = clipped_step(optimizer, shards, max_norm)
        told = told.item() if isinstance(told, torch.Tensor) and told.numel() == 1 else told
        moved = [s.detach() - b for s, b in zip(shards, before)]
        seen.append({"told": told, "moved": moved, "gradients": gradients, "steps": len(steps)})
    return seen


# ---- 10.3 ---------------------------------------------------------------------------------------------------------

_WIDTHS = (5, 7, 3, 6, 4, 9)  # of layer i: from _WIDTHS[i] to _WIDTHS[i + 1], each pair another shape


def check_10_3(forward_prefetched):
    """`forward_prefetched(shards, shapes, x)` computes a sharded network, with the next layer's weights under way."""
    num_layers = len(_WIDTHS) - 1
    for rank, seen in enumerate(run_answer(_forward, forward_prefetched, world_size=3, timeout=DEADLOCK_S)):
        first = {event: i for i, event in reversed(list(enumerate(seen["events"])))}  # where each event came first
        gathers = [layer for kind, layer in seen["events"] if kind == "gather"]
        expect(gathers, f"rank {rank} called no all-gather (all_gather_into_tensor or all_gather)")
        expect(isinstance(seen["result"], torch.Tensor), f"rank {rank} returned {seen['result']!r:.60}, not a tensor")
        expect(
            len(gathers) == num_layers,
            f"rank {rank} gathered {len(gathers)} times for {num_layers} layers: each weight is gathered once",
        )
        expect(all(seen["asynchronous"]), f"rank {rank} waited inside an all-gather: start it with async_op=True, and wait later")
        unfinished = sum(("wait", layer) not in first for layer in gathers)
        expect(
            not unfinished,
            f"rank {rank} never waited for {unfinished} of its gathers: until then a tensor holds nothing of use",
        )
        apart = max_difference(seen["result"], seen["truth"])
        expect(apart < EQUAL, f"rank {rank}'s result differs by {apart:.2g} from that of whole weights: {_why_forward(seen)}")
        expect(seen["is_whole"], f"rank {rank}'s x has been changed: the caller may still need it")
        for layer in gathers[1:]:
            computed = first.get(("compute", layer - 1), len(seen["events"]))  # by an operation that is not watched
            when = f"rank {rank}: when layer {layer - 1} computed, the gather of layer {layer} had"
            expect(first["gather", layer] < computed, f"{when} not been started")
            expect(("compute", layer - 1) not in first or computed < first["wait", layer], f"{when} been waited for already")
        expect(
            seen["alive"] <= 2,
            f"rank {rank}: {seen['alive']} gathered weights were alive at once, and two are allowed: what still has a name "
            "when the next gather is started?",
        )
    return f"{num_layers} layers on 3 ranks: right, each weight on its way while the layer before it computed, never more than two."


def _why_forward(seen):
    if not seen["result"].isfinite().all():
        return "was something read before its gather was waited for?"
    return "which numbers of a gathered tensor are the weight, and which are padding?"


class _Weights(TorchDispatchMode):
    """Notes in which order weights are gathered, waited for and computed with, and how many were alive at once.

    The gathers come in the layers' order, and the shapes tell which layer's matrix product is made.
    """

    def __init__(self, shapes):
        super().__init__()
        self._layers = {frozenset(shape): i for i, shape in enumerate(shapes)}
        self._holders = {}  # {storage: (layer, weak reference)}; a buffer that is used again changes hands
        self.events, self.most_alive = [], 0

    def note(self, event, layer, tensors=()):
        self.events.append((event, layer))
        for storage in (t.untyped_storage() for t in tensors):
            self._holders[storage._cdata] = layer, weakref.ref(storage)
        self.most_alive = max(self.most_alive, len({layer for layer, ref in self._holders.values() if ref() is not None}))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.__name__.split(".")[0] in ("mm", "addmm", "bmm", "matmul", "linear"):
            for tensor in tree_leaves(args):
                layer = self._layers.get(frozenset(tensor.shape[-2:])) if isinstance(tensor, torch.Tensor) else None
                if layer is not None:
                    self.note("compute", layer, [tensor])  # it may be a copy of what was gathered
        return function(*args, **(kwargs or {}))


class _Late:
    """The work of a gather that runs when it is waited for: whoever does not wait finds NaN, and not luck."""

    def __init__(self, run):
        self._run = run

    def wait(self, *_):
        if self._run:
            run, self._run = self._run, None
            run()
        return True


def _forward(forward_prefetched):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shapes = [(b, a) for a, b in itertools.pairwise(_WIDTHS)]
    weights = [_numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    shards = [_padded(w.view(-1), world_size)[rank].clone() for w in weights]
    x = _numbers(2, _WIDTHS[0], seed=99 + rank)
    given, truth = x.clone(), x
    for weight in weights:
        truth = torch.tanh(truth @ weight.T)
    watch, asynchronous = _Weights(shapes), []

    def watched(gather):
        def start(output, given, *args, async_op=False, **kwargs):
            layer = len(asynchronous)
            asynchronous.append(async_op)
            tensors = list(output) if isinstance(output, (list, tuple)) else [output]
            watch.note("gather", layer, tensors)
            for t in tensors:
                t.fill_(torch.nan)

            def run():
                watch.note("wait", layer)
                arrived = [torch.empty_like(t) for t in tensors]  # gloo's thread holds on to what it has filled
                gather(arrived if isinstance(output, (list, tuple)) else arrived[0], given, *args, **kwargs)
                for t, numbers in zip(tensors, arrived):
                    t.copy_(numbers)

            return _Late(run) if async_op else run()

        return start

    for name in ("all_gather_into_tensor", "all_gather", "all_gather_single"):
        if hasattr(dist, name):
            setattr(dist, name, watched(getattr(dist, name)))
    with torch.no_grad(), watch:
        result = forward_prefetched(list(shards), list(shapes), x)
    return {"result": result, "truth": truth, "events": watch.events, "asynchronous": asynchronous, "alive": watch.most_alive,
            "is_whole": torch.equal(x, given)}  # fmt: skip


# ---- 10.4 ---------------------------------------------------------------------------------------------------------

_SHAPES = ((3, 4), (5,), (2, 3), ())  # 24 numbers: 8 a rank on three, and with the last alone 7, 6 and 1
_MISSING = ({}, {1: (0, 1, 2)}, {0: (1,), 2: (0, 2), 3: (1,)}, {k: (0, 1, 2) for k in range(4)})  # {parameter: ranks}


def check_10_4(reduce_scatter_gradients):
    """`reduce_scatter_gradients(parameters)` returns this rank's shard of the mean gradient, and frees the gradients."""
    ranks = run_answer(_reduce, reduce_scatter_gradients, world_size=3, timeout=DEADLOCK_S)
    for i, (shapes, missing) in enumerate(_cases()):
        held = [[_gradient(shape, i, k, rank, missing) for k, shape in enumerate(shapes)] for rank in range(3)]
        flat = [torch.cat([g.reshape(-1) for g in each]) for each in held]
        truth, total = (_padded(sum(flat) / n, 3) for n in (3, 1))
        for rank, each in enumerate(seen[i] for seen in ranks):
            gone = f", the gradients of {sorted(missing)} missing" if missing else ""
            where = f"with parameters of shapes {list(shapes)}{gone}, rank {rank}"
            _expect_shard(each["shard"], truth[rank], where, flat[0].numel(), each["bytes"])
            expect(not each["left"], f"{where} still holds {each['left']} gradients: they should be None afterwards")
            expect(each["is_whole"], f"{where}'s parameters have been changed: only their gradients go")
            shard = each["shard"]
            for wrong, reason in (
                (total[rank], "the shard is a sum and no mean"),
                (_padded(flat[rank], 3)[rank], "the shard is of this rank's own gradients"),
                (total[rank] / 9, "the mean was taken twice"),
            ):
                is_other = max_difference(wrong, truth[rank]) > 1e-6
                expect(not (is_other and max_difference(shard, wrong) < EQUAL), f"{where}: {reason}")
            far = max_difference(shard, truth[rank])
            expect(far < EQUAL, f"{where}: the shard is not that of the mean gradient (max difference {far:.2g})")
            names = each["messages"]
            expect(
                names and all("reduce_scatter" in name for name in names),
                f"{where} is right, and has sent {', '.join(sorted(set(names))) or 'nothing'}: a reduce-scatter is enough",
            )
    return f"{len(list(_cases()))} cases on 3 ranks, with padding and missing gradients: the mean's shards, by a reduce-scatter alone."


def _cases():
    for missing in _MISSING:
        yield _SHAPES, missing
    yield ((7,), (3, 2), (1,)), {1: (2,)}  # 14 numbers: 5 a rank, one of padding
    yield ((2,),), {}  # fewer numbers than ranks


def _gradient(shape, case, k, rank, missing):
    gone = rank in missing.get(k, ())
    return _numbers(*shape, seed=1000 * case + 10 * k + rank) * (not gone)


class _Messages(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.names.append(function.__name__.split(".")[0].strip("_"))
            if self.names[-1] == "reduce_scatter_base":
                part, all_parts = args[:2]
                if all_parts.numel() != dist.get_world_size() * part.numel():
                    raise ValueError(f"{all_parts.numel()} numbers cannot be cut into {dist.get_world_size()} equal parts of {part.numel()}")
                if part.ndim != 1 or all_parts.ndim != 1:  # which gloo answers with an abort
                    raise ValueError(f"reduce_scatter_tensor was given shapes {(*part.shape,)} and {(*all_parts.shape,)}: gloo takes flat tensors")
        return function(*args, **(kwargs or {}))


def _reduce(reduce_scatter_gradients):
    rank, seen = dist.get_rank(), []
    for i, (shapes, missing) in enumerate(_cases()):
        parameters = [nn.Parameter(_numbers(*shape, seed=900 + k)) for k, shape in enumerate(shapes)]
        before = [p.detach().clone() for p in parameters]
        for k, p in enumerate(parameters):
            if rank not in missing.get(k, ()):
                p.grad = _gradient(p.shape, i, k, rank, missing)
        with _Messages() as messages:
            shard = reduce_scatter_gradients(list(parameters))
        left = sum(p.grad is not None for p in parameters)
        seen.append({"shard": shard, "bytes": _storage_bytes(shard), "left": left, "messages": messages.names,
                     "is_whole": all(map(torch.equal, parameters, before))})  # fmt: skip
    return seen


# ---- 10.5 ---------------------------------------------------------------------------------------------------------


def check_10_5(peak_bytes):
    """`peak_bytes(numels, world_size, reshard)` returns the bytes of a rank at the worst moment of a step."""
    judge_in_worker(_judge_peaks, peak_bytes)
    return f"{2 * len(_PEAKS)} steps, the largest unit first, in the middle and last: the bytes at their worst moments."


_PEAKS = (
    ((8, 8, 8), 4), ((16,), 2), ((100, 10, 10, 10), 4), ((10, 10, 10, 100), 4), ((10, 10, 60, 10, 10), 2), ((7, 5, 9), 4),
    ((3,), 8), ((65792, 525568, 525568, 525568, 2560), 4), ((12, 30, 31, 6), 1), ((41, 40, 39, 43, 1), 16),
)  # fmt: skip


def _moments(numels, world_size, reshard):
    """The bytes held at each moment of a step, one event after the other."""
    shards = [-(-n // world_size) for n in numels]
    whole = [world_size * s for s in shards]
    always, gathered, gradient, gradient_shards = 12 * sum(shards), set(), 0, 0

    def held():
        return always + 4 * sum(whole[i] for i in gathered) + 4 * gradient + 4 * gradient_shards

    for i in range(len(numels)):
        gathered.add(i)
        yield held()
        if reshard:
            gathered.remove(i)
    for i in reversed(range(len(numels))):
        gathered.add(i)
        gradient = whole[i]
        gradient_shards += shards[i]
        yield held()
        gathered.remove(i)
        gradient = 0


def _judge_peaks(peak_bytes):
    for reshard in (True, False):
        for numels, world_size in _PEAKS:
            case = f"peak_bytes({list(numels)}, {world_size}, {reshard})"
            answer = peak_bytes(list(numels), world_size, reshard)
            is_bytes = is_whole(answer) or (isinstance(answer, float) and answer.is_integer())
            expect(is_bytes, f"{case} returned {answer!r:.60}, not a whole number of bytes")
            truth = max(_moments(numels, world_size, reshard))
            if answer == truth:
                continue
            shards = [-(-n // world_size) for n in numels]
            kept = max(world_size * (sum(shards) + shard) + sum(shards[k:]) for k, shard in enumerate(shards))
            for wrong, reason in (
                (12 * sum(shards) + 4 * kept, "in which units stay gathered when their backward pass is over"),
                (max(_moments(numels, world_size, not reshard)), "which is right for the other value of reshard"),
                (truth - 12 * sum(shards), "in which the shards of parameters and Adam's numbers are missing"),
                (truth + 4 * sum(shards[: len(shards) - 1]), "which counts shards of gradients that are not made yet"),
                (12 * sum(shards) + 4 * world_size * max(shards), "which is the peak of the forward pass"),
                (16 * sum(shards), "which is what is held between steps"),
            ):
                expect(answer != wrong or wrong == truth, f"{case} returned {answer:,}, {reason}")
            by = f"{abs(answer - truth):,} bytes too {'many' if answer > truth else 'few'}"
            padding = " (does every shard have its padding?)" if any(n % world_size for n in numels) else ""
            expect(False, f"{case} returned {answer:,}, {by}{padding}: go through the moments of the step one by one")
