"""Looking into ranks: what their variables held when a launch failed, and debuggers typed to in the notebook."""

import re
import time

import pytest

HOLDING = """
class Net(torch.nn.Linear):
    def __repr__(self): raise AssertionError("the student's code runs again")

def holding():
    big, few, name, net = torch.zeros(1000, 1000), torch.arange(3.0), "x" * 500, Net(2, 2)
    nested, count = [1, [2, [3, [4]]], big], dist.get_rank() + 1
    if dist.get_rank() == 1:
        raise ValueError("no")
    dist.all_reduce(big)

def look():
    try:
        launch(holding, world_size=3)
    except WorkerError as error:
        return error
"""
DEBUGGED = """
def debugged():
    x = 10 * (dist.get_rank() + 1)
    breakpoint()
    y = x + 1
    return y
"""


def test_what_the_failing_and_the_waiting_ranks_held(notebook):
    notebook.run(HOLDING)
    held = notebook.run("""
error = look()
[{frame.function: frame.locals for frame in fate.frames if frame.locals} for fate in error.ranks]
""").value
    for rank, functions in enumerate(held):
        (names,) = functions.values()
        assert names["big"] == "tensor (1000, 1000) float32 cpu"
        assert names["few"] == "tensor (3,) float32 cpu: [0, 1, 2]"
        assert names["net"] == "Net module"
        assert names["count"] == str(rank + 1)
        assert len(names["name"]) < 130
        assert len(names["nested"]) < 130
    assert notebook.run("error.frames[-1].locals['count'], error.ranks[1].frames[-1].function").value == (
        "2",
        "holding",
    )


def test_what_was_held_is_bounded(notebook):
    assignments = "".join(f"    name_{i} = {i}\n" for i in range(60))
    notebook.run(f"def wide():\n{assignments}    1 / 0")
    deep, wide = notebook.run("""
def deep(n):
    many = {str(i): list(range(100)) for i in range(1000)}
    return deep(n - 1) if n else 1 / 0
def held(worker, *args):
    try: launch(worker, *args, world_size=1)
    except WorkerError as error: return [frame.locals for frame in error.frames]
held(deep, 100), held(wide)
""").value
    assert len(deep) == 101
    assert len(repr(deep)) < 5_000
    assert len(wide[-1]) == 41
    assert wide[-1]["…"] == "20 more names"


@pytest.mark.alone
def test_no_code_of_the_students_runs_and_nothing_large_is_copied(notebook):
    held, seconds = notebook.run(
        """
def odd():
    class Loud:
        def __repr__(self): os._exit(9)
        __hash__, __lt__, __eq__, __len__ = lambda self: 1, __repr__, __repr__, __repr__
        def method(self): pass
    import collections, weakref
    loud = Loud()
    dead, method, keys, chars = weakref.proxy(Loud()), loud.method, {loud: 1}, "z" * 10**8
    values, error, part, raw = {1: loud}.values(), ValueError(loud), slice(loud), bytes(10**9)
    state = collections.OrderedDict(weight=torch.ones(2), bias=loud)
    many, huge = dict.fromkeys(range(10**6), 0), 10**10000
    begin = time.monotonic()
    globals()[1] = 2
    dist.barrier()
    if dist.get_rank() == 0: raise ValueError(begin)
    dist.barrier()
def look():
    try: launch(odd, world_size=2)
    except WorkerError as error: return error.ranks, time.monotonic() - float(error.message)
ranks, seconds = look()
[fate.frames[-1].locals or fate.frames[-4].locals for fate in ranks], seconds""",
    ).value
    assert seconds < 5  # it took 7 s and more to copy them
    names = held[0]
    assert names["dead"] == "a ProxyType" or names["dead"].startswith("a ")
    assert (names["values"], names["error"], names["part"]) == ("a dict_values", "a ValueError", "a slice")
    assert names["raw"].startswith("bytes of 1,000,000,000: b'")
    assert names["keys"] == "{a Loud: 1}"
    assert names["state"] == "OrderedDict{'weight': tensor (2,) float32 cpu: [1, 1], 'bias': a Loud}"
    assert names["many"].endswith("… (1,000,000 in all)}")
    assert names["huge"] == "an int of 33,220 bits"
    assert "method" not in names


