"""A layer of experts: each token visits a few of them, and they live on different ranks.

    routing = route(router(x), k=2)              which experts a token visits, and with what weights
    rows, journey = dispatch(x, routing)         all-to-all: each token to the ranks of its experts
    results = ...                                every rank applies its experts to the rows that came
    y = combine(results, routing, journey)       all-to-all: back, weighted and summed

`ExpertLayer` is the whole of it. On one rank the same code runs, and the messages go to the rank itself. Sources: D.
Lepikhin and others, GShard, 2020 (arXiv 2006.16668); W. Fedus and others, Switch, 2021 (arXiv 2101.03961).

Those two send equally many rows to every expert, with zeros where tokens are missing. Here, as in dropless systems,
only real rows travel, so counts go ahead of them, and `tolist` makes a GPU wait for the counts. PyTorch has the parts:
`torch.distributed._functional_collectives.all_to_all_single_autograd` is `all_to_all` below, and
`torch.nn.functional.grouped_mm` multiplies the rows of all experts in one kernel, if their weights are one tensor. An
expert-parallel style for `parallelize_module` does not come with torch; torchtitan has dispatchers like these two.

Shapes: T tokens of this rank, E experts of the layer, k choices per token, width d, N ranks in `group` (None: all).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class Routing(NamedTuple):
    """Where T tokens go: `experts` (T, k), best first, their weights `gates` (T, k), and `probabilities` (T, E).

    `kept` (T, k) is False for a choice that was dropped, since its expert was full.
    """

    experts: Tensor
    gates: Tensor
    kept: Tensor
    probabilities: Tensor


class Journey(NamedTuple):
    """How the rows of a `dispatch` travelled, which `combine` reverses.

    `order` (rows sent,) are the choices sent, as token · k + choice. `arrangement` (R,) sorts the rows received by
    expert. The counts are of rows to and from each rank, and for each expert of this rank.
    """

    order: Tensor
    arrangement: Tensor
    send_counts: list[int]
    receive_counts: list[int]
    rows_per_expert: list[int]


def route(scores: Tensor, k: int, capacity: int | None = None, renormalise: bool | None = None) -> Routing:
    """Choose for each token the k experts with the highest of its `scores` (T, E); ties go to the lower index.

    A gate is the softmax over all experts, divided by its sum over the k chosen if `renormalise`: by default if k > 1,
    as in Qwen3 (`norm_topk_prob`). With k = 1 that would make every gate 1, and the router would get no gradient from
    the model's loss; Switch keeps the probability. `capacity` is how many of these tokens' choices an expert takes: all
    first choices in order of tokens, then second ones. The rest are dropped, which leaves the gates of a token's other
    choices as they are. Raises ValueError if k is not from 1 to E.
    """
    num_experts = scores.shape[-1]
    if k not in range(1, num_experts + 1):
        raise ValueError(f"k is {k!r}; a token can visit 1 to {num_experts} of {num_experts} experts")
    probabilities = scores.softmax(-1)  # (T, E)
    experts = scores.argsort(dim=-1, descending=True, stable=True)[:, :k]  # (T, k)
    gates = probabilities.gather(-1, experts)  # (T, k)
    if k > 1 if renormalise is None else renormalise:
        gates = gates / gates.sum(-1, keepdim=True)
    if capacity is None:
        kept = torch.ones_like(experts, dtype=torch.bool)
    else:
        kept = _places_in_queue(experts, num_experts) < capacity
    return Routing(experts, gates, kept, probabilities)


def _places_in_queue(experts, num_experts):
    """Return (T, k): how many choices of the same expert come before each."""
    wanted = F.one_hot(experts.T.flatten(), num_experts)  # (k·T, E): all first choices, then all second ones
    before = wanted.cumsum(0) - wanted
    return (before * wanted).sum(-1).view(experts.T.shape).T


def expert_capacity(num_tokens: int, num_experts: int, k: int, factor: float) -> int:
    """Return `factor` times the rows of an expert if all had equally many, rounded up."""
    return math.ceil(factor * k * num_tokens / num_experts)


def balance_loss(routing: Routing, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return E · Σ f · P over the experts: 1 if all are chosen equally often, up to E / k if the same k always are.

    f is an expert's share of all choices, dropped ones included, over all ranks of `group`: a count, without a
    gradient. P is its mean probability, and has one (Switch). Each rank returns N times its tokens'
    part of this loss, so the mean over ranks is that of all tokens on one device, and so is the mean of the gradients.
    """
    num_experts, k = routing.probabilities.shape[-1], routing.experts.shape[-1]
    counts = torch.bincount(routing.experts.flatten(), minlength=num_experts)  # (E,)
    dist.all_reduce(counts, group=group)
    num_choices = counts.sum().clamp(min=1)
    share = counts.to(routing.probabilities) / num_choices  # f
    mean = routing.probabilities.sum(0) * k * dist.get_world_size(group) / num_choices  # N times this rank's part of P
    return num_experts * (share * mean).sum()


def experts_of(rank: int, num_experts: int, num_ranks: int) -> range:
    """Return the numbers of the experts on `rank`: neighbours, and one more on each of the first E % N ranks."""
    each, more = divmod(num_experts, num_ranks)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


