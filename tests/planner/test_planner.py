"""The planner against published tables: formulas to the last printed digit, measurements within the stated errors."""

import math
from dataclasses import replace

import pytest
import torch

from course_utils import planner
from course_utils.planner import (
    NCCL_NVLINK,
    NCCL_PCIE,
    Cluster,
    Group,
    Layer,
    Method,
    Network,
    State,
    Way,
    Work,
    all_reduce,
    half,
    plan,
    transformer,
)  # fmt: skip
from course_utils.planner.collective_costs import INTERFERENCE
from course_utils.planner.counting import count
from course_utils.planner.footprint import kept_bytes
from course_utils.planner.methods import stages

A100, H100 = Cluster("A100-80"), Cluster("H100")
GPT = transformer(64, 6, 4, 32, 100)
WIDE = transformer(64, 6, 16, 32, 100)


def network(parameters, num_layers=1):
    return Network(tuple(Layer(f"part {i}", parameters / num_layers, 4.0) for i in range(num_layers)))


def printed(value, text):
    """Whether `value` reads `text` with as many decimals."""
    decimals = len(text.partition(".")[2])
    return f"{value:.{decimals}f}" == f"{float(text):.{decimals}f}"


@pytest.mark.parametrize(
    "shard, row",
    [
        ("optimizer", "120 52.5 35.6 31.4 30.4 30.1"),
        ("gradients", "120 41.3 21.6 16.6 15.4 15.1"),
        ("full", "120 30 7.5 1.88 .47 .12"),
    ],
)
def test_states_are_those_of_zero(shard, row):
    for data, text in zip((1, 4, 16, 64, 256, 1024), row.split()):
        held = plan(network(7.5e9), A100, Method(data, shard=shard), data).memory
        held = sum(held[name].value for name in ("weights", "gradients", "optimizer state"))
        # 41.25 is printed as 41.3, and Python rounds halves to the even digit.
        assert printed(held / 1e9 + 1e-9, text), (data, held)


def test_states_are_those_of_deepspeed_with_its_own_bytes():
    state = State(weights=2, gradients=2, optimizer=16, sent=2)
    held = plan(network(2851e6), A100, Method(8, shard="optimizer", state=state, buckets=False), 8).memory.value / 2**30
    offloaded = plan(network(2851e6), A100, Method(8, state=State(2, 0, 0, 2), buckets=False), 8).memory.value / 2**30
    assert printed(held, "15.93") and printed(offloaded, "5.31")


@pytest.mark.parametrize("replicas", [1, 2])
def test_fsdp_gathers_its_largest_unit(replicas):
    held = plan(network(8e9, 4), A100, Method(8, shard="full", replicas=replicas), 8).memory
    assert held["weights"].value == 2 * 8e9 / (8 / replicas)
    assert held["gathered weights"].value == 2 * 2e9


@pytest.mark.parametrize("h, layers, heads, s, V, billions", [
    (2304, 24, 24, 2048, 51200, "1.7"), (3072, 30, 32, 2048, 51200, "3.6"), (6144, 40, 48, 2048, 51200, "18.4"),
    (12288, 80, 96, 2048, 51200, "145.6"), (20480, 105, 128, 2048, 51200, "529.6"),
])  # fmt: skip
def test_parameters_and_products_are_those_of_narayanan(h, layers, heads, s, V, billions):
    model = transformer(h, layers, heads, s, V)
    assert model.parameters == pytest.approx(
        12 * layers * h**2 * (1 + 13 / (12 * h) + (V + s) / (12 * layers * h)), rel=1e-12
    )
    assert printed(model.parameters / 1e9, billions)
    said = plan(model, A100, Method(checkpointing="full"), 1)
    assert said.flops_per_s * said.step.value == pytest.approx(
        96 * s * layers * h**2 * (1 + s / (6 * h) + V / (16 * layers * h))
    )


def test_llama_has_its_parameters():
    sizes = {"feed_forward": 14336, "gated": True, "kv_heads": 8, "biases": False, "positions": False, "tied": False}
    # Without the norm before its head, 4,096.
    assert transformer(4096, 32, 32, 8192, 128256, **sizes).parameters == 8_030_261_248 - 4096


