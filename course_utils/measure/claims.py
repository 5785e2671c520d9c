"""The comparisons that a chapter's text rests on: said by the cell that measured them, and asserted by a test."""

HERE = "→ "
NOT_HERE = "→ not on this machine: "


def claim(text, holds):
    """Print `text`, a sentence about numbers that were just measured, and say so if they do not bear it out.

    What the chapters' committed outputs claim must hold: tests/test_notebook_style.py looks. On another machine it may
    come out otherwise; the reader is then told, instead of being told something else by the prose.
    """
    print(f"{HERE}{text}" if holds else f"{NOT_HERE}{text}")
