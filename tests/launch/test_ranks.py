"""Ranks that stay between cells: what they keep, how they fail and come back, and that nothing is left of them."""

import os
import re
import signal
import threading
import time

import pytest

from tests.helpers.kernel import sharing_elsewhere, wait_until

IMPORT = "from course_utils import Ranks\nfrom course_utils.launch import RanksError\n"


@pytest.fixture(scope="module")
def _with_ranks(new_notebook):
    """A notebook of these tests alone, whose ranks go from test to test: what one breaks, the next one finds.

    Its ranks talk with gloo, also on a machine with GPUs: with NCCL all of them start again if one does.
    """
    notebook = new_notebook(COURSE_DEVICE="cpu")
    notebook.run(IMPORT)
    with notebook.leaving_nothing():
        notebook.run("ranks = Ranks(3)")
        yield notebook
        notebook.run("ranks.close()")


@pytest.fixture
def ranks(_with_ranks):
    """A notebook with `ranks = Ranks(3)`."""
    _with_ranks.run("if repr(ranks).endswith('ended>'): ranks = Ranks(3)\nranks.timeout = 20; ranks['mark'] = 'kept'")
    return _with_ranks


def kept(notebook):
    """For each rank whether it still has its names; all can talk to one another."""
    notebook.run("%%ranks\nt = torch.ones(1)\ndist.all_reduce(t)")
    assert notebook.run("[float(t) for t in ranks['t']]").value == [3, 3, 3]
    return notebook.run('ranks[\'globals().get("mark") == "kept"\']').value


def start_in_all(notebook, statement):
    """Start a cell whose fourth line is `statement`, and return when all ranks have come to it."""
    message_id = notebook.start(f"%%ranks\nimport os\nopen(f'begun-{{rank}}', 'w').close()\n{statement}")
    begun = [notebook.directory / f"begun-{rank}" for rank in range(3)]
    wait_until(lambda: all(path.exists() for path in begun), "all have begun")
    for path in begun:
        path.unlink()
    return message_id


@pytest.mark.parametrize(
    "stream",
    ["Tee(sys.stdout)", "None", "open('/dev/full', 'w')"],
    ids=["a Tee without flush", "none", "a full disk"],
)
def test_a_stdout_of_the_students_own_costs_no_variable(ranks, stream):
    ranks.run(f"""%%ranks
import sys
class Tee:
    def __init__(self, stream): self.stream = stream
    def write(self, text): return self.stream.write(text)
before, sys.stdout = sys.stdout, {stream}""")
    ranks.run("%%ranks\nprint('here')")
    ranks.run("%%ranks\nsys.stdout = before")
    assert kept(ranks) == [True] * 3


def test_a_group_that_one_rank_fails_to_make_while_another_waits_for_it(ranks):
    """Only the failing rank counts the group in torch, which names later groups by that count."""
    outcome = ranks.fail("""%%ranks
class Broken(dist.Store):
    def set_timeout(self, timeout): pass
    def set(self, key, value): raise ValueError("no store")
torch.kept = dist.distributed_c10d._get_default_store()
dist.barrier()
dist.destroy_process_group()
store = Broken() if rank == 0 else dist.PrefixStore("theirs", torch.kept)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3)""")
    assert outcome.message.startswith("rank 0: ") and "Ranks 1 and 2 have been restarted" in outcome.message
    assert kept(ranks) == [True, False, False]


def test_a_class_sees_what_the_notebook_has_now(ranks):
    """Its methods and its functions, in each request: not those of the first."""
    ranks.run("""
import pickle
def helper(): return "old"
def pickled(): return len(pickle.dumps(helper)) > 0
class Uses:
    limit = 1
    def use(self): return helper(), pickled(), self.limit
def use(): return Uses().use()""")
    assert ranks.run("ranks.run(use)").value == [("old", True, 1)] * 3
    ranks.run("ranks.run(use)\ndef helper(): return 'new'\nUses.limit = 2")
    assert ranks.run("ranks.run(use)").value == [("new", True, 2)] * 3


