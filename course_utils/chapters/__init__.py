"""A room for each chapter: what its notebook alone uses.

`check` holds the checks of its exercises, `figures` what only it draws, `measure` what only it measures; where there is
more of one kind, each module is named after its idea. Nothing but the chapter's notebook, solutions and tests imports
from its room. A room's name begins with `c` and the chapter's number: `room(9)` finds it.
"""

import pkgutil


def room(number):
    """Return the name of a chapter's package, `course_utils.chapters.c09_…` for 9; None if there is no such chapter."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return next((f"{__name__}.{name}" for name in names if name.startswith(f"c{number:02d}_")), None)
