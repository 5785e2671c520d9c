"""Published measurements beside the planner's predictions, to show how far it can be trusted.

    python -m course_utils.planner.published        every row, and the errors per source

Tables are here as their sources print them, every row of them, except vTrain's, of which a regular sample is. Twenty
rows are inputs: the planner's constants were fitted to them. Which terms the planner needs was decided while looking at
the others, except those of the B200 and the GB200.
"""

from collections.abc import Iterator

from . import images, language_models
from .comparison import BOUND, INPUT, KINDS, PREDICTION, SIBLING, Row, Summary, summary
from .images import misses
from .seen import Seen, seen

__all__ = [
    "BOUND", "INPUT", "KINDS", "PREDICTION", "SIBLING", "Row", "Seen", "Summary", "memories", "misses", "rows", "seen",
    "summary",
]  # fmt: skip


def rows() -> Iterator[Row]:
    """All rows of speeds, source by source, of every kind."""
    yield from language_models.rows()
    yield from images.rows()


def memories() -> Iterator[Row]:
    """Peak bytes that torchtitan prints."""
    yield from language_models.memories()
