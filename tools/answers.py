"""Test an exercise's check against a file of labelled answers, each run as a cell of the chapter.

    python -m tools.answers 9.1 [FILE] [--only TEXT] [--reasons]

FILE is Python in percent format (default: tests/chapters/c09/ex_9_1.py, which the tests run):

    # %%                                                        shared by the answers below: imports, helpers
    # %% right (one message)                                    an answer that must pass
    # %% wrong (forgets to divide): not divided by anything     one that must be refused, with these words in the reason
    # %% endless (waits for rank 0): rank 1 was in recv         one that does not end by itself

The text in parentheses is a name for readers. The words after the colon may be omitted. A cell that holds only comments
edits the last whole answer above or, before the first one, the chapter's solution: `# this → that` replaces words, `# -
` and `# + ` lines replace lines; the replaced text must occur exactly once. Prints a line for each misjudged answer
(for all answers with --reasons), and exits with 1 if there is one.
"""

import argparse
import contextlib
import functools
import linecache
import re
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path

import psutil

from course_utils.checks import evaluate
from course_utils.launch import launch
from tools import notebooks

FOLDER = notebooks.ROOT / "tests" / "chapters"
STATES = {"right": "passed", "wrong": "wrong", "endless": "wrong"}
_HEAD = re.compile(r"^# %%(?: (right|wrong|endless))?(?: \((.*?)\))?(?:: (.+))?$", re.MULTILINE)


@dataclass
class Answer:
    """One answer: its label ("right", "wrong", "endless"), name, words required in the reason, and source."""

    label: str
    name: str
    words: str
    source: str

    def __str__(self):
        return f"{self.label} ({self.name})"


def file_of(exercise):
    chapter, _, number = exercise.partition(".")
    return FOLDER / f"c{int(chapter):02d}" / f"ex_{chapter}_{number}.py"


def read(path, solution=""):
    """Return the file's answers with edits applied and shared cells prepended; raises ValueError, naming the line."""
    text, shared, found, base = Path(path).read_text(), "", [], solution + "\n"
    heads = list(_HEAD.finditer(text))
    for head, end in zip(heads, [head.start() for head in heads[1:]] + [len(text)]):
        label, name, words = head.groups()
        source, line = text[head.end() : end].strip("\n") + "\n", text.count("\n", 0, head.start()) + 1
        if label is None:
            shared += source
            continue
        lines = source.splitlines()
        try:
            if all(line.startswith("# ") for line in lines):
                source = _edited(base, lines)
            else:
                base = source
        except ValueError as error:
            raise ValueError(f"{Path(path).name}, line {line}: {error}") from None
        found.append(Answer(label, name or f"line {line}", words or "", f"{shared}\n\n{source}" if shared else source))
    if not found:
        raise ValueError(f"{Path(path).name} has no cell that begins with `# %% right` or `# %% wrong`")
    return found


def _edited(base, lines):
    """Apply `# old → new` lines and replace each run of `# -` lines by the `# +` lines after it."""
    edited, old, new = f"\n{base}", [], []
    for line in [*lines, "# -"]:
        sign, text = line[2:4].strip() if line[2:4] in ("-", "+", "- ", "+ ") else "", line[4:]
        if new and sign != "+":
            edited = _replaced(
                edited, "".join(f"\n{line}" for line in old) + "\n", "".join(f"\n{line}" for line in new) + "\n"
            )
            old, new = [], []
        if sign:
            (old if sign == "-" else new).append(text)
        else:
            edited = _replaced(edited, *line[2:].split(" → "))
    return edited[1:]


def _replaced(text, old, new):
    if text.count(old) != 1:
        raise ValueError(
            f"{old.strip()!r} stands {text.count(old)} times in the answer above, and an edit needs it once"
        )
    return text.replace(old, new)


def chapter_of(exercise):
    """Return the path of the chapter that has an exercise; raises ValueError if none has."""
    for path in notebooks.notebook_paths():
        if exercise in notebooks.exercises(notebooks.read(path)):
            return path
    raise ValueError(f"no chapter has an exercise {exercise}")


@functools.cache
def _chapter(path):
    """What the chapter's cells define, and {exercise: the name that its stub defines}."""
    nb = notebooks.read(path)
    stubs = {number: notebooks.names_bound(nb.cells[i].source) for number, i in notebooks.exercises(nb).items()}
    return notebooks.definitions(path), stubs


@contextlib.contextmanager
def cell(source, exercise, path, name="answer"):
    """Run `source` as a cell of the chapter in a notebook-like `__main__` and yield its definition of the stub."""
    defined, stubs = _chapter(path)
    main, before = types.ModuleType("__main__"), sys.modules["__main__"]
    main.__dict__.update(
        {key: value for key, value in defined.items() if key not in stubs[exercise]}, __name__="__main__"
    )
    file = f"{exercise}, {name}"
    # as IPython stores a cell's text
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules["__main__"] = main
    try:
        exec(compile(source, file, "exec"), main.__dict__)
        (answer,) = (main.__dict__.get(stub) for stub in stubs[exercise])
        yield answer
    finally:
        sys.modules["__main__"] = before
        linecache.cache.pop(file, None)


def wait_until_warm():
    """Wait until starting workers is cheap.

    While answers follow one another, the forkserver has no time to import what workers need.
    """
    launch(int, world_size=1, backend=None)
    while any(process.name() == "stand-in" for process in psutil.Process().children(recursive=True)):
        time.sleep(0.1)


def judge(answer, exercise, path):
    """Return the check's result and its duration in seconds."""
    begin = time.perf_counter()
    with cell(answer.source, exercise, path, str(answer)) as function:
        return evaluate(exercise, function), time.perf_counter() - begin


def main(argv=None):
    parser = argparse.ArgumentParser(description="Hold an exercise's check against labelled answers.")
    parser.add_argument("exercise", help="such as 9.1")
    parser.add_argument("file", nargs="?", help="the answers, in percent format; those of the tests by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="answers whose label and name hold this")
    parser.add_argument("--reasons", action="store_true", help="show what was said of every answer")
    options = parser.parse_args(argv)
    try:
        path = chapter_of(options.exercise)
        solution = notebooks.read_solutions(path)[options.exercise]
        found = read(options.file or file_of(options.exercise), solution)
        answers = [answer for answer in found if options.only in str(answer)]
    except (ValueError, OSError) as error:
        sys.exit(f"answers: {error}")
    wait_until_warm()
    misjudged, slowest = 0, 0.0
    for answer in answers:
        result, seconds = judge(answer, options.exercise, path)
        is_right = result.state == STATES[answer.label] and answer.words in result.reason
        misjudged, slowest = misjudged + (not is_right), max(slowest, seconds)
        if options.reasons or not is_right:
            print(f"{'    ' if is_right else '!!! '}{answer}, {seconds:.1f} s\n{result}\n", flush=True)
    print(f"{options.exercise}: {len(answers)} answers, {misjudged} judged wrongly, the slowest took {slowest:.1f} s")
    sys.exit(misjudged > 0)


if __name__ == "__main__":
    main()
