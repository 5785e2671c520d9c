"""Ring attention: outputs, gradients and bytes, in real workers, against one process; and wrong versions are found."""

import itertools
import types
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.parallel import context, messages
from course_utils.parallel.context import attend_piece, contiguous, join, merge, ring_attention, zigzag
from course_utils.parallel.messages import Traffic
from tests.helpers.whole_attention import attention, equal_in_all_cases, own_and_true

SOURCE = Path(context.__file__).read_text(encoding="utf-8")
EXACT = dict(rtol=1e-9, atol=1e-12)


def run(worker, *args, world_size):
    return launch(worker, *args, world_size=world_size, backend="gloo", timeout=60).results


# ---- the same answer -------------------------------------------------------------------------------------------------


HEADS = (2, 2, ""), (3, 1, ""), (6, 2, ""), (6, 2, "padded"), (6, 2, "float32")  # of queries, of keys and values


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_outputs_and_gradients_are_those_of_one_process(world_size):
    assert run(equal_in_all_cases, ring_attention, HEADS, world_size=world_size) == [60] * world_size


def equal_however_it_is_cut():
    N, me = dist.get_world_size(), dist.get_rank()
    mixed = torch.randperm(17, generator=torch.Generator().manual_seed(3)).split([9, 0, 8])
    for positions in (contiguous(17, N), zigzag(17, N), list(mixed)):
        for num_pieces in (1, 2, 3, 20):
            ring = partial(ring_attention, positions=positions, causal=True, num_pieces=num_pieces)
            ours, truth = own_and_true(ring, positions, me, (1, 2, 1, 17, 3), causal=True)
            torch.testing.assert_close(ours, truth, **EXACT)


def test_it_may_be_cut_into_any_pieces_and_in_any_order():
    run(equal_however_it_is_cut, world_size=3)