def test_names_stay_from_cell_to_cell(ranks):
    ranks.run("%%ranks\nx = 10 * rank + world_size")
    ranks.run("%%ranks 0,2\nx += 1")
    assert ranks.run("ranks['x']").value == [4, 13, 24]
    assert ranks.run("ranks['x * 2']").value == [8, 26, 48]
    ranks.run("ranks['lr'] = 0.5\ndef scaled(y): return y * 2")
    ranks.run("%%ranks\ndef scaled(y):\n    return lr * y + rank")
    assert ranks.run("ranks['scaled(2)']").value == [1, 2, 3]
    assert ranks.run("ranks.run(scaled, y=2)").value == [4, 4, 4]


def test_each_rank_has_its_column(ranks):
    outcome = ranks.run("%%ranks\nprint(f'<{rank}>')\nrank * 2")
    assert outcome.values == ["rank 0:\n<0>\n0\nrank 1:\n<1>\n2\nrank 2:\n<2>\n4"]
    (shown,) = outcome.htmls
    assert [shown.count(f'aria-label="rank {rank}"') for rank in range(3)] == [1, 1, 1]
    assert "&lt;1&gt;" in shown
    assert not outcome.stdout
    assert ranks.run("%%ranks 1-2\nNone").values == []
    assert ranks.run("%%ranks\n'same'").values == ["ranks 0–2: 'same'"]


def test_a_cell_is_called_as_the_notebook_calls_it(ranks):
    before = re.search(r"Cell In\[(\d+)\], line 1", ranks.fail("launch(lambda: 1 / 0, world_size=2)").message)
    outcome = ranks.fail("%%ranks\n\n1 / 0")
    assert f"at Cell In[{int(before[1]) + 1}], line 3:  1 / 0" in outcome.message


def test_a_cell_whose_output_is_complete_is_left_alone(ranks):
    outcome = ranks.run("%%ranks 0\nimport threading\nthreading.Timer(0.3, lambda: print('from a thread')).start()\n42")
    assert outcome.values == ["rank 0: 42"]
    outcome = ranks.run("%%ranks 0\nimport time\ntime.sleep(0.6)\n43")
    assert not any("42" in text for text in outcome.updates)
    assert (outcome.updates or outcome.values)[-1] == "rank 0:\nfrom a thread\n43"


def test_progress_bars_colours_long_output_and_log_in_a_column(ranks):
    outcome = ranks.run("""%%ranks 0
import time, tqdm
from course_utils import log
print("\\x1b[31mred\\x1b[0m")
for i in tqdm.tqdm(range(8)):
    time.sleep(0.15)
    log(loss=1 / (i + 1))
None;""")
    moving = [text for text in outcome.values + outcome.updates if "/8 [" in text]
    assert len(set(moving)) > 2  # while it runs
    lines = moving[-1].splitlines()
    assert lines[1] == "red"
    assert lines[2].startswith("100%|")
    assert lines[3] == "logged 8 rows, the last: step 7, loss 0.125"
    outcome = ranks.fail("%%ranks 0\nfor i in range(9000): print(i)\nprint('THE END')\n1 / 0")
    text = (outcome.values + outcome.updates)[-1]
    assert "characters left out here; ranks.logs has more" in text
    assert "\n8999\nTHE END\nZeroDivisionError" in text
    assert ranks.run("len(ranks.logs[0].splitlines())").value == 9001


@pytest.mark.alone
def test_columns_appear_while_a_cell_runs(ranks):
    outcome = ranks.run(
        "%%ranks\nimport os, time\nfor step in range(10):\n    print(step, flush=True)\n    time.sleep(0.15)\nstep"
    )
    assert ":\n0" in outcome.values[0]
    assert "9" not in outcome.values[0]
    assert 2 <= len(outcome.updates) <= 10  # of which each has another line
    assert outcome.updates[-1].endswith("\n9\n9")


