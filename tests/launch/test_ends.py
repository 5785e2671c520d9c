"""Interrupts and violent ends: of the cell, the kernel, the forkserver. Nothing is left, and the next launch works."""

import os
import random
import re
import time
from pathlib import Path

import psutil
import pytest

from tests.helpers.kernel import wait_until

COMPUTE = """
def compute():
    print("begun", flush=True)
    while True: torch.ones(100, 100) @ torch.ones(100, 100)
"""
# Everybody waits in C++ for a message that nobody sends.
RECEIVE = """
def receive():
    print("begun", flush=True)
    dist.recv(torch.empty(3), src=(dist.get_rank() + 1) % dist.get_world_size())
"""
# A worker with a subprocess, and with a daemon that has left its session and its parent.
FAMILY = """
def raise_family(then):
    subprocess.Popen(["sleep", "1000"])
    subprocess.run("setsid sleep 1001 & setsid -f sleep 1002", shell=True)
    then()
"""


def begin(notebook, source, call):
    """Run a cell that launches and return its message id once every rank has begun."""
    notebook.run(source)
    before = {process.pid for process in notebook.workers()}
    message_id = notebook.start(call)
    world_size = int(call.partition("world_size=")[2][0])

    def ranks_begun():
        return sum(process.pid not in before for process in notebook.workers()) >= world_size

    wait_until(ranks_begun, "workers start")
    return message_id


def works(notebook):
    assert notebook.run("launch(lambda: dist.get_rank(), world_size=2).results").value == [0, 1]


@pytest.mark.alone
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("source", "name"), [(COMPUTE, "compute"), (RECEIVE, "receive")], ids=["computing", "in C++"])
def test_interrupt(notebook, world_size, source, name):
    notebook.run(source)
    begun = []

    def interrupt_when_begun(text):
        begun.extend(["begun"] * text.count("] begun"))
        if len(begun) == world_size:
            begun.append(time.monotonic())
            notebook.interrupt()

    outcome = notebook.wait(notebook.start(f"launch({name}, world_size={world_size})"), on_output=interrupt_when_begun)
    assert time.monotonic() - begun[-1] < 2
    assert outcome.error == "Interrupted"
    assert "at Cell In[" in outcome.shown  # it says where the ranks were
    assert f"in {name}:" in outcome.shown
    assert "KeyboardInterrupt" not in outcome.shown + outcome.stderr  # and no traceback of libraries
    works(notebook)


SAVE = """
def train(path):
    step = 0
    try:
        print("begun")
        if dist.get_rank() == 1: dist.barrier()
        while True:
            step += 1
            time.sleep(0.01)
    except KeyboardInterrupt:
        return "what was trained", step > 0
    finally:
        if dist.get_rank() == 0:
            with open(path, "w") as file: file.write("saved")
        print("saved")
"""


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
def test_a_rank_that_is_stopped_can_save_what_it_has(notebook, tmp_path, how):
    """As a program at Ctrl-C. The other, which waits in C++ for a partner, need not hear it, and holds nothing up."""
    notebook.run(SAVE)
    begun = []

    def interrupt_when_begun(text):
        begun.append(text)
        if how == "interrupt" and "".join(begun).count("begun") == 2:
            begun.append("begun")
            notebook.interrupt()

    source = f"launch(train, {str(tmp_path / 'state')!r}, world_size=2, timeout={100 if how == 'interrupt' else 1})"
    outcome = notebook.wait(notebook.start(source), on_output=interrupt_when_begun)
    assert outcome.error == ("Interrupted" if how == "interrupt" else "WorkerError"), outcome.shown
    assert "rank 0 was at Cell" in outcome.message
    assert re.search("rank 1 was (in barrier )?at Cell", outcome.message)  # it prints just before
    assert (tmp_path / "state").read_text() == "saved"
    results, logs = notebook.run("latest_run().results, latest_run().logs").value
    assert results[0] == ("what was trained", True)
    assert "saved" in logs[0]


def test_interrupt_ends_what_workers_have_started(notebook):
    notebook.run(COMPUTE + FAMILY)
    message_id = notebook.start("launch(raise_family, compute, world_size=2)")
    wait_until(lambda: len(notebook.sleepers()) == 6, "subprocesses start")
    notebook.interrupt()
    assert notebook.wait(message_id).error == "Interrupted"
    assert not notebook.sleepers()


def test_a_worker_that_returns_leaves_no_family(notebook):
    notebook.run(FAMILY)
    notebook.run("launch(raise_family, nothing, world_size=2)")
    assert not notebook.sleepers()


