"""One small notebook that launches, fails, is interrupted and checks, through the front ends that are installed."""

import contextlib
import os
import re
import subprocess
import sys
import textwrap

import nbformat
import pexpect
import psutil
import pytest

from tests.helpers.kernel import LIMIT_S, wait_until

CELLS = [
    """\
import os, psutil, signal, threading, time
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
    open("begun" + os.environ["RANK"], "w").close()
    time.sleep(600)

def interrupt():
    while sum(name.startswith("begun") for name in os.listdir()) < 2:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    launch(stay, world_size=2)
except KeyboardInterrupt as error:
    names = [process.name() for process in psutil.Process().children(recursive=True)]
    print("LEFT", [name for name in names if name.startswith("rank")])
    print("INTERRUPTED", *str(error).split())
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


@pytest.fixture(autouse=True)
def nobody_tests_what_is_started(monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])))
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)


@pytest.mark.parametrize("front_end", [by_nbconvert, by_ipython, by_script, by_pytest])
def test_it_launches_fails_is_interrupted_and_checks(front_end, tmp_path):
    shown = front_end(tmp_path)
    assert "LAUNCHED [(0, 2), (1, 2)]" in shown
    assert re.search(r'FAILED ValueError \| +at .*line \d+, in fail: +raise ValueError\("on purpose"\)', shown), shown
    assert "LEFT []" in shown, shown
    assert re.search(r"INTERRUPTED .*ranks? .*at .*line \d+, in stay", shown), shown
    assert re.search("[✓].*0.1", shown) and re.search("[✗].*0.1", shown), shown


# Ctrl-C reaches every process of the terminal's group, not only the one that launches.
STAYS = """\
import os, time
from course_utils import Ranks, launch

def stay():
    open("begun" + os.environ["RANK"], "w").close()
    time.sleep(600)

"""
IN_A_TERMINAL = {
    "script.py": (["script.py"], "launch(stay, world_size=2)"),
    "test_it.py": (
        ["-m", "pytest", "-p", "no:cacheprovider", "test_it.py"],
        "def test_it():\n    with Ranks(2) as ranks:\n        ranks.run(stay)",
    ),
}


@pytest.mark.parametrize("file", IN_A_TERMINAL)
def test_ctrl_c_in_a_terminal_says_where_the_ranks_were_and_leaves_none(file, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_TEST_TERMINAL", str(tmp_path))
    arguments, statements = IN_A_TERMINAL[file]
    (tmp_path / file).write_text(STAYS + statements)
    terminal = pexpect.spawn(
        sys.executable, arguments, timeout=LIMIT_S, cwd=str(tmp_path), encoding="utf-8", dimensions=(40, 200)
    )
    try:
        wait_until(lambda: len(list(tmp_path.glob("begun*"))) == 2, "both ranks begin")
        terminal.sendintr()
        shown = terminal.read()  # to its end
    finally:
        terminal.close(force=True)
    assert re.search(rf"ranks? .*at {file}, line [56], in stay", shown), shown
    wait_until(lambda: not started_with(f"COURSE_TEST_TERMINAL={tmp_path}"), "all that was started ends")


def started_with(setting):
    """The living processes that carry this setting in their environment, apart from this one."""
    name, _, value = setting.partition("=")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.append(process.name())
    return found
