"""What a chapter's text rests on: how long it measures, and comparisons that are said by the cell that measured them.

A chapter's settings cell holds what its measurements take: `ROUNDS = full(9, quick=2)`. Where COURSE_QUICK=1 they are
as brief as they may be. Everything else runs the same either way: every cell, every proof of equality, every exercise,
every failure on purpose.
"""

import functools
import os

HERE = "→ "
NOT_HERE = "→ not on this machine: "
NOT_MEASURED = "→ not measured here: "


def full(usual, quick):
    """Return `usual`, or `quick` where COURSE_QUICK=1: rounds, seeds, epochs, sizes of a measurement."""
    return quick if is_quick() else usual


@functools.cache
def is_quick():
    """Whether COURSE_QUICK=1 was set when this was first asked; it is said once, in one line."""
    quick = os.environ.get("COURSE_QUICK") == "1"
    if quick:
        print("COURSE_QUICK=1: measurements are short here, and what they would have to show is not judged.")
    return quick


def claim(text, holds, exact=False):
    """Print `text`, a sentence about numbers that were just measured, and say so if they do not bear it out.

    What the chapters' committed outputs claim must hold: tests/notebooks/test_notebook_style.py looks. On another
    machine it may come out otherwise; the reader is then told, instead of being told something else by the prose. Where
    COURSE_QUICK=1 nothing is judged by short measurements. An `exact` claim is about what is counted, not timed: it
    holds on every machine, also quickly, and `python -m tools.solved` refuses a chapter in which it does not.
    """
    if is_quick() and not exact:
        print(f"{NOT_MEASURED}{text}")
    else:
        print(f"{HERE}{text}" if holds else f"{NOT_HERE}{text}")
