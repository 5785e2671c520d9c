"""Arguments that cannot be right: an error that names them and what would be right, before anything is started."""

import subprocess
import sys

import pytest

from tests.helpers.kernel import REPOSITORY

COUNT = "world_size is the number of workers, a whole number from 1 up"
# call → the exception and words of its message
MISTAKES = {
    "launch(nothing, world_size=0)": f"ValueError: {COUNT}, not 0",
    "launch(nothing, world_size=-1)": f"ValueError: {COUNT}, not -1",
    "launch(nothing, world_size=2.5)": f"TypeError: {COUNT}, not 2.5",
    "launch(nothing, world_size='two')": f"TypeError: {COUNT}, not 'two'",
    "launch(nothing, world_size=True)": f"TypeError: {COUNT}, not True",
    "launch(nothing(), world_size=2)": "without calling it",
    "launch('nothing', world_size=2)": (
        "TypeError: launch needs a function to run in each worker, and was given 'nothing'"
    ),
    "launch(nothing, timeout=0)": "ValueError: timeout is a number of seconds above 0, not 0",
    "launch(nothing, timeout='long')": "ValueError: timeout is a number of seconds above 0, not 'long'",
    "launch(nothing, timeout=float('nan'))": "ValueError: timeout is a number of seconds above 0, not nan",
    "launch(nothing, backend='mpi')": "ValueError: backend is 'mpi'; choose 'auto', 'gloo', 'nccl' or None",
    "launch(nothing, 1, world_size=2)": (
        "TypeError: nothing() cannot be called with these arguments: too many positional arguments; the number of "
        "workers is world_size="
    ),
    "launch(takes, world_size=2)": (
        "TypeError: takes(x) cannot be called with these arguments: missing a required argument: 'x'"
    ),
    "launch(nothing, colour=1)": "got an unexpected keyword argument 'colour'",
    "launch(takes, lock, world_size=2)": "NotSendable: argument 1 is a lock, which cannot be sent to another process",
    "launch(takes, x=[lock], world_size=2)": (
        "NotSendable: argument x is a list whose [0] is a lock, which cannot be sent to another process"
    ),
    "launch(uses_lock, world_size=2)": "NotSendable: lock, which uses_lock uses, is a lock, which cannot be sent",
    "launch(takes, (i for i in 'ab'), world_size=2)": "NotSendable: argument 1 is a generator, which cannot be sent",
}


@pytest.fixture(scope="module")
def cold_notebook(new_notebook):
    """A notebook in which nothing has been started."""
    return new_notebook(
        setup="""
import threading
from course_utils import launch
import torch, torch.distributed
lock = threading.Lock()
def nothing(): pass
def takes(x): pass
def uses_lock():
    with lock: pass
""".strip()
    )


@pytest.mark.parametrize("call", MISTAKES)
def test_a_wrong_argument_is_named_before_anything_starts(cold_notebook, call):
    with cold_notebook.leaving_nothing():
        outcome = cold_notebook.fail(call)
    assert MISTAKES[call] in f"{outcome.error}: {outcome.message}"
    assert not cold_notebook.forkservers()
    assert not cold_notebook.workers()


def test_what_cannot_be_sent_is_a_type_error_with_fields(cold_notebook):
    cold_notebook.run(
        """
try: launch(takes, lock, world_size=2)
except TypeError as error: what, reason = error.what, error.reason
""".strip()
    )
    assert cold_notebook.run("what, reason").value == ("argument 1", "cannot pickle '_thread.lock' object")


PARTS = {
    "held.fit": "the object of which fit is a method is a Held whose .lock is a lock",
    "held": "the function is a Held whose .lock is a lock",
    "functools.partial(Held.fit, held)": "argument 1 of the partial is a Held whose .lock is a lock",
    "functools.partial(takes, x=lock)": "argument x of the partial is a lock",
    "lambda x=held: x": "a default of",
    "keyed": "a default of keyed is a lock",
}


def test_the_part_of_a_callable_that_cannot_be_sent_is_named(cold_notebook):
    cold_notebook.run(
        """
import functools
class Held:
    def __init__(self): self.lock = lock
    def fit(self): return 1
    __call__ = fit
def keyed(*, x=lock): return 1
held = Held()
""".strip()
    )
    for worker, said in PARTS.items():
        outcome = cold_notebook.fail(f"launch({worker}, world_size=2)")
        assert outcome.error == "NotSendable" and said in outcome.message, (worker, outcome.message)


def test_a_refusal_is_shown_in_lines_that_end_between_words(cold_notebook):
    outcome = cold_notebook.fail("launch(takes, (i for i in 'ab'), world_size=2)")
    head, *lines = outcome.shown.splitlines()
    assert head.startswith("NotSendable: argument 1 is a generator, which cannot be sent to another process")
    assert all(len(line) <= 100 for line in [head, *lines])
    assert " ".join([head, *lines[:-1]]) == f"NotSendable: {outcome.message}"
    assert lines[-1].startswith("  at Cell In[")


