"""Reads a submitted notebook: the chapter that it belongs to, and the cell of each answer."""

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
MOST_BYTES = 20_000_000  # a chapter with its figures has 200,000
_NUMBER = re.compile(r"""(?:#\s*Exercise\s+|\bcheck\(\s*["'])(\d+\.\d+)""")

_TITLE = re.compile(r"^# \S.*$", re.MULTILINE)
_CORE = re.compile(r"^### Exercise (\d+\.\d+) \(core\)", re.MULTILINE)


class Unreadable(Exception):
    """Raised for a file that cannot be marked; the message says why."""


@dataclass(frozen=True)
class Chapter:
    """A chapter of the course.

    `stubs` is {"9.2": the name that its stub defines}, `unsolved` the texts of the stubs, `sources` those of the other
    code cells, `core` the exercises that everybody is to do, `title` the heading that begins it.
    """

    number: str
    stubs: dict
    unsolved: tuple
    sources: tuple
    core: tuple = ()
    title: str = ""


@dataclass(frozen=True)
class Submission:
    """A submitted notebook; `sources` are its code cells, as the Python that IPython makes of them."""

    chapter: Chapter
    sources: tuple


@cache
def chapters():
    """Return {"09": Chapter} of the course. Raises FileNotFoundError if its notebooks are missing."""
    found = {}
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")):
        nb = nbformat.read(path, as_version=4)
        where = chapter_cells.exercises(nb)
        texts = {number: chapter_cells.answer_and_check(nb.cells[i].source)[0] for number, i in where.items()}
        stubs = {number: next(iter(chapter_cells.names_bound(text))) for number, text in texts.items()}
        sources = [
            cell.source for i, cell in enumerate(nb.cells) if cell.cell_type == "code" and i not in where.values()
        ]
        tasks = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
        unsolved = tuple(text.strip() for text in texts.values())
        core, title = tuple(_CORE.findall(tasks)), _TITLE.search(tasks)[0]
        found[path.name[:2]] = Chapter(path.name[:2], stubs, unsolved, tuple(sources), core, title)
    if not found:
        raise FileNotFoundError(f"{NOTEBOOKS} holds no chapters: mark in a checkout of the course")
    return found


def read(path, chapters, chapter=None):
    """Return the Submission at `path`, which must be of `chapter`, such as "09", if given. Raises Unreadable."""
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
            warnings.simplefilter("ignore")  # about missing cell ids, which are not needed here
            text = content.decode(json.detect_encoding(content), "surrogatepass")  # with any byte order mark
            nb = nbformat.reads(text, as_version=4)
        cells = [cell.source for cell in nb.cells if cell.cell_type == "code"]
        sources = tuple(chapter_cells.python_of(source) for source in cells)
        titles = {cell.source.partition("\n")[0].strip() for cell in nb.cells if cell.cell_type == "markdown"}
    except Exception:  # nbformat raises many kinds of errors
        if re.search(rb"^(<<<<<<<|>>>>>>>) ", content, re.MULTILINE):
            raise Unreadable(
                "has git's conflict markers: two versions were merged, and nobody chose between them"
            ) from None
        raise Unreadable(_why_no_notebook(content)) from None
    by_title = (each.number for each in chapters.values() if each.title in titles)  # if all its exercises are gone
    own = _chapter_of(sources, path, chapters) or next(by_title, None)
    if own is None:
        raise Unreadable("holds no exercise of the course" + (f"; chapter {chapter} is marked" if chapter else ""))
    if chapter and own != chapter:
        raise Unreadable(f"is of chapter {own}, and chapter {chapter} is marked")
    return Submission(chapters[own], sources)


def _why_no_notebook(content):
    text = content.removeprefix(b"\xef\xbb\xbf").strip()
    if not text:
        return "is empty"
    try:
        json.loads(content)
    except ValueError as error:
        if text.startswith(b"{"):
            where = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            return f"is cut off or damaged: its text breaks{where}"
        return "is no notebook: its text is not JSON, as a notebook's is"
    except RecursionError:
        pass
    return "is no notebook: it is JSON, but not a notebook's"


def _chapter_of(sources, path, chapters):
    """Return the number of the chapter with most exercises in these cells, by number or answer's name; or None."""
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
    """Return the names that a cell binds at its top level; if it cannot be compiled, those of its functions.

    Statements are compiled one by one, since Python drops the code after `while True`.
    """
    try:
        trees = [ast.Module([node], type_ignores=[]) for node in chapter_cells.statements(source)]
        return set().union(*map(chapter_cells.names_bound, trees))
    except chapter_cells.UNCOMPILABLE:
        return set(re.findall(r"^def (\w+)", source, re.MULTILINE))


def cell_of(number, chapter, sources):
    """Return (index of the cell of an answer, its name there), or (None, name) if no cell has it.

    This is the last cell that defines the stub's name and has a line `# Exercise N` or calls its check; else the last
    that defines it, since first lines and checks get lost; an unsolved stub counts only if there is no other. Else it
    is the last cell that defines a name which is passed to the exercise's check.
    """
    name = chapter.stubs[number]
    candidates = [i for i, source in enumerate(sources) if name in bound_in(source)]
    solved = [i for i in candidates if chapter_cells.answer_and_check(sources[i])[0].strip() not in chapter.unsolved]
    marked = [i for i in solved if _is_marked(number, sources[i])]
    if solved or candidates:
        return (marked or solved or candidates)[-1], name
    for last, source in reversed(list(enumerate(sources))):
        other = _checked(number, source)
        for i in range(last, -1, -1):  # upwards from the check: a later cell may reuse the name
            if other and other in bound_in(sources[i]):
                return i, other
    return None, name


def _is_marked(number, source):
    has_line = re.search(rf"^# Exercise {re.escape(number)}\s*$", source, re.MULTILINE)
    return has_line is not None or _checked(number, source) is not None


def _checked(number, source):
    """Return the name that a cell passes to the check of an exercise, or None."""
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
