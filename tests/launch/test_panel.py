"""What is seen of a launch while it runs: the panel in a notebook, the bar in a terminal, and where neither is."""

import contextlib
import math
import os
import pty
import re
import subprocess
import sys
import termios

import pytest
from matplotlib.figure import Figure

from course_utils.launch.display.history import History, Moment
from course_utils.launch.display.over_time import Curves
from course_utils.launch.display.plot import Plot
from course_utils.launch.forkserver.protocol import Logged
from course_utils.launch.watch.rows import Rows
from tests.helpers.kernel import REPOSITORY

STEPS = """
def steps(seconds=2.0, failing=-1):
    for step in range(int(seconds * 50)):
        time.sleep(0.02)
        log(loss=1 / (step + 1), total=int(seconds * 50), samples=64)
        if step == failing:
            print("failing at", time.monotonic())
            if dist.get_rank() == 1:
                raise ValueError("no")
            dist.barrier()
"""


@pytest.fixture(scope="module")
def watched(seen_notebook):
    seen_notebook.run(STEPS)
    return seen_notebook


@pytest.mark.alone
def test_a_long_launch_is_seen_and_leaves_a_summary(watched):
    outcome = watched.run("run = launch(steps, seconds=4.0, world_size=2)")
    first, last = outcome.values[0], outcome.updates[-1]
    assert re.match(r"steps on 2 ranks: running at \d\d:\d\d:\d\d \(\d s\)\nrank 0: ", first)
    assert "<table" in outcome.htmls[0]
    assert re.match(r"steps on 2 ranks: finished, \d+ s\nrank 0: returned, 200 of 200, loss", last)
    tables = [value for _, value in outcome.moved]
    assert 1 <= len(tables) <= 5 * outcome.seconds
    row = re.compile(r"running.*? \d+ of 200.*?loss 0\.\d+.*?[\d.]+e?\+?\d* samples/s.*?\d+ MiB")
    assert any(row.search(re.sub("<[^>]*>", " ", table)) for table in tables)
    assert any('<img alt="loss of each rank, and how much memory it holds' in value for _, value in outcome.moved[:-1])
    assert '<img alt="loss of each rank' in outcome.moved[-1][1]  # the curves to their end stay
    outcome = watched.run("1")  # and no later cell sees any of it
    assert not outcome.updates + outcome.moved


def test_launches_of_a_cell_that_say_nothing_share_a_panel(watched):
    watched.run("def quiet(): time.sleep(1.4)\ndef loud():\n    quiet()\n    print('hello')")
    outcome = watched.run("launch(quiet, world_size=2); launch(quiet, world_size=1); launch(loud, world_size=1)\nNone")
    assert len(outcome.values) == 1
    ends = [title.partition("\n")[0] for title in outcome.updates if "finished" in title]
    assert [end.partition(":")[0] for end in ends] == ["quiet on 2 ranks", "quiet on 1 rank", "loud on 1 rank"]
    outcome = watched.run("launch(loud, world_size=1); launch(quiet, world_size=1)\nNone")
    assert len(outcome.values) == 2  # what was printed keeps its own
    assert len(watched.run("launch(quiet, world_size=1)\nNone").values) == 1  # and so does another cell


def test_a_short_launch_is_not(watched):
    outcome = watched.run("launch(lambda: None, world_size=2)\nNone")
    assert not outcome.values + outcome.moved


@pytest.mark.alone
def test_a_failing_rank_turns_red_at_once_and_the_others_wait(watched):
    outcome = watched.fail("launch(steps, failing=80, world_size=3)")
    failed = float(re.search(r"\[rank 1\] failing at ([\d.]+)", outcome.stdout)[1])
    red = next(moment for moment, value in outcome.moved if "#b71c1c" in value)
    assert red - failed < 1
    (shown,) = [value for _, value in outcome.moved if "failed: ValueError: no, at Cell In[" in value][-1:]
    assert shown.count('<tr style="background: #b71c1c; color: #fff"><th scope="row"') == 1
    last = outcome.updates[-1].splitlines()
    assert last[0].startswith("steps on 3 ranks: failed")
    assert "waiting in barrier at Cell In[" in last[1]
    assert "failed: ValueError: no, at Cell In[" in last[2]
    assert "<img" not in outcome.moved[-1][1]  # nothing stands between the table and the error