def test_a_rank_that_ends_takes_its_family_along_while_others_go_on(notebook):
    notebook.run("""
def worker():
    if dist.get_rank() == 0:
        child = subprocess.Popen(["sleep", "1000"])
        dist.broadcast(torch.tensor([child.pid]), 0)
        return
    pid = torch.tensor([0])
    dist.broadcast(pid, 0)
    while os.path.exists(f"/proc/{int(pid)}"): time.sleep(0.01)
""")
    notebook.run("launch(worker, world_size=2, timeout=5)")


def test_the_time_limit_counts_from_when_all_ranks_have_joined(notebook):
    """Joining takes seconds with NCCL. It must not use up a deadlock's time, or be named in its place."""
    notebook.run(
        """
class Late:
    def __reduce__(self): return eval, ("__import__('time').sleep(2 * int(__import__('os').environ['RANK']))",)
def wait(late):
    if dist.get_rank(): dist.barrier()
    else: time.sleep(100)
""".strip()
    )
    outcome = notebook.fail("launch(wait, Late(), world_size=2, timeout=1)")
    assert "rank 1 was in barrier at Cell" in outcome.message and "rank 0 was at Cell" in outcome.message


def test_a_rank_that_leaves_early_has_returned_however_long_its_group_takes_to_end(notebook):
    """NCCL ends a communicator together with all ranks of a node, so it may wait for a late one; gloo does not."""
    notebook.run(
        """
def leave(backend):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    rank = int(os.environ["RANK"])
    given = {"store": FakeStore(), "rank": rank, "world_size": 2} if backend == "fake" else {}
    os.environ["TORCH_DIST_INIT_BARRIER"] = "0"  # torch 2.11 would count in the store who has come
    dist.init_process_group(backend, **given)
    dist.destroy_process_group = lambda: (print("ends the group", flush=True), time.sleep(100))  # as NCCL may
    if rank == 0 and backend == "fake": time.sleep(100)
""".strip()
    )
    outcome = notebook.fail('launch(leave, "fake", world_size=2, backend=None, timeout=1)')
    assert "[rank 1] ends the group" in outcome.stdout
    assert "rank 0 was at Cell" in outcome.message and "\nrank 1 had returned\n" in outcome.message
    assert "ends" not in notebook.run('launch(leave, "gloo", world_size=2, backend=None, timeout=20)').stdout


