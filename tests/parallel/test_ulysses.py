"""Ulysses: outputs, gradients and bytes, in real workers, against one process."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.parallel.context import contiguous, zigzag
from course_utils.parallel.messages import Traffic
from course_utils.parallel.ulysses import ulysses_attention
from tests.helpers.whole_attention import equal_in_all_cases, own_and_true


def run(worker, *args, world_size):
    return launch(worker, *args, world_size=world_size, backend="gloo", timeout=60).results


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_outputs_and_gradients_are_those_of_one_process(world_size):
    N = world_size
    unequal = 3 * N + 3, N + 1  # heads that the ranks do not divide
    kinds = (N, N, ""), (2 * N, N, ""), (*unequal, ""), (*unequal, "padded"), (*unequal, "float32")
    assert run(equal_in_all_cases, ulysses_attention, kinds, world_size=N) == [60] * N


def in_a_group():
    group = [dist.new_group([0, 2]), dist.new_group([1, 3])][dist.get_rank() % 2]
    me, positions = dist.get_rank(group), zigzag(11, 2)
    attend = partial(ulysses_attention, positions=positions, causal=True, group=group)
    ours, truth = own_and_true(attend, positions, me, (2, 3, 3, 11, 3), causal=True, seed=dist.get_rank() % 2)
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-12)


def test_groups_do_not_disturb_each_other():
    run(in_a_group, world_size=4)


def too_few_heads():
    """What is told; and what comes of the way out that it names."""
    positions = contiguous(6, dist.get_world_size())
    options = {"positions": positions, "causal": True}
    with pytest.raises(ValueError) as caught:
        own_and_true(partial(ulysses_attention, **options), positions, dist.get_rank(), (1, 6, 2, 6, 4))

    def repeated(q, k, v):
        return ulysses_attention(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), **options)

    ours, truth = own_and_true(repeated, positions, dist.get_rank(), (1, 6, 2, 6, 4), causal=True)
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-12)
    return str(caught.value)


def test_when_heads_run_out_it_is_said_what_to_do_and_that_is_right():
    for text in run(too_few_heads, world_size=3):
        assert text.startswith("k and v have 2 heads, and there are 3 ranks: each needs at least one")
        assert "repeat the heads with k.repeat_interleave(times, 1)" in text


def count_bytes(b, heads, kv_heads, s, d):
    positions = zigzag(s, dist.get_world_size())
    own = positions[dist.get_rank()]
    leaves = [torch.randn(b, n, len(own), d, requires_grad=True) for n in (heads, kv_heads, kv_heads)]
    with Traffic() as forward:
        o = ulysses_attention(*leaves, positions)
    with Traffic() as backward:
        o.sum().backward()
    assert not forward.sent and not backward.sent
    return len(own), forward.collectives, backward.collectives


@pytest.mark.parametrize("world_size, heads, kv_heads, s", [(1, 2, 2, 8), (2, 4, 2, 8), (4, 8, 4, 16), (3, 8, 4, 10)])
def test_two_all_to_alls_each_way_and_their_bytes_are_the_formulas(world_size, heads, kv_heads, s):
    b, d, per_group = 2, 3, heads // kv_heads
    shares = [len(x) for x in torch.arange(kv_heads).tensor_split(world_size)]
    results = run(count_bytes, b, heads, kv_heads, s, d, world_size=world_size)
    for share, (own, forward, backward) in zip(shares, results):
        of_heads = 4 * b * s * d * share * (per_group + 2)  # bytes of q, k and v of this rank's heads, all tokens
        of_tokens = 4 * b * own * d * heads  # bytes of o of this rank's tokens, all heads
        assert [number for _, number in forward] == [of_heads, of_tokens]
        all_heads, back = 4 * b * own * d * (heads + 2 * kv_heads), 4 * b * s * d * share * per_group
        assert [number for _, number in backward] == [back, all_heads]