@pytest.mark.parametrize(
    "method, per_token",
    [
        (Method(), lambda h, a, s, t: 34 + 5 * a * s / h),
        (Method(tensor=2), lambda h, a, s, t: 10 + 24 / t + 5 * a * s / (h * t)),
        (Method(tensor=2, sequence_parallel=True), lambda h, a, s, t: (34 + 5 * a * s / h) / t),
        (Method(tensor=2, sequence_parallel=True, checkpointing="selective"), lambda h, a, s, t: 34 / t),
        (Method(checkpointing="full"), lambda h, a, s, t: 2),
        # In, context, and half the results of four products: 3h and 4h divided, h and h whole.
        (Method(checkpointing="operations"), lambda h, a, s, t: 2 + 2 + 9),
        (Method(tensor=2, checkpointing="operations"), lambda h, a, s, t: 2 + 2 / t + 7 / t + 2),
        (Method(tensor=2, sequence_parallel=True, checkpointing="operations"), lambda h, a, s, t: 13 / t),
    ],
)
def test_activations_are_those_of_korthikanti(method, per_token):
    block = GPT.layers[1]
    assert kept_bytes(block, method) == pytest.approx(32 * 64 * per_token(64, 4, 32, method.tensor), rel=1e-12)


@pytest.mark.parametrize("schedule, chunks, at_once", [("gpipe", 1, 8), ("1f1b", 1, 3), ("interleaved", 2, 4)])
def test_a_stage_keeps_what_its_schedule_has_in_flight(schedule, chunks, at_once):
    method = Method(pipeline=3, schedule=schedule, chunks=chunks)
    busy = Network(tuple(Layer(f"part {i}", 1.0, 4.0, Work(kept=50.0)) for i in range(6)))
    assert plan(busy, A100, method, 8).memory["kept activations"].value == 100 * at_once


@pytest.mark.parametrize("stages, micro_batches", [(2, 4), (4, 8), (8, 8)])
def test_the_bubble_is_gpipes(stages, micro_batches):
    even = Network(tuple(Layer(f"part {i}", 0, 0, Work(flops=1e12)) for i in range(stages)))
    parts = plan(even, A100, Method(pipeline=stages, schedule="gpipe"), micro_batches).step
    ideal = parts["forward products"].value + parts["backward products"].value
    assert parts["bubble"].value / (micro_batches * ideal) == pytest.approx((stages - 1) / micro_batches, rel=0.01)


def test_blocks_are_cut_evenly_and_all_else_stays_beside_them():
    cut = stages(GPT, 4)
    assert [sum(layer.is_block for layer in layers) for layers in cut] == [2, 2, 1, 1]
    assert [layer for layers in cut for layer in layers] == list(GPT.layers)


# NCCL's own formulas, `src/graph/tuning.cc`, for messages without bytes, in µs.
@pytest.mark.parametrize(
    "way, group, expected",
    [
        (NCCL_NVLINK[0], Group(8, 8), 6.8 + 2 * 7 * 0.6),
        (NCCL_NVLINK[1], Group(32, 8), 14.0 + 2 * (3 * 0 + 7 * 1.25 + 2 * 8.5)),
        (NCCL_NVLINK[3], Group(8, 8), 6.6 + 14 * 0.6),
        (NCCL_NVLINK[5], Group(8, 4), 1.4 * (8.4 + (14 - 2) * 3.4 + 2 * 14.0)),
        (NCCL_PCIE[4], Group(4, 4), 14 + 6 * 2.5),
    ],
)
def test_latencies_are_those_of_nccl(way, group, expected):
    line = all_reduce(0, group, Cluster("H100", ways=(way,)))
    assert line.value == pytest.approx(1e-6 * expected) and line.formula.endswith(f"{way.algorithm}, {way.protocol}")


