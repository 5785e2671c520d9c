"""The comparisons that a chapter's text rests on: said by the cell that measured them, and asserted by a test."""

from .length import is_quick

HERE = "→ "
NOT_HERE = "→ not on this machine: "
NOT_MEASURED = "→ not measured here: "


def claim(text, holds, exact=False):
    """Print `text`, a sentence about numbers that were just measured, and say so if they do not bear it out.

    What the chapters' committed outputs claim must hold: tests/test_notebook_style.py looks. On another machine it may
    come out otherwise; the reader is then told, instead of being told something else by the prose. Where COURSE_QUICK=1
    nothing is judged by short measurements. An `exact` claim is about what is counted, not timed: it holds on every
    machine, also quickly, and `python -m tools.solved` refuses a chapter in which it does not.
    """
    if is_quick() and not exact:
        print(f"{NOT_MEASURED}{text}")
    else:
        print(f"{HERE}{text}" if holds else f"{NOT_HERE}{text}")
