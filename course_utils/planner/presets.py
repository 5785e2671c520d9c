"""Well-known language models and clusters by name, for the command line and for plans in one line."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .clusters import GPUS, Cluster
from .collective_costs import NCCL_NVLINK
from .networks import Network, transformer

_FUSED = {"dropout": False, "fused_attention": True}
LLAMA = {"gated": True, "biases": False, "positions": False, "tied": False, **_FUSED}


def _llama_3(hidden, layers, heads, width, sequence=8192, fused=False):
    return transformer(
        hidden, layers, heads, sequence, 128256, feed_forward=width, kv_heads=8, fused=fused, **LLAMA
    )  # fmt: skip


def _llama_2(hidden, layers, heads, kv_heads, width, sequence=4096, fused=False):
    return transformer(
        hidden, layers, heads, sequence, 32000, feed_forward=width, kv_heads=kv_heads, fused=fused, **LLAMA
    )  # fmt: skip


def _mixtral(hidden, layers, heads, width, sequence=4096, fused=False):
    return transformer(
        hidden, layers, heads, sequence, 32000, feed_forward=width, kv_heads=8, experts=8, chosen=2, fused=fused,
        **LLAMA,
    )  # fmt: skip


def _mpt(hidden, layers, heads, sequence=2048, fused=False):
    return transformer(hidden, layers, heads, sequence, 50368, biases=False, fused_loss=True, fused=fused, **_FUSED)


def _gpt(hidden, layers, heads, sequence=2048, fused=True):
    return transformer(hidden, layers, heads, sequence, 51200, fused=fused)


# Sizes as torchtitan (Llama 3), fms-fsdp (Llama 2), NeMo (Mixtral), llm-foundry (MPT) and Narayanan and others (2021,
# GPT) print them.
# Each takes `sequence`, the tokens of a sample, and `fused`, as in `transformer`.
NETWORKS: dict[str, Callable[..., Network]] = {
    "llama-3-8b": partial(_llama_3, 4096, 32, 32, 14336),
    "llama-3-70b": partial(_llama_3, 8192, 80, 64, 28672),
    "llama-3-405b": partial(_llama_3, 16384, 126, 128, 53248),
    "llama-2-7b": partial(_llama_2, 4096, 32, 32, 32, 11008),
    "llama-2-13b": partial(_llama_2, 5120, 40, 40, 40, 13824),
    "llama-2-70b": partial(_llama_2, 8192, 80, 64, 8, 28672),
    "mixtral-8x7b": partial(_mixtral, 4096, 32, 32, 14336),
    "mixtral-8x22b": partial(_mixtral, 6144, 56, 48, 16384),
    "mpt-125m": partial(_mpt, 768, 12, 12),
    "mpt-350m": partial(_mpt, 1024, 24, 16),
    "mpt-760m": partial(_mpt, 1536, 24, 12),
    "mpt-1b": partial(_mpt, 2048, 24, 16),
    "mpt-3b": partial(_mpt, 2560, 32, 20),
    "mpt-7b": partial(_mpt, 4096, 32, 32),
    "mpt-13b": partial(_mpt, 5120, 40, 40),
    "mpt-30b": partial(_mpt, 7168, 48, 56),
    "mpt-70b": partial(_mpt, 8192, 80, 64),
    "gpt-1.7b": partial(_gpt, 2304, 24, 24),
    "gpt-18b": partial(_gpt, 6144, 40, 48),
    "gpt-175b": partial(_gpt, 12288, 96, 96),
    "gpt-530b": partial(_gpt, 20480, 105, 128),
}
# GPUs that NVLink joins, and bytes/s inside such a node and between nodes: nccl-tests' bus bandwidths, for Blackwell
# nvbandwidth's from GPU to GPU, and a card of 200, 400 or 800 Gbit/s for each GPU. Of a rack of 72, 64 are used.
_LINKS = {
    "A100-40": (8, 235e9, 200e9),
    "A100-80": (8, 235e9, 200e9),
    "H100": (8, 370e9, 400e9),
    "H200": (8, 370e9, 400e9),
    "B200": (8, 770e9, 400e9),
    "GB200": (64, 770e9, 3200e9),
    "GB300": (64, 770e9, 6400e9),
}


def cluster(text: str) -> Cluster:
    """The Cluster that "64xA100-80" names: so many GPUs, eight in a node (64 GB200 or GB300), or all in one if fewer.

    Raises ValueError if the text or the GPU is not known.
    """
    number, _, name = text.partition("x")
    if name in GPUS and name not in _LINKS:
        raise ValueError(
            f"{text!r}: how {name}s are connected differs from server to server; say it in Python, as in "
            f"planner.Cluster({name!r}, 4, inside=10e9, between=3e9), which docs/clusters.md shows"
        )
    if not number.isdecimal() or int(number) < 1 or name not in _LINKS:
        raise ValueError(
            f"{text!r} names no cluster: give a number and a kind of GPU, as in 64xA100-80, of {', '.join(_LINKS)}; "
            "for others describe a planner.Cluster in Python, as docs/clusters.md shows"
        )
    largest, inside, between = _LINKS[name]
    per_node = min(largest, int(number))
    if int(number) % per_node:
        raise ValueError(f"{text!r}: a node has {per_node} GPUs, and {number} GPUs fill no whole number of nodes")
    return Cluster(GPUS[name], per_node, inside, between, NCCL_NVLINK, nodes=int(number) // per_node)


def from_config(path: str | Path, sequence: int | None = None, fused: bool = False) -> Network:
    """The Network of a Hugging Face model configuration, a decoder's `config.json`.

    `sequence` is the tokens of a sample, by default the model's longest. Raises ValueError for a file that is no such
    configuration.
    """
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
        sizes = [config.get(new, config.get(old)) for new, old in _SIZES]
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is no model configuration that can be read: {error}") from error
    missing = [new for (new, _), size in zip(_SIZES, sizes) if not isinstance(size, int)]
    if missing:
        raise ValueError(f"{path} has no number for {', '.join(missing)}: a decoder's config.json has them")
    hidden, layers, heads, vocabulary, longest = sizes
    if found := next((name for name in _OTHER_EXPERTS if config.get(name)), ""):
        raise ValueError(f"{path} has {found}: of mixtures of experts, only Mixtral's form can be read")
    is_llama = "intermediate_size" in config and "num_key_value_heads" in config
    options = LLAMA | {"tied": config.get("tie_word_embeddings", False)} if is_llama else _FUSED
    if experts := config.get("num_local_experts", 0):
        options = options | {"experts": experts, "chosen": config.get("num_experts_per_tok", 2)}
    return transformer(
        hidden, layers, heads, sequence or longest, vocabulary,
        feed_forward=config.get("intermediate_size") or config.get("n_inner"),
        kv_heads=config.get("num_key_value_heads"), fused=fused, **options,
    )  # fmt: skip


# The keys of other forms: experts narrower than intermediate_size, beside shared ones, or not in every block.
_OTHER_EXPERTS = ("num_experts", "n_routed_experts", "moe_intermediate_size", "moe_num_experts")
_SIZES = (
    ("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"),
    ("vocab_size", "vocab_size"), ("max_position_embeddings", "n_positions"),
)  # fmt: skip
