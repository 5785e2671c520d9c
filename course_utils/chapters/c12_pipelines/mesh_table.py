"""Exercise 12.5: which group of a mesh sums what, tried on eight ranks: two stages × two replicas × two shards."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ...checks.expect import Wrong, case, expect, expect_row, max_difference, same, short
from ...checks.judge import run
from ...parallel.tensor import copy_to_ranks, gather_parts, sum_over_ranks, sum_parts

AXES = ("pp", "dp", "tp")
_OTHER_STAGE = "which other stage holds this parameter?"
_REPLICAS = "each replica's loss is the mean over its own samples: how do two such means make that of all samples?"
_STAGES_NORM = "are the other stage's weights in a rank's number?"
_AFTER_AVERAGE = "what do the replicas hold, once their gradients have been averaged?"
# For each row and axis a question to whoever has another entry than the one in `_NEEDED`.
_QUESTIONS = {
    "columns": (_OTHER_STAGE, _REPLICAS, "do the ranks of a tp group hold the same columns?"),
    "row bias": (_OTHER_STAGE, _REPLICAS, "it is added after the sum: which gradient reaches it on each rank of tp?"),
    "LayerNorm": (_OTHER_STAGE, _REPLICAS, "which gradient has the copy behind it passed back to each rank of tp?"),
    "LayerNorm, own tokens": (_OTHER_STAGE, _REPLICAS, "which tokens has a rank's gradient seen, and which not?"),
    "embedding": (
        "the matrix is used on both stages: which of the two uses is in this rank's gradient?",
        _REPLICAS,
        "have the ranks of a tp group looked up different tokens?",
    ),
    "loss": (
        "what do the first stage's ranks have before, and what shall they have?",
        _REPLICAS,
        "do the ranks of a tp group have different losses?",
    ),
    "norm, split": (_STAGES_NORM, _AFTER_AVERAGE, "are the other rank's shards in a rank's number?"),
    "norm, whole": (_STAGES_NORM, _AFTER_AVERAGE, "how often is a LayerNorm counted, which every rank of tp holds?"),
}
_MEAN_DP, _SUM_PP = ("", "mean", ""), ("sum", "", "")
_NEEDED = {
    "columns": _MEAN_DP, "row bias": _MEAN_DP, "LayerNorm": _MEAN_DP, "LayerNorm, own tokens": ("", "mean", "sum"),
    "embedding": ("sum", "mean", ""), "loss": ("sum", "mean", ""), "norm, split": ("sum", "", "sum"),
    "norm, whole": _SUM_PP,
}  # fmt: skip


def check_12_5(fill_table):
    """`fill_table()` returns for each row what to do over pp, dp and tp: "sum", "mean" or ""."""
    tables, found = zip(*run(_use_table, fill_table, world_size=8))
    for name, needed in _NEEDED.items():
        others = [i for i in range(3) if tables[0][name][i] != needed[i]]
        question = _QUESTIONS[name][others[0]] if others else ""
        with case(f"row {name!r}"):
            for rank, rows in enumerate(found):
                _judge(rank, *rows[name], question)
            expect(not others, f"the result is right, but a call in it changes nothing: {question}")
    return "on eight ranks, all rows give what one process has, and no call is needless."


def _judge(rank, got, truth, question):
    if truth is not None and not same(got, truth):
        times = next((times for times in (0.25, 0.5, 2, 4) if same(got, times * truth)), None)
        apart = f"differs from one process (by up to {max_difference(got, truth):.2g})"
        raise Wrong(f"rank {rank} then {f'has {times:g} times what one process has' if times else apart}: {question}")


def _use_table(fill_table):
    """Return the table, and for each row what this rank has once the table was followed, and what it should have."""
    table = [_read(fill_table())]
    dist.broadcast_object_list(table)  # ranks that disagreed would wait for ever
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=AXES)
    network = _Network()
    truth = network.on_one_process()
    local = _Share(network, truth, mesh).numbers()
    rows = {}
    for name in _NEEDED:
        got, expected = local[name]
        got = got.detach().clone()
        for axis, way in zip(AXES, table[0][name]):
            if way:
                dist.all_reduce(got, group=mesh.get_group(axis))
                got /= 2 if way == "mean" else 1
        rows[name] = got, expected
    return table[0], rows


def _read(table):
    expect(isinstance(table, dict), f"{short(table)} came back, and a dict is asked: a row's name and its three words")
    for name in table:
        expect(name in _NEEDED, f"the table has a row {short(name)}, which is not among those asked for")
    for name in _NEEDED:
        expect(name in table, f"the table has no row {name!r}")
        for axis, way in zip(AXES, expect_row(table[name], 3, f"row {name!r}", of="the words for pp, dp and tp")):
            expect(
                isinstance(way, str) and way in ("sum", "mean", ""),
                f'row {name!r} has {short(way)} for {axis}: "sum", "mean" or "" are the words',
            )
    return {name: tuple(row) for name, row in table.items()}


class _Network:
    """A language model of two blocks, one for each stage, whose first and last layer share the embedding."""

    def __init__(self, b=4, s=4, d=6, num_symbols=8):
        torch.manual_seed(127)
        self.codes, self.targets = torch.randint(num_symbols, (2, b, s))
        self.parts = nn.ParameterDict(
            {
                "embedding": torch.randn(num_symbols, d),
                **{f"columns{i}": torch.randn(4 * d, d) / 4 for i in range(2)},
                **{f"rows{i}": torch.randn(d, 4 * d) / 4 for i in range(2)},
                **{f"norm{i}": 1 + torch.rand(d) for i in range(2)},
                "bias": torch.randn(d),
            }
        ).double()

    def on_one_process(self):
        """Return {name: gradient}, and the loss under "loss"."""
        p = self.parts
        h = F.embedding(self.codes, p["embedding"])
        h = h + _rows(_columns(_norm(h, p["norm0"]), p["columns0"]), p["rows0"]) + p["bias"]
        h = h + _rows(_columns(_norm(h, p["norm1"]), p["columns1"]), p["rows1"])
        loss = _loss(h, p["embedding"], self.targets)
        return {"loss": loss.detach()} | dict(zip(p, torch.autograd.grad(loss, list(p.values()))))


def _norm(h, weight):
    return F.layer_norm(h, weight.shape, weight)


def _columns(h, weight):
    return F.relu(F.linear(h, weight))


_rows = F.linear


def _loss(h, embedding, targets):
    return F.cross_entropy(F.linear(h, embedding).flatten(0, 1), targets.flatten())


class _Share:
    """One rank's part of the network; its block is split over tp, and on stage 1 its LayerNorm has own tokens only."""

    def __init__(self, network, truth, mesh):
        self.truth, self.tp = truth, mesh.get_group("tp")
        self.stage, replica, self.shard = (mesh.get_local_rank(axis) for axis in AXES)
        self.codes, self.targets = (codes.chunk(2)[replica] for codes in (network.codes, network.targets))
        self.other = dist.get_rank() + (-4 if self.stage else 4)  # the rank with this place on the other stage
        self.parts = {name: self.own(name, p).detach().clone().requires_grad_() for name, p in network.parts.items()}

    def own(self, name, tensor):
        dim = {"columns": 0, "rows": 1}.get(name[:-1])
        return tensor if dim is None else tensor.chunk(2, dim)[self.shard]

    def numbers(self):
        """Return {row: (what this rank has after the backward pass, what it should have, or None)}."""
        loss = self.first_stage() if self.stage == 0 else self.last_stage()
        of_stage = {"columns": f"columns{self.stage}", "row bias": "bias", "embedding": "embedding"}
        of_stage |= {"LayerNorm": "norm0", "LayerNorm, own tokens": "norm1"}
        found = {}
        for row, name in of_stage.items():
            gradient, truth = self.parts[name].grad, self.own(name, self.truth[name])
            if gradient is None:  # a parameter of the other stage: this rank takes part, and nothing is asked of it
                gradient, truth = torch.zeros_like(truth), None
            found[row] = gradient, truth
        found["loss"] = loss.detach(), self.truth["loss"]
        for row, kinds in ("norm, split", ("columns", "rows")), ("norm, whole", ("norm",)):
            names = [f"{kind}{stage}" for stage in range(2) for kind in kinds]
            own = [self.own(name, self.truth[name]) for name in names if name.endswith(str(self.stage))]
            found[row] = _squares(own), _squares(self.truth[name] for name in names)
        return found

    def first_stage(self):
        p = self.parts
        h = F.embedding(self.codes, p["embedding"])
        normed = copy_to_ranks(_norm(h, p["norm0"]), self.tp)
        output = h + sum_over_ranks(_rows(_columns(normed, p["columns0"]), p["rows0"]), self.tp) + p["bias"]
        gradient = torch.empty_like(output)
        dist.send(output.detach(), self.other)
        dist.recv(gradient, self.other)
        output.backward(gradient)
        return torch.zeros((), dtype=output.dtype)

    def last_stage(self):
        p, shape = self.parts, (*self.codes.shape, len(self.parts["norm1"]))
        h = torch.empty(shape, dtype=p["norm1"].dtype)
        dist.recv(h, self.other)
        half = shape[1] // 2
        own = copy_to_ranks(h.requires_grad_(), self.tp).split(half, 1)[self.shard]  # (b, s/2, d)
        middle = _columns(gather_parts(_norm(own, p["norm1"]), 1, self.tp), p["columns1"])
        own = own + sum_parts(_rows(middle, p["rows1"]), 1, self.tp)
        # All tokens again: each rank adds zeros for the other's, and its gradient is that of its own.
        around = (0, 0, half, 0) if self.shard else (0, 0, 0, half)
        loss = _loss(sum_over_ranks(F.pad(own, around), self.tp), p["embedding"], self.targets)
        loss.backward()
        dist.send(h.grad, self.other)
        return loss


def _squares(tensors):
    return sum(tensor.square().sum() for tensor in tensors)
