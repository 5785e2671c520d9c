"""Checks of chapter 17: routing, dispatch and combine, the balance loss, groups that average, a published model."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ...checks.expect import (
    EQUAL,
    case,
    expect,
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
from ...checks.watch.calls import forbid
from ...checks.watch.collectives import Collectives
from ...parallel import experts as course

_SINGLE, _TIED, _LARGE = "in float32", "equal scores", "large scores"


def _without_the_courses():
    return forbid(course.__name__, instead="it is yours to write")


def _close(odd):
    return 1e-5 if odd == _SINGLE else EQUAL


def _of(number, what):
    return f"{number} {what}{'s' * (number != 1)}"


# ---- 17.1 ---------------------------------------------------------------------------------------------------------

_ROUTED = (  # tokens, experts, k, capacity, peculiarity
    (7, 4, 2, 3, ""),
    (12, 5, 3, 5, ""),
    (9, 3, 1, 2, ""),
    (6, 4, 4, 20, ""),
    (8, 6, 2, 2, _LARGE),
    (40, 32, 3, 4, _TIED),
    (5, 4, 2, 0, ""),
    (3, 1, 1, 2, ""),
    (11, 5, 2, 4, _SINGLE),
)


def check_17_1(route):
    """`route(scores, k, capacity)` returns experts (T, k) and gates (T, k)."""
    run(_judge_routes, route)
    return (
        f"{len(_ROUTED)} batches of tokens: experts, gates, what is dropped, and the gradient of the scores are right."
    )


def _judge_routes(route):
    torch.manual_seed(171)
    for num_tokens, num_experts, k, capacity, odd in _ROUTED:
        scores = torch.randn(num_tokens, num_experts, dtype=torch.float32 if odd == _SINGLE else torch.float64)
        scores = {_LARGE: 50 * scores, _TIED: scores.round()}.get(odd, scores)
        which = f"{_of(num_tokens, 'token')}, {_of(num_experts, 'expert')}, k = {k}, capacity {capacity}"
        with case(which + (odd and f", {odd}")):
            _judge_route(route, scores, k, capacity, _close(odd))


def _judge_route(route, scores, k, capacity, close):
    leaf, right = scores.clone().requires_grad_(), course.route(scores, k, capacity, renormalise=True)
    with unchanged(scores=leaf), _without_the_courses():
        results = route(leaf, k, capacity)
    chosen, gates = expect_row(results, 2, "what came back", of="experts and gates")
    with case("experts"):
        chosen = expect_tensor(chosen, like=right.experts, what="it")
        _judge_choice(chosen, right.experts, scores)
    truth_leaf = scores.clone().requires_grad_()
    again = course.route(truth_leaf, k, capacity, renormalise=True)
    truth = again.gates * again.kept
    with case("gates"):
        got = expect_tensor(gates, like=truth, what="it")
        explain(got, truth.detach(), _gate_suspects(right, scores, capacity), otherwise=_GATES, close=close)
        if k > 1 and capacity:
            _judge_gate_gradient(gates, leaf, truth, truth_leaf, close)


def _judge_choice(chosen, right, scores):
    num_experts = scores.shape[1]
    if same(chosen, right):
        return
    is_number = bool(((chosen >= 0) & (chosen < num_experts)).all())
    expect(is_number, f"it has numbers that no expert has: they are 0 to {num_experts - 1}, also where one is full")
    expect(
        not torch.equal(scores.gather(1, chosen), scores.gather(1, right)),
        "experts with equal scores are not in the order of their numbers: what does the function that you use promise "
        "about equal values?",
    )
    suspects = {
        "they are in the order of their numbers, and the best should come first": right.sort(1).values,
        "the worst comes first": right.flip(1),
        "those are the lowest scores": scores.argsort(dim=1, stable=True)[:, : right.shape[1]],
    }
    explain(
        chosen, right, suspects, otherwise="which scores of a token are the highest, and does a full expert matter?"
    )


_GATES = "is each a share of the sum over the k chosen, and 0 where the choice was dropped?"


def _gate_suspects(right, scores, capacity):
    k, num_experts = right.experts.shape[1], scores.shape[1]
    shares, kept = right.gates, right.kept
    numbers = torch.arange(kept.numel()).view_as(kept)  # of the choices, token by token

    def kept_in(*queues):
        """The gates that are left if the choices stand in these queues, each with the capacity to itself."""
        keeps = torch.zeros(kept.numel(), dtype=torch.bool)
        for queue in queues:
            taken = [0] * num_experts
            for choice in queue.tolist():
                expert = int(right.experts.flatten()[choice])
                keeps[choice] = taken[expert] < capacity
                taken[expert] += 1
        return shares * keeps.view_as(kept)

    def with_capacity(number):
        return shares * course.route(scores, k, number).kept

    return {
        "they are probabilities over all experts, and do not add up to 1 over the k chosen": kept
        * right.probabilities.gather(1, right.experts),
        "nothing is dropped: how many tokens does an expert take?": shares,
        "what a dropped choice gives up has gone to the token's other choices": shares
        * kept
        / (shares * kept).sum(1, keepdim=True).clamp(min=1e-300),
        "choices queue token by token, and all first choices should come before any second one": kept_in(
            numbers.flatten()
        ),
        "second choices have a queue of their own, and an expert has one capacity for all": kept_in(*numbers.T),
        "the last tokens are served first": kept_in(numbers.flip(0).T.flatten()),
        "the largest gates are served first, and the order asked for is that of the tokens": kept_in(
            shares.flatten().argsort(descending=True, stable=True)
        ),
        "a token that loses one choice loses all": shares * kept.all(1, keepdim=True),
        "an expert takes one more than its capacity": with_capacity(capacity + 1),
        "an expert takes one fewer than its capacity": with_capacity(capacity - 1),
    }


def _judge_gate_gradient(gates, leaf, truth, truth_leaf, close):
    expect(gates.requires_grad, "they carry no gradient, so a router would not learn from them: what cut it off?")
    pull = torch.randn_like(truth)
    (right,) = torch.autograd.grad((truth * pull).sum(), truth_leaf)
    (got,) = torch.autograd.grad((gates * pull).sum(), leaf, allow_unused=True)
    expect(got is not None, "they carry no gradient of the scores, so a router would not learn: what cut it off?")
    said = "the gates are right, and the gradient of the scores through them is not"
    explain(got, right, said=said, otherwise="does it flow through the denominator, too?", close=close)


# ---- 17.2 ---------------------------------------------------------------------------------------------------------

_WIDTH = 64
_TRAFFIC = (  # ranks, tokens of each, how they choose, dtype
    (3, (5, 8, 3), "any", torch.float64),
    (3, (6, 6, 6), "next", torch.float64),
    (3, (4, 0, 7), "any", torch.float64),
    (3, (5, 2, 6), "last", torch.float64),
    (2, (7, 4), "own", torch.float64),
    (4, (3, 9, 1, 0), "any", torch.float32),
    (1, (5,), "any", torch.float64),
)
_CHOICES = {
    "any": "any rank",
    "next": "the next rank",
    "last": "the last rank",
    "own": "their own rank",
}


def check_17_2(visit_experts):
    """`visit_experts(x, ranks, expert)` returns this rank's results in the order of its tokens."""
    for num_ranks in (3, 2, 4, 1):
        which = [settings for settings in _TRAFFIC if settings[0] == num_ranks]
        seen = run(_visit_each, visit_experts, which, world_size=num_ranks)
        for (_, sizes, kind, dtype), parts in zip(which, zip(*seen)):
            single = ", in float32" if dtype == torch.float32 else ""
            tokens = ", ".join(map(str, sizes))
            with case(f"{_of(num_ranks, 'rank')} with {tokens} tokens for {_CHOICES[kind]}{single}"):
                _judge_visits(parts, sizes, kind, dtype)
    return (
        f"{len(_TRAFFIC)} ways to choose, on 1 to 4 ranks: each row visits its expert and comes home, no byte too many."
    )


