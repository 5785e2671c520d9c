"""What every tool and test does with the course's notebooks: find, read, write, solve, run.

A chapter is `notebooks/NN_name.ipynb`; its solutions are `notebooks/solutions/NN_name.py`, in
jupytext's percent format, one code cell per exercise, whose first line is `# Exercise 9.2`.
"""

import ast
import os
import re
import subprocess
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbstripout import strip_output

from course_utils.grade.chapter_cells import (  # noqa: F401
    IN_RANKS,
    answer_and_check,
    exercises,
    is_definition,
    names_bound,
    names_read,
    of_notebook,
)
from tools.whole_files import write_whole

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
FAILS_ON_PURPOSE = "raises-exception"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_S = 300
ANSI_COLOUR = re.compile(r"\x1b\[[\d;]*m")

# Where people and systems keep homes, checkouts, scratch files and installed packages. Prose may
# name /dev/shm or /proc, which every Linux has, and a URL's path is none.
MACHINE_PATH = re.compile(
    r"(?<![\w.+:/$}-])(?:"
    r"~?/(?:[\w.+-]+/)*(?:(?:site|dist)-packages|lib/python3\.\d+)/[\w.+/-]+"
    r"|/(?:home|Users|root|tmp|private|var/folders|mnt|scratch|content|workspace|opt)/[\w.+/-]+"
    r"|~/[\w.+/-]+\.py\b"
    rf"|{re.escape(str(ROOT))}\b[\w.+/-]*"
    rf"|{re.escape(str(Path.home()))}/[\w.+/-]+"
    r")"
)
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook_paths(names=(), folder=NOTEBOOKS):
    """The chapters' paths in order; `names` ("09", "09_ddp", a path) choose some of them.

    Raises ValueError for a name that fits no chapter.
    """
    paths = sorted(Path(folder).glob("[0-9][0-9]_*.ipynb"))
    if not names:
        return paths
    chosen = set()
    for name in names:
        stem = Path(name).name.removesuffix(".ipynb")
        fits = {path for path in paths if path.stem == stem or path.stem.startswith(f"{stem}_")}
        if not fits:
            raise ValueError(f"no notebook is called {name!r}; there are {[p.stem for p in paths]}")
        chosen |= fits
    return sorted(chosen)


def read(path):
    return nbformat.read(path, as_version=4)


def dumps(nb):
    """The text of a notebook file: sorted keys, one trailing newline."""
    return nbformat.writes(nb) + "\n"


def write(nb, path):
    """Write the notebook whole or not at all."""
    write_whole(dumps(nb), path)


def normalise(nb):
    """The notebook without what differs between machines and runs; outputs, counts and ids stay.

    Of a cell's metadata only the tags are kept. Applying it twice changes nothing more.
    """
    kept = {"tags"}
    noise = sorted({key for cell in nb.cells for key in cell.metadata} - kept)
    nb = strip_output(
        nbformat.from_dict(nb),
        keep_output=True,
        keep_count=True,
        keep_id=True,
        extra_keys=[f"cell.metadata.{key}" for key in noise],
    )
    nb.metadata = nbformat.from_dict(METADATA)
    nb.nbformat, nb.nbformat_minor = 4, 5
    for cell in nb.cells:
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
        if cell.cell_type == "code":
            # A view without its widget's state is shown as "Error displaying widget".
            outputs = [output for output in cell.outputs if not is_widget(output)]
            cell.outputs = join_streams(outputs)
    nbformat.validate(nb)
    return nb


def not_run(nb):
    """The indices of code cells that hold something and were not run to their end."""
    return [
        i
        for i, cell in enumerate(nb.cells)
        if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None
    ]


def machine_paths(text):
    """The absolute paths in a text that mean something on one machine only."""
    return [match[0] for match in MACHINE_PATH.finditer(text)]


def is_widget(output):
    return WIDGET_VIEW in output.get("data", {})


def join_streams(outputs):
    """Neighbouring pieces of one stream as one: where a stream was cut is an accident of timing.

    What a carriage return overwrote (a progress bar's earlier states) goes.
    """
    joined = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            last["text"] += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            lines = output.text.split("\n")
            output.text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return joined


def is_tagged(cell):
    return FAILS_ON_PURPOSE in cell.metadata.get("tags", [])


