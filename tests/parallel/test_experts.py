"""Experts over ranks equal one device, whatever the counts; bytes are as the formula says; wrong versions are found."""

import types
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils import WorkerError, launch
from course_utils.data import load_text
from course_utils.models import MLP, LanguageModel
from course_utils.parallel import experts
from course_utils.parallel.messages import Traffic
from course_utils.planner.networks import transformer

SOURCE = Path(experts.__file__).read_text(encoding="utf-8")
D, HIDDEN = 6, 10
BALANCE = 0.3  # large, so that an error in the balance loss shows


class Case(NamedTuple):
    """A layer of experts over groups of `expert_ranks` neighbours; `sizes` are the ranks' numbers of tokens."""

    sizes: tuple
    num_experts: int
    k: int
    factor: float | None = None
    expert_ranks: int | None = None  # None: all
    pulled: tuple = ()  # what the router adds to the scores of the first experts
    detached: bool = False  # the layer's input needs no gradient

    @property
    def ranks_of_experts(self):
        return self.expert_ranks or len(self.sizes)


def cases_of(num_ranks):
    """The cases for a number of ranks: every one differs from the last in little."""
    even, uneven, none = (5,) * num_ranks, tuple(range(3, 3 + num_ranks)), (4, 0, 7, 3)[:num_ranks]
    many = (8,) * num_ranks
    yield from (Case(even, num_experts, k) for num_experts in (4, 5, 3) for k in (1, 2))
    yield from (Case(sizes, 5, k) for sizes in (uneven, none) for k in (1, 2))  # a rank without tokens
    yield from (Case(sizes, 4, k, pulled=(-9, 9)) for sizes in (even, none) for k in (1, 2))  # nobody comes, or all
    yield from (Case(none, num_experts, 1, pulled=(9,)) for num_experts in (1, 2, 6))  # a rank without experts
    yield from (Case(sizes, 4, k, factor) for sizes in (many, none) for k in (1, 2) for factor in (0.5, 1.0))
    yield Case(many, 4, 2, 1.0, pulled=(9, 6))  # most choices are dropped
    yield Case(even, 3, 3)
    yield Case(even, 2, 1, detached=True)
    yield from (Case(uneven, 5, 2, 1.0, size) for size in range(1, num_ranks) if num_ranks % size == 0)
    yield from (Case(none, 3, 1, None, size) for size in range(1, num_ranks) if num_ranks % size == 0)


# ---- one device, as plainly as it can be written


class OneDevice(nn.Module):
    """The model of `Split`, made in the same order from the same seed, whose tokens visit their experts one by one."""

    def __init__(self, case):
        super().__init__()
        self.first = nn.Linear(D, D)
        self.router = nn.Linear(D, case.num_experts, bias=False)
        self.experts = nn.ModuleList(MLP(D, HIDDEN) for _ in range(case.num_experts))
        self.last = nn.Linear(D, D)
        prepare(self.first, self.router, case)
        self.case = case

    def forward(self, x):
        x, case = self.first(x), self.case
        whole, x = x, x.detach() if case.detached else x
        scores, outputs, self.routes = self.router(x), [], []
        probabilities = scores.softmax(-1)
        for group in torch.arange(len(x)).split(case.sizes):  # each rank's tokens are counted apart
            self.routes += routes(scores[group].tolist(), case)
        for token, route in enumerate(self.routes):
            gates = probabilities[token, [expert for expert, _ in route]]
            if case.k > 1:
                gates = gates / gates.sum()
            visits = (gate * self.experts[number](x[token]) for gate, (number, kept) in zip(gates, route) if kept)
            outputs.append(sum(visits, torch.zeros_like(x[token])))
        chosen = [expert for route in self.routes for expert, _ in route]
        share = torch.tensor([chosen.count(e) / len(chosen) for e in range(case.num_experts)], dtype=x.dtype)
        self.balance = case.num_experts * (share * probabilities.mean(0)).sum()
        return self.last(whole + torch.stack(outputs))