def _tokens(rank, sizes, kind, dtype):
    """The tokens of a rank, and the rank of each one's expert."""
    generator, num_ranks = torch.Generator().manual_seed(100 * sum(sizes) + rank), len(sizes)
    x = torch.randn(sizes[rank], _WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    anywhere = torch.randint(num_ranks, (sizes[rank],), generator=generator)
    fixed = {"next": (rank + 1) % num_ranks, "last": num_ranks - 1, "own": rank}
    return x, anywhere if kind == "any" else torch.full_like(anywhere, fixed[kind])


def _of_expert(rank, rows):
    return rows.flip(1) * (rank + 2)


def _visit_each(visit_experts, settings):
    return [_visit(visit_experts, *each[1:]) for each in settings]


def _visit(visit_experts, sizes, kind, dtype):
    rank, came = dist.get_rank(), []
    x, ranks = _tokens(rank, sizes, kind, dtype)

    def expert(rows):
        is_rows = isinstance(rows, torch.Tensor) and rows.dim() == 2 and rows.shape[1] == _WIDTH
        expect(is_rows and rows.dtype == dtype, f"your function gave its expert what is not rows of x: {short(rows)}")
        came.append(rows.detach().clone())
        return _of_expert(rank, rows)

    with unchanged(x=x, ranks=ranks), _AllToAlls() as calls, _without_the_courses():
        result = visit_experts(x, ranks, expert)
    calls.expect_waited()
    wait_for_the_others()
    result = result.detach().clone() if isinstance(result, torch.Tensor) else result
    moved = calls.received_bytes + sum(num_bytes for _, num_bytes in calls.collectives)
    return result, torch.cat([x[:0], *came]), moved


class _AllToAlls(Collectives):
    """Collectives that also compares, before each all-to-all, what one rank sends with what another expects."""

    def _meeting(self, name, call):
        if name not in ("alltoall_base", "all_to_all_single"):
            return super()._meeting(name, call)

        def call_late(group, *args, **options):  # what is read before the wait is not there
            return self._call_late(name, call, group, *args, **options)

        meet_and_call = super()._meeting(name, call_late)

        def compare_and_call(group, output, given, output_sizes, input_sizes, *more, **options):
            size = group.size()
            self._told = [
                list(sizes) or [tensor.shape[0] // size] * size
                for tensor, sizes in ((given, input_sizes), (output, output_sizes))
            ]
            return meet_and_call(group, output, given, output_sizes, input_sizes, *more, **options)

        return compare_and_call

    _told = None

    def say(self):
        told, self._told = self._told, None
        return told

    def heard(self, everyone):
        if any(told is None for told in everyone):
            return
        for source, (sends, _) in enumerate(everyone):
            for target, (_, makes_room) in enumerate(everyone):
                expect(
                    sends[target] == makes_room[source],
                    f"rank {source} sends {_of(sends[target], 'row')} to rank {target}, which makes room for "
                    f"{makes_room[source]}: how does a rank know what will come?",
                )


def _judge_visits(parts, sizes, kind, dtype):
    everyone = [_tokens(rank, sizes, kind, dtype) for rank in range(len(sizes))]
    for rank, (result, came, moved) in enumerate(parts):
        with case(f"rank {rank}"):
            x, ranks = everyone[rank]
            _judge_arrived(came, torch.cat([theirs[going == rank] for theirs, going in everyone]), x)
            truth = torch.cat([x[:0], *(_of_expert(r, row[None]) for r, row in zip(ranks.tolist(), x))])
            order = ranks.argsort(stable=True)
            suspects = {
                "the results are in the order in which the rows left; in which order were the tokens?": truth[order],
                "the results were put in order by what sorted the tokens; what undoes a sort?": truth[order][order],
                "those are the tokens, as if no expert had seen them": x,
            }
            question = "does each row come back into the place of its own token?"
            explain(expect_tensor(result, like=truth), truth, suspects, otherwise=question, close=0)
            most = (len(came) + len(x)) * _WIDTH * x.itemsize + 512
            expect(
                moved <= most,
                f"the results are right, but {moved:,} bytes came in, and {most:,} are enough for all rows and counts: "
                "does a row travel to one rank only, and without padding?",
            )


def _judge_arrived(came, truth, x):
    expect(
        len(came) == len(truth),
        f"its expert was given {_of(len(came), 'row')}, and {len(truth)} should come: from whom, and how many?",
    )
    in_order = [rows[rows[:, 0].argsort()] for rows in (came, truth)]
    expect(
        same(*in_order, close=0),
        "its expert was given other tokens than those that chose it: in which order must rows leave?",
    )


# ---- 17.3 ---------------------------------------------------------------------------------------------------------

_BALANCED = ((6, 3, ""), (10, 4, ""), (5, 8, ""), (7, 1, ""), (8, 4, _LARGE), (40, 4, _SINGLE))  # tokens, experts


def check_17_3(balance_loss):
    """`balance_loss(scores)` returns the loss of Switch, and its gradient with respect to the scores (T, E)."""
    run(_judge_losses, balance_loss)
    return f"{len(_BALANCED)} batches of tokens: loss and gradient are right."


def _judge_losses(balance_loss):
    torch.manual_seed(173)
    for num_tokens, num_experts, odd in _BALANCED:
        scores = torch.randn(num_tokens, num_experts, dtype=torch.float32 if odd == _SINGLE else torch.float64)
        scores = 1000 * scores / scores.abs().max() if odd == _LARGE else scores
        with case(f"{_of(num_tokens, 'token')}, {_of(num_experts, 'expert')}{odd and f', {odd}'}"):
            with unchanged(scores=scores), _without_the_courses(), _by_hand():
                results = balance_loss(scores)
            row = expect_row(results, 2, "what came back", of="the loss and its gradient")
            _judge_balance(row, scores, max(_close(odd), 1e-7))  # shares may have been counted in float32


def _by_hand():
    instead = "take the derivative by hand"
    return forbid("torch.autograd:grad", "torch.autograd:backward", "torch._functorch", instead=instead)


def _judge_balance(results, scores, close):
    leaf, num_experts = scores.clone().requires_grad_(), scores.shape[1]
    probabilities = leaf.softmax(1)
    share = torch.bincount(scores.argmax(1), minlength=num_experts).to(scores) / len(scores)
    loss = num_experts * (share * probabilities.mean(0)).sum()
    (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    p, loss = probabilities.detach(), loss.detach()
    with case("the loss"):
        got = results[0]
        if not isinstance(got, torch.Tensor):
            got = torch.tensor(expect_number(got, "it"), dtype=loss.dtype)
        suspects = {
            "the number of experts is missing in it": loss / num_experts,
            "both factors are probabilities, and one should be a count": num_experts * p.mean(0).square().sum(),
            "both factors are counts, and one should be a probability": num_experts * share.square().sum(),
            "one of its factors is a sum over the tokens, and both should be divided by their number": loss
            * len(scores),
        }
        otherwise = "which expert has the highest score, how often, and what is an expert's mean probability?"
        explain(expect_tensor(got, like=loss), loss, suspects, otherwise=otherwise, close=close)
    with case("the gradient"):
        direct = (num_experts * share / len(scores)).expand_as(scores)
        suspects = {
            "that is the gradient of the probabilities; what does softmax add?": direct,
            "softmax has been taken as if each probability depended on its own score alone": direct * p * (1 - p),
            "the share of an expert is treated as if it had a gradient": lambda: _with_soft_share(scores),
            "a mean over tokens has the number of tokens in it": gradient * len(scores),
            "the number of experts is missing in it": gradient / num_experts,
            "its sign is the other one": -gradient,
            "each token should have what its own probabilities leave of the mean": direct * p,
        }
        otherwise = "how does a score change the probabilities of all experts, and those the loss?"
        explain(expect_tensor(results[1], like=gradient), gradient, suspects, otherwise=otherwise, close=close)


def _with_soft_share(scores):
    leaf = scores.clone().requires_grad_()
    mean = leaf.softmax(1).mean(0)
    share = torch.bincount(scores.argmax(1), minlength=scores.shape[1]).to(scores) / len(scores)
    loss = scores.shape[1] * ((share + mean - mean.detach()) * mean).sum()
    return torch.autograd.grad(loss, leaf)[0]


# ---- 17.4 ---------------------------------------------------------------------------------------------------------

_MESHES = (2, 2), (1, 3), (3, 1), (1, 1)  # copies, ranks that share experts
_DENSE = "embed.weight", "blocks.0.mlp.router.weight", "blocks.0.mlp.shared_expert.up.weight", "logits.weight"


def check_17_4(average_gradients):
    """`average_gradients(gradients, mesh)` averages the tensors of {name: gradient} in place."""
    for copies, sharing in _MESHES:
        seen = run(_average, average_gradients, copies, sharing, world_size=copies * sharing)
        with case(f"{copies} × {sharing} ranks, copies × experts"):
            _judge_averages(seen, copies, sharing)
    return "on 1, 3 and 4 ranks, each gradient is summed over the ranks that have its parameter, and divided rightly."


def _gradients(rank, sharing):
    """The gradients of a rank: random, of dense parameters and of its two experts."""
    first = 2 * (rank % sharing)
    experts = [f"blocks.0.mlp.experts.{first + i}.{part}.weight" for i in (0, 1) for part in ("up", "down")]
    names = [*_DENSE[:2], *experts, *_DENSE[2:]]
    generator = torch.Generator().manual_seed(17 + rank)
    return {name: torch.randn(3, 4, generator=generator, dtype=torch.float64) for name in names}


def _average(average_gradients, copies, sharing):
    mesh = init_device_mesh("cpu", (copies, sharing), mesh_dim_names=("copies", "experts"))
    gradients = _gradients(dist.get_rank(), sharing)
    given = dict(gradients)
    with Collectives() as calls, _without_the_courses():
        average_gradients(gradients, mesh)
    calls.expect_waited()
    wait_for_the_others()
    is_in_place = gradients.keys() == given.keys() and all(gradients[name] is given[name] for name in given)
    return {name: gradient.detach().clone() for name, gradient in given.items()}, is_in_place


def _judge_averages(seen, copies, sharing):
    num_ranks = copies * sharing
    everyone = [list(_gradients(rank, sharing).items()) for rank in range(num_ranks)]
    for rank, (after, is_in_place) in enumerate(seen):
        for place, (name, own) in enumerate(everyone[rank]):
            expect(
                is_in_place or not same(after[name], own),
                "the dict holds other tensors than before: an optimizer keeps the old ones, so change those",
            )
            same_experts = range(rank % sharing, num_ranks, sharing)
            neighbours = range(rank // sharing * sharing, rank // sharing * sharing + sharing)
            over = {
                key: sum(everyone[r][place][1] for r in ranks)
                for key, ranks in (("all", range(num_ranks)), ("copies", same_experts), ("sharing", neighbours))
            }
            judge = _judge_dense if name in _DENSE else _judge_expert
            with case(f"rank {rank}"), case(name):
                judge(after[name], own, over, num_ranks, copies)


def _judge_dense(got, own, over, num_ranks, _):
    suspects = {
        "it is the sum, and a mean over ranks is asked for": over["all"],
        "it is the sum over all ranks, divided by another number than theirs": _multiple(got, over["all"]),
        "it is as it was, and other ranks have had other tokens": own,
        "it is summed over the ranks with the same experts; who else has this parameter?": _multiple(
            got, over["copies"]
        ),
        "it is summed over the ranks that share the experts; who else has this parameter?": _multiple(
            got, over["sharing"]
        ),
    }
    explain(got, over["all"] / num_ranks, suspects, otherwise="which ranks have this parameter?")


def _judge_expert(got, own, over, num_ranks, copies):
    suspects = {
        "it is mixed with gradients of other experts: which ranks have this one?": over["all"] / num_ranks,
        "it is mixed with gradients of other experts; who shares, and who has the same?": _multiple(
            got, over["sharing"]
        ),
        "it is averaged over its copies; the tokens of how many ranks are in their sum?": over["copies"] / copies,
        "it is the sum over its copies, not divided": over["copies"],
        "it is the sum over its copies, divided by another number than it should be": _multiple(got, over["copies"]),
        "it is this rank's alone, and its copy on another rank has seen other tokens": _multiple(got, own),
    }
    question = "over which ranks is it a sum, and the tokens of how many are in that sum?"
    explain(got, over["copies"] / num_ranks, suspects, otherwise=question)


def _multiple(got, of):
    """`of` times the number that makes it nearest to `got`."""
    return of * ((got * of).sum() / (of * of).sum())


# ---- 17.5 ---------------------------------------------------------------------------------------------------------

# Qwen3's configurations, from their model cards and the scripts that train them; then made-up ones.
QWEN3_30B_A3B = {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "vocab_size": 151936,
}  # fmt: skip
_MODELS = (  # what differs from Qwen3-30B-A3B, ranks, tokens of each
    ({}, 8, 4096),
    (
        {"hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64, "moe_intermediate_size": 1536},
        16,
        8192,
    ),
    ({"num_experts": 6, "num_experts_per_tok": 1, "num_hidden_layers": 3, "head_dim": 40, "vocab_size": 777}, 3, 30),
    ({"num_experts": 4, "num_experts_per_tok": 4, "num_key_value_heads": 32, "hidden_size": 96}, 2, 10),
    ({"num_experts": 16, "num_experts_per_tok": 2}, 1, 64),
)
_BYTES = 16  # of a parameter in training


def check_17_5(count_model):
    """`count_model(config, num_ranks, tokens)` returns parameters, active, held_bytes, moved_bytes."""
    run(_judge_models, count_model)
    return f"{len(_MODELS)} models, Qwen3-30B-A3B the first of them: parameters and bytes are right to the last one."


def _judge_models(count_model):
    for number, (changes, num_ranks, tokens) in enumerate(_MODELS):
        config = QWEN3_30B_A3B | changes
        name = (
            "Qwen3-30B-A3B" if not number else f"with {', '.join(f'{key} {value}' for key, value in changes.items())}"
        )
        with case(f"{name}, {_of(num_ranks, 'rank')}, {tokens} tokens on each"), unchanged(config=config):
            results = count_model(config, num_ranks, tokens)
        with case(f"{name}, {_of(num_ranks, 'rank')}, {tokens} tokens on each"):
            names = "parameters", "active", "held_bytes", "moved_bytes"
            row = expect_row(results, 4, "what came back", of=", ".join(names))
            _judge_counts([expect_whole(value, what) for what, value in zip(names, row)], config, num_ranks, tokens)


def _judge_counts(counts, config, num_ranks, tokens):
    (parameters, active, held, moved), part = counts, _parts(SimpleNamespace(**config))
    layers, E, k = (config[key] for key in ("num_hidden_layers", "num_experts", "num_experts_per_tok"))
    block = part["attention"] + part["norms"] + part["head_norms"] + part["router"]
    rest = 2 * part["embedding"] + part["last_norm"]
    dense = layers * block + rest
    total, used = dense + layers * E * part["expert"], dense + layers * k * part["expert"]
    with case("parameters"):
        _explain_count(parameters, total, {
            **_left_out(total, part, layers),
            "the product with the vocabulary has a matrix of its own": total - part["embedding"],
            "an expert has three matrices: are all in it?": total - layers * E * part["expert"] // 3,
            "those are the active ones": used,
        })  # fmt: skip
    with case("active"):
        _explain_count(active, used, {
            "those are all of them, and a token visits a few experts": total,
            "only the experts are in it; what else does every token pass?": layers * k * part["expert"],
            "one expert a layer is in it": dense + layers * part["expert"],
            "a token looks up one row of the embedding, but count all of it, as the model's card does": used
            - part["embedding"],
        })  # fmt: skip
    with case("held_bytes"):
        mine = layers * E * part["expert"] // num_ranks
        _explain_count(held, _BYTES * (dense + mine), {
            "all parameters are divided by the ranks, and only experts are spread": _BYTES * total // num_ranks,
            "every expert is in it, and a rank has a part of them": _BYTES * total,
            "only the rank's experts are in it": _BYTES * mine,
            "that is the number of parameters, not of bytes": dense + mine,
            "those are the bytes of the weights alone, and training holds more": 2 * (dense + mine),
            "it has the active experts in it; which are on the rank?": _BYTES * used,
        })  # fmt: skip
    with case("moved_bytes"):
        _judge_moved(moved, config["hidden_size"] * k * tokens * 2, num_ranks, k, layers)


def _judge_moved(moved, once, num_ranks, k, layers):
    """`once` are the bytes of all rows that a rank's tokens send, itself included."""
    truth = 4 * once * (num_ranks - 1) // num_ranks
    _explain_count(moved, truth, {
        "rows that stay on their rank are in it": 4 * once,
        "that is one of the all-to-alls of a layer; how many has a step?": truth // 4,
        "that is the forward pass or the backward pass; a step has both": truth // 2,
        "a token goes to more than one expert": truth // k,
        "how many bytes has a number in bfloat16?": (truth // 2 * 4, truth // 2),
        "those are the bytes of all layers, and one is asked for": truth * layers,
        "those are the bytes of all ranks, and one rank's are asked for": truth * num_ranks,
        "those are the rows that stay, not those that leave": 4 * once // num_ranks,
    })  # fmt: skip


def _left_out(total, part, layers):
    names = {
        "attention": "attention",
        "norms": "two norms of d numbers",
        "head_norms": "norms of queries and keys",
        "router": "router",
    }
    left = {f"does it count the {name} of each layer?": total - layers * part[key] for key, name in names.items()}
    return left | {"does it count the norm after the last layer?": total - part["last_norm"]}


def _explain_count(got, truth, suspects):
    usual = {reason: got if got in (values if isinstance(values, tuple) else (values,)) else None
             for reason, values in suspects.items()}  # fmt: skip
    said = f"{got:,} is too {'many' if got > truth else 'few'}"
    explain(got, truth, usual, said=said, otherwise="does each line of the task's list appear, and once?", close=0)


def _parts(config):
    """The parameters of each part of a model of this form, as modules count them."""
    h, wide = config.hidden_size, config.num_attention_heads * config.head_dim
    narrow = config.num_key_value_heads * config.head_dim

    def linear(num_in, num_out):
        return nn.Linear(num_in, num_out, bias=False, device="meta")

    def norm(width):
        return nn.RMSNorm(width, device="meta")

    modules = {
        "attention": [linear(h, wide), linear(h, narrow), linear(h, narrow), linear(wide, h)],
        "norms": [norm(h), norm(h)],
        "head_norms": [norm(config.head_dim), norm(config.head_dim)],
        "router": [linear(h, config.num_experts)],
        "expert": [linear(h, config.moe_intermediate_size) for _ in range(2)]
        + [linear(config.moe_intermediate_size, h)],
        "embedding": [nn.Embedding(config.vocab_size, h, device="meta")],
        "last_norm": [norm(h)],
    }
    return {name: sum(p.numel() for p in nn.ModuleList(made).parameters()) for name, made in modules.items()}
