"""How long a chapter measures: as long as its reader needs, or, where COURSE_QUICK=1, as briefly as it may.

A chapter's settings cell holds what its measurements take: `ROUNDS = full(9, quick=2)`. Everything else runs the same
either way: every cell, every proof of equality, every exercise, every failure on purpose.
"""

import functools
import os


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
