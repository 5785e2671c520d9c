"""Run the chapters with their solutions under nbval, each once from top to bottom: part of `make test`.

    python -m tools.solved [--timeout S] [--at-a-time N] [09 00 ...]

A chapter is written with its solutions to build/solved/ and runs there with COURSE_STRICT=1. nbval refuses untagged
exceptions, and in cells marked NBVAL_CHECK_OUTPUT outputs that differ from the committed ones; the launcher's line
about where workers run is not compared. This module, also a pytest plugin, refuses what nbval would let pass. That
notebooks run unsolved too follows from tests/notebooks/test_notebook_style.py: nothing outside an exercise depends on
its answer. Besides this machine's measurements, chapters find those of a nonexistent machine with a GPU. With
COURSE_QUICK=1 measurements are short, and exact claims must hold.
"""

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import sys
import time
from queue import Empty

import nbval.kernel
import nbval.plugin
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output

from course_utils.measure.claims import NOT_HERE, is_quick
from tools import notebooks
from tools.leftovers import ended_afterwards
from tools.record import made_up

FOLDER = notebooks.ROOT / "build" / "solved"
RECORDS = notebooks.ROOT / "build" / "made_up_records"
NOT_COMPARED = notebooks.ROOT / "build" / "not_compared.cfg"
RECORDED_ON = re.compile(r"print\(.*recorded on \{")
# Where workers run differs from machine to machine, and `launch` says it in the cell that first launches as many.
NOTE = r"(?m)^(\d+ nodes on this machine, .*|\d+ workers? (on the CPU|that can (use|share) ).*)\n?"
# Where each rank has a GPU, torch 2.11 warns in every group that is split from the job's.
OF_SPLIT = r"(?m)^\[W.*options to ProcessGroupGloo::split.*\n?"
STRICTLY = 'import os; os.environ["COURSE_STRICT"] = "{}"\n'
GRACE_S = 100  # for the kernel's start, and for nbval to name a slow cell


def main(argv=None):
    parser = argparse.ArgumentParser(description="Run the chapters with their solutions under nbval.")
    parser.add_argument("names", nargs="*", help="chapters, such as 09; all by default")
    parser.add_argument(
        "--timeout",
        type=float,
        default=notebooks.CELL_TIMEOUT_S,
        metavar="S",
        help="seconds that one cell may take (%(default)s)",
    )
    parser.add_argument("--at-a-time", type=int, default=1, metavar="N", help="chapters that run beside one another")
    options = parser.parse_args(argv)
    with alone_here():
        solve(options)


def solve(options):
    """Run the chapters, and exit with the status."""
    try:
        files = write_solved(notebooks.notebook_paths(options.names))
    except ValueError as error:
        sys.exit(f"solved: {error}")
    with ended_afterwards() as processes:
        status = run(files, options.timeout, options.at_a_time)
    left = [path.name for path in FOLDER.iterdir() if path not in files]
    if left:
        print(f"solved: the chapters left {', '.join(left)} beside the notebooks: use tempfile", file=sys.stderr)
    if processes:
        print(f"solved: processes that had not ended by themselves: {', '.join(processes)}", file=sys.stderr)
    sys.exit(status or bool(left or processes))


@contextlib.contextmanager
def alone_here():
    """Wait until no other run in this checkout has its notebooks in FOLDER."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with open(FOLDER.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("solved: waits for another run in this checkout to end", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_solved(paths):
    """Write the chapters with their solutions into an emptied FOLDER; return the files.

    Raises ValueError, naming the chapter.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for path in paths:
        try:
            notebooks.write(solved(path), FOLDER / path.name)
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{path.name}: {error}") from error
    return [FOLDER / path.name for path in paths]


def solved(path):
    """The chapter with its solutions and, appended, each exercise unattempted with the cells that read its answer.

    A cell's `shows` metadata is the text its output must contain. Without the appended cells, a check that strict mode
    does not reach would count as passed, and the unsolved notebook would be untested.
    """
    nb = notebooks.read(path)
    exercises = {number: nb.cells[i] for number, i in notebooks.exercises(nb).items()}
    stubs = {number: notebooks.answer_and_check(cell.source) for number, cell in exercises.items()}
    readers = readers_of_answers(nb)
    notebooks.put_in(nb, notebooks.read_solutions(path))
    for number, cell in exercises.items():
        cell.metadata["shows"] = f"✓ Exercise {number}"
    for cell in nb.cells:
        if cell.cell_type == "code" and RECORDED_ON.search(cell.source):
            cell.metadata["shows"] = f"recorded on {made_up.MACHINE}"
    for number, (stub, check) in stubs.items():
        lenient, strict = (STRICTLY.format(value) + check for value in ("", "1"))
        nb.cells += [
            new_code_cell(stub),
            new_code_cell(lenient, metadata={"shows": f"Exercise {number}: not attempted yet"}),
            # nbval counts only cells with outputs.
            new_code_cell(
                strict,
                metadata={"tags": [notebooks.FAILS_ON_PURPOSE]},
                execution_count=1,
                outputs=[new_output("error", ename="CheckFailed", evalue="", traceback=[])],
            ),
        ]
    nb.cells += [new_code_cell(STRICTLY.format("") + source) for source in readers]
    return nb