def test_of_a_cell_its_own_names_are_told(notebook):
    notebook.run("from course_utils import Ranks\nranks = Ranks(2)")
    notebook.run("%%ranks\n" + "\n".join(f"name_{i} = {i}" for i in range(60)))
    notebook.fail("%%ranks\nculprit = name_7 * 2\nif rank == 1:\n    raise ValueError(culprit)")
    assert notebook.run("sys.last_value.frames[-1].locals").value == {"culprit": "14", "name_7": "7", "rank": "1"}
    notebook.run("ranks.close()")


@pytest.mark.alone
def test_a_gigabyte_in_the_frames_costs_nothing(notebook):
    """Also for a rank that waits, whose names are asked for from another thread."""
    seconds = notebook.run("""
def large(size):
    tensors = [torch.empty(size, 2**20) for _ in range(4)]
    time.sleep(0.2)
    dist.barrier()
    if dist.get_rank() == 0: raise ValueError("no")
    dist.barrier()
def seconds(size):
    begin = time.monotonic()
    try: launch(large, size, world_size=2)
    except WorkerError as error:
        assert "list" not in str(error) and "tensor (" in error.frames[-1].locals["tensors"], error.frames[-1].locals
    return time.monotonic() - begin
seconds(1); min(seconds(64) for _ in range(3)) - min(seconds(1) for _ in range(3))
""").value
    assert seconds < 0.5


def test_folded_under_the_error(seen_notebook):
    def folded(outcome):  # beside the panel, which is there where the machine has taken a second for the launch
        return [html for html in outcome.htmls if "<details>" in html]

    seen_notebook.run(HOLDING)
    outcome = seen_notebook.fail("launch(holding, world_size=2)")
    assert folded(outcome), outcome.values
    assert folded(outcome)[0].startswith("<details><summary>What the variables held: ranks 1, 0</summary>")
    assert "tensor (1000, 1000) float32 cpu" in folded(outcome)[0]
    assert not folded(seen_notebook.run("look()\n1"))  # the cell has caught it
    cell = "os.environ['COURSE_PANEL'] = '0'\ntry: look()\nfinally: os.environ['COURSE_PANEL'] = '1'"
    assert not seen_notebook.run(cell).htmls


def test_a_prompt_of_each_rank_in_turn(notebook):
    notebook.run(DEBUGGED)
    typed = []

    def answer(prompt):
        typed.append(prompt)
        return ["p x", "n", "n", "p y", "c"][(len(typed) - 1) % 5]

    outcome = notebook.type_into("launch(debugged, world_size=2).results", answer)
    assert outcome.value == [11, 21]
    assert sorted(typed) == ["[rank 0] (Pdb) "] * 5 + ["[rank 1] (Pdb) "] * 5
    lines = outcome.stdout.splitlines()
    assert re.search(r"^\[rank 0\] > Cell In\[\d+\]\([34]\)debugged\(\)$", outcome.stdout, re.MULTILINE)
    assert {"[rank 0] 10", "[rank 1] 20", "[rank 0] 11", "[rank 1] 21"} <= set(lines)


def test_time_at_a_prompt_does_not_count(notebook):
    notebook.run(DEBUGGED)
    begun = time.monotonic()

    def answer(_):
        while time.monotonic() - begun < 1.5:  # the student reads
            time.sleep(0.1)
        return "c"

    assert notebook.type_into("launch(debugged, world_size=2, timeout=1).results", answer).value == [11, 21]


def test_where_is_the_students_own_stack(notebook):
    notebook.run(DEBUGGED)
    lines = iter(["w", "c"])
    outcome = notebook.type_into("launch(debugged, world_size=1)", lambda _: next(lines))
    assert "forkserver" not in outcome.stdout
    assert "worker.py" not in outcome.stdout