def routes(scores, case):
    """Return for each of one rank's tokens a list of (expert, is it kept)."""
    ranked = [sorted(range(case.num_experts), key=lambda e: (-row[e], e))[: case.k] for row in scores]
    most = len(scores) * case.k if case.factor is None else case.factor * case.k * len(scores) / case.num_experts
    taken, kept = [0] * case.num_experts, {}
    for j in range(case.k):  # first choices before second ones
        for token, chosen in enumerate(ranked):
            kept[token, j] = taken[chosen[j]] < most  # as many as the capacity rounded up
            taken[chosen[j]] += 1
    return [[(expert, kept[token, j]) for j, expert in enumerate(chosen)] for token, chosen in enumerate(ranked)]


def prepare(first, router, case):
    """Make the last feature of a token 1, so that the router can prefer experts; experts 1 and 2 tie."""
    with torch.no_grad():
        first.weight[-1], first.bias[-1] = 0, 1
        router.weight[:, -1] = torch.tensor([*case.pulled, *[0] * case.num_experts][: case.num_experts])
        if not case.pulled:
            router.weight[1:3] = 0


def tokens(case, dtype):
    generator = torch.Generator().manual_seed(sum(case.sizes))
    return torch.randn(sum(case.sizes), D, generator=generator, dtype=torch.float64).to(dtype)


def on_one_device(case, dtype):
    """Return the model after a step, with the output, the inputs' gradients and the balance loss."""
    torch.manual_seed(17)
    model, x = OneDevice(case).to(dtype), tokens(case, dtype).requires_grad_()
    y = model(x)
    (y.square().sum() / len(x) + BALANCE * model.balance).backward()
    return model, y.detach(), x.grad, model.balance.item()


# ---- over ranks


class Split(nn.Module):
    def __init__(self, case, module, group):
        super().__init__()
        self.first = nn.Linear(D, D)
        self.layer = module.ExpertLayer(D, case.num_experts, lambda: MLP(D, HIDDEN), case.k, case.factor, group)
        self.last = nn.Linear(D, D)
        prepare(self.first, self.layer.router, case)
        self.case = case

    def forward(self, x):
        x = self.first(x)
        return self.last(x + self.layer(x.detach() if self.case.detached else x))