def readers_of_answers(nb):
    """The sources of cells that use an exercise's answer outside the exercise, to be run after the stubs.

    Each deletes what it defined before, and fails if a later cell would miss it.
    """
    code = {i: cell.source for i, cell in enumerate(nb.cells) if cell.cell_type == "code"}
    exercises = set(notebooks.exercises(nb).values())
    answers = {name for i in exercises for name in notebooks.names_bound(code[i])}
    sources = []
    for i in sorted(code.keys() - exercises):
        if not answers & notebooks.names_read(code[i]):
            continue
        missed, since = set(), set()
        for j in range(i + 1, len(nb.cells)):
            since |= notebooks.names_bound(code.get(j, ""))
            missed |= notebooks.names_bound(code[i]) & notebooks.names_read(code.get(j, "")) - since
        forget = f"for _ in {sorted(notebooks.names_bound(code[i]))}: globals().pop(_, None)"
        sources.append("\n".join([forget, code[i], *sorted(missed)]))
    return sources


def run(files, timeout_s, at_a_time=1):
    """Run the notebooks, `at_a_time` in parallel; return pytest's exit code."""
    os.environ["COURSE_STRICT"] = "1"
    os.environ.pop("COURSE_RECORD", None)
    if at_a_time > 1:  # waiting threads must not spin on a core that another chapter needs
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    shutil.rmtree(RECORDS, ignore_errors=True)
    made_up.write_records(RECORDS)
    NOT_COMPARED.write_text(f"regex: {NOTE}\nreplace: \nregex: {OF_SPLIT}\nreplace: \n")
    os.environ["COURSE_RECORDS"] = str(RECORDS)
    # Use the package beside the notebooks, whatever else is installed.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(notebooks.ROOT), os.environ.get("PYTHONPATH")]))
    options = [
        "-Wignore:Module already imported",
        "--nbval-lax",
        "--nbval-current-env",
        f"--nbval-sanitize-with={NOT_COMPARED}",
        f"--nbval-cell-timeout={timeout_s}",
        f"--timeout={timeout_s + GRACE_S}",
        *("-p", "tools.solved", "-p", "tools.suite.events"),
        *(("-n", str(at_a_time), "--dist", "loadfile") if at_a_time > 1 else ()),
    ]
    return pytest.main([*options, *map(str, files)])


class Kernel(nbval.kernel.RunningKernel):
    """nbval's kernel, with its death noticed within a second instead of at the cell's timeout."""

    def get_message(self, stream, timeout=None):
        end_s = time.monotonic() + timeout
        while True:
            try:
                return super().get_message(stream, timeout=max(0, min(1, end_s - time.monotonic())))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died") from None
                if time.monotonic() >= end_s:
                    raise


def pytest_configure():
    nbval.plugin.RunningKernel = Kernel


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Let nbval run a cell, and refuse what it lets pass."""
    try:
        yield
    except RuntimeError:
        item.parent.timed_out = True  # nbval then skips the remaining cells, also after a dead kernel
        raise
    problems = list(complaints(item.cell, NotebookNode(item.cell | {"outputs": item.test_outputs})))
    if problems:
        item.raise_cell_error("; ".join(problems))


def complaints(committed, shown):
    """The problems in a cell's outputs, `shown`, compared with the committed ones."""
    expected, raised = map(notebooks.exception_names, (committed, shown))
    if notebooks.is_tagged(committed) and not raised:
        yield f"it is tagged {notebooks.FAILS_ON_PURPOSE} and raised nothing"
    elif notebooks.is_tagged(committed) and raised != expected:
        yield f"it raised another exception, {raised}, than the committed notebook shows, {expected}"
    said = " ".join(text for output in shown["outputs"] for text in notebooks.texts(output))
    if committed.metadata.get("shows", "") not in said:
        yield f"its output holds no {committed.metadata.shows!r}: {said!r}"
    if is_quick() and NOT_HERE in said:
        yield f"it claims exactly what does not hold here: {said[said.index(NOT_HERE) :]!r}"
    for sign in notebooks.silent_failures(shown):
        yield f"it failed on stderr ({sign!r}) and went on"


if __name__ == "__main__":
    main()