def test_an_error_outside_a_collective_costs_nothing(ranks):
    outcome = ranks.fail("%%ranks\nprint('before')\nif rank == 1:\n    raise ValueError('no')\nz = 1")
    assert (outcome.values + outcome.updates)[-1].startswith("rank 1 failed:\nbefore\nValueError: no\n  at Cell In[")
    lines = outcome.shown.splitlines()
    assert lines[0] == "WorkerError: rank 1: ValueError: no"
    assert lines[1].endswith(", line 4:  raise ValueError('no')")
    assert "ranks 0 and 2 had returned" in lines
    assert "restarted" not in outcome.shown
    assert kept(ranks) == [True] * 3


@pytest.mark.alone
def test_ranks_that_wait_for_one_that_failed_are_started_again(ranks):
    outcome = ranks.fail("%%ranks\nif rank == 1:\n    raise ValueError('no')\ndist.barrier()")
    assert outcome.shown.startswith("WorkerError: rank 1: ValueError: no\n")
    assert "ranks 0 and 2 were in barrier at Cell In[" in outcome.shown
    assert "which rank 1 had not called" not in outcome.shown
    assert "Ranks 0 and 2 have been restarted, and their variables are gone." in outcome.shown
    assert "ranks 0 and 2 did not finish: last seen at" in outcome.updates[-1]
    assert outcome.seconds < 2
    outcome = ranks.fail("%%ranks 0,1\nif rank == 0:\n    mark")
    assert "Rank 0 was started again after an earlier failure, and what it held was lost" in outcome.shown
    assert kept(ranks) == [False, True, False]


def test_a_rank_that_is_done_with_its_cell_says_what_it_had_called(ranks):
    ranks.run("%%ranks\ndist.all_reduce(torch.ones(1))")
    ranks.run("ranks.timeout = 1.5")
    outcome = ranks.fail("%%ranks\nif rank != 1:\n    dist.all_reduce(torch.ones(4))")
    ranks.run("ranks.timeout = 20")
    assert outcome.shown.startswith("WorkerError: no end after 1.5 s")
    told = re.search(
        r"Ranks 0 and 2 were in collective (\d+), all_reduce of \(4,\) float32, which rank 1 had not called: it "
        r"returned after (\d+) collectives?\.",
        " ".join(outcome.shown.split()),
    )
    assert told, outcome.shown
    assert int(told[1]) == int(told[2]) + 1, outcome.shown
    assert kept(ranks) == [False, True, False]
    lasts = "[outcome.collective.shape for outcome in sys.last_value.ranks]"
    assert ranks.run(lasts).value == [(4,), (1,), (4,)]
    # The new process group counts anew, also in the rank that has called others before.
    outcome = ranks.fail("%%ranks\nif rank == 1:\n    raise ValueError('no')\ndist.barrier()")
    assert ranks.run("[each.number for each in sys.last_value.findings[0].ahead.values()]").value == [2, 2]


@pytest.mark.alone
def test_waiting_is_told_from_computing_also_outside_of_torch_distributed(ranks):
    ranks.run("%%ranks\nwork = dist.all_reduce(torch.ones(1), async_op=True) if rank else None")
    outcome = ranks.fail("%%ranks\nif rank == 0:\n    raise ValueError('no')\nwork.wait()")
    assert outcome.message.startswith("rank 0: ValueError: no")
    assert "Ranks 1 and 2 have been restarted" in outcome.message
    assert outcome.seconds < 8
    outcome = ranks.fail("""%%ranks
import time
if rank == 0:
    raise ValueError('no')
if rank == 1:
    begin = time.monotonic()
    while time.monotonic() - begin < 4:
        x = torch.ones(1000).sum()
else:
    time.sleep(1000)
done = True""")
    assert "rank 2 was at Cell In[" in outcome.message
    assert "restarted" not in outcome.message  # who sleeps can be interrupted
    assert ranks.run("ranks['globals().get(\"done\")']").value == [None, True, None]


def test_messages_between_two_ranks_are_no_collectives(ranks):
    outcome = ranks.fail("""%%ranks
t = torch.ones(1)
if rank == 1: dist.recv(t, 0)
if rank < 2: dist.send(t, rank + 1)
if rank == 2:
    dist.recv(t, 1)
    raise ValueError('no')""")
    assert "process group" not in outcome.message
    assert kept(ranks) == [True] * 3