def test_an_interrupt_at_any_line(notebook):
    """Of the launcher's own code, from where it begins to start something; whatever it did then, it has tidied up."""
    notebook.run(
        """
def worker(): return torch.ones(1000)
def interrupt_at(line):
    lines = 0
    def trace(frame, event, arg):
        nonlocal lines
        if "course_utils/launch" not in frame.f_code.co_filename: return None
        if event == "line":
            lines += 1
            if lines == line:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace
    sys.settrace(trace)
    try:
        launch(worker, world_size=2)
        return lines
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        sys.settrace(None)
""".strip()
    )
    total = notebook.run("interrupt_at(0)").value
    ended = []
    for line in range(100, total, total // 16):
        with notebook.leaving_nothing():
            outcome = notebook.run(f"interrupt_at({line})")
        ended.append(outcome.value)
    assert ended.count("interrupted") > 12, ended
    works(notebook)


def test_a_second_interrupt_while_the_first_clears_away(notebook):
    """It strikes at any line of what puts interrupts off, the last included; neither reaches the next launch."""
    notebook.run(
        """
def interrupt_twice(second):
    lines, has_interrupted = 0, False
    def trace(frame, event, arg):
        nonlocal lines, has_interrupted
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "line" and name == "stop" and file.endswith("supervisor.py") and not has_interrupted:
            has_interrupted = True  # too late for the wait: it is put off to the end
            signal.raise_signal(signal.SIGINT)
        elif event == "line" and has_interrupted and file.endswith("interrupts.py") and name != "handle":
            lines += 1
            if lines == second: signal.raise_signal(signal.SIGINT)
        return trace if "course_utils" in file else None
    sys.settrace(trace)
    try:
        launch(nothing, world_size=2)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    launch(nothing, world_size=2)
    return lines
""".strip()
    )
    total = notebook.run("interrupt_twice(0)").value
    assert total > 3
    for second in range(1, total + 1):
        with notebook.leaving_nothing():
            notebook.run(f"interrupt_twice({second})")


def test_interrupts_at_any_moment(notebook):
    """From 0 to 300 ms after the cell began, as Jupyter sends them: before the launch, but never after it."""
    notebook.run("""
def worker():
    dist.all_reduce(torch.ones(3))
    time.sleep(0.3)
    return torch.ones(1000)
""")
    moments = random.Random(0)
    ended = {"": 0, "Interrupted": 0}
    for _ in range(15):
        with notebook.leaving_nothing():
            message_id = notebook.start("launch(worker, world_size=2)")
            time.sleep(moments.uniform(0, 0.3))  # not to make anything pass: the moment is what is tried
            notebook.interrupt()
            outcome = notebook.wait(message_id)
            assert outcome.error in ended, outcome.shown
            ended[outcome.error] += 1
            # The interrupt may come after the cell's end and strike the next one.
            outcome = notebook.wait(notebook.start("pass"))
    assert ended["Interrupted"] > 5, ended
    works(notebook)


@pytest.mark.alone
def test_interrupt_while_the_forkserver_starts(notebook):
    notebook.run("launch.shutdown()")
    message_id = notebook.start("launch(nothing, world_size=2)")
    wait_until(notebook.forkservers, "a forkserver starts")
    interrupted = time.monotonic()
    notebook.interrupt()
    assert notebook.wait(message_id).error == "Interrupted"
    assert time.monotonic() - interrupted < 2
    works(notebook)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "world_size"),
    [("compute", 2), ("receive", 4)],
    ids=lambda value: str(value),
)
def test_the_kernel_is_killed(new_notebook, name, world_size):
    """With subprocesses, with daemons, and with a fork of the kernel that holds copies of all its descriptors."""
    setup = "import os, subprocess, time, torch, torch.distributed as dist\nfrom course_utils import launch"
    notebook = new_notebook(setup=setup)
    files = notebook.files()
    holder = notebook.run("""
holder = os.fork()
if not holder:
    time.sleep(60); os._exit(0)
holder
""").value
    notebook.run(COMPUTE + RECEIVE + FAMILY)
    notebook.start(f"launch(raise_family, {name}, world_size={world_size})")
    wait_until(lambda: len(notebook.sleepers()) == 3 * world_size, "subprocesses start")
    killed = time.monotonic()
    notebook.kill()

    def left():
        return [process for process in notebook.processes() if process.pid not in (holder, notebook.pid)]

    wait_until(lambda: not left(), "everything of the kernel ends")
    assert time.monotonic() - killed < 5
    assert psutil.pid_exists(holder)  # so it was not its end that did it
    psutil.Process(holder).kill()
    assert not notebook.files() - files


def test_the_kernel_is_killed_while_the_forkserver_starts(new_notebook):
    notebook = new_notebook(setup="from course_utils.launch import warm\nwarm()")
    assert notebook.forkservers()
    notebook.kill()
    wait_until(lambda: {p.pid for p in notebook.processes()} <= {notebook.pid}, "the forkserver ends")


def test_a_launch_that_waits_for_another_thread_says_so(notebook):
    notebook.run(
        """
def wait_for_file():
    while not os.path.exists("go on"): time.sleep(0.01)
thread = threading.Thread(target=lambda: launch(wait_for_file, world_size=2))
thread.start()
""".strip()
    )
    heard = []

    def go_on(text):
        heard.append(text)
        (notebook.directory / "go on").touch()

    outcome = notebook.wait(notebook.start("launch(nothing, world_size=2)"), on_output=go_on)
    assert not outcome.error, outcome.shown
    assert heard[0] == "waiting for the launch of wait_for_file, which runs in another thread, to end\n"
    notebook.run("thread.join()\nos.remove('go on')")


@pytest.fixture
def few_processes(request):
    """A cgroup of version 1 or 2 in which a process may not start others; its folder."""
    for root in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        folder = Path(root) / f"course-test-{os.getpid()}"
        if not (Path(root) / "cgroup.procs").exists():
            continue
        try:
            folder.mkdir()
            (folder / "pids.max").write_text("1")
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        yield folder
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), "all have left")
        folder.rmdir()
        return
    pytest.skip("no cgroup of processes can be made here")


# The forkserver's answers have all come when the kernel reads the first, as they may on a busy machine.
SLOW_TO_READ = """
from course_utils.launch.watch import supervisor
wait = supervisor.Supervisor.wait
def wait_late(self, timeout):
    supervisor.Supervisor.wait = wait
    time.sleep(0.5)
    return wait(self, timeout)
supervisor.Supervisor.wait = wait_late
"""


