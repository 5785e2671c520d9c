"""What was handed in: notebooks, the chapter that each belongs to, and the cell of each answer."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import nbformat

from . import notebook

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
    unsolved: frozenset
    sources: tuple


@dataclass(frozen=True)
class Submission:
    """`sources` are the code cells of the notebook at `path`, IPython's own lines left out."""

    name: str
    path: Path
    chapter: Chapter
    sources: tuple


@cache
def chapters():
    """{"09": Chapter} of the course. Raises FileNotFoundError where its notebooks are not there."""
    found = {}
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")):
        nb = nbformat.read(path, as_version=4)
        where = notebook.exercises(nb)
        texts = {number: notebook.answer_and_check(nb.cells[i].source)[0] for number, i in where.items()}
        stubs = {number: next(iter(notebook.names_bound(text))) for number, text in texts.items()}
        sources = [
            cell.source for i, cell in enumerate(nb.cells) if cell.cell_type == "code" and i not in where.values()
        ]
        found[path.name[:2]] = Chapter(
            path.name[:2], stubs, frozenset(text.strip() for text in texts.values()), tuple(sources)
        )
    if not found:
        raise FileNotFoundError(f"{NOTEBOOKS} holds no chapters: mark in a checkout of the course")
    return found


def find(paths):
    """[(name, path)] of the notebooks at `paths`: files, and folders with all that is in them.

    Raises FileNotFoundError for a path that is not there, or a folder without notebooks.
    """
    found = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [
                file
                for file in sorted(path.rglob("*.ipynb"))
                if not any(part.startswith(".") for part in file.relative_to(path).parts)
            ]
            if not inside:
                raise FileNotFoundError(f"{path} holds no notebook: name the folder with the students' .ipynb files")
            found += [(file.relative_to(path).with_suffix("").as_posix(), file) for file in inside]
        elif path.exists():
            found.append((path.with_suffix("").as_posix(), path))
        else:
            raise FileNotFoundError(f"there is no {path}")
    return found


def read(name, path, chapter=None):
    """The Submission at `path`; `chapter`, such as "09", is what it must be of. Raises Unreadable."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Unreadable(
                f"has {path.stat().st_size / 1e6:.0f} MB, and no more than {MOST_BYTES / 1e6:.0f} are read: ask "
                "for it without outputs"
            )
        nb = nbformat.read(path, as_version=4)
        sources = tuple(without_magics(cell.source) for cell in nb.cells if cell.cell_type == "code")
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from None
    except Unreadable:
        raise
    except Exception as error:  # whatever nbformat finds
        raise Unreadable(
            f"is no notebook ({type(error).__name__}: "
            f"{str(error).strip().splitlines()[0][:80] if str(error).strip() else ''})"
        ) from None
    own = _chapter_of(sources, path)
    if own is None:
        raise Unreadable("holds no exercise of the course" + (f"; chapter {chapter} is marked" if chapter else ""))
    if chapter and own != chapter:
        raise Unreadable(f"is of chapter {own}, and chapter {chapter} is marked")
    return Submission(name, path, chapters()[own], sources)


def _chapter_of(sources, path):
    """The chapter most of whose exercises are in these cells, by number or by the name of the answer."""
    votes = Counter()
    for number in _NUMBER.findall("\n".join(sources)):
        votes[number.partition(".")[0].zfill(2)] += 1
    bound = set().union(*map(bound_in, sources)) if sources else set()
    for chapter in chapters().values():
        votes[chapter.number] += len(bound & set(chapter.stubs.values()))
    known = [
        (count, path.name.startswith(number), number)
        for number, count in votes.items()
        if count and number in chapters()
    ]
    return max(known)[2] if known else None


def without_magics(source):
    """A cell's text with IPython's own lines (%time, !ls) as comments, so that numbers of lines stay."""
    return re.sub(r"^(\s*)([%!?].*)$", r"\1pass  # \2", source, flags=re.MULTILINE)


@lru_cache(maxsize=1000)  # asked for each exercise
def bound_in(source):
    """The names that a cell gives a value to at its top level; none where it cannot be compiled."""
    try:
        return notebook.names_bound(source)
    except (SyntaxError, ValueError):
        return set(re.findall(r"^def (\w+)", source, re.MULTILINE))


def cell_of(number, chapter, sources):
    """(index of the cell of an answer, the name that it has there), or (None, name) where no cell has it.

    The last cell that defines the stub's name, whatever its first line says, a stub only where there is no other; else
    the one whose name is given to the check.
    """
    name = chapter.stubs[number]
    candidates = [i for i, source in enumerate(sources) if name in bound_in(source)]
    solved = [i for i in candidates if notebook.answer_and_check(sources[i])[0].strip() not in chapter.unsolved]
    if solved or candidates:
        return (solved or candidates)[-1], name
    for source in reversed(sources):
        other = _checked(number, source)
        for i, text in reversed(list(enumerate(sources))):
            if other and other in bound_in(text):
                return i, other
    return None, name


def _checked(number, source):
    """The name that a cell gives to the check of an exercise."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):
        return None
    for call in calls:
        if (
            getattr(call.func, "id", "") == "check"
            and len(call.args) == 2
            and getattr(call.args[0], "value", None) == number
        ):
            return getattr(call.args[1], "id", None)
    return None