def test_collectives_of_some_ranks_are_compared_too(ranks):
    ranks.run("%%ranks\npair = dist.new_group([0, 1])")
    outcome = ranks.fail(
        "%%ranks 0,1\nif rank == 0:\n    raise ValueError('no')\n"
        "dist.broadcast(torch.ones(1), 1, group=pair, async_op=True)\nNone"
    )
    assert "joined a new process group" in outcome.message
    assert kept(ranks) == [True] * 3


def test_one_that_still_computes_is_waited_for(ranks):
    outcome = ranks.fail("""%%ranks
import time
if rank == 0:
    raise ValueError('no')
if rank == 1:
    time.sleep(1)
done = True""")
    assert "ranks 1 and 2 had returned" in outcome.shown
    assert ranks.run("ranks['globals().get(\"done\")']").value == [None, True, True]


def test_ranks_that_have_been_through_different_collectives_meet_anew(ranks):
    outcome = ranks.fail(
        "%%ranks\nif rank == 1:\n    raise ValueError('no')\ndist.broadcast(torch.ones(1), 0, async_op=True)\nNone"
    )
    assert "joined a new process group" in outcome.shown
    assert "monitoredBarrier" not in outcome.stdout + outcome.stderr  # which the student did not call
    assert kept(ranks) == [True] * 3


@pytest.mark.parametrize(
    ("statement", "is_kept"),
    [("while True: sum(range(1000))", True), ("dist.recv(torch.ones(1), (rank + 1) % 3)", False)],
    ids=["computing", "in C++"],
)
def test_interrupt(ranks, statement, is_kept):
    message_id = start_in_all(ranks, statement)
    ranks.interrupt()
    outcome = ranks.wait(message_id)
    assert outcome.error == "Interrupted"
    assert ", line 4:" in outcome.shown
    assert "Traceback" not in outcome.shown + outcome.stderr
    assert kept(ranks) == [is_kept] * 3


def test_interrupted_twice(ranks):
    message_id = start_in_all(ranks, "dist.recv(torch.ones(1), (rank + 1) % 3)")
    for _ in range(3):
        ranks.interrupt()
        time.sleep(0.1)  # a student's finger
    outcome = ranks.wait(message_id)
    assert outcome.error == "Interrupted"
    assert "Traceback" not in outcome.shown + outcome.stderr
    assert kept(ranks) == [False] * 3


@pytest.mark.alone
def test_an_interrupt_while_others_still_compute_does_not_hide_the_failure(ranks):
    ranks.run("""
def stop():
    while not ranks._pool.supervisor.have_failed: time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)""")
    kept(ranks)
    ranks.run("threading.Thread(target=stop).start()")
    outcome = ranks.fail("%%ranks\nif rank == 1:\n    raise ValueError('no')\nwhile True: sum(range(1000))")
    assert outcome.shown.startswith("WorkerError: rank 1: ValueError: no\n  at Cell In[")
    assert "Traceback of rank 1" in outcome.shown
    assert "ranks 0 and 2 were at Cell In[" in outcome.shown
    assert outcome.seconds < 10
    assert kept(ranks) == [True] * 3


def test_an_interrupt_while_a_result_is_packed(ranks):
    ranks.run("""%%ranks
import time
class Slow:
    def __reduce__(self):
        open(f"begun-{rank}", "w").close()
        time.sleep(1000)
slow = Slow()""")
    begun = [ranks.directory / f"begun-{rank}" for rank in range(3)]
    message_id = ranks.start("ranks['slow']")
    wait_until(lambda: all(path.exists() for path in begun), "all pack it")
    ranks.interrupt()
    assert ranks.wait(message_id).error == "Interrupted"
    for path in begun:
        path.unlink()
    assert kept(ranks) == [True] * 3