def groups_of(case):
    """Return this rank's group that shares experts, and the one of those that hold the same ones."""
    rank, num_ranks, size = dist.get_rank(), dist.get_world_size(), case.ranks_of_experts
    sharing = [dist.new_group(range(first, first + size)) for first in range(0, num_ranks, size)]
    copies = [dist.new_group(range(place, num_ranks, size)) for place in range(size)]
    return sharing[rank // size], copies[rank % size]


def step(case, dtype, module, groups):
    """A step on this rank: output, gradients by the names of one device, balance loss, collectives, rows per expert."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17)
    model = Split(case, module, groups[0]).to(dtype)
    x = tokens(case, dtype).split(case.sizes)[rank].clone().requires_grad_()
    with Traffic() as traffic:
        y = model(x)
        num_forward = len(traffic.collectives)
        loss = y.square().sum() / sum(case.sizes) * num_ranks  # the mean over ranks is that of all tokens
        balance = module.balance_loss(model.layer.routing)
        (loss + BALANCE * balance).backward()
    module.average_gradients(model, groups[1])
    gradients = {name.replace("layer.", ""): p.grad for name, p in model.named_parameters()}
    gradients["x"] = x.grad / num_ranks
    dist.all_reduce(balance := balance.detach())
    return y.detach(), gradients, balance.item() / num_ranks, (num_forward, traffic.collectives)


def all_steps(cases, dtypes, *sources):
    """Return for each source of the module a list with the steps of all cases."""
    groups = {size: groups_of(Case((), 1, 1, None, size)) for size in sorted({case.ranks_of_experts for case in cases})}
    done = []
    for source in sources or [SOURCE]:
        module = types.ModuleType("experts")
        exec(compile(source, "experts", "exec"), vars(module))
        done.append([step(case, dtype, module, groups[case.ranks_of_experts]) for dtype in dtypes for case in cases])
    return done


def differences(num_ranks, cases, dtypes, *sources, **options):
    """Return for each source of the module what of its steps over ranks is not as on one device."""
    run = launch(all_steps, cases, dtypes, *sources, world_size=num_ranks, backend="gloo", **options)
    truths = [(case, on_one_device(case, dtype)) for dtype in dtypes for case in cases]
    return [
        [each for (case, truth), parts in zip(truths, zip(*steps)) for each in unequal(case, truth, parts)]
        for steps in zip(*run.results)
    ]


def unequal(case, truth, parts):
    """Yield what of the ranks' `parts` is not as on one device."""
    model, y, grad_x, balance = truth
    dtype, num_ranks = y.dtype, len(parts)
    truths = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    for rank, (part, gradients, loss, _) in enumerate(parts):
        truths |= {"x": grad_x.split(case.sizes)[rank], "balance": torch.tensor(balance, dtype=dtype)}
        truths["y"] = y.split(case.sizes)[rank]
        found = gradients | {"y": part, "balance": torch.tensor(loss, dtype=dtype)}
        bars = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {}
        for name, got in found.items():
            if not is_close(got, truths[name], bars):
                yield f"{name} on rank {rank} of {case}"
    held = [sorted(name for name in part[1] if name.startswith("experts")) for part in parts]
    for first in range(0, num_ranks, case.ranks_of_experts):  # each group has every expert once
        names = sorted(sum(held[first : first + case.ranks_of_experts], []))
        if names != sorted(name for name in truths if name.startswith("experts")):
            yield f"experts held in {case}"


def is_close(got, truth, bars):
    try:
        torch.testing.assert_close(got, truth, **bars)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_experts_over_ranks_equal_one_device(num_ranks):
    assert differences(num_ranks, list(cases_of(num_ranks)), [torch.float64, torch.float32]) == [[]]


def test_the_cases_are_those_that_they_are_meant_to_be():
    seen = set()
    for case in cases_of(3):
        routes = on_one_device(case, torch.float64)[0].routes
        visits = [visit for route in routes for visit in route]
        visited = {expert for expert, _ in visits}
        seen |= {"dropped"} if not all(kept for _, kept in visits) else set()
        seen |= {"empty experts"} if len(visited) < case.num_experts else set()
        seen |= {"all to one"} if len(visited) == 1 < case.num_experts else set()
        seen |= {"a token with nothing"} if any(not any(kept for _, kept in route) for route in routes) else set()
    assert seen == {"dropped", "empty experts", "all to one", "a token with nothing"}


# ---- wrong versions

HARD = [
    Case((5, 5, 5, 5), 4, 2),
    Case((5, 5, 5, 5), 5, 2),
    Case((9, 0, 7, 6), 4, 2, 1.0),
    Case((5, 6, 5, 4), 4, 1, 0.6),
    Case((4, 0, 7, 3), 3, 1, pulled=(2,)),
    Case((3, 4, 5, 6), 5, 2, 1.0, 2),
    Case((4, 4, 4, 4), 2, 1, detached=True),
]

WRONG = {
    "rows are not sorted by expert": ("return rows[arrangement], Journey(", "return rows, Journey("),
    "results go back in the experts' order": ("results[journey.arrangement.argsort()]", "results"),
    "results go back in an order that is not the inverse": (".arrangement.argsort()]", ".arrangement]"),
    "what came back is not put in the order of tokens": (
        "index_copy(0, journey.order, back)",
        "index_copy(0, torch.arange(len(back)), back)",
    ),
    "dropped choices stand where sent ones do": ("[: sum(going)]", "[len(wanted) - sum(going) :]"),
    "gates are applied twice": ("(routing.gates.unsqueeze", "(routing.gates.square().unsqueeze"),
    "gates are not renormalised": ("if k > 1 if renormalise", "if False if renormalise"),
    "the one gate is renormalised": ("if k > 1 if renormalise", "if True if renormalise"),
    "gates are renormalised over the choices that are kept": (
        "    return Routing(experts, gates, kept",
        "    gates = gates / (gates * kept).sum(-1, keepdim=True).clamp(min=1e-9) if k > 1 else gates\n"
        "    return Routing(experts, gates, kept",
    ),
    "gates carry no gradient": ("gates = probabilities.gather", "gates = probabilities.detach().gather"),
    "ties go to the higher index": (
        "scores.argsort(dim=-1, descending=True, stable=True)",
        "(num_experts - 1 - scores.flip(-1).argsort(dim=-1, descending=True, stable=True))",
    ),
    "the capacity is filled token by token": (
        "wanted = F.one_hot(experts.T.flatten(), num_experts)  # (k·T, E): all first choices, then all second ones\n"
        "    before = wanted.cumsum(0) - wanted\n"
        "    return (before * wanted).sum(-1).view(experts.T.shape).T",
        "wanted = F.one_hot(experts.flatten(), num_experts)\n"
        "    before = wanted.cumsum(0) - wanted\n"
        "    return (before * wanted).sum(-1).view(experts.shape)",
    ),
    "one too few fit": ("num_experts) < capacity", "num_experts) < capacity - 1"),
    "the capacity is rounded down": ("math.ceil(", "math.floor("),
    "the balance loss counts this rank's choices": ("dist.all_reduce(counts, group=group)", "pass"),
    "the balance loss counts the choices that are kept": (
        "bincount(routing.experts.flatten()",
        "bincount(routing.experts[routing.kept]",
    ),
    "the balance loss has counts that carry a gradient": (
        "share = counts.to(routing.probabilities) / num_choices",
        "share = counts.to(routing.probabilities) / num_choices + (p := routing.probabilities.sum(0)) - p.detach()",
    ),
    "each rank's balance loss is a mean over its own tokens": (
        "routing.probabilities.sum(0) * k * dist.get_world_size(group) / num_choices",
        "routing.probabilities.sum(0) / max(1, len(routing.probabilities))",
    ),
    "gradients stay where they are": (
        "return _exchange(gradient, *ctx.back), None",
        "return gradient.new_zeros(sum(ctx.back[1]), *gradient.shape[1:]), None",
    ),
    "experts are not summed over their copies": (
        "        dist.all_reduce(parameter.grad,",
        "        if parameter in of_experts:\n"
        "            parameter.grad /= num_ranks\n"
        "            continue\n"
        "        dist.all_reduce(parameter.grad,",
    ),
    "experts are divided by the number of their copies": (
        "parameter.grad /= num_ranks",
        "parameter.grad /= dist.get_world_size(copies) if parameter in of_experts else num_ranks",
    ),
    "dense gradients are summed over copies of experts": (
        "group=copies if parameter in of_experts else group",
        "group=copies",
    ),
    "a rank makes its own experts only": (
        "for number in range(num_experts))\n        self.experts",
        "for number in mine)\n        self.experts",
    ),
}


STUCK = {  # ranks wait for one another, or send more or less than is expected
    "counts are not exchanged": (
        "_exchange(counts, on_rank, [mine] * num_ranks, group).view(num_ranks, mine)",
        "counts[:mine].repeat(num_ranks, 1)",
    ),
    "a rank without rows skips the all-to-all": (
        "    dist.all_to_all_single(received,",
        "    if len(rows) or sum(receive_counts): dist.all_to_all_single(received,",
    ),
    "gradients travel with the counts of the forward pass": (
        "ctx.back = receive_counts, send_counts",
        "ctx.back = send_counts, receive_counts",
    ),
    "a rank whose input needs no gradient takes no part": ("empty(0, requires_grad=True)", "empty(0)"),
    "a rank without experts joins nothing": ("torch.cat([rows[:0], *(", "torch.cat([*("),
}


def mistaken(old, new):
    assert SOURCE.count(old) == 1, f"the source has changed, so must the wrong version: {old}"
    return SOURCE.replace(old, new)


def test_wrong_versions_are_found_and_the_right_one_is_not():
    cases = [case for case in HARD if not case.detached]
    right, *found = differences(4, cases, [torch.float64], SOURCE, *(mistaken(*pair) for pair in WRONG.values()))
    assert not right
    assert not [name for name, differs in zip(WRONG, found) if not differs]


def test_averaging_experts_over_all_ranks_is_found():
    """The classic mistake: without a word where ranks have equally many experts, and only experts are wrong."""
    cases = [Case((5, 5, 5, 5), 4, 2), Case((3, 4, 5, 6), 4, 2, None, 2)]
    wrong = mistaken("group=copies if parameter in of_experts else group", "group=group")
    for case in cases:
        (found,) = differences(4, [case], [torch.float64], wrong)
        assert found and all(each.startswith("experts") for each in found)


@pytest.mark.parametrize("name", STUCK)
def test_a_wrong_version_that_gets_stuck_is_found(name):
    with pytest.raises(WorkerError):
        differences(4, HARD, [torch.float64], mistaken(*STUCK[name]), timeout=4)


def test_the_cases_for_wrong_versions_find_nothing_in_the_right_one():
    assert differences(4, HARD, [torch.float64]) == [[]]


# ---- bytes


def bytes_of(case, model, rank, itemsize):
    """The bytes that each collective of a step fills on a rank, by a formula: forward, balance loss, backward."""
    size, E = case.ranks_of_experts, case.num_experts
    own = list(range(E)) if size == 1 else [e for e in range(E) if e in experts.experts_of(rank % size, E, size)]
    routes = torch.arange(len(model.routes)).split(case.sizes)
    group = range(rank // size * size, rank // size * size + size)
    visits = [[visit for token in routes[r] for visit in model.routes[token]] for r in range(len(case.sizes))]
    arriving = sum(kept and expert in own for r in group for expert, kept in visits[r]) * D * itemsize
    returning = sum(kept for _, kept in visits[rank]) * D * itemsize
    return [8 * size * len(own), arriving, returning], [8 * E], [arriving, returning]


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_bytes_are_those_of_the_formula(num_ranks):
    cases = HARD if num_ranks == 4 else list(cases_of(1))[:4]
    run = launch(all_steps, cases, [torch.float64], world_size=num_ranks, backend="gloo")
    for case, parts in zip(cases, zip(*(steps for (steps,) in run.results))):
        model = on_one_device(case, torch.float64)[0]
        for rank, (*_, (num_forward, collectives)) in enumerate(parts):
            forward, balance, backward = bytes_of(case, model, rank, 8)
            assert [num_bytes for _, num_bytes in collectives] == forward + balance + backward, (case, rank)
            assert num_forward == 3
            assert {name for name, _ in collectives} == {"alltoall_base", "allreduce"}


def send_a_blocks_tokens(samples, sequence):
    torch.manual_seed(dist.get_rank())
    expert = lambda: nn.Sequential(nn.Linear(D, HIDDEN, bias=False), nn.ReLU(), nn.Linear(HIDDEN, D, bias=False))
    layer = experts.ExpertLayer(D, 4, expert, k=2)
    with Traffic() as traffic:
        layer(torch.randn(samples, sequence, D))
    of_experts = sum(p.numel() for p in layer.experts.parameters())
    return [num_bytes for _, num_bytes in traffic.collectives], of_experts, layer.router.weight.numel()


def test_the_planner_counts_the_same_bytes_and_parameters():
    samples, s = 3, 8
    sizes = dict(heads=2, sequence=s, vocabulary=9, biases=False, feed_forward=HIDDEN, element_bytes=4)
    block, dense = (transformer(D, 1, experts=E, chosen=2, **sizes).layers[1] for E in (4, 1 + 1))
    planned = samples * block.dispatched
    run = launch(send_a_blocks_tokens, samples, s, world_size=2, backend="gloo").results
    arriving, returning = zip(*(num_bytes[1:] for num_bytes, *_ in run))
    assert returning == (planned, planned), "every rank gets back what it sent"
    assert sum(arriving) == 2 * planned, "the planner's all-to-all is one of equal parts: the mean over ranks"
    assert sum(of_experts for _, of_experts, _ in run) == block.expert_parameters
    assert run[0][2] == D * 4 == block.parameters - dense.parameters + D * 2


# ---- the rest


def steps_twice():
    case = Case((5, 5, 5), 4, 2)
    (first,), (again,) = all_steps([case], [torch.float32], SOURCE, SOURCE)
    return torch.equal(first[0], again[0]) and all(torch.equal(first[1][name], again[1][name]) for name in first[1])


def test_a_step_again_gives_the_same_bits():
    assert launch(steps_twice, world_size=3, backend="gloo").results == [True] * 3


def write_a_text(codes, copies):
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    model = LanguageModel(61, d=8, head_dim=4, make_mlp=lambda: experts.ExpertLayer(8, 3, lambda: MLP(8, 16))).double()
    x, y = (half.chunk(num_ranks)[rank] for half in codes)
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss += 0.1 * sum(experts.balance_loss(layer.routing) for layer in experts.expert_layers(model))
    loss.backward()
    alone, _ = dist.new_subgroups(group_size=1)
    experts.average_gradients(model, alone)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_a_language_model_with_experts_is_the_same_on_two_ranks():
    codes = load_text().windows(4, 16)
    (truth,), parts = (launch(write_a_text, codes, None, world_size=n, backend="gloo").results for n in (1, 2))
    assert {*truth} == {*parts[0], *parts[1]}
    for part in parts:
        for name, gradient in part.items():
            torch.testing.assert_close(
                gradient, truth[name], rtol=1e-9, atol=1e-12, msg=lambda why, n=name: f"{n}: {why}"
            )


def average_what_a_rank_lacks():
    layer = nn.Linear(2, 1, bias=False)
    nn.init.ones_(layer.weight)
    layer.register_parameter("frozen", nn.Parameter(torch.ones(3), requires_grad=False))
    if dist.get_rank() == 0:
        layer(torch.tensor([2.0, 4.0])).sum().backward()
    experts.average_gradients(layer, None)
    return layer.weight.grad.tolist(), layer.frozen.grad


def test_a_gradient_that_a_rank_lacks_counts_as_zeros_and_a_frozen_parameter_as_nothing():
    assert launch(average_what_a_rank_lacks, world_size=2, backend="gloo").results == [([[1.0, 2.0]], None)] * 2


def test_capacity_counted_over_all_tokens_together_would_drop_others():
    scores = torch.tensor([[2.0, 1.0]] * 2 + [[1.0, 2.0]] * 2)
    together = experts.route(scores, 1, experts.expert_capacity(4, 2, 1, 1.0)).kept
    apart = [experts.route(half, 1, experts.expert_capacity(2, 2, 1, 1.0)).kept for half in scores.split(2)]
    assert together.all() and torch.cat(apart).tolist() == [[True], [False]] * 2


@pytest.mark.parametrize("k", [0, 4, -1, None])
def test_a_token_visits_no_more_experts_than_there_are(k):
    with pytest.raises(ValueError, match=f"k is {k}.*1 to 3 of 3 experts"):
        experts.route(torch.zeros(2, 3), k)


def test_experts_are_spread_over_ranks_and_neighbours_stay_together():
    assert [list(experts.experts_of(rank, 7, 3)) for rank in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [len(experts.experts_of(rank, 2, 4)) for rank in range(4)] == [1, 1, 0, 0]
