"""Mixtures of experts: parameters and FLOP as published and as PyTorch counts them, memory, messages, mistakes."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_utils.planner import Cluster, Group, Method, plan, transformer
from course_utils.planner.collective_costs import all_to_all, send
from course_utils.planner.methods import held_parameters
from course_utils.planner.presets import LLAMA, NETWORKS, cluster, from_config
from course_utils.planner.search import best

MIXTRAL = NETWORKS["mixtral-8x7b"]()
H100 = cluster("64xH100")


def test_parameters_are_those_that_mistral_prints():
    """46.7 billion, of which a token uses 12.9, says the announcement of 11 December 2023."""
    assert MIXTRAL.parameters == pytest.approx(46.7e9, rel=0.001)
    block = MIXTRAL.layers[1]
    used = MIXTRAL.parameters - 32 * block.expert_parameters * (8 - 2) / 8
    assert used == pytest.approx(12.9e9, rel=0.003)


def test_flops_and_parameters_are_those_of_a_module():
    h, width, s, experts, chosen, vocabulary = 64, 96, 16, 4, 2, 128
    network = transformer(h, 1, 4, s, vocabulary, feed_forward=width, experts=experts, chosen=chosen, **LLAMA)
    layers = torch.nn.ModuleList(
        torch.nn.ModuleList([torch.nn.Linear(h, 2 * width, bias=False), torch.nn.Linear(width, h, bias=False)])
        for _ in range(experts)
    )
    router = torch.nn.Linear(h, experts, bias=False)
    with FlopCounterMode(display=False) as counter:
        for wide, back in layers:  # each gets its equal part of the tokens
            gate, up = wide(torch.randn(s * chosen // experts, h)).chunk(2, -1)
            back(gate * up)
    block = network.layers[1]
    dense = transformer(h, 1, 4, s, vocabulary, feed_forward=width, **LLAMA).layers[1]
    assert block.expert_work.flops == counter.get_total_flops()
    assert block.expert_parameters == sum(p.numel() for p in layers.parameters())
    attention = dense.parameters - block.expert_parameters / experts
    assert block.parameters == attention + router.weight.numel()


def test_all_ranks_together_hold_the_model_once_when_everything_is_divided():
    for method in (
        Method(16, shard="full", expert=8),
        Method(8, 2, shard="full", expert=4, sequence_parallel=True),
        Method(4, 4, shard="full", expert=8, sequence_parallel=True),
        Method(2, 8, shard="optimizer", expert=2, sequence_parallel=True),
    ):
        whole = held_parameters(MIXTRAL.layers, method, "optimizer") * method.world_size
        assert whole == pytest.approx(MIXTRAL.parameters)


def test_each_rank_holds_its_experts_whole_and_fewer_with_more_ranks():
    held = [held_parameters(MIXTRAL.layers, Method(8, expert=n), "optimizer") for n in (1, 2, 8)]
    experts = 32 * MIXTRAL.layers[1].expert_parameters
    assert held == pytest.approx([MIXTRAL.parameters - experts * (1 - 1 / n) for n in (1, 2, 8)])


def test_tokens_travel_there_and_back():
    """In a node, each rank sends seven eighths of two copies of its tokens of 4,096 numbers of 2 bytes."""
    said = plan(MIXTRAL, H100, Method(64, expert=8), 64)
    each = send(7 / 8 * 4096 * 2 * 4096 * 2, True, H100).value
    assert said.step["experts' forward messages"].value == pytest.approx(32 * 2 * each)
    assert said.step["experts' backward messages"].value == pytest.approx(32 * 2 * each)
    alone = plan(MIXTRAL, H100, Method(64), 64)
    assert "experts' forward messages" not in str(alone.step)


def test_an_all_to_all_over_nodes_waits_for_its_slowest_link():
    nodes = Cluster("H100", inside=370e9, between=400e9)
    line = all_to_all(64e6, Group(16, 8), nodes)
    assert line.value == send(8e6 * 4, False, nodes).value  # eight of sixteen parts, over this GPU's card
    assert all_to_all(64e6, Group(1, 1), nodes).value == 0


def test_gradients_of_experts_are_summed_over_those_that_have_them():
    lines = [plan(MIXTRAL, H100, Method(8, expert=n), 8).step["gradients' messages"] for n in (1, 2, 8)]
    assert "of experts" in lines[1].formula and "among 4 ranks" in lines[1].formula
    assert "of experts" not in lines[2].formula  # no other rank has the same
    assert lines[0].value > lines[1].value > lines[2].value


def test_one_expert_that_all_tokens_visit_costs_what_a_dense_layer_does_and_its_sorting():
    sizes = (1024, 4, 8, 1024, 1000)
    one, dense = (
        plan(transformer(*sizes, **LLAMA, **more), H100, Method(8), 8) for more in ({"experts": 1, "chosen": 1}, {})
    )
    assert one.network.flops == dense.network.flops
    assert one.step["forward products"].value == pytest.approx(dense.step["forward products"].value)
    assert one.step["forward, the rest"].value > dense.step["forward, the rest"].value


@pytest.mark.parametrize(
    "method, words",
    [
        (dict(data=12, expert=3), "expert is 3, which does not divide the model's 8 experts"),
        (dict(data=6, expert=4), "expert is 4, which does not divide the 6 ranks of a stage"),
        (dict(data=4, tensor=2), "sequence_parallel"),
        (dict(data=8, expert=0), "expert"),
    ],
)
def test_what_cannot_be_is_refused(method, words):
    with pytest.raises(ValueError, match=words):
        plan(MIXTRAL, H100, Method(**method), 24)


def test_a_dense_model_has_no_experts_to_divide():
    with pytest.raises(ValueError, match="0 experts"):
        plan(NETWORKS["llama-2-7b"](), H100, Method(8, expert=8), 8)
    with pytest.raises(ValueError, match="chosen is 3 of 2 experts"):
        transformer(64, 2, 2, 16, 100, experts=2, chosen=3)


def test_the_search_divides_experts_where_they_do_not_fit():
    found = best(MIXTRAL, cluster("16xH100"), 64)
    assert all(each.plan.fits for each in found) and any(each.plan.method.expert > 1 for each in found)


def test_a_configuration_of_hugging_face(tmp_path):
    file = tmp_path / "config.json"
    text = (
        '{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000, '
        '"max_position_embeddings": 4096, "intermediate_size": 14336, "num_key_value_heads": 8, %s}'
    )
    file.write_text(text % '"num_local_experts": 8, "num_experts_per_tok": 2')
    assert from_config(file) == MIXTRAL
    file.write_text(text % '"n_routed_experts": 64')
    with pytest.raises(ValueError, match="n_routed_experts"):
        from_config(file)
