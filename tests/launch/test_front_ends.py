"""One small notebook that launches, fails, is interrupted and checks, through the front ends that are installed."""

import os
import re
import subprocess
import sys
import textwrap

import nbformat
import pytest

CELLS = [
    """\
import os, signal, threading, time
from course_utils import WorkerError, check, launch

def whoami():
    import torch.distributed as dist
    return dist.get_rank(), dist.get_world_size()

print("LAUNCHED", launch(whoami, world_size=2).results)
""",
    """\
def fail():
    raise ValueError("on purpose")

try:
    launch(fail, world_size=2)
except WorkerError as error:
    print("FAILED", error.type_name, "|", str(error).splitlines()[1])
""",
    """\
def stay():
    time.sleep(600)

threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    launch(stay, world_size=2)
except KeyboardInterrupt:
    print("INTERRUPTED", time.monotonic() - begin < 10)
""",
    """\
check("0.1", whoami)
""",
    """\
def always_zero():
    return 0, 2

check("0.1", always_zero)
""",
]


def write_notebook(path):
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS]), path)


def text_of(path):
    """All outputs of a notebook, as a page shows them: text and HTML."""
    outputs = [output for cell in nbformat.read(path, 4).cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    shown = [output.get("text") or "\n".join(map(str, output.data.values())) for output in outputs]
    return "\n".join(shown)


def by_nbconvert(folder):
    write_notebook(folder / "small.ipynb")
    run([sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", "small.ipynb"], folder)
    return text_of(folder / "small.ipynb")


def by_ipython(folder):
    """In the shell of a terminal, a cell after another."""
    code = "from IPython.terminal.interactiveshell import TerminalInteractiveShell\n"
    code += f"shell = TerminalInteractiveShell.instance()\nfor cell in {CELLS!r}:\n    shell.run_cell(cell)"
    return run([sys.executable, "-c", code], folder)


def by_script(folder):
    (folder / "small.py").write_text("\n".join(CELLS))
    return run([sys.executable, "small.py"], folder)


def by_pytest(folder):
    (folder / "test_small.py").write_text("def test_all():\n" + textwrap.indent("\n".join(CELLS), "    "))
    return run([sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_small.py"], folder)


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("front_end", [by_nbconvert, by_ipython, by_script, by_pytest])
def test_it_launches_fails_is_interrupted_and_checks(front_end, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])))
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    shown = front_end(tmp_path)
    assert "LAUNCHED [(0, 2), (1, 2)]" in shown
    assert re.search(r'FAILED ValueError \| +at .*line \d+, in fail: +raise ValueError\("on purpose"\)', shown), shown
    assert "INTERRUPTED True" in shown
    assert re.search("[✓].*0.1", shown) and re.search("[✗].*0.1", shown), shown