def test_time_is_up(ranks):
    ranks.run("ranks.timeout = 0.5")
    outcome = ranks.fail("%%ranks\nwhile rank == 1:\n    pass")
    assert outcome.shown.startswith("WorkerError: no end after 0.5 s, so ")
    assert "rank 1 was at Cell In[" in outcome.shown
    assert outcome.message.splitlines()[0] == "no end after 0.5 s, so what was still running has been stopped"
    assert "If they only needed longer: Ranks(…, timeout=seconds)." in outcome.shown
    ranks.run("ranks.timeout = 20")
    assert kept(ranks) == [True] * 3


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("os._exit(3)", "rank 2: ended with exit code 3"),
        ("import sys; sys.exit(4)", "rank 2: left with exit code 4"),
        ("os.kill(os.getpid(), 9)", "rank 2: killed (SIGKILL)"),
    ],
)
def test_a_rank_that_ends_itself(ranks, statement, what):
    outcome = ranks.fail(f"%%ranks\nimport os\nif rank == 2:\n    {statement}")
    assert what in outcome.message
    assert kept(ranks)[:2] == [True, True]


def test_a_rank_that_dies_is_not_placed_where_it_once_was(ranks):
    message_id = start_in_all(ranks, "while True: sum(range(1000))")
    ranks.interrupt()
    assert "sum(range(1000))" in ranks.wait(message_id).shown
    outcome = ranks.fail("%%ranks 0\nimport os\nos._exit(3)")
    assert "rank 0: ended with exit code 3" in outcome.message
    assert "sum(range(1000))" not in outcome.message
    assert kept(ranks) == [False, True, True]


def test_a_rank_killed_between_cells(ranks):
    pids = ranks.run("ranks.run(os.getpid)").value
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: pids[1] not in {process.pid for process in ranks.workers()}, "it is gone")
    outcome = ranks.fail("%%ranks\nmark")
    assert "rank 1" in outcome.message
    assert "killed (SIGKILL)" in outcome.message
    assert "Rank 1 has been restarted, and its variables are gone." in outcome.message
    assert kept(ranks) == [True, False, True]


def test_their_forkserver_is_killed_and_new_ones_end_with_their_block(notebook):
    notebook.run(IMPORT + "ranks = Ranks(2)")
    pid = notebook.run("ranks._pool._handle._process.pid").value
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(name.startswith("rank") for name in notebook.names()), "the ranks end with it")
    outcome = notebook.fail("%%ranks\n1")
    assert outcome.shown.startswith("LauncherError: the process that starts workers has ended (signal 9)")
    outcome = notebook.fail("ranks['x']")
    assert outcome.shown.startswith("RanksError: these ranks have ended; make new ones with Ranks(…)")
    notebook.run("""
with Ranks(2) as ranks:
    value = ranks["rank"]
    ranks.run(lambda: subprocess.Popen(["sleep", "1000"]) and None)
""")
    assert not notebook.sleepers()  # the block ends them and all that they started
    assert notebook.run("value").value == [0, 1]


NOT_RIGHT = [
    ("%%ranks 9\n1", "RanksError: there is no rank 9: these are ranks 0 to 2"),
    ("%%ranks all\n1", "RanksError: %%ranks takes rank numbers, as in `%%ranks 0,2` or `%%ranks 1-3`"),
    ("%%ranks\n!ls", "SyntaxError: invalid syntax\nA rank has no IPython, and so no %magic, no !command and no name?"),
    ("%%ranks\nx = 1\nx?", "A rank has no IPython, and so no %magic"),
    ("%%ranks\nawait f()", "A rank has no event loop: asyncio.run("),
    ("%%ranks\ndisplay(1)", "A rank has no IPython, and so no display: print there"),
    ("%%ranks 0\ninput('name? ')", "A worker has no keyboard: ask in the notebook"),
    ("%%ranks\n1 +", "RanksError: this cell was not run because it is not valid Python\n  Cell In["),
    ("ranks['a b'] = 1", "ValueError: ranks[…] = … sets a variable, and 'a b' is not a variable name"),
    ("ranks.run(len)", "TypeError: len(obj, /) cannot be called with these arguments"),
    ("ranks['lock'] = threading.Lock()", "NotSendable: argument 2 is a lock, which cannot be sent"),
    ("ranks['(i for i in [])']", "TypeError: cannot pickle 'generator' object\n  while sending back its result"),
    ("%%ranks 2-1\n1", "RanksError: 2-1 names no rank: write the lower number first"),
    ("ranks[0]", 'TypeError: ranks["loss"] takes a variable or an expression as a text, not 0'),
    ("list(ranks)", "TypeError: 'Ranks' object is not iterable"),
    ("%%ranks\nimport sys; sys.exit()", "exit code 0 (sys.exit)"),
    ("ranks['unknown']", "NameError: name 'unknown' is not defined"),
    ("ranks.timeout = None", "ValueError: timeout is a number of seconds above 0, not None"),
]  # fmt: skip


