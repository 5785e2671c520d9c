"""Packages that only parts of the course need: `launch` works without them.

`pip install course-utils` brings what launching needs; `course-utils[lab]` adds what the notebooks need. A part that
cannot work without one of the latter says so in one sentence.
"""

from importlib.util import find_spec


def is_installed(module: str) -> bool:
    """Return whether a top-level module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except ValueError:  # it is in sys.modules, without a spec
        return True


def require(what: str, *modules: str) -> None:
    """Raise ModuleNotFoundError, with what to install, if one of these top-level modules is missing.

    `what` is the part of the course that needs them, in the plural: "figures".
    """
    for module in modules:
        if not is_installed(module):
            raise ModuleNotFoundError(
                f"{what} need {module}, which is not installed: pip install 'course-utils[lab]' brings all that the "
                "course's notebooks use",
                name=module,
            )
