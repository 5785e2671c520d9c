"""Well-known models have their published parameters; clusters and configurations are read or refused in a sentence."""

import json

import pytest

from course_utils.planner import presets

LLAMA = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("name, billions", [
    ("llama-3-8b", 8.03), ("llama-3-70b", 70.6), ("llama-3-405b", 406), ("llama-2-7b", 6.74), ("llama-2-70b", 69.0),
    ("mpt-1b", 1.31), ("mpt-7b", 6.66), ("mpt-30b", 30.0), ("gpt-1.7b", 1.65), ("gpt-175b", 174.6), ("gpt-530b", 529.6),
])  # fmt: skip
def test_a_model_has_its_parameters(name, billions):
    assert presets.NETWORKS[name]().parameters == pytest.approx(billions * 1e9, rel=0.01)


def test_tokens_of_a_sample_and_fusion_can_be_chosen():
    eager, fused = presets.NETWORKS["llama-3-8b"](), presets.NETWORKS["llama-3-8b"](sequence=2048, fused=True)
    assert (eager.tokens, fused.tokens) == (8192, 2048)
    assert 4 * fused.layers[1].whole.forward < eager.layers[1].whole.forward


def test_a_cluster_has_nodes_of_eight():
    assert (presets.cluster("64xA100-80").nodes, presets.cluster("64xA100-80").gpus_per_node) == (8, 8)
    assert (presets.cluster("4xH100").nodes, presets.cluster("4xH100").gpus_per_node) == (1, 4)


def test_nvlink_joins_64_gpus_of_a_rack():
    assert (presets.cluster("32xGB200").nodes, presets.cluster("32xGB200").gpus_per_node) == (1, 32)
    assert (presets.cluster("128xGB200").nodes, presets.cluster("128xGB200").gpus_per_node) == (2, 64)


@pytest.mark.parametrize("text, words", [
    ("A100-80", "names no cluster"), ("0xH100", "names no cluster"), ("8xB300", "H100, H200, B200, GB200, GB300"),
    ("72xGB200", "a node has 64 GPUs"), ("12xH100", "fill no whole number of nodes"),
])  # fmt: skip
def test_a_cluster_that_cannot_be_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        presets.cluster(text)


def test_a_hugging_face_configuration_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    read = presets.from_config(tmp_path / "config.json")
    assert read.parameters == presets.NETWORKS["llama-3-8b"]().parameters and read.tokens == 8192
    assert presets.from_config(tmp_path / "config.json", sequence=1024).tokens == 1024
    (tmp_path / "gpt.json").write_text(
        json.dumps({"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024})
    )
    assert presets.from_config(tmp_path / "gpt.json").parameters == pytest.approx(124.4e6, rel=0.001)


@pytest.mark.parametrize("text, words", [
    (None, "no model configuration that can be read"), ("{", "no model configuration"),
    ("[]", "no model configuration"),
    ("{}", "no number for hidden_size, num_hidden_layers"),
])  # fmt: skip
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        presets.from_config(tmp_path / "config.json")