def test_what_cannot_be_right(ranks):
    for cell, sentence in NOT_RIGHT:
        outcome = ranks.fail(cell)
        assert sentence in f"{outcome.shown}\n{outcome.error}: {outcome.message}"
    assert kept(ranks) == [True] * 3


def test_a_name_that_only_the_notebook_has(ranks):
    ranks.run("lr = 0.1")
    outcome = ranks.fail("%%ranks\nlr")
    assert 'lr is defined in the notebook, and the ranks have variables of their own: ranks["lr"] = lr' in outcome.shown


@pytest.mark.parametrize("statement", ["import json", "from json import dumps as json"])
def test_an_import_that_only_the_notebook_has(ranks, statement):
    ranks.run(statement)
    outcome = ranks.fail("%%ranks\njson")
    assert "repeat its import in a %%ranks cell." in " ".join(outcome.shown.split())


def test_before_there_are_ranks(notebook):
    outcome = notebook.fail("%%ranks\n1")
    assert outcome.shown.rstrip() == "RanksError: there are no persistent ranks: run `ranks = Ranks(4)` first"


@pytest.mark.alone
def test_closed_by_another_thread(ranks):
    outcome = ranks.fail("threading.Timer(1, ranks.close).start()\nranks.run(time.sleep, 1000)")
    assert outcome.shown.startswith("RanksError: these ranks have ended")
    assert outcome.seconds < 4


def test_a_launch_in_another_thread_goes_on(notebook):
    notebook.run(
        IMPORT
        + """
outcomes = []
def work():
    open("begun", "w").close()
    time.sleep(3)
thread = threading.Thread(target=lambda: outcomes.append(launch(work, world_size=2).results))
thread.start()
while not os.path.exists("begun"): time.sleep(0.02)
os.unlink("begun")
with Ranks(2) as ranks: outcomes.append(ranks["rank"])
thread.join()""",
    )
    assert [None, None] in (outcomes := notebook.run("outcomes").value)
    assert [0, 1] in outcomes


def test_ranks_that_cannot_be_brought_back(notebook, tmp_path):
    notebook.run(f"folder = {str(tmp_path / 'gone')!r}; os.mkdir(folder); home = os.getcwd(); os.chdir(folder)")
    notebook.run(IMPORT + "ranks = Ranks(2)\nos.rmdir(folder)")
    outcome = notebook.fail("%%ranks\nif rank == 0:\n    raise ValueError('no')\ndist.barrier()")
    notebook.run("os.chdir(home)")
    assert outcome.message.startswith("rank 0: ValueError: no")
    assert "The ranks could not be recovered (" in outcome.message
    assert (
        notebook.run("launch(lambda: float(torch.ones(9, 9).mm(torch.ones(9, 9)).sum()), world_size=2)[1]").value == 729
    )


def test_arguments(notebook):
    notebook.run(IMPORT)
    assert "would have no process group" in notebook.fail("Ranks(2, backend=None)").message
    assert "world_size is the number of workers" in notebook.fail("Ranks(0)").message
    assert "timeout is a number of seconds" in notebook.fail("Ranks(2, timeout=0)").message
    outcome = notebook.fail("def inside(): Ranks(2)\nlaunch(inside, world_size=2)")
    assert "Ranks was called inside a worker" in outcome.message