@pytest.mark.alone
def test_a_rank_that_hangs_in_ddps_backward_looks_it(watched):
    watched.wait_until_warm()  # DDP is imported
    outcome = watched.fail("""
def half():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(1000):
        loss = model(torch.ones(2, 4)).sum()
        if step == 60 and dist.get_rank() == 1:
            time.sleep(100)
        loss.backward()
        log(loss=loss.item())
        time.sleep(0.05)
launch(half, world_size=2, timeout=25)""")
    assert "no end after 25 s" in outcome.message
    shown = [value for _, value in outcome.moved[:-1]]  # without the summary
    assert any("steps/s" in value for value in shown), shown
    assert "steps/s" not in re.sub("<img.*", "", shown[-1])
    told = r"running in \w*backward at Cell In\[\d+\], line 7, .*?, and its last collective has not finished"
    assert re.search(r"background: #fff3cd[^<>]*>" + told, shown[-1]), shown[-1]


@pytest.mark.alone
def test_a_deadlock_is_seen_before_time_is_up(watched):
    outcome = watched.fail("""
def silent():
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        dist.recv(torch.ones(1), 0)
    began, x = time.monotonic(), torch.ones(1)
    while dist.get_rank() == 0 or time.monotonic() - began < 6:
        dist.all_reduce(x, group=pair)
    dist.recv(x, 0)
launch(silent, world_size=3, timeout=14)""")
    assert "no end after 14 s" in outcome.message
    shown = [re.sub("<[^>]*>", " ", value) for _, value in outcome.moved[:-1]]  # without the summary
    rows = [re.search(r"(?s)rank .*? 0 (.*?) 1 (.*?) 2 (.*)", table).groups() for table in shown]
    stuck = [i for i, row in enumerate(rows) if "waiting in recv at Cell In[" in row[2]]
    assert stuck, shown
    # A table may stand for five seconds, so early ones are told by the time in their title.
    early = [row for row, table in zip(rows, shown) if int(re.search(r"\((\d+) s\)", table)[1]) <= 5]
    assert any("running in all_reduce at Cell In[" in row[0] for row in early), shown
    assert not any("waiting" in row[0] + row[1] for row in early), shown
    assert "waiting in recv at Cell In[" in rows[-1][1]
    assert re.search(r"\b[\d]+ of the group of ranks 0 and 1: all_reduce of \(1,\) float32", rows[-1][0]), rows[-1]
    told = "Rank 2 has called recv from rank 0 (message 1, of (1,) float32), and rank 0 has called no matching send."
    assert told in shown[-1]
    assert told.replace(" has ", " had ") in outcome.message and told not in outcome.updates[-1]


def test_what_is_too_long_is_cut_between_words_and_says_so(watched):
    outcome = watched.run("""
def wordy():
    log(loss=0.5, accuracy=0.9, rate=0.1, epoch=3, text="a learning rate of 0.125 after warm-up")
    log(loss=0.5, rate="a learning rate of 0.125")
    print("step 100 of epoch 2 of the third run of this afternoon: trained with loss 0.0784 and more", flush=True)
    time.sleep(1.5)
launch(wordy, world_size=1)
def wordier():
    log(loss=0.5, accuracy=0.9, rate=0.1, epoch=3)
    print("x" * 100, flush=True)
    time.sleep(1.5)
launch(wordier, world_size=1)
None""")
    first, second = [table for _, table in outcome.moved if ": finished" in table]
    assert "<code>step 100 of epoch 2 of the third run of this afternoon: trained with loss…</code>" in first
    assert ">loss 0.5, rate a learning rate of…<" in first
    assert ">loss 0.5, accuracy 0.9, rate 0.1, …<" in second
    assert f"<code>{'x' * 79}…</code>" in second


@pytest.mark.parametrize("values", ["samples=10**400", "step=10**5000", "x=10**5000", "x='<b>'", "total=0, samples=-1"])
def test_odd_values_are_shown(watched, values):
    outcome = watched.run(f"""
def odd():
    for step in range(70):
        time.sleep(0.02)
        log({values})
launch(odd, world_size=1)
None""")
    assert outcome.updates[-1].startswith("odd on 1 rank: finished")
    assert "<b>" not in "".join(outcome.htmls)
    assert not outcome.stderr


