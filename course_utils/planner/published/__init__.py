"""Published measurements beside the planner's predictions, to show how far it can be trusted.

    python -m course_utils.planner.published        every row, and the errors per source

Tables are here as their sources print them, every row of them, except vTrain's, of which a regular sample is. Twenty
rows are inputs: the planner's constants were fitted to them. Which terms the planner needs was decided while looking at
the others, except those of the B200, the GB200 and the GB300, and those of Narayanan's and Korthikanti's tables that
were found later.
"""

from collections.abc import Iterator

from . import images, language_models, megatron
from .comparison import BOUND, INPUT, KINDS, PREDICTION, SIBLING, Row, Summary, summary
from .images import misses
from .megatron import out_of_memory
from .seen import Seen, seen

__all__ = [
    "BOUND", "INPUT", "KINDS", "PREDICTION", "SIBLING", "Row", "Seen", "Summary", "memories", "misses",
    "out_of_memory", "rows", "seen", "summary",
]  # fmt: skip


def rows() -> Iterator[Row]:
    """All rows of speeds, source by source, of every kind."""
    yield from language_models.rows()
    yield from megatron.layers()
    yield from images.rows()


def memories() -> Iterator[Row]:
    """Bytes at the peak: what PyTorch's allocator reserved, as torchtitan prints it, and what nvidia-smi showed."""
    yield from language_models.memories()
    yield from megatron.bigscience_memories()