def test_pdbs_own_set_trace_and_the_end_of_the_function(notebook):
    notebook.run("""
def debugged():
    import pdb
    x = 41
    pdb.set_trace()
    x += 1
    return x""")
    lines = iter(["n"] * 5)
    outcome = notebook.type_into("launch(debugged, world_size=1).results", lambda _: next(lines))
    assert outcome.value == [42]
    assert "worker.py" not in outcome.stdout


def test_quitting_a_prompt_ends_the_launch(notebook):
    notebook.run(DEBUGGED)
    outcome = notebook.type_into("launch(debugged, world_size=2)", lambda _: "q")
    assert outcome.error == "Interrupted"
    assert outcome.shown.startswith(
        "Interrupted: debugged was quit at the prompt of rank 0, and all workers were stopped"
    )
    assert "rank 1 was at a debugger's prompt at Cell In[" in outcome.shown
    assert notebook.run("run = launch(nothing, world_size=2)\nlatest_run().name").value == "nothing"


def test_launches_of_a_check_are_not_the_latest_run(notebook):
    notebook.run("from course_utils import check\nrun = launch(nothing, world_size=2)")
    assert notebook.run("check('0.1', lambda: (dist.get_rank(), dist.get_world_size())).state").value == "passed"
    assert notebook.run("latest_run() is run").value is True


def test_interrupting_a_prompt(notebook):
    notebook.run(DEBUGGED)
    outcome = notebook.type_into("launch(debugged, world_size=2)", lambda _: notebook.interrupt())
    assert outcome.error == "Interrupted"
    assert "ranks 0 and 1 were at a debugger's prompt at Cell In[" in outcome.shown


def test_torchs_breakpoint_lets_the_others_wait(notebook):
    notebook.run("""
def debugged():
    x = torch.ones(2) + dist.get_rank()
    for step in range(2):
        dist.breakpoint(1, skip=1)
        dist.all_reduce(x)
    return x.tolist()
""")
    lines = iter(["p step", "n", "c"])
    outcome = notebook.type_into("launch(debugged, world_size=3, timeout=20).results", lambda _: next(lines))
    assert outcome.value == [[18, 18]] * 3
    assert outcome.stdout.count("waits at torch.distributed.breakpoint(1) until rank 1 continues") == 2
    assert "[rank 1] 1\n" in outcome.stdout


def test_nobody_can_type_after_the_fact(notebook):
    outcome = notebook.fail("""
def debugged():
    import pdb
    try: 1 / 0
    except ZeroDivisionError as error: pdb.post_mortem(error.__traceback__)
launch(debugged, world_size=1)""")
    assert "RuntimeError: breakpoint() needs keyboard input" in outcome.shown


@pytest.mark.parametrize("statement", ["breakpoint()", "dist.breakpoint()"])
def test_nobody_can_type(notebook, statement):
    notebook.run(f"def debugged():\n    {statement}\n    return 1")
    outcome = notebook.fail("launch(debugged, world_size=2)")
    assert "RuntimeError: breakpoint() needs keyboard input, but there is none here" in outcome.shown
    assert "pdb" not in outcome.shown  # nor pages of the debugger's own frames


def test_no_prompt_where_others_start_the_ranks(notebook):
    notebook.run(DEBUGGED + "from course_utils import Nodes")
    outcome = notebook.fail("launch(debugged, world_size=2, on=Nodes(2))")
    assert "breakpoint() opens a prompt only in workers that launch itself starts" in outcome.shown


def test_python_can_be_told_to_pass_breakpoints(notebook):
    notebook.run(DEBUGGED + "os.environ['PYTHONBREAKPOINT'] = '0'")
    assert notebook.run("launch(debugged, world_size=2).results").value == [11, 21]
    notebook.run("del os.environ['PYTHONBREAKPOINT']")