def test_a_panel_that_cannot_be_drawn_ends_no_launch(watched):
    outcome = watched.run("""
from course_utils.launch.display import panel
usual, panel.as_html = panel.as_html, None
try: run = launch(steps, world_size=2)
finally: panel.as_html = usual
run.results, len(run.history.moments) > 4""")
    assert outcome.value == ([None, None], True)  # its history is whole
    assert outcome.stderr.startswith("What is shown of the ranks could not be drawn: TypeError(")
    assert not watched.workers()


def test_a_machine_that_cannot_be_measured_ends_no_launch(watched):
    outcome = watched.run("""
import psutil
usual, psutil.Process.memory_info = psutil.Process.memory_info, None
try: run = launch(steps, world_size=2)
finally: psutil.Process.memory_info = usual
run.results""")
    assert outcome.value == [None, None]
    assert outcome.stderr.startswith("What is shown of the ranks could not be drawn: TypeError(")


def test_a_prompt_that_was_quit_is_no_failure(watched):
    typed = iter("q")
    outcome = watched.type_into(
        "def debugged():\n    time.sleep(1.5)\n    breakpoint()\nlaunch(debugged, world_size=1)", lambda _: next(typed)
    )
    assert outcome.error == "Interrupted"
    assert re.match(r"debugged on 1 rank: quit, \d+ s\nrank 0: quit at the prompt", outcome.updates[-1])
    assert watched.run("latest_run().name").value == "debugged"


def test_an_interrupt_is_told(watched):
    watched.run("""
def printing():
    steps(1.3)
    print("interrupt me", flush=True)
    steps(20.0)
""")
    has_interrupted = []

    def interrupt(text):
        if not has_interrupted:
            has_interrupted.append(text)
            watched.interrupt()

    outcome = watched.wait(watched.start("launch(printing, world_size=2)"), 20, interrupt)
    assert outcome.error == "Interrupted"
    assert outcome.updates[-1].startswith("printing on 2 ranks: interrupted")
    said = "What they had printed, logged and returned:  "
    assert said in outcome.message
    typed = outcome.message.splitlines()[-1].removeprefix(said)
    (told,) = watched.run(f"del latest_run\n{typed}").values  # as it can be typed
    assert re.fullmatch(r"<Run of printing: 2 ranks, interrupted after \d+\.\d\d s>", told)
    watched.run("from course_utils import check\ncheck('0.1', lambda: None)\nNone")
    assert watched.run("latest_run().name").value == "printing"  # who has asked for a check has launched nothing


def test_tqdm_is_understood(watched):
    outcome = watched.run("""
def bars():
    import tqdm
    for _ in tqdm.tqdm(range(100)): time.sleep(0.02)
launch(bars, world_size=2)
None""")
    assert any('max="100"' in value for _, value in outcome.moved)
    assert "100 of 100" in outcome.updates[-1]


def test_a_bar_that_is_full_gives_way_to_later_rows(watched):
    outcome = watched.run("""
def loads_and_trains():
    import tqdm
    for _ in tqdm.tqdm(range(3)): pass
    for step in range(60):
        time.sleep(0.03)
        log(total=100)
launch(loads_and_trains, world_size=1)
None""")
    assert "60 of 100" in outcome.updates[-1]


@pytest.mark.parametrize(
    "cell",
    [
        "os.environ['COURSE_PANEL'] = '0'\nlaunch(steps, 1.3, world_size=2)",
        "os.environ['PYTEST_CURRENT_TEST'] = 'nbval'\nlaunch(steps, 1.3, world_size=2)",
        "thread = threading.Thread(target=launch, args=(steps, 1.3))\nthread.start(); thread.join()",
        "from course_utils.launch import unannounced\nwith unannounced(): launch(steps, 1.3, world_size=2)",
    ],
    ids=["asked", "tested", "thread", "check"],
)
def test_where_nobody_looks(watched, cell):
    outcome = watched.run(cell + "\nNone")
    watched.run("os.environ.pop('PYTEST_CURRENT_TEST', None)\nos.environ['COURSE_PANEL'] = '1'")
    assert not outcome.values + outcome.moved + outcome.updates