def exception_names(cell):
    """The names of the exceptions among a code cell's outputs."""
    return [output.ename for output in cell.get("outputs", []) if output.output_type == "error"]


def raised_on_purpose(nb):
    """{index of each tagged cell: [names of the exceptions it shows]}"""
    return {i: exception_names(cell) for i, cell in enumerate(nb.cells) if is_tagged(cell)}


def silent_failures(cell):
    """Signs on a code cell's stderr of a failure that did not stop the cell, as in a thread."""
    signs = ("Traceback (most recent call last)", "Exception in thread", "Exception ignored")
    return [
        sign
        for sign in signs
        for output in cell.get("outputs", [])
        if output.get("name") == "stderr" and sign in output.text and not is_tagged(cell)
    ]


def texts(output):
    """What an output says in words, images and colour codes left out."""
    if output.output_type == "stream":
        said = [output.text]
    elif output.output_type == "error":
        said = [*output.traceback, output.evalue]
    else:
        said = [text for mime, text in output.data.items() if mime.startswith("text/")]
    return [ANSI_COLOUR.sub("", text) for text in said]


def solutions_path(path):
    path = Path(path)
    return path.parent / "solutions" / f"{path.stem}.py"


def read_solutions(path):
    """{"9.2": source of its solution} of the chapter at `path`; empty where it has no file."""
    file = solutions_path(path)
    if not file.exists():
        return {}
    nb = jupytext.read(file, fmt="py:percent")
    return {number: nb.cells[i].source for number, i in exercises(nb).items()}


def put_in(nb, solutions):
    """Replace every stub by its solution; its check stays.

    Raises ValueError where stubs and solutions do not pair up.
    """
    stubs = exercises(nb)
    if stubs.keys() != solutions.keys():
        raise ValueError(
            f"exercises without a solution: {sorted(stubs.keys() - solutions.keys())}; "
            f"solutions without an exercise: {sorted(solutions.keys() - stubs.keys())}"
        )
    for number, i in stubs.items():
        _, check = answer_and_check(nb.cells[i].source)
        nb.cells[i].source = f"{solutions[number].rstrip()}\n\n\n{check}"
    return nb


def definitions(path, assigned=()):
    """{name: value} of what a notebook imports and defines, for those who use its functions; its measurements do not
    run.

    Kept are imports, functions, classes, assignments of literals, and those to the names in `assigned`.
    """
    names = {"__name__": Path(path).stem}
    for cell in read(path).cells:
        if cell.cell_type == "code":
            body = [node for node in ast.parse(of_notebook(cell.source)).body if is_definition(node, assigned)]
            exec(compile(ast.Module(body, type_ignores=[]), Path(path).stem, "exec"), names)
    return names


class CellFailed(Exception):
    """A cell raised without being tagged, took too long, or the kernel died in it."""


def execute(nb, folder=NOTEBOOKS, timeout_s=CELL_TIMEOUT_S, keep_in=None):
    """Run every cell in a new kernel in `folder`; the outputs are written into `nb`.

    What the notebook gives to `recorded.keep` goes to the folder `keep_in`, if there is one.

    Raises CellFailed, which names the cell; the kernel is ended in every case.
    """
    env = dict(os.environ)
    # The package beside the notebooks is what runs, whatever else is installed.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(folder).parent), env.get("PYTHONPATH")]))
    env.pop("COURSE_STRICT", None)
    env["COURSE_PANEL"] = "0"  # nobody looks while it runs
    env["COURSE_RECORD"] = str(keep_in or "")
    started = []
    client = NotebookClient(
        nb,
        timeout=timeout_s,
        kernel_name="python3",
        allow_errors=False,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=lambda cell, cell_index: started.append(cell_index),
    )
    try:
        # What a cell writes to stderr travels as a message; what is left is the kernel's own log.
        client.execute(env=env, stderr=subprocess.DEVNULL)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        reason = ANSI_COLOUR.sub("", str(error)).strip()
        raise CellFailed(f"cell {started[-1]}: {reason}") from error
    except AssertionError:
        # On Ctrl-C nbclient ends the kernel, and then stumbles over its absence.
        if client.km is None:
            raise KeyboardInterrupt from None
        raise
    return nb