def half_precision_and_large_scores():
    N, me = dist.get_world_size(), dist.get_rank()
    positions = zigzag(12, N)
    q, k, v = (
        torch.randn(1, 2, 12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    own = (x[:, :, positions[me]] for x in (3000 * q, k, v))  # exp of these scores would overflow
    torch.testing.assert_close(ring_attention(*own, positions), attention(3000 * q, k, v)[:, :, positions[me]], **EXACT)
    ring = partial(ring_attention, positions=positions, causal=True)
    ours, truth = own_and_true(ring, positions, me, (1, 4, 2, 12, 8), torch.bfloat16, causal=True)
    assert {x.dtype for x in ours} == {torch.bfloat16}
    torch.testing.assert_close(ours, truth, rtol=0.05, atol=0.05)


def test_large_scores_do_not_overflow_and_half_precision_stays_what_it_is():
    run(half_precision_and_large_scores, world_size=3)


def in_groups():
    """Two rings side by side, of ranks 0 and 2 and of 1 and 3, with different sequences."""
    ring_of = [dist.new_group([0, 2]), dist.new_group([1, 3])][dist.get_rank() % 2]
    positions = zigzag(11, 2)
    ring = partial(ring_attention, positions=positions, causal=True, group=ring_of)
    me, seed = dist.get_rank(ring_of), dist.get_rank() % 2
    ours, truth = own_and_true(ring, positions, me, (2, 2, 2, 11, 3), causal=True, seed=seed)
    torch.testing.assert_close(ours, truth, **EXACT)


def test_rings_of_several_groups_do_not_disturb_each_other():
    run(in_groups, world_size=4)


# ---- its parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s, world_size", [(16, 4), (13, 4), (3, 4), (1, 1), (0, 2), (29, 3)])
@pytest.mark.parametrize("order", [contiguous, zigzag])
def test_each_position_is_on_one_rank_and_joined_in_order(order, s, world_size):
    positions = order(s, world_size)
    assert len(positions) == world_size and torch.cat(positions).sort().values.tolist() == list(range(s))
    x = torch.randn(2, s, 3)
    assert torch.equal(join([x[:, own] for own in positions], positions, 1), x)


def test_the_orders_are_those_that_are_said():
    assert [own.tolist() for own in contiguous(7, 3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [own.tolist() for own in zigzag(8, 2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert [own.tolist() for own in zigzag(9, 2)] == [[0, 1, 2, 7, 8], [3, 4, 5, 6]]


def test_pieces_merged_in_any_order_are_the_whole():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 9, 5, dtype=torch.float64) for _ in range(3))
    k, v = k[:, :2], v[:, :2]
    mask = torch.rand(9, 9) > 0.4
    mask[3], mask[5, :6], mask[5, 6:] = False, False, True  # sees nothing; nothing of the first piece
    o, lse = attend_piece(q, k, v, mask)
    for cuts in (range(9), (slice(6), slice(6, 9)), (slice(6, 9), slice(0), slice(6))):
        mine = q.new_zeros(q.shape), q.new_full(q.shape[:-1], -torch.inf)
        for cut in (slice(i, i + 1) if isinstance(i, int) else i for i in cuts):
            mine = merge(*mine, *attend_piece(q, k[:, :, cut], v[:, :, cut], mask[:, cut]))
        torch.testing.assert_close(mine, (o, lse), **EXACT)
    assert not o[:, :, 3].any() and (lse[:, :, 3] == -torch.inf).all() and lse[:, :, 5].isfinite().all()


def refusals():
    positions, x = contiguous(6, dist.get_world_size()), torch.ones(1, 2, 3, 4)
    told = []
    for q, k, v in ((x[:, :, :2], x[:, :, :2], x[:, :, :2]), (x, x, x[..., :2]), (x[:, :1], x, x), (x, x[:, :, 1:], x)):
        with pytest.raises(ValueError) as caught:
            ring_attention(q, k, v, positions)
        told.append(str(caught.value))
    return told


def test_what_does_not_fit_is_refused_before_anything_is_sent():
    for rank, (first, *others) in enumerate(run(refusals, world_size=2)):
        assert first == f"q has 2 tokens, and positions gives rank {rank} 3 of 6"
        assert all("the heads of q a multiple" in text for text in others)


# ---- what is sent, and who works how long ----------------------------------------------------------------------------


def count_bytes(cases):
    counted = []
    for order, (b, heads, kv_heads, s, d), dtype in cases:
        positions = order(s, dist.get_world_size())
        own = positions[dist.get_rank()]
        leaves = [torch.randn(b, n, len(own), d, dtype=dtype, requires_grad=True) for n in (heads, kv_heads, kv_heads)]
        with Traffic() as forward:
            o = ring_attention(*leaves, positions, causal=True)
        with Traffic() as backward:
            o.sum().backward()
        assert not forward.collectives and not backward.collectives
        counted.append((forward.sent, backward.sent))
    return counted


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_bytes_sent_are_the_formulas(world_size):
    cases = [
        (order, (2, 4, kv_heads, s, 3), dtype)
        for order in (contiguous, zigzag)
        for s, kv_heads, dtype in ((24, 4, torch.float64), (23, 2, torch.float32), (3, 1, torch.bfloat16))
    ]
    for rank, counted in enumerate(run(count_bytes, cases, world_size=world_size)):
        for (order, (b, _, kv_heads, s, d), dtype), (forward, backward) in zip(cases, counted):
            held = [len(own) for own in order(s, world_size)]
            row = 2 * b * kv_heads * d * dtype.itemsize  # keys and values of one token
            keys = [row * held[(rank - step) % world_size] for step in range(world_size - 1)]
            gradients = [row * held[(rank - step) % world_size] for step in range(1, world_size)]
            assert {dst for dst, _ in forward + backward} <= {(rank + 1) % world_size}
            assert [number for _, number in forward] == [number for number in keys if number]
            assert sum(number for _, number in backward) == sum(keys) + sum(gradients)
            if s % world_size == 0:
                assert sum(number for _, number in backward) == 2 * (world_size - 1) * row * s // world_size


def count_pairs(order, num_pieces):
    """The numbers of pairs of query and key of this rank's steps, with where a message began and was waited for."""
    story, start, attend = [], messages.start_exchange, context.attend_piece

    class Noted:
        def __init__(self, message):
            self._message = message

        def wait(self):
            self._message.wait()
            story.append("wait")

    def noted_start(*args, **options):
        story.append("start")
        return Noted(start(*args, **options))

    def noted_attend(q, k, v, mask):
        story.append(q.shape[2] * k.shape[2])
        return attend(q, k, v, mask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "start_exchange", noted_start)
        patch.setattr(context, "attend_piece", noted_attend)
        positions = order(64, dist.get_world_size())
        x = torch.randn(1, 1, len(positions[dist.get_rank()]), 2)
        ring_attention(x, x, x, positions, causal=True, num_pieces=num_pieces)
    return story


@pytest.mark.parametrize("order, num_pieces, least, most", [(contiguous, 16, 1.7, 1.75), (zigzag, 2, 1, 1.05)])
def test_with_the_zigzag_a_causal_mask_is_equal_work_for_all_ranks(order, num_pieces, least, most):
    stories = run(count_pairs, order, num_pieces, world_size=4)
    work = [sum(event for event in story if isinstance(event, int)) for story in stories]
    assert least <= max(work) * 4 / sum(work) <= most
    assert sum(work) < 0.6 * 64 * 64, "about half of all pairs are masked"


def test_messages_run_beside_the_products():
    for story in run(count_pairs, zigzag, 2, world_size=4):
        events = [name for name, _ in itertools.groupby("product" if isinstance(e, int) else e for e in story)]
        assert events == ["start", "product", "wait"] * 3 + ["product"]


# ---- wrong versions --------------------------------------------------------------------------------------------------

OWN, VISITING = "self._cut(self.positions[self.me])", "self._cut(self.positions[self.visitor(step)])"
NEXT = "                keys_message.wait()\n                kv = following"
NEXT_FORWARD = " message.wait()\n                kv = following"
WEIGHTS = "_weights(_scores(q, k, mask), _grouped(lse.unsqueeze(-1), kv_heads).squeeze(-1))"
WRONG = {
    "no rescaling of the running sum": ("return old * o + new * new_o, both", "return o + new_o, both"),
    "sums merged by the larger": ("both = torch.logaddexp(lse, new_lse)", "both = torch.maximum(lse, new_lse)"),
    "sums added as they are": ("both = torch.logaddexp(lse, new_lse)", "both = lse.nan_to_num(0, 0, 0) + new_lse"),
    "queries masked by local position": (OWN, "self._cut(torch.arange(len(self.positions[self.me])))"),
    "keys masked by local position": (VISITING, "self._cut(torch.arange(len(self.positions[self.visitor(step)])))"),
    "positions of another visitor": (VISITING, "self._cut(self.positions[(self.me + step) % self.num_ranks])"),
    "a query does not see itself": ("keys.to(device) <= queries", "keys.to(device) < queries"),
    "padding is seen": ("self.lengths is not None and keys.max()", "False and keys.max()"),
    "no scale": ("torch.float32)) * q.shape[-1] ** -0.5", "torch.float32))"),
    "no scale backward": (" * scale\n", "\n"),
    "gradients of keys not sent home": ("            at_home += travelled", "            pass"),
    "own part of the keys' gradient forgotten": ("at_home = grad_kv", "at_home = torch.zeros_like(grad_kv)"),
    "each rank forgets what came before": ("grad_kv += travelled", "pass"),
    "last block twice": (
        NEXT_FORWARD, NEXT_FORWARD + " if step + 2 < plan.num_ranks else kv"
    ),
    "gradients of the wrong keys": (NEXT, "                keys_message.wait()"),
    "gradient of the scores without the row's share": (" - _grouped(shared.unsqueeze(-1), kv_heads)", ""),
    "weights of the piece instead of the row": (WEIGHTS, "_scores(q, k, mask).softmax(-1).nan_to_num()"),
    "keys' gradient of the group's first head": (
        "grad_scores.mT @ q_rows", "grad_scores[:, :, : q.shape[2]].mT @ q_rows[:, :, : q.shape[2]]"
    ),
    "heads share the wrong keys": ("x.unflatten(1, (kv_heads, -1))", "x.unflatten(1, (-1, kv_heads)).transpose(1, 2)"),
    "queries' gradient of the last piece": ("grad_q[:, :, rows] += grads[0]", "grad_q[:, :, rows] = grads[0]"),
    "gradients of keys and values exchanged": ("*at_home.to(k.dtype), None", "*at_home.flip(0).to(k.dtype), None"),
}  # fmt: skip


def found_by(versions):
    """Which of these sources' ring attention this rank finds to be wrong, {name: bool}."""
    return {name: not _is_equal(_made(source)) for name, source in versions.items()}


def _made(source):
    module = types.ModuleType("course_utils.parallel.wrong")
    module.__package__ = "course_utils.parallel"
    exec(compile(source, "<wrong>", "exec"), module.__dict__)
    return module.ring_attention


def _is_equal(attend):
    N, me = dist.get_world_size(), dist.get_rank()
    results = []
    for order, causal, lengths in ((zigzag, True, None), (contiguous, True, None), (zigzag, False, [16, 7])):
        positions, options = order(16, N), {"causal": causal, "lengths": lengths}
        ring = partial(attend, positions=positions, **options)
        results.append(own_and_true(ring, positions, me, (2, 4, 2, 16, 4), **options))
    try:
        for ours, truth in results:
            torch.testing.assert_close(ours, truth, **EXACT)
    except AssertionError:
        return False
    return True


def test_wrong_versions_are_found():
    versions = {"as it is": SOURCE}
    for name, (old, new) in WRONG.items():
        assert SOURCE.count(old), name
        versions[name] = SOURCE.replace(old, new)
    ranks = run(found_by, versions, world_size=4)
    assert not any(rank.pop("as it is") for rank in ranks)
    assert [name for name in WRONG if not any(rank[name] for rank in ranks)] == []
    assert len(WRONG) >= 10