def test_the_figure_when_the_author_asks(watched):
    watched.run("run = launch(steps, world_size=2)")
    outcome = watched.run("run.show_history()")
    assert outcome.values == ["Figure: Throughput and memory of each rank over the course of the launch."]
    assert 'alt="Throughput and memory of each rank over the course of the launch."' in outcome.htmls[0]
    moments = watched.run("[m.rows for m in run.history.moments], run.history.unit").value
    assert moments[0][-1][0] > 80
    assert moments[1] == "samples"


SCRIPT = """
import os, sys, time
from course_utils import launch, log
def steps():
    for step in range(80):
        if step > 20:  # the first are there before the bar
            time.sleep(0.02)
        log(loss=0.5, total=80)
        if step == 70: print("a line")
def debugged():
    breakpoint()
    return 1
if __name__ == "__main__":
    launch(time.time, world_size=2)  # the next one starts at once
    launch(steps, world_size=2)
    print("after the bar", flush=True)
    terminal = [os.dup(1), os.dup(2)]
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(name, os.O_CREAT | os.O_WRONLY)
        os.dup2(file, number)
    launch(steps, world_size=2)
    sys.stdout.flush(), os.dup2(terminal[0], 1), os.dup2(terminal[1], 2)
    launch(debugged, world_size=1)
"""


def test_a_bar_and_a_prompt_in_a_terminal_and_silence_where_the_output_is_none(tmp_path):
    """Ctrl-D quits the prompt."""
    (tmp_path / "script.py").write_text(SCRIPT)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY))
    command = [sys.executable, "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=theirs, stderr=theirs, stdin=theirs):
        os.close(theirs)
        shown = b""
        while b"(Pdb) " not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"\x04")
        with contextlib.suppress(OSError):  # its end
            while chunk := os.read(ours, 4096):
                shown += chunk
    os.close(ours)
    bar, _, shown = shown.partition(b"after the bar")
    assert re.search(rb"steps: +\d+%\|.*\| \d+/80 \[.*, loss 0\.5\]", bar), bar
    rates = [float(rate) for rate in re.findall(rb"([\d.]+) steps/s", bar)]
    assert rates and max(rates) < 1000, bar
    assert b"| 80/80 [" in bar.rstrip().splitlines()[-1], bar
    assert len(re.findall(rb"[\r\n]\[rank [01]\] a line\r\n", bar)) == 2, bar  # the bar has made way
    assert sorted((tmp_path / "stdout").read_text().splitlines()) == ["[rank 0] a line", "[rank 1] a line"]
    assert (tmp_path / "stderr").read_text() == ""
    assert b"debugged was quit at the prompt of rank 0" in shown
    assert b"needs keyboard input" not in shown


