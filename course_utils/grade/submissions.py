"""A notebook that was handed in: the chapter that it belongs to, and the cell of each answer."""

import ast
import json
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import nbformat

from . import chapter_cells

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
MOST_BYTES = 20_000_000  # a chapter with its figures has 0.2 MB
_NUMBER = re.compile(r"""(?:#\s*Exercise\s+|\bcheck\(\s*["'])(\d+\.\d+)""")


class Unreadable(Exception):
    """A file that cannot be marked, and why."""


@dataclass(frozen=True)
class Chapter:
    """`stubs` is {"9.2": the name that its stub defines}, `unsolved` the texts of stubs;
    `sources` are the other code cells.
    """

    number: str
    stubs: dict
    unsolved: tuple
    sources: tuple


@dataclass(frozen=True)
class Submission:
    """`sources` are the code cells of a notebook, as the Python that IPython makes of them."""

    chapter: Chapter
    sources: tuple


@cache
def chapters():
    """{"09": Chapter} of the course. Raises FileNotFoundError where its notebooks are not there."""
    found = {}
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")):
        nb = nbformat.read(path, as_version=4)
        where = chapter_cells.exercises(nb)
        texts = {number: chapter_cells.answer_and_check(nb.cells[i].source)[0] for number, i in where.items()}
        stubs = {number: next(iter(chapter_cells.names_bound(text))) for number, text in texts.items()}
        sources = [
            cell.source for i, cell in enumerate(nb.cells) if cell.cell_type == "code" and i not in where.values()
        ]
        found[path.name[:2]] = Chapter(
            path.name[:2], stubs, tuple(text.strip() for text in texts.values()), tuple(sources)
        )
    if not found:
        raise FileNotFoundError(f"{NOTEBOOKS} holds no chapters: mark in a checkout of the course")
    return found


def read(path, chapters, chapter=None):
    """The Submission at `path`; `chapter`, such as "09", is what it must be of. Raises Unreadable."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes > MOST_BYTES:
            raise Unreadable(
                f"has {num_bytes / 1e6:.0f} MB, and no more than {MOST_BYTES / 1e6:.0f} are read: ask for it without "
                "outputs"
            )
        content = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of cells' ids, which nothing here needs
            text = content.decode(json.detect_encoding(content), "surrogatepass")  # whatever byte order mark it has
            nb = nbformat.reads(text, as_version=4)
        cells = [cell.source for cell in nb.cells if cell.cell_type == "code"]
        sources = tuple(chapter_cells.python_of(source) for source in cells)
    except Exception as error:  # whatever nbformat finds
        said = str(error).strip().splitlines() or [""]
        raise Unreadable(f"is no notebook ({type(error).__name__}: {said[0][:80]})") from None
    own = _chapter_of(sources, path, chapters)
    if own is None:
        raise Unreadable("holds no exercise of the course" + (f"; chapter {chapter} is marked" if chapter else ""))
    if chapter and own != chapter:
        raise Unreadable(f"is of chapter {own}, and chapter {chapter} is marked")
    return Submission(chapters[own], sources)


def _chapter_of(sources, path, chapters):
    """The chapter most of whose exercises are in these cells, by number or by the name of the answer."""
    votes = Counter()
    for number in _NUMBER.findall("\n".join(sources)):
        votes[number.partition(".")[0].zfill(2)] += 1
    bound = set().union(*map(bound_in, sources)) if sources else set()
    for chapter in chapters.values():
        votes[chapter.number] += len(bound & set(chapter.stubs.values()))
    known = [
        (count, path.name.startswith(number), number) for number, count in votes.items() if count and number in chapters
    ]
    return max(known)[2] if known else None


@lru_cache(maxsize=1000)  # asked for each exercise
def bound_in(source):
    """The names that a cell gives a value to at its top level; none where it cannot be compiled.

    Each statement for itself: Python leaves out what stands below `while True`.
    """
    try:
        trees = [ast.Module([node], type_ignores=[]) for node in chapter_cells.statements(source)]
        return set().union(*map(chapter_cells.names_bound, trees))
    except chapter_cells.UNCOMPILABLE:
        return set(re.findall(r"^def (\w+)", source, re.MULTILINE))


def cell_of(number, chapter, sources):
    """(index of the cell of an answer, the name that it has there), or (None, name) where no cell has it.

    The last cell that defines the stub's name, whatever its first line says, a stub only where there is no other; else
    the one whose name is given to the check.
    """
    name = chapter.stubs[number]
    candidates = [i for i, source in enumerate(sources) if name in bound_in(source)]
    solved = [i for i in candidates if chapter_cells.answer_and_check(sources[i])[0].strip() not in chapter.unsolved]
    if solved or candidates:
        return (solved or candidates)[-1], name
    for last, source in reversed(list(enumerate(sources))):
        other = _checked(number, source)
        for i in range(last, -1, -1):  # above the check: what is called so further down is something else
            if other and other in bound_in(sources[i]):
                return i, other
    return None, name


def _checked(number, source):
    """The name that a cell gives to the check of an exercise."""
    try:
        calls = [
            part for node in chapter_cells.statements(source) for part in ast.walk(node) if isinstance(part, ast.Call)
        ]
    except chapter_cells.UNCOMPILABLE:
        return None
    for call in calls:
        if (
            getattr(call.func, "id", "") == "check"
            and len(call.args) == 2
            and getattr(call.args[0], "value", None) == number
        ):
            return getattr(call.args[1], "id", None)
    return None