def test_more_workers_than_the_machine_can_serve_are_refused_with_the_reason():
    """In a process of its own, whose limits these are."""
    source = """
import os, resource, psutil
from course_utils import Nodes, Ranks, launch
def nothing(): pass
def refused(start, number):
    try: start(number)
    except ValueError as error: print(error)
for start in (lambda number: launch(nothing, world_size=number), Ranks):
    refused(start, 5000)
    os.environ["COURSE_WORKERS_PER_CORE"] = "1"
    refused(start, 500)
    del os.environ["COURSE_WORKERS_PER_CORE"]
refused(lambda number: launch(nothing, world_size=number, on=Nodes(2)), 5000)
resource.setrlimit(resource.RLIMIT_NOFILE, (70, 4096))
for start in (lambda number: launch(nothing, world_size=number), Ranks):
    refused(start, 20)
print(psutil.Process().children())
"""
    done = subprocess.run([sys.executable, "-c", source], cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
    *said, children = done.stdout.splitlines()
    assert children == "[]" and len(said) == 7, done
    many, few, files = said[0], said[1], said[5]
    assert said == [many, few, many, few, many, files, files]
    assert many.startswith("world_size is 5000, and this machine can serve ")
    assert many.endswith("COURSE_WORKERS_PER_CORE=… in the environment allows it")
    assert "more than 1 on " in few
    assert "this process may have 70 files open" in files


def test_as_many_workers_as_files_may_be_open_for_are_served():
    """The limit holds what it says: one that is allowed runs."""
    source = """
import os, re, resource
from course_utils import launch
launch(lambda: None, world_size=2)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 45, 4096))
try: launch(lambda: None, world_size=100)
except ValueError as error: most = int(re.search("serve ([0-9]+) workers", str(error))[1])
print(most, len(launch(lambda: None, world_size=most).results))
"""
    done = subprocess.run([sys.executable, "-c", source], cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
    most, served = done.stdout.splitlines()[-1].split()
    assert most == served and int(most) > 4, done


def test_an_accelerator_of_the_notebook_is_refused(notebook):
    """Accelerate, which the tests do not have, says of it that it has to be made, or trains each rank alone."""
    package = notebook.directory / "accelerate"
    package.mkdir()
    (package / "__init__.py").write_text("from .accelerator import Accelerator\n")
    (package / "accelerator.py").write_text("class Accelerator:\n    num_processes = 1\n")
    notebook.run("from accelerate import Accelerator\naccelerator = Accelerator()")
    outcome = notebook.fail("def train(): return accelerator.num_processes\nlaunch(train, world_size=2)")
    assert f"{outcome.error}: {outcome.message}".startswith(
        "NotSendable: accelerator, which train uses, is an Accelerator, which cannot be sent to another process (an "
        "Accelerator works only in the process that made it); make it inside the worker"
    )
    inside = "def train(): return Accelerator().num_processes\nlaunch(train, world_size=2).results"
    assert notebook.run(inside).value == [1, 1]


def test_an_async_worker_is_refused_with_what_to_do(cold_notebook):
    outcome = cold_notebook.fail("async def work(): pass\nlaunch(work, world_size=2)")
    assert (outcome.error, "such as lambda: asyncio.run(work(…))" in outcome.message) == ("TypeError", True)


def test_more_nccl_ranks_than_gpus(cold_notebook):
    outcome = cold_notebook.fail("launch(nothing, backend='nccl', world_size=1000)")
    assert outcome.error == "ValueError"
    assert "GPU" in outcome.message
    assert "gloo" in outcome.message
    assert not cold_notebook.forkservers()


def test_without_slurm(cold_notebook):
    home = cold_notebook.directory
    outcome = cold_notebook.fail(f"""
import os
from course_utils import Slurm
before = os.environ["PATH"], os.environ["HOME"]
os.environ["PATH"], os.environ["HOME"] = "/usr/local/sbin", {str(home)!r}
try: launch(print, on=Slurm(workers_per_node=2))
finally: os.environ["PATH"], os.environ["HOME"] = before
""")
    assert outcome.error == "LauncherError" and "there is no Slurm on this machine" in outcome.message
    assert not list((home / ".cache").glob("course_utils/*"))


def test_arguments_that_are_right_after_all(notebook):
    notebook.run("launch(nothing, world_size=1)")
    notebook.run("launch(nothing, world_size=2, timeout=float('inf'))")
    notebook.run("launch(nothing, world_size=2, timeout=1e12)")
    notebook.run("launch(nothing, world_size=2, timeout=30.5)")