def test_a_flood_of_rows_is_bounded():
    rows = Rows(2)
    for step in range(400_000):
        rows.add(step % 2, Logged(float(step), step // 2, {"loss": step, "samples": 2}))
    kept = list(rows)
    assert 50_000 <= len(kept) <= 100_000
    assert rows.counts == [200_000, 200_000]
    assert rows.samples == [400_000, 400_000]
    assert rows.latest[1].step == 199_999
    for rank in range(2):
        steps = [logged.step for each, logged in kept if each == rank]
        assert steps == list(range(0, 200_000, steps[1]))
    assert rows.note == "run.metrics has 100,000 of the 400,000 rows that were logged: one in 4"


def test_a_flood_is_said_and_counted(notebook):
    outcome = notebook.run("""
def flood():
    for step in range(120_000): log(x=step, text="y" * 5000 if step == 0 else "")
run = launch(flood, world_size=1)
len(run.metrics), len(run.metrics.text[0]), int(run.metrics.step.max())
""")
    assert outcome.stdout.splitlines()[-1] == "run.metrics has 60,000 of the 120,000 rows that were logged: one in 2"
    length, characters, last = outcome.value
    assert (length, last) == (60_000, 119_998)
    assert characters < 1_100


def test_a_loss_that_is_nan_is_said_while_it_runs_and_at_its_end(watched, notebook):
    source = """
def diverge(seconds):
    for step in range(10):
        time.sleep(seconds / 10)
        is_broken = step >= 4 + (dist.get_rank() == 0)
        log(loss=float("nan") if is_broken else 1.0, norm=float("inf") if step > 7 else 1.0, lr=0.1)
launch(diverge, SECONDS, world_size=2)
"""
    said = [
        "loss was nan for the first time at step 4, on rank 1.",
        "norm was inf for the first time at step 8.",
    ]
    assert notebook.run(source.replace("SECONDS", "0.0")).stdout.splitlines()[-2:] == said
    outcome = watched.run(source.replace("SECONDS", "4.0"))
    assert any("4, on rank 1." in seen and "running" in seen for seen in outcome.updates)
    assert outcome.stdout.splitlines()[-2:] == said


def history_of(*rows):
    """A History of one rank that has logged the values of `rows` in turn, with a Moment after each."""
    history, logged = History(0.0), Rows(1)
    for step, values in enumerate(rows):
        history._next = 0.0  # no need to wait
        logged.add(0, Logged(float(step), step, values))
        history.sample(logged, {})
    return history


@pytest.mark.parametrize(
    "rows, name, values",
    [
        ([{"samples": 4, "text": "a", "speed": 2.0, "other": 1}, {"other": 7}], "speed", [2, 2]),
        ([{"lr": 0.1}, {"lr": 0.1, "loss": 3.0}, {"lr": 0.1}], "loss", [math.nan, 3, 3]),
        ([{"loss": 3}, {"loss": math.inf}, {"loss": 10**400}], "loss", [3, math.inf, math.nan]),
        ([{"samples": 4, "total": 10}], "", [math.nan]),
    ],
)
def test_the_loss_or_else_the_first_number_is_kept_for_the_plot(rows, name, values):
    history = history_of(*rows)
    assert history.logged_name == name
    assert [moment.logged[0] for moment in history.moments] == pytest.approx(values, nan_ok=True)


def test_the_panels_plot_moves_in_its_frame_and_widens_it_when_a_curve_has_left_it():
    def moment(seconds, loss):
        return Moment(seconds, [seconds], [0], [2**29], [None], [loss])

    history, plot = History(0.0), Plot(1)
    history.logged_name = "loss"
    history.moments = [moment(0.0, 2.0), moment(2.0, 1.0)]
    images = [plot.draw(history)]
    assert images[0].startswith('<img alt="loss of each rank, and how much memory it holds, over time')
    frame = plot._frame
    history.moments.append(moment(4.0, 0.5))
    images.append(plot.draw(history))
    assert plot._frame is frame  # which is most of the cost
    history.moments.append(moment(9.0, 50.0))
    images.append(plot.draw(history))
    assert plot._frame is not frame
    history.logged_name = ""
    images.append(plot.draw(history))
    assert 'alt="steps/s of each rank' in images[-1]
    history.moments = [moment._replace(rows=[0]) for moment in history.moments]
    images.append(plot.draw(history))
    assert 'alt="How much memory each rank holds, over' in images[-1]
    history.moments = [moment._replace(host_bytes=[None], rows=[9]) for moment in history.moments]  # another machine's
    images.append(plot.draw(history))
    assert 'alt="steps/s of each rank, over' in images[-1]
    assert len(set(images)) == len(images)
    history.moments = [moment._replace(rows=[0]) for moment in history.moments]
    assert plot.draw(history) == ""
    left, right = plot._curves.axes
    assert left.get_xlim()[1] >= 9 and right.get_ylim()[1] > 0.5


def test_the_plot_goes_on_scaling():
    history, figure = History(0.0), Figure()
    curves = Curves(figure, 1)
    history.moments = [Moment(0.0, [0], [0], [0], [None]), Moment(0.3, [0], [0], [0], [None])]
    curves.draw(history)
    history.moments.append(Moment(1.0, [500], [0], [2**29], [None]))
    curves.draw(history)
    rate, memory = (axes.get_ylim() for axes in figure.axes)
    assert rate[0] == memory[0] == 0
    assert rate[1] > 500
    assert memory[1] > 0.5
