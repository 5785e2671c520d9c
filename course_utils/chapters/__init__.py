"""One package per chapter, with the code that only its notebook uses.

`check` has the checks of the chapter's exercises, `figures` its figures, `measure` its measurements; other modules are
named after what they do. Only the chapter's notebook, solutions and tests import from its package. A package's name
begins with `c` and the chapter's number; `room(9)` finds it.
"""

import pkgutil


def room(number):
    """Return the name of a chapter's package, `course_utils.chapters.c09_…` for 9, or None if there is none."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return next((f"{__name__}.{name}" for name in names if name.startswith(f"c{number:02d}_")), None)