def test_small_messages_go_by_latency_and_large_ones_by_bandwidth():
    small, large = (all_reduce(num_bytes, Group(8, 8), A100) for num_bytes in (8, 2**30))
    assert "LL" in small.formula and large.formula.endswith("ring, Simple")
    # The bus bandwidth, 235 GB/s on 8 A100, is by nccl-tests' definition 2(n−1)/n of the tensor over the time.
    assert 2 * 7 / 8 * 2**30 / large.value == pytest.approx(235e9, rel=0.02)
    assert half(2**30, Group(8, 8), A100).value == pytest.approx(large.value / 2, rel=0.01)


def test_a_librarys_halves_may_take_longer_than_a_rings():
    ring, slow = (Way(name, "measured", 0.0, 1e-4, 1e-4, share) for name, share in (("ring", 1.0), ("half", 0.25)))
    usual, slower = replace(A100, ways=(ring,)), replace(A100, ways=(ring, slow))
    whole = all_reduce(2**30, Group(2, 2), usual).value
    assert all_reduce(2**30, Group(2, 2), slower).value == whole
    assert half(2**30, Group(2, 2), usual).value == pytest.approx(whole / 2)
    assert half(2**30, Group(2, 2), slower).value == pytest.approx(1e-4 + 2**29 / (0.25 * A100.inside))
    assert all_reduce(2**30, Group(1, 1), A100).value == 0


def test_a_group_shares_its_nodes_network_cards():
    """Of 8 groups with a rank in each of 4 nodes, each has an eighth of the cards."""
    group = Group.of(4, 8, A100)
    assert (group.per_node, group.nodes) == (1, 4)
    assert 2 * 3 / 4 * 2**30 / all_reduce(2**30, group, A100).value == pytest.approx(200e9 / 8, rel=0.02)