def test_a_new_one_ends_the_one_before(ranks):
    ranks.run("first, ranks = ranks, Ranks(3)")
    assert "RanksError: these ranks have ended" in ranks.fail("first['rank']").shown
    assert ranks.run("ranks['rank']").value == [0, 1, 2]
    ranks.run("first.close()")  # nothing to do


def test_a_launch_beside_them(ranks):
    assert ranks.run("launch(lambda: dist.get_rank(), world_size=2).results").value == [0, 1]
    ranks.fail("launch(lambda: 1 / 0, world_size=2)")
    ranks.run("launch.shutdown()")
    assert kept(ranks) == [True] * 3
    ranks.run("warm()")


def test_a_launch_on_a_shared_node_does_not_wait_for_ranks_of_its_own_notebook(new_notebook, tmp_path):
    setup = "import os, subprocess, threading, time, torch.distributed as dist\nfrom course_utils import launch\n"
    notebook = new_notebook(setup=setup + IMPORT, COURSE_SHARED="1", COURSE_LOCKS=str(tmp_path))
    notebook.run("ranks = Ranks(2)")
    outcome = notebook.run("launch(lambda: dist.get_rank(), world_size=2).results", timeout=10)
    assert outcome.value == [0, 1]
    assert not list(tmp_path.iterdir())  # idle, they hold nobody up
    with sharing_elsewhere(tmp_path) as other:
        heard = []

        def said(text):
            heard.append(text)
            if "waiting for" in text:
                other.communicate("\n")

        assert notebook.wait(notebook.start("ranks.run(lambda: 1)"), on_output=said).value == [1, 1]
        assert "waiting for the CPU of this shared node" in "".join(heard)
        assert f"runs another (process {other.pid}) in theirs.ipynb" in "".join(heard)
    with sharing_elsewhere(tmp_path):
        outcome = notebook.wait(
            notebook.start("ranks.run(lambda: 1)"), on_output=lambda text: "waiting" in text and notebook.interrupt()
        )
        assert outcome.error == "Interrupted"
        notebook.run(f"""
def close_while_they_wait():
    while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)
    ranks.close()
threading.Thread(target=close_while_they_wait).start()
""")
        assert "these ranks have ended" in notebook.fail("ranks.run(lambda: 1)").shown
    notebook.run("ranks = Ranks(2)\nranks.run(lambda: subprocess.Popen(['sleep', '1000']) and None)")
    assert not list(tmp_path.iterdir())  # also of what has been killed
    notebook.start("exit()")  # an end in order is theirs, too
    wait_until(lambda: not [p for p in notebook.processes() if p.pid != notebook.pid], "all is gone")


def test_a_prompt_in_a_cell(ranks):
    lines = iter(["p x", "n", "n", "n", "n"])  # past the end of the cell, too
    outcome = ranks.type_into("%%ranks 1\nx = 41\nbreakpoint()\ny = 2\nx + 1", lambda _: next(lines))
    assert not outcome.error, outcome.shown
    assert re.search(
        r"> Cell In\[\d+\]\([34]\)<module>\(\)", outcome.values[0]
    )  # before the prompt; 3.13 stops a line earlier
    assert "\n41\n" in outcome.updates[-1]
    assert outcome.updates[-1].endswith("42")
    assert "request_loop.py" not in outcome.updates[-1]
    typed = iter("q")  # once, for all of them
    outcome = ranks.type_into("%%ranks\nbreakpoint()\n1", lambda _: next(typed))
    assert outcome.shown.startswith("Interrupted: Cell In[")
    outcome = ranks.type_into("%%ranks\nbreakpoint()\n1", lambda _: ranks.interrupt())
    assert outcome.shown.startswith("Interrupted: Cell In[")
    assert "a debugger's prompt at Cell In[" in outcome.shown
    assert kept(ranks) == [True] * 3


def test_a_breakpoint_set_at_a_prompt_ends_with_its_cell(ranks):
    lines = iter(["b 5", "c", "c"])
    outcome = ranks.type_into("%%ranks 1\nx = 1\nbreakpoint()\nx = 2\nx = 3\nx", lambda _: next(lines))
    assert not outcome.error, outcome.shown
    assert next(lines, None) is None  # it was met
    assert ranks.run("%%ranks 1\nimport sys\nsys.gettrace()\n\nx = 4").values == []


