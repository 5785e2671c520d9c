"""What others would leave behind after all: shared memory with a name, orphans of a killed forkserver, descriptors."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from course_utils.launch.forkserver import server
from course_utils.launch.forkserver.protocol import Busy, Channel, Idle
from tests.helpers.kernel import LIMIT_S, wait_until

SHARED_MEMORY = """
from multiprocessing import get_context, shared_memory
def keep_a_block():
    block = shared_memory.SharedMemory(create=True, size=1000)
    block.buf[0] = dist.get_rank()
    return block.name
def keep_locks(method):
    context = get_context(method)
    lock, queue = context.Lock(), context.Queue()
    process = context.Process(target=time.sleep, args=(1000,), daemon=True)
    process.start()
    return [lock._semlock.name]
def share_by_name(then):
    log(pid=os.getpid())
    torch.multiprocessing.set_sharing_strategy("file_system")
    kept = torch.ones(1_000_000).share_memory_()
    queue = torch.multiprocessing.get_context("fork").Queue()
    queue.put(kept)
    time.sleep(0.2)  # the queue's thread sends it meanwhile; whether it has is all the same
    then()
def wait(): time.sleep(100)
"""


def test_shared_memory_that_nobody_unlinked_goes_with_the_launch(notebook):
    notebook.run(SHARED_MEMORY)
    blocks = notebook.run("launch(keep_a_block, world_size=2).results").value
    assert not [name for name in blocks if Path("/dev/shm", name).exists()]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_locks_of_multiprocessing_go_with_the_launch(notebook, method):
    notebook.run(SHARED_MEMORY)
    locks = notebook.run(f"launch(keep_locks, {method!r}, world_size=2).results").value
    assert [name is None for (name,) in locks] == [method == "fork"] * 2  # whose locks have no name
    assert not [name for (name,) in locks if name and Path("/dev/shm", f"sem.{name[1:]}").exists()]


@pytest.mark.parametrize("end", ["return", "timeout"])
def test_tensors_that_torch_shares_by_name_go_with_the_launch(notebook, end):
    notebook.run(SHARED_MEMORY)
    if end == "return":
        notebook.run("run = launch(share_by_name, nothing, world_size=2)")
    else:
        notebook.run(
            "try: launch(share_by_name, wait, world_size=2, timeout=2)\n"
            "except WorkerError as error: run, message = error.run, str(error)"
        )
        assert "no end after 2 s" in notebook.run("message").value
    pids = notebook.run("[int(pid) for pid in run.metrics.pid]").value
    assert len(pids) == 2
    assert not [path for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")]
    notebook.run("del run")


FAMILY = """
def raise_family():
    subprocess.Popen(["sleep", "1000"])
    subprocess.run("setsid sleep 1001 & setsid -f sleep 1002", shell=True)
    time.sleep(100)
"""


def test_what_a_killed_forkserver_leaves_is_ended(notebook):
    """It is killed when it is warm, then its successor while that warms up, then the stand_in of a third."""
    notebook.run(FAMILY)
    notebook.wait_until_warm()
    for victim, is_warm in (("forkserver", True), ("forkserver", False), ("stand-in", False)):
        message_id = notebook.start("launch(raise_family, world_size=2)")
        wait_until(lambda: len(notebook.sleepers()) == 6, "subprocesses start")
        understudies = [process for process in notebook.processes() if process.name() == "stand-in"]
        assert len(understudies) == (0 if is_warm else 1)
        (understudies if victim == "stand-in" else notebook.forkservers())[0].kill()
        outcome = notebook.wait(message_id)
        assert outcome.error == "LauncherError", outcome.shown
        assert not notebook.sleepers()
    assert notebook.run("launch(lambda: 1, world_size=2).results").value == [1, 1]


def test_launches_that_follow_one_another_do_not_keep_the_forkserver_from_warming_up():
    """Each of their workers would import for itself what the forkserver imports for all."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stand_in, moments = Channel(theirs), server._moments(Channel(ours))
        for message in (Busy(), Idle(), Busy()):  # the first launch has ended, and the next one runs
            stand_in.send(message)
        for _ in range(3):
            step = threading.Thread(target=next, args=(moments,), daemon=True)
            step.start()
            step.join(LIMIT_S)
            assert not step.is_alive(), "a step of the warm-up waits for a later launch"