def test_attention_whose_parts_do_not_run_is_one_part():
    """Its output's weights belong to a module that it never calls."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    found = count(torch.nn.Sequential(torch.nn.Linear(8, 64), layer), torch.zeros(2, 16, 8))
    assert [each.name for each in found.layers].count("MultiheadAttention") == 1
    assert found.parameters == sum(p.numel() for p in layer.parameters()) + 8 * 64 + 64
    products = 16 * (8 * 64 + 4 * 64 * 64 + 2 * 64 * 128)  # of weights, for each of 16 tokens
    scores = 2 * 16 * 16 * 64
    assert sum(each.whole.flops for each in found.layers) == 2 * (products + scores)
    assert all(each.calls for each in found.layers)


def test_counting_finds_parameters_products_and_kept_bytes_and_changes_nothing():
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)
    )
    before = [p.clone() for p in module.parameters()]
    found = count(module, torch.rand(4, 3, 8, 8))
    assert found.parameters == sum(p.numel() for p in module.parameters())
    assert found.flops == 2 * (36 * 8 * 27 + 8 * 36 * 10)
    # ReLU keeps its output, and the linear layer its input, which is the same tensor.
    assert [layer.whole.kept for layer in found.layers] == [4 * 3 * 64, 4 * 8 * 36, 0, 0]
    assert [layer.whole.forward for layer in found.layers] == [0, 2 * 4 * 8 * 36, 0, 0]
    assert [layer.output for layer in found.layers] == [4 * 8 * 36] * 3 + [40]
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters()))
    assert not any(leaf._forward_hooks or leaf._forward_pre_hooks for leaf in module)


def test_every_total_is_the_sum_of_its_parts_and_every_line_says_why():
    method = Method(
        4,
        2,
        2,
        shard="full",
        replicas=2,
        checkpointing="selective",
        sequence_parallel=True,
        micro_batch=2,
        overlap=False,
    )
    said = plan(GPT, A100, method, 32)
    for tree in (said.memory, said.step):
        for line in (tree, *tree.all()):
            assert line.formula, line.name
            if line.parts and line.name != "micro-batches":
                assert line.value == pytest.approx(sum(part.value for part in line.parts), rel=1e-12)
    assert said.step["micro-batches"].value == pytest.approx(4 * said.step["a micro-batch"].value)
    text = str(said)
    assert "replicas' messages" in text and "Rajbhandari" in text
    with pytest.raises(KeyError, match="no line 'weight' in memory of a rank, which has weights, gradients"):
        said.memory["weight"]


def test_more_of_each_costs_what_it_should():
    model = transformer(2048, 24, 16, 2048, 51200)
    base = plan(model, A100, Method(2), 8)
    assert plan(model, A100, Method(2, overlap=False), 8).step.value > base.step.value
    slow = Cluster("A100-80", between=6.25e9)
    # gradients leave the node
    assert plan(model, slow, Method(16), 64).step.value > plan(model, slow, Method(8), 32).step.value
    assert plan(model, A100, Method(2, checkpointing="full"), 8).memory.value < base.memory.value
    assert plan(model, Cluster("H100"), Method(2), 8).step.value < base.step.value
    assert base.fits and not plan(transformer(20480, 105, 128, 2048, 51200), A100, Method(), 1).fits


def test_tensor_parallelism_divides_whatever_bounds_a_split_layer():
    for work in (Work(flops=1e12), Work(products=1e9), Work(flops=1e9, idle=1e12)):
        times = [plan(Network((Layer("one", 0, 0, split=work),)), A100, Method(tensor=n), 1).step.value for n in (1, 2)]
        assert times[1] == pytest.approx(times[0] / 2)


def test_what_is_computed_again_lies_between_nothing_and_everything():
    model = transformer(4096, 8, 32, 2048, 32000, fused_attention=True)
    ways = {how: Method(8, checkpointing=how, micro_batch=8) for how in ("none", "operations", "full")}
    plans = {how: plan(model, A100, method, 64) for how, method in ways.items()}
    seconds, held = zip(*((said.step.value, said.peak.value) for said in plans.values()))
    assert seconds[0] < seconds[1] < seconds[2] and held[0] > held[1] > held[2]


LONG = transformer(1024, 8, 16, 16384, 32000, kv_heads=4, fused_attention=True)


@pytest.mark.parametrize("context", [2, 4, 8])
def test_ranks_that_share_a_sequence_hold_and_compute_a_part_of_it(context):
    alone, shared = (plan(LONG, A100, Method(data, context=8 // data, overlap=False), 8) for data in (8, 8 // context))
    assert shared.memory["kept activations"].value == pytest.approx(alone.memory["kept activations"].value / context)
    for name in ("forward attention", "backward attention", "forward, the rest"):
        assert shared.step[name].value == pytest.approx(alone.step[name].value / context)
    assert shared.memory["weights"].value == alone.memory["weights"].value


def test_keys_and_values_pass_every_other_rank_and_their_gradients_return():
    slow = Cluster("A100-80", inside=1e9)
    step = plan(LONG, slow, Method(2, context=4, overlap=False), 2).step
    num_bytes = 2 * (16384 // 4) * (1024 // 4) * 2  # keys and values of four of sixteen heads, 2 bytes each
    assert step["context's forward messages"].value == pytest.approx(8 * 3 * num_bytes / 1e9, rel=0.05)
    assert step["context's backward messages"].value == 2 * step["context's forward messages"].value
    hidden = plan(LONG, A100, Method(2, context=4), 2).step
    assert hidden["context's forward messages"].value < hidden["forward attention"].value


@pytest.mark.parametrize("network", [LONG, network(1e9, 4), transformer(2048, 8, 16, 1024, 32000)])
def test_a_calibrated_cluster_takes_the_seconds_that_were_measured(network):
    method = Method(micro_batch=2)
    here = planner.calibrated(replace(A100, call=0.0), network, method, 4, seconds=1.25)
    assert plan(network, here, method, 4).step.value == pytest.approx(1.25)
    with pytest.raises(ValueError, match="method has 2 ranks"):
        planner.calibrated(A100, network, Method(2), 4, 1.0)


def test_fp8_makes_the_products_of_blocks_faster_and_nothing_else():
    model = transformer(4096, 8, 32, 2048, 32000, fused_attention=True)
    sixteen, eight = (plan(model, Cluster("H100"), Method(8, precision=how), 8).step for how in ("bf16", "fp8"))
    assert 0.5 < eight["forward products"].value / sixteen["forward products"].value < 0.9
    assert eight["forward attention"].value == sixteen["forward attention"].value


def test_a_plan_fits_if_a_tenth_of_the_memory_stays_free():
    said = plan(transformer(2048, 24, 16, 2048, 51200), A100, Method(), 1)
    assert said.fits and said.reserved > said.peak.value
    gpu = replace(A100.gpu, memory=said.peak.value / 0.91)
    assert not replace(said, cluster=replace(A100, gpu=gpu)).fits


def test_the_price_is_hours_times_gpus():
    said = plan(GPT, Cluster("A100-80", dollars_per_hour=2.5), Method(4), 8)
    assert said.dollars(8 * 3600 / said.step.value) == pytest.approx(4 * 2.5)
    assert said.tokens_per_s == pytest.approx(8 * 32 / said.step.value / 4)
    assert 0 < said.mfu < 1 and not math.isnan(said.flops_per_s)


@pytest.mark.parametrize(
    "ask, words",
    [
        (
            lambda: plan(GPT, A100, Method(4, micro_batch=2), 12),
            "batch is 12, which data × micro_batch, 4 × 2, does not divide",
        ),
        (lambda: plan(GPT, A100, Method(), 0), "batch is 0"),
        (lambda: plan(GPT, A100, Method(pipeline=7), 8), "pipeline is 7, and the model has 6 blocks"),
        (lambda: plan(GPT, A100, Method(tensor=3), 8), "tensor is 3, which does not divide the model's 4 heads"),
        (lambda: transformer(64, 6, 5, 32, 100), "heads is 5, which does not divide hidden, 64"),
        (lambda: transformer(-64, 6, 4, 32, 100), "hidden is a whole number above 0, not -64"),
        (lambda: transformer(64, 6, 4, 32.0, 100), "sequence is a whole number above 0, not 32.0"),
        (lambda: Cluster("B300"), "gpu is 'B300', which the table does not know: it has V100-16"),
        (lambda: Cluster("T4", between=0), "between is a number above 0, not 0"),
        (
            lambda: plan(GPT, Cluster("T4"), Method(precision="bf16"), 8),
            "precision is 'bf16', and for T4 the table has fp32, fp16",
        ),
        (lambda: Method(data=True), "data is a whole number above 0, not True"),
        (lambda: Method(8, replicas=3), "replicas is 3, which does not divide data × context, 8"),
        (lambda: Method(shard="all"), "shard is 'all'; it can be none, optimizer, gradients, full"),
        (lambda: Method(optimizer="lion"), "optimizer is 'lion'; it can be sgd, momentum or adam"),
        (lambda: Method(pipeline=2, chunks=2), "chunks is 2 with schedule '1f1b'"),
        (lambda: Method(pipeline=2, schedule="zero"), "schedule is 'zero'; it can be gpipe, 1f1b, interleaved"),
        (
            lambda: plan(WIDE, Cluster("A100-80", gpus_per_node=9), Method(tensor=16), 8),
            "tensor is 16, and a node has 9 GPUs: over several nodes it is a divisor or a multiple of that",
        ),
        (
            lambda: plan(WIDE, Cluster("A100-80", nodes=1), Method(tensor=16), 8),
            "data × tensor × pipeline, 1 × 16 × 1, are 16 GPUs, and the cluster has 1 × 8",
        ),
        (
            lambda: plan(GPT, A100, Method(12), 12),
            "data × tensor × pipeline, 12 × 1 × 1, are 12 GPUs, which is more than a node's 8 and fills no whole",
        ),
        (lambda: Cluster("A100-80", nodes=0), "nodes is a whole number above 0, not 0"),
        (
            lambda: plan(transformer(64, 6, 8, 32, 100, kv_heads=2), A100, Method(tensor=4), 8),
            "tensor is 4, which does not divide the model's 2 heads of keys and values",
        ),
        (
            lambda: plan(transformer(64, 6, 8, 32, 100, feed_forward=90), A100, Method(tensor=4), 8),
            "tensor is 4, which does not divide the model's 90 columns of a feed-forward layer",
        ),
        (lambda: transformer(64, 6, 4, 32, 100, kv_heads=3), "kv_heads is 3, which does not divide heads, 4"),
        (
            lambda: plan(transformer(64, 6, 8, 33, 100), A100, Method(tensor=2, sequence_parallel=True), 8),
            "tensor is 2, which does not divide the 33 tokens for sequence_parallel",
        ),
        (
            lambda: plan(GPT, A100, Method(context=3), 3),
            "context is 3, which does not divide the model's 32 tokens",
        ),
        (
            lambda: plan(network(1e6), A100, Method(context=2), 2),
            "context is 2, which does not divide the model's network, which was counted from a module",
        ),
        (lambda: Method(4, context=2, replicas=3), "replicas is 3, which does not divide data × context, 8"),
        (
            lambda: plan(GPT, A100, Method(precision="fp8"), 8),
            "precision is 'fp8', and for A100-80 the table has fp32, tf32, fp16, bf16",
        ),
        (
            lambda: plan(GPT, A100, Method(pipeline=2, chunks=4, schedule="interleaved"), 8),
            "chunks is 4 of each of 2 stages, and the model has 6 blocks",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_arguments_name(ask, words):
    with pytest.raises(ValueError) as caught:
        ask()
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "ask, error", [(lambda: Method(8, offload=True), TypeError), (lambda: Method(shard="lora"), ValueError)]
)
def test_what_is_unknown_is_refused_with_what_is_not_modelled(ask, error):
    with pytest.raises(error, match="offload.*not modelled are offloading|it can be.*not modelled are.*LoRA"):
        ask()


def test_every_method_that_divides_the_cluster_is_planned():
    for method in (Method(16), Method(tensor=16), Method(3), Method(3, 2), Method(4, 2, 2), Method(24)):
        said = plan(WIDE, A100, method, 48)
        assert said.step.value > 0
        assert replace(said.method, micro_batch=2).micro_batch == 2


@pytest.mark.parametrize(
    "method, size, least",
    [
        (Method(16, checkpointing="selective"), (2048, 24, 16, 16384, 51200), 0.1),
        (Method(16, 2, checkpointing="full"), (2048, 24, 16, 2048, 51200), 0.005),
    ],
)
def test_messages_hide_behind_all_that_the_backward_pass_does(method, size, least):
    """What it computes again, and the messages for that, are part of it: they are not taken for a forward pass."""
    slow = Cluster("A100-80", between=1e9)
    said = plan(transformer(*size), slow, method, method.data).step
    again = [line for line in said.all() if line.name.endswith("again") or line.name.startswith("backward")]
    sent = said["gradients' messages"]
    alone = plan(transformer(*size), slow, replace(method, overlap=False), method.data).step["gradients' messages"]
    assert sum(line.value for line in again if line.name.endswith("again")) > least * said["a micro-batch"].value
    hidden = (1 - INTERFERENCE) * sum(line.value for line in again)
    assert alone.value - sent.value == pytest.approx(hidden, rel=1e-9)


def test_everything_public_is_there():
    assert all(hasattr(planner, name) for name in planner.__all__)


def test_messages_between_stages_hide_behind_computing():
    model = transformer(4096, 16, 32, 2048, 51200, fused_attention=True)
    slow = replace(A100, between=1e9)

    def between(cluster, **options):
        said = plan(model, cluster, Method(1, 8, 4, **options), 32)
        return sum(line.value for line in said.step.all() if line.name == "messages between stages")

    whole, apart = between(A100), between(slow)
    assert 0 < whole < apart
    assert between(A100, pipeline_overlap=True) == 0
    computing = apart - between(slow, pipeline_overlap=True)  # what longer messages can hide behind
    assert 0 < computing < apart


def test_attentions_kernel_is_that_of_the_gpus_generation_if_it_is_asked_for():
    model = transformer(4096, 4, 32, 8192, 51200, fused_attention=True)

    def attention(cluster, **options):
        said = plan(model, cluster, Method(**options), 1)
        return [said.step[f"{way} attention"].value for way in ("forward", "backward")]

    shares = H100.gpu.efficiency
    older, native = attention(H100), attention(H100, native_attention=True)
    assert [old / new for old, new in zip(older, native)] == pytest.approx(
        2 * [shares.native_attention / shares.attention]
    )
    assert attention(A100) == attention(A100, native_attention=True)  # FlashAttention 2 is written for it
