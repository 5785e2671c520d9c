"""Operations on the course's notebooks for tools and tests: find, read, write, solve, run.

A chapter is `notebooks/NN_name.ipynb`. Its solutions are in `notebooks/solutions/NN_name.py`, in jupytext's percent
format, one code cell per exercise, beginning with a line such as `# Exercise 9.2`.
"""

import ast
import atexit
import os
import re
import subprocess
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbstripout import strip_output

from course_utils import hardware
from course_utils.grade.chapter_cells import (  # noqa: F401
    IN_RANKS,
    answer_and_check,
    exercises,
    is_definition,
    names_bound,
    names_read,
    of_notebook,
)
from course_utils.whole_files import write_whole

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
FAILS_ON_PURPOSE = "raises-exception"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_S = 300
ANSI_COLOUR = re.compile(r"\x1b\[[\d;]*m")

# Paths of homes, checkouts, scratch files and installed packages. Prose may name /dev/shm or /proc, which every Linux
# has; a URL's path does not match.
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
    """The chapters' paths in order; `names` ("09", "09_ddp", a path) select some of them.

    Raises ValueError for a name that matches no chapter.
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
    """Write the notebook atomically."""
    write_whole(dumps(nb), path)


def normalise(nb):
    """The notebook without what differs between machines and runs; outputs, counts and ids stay.

    Of a cell's metadata only the tags are kept. The function is idempotent.
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
            # A widget view without its state shows as "Error displaying widget".
            outputs = [output for output in cell.outputs if not is_widget(output)]
            cell.outputs = join_streams(outputs)
    nbformat.validate(nb)
    return nb


def not_run(nb):
    """The indices of non-empty code cells that did not run to their end."""
    return [
        i
        for i, cell in enumerate(nb.cells)
        if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None
    ]


def machine_paths(text):
    """The absolute paths in a text that are specific to one machine."""
    return [match[0] for match in MACHINE_PATH.finditer(text)]


def is_widget(output):
    return WIDGET_VIEW in output.get("data", {})


def join_streams(outputs):
    """Join adjacent pieces of one stream, since where a stream is cut depends on timing.

    Text overwritten by a carriage return (earlier states of a progress bar) is dropped.
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
    """The exceptions that tagged cells show: {cell index: [names]}."""
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
    """The text of an output, without images and colour codes."""
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
    """The solutions of the chapter at `path`, {"9.2": source}; empty if it has no file."""
    file = solutions_path(path)
    if not file.exists():
        return {}
    nb = jupytext.read(file, fmt="py:percent")
    return {number: nb.cells[i].source for number, i in exercises(nb).items()}


def put_in(nb, solutions):
    """Replace every stub by its solution; checks stay.

    Raises ValueError if stubs and solutions do not pair up.
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
    """The names that a notebook imports and defines, {name: value}, without running its measurements.

    Kept are imports, functions, classes, assignments of literals, and assignments to names in `assigned`. What a cell
    assigns to COURSE_DEVICE is undone.
    """
    names, device = {"__name__": Path(path).stem}, os.environ.get("COURSE_DEVICE")
    for cell in read(path).cells:
        if cell.cell_type == "code":
            body = [node for node in ast.parse(of_notebook(cell.source)).body if is_definition(node, assigned)]
            exec(compile(ast.Module(body, type_ignores=[]), Path(path).stem, "exec"), names)
    os.environ.pop("COURSE_DEVICE", None)
    os.environ.update({} if device is None else {"COURSE_DEVICE": device})
    return names


class CellFailed(Exception):
    """A cell raised without being tagged, took too long, or the kernel died in it."""


def execute(nb, folder=NOTEBOOKS, timeout_s=CELL_TIMEOUT_S, keep_in=None):
    """Run every cell in a new kernel in `folder`, with outputs written into `nb`.

    What the notebook passes to `recorded.keep` goes to the folder `keep_in`, if given.

    Raises CellFailed, naming the cell; the kernel is always ended.
    """
    env = dict(os.environ)
    # Use the package beside the notebooks, whatever else is installed.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(folder).parent), env.get("PYTHONPATH")]))
    env.pop("COURSE_STRICT", None)
    env["COURSE_PANEL"] = "0"  # nobody watches it
    env["COURSE_RECORD"] = str(keep_in or "")
    env["COURSE_RECORD_OF"] = hardware.machine()
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
        for attempts_left in reversed(range(3)):
            try:
                # A cell's stderr arrives as messages; the rest is the kernel's own log.
                client.execute(env=env, stderr=subprocess.DEVNULL)
                break
            except RuntimeError as error:  # Jupyter has chosen ports, and another program took one of them
                atexit.unregister(client._cleanup_kernel)  # there is nothing left to clean
                if started or not attempts_left or "Kernel died" not in str(error):
                    raise
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        reason = ANSI_COLOUR.sub("", str(error)).strip()
        raise CellFailed(f"cell {started[-1]}: {reason}") from error
    except AssertionError:
        # On Ctrl-C nbclient ends the kernel and then fails because it is gone.
        if client.km is None:
            raise KeyboardInterrupt from None
        raise
    return nb
