"""Published tables of language models' speeds: how they are read, and what each of their rows is."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from .. import Network, Plan, transformer
from ..presets import NETWORKS
from ..presets import cluster as preset
from .comparison import INPUT, PREDICTION, SIBLING, Row

A100, A100_40, H100 = (replace(preset(f"8x{name}"), nodes=None) for name in ("A100-80", "A100-40", "H100"))


def read(name: str) -> Iterator[dict[str, str]]:
    """The rows of a table beside this file; `input` says what was fitted to a row."""
    with open(Path(__file__).with_name(name), encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def numbers(row: dict[str, str], *names: str) -> list[int]:
    """The whole numbers of a row of a table."""
    return [int(row[name]) for name in names]


def kind_of(row: dict[str, str]) -> str:
    """The kind of a row of a table: "input" if something was fitted to it."""
    return INPUT if row["input"] else PREDICTION


def compared(
    source: str, what: str, unit: str, published: float, said: Plan, kind: str = PREDICTION, reason: str = ""
) -> Row:
    """The Row of a published speed in `unit` beside the plan `said`."""
    predicted = {
        "tokens/s a GPU": said.tokens_per_s,
        "s a step": said.step.value,
        "TFLOPS a GPU": said.flops_per_s / 1e12,  # recomputed ones included
        "model TFLOPS a GPU": said.mfu * said.cluster.gpu.peak(said.method.precision) / 1e12,
    }[unit]
    return Row(source, what, unit, published, predicted, kind, reason, said)


def with_siblings(found: Iterable[Row]) -> Iterator[Row]:
    """Mark predictions of a source for a network and a GPU that something was fitted to."""
    found = list(found)
    fitted = {_job(row) for row in found if row.kind == INPUT}
    for row in found:
        yield replace(row, kind=SIBLING) if row.kind == PREDICTION and _job(row) in fitted else row


def _job(row):
    return row.plan.network, row.plan.cluster.gpu.name


@cache
def named(name: str, **options: Any) -> Network:
    """A well-known network by name."""
    return NETWORKS[name](**options)


@cache
def gpt(hidden: int, layers: int, heads: int, sequence: int = 2048, vocabulary: int = 51200) -> Network:
    """The GPT of Narayanan and others (2021)."""
    return transformer(hidden, layers, heads, sequence, vocabulary)
