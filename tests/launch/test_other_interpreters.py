"""Workers that go on in another Python: results, prints and errors come as from any other, and nothing is left.

The interpreter is a virtual environment with what workers need and no more, so that these tests need no other
framework.
"""

import json
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from course_utils.frameworks import environment
from tests.helpers.kernel import wait_until

SETUP = """
from course_utils.frameworks import Environment
def where():
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
    return sys.prefix, "torch" in sys.modules, np.arange(3) + int(os.environ["RANK"])
def count_up():
    for step in range(3):
        log(loss=step / 2)
def fail():
    if os.environ["RANK"] == "1":
        raise ValueError("an image is missing")
    time.sleep(100)
def wait():
    print("begun", flush=True); time.sleep(100)  # one line: it is there from the moment in which it says so
def raise_sleepers():
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    wait()
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A whole environment, as far as its stamp says."""
    folder = tmp_path_factory.mktemp("elsewhere")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for name in ("cloudpickle", "numpy", "numpy.libs", "psutil"):
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    made = environment.wanted() | {"cuda": False, "frameworks": dict.fromkeys(environment.FRAMEWORKS, "1.0")}
    (folder / environment.STAMP).write_text(json.dumps(made))
    return folder


@pytest.fixture
def there(notebook, other):
    notebook.run(f"os.environ['COURSE_ELSEWHERE'] = {str(other)!r}\n{SETUP}\nTHERE = Environment('tensorflow')")
    yield notebook
    notebook.run("del os.environ['COURSE_ELSEWHERE']")


def test_results_and_prints(there, other):
    outcome = there.run("run = launch(where, world_size=2, on=THERE); [(a, b, c.tolist()) for a, b, c in run]")
    assert outcome.value == [(str(other), False, [0, 1, 2]), (str(other), False, [1, 2, 3])]
    assert "[rank 1] rank 1 of 2\n" in outcome.stdout
    assert there.run("run.logs").value == ["rank 0 of 2\n", "rank 1 of 2\n"]


def test_what_is_logged(there):
    assert there.run("launch(count_up, on=THERE).metrics.loss.tolist()").value == [0.0, 0.5, 1.0]


def test_cells_of_the_notebook_and_modules_beside_it(there):
    (there.directory / "beside.py").write_text("LIMIT = 7\n")
    there.run(
        "import beside\nSHIFT = 3\ndef shifted(x): return x + SHIFT + beside.LIMIT\ndef use(x): return shifted(x)"
    )
    assert there.run("launch(use, 1, on=THERE)[0]").value == 11


@pytest.mark.alone
def test_a_failure_names_the_line_and_ends_the_others(there):
    started = time.monotonic()
    outcome = there.fail("launch(fail, world_size=2, on=THERE)")
    assert outcome.error == "WorkerError"
    assert "rank 1: ValueError: an image is missing" in outcome.message
    assert 'raise ValueError("an image is missing")' in outcome.message
    assert time.monotonic() - started < 20  # and not after the other one's 100 s
    assert not there.workers()


def test_time_is_up(there):
    message = there.fail("launch(wait, timeout=1, on=THERE)").message
    assert "no end after 1 s" in message
    assert 'in wait:  print("begun", flush=True); time.sleep(100)' in message
    assert not there.workers()


def test_interrupt_ends_what_it_has_started(there):
    begun = []

    def interrupt_when_begun(text):
        if "begun" in text and not begun:
            begun.append(time.monotonic())
            there.interrupt()

    outcome = there.wait(there.start("launch(raise_sleepers, on=THERE)"), on_output=interrupt_when_begun)
    assert outcome.error == "Interrupted"
    assert 'in wait:  print("begun", flush=True); time.sleep(100)' in outcome.shown
    assert not there.sleepers()
    assert not there.workers()


def test_the_kernel_is_killed(new_notebook, other):
    setup = "import os, subprocess, sys, time\nimport numpy as np\nfrom course_utils import launch, log"
    notebook = new_notebook(setup=setup + SETUP, COURSE_ELSEWHERE=str(other))
    notebook.start("launch(raise_sleepers, world_size=2, on=Environment('tensorflow'))")
    wait_until(lambda: len(notebook.sleepers()) == 4, "subprocesses start")
    notebook.kill()
    wait_until(lambda: {process.pid for process in notebook.processes()} <= {notebook.pid}, "everything ends")


CRASH = """
from course_utils import frameworks
def crash_twice(path, most):
    count = int(open(path).read() or 0) if os.path.exists(path) else 0
    if count < most:
        open(path, "w").write(str(count + 1))
        os.kill(os.getpid(), signal.SIGSEGV)
    return count
"""


def test_a_framework_that_crashes_is_started_once_more(there, tmp_path):
    there.run(CRASH)
    outcome = there.run(f"frameworks.run('a', 'tensorflow', list, crash_twice, {str(tmp_path / 'one')!r}, 1)")
    assert outcome.value == [1]
    assert "TensorFlow crashed (rank 0: ended by a segmentation fault (SIGSEGV)" in outcome.stdout
    outcome = there.fail(f"frameworks.run('a', 'tensorflow', list, crash_twice, {str(tmp_path / 'two')!r}, 2)")
    assert "SIGSEGV" in outcome.message
    assert there.fail("frameworks.run('a', 'tensorflow', list, fail, world_size=2)").stdout.count("once more") == 0


def test_torch_is_there_where_horovod_asks_for_it(there):
    there.run("def version():\n    import torch\n    return torch.__version__")
    assert (
        there.run("launch(version, on=Environment('horovod.torch'))[0]").value == there.run("torch.__version__").value
    )


def test_arguments_that_cannot_be(there):
    assert "backend is 'gloo', which is torch's" in there.fail("launch(where, on=THERE, backend='gloo')").message
    assert "framework is 'mxnet'; it can be tensorflow" in there.fail("Environment('mxnet')").message
    there.run("run = launch(where, on=THERE)")
    assert "export is for launches in this one" in there.fail("run.export('.')").message


def test_an_interpreter_that_cannot_be_run(there, other, tmp_path):
    broken = tmp_path / "elsewhere"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "python").write_text("no interpreter")
    (broken / environment.STAMP).write_text((other / environment.STAMP).read_text())
    there.run(f"os.environ['COURSE_ELSEWHERE'] = {str(broken)!r}")
    outcome = there.fail("launch(where, on=Environment('tensorflow'))")
    assert outcome.error == "LauncherError"
    assert "Permission denied" in outcome.message
    there.run(f"os.environ['COURSE_ELSEWHERE'] = {str(other)!r}")
    assert there.run("launch(where, on=THERE)[0][0]").value == str(other)
