"""How long a chapter measures, and claims about its numbers that its cells print.

A chapter's settings cell holds the sizes of its measurements: `ROUNDS = full(9, quick=2)`. With COURSE_QUICK=1 they are
as small as possible. Everything else runs unchanged: every cell, equality check, exercise and deliberate failure.
"""

import functools
import os
from typing import Any

HERE = "→ "
NOT_HERE = "→ not on this machine: "
NOT_MEASURED = "→ not measured here: "


def full(usual: Any, quick: Any) -> Any:
    """Return `usual`, or `quick` with COURSE_QUICK=1: rounds, seeds, epochs or sizes of a measurement."""
    return quick if is_quick() else usual


@functools.cache
def is_quick() -> bool:
    """Whether COURSE_QUICK=1 was set at the first call, which also prints one line if it was."""
    quick = os.environ.get("COURSE_QUICK") == "1"
    if quick:
        print("COURSE_QUICK=1: measurements are short here, and what they would have to show is not judged.")
    return quick


def claim(text: str, holds: bool, exact: bool = False) -> None:
    """Print `text`, a sentence about numbers just measured, and mark it if they contradict it.

    The text says what `holds` compares, thresholds included, so that a denial denies that and no more.

    In a chapter's committed outputs every claim must hold; tests/notebooks/test_notebook_style.py checks that. On
    another machine a claim may fail, and the output then says so. So `text` says exactly what `holds` compares, with a
    margin if there is one, and then the numbers: with "not on this machine" before it, it must be true as well.

    With COURSE_QUICK=1 claims are not judged, since measurements are short. An `exact` claim is about counts, not
    times: it holds on every machine, quick or not, and `python -m tools.solved` refuses a chapter in which one fails.
    """
    if is_quick() and not exact:
        print(f"{NOT_MEASURED}{text}")
    else:
        print(f"{HERE}{text}" if holds else f"{NOT_HERE}{text}")