def test_the_system_refuses_another_process(notebook, few_processes):
    notebook.wait_until_warm()
    (forkserver,) = notebook.forkservers()
    (few_processes / "cgroup.procs").write_text(str(forkserver.pid))
    try:
        outcome = notebook.fail(SLOW_TO_READ + "launch(nothing, world_size=2)")
    finally:
        (few_processes.parent / "cgroup.procs").write_text(str(forkserver.pid))
    assert outcome.shown.startswith(
        "LauncherError: the system did not let rank 0 start (Resource temporarily unavailable)"
    )
    works(notebook)
    assert [forkserver] == notebook.forkservers()


def test_warming_from_a_short_lived_thread(notebook):
    notebook.run("""
launch.shutdown()
thread = threading.Thread(target=warm)
thread.start(); thread.join()
""")
    works(notebook)


@pytest.mark.alone
def test_shutdown_ends_the_forkserver_and_the_next_launch_starts_one(notebook):
    (first,) = notebook.forkservers()
    outcome = notebook.run("launch.shutdown()")
    assert outcome.seconds < 2
    assert not notebook.forkservers()
    assert not first.is_running()
    notebook.run("launch.shutdown()")  # nothing to do
    works(notebook)


@pytest.mark.alone
def test_shutdown_while_a_fork_of_the_kernel_holds_its_descriptors(notebook):
    """multiprocessing, DataLoader: what the kernel forks has copies of the forkserver's socket."""
    holder = notebook.run("holder = os.fork() or (time.sleep(60), os._exit(0))\nholder").value
    try:
        outcome = notebook.run("launch.shutdown()")
        assert outcome.seconds < 2
        assert not notebook.forkservers()
        works(notebook)
    finally:
        notebook.run(f"os.kill({holder}, signal.SIGKILL); os.waitpid({holder}, 0)")


def test_the_forkserver_is_killed_between_launches(notebook):
    (forkserver,) = notebook.forkservers()
    forkserver.kill()
    wait_until(lambda: not forkserver.is_running() or forkserver.status() == psutil.STATUS_ZOMBIE, "it dies")
    works(notebook)


@pytest.mark.alone
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_forkserver_is_killed_during_a_launch(notebook, world_size):
    message_id = begin(notebook, COMPUTE, f"launch(compute, world_size={world_size})")
    killed = time.monotonic()
    notebook.forkservers()[0].kill()
    outcome = notebook.wait(message_id)
    assert time.monotonic() - killed < 2
    assert "the process that starts workers has ended (signal 9)" in outcome.message
    assert "run the cell again" in outcome.message
    assert outcome.shown.startswith("LauncherError: the process that starts workers")
    works(notebook)


def test_a_rank_that_cannot_begin_says_why(notebook, tmp_path):
    """Where the system refuses it what it does first: before it could say anything itself."""
    (tmp_path / "sitecustomize.py").write_text("""
import os

def refuse(*_):
    raise PermissionError(1, "Operation not permitted")

os.setsid = refuse
""")
    notebook.run(
        "from course_utils.launch import Nodes\nbefore = os.environ['PYTHONPATH']\n"
        f"os.environ['PYTHONPATH'] = {str(tmp_path)!r} + os.pathsep + before\nlaunch.shutdown()"
    )
    try:
        for on in ("", ", on=Nodes(2)"):
            outcome = notebook.fail(f"launch(nothing, world_size=2{on})")
            assert outcome.error == "LauncherError"
            assert "PermissionError: [Errno 1] Operation not permitted\n  while starting" in outcome.shown
    finally:
        notebook.run("os.environ['PYTHONPATH'] = before\nlaunch.shutdown()\nlaunch(nothing, world_size=2)")


def test_without_a_timeout_ranks_may_take_any_time_if_they_log_or_print(notebook):
    notebook.run(
        """
import time
from course_utils.launch.place import Place
from course_utils.launch.watch.common import Quiet
def worker(tell):
    for step in range(15):
        time.sleep(0.3)
        tell(step)
    return "whole"
""".strip()
    )
    notebook.run("Place.limit_s, usual = Quiet(3), Place.limit_s")
    try:
        for tell in ("lambda step: log(step=step)", "print"):
            assert notebook.run(f"launch(worker, {tell}, world_size=2).results").value == ["whole"] * 2
        outcome = notebook.fail("launch(worker, lambda step: None, world_size=2)")
        said = "WorkerError: no rank has logged or printed anything for 3 s, so all workers were stopped"
        assert f"{outcome.error}: {outcome.message}".splitlines()[0] == said
        assert outcome.message.endswith("If they only needed longer: launch(…, timeout=seconds).")
        assert notebook.run("launch(worker, lambda step: None, world_size=2, timeout=60).results").value
    finally:
        notebook.run("Place.limit_s = usual")