def all_to_all(
    rows: Tensor, send_counts: list[int], receive_counts: list[int], group: dist.ProcessGroup | None = None
) -> Tensor:
    """Send `send_counts[r]` of the rows to each rank r, in order; return the rows received, in order of ranks.

    The gradients travel back the same way. Every rank of the group must call this, and then backward, whatever its
    counts.
    """
    # Without the last argument, a rank whose rows need no gradient would not take part in the others' backward pass.
    return _AllToAll.apply(rows, send_counts, receive_counts, group, torch.empty(0, requires_grad=True))


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send_counts, receive_counts, group, _):
        ctx.back = receive_counts, send_counts, group
        return _exchange(rows, send_counts, receive_counts, group)

    @staticmethod
    def backward(ctx, gradient):
        return _exchange(gradient, *ctx.back), None, None, None, None


def _exchange(rows, send_counts, receive_counts, group):
    received = rows.new_empty(sum(receive_counts), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), receive_counts, send_counts, group=group)
    return received


def dispatch(x: Tensor, routing: Routing, group: dist.ProcessGroup | None = None) -> tuple[Tensor, Journey]:
    """Send each token of `x` (T, d) to the experts chosen for it; return the rows (R, d) of this rank's experts.

    They are in order of expert, then of the rank that they come from, then of its tokens. Every rank of the group must
    call this, with the same E, k and d.
    """
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    k, num_experts = routing.experts.shape[-1], routing.probabilities.shape[-1]
    on_rank = [len(experts_of(r, num_experts, num_ranks)) for r in range(num_ranks)]
    mine = on_rank[rank]
    wanted = routing.experts.where(routing.kept, num_experts).flatten()  # (T·k,): dropped ones behind all experts
    counts = torch.bincount(wanted, minlength=num_experts + 1)[:num_experts]
    going = counts.tolist()
    order = wanted.argsort(stable=True)[: sum(going)]
    # Counts first: how many rows each rank sends to each of my experts, (N, mine).
    coming = _exchange(counts, on_rank, [mine] * num_ranks, group).view(num_ranks, mine)
    send_counts = [sum(going[e] for e in experts_of(r, num_experts, num_ranks)) for r in range(num_ranks)]
    receive_counts = coming.sum(1).tolist()
    rows = all_to_all(x[order // k], send_counts, receive_counts, group)  # in order of rank, then of expert
    expert_of_row = torch.arange(mine, device=x.device).repeat(num_ranks).repeat_interleave(coming.flatten())
    arrangement = expert_of_row.argsort(stable=True)
    return rows[arrangement], Journey(order, arrangement, send_counts, receive_counts, coming.sum(0).tolist())


def combine(results: Tensor, routing: Routing, journey: Journey, group: dist.ProcessGroup | None = None) -> Tensor:
    """Send `results` (R, d), in the order of the rows, back; return (T, d), each token's sum weighted by its gates.

    A dropped choice adds nothing, so a token whose choices were all dropped gets zeros.
    """
    num_tokens, k = routing.gates.shape
    as_received = results[journey.arrangement.argsort()]
    back = all_to_all(as_received, journey.receive_counts, journey.send_counts, group)  # in the order they were sent
    choices = back.new_zeros(num_tokens * k, back.shape[1]).index_copy(0, journey.order, back)
    return (routing.gates.unsqueeze(-1) * choices.unflatten(0, (num_tokens, k))).sum(1)


class ExpertLayer(nn.Module):
    """A router and `num_experts` experts over the ranks of `group`; (…, d) → (…, d), as a transformer block's MLP.

    `make_expert()` is called for every expert on every rank, which keeps its own: with the same seed, every number of
    ranks has the same model. `experts` maps each of these, by its number as a string, to its module. `routing` is that
    of the last forward pass. The capacity of an expert is counted for each rank's tokens apart, as in GShard's groups:
    N ranks equal one device that routes N groups of tokens one after the other.
    """

    routing: Routing

    def __init__(
        self, d: int, num_experts: int, make_expert: Callable[[], nn.Module], k: int = 2,
        capacity_factor: float | None = None, group: dist.ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_experts, self.k, self.capacity_factor, self.group = num_experts, k, capacity_factor, group
        self.router = nn.Linear(d, num_experts, bias=False)
        mine = experts_of(dist.get_rank(group), num_experts, dist.get_world_size(group))
        made = ((number, make_expert()) for number in range(num_experts))
        self.experts = nn.ModuleDict({str(number): expert for number, expert in made if number in mine})

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)  # (T, d)
        capacity = None
        if self.capacity_factor is not None:
            capacity = expert_capacity(len(tokens), self.num_experts, self.k, self.capacity_factor)
        self.routing = route(self.router(tokens), self.k, capacity)
        rows, journey = dispatch(tokens, self.routing, self.group)  # (R, d)
        parts = zip(self.experts.values(), rows.split(journey.rows_per_expert))
        # Every expert runs, also on no rows: then its gradients are zeros, and not None.
        results = torch.cat([rows[:0], *(expert(part) for expert, part in parts)])  # rows[:0]: a rank without experts
        return combine(results, self.routing, journey, self.group).view_as(x)


def expert_layers(model: nn.Module) -> list[ExpertLayer]:
    """Return the model's layers of experts, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, ExpertLayer)]


def average_gradients(model: nn.Module, copies: dist.ProcessGroup, group: dist.ProcessGroup | None = None) -> None:
    """Average the gradients of a model with experts over all ranks of `group`, each of which had its own tokens.

    Those of experts are summed over `copies`, the ranks that hold the same ones, all others over `group`. Both are
    divided by the number of ranks in `group`: an expert's gradient holds the tokens of all ranks that send it some.
    """
    num_ranks = dist.get_world_size(group)
    of_experts = {parameter for layer in expert_layers(model) for parameter in layer.experts.parameters()}
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)  # or this rank would skip a sum
        dist.all_reduce(parameter.grad, group=copies if parameter in of_experts else group)
        parameter.grad /= num_ranks