def test_an_interrupt_of_what_was_typed_at_a_prompt(ranks):
    begun = ranks.directory / "begun"
    threading.Thread(
        target=lambda: (wait_until(begun.exists, "it is evaluated"), ranks.interrupt()), daemon=True
    ).start()
    lines = iter(['p open("begun", "w") and __import__("time").sleep(1000)'])
    outcome = ranks.type_into("%%ranks 1\nbreakpoint()\n1", lambda _: next(lines))
    begun.unlink()
    assert outcome.error == "Interrupted"
    assert kept(ranks) == [True] * 3


def test_a_quit_prompt_is_no_failure(ranks):
    typed = iter("q")
    outcome = ranks.type_into("%%ranks 1\nprint('here')\nbreakpoint()\n1", lambda _: next(typed))
    assert outcome.shown.startswith("Interrupted: Cell In[")
    assert outcome.updates[-1].startswith("rank 1 did not finish:\nhere\n")
    assert "\nquit at the prompt" in outcome.updates[-1]
    assert "failed" not in outcome.updates[-1]


def test_torchs_breakpoint_leaves_time_to_read(ranks):
    """As torch's own does: the ranks that wait must not give up after their group's timeout."""
    typed = iter("c")
    ranks.type_into("%%ranks\ndist.breakpoint(0)\n1", lambda _: next(typed))
    told = "dist.group.WORLD._get_backend(torch.device('cpu')).options._timeout.total_seconds()"
    assert ranks.run(f'ranks["{told}"]').value == [3600] * 3


def test_a_rank_that_dies_at_its_prompt(ranks):
    def late(_):
        wait_until(lambda: len([name for name in ranks.names() if name == "rank 1"]) == 0, "it is gone")
        return "c"

    outcome = ranks.type_into(
        "%%ranks 1\nimport os, threading\nthreading.Timer(1, os._exit, (3,)).start()\nbreakpoint()\n1", late
    )
    assert "rank 1: ended with exit code 3" in outcome.message
    assert kept(ranks) == [True, False, True]


def test_only_this_machine_can_reach_them(ranks):
    addresses = {address for address, _ in ranks.listening()}
    assert addresses
    assert addresses <= {"127.0.0.1", "::1"}


def test_two_notebooks_at_once_and_the_end_of_one(ranks, new_notebook):
    other = new_notebook(setup="import subprocess\n" + IMPORT)
    other.run("ranks = Ranks(2)\nranks['mark'] = 'theirs'")
    assert kept(ranks) == [True] * 3
    assert other.run("ranks['mark']").value == ["theirs"] * 2
    other.run("ranks.run(lambda: subprocess.Popen(['sleep', '1000']) and None)")
    other.kill()
    wait_until(lambda: not [p for p in other.processes() if p.pid != other.pid], "all is gone")
    assert kept(ranks) == [True] * 3


@pytest.mark.gpu
def test_on_a_gpu(notebook):
    """CUDA tensors stay between cells; ranks that hang in NCCL come back, all of them."""
    notebook.run(IMPORT + "ranks = Ranks(1 if torch.cuda.device_count() < 2 else 2, timeout=60)")
    notebook.run("%%ranks\nfrom course_utils import rank_device\nt = torch.ones(3, device=rank_device())")
    outcome = notebook.run("%%ranks\ndist.all_reduce(t)\nt.device.type, t.sum().item() == 3 * world_size")
    assert "('cuda', True)" in outcome.values[0]
    outcome = notebook.fail("%%ranks\nif rank == 0:\n    raise ValueError('no')\ndist.all_reduce(t)")
    assert "ValueError: no" in outcome.shown
    if "2" in notebook.run("str(len(ranks))").value:  # one rank has nobody to wait for
        assert "have been restarted" in outcome.shown
    notebook.run("%%ranks\nu = torch.ones(1, device=torch.cuda.current_device())\ndist.all_reduce(u)")
    notebook.run("ranks.close()")