@pytest.mark.alone
def test_a_descendant_that_holds_the_channel_holds_nothing_up(notebook):
    """A fork that outlives its rank has copies of all descriptors, but neither timeout nor interrupt waits for it."""
    notebook.run(
        """
def worker():
    os.system("setsid sleep 1000 &")
    if not os.fork():
        os.setsid()
        time.sleep(1000)
    for i in range(100): log(text="x" * 2000)
    time.sleep(1000)
""".strip()
    )
    outcome = notebook.fail("launch(worker, world_size=2, timeout=2)")
    assert outcome.message.startswith("no end after 2 s")
    assert outcome.seconds < 5
    message_id = notebook.start("print('begun')\nlaunch(worker, world_size=2)")
    wait_until(lambda: len(notebook.workers()) >= 6, "workers and theirs start")
    notebook.interrupt()
    outcome = notebook.wait(message_id)
    assert outcome.error == "Interrupted"


def test_a_commands_child_does_not_inherit_the_channel(notebook):
    value = notebook.run(
        """
def worker():
    listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
    return listed.count("socket:"), listed.count("memfd:")
launch(worker, world_size=3, backend=None).results  # three: no other test then misses the line that says where
""".strip()
    ).value
    assert value == [(0, 0)] * 3


def test_shutdown_while_another_thread_launches(notebook):
    notebook.run(
        """
def wait(): time.sleep(100)
def launch_it():
    try: launch(wait, world_size=2)
    except Exception as error: ended.append(type(error).__name__)
ended = []
thread = threading.Thread(target=launch_it)
""".strip()
    )
    notebook.run("thread.start()")
    wait_until(lambda: len(notebook.workers()) >= 2, "the thread's workers start")
    notebook.run("launch.shutdown()\nthread.join()")
    assert notebook.run("ended").value == ["LauncherError"]
    assert notebook.run("launch(nothing, world_size=2).results").value == [None, None]


def test_a_stdout_that_refuses_leaves_nothing_open_and_blames_no_rank(notebook):
    notebook.run(
        """
import contextlib, io
class Full(io.StringIO):
    def write(self, text): raise OSError(28, "No space left on device")
def talk(): print("hello"); return dist.get_rank()
launch(talk, world_size=2)
""".strip()
    )
    with notebook.leaving_nothing():
        for _ in range(2):
            outcome = notebook.fail("with contextlib.redirect_stdout(Full()): launch(talk, world_size=2)")
            assert (outcome.error, "No space left" in outcome.message) == ("OSError", True), outcome.shown
    assert notebook.run("latest_run() is None or latest_run().results == [0, 1]").value
    assert notebook.run("launch(talk, world_size=2).results").value == [0, 1]


def test_what_is_said_of_an_earlier_launch_is_nobodys(notebook):
    """A forkserver that is stopped for a moment answers late: its answers are not those to the next launch."""
    notebook.run("def wait(): time.sleep(100)\ndef rank(): return dist.get_rank()")
    (forkserver,) = notebook.forkservers()
    message_id = notebook.start("launch(wait, world_size=2)")
    wait_until(lambda: len(notebook.workers()) >= 2, "workers start")
    os.kill(forkserver.pid, signal.SIGSTOP)
    notebook.interrupt()
    outcome = notebook.wait(message_id)
    assert outcome.error == "Interrupted"
    if forkserver.is_running():
        os.kill(forkserver.pid, signal.SIGCONT)
    assert notebook.run("launch(rank, world_size=2).results").value == [0, 1]


def test_a_failing_store_leaks_nothing(notebook):
    notebook.run(
        """
def failing(*args, **kwargs): raise RuntimeError("no store")
dist.TCPStore, kept = failing, dist.TCPStore
""".strip()
    )
    try:
        with notebook.leaving_nothing():
            assert notebook.fail("launch(nothing, world_size=2)").message == "no store"
    finally:
        notebook.run("dist.TCPStore = kept")


def test_a_result_goes_with_its_run(notebook):
    notebook.run("def worker(): return torch.ones(30_000_000)\nimport gc, psutil\nme = psutil.Process()")
    value = notebook.run(
        """
before = me.memory_info().rss
run = launch(worker, world_size=2)
assert latest_run() is run and float(run[0].sum() + run[1].sum()) == 60_000_000
during = me.memory_info().rss
del run; gc.collect()
after = me.memory_info().rss
(during - before > 200e6, after - before < 20e6, latest_run())
""".strip()
    ).value
    assert value == (True, True, None)
