"""COURSE_SHARED=1: launches of several notebooks, and of several users, stand in line for one node."""

import json
import os
import signal
import stat
import subprocess
import sys

import psutil
import pytest

from course_utils.hardware import sharing
from tests.helpers.kernel import REPOSITORY, wait_until

SETUP = """
import os, time
from course_utils import launch
def hold(file):
    while not os.path.exists(file): time.sleep(0.01)
def nothing(): return "done"
launch(nothing, world_size=2)
"""
# Asks for its turn, says when it has it, and keeps it until a line comes in.
RESERVE = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from course_utils.hardware import sharing
def pause(seconds):
    import time
    time.sleep(seconds)
with sharing.reserve(sys.argv[1], 2, "cpu", pause):
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def locks(tmp_path, monkeypatch):
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("COURSE_LOCKS", str(folder))
    monkeypatch.setenv("COURSE_SHARED", "1")
    return folder


@pytest.fixture
def reserve(locks):
    """Starts a process that asks for its turn; its first line says that it waits, or that it has it."""
    started = []

    def start(name, **settings):
        process = subprocess.Popen(
            [sys.executable, "-c", RESERVE, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **settings
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def _node(new_notebook, tmp_path_factory):
    """The folder of the locks of a node that is shared, and what returns a notebook there that may be killed."""
    folder, made = tmp_path_factory.mktemp("node") / "locks", []
    folder.mkdir()
    folder.chmod(0o1777)

    def live():
        while not made or psutil.Process(made[-1].pid).status() == psutil.STATUS_ZOMBIE:
            made.append(new_notebook(setup=SETUP, COURSE_SHARED="1", COURSE_LOCKS=str(folder)))
        return made[-1]

    return folder, live


@pytest.fixture
def live(notebook, _node, locks, monkeypatch):
    """`live(2)` returns the folder, and a list of so many notebooks of the node: the shared one, and one more."""
    folder, mortal = _node
    monkeypatch.setenv("COURSE_LOCKS", str(folder))
    with notebook.keeping_names():
        notebook.run(f"{SETUP}\nos.environ.update(COURSE_SHARED='1', COURSE_LOCKS={str(folder)!r})")
        yield lambda number: (folder, [notebook] if number == 1 else [notebook, mortal()])
        notebook.run("del os.environ['COURSE_SHARED'], os.environ['COURSE_LOCKS']")


def is_mine(process):
    return process.stdout.readline() == "mine\n"


def test_who_asks_first_is_served_first(reserve):
    holder = reserve("holder")
    assert is_mine(holder)
    waiting = []
    for i in range(6):
        waiting.append(reserve(f"number {i}"))
        assert f"runs holder (process {holder.pid})" in waiting[-1].stdout.readline()  # it has its place in line
    interrupted = waiting.pop(2)
    interrupted.kill()
    order = [holder, *waiting]
    for served, following in zip(order, order[1:], strict=False):
        served.stdin.write("\n")
        served.stdin.flush()
        line = following.stdout.readline()
        while line.startswith("waiting"):
            line = following.stdout.readline()
        assert line == "mine\n"
        for later in order[order.index(following) + 1 :]:
            assert later.poll() is None
    assert served.wait(10) == 0


def test_a_notebook_in_a_loop_of_launches_does_not_keep_another_waiting(live, tmp_path):
    locks, (other, looping) = live(2)
    stop = tmp_path / "stop"
    message_id = looping.start(
        f"n = 0\nwhile not os.path.exists({str(stop)!r}): launch(nothing, world_size=2); n += 1\nn"
    )
    wait_until(lambda: list(locks.iterdir()), "the loop has begun")
    for _ in range(3):
        asked = looping_count(locks)
        assert other.run("launch(nothing, world_size=2).results").value == ["done", "done"]
        assert looping_count(locks) - asked <= 3  # tickets: the one that was being served, ours, and the one after
    stop.touch()
    assert not looping.wait(message_id).error


def looping_count(locks):
    """The highest number that a ticket has now."""
    numbers = [int(path.name.split("-")[2]) for path in locks.iterdir()]
    return max(numbers, default=0)


def test_the_second_notebook_waits_also_for_a_holder_that_is_killed(live, tmp_path):
    _, (second, first) = live(2)
    file = tmp_path / "go on"
    for act in (file.touch, first.kill):
        heard = []

        def said(text, act=act, heard=heard):
            heard.append(text)
            if "waiting for" in text:
                act()

        before = {process.pid for process in first.workers()}
        message_id = first.start(f"launch(hold, {str(file)!r}, world_size=2)")
        wait_until(lambda: len({p.pid for p in first.workers()} - before) >= 2, "the holder's workers start")
        outcome = second.wait(second.start("launch(nothing, world_size=2).results"), 60, said)
        assert outcome.value == ["done", "done"], outcome.shown
        assert f"runs hold (process {first.pid})" in "".join(heard)
        assert "waiting for the CPU of this shared node" in "".join(heard)
        if act == file.touch:
            first.wait(message_id)
            file.unlink()


def test_the_wait_can_be_interrupted_and_leaves_no_place_in_line(reserve, live):
    locks, (notebook,) = live(1)
    holder = reserve("holder")
    assert is_mine(holder)
    outcome = notebook.wait(notebook.start("launch(nothing, world_size=2)"), 10, lambda text: notebook.interrupt())
    assert outcome.error == "Interrupted"
    assert len(list(locks.iterdir())) == 1
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert notebook.run("launch(nothing, world_size=2).results").value == ["done", "done"]
    assert not list(locks.iterdir())


def test_a_killed_holder_is_nobody_and_what_it_forked_holds_nothing(reserve):
    fork = RESERVE.replace("    print(", "    import os, time\n    os.fork() or time.sleep(60)\n    print(")
    holder = subprocess.Popen(
        [sys.executable, "-c", fork, "holder"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert is_mine(holder)
        assert [who for who in sharing.others_at_work() if "holder" in who]
        holder.kill()
        holder.wait()
        assert sharing.others_at_work() == []
        assert is_mine(reserve("next"))
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate()


def test_gpus_are_waited_for_by_those_only_who_want_the_same(locks, monkeypatch):
    def gpu(uuid, free):
        return type("Gpu", (), {"uuid": uuid, "free_bytes": free})

    def tickets():
        found = [json.loads(path.read_text()) for path in sorted(locks.iterdir())]
        return [ticket["holds"] for ticket in found]

    def asks(resources):
        return sharing._Ticket("me", resources)

    cards = [gpu("A", 1), gpu("B", 3), gpu("C", 2)]
    monkeypatch.setattr(sharing, "visible_gpus", lambda: cards)
    with monkeypatch.context() as patch:
        patch.setattr(sharing, "_own", _Nothing())  # as if each ticket were another process's
        patch.setattr(sharing, "_is_alive", lambda fd: True)
        with asks(["A", "B", "C"]) as two, asks(["A"]) as behind, asks(["B", "C"]) as other:
            assert two.take(2) == []
            assert two.held == ["B", "C"]  # the emptiest
            assert behind.take(1) == []  # A is free, and nobody in front waits
            assert other.take(1)
            assert tickets() == [["B", "C"], ["A"], []]


# In a process of its own, as on a node of eight GPUs: asks for four of them, says which, and keeps them.
HOLD_GPUS = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
import pytest
from tests.helpers import machines
machines.play(pytest.MonkeyPatch(), "8 A100")
from course_utils.hardware import sharing
with sharing.reserve("holder", 4, "cuda") as gpus:
    print(gpus["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.readline()
"""


def test_agents_of_a_launch_get_the_gpus_that_it_has_reserved(live):
    """Each node its own of them, or all of them where ranks share; never another's."""
    _, (notebook,) = live(1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_GPUS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    notebook.run(
        f"import pytest, sys\nsys.path.insert(0, {str(REPOSITORY)!r})\nfrom tests.helpers import machines\n"
        "from course_utils.launch import Nodes\nplayed = pytest.MonkeyPatch()\nmachines.play(played, '8 A100')\n"
        "def see():\n    import time\n    return os.environ.get('CUDA_VISIBLE_DEVICES')"
    )
    try:
        held = holder.stdout.readline().strip().split(",")
        assert len(held) == 4  # 0 to 3: all are equally empty
        seen = notebook.run("launch(see, world_size=4, on=Nodes(2), backend=None).results").value
        assert seen[0] == seen[1] and seen[2] == seen[3]
        given = [*seen[0].split(","), *seen[2].split(",")]
        everything = notebook.run("[gpu.uuid for gpu in machines.nvml.gpus()]").value
        assert len(given) == 4 and sorted([*held, *given]) == sorted(everything)  # 4 to 7, each once
        notebook.run("two = ','.join(gpu.uuid for gpu in machines.nvml.gpus()[4:6])")
        notebook.run("os.environ['CUDA_VISIBLE_DEVICES'] = two")
        seen = notebook.run("launch(see, world_size=4, on=Nodes(2), backend=None).results").value
        (shared,) = set(seen)
        assert shared == notebook.run("two").value  # both, and none that is held
    finally:
        holder.kill()
        holder.communicate()
        notebook.run("os.environ.pop('CUDA_VISIBLE_DEVICES', None); played.undo()")


class _Nothing(set):
    def add(self, _):
        pass


def test_traps_in_the_folder_are_not_stepped_into(locks, tmp_path, reserve):
    precious = tmp_path / "precious"
    precious.write_text("a thesis")
    (locks / "course-ticket-1-1").symlink_to(precious)
    (locks / "course-ticket-2-1").symlink_to(tmp_path / "nowhere")
    os.mkfifo(locks / "course-ticket-3-1")
    (locks / "course-ticket-4-1").mkdir()
    os.link(precious, locks / "course-ticket-5-1")
    (locks / "course-ticket-6-x").write_text("")
    assert is_mine(reserve("me"))
    assert sharing.others_at_work()[0].endswith(")")
    assert len(sharing.others_at_work()) == 1
    assert precious.read_text() == "a thesis"
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_in_which_others_could_remove_files_is_refused(locks):
    locks.chmod(0o777)
    with pytest.raises(RuntimeError, match="mode 1777.*set COURSE_LOCKS"), sharing.reserve("me", 2, "cpu"):
        pass
    locks.chmod(0o700)  # one's own, for several notebooks of one's own
    with sharing.reserve("me", 2, "cpu"):
        assert len(list(locks.iterdir())) == 1


def test_an_error_in_line_leaves_no_ticket(locks, monkeypatch):
    def pause(seconds):
        raise OSError("no")

    with sharing.reserve("first", 2, "cpu"):
        monkeypatch.setattr(sharing, "_own", set())  # so that the second is another's
        monkeypatch.setattr(sharing, "_is_alive", lambda fd: True)
        with pytest.raises(OSError, match="no"), sharing.reserve("second", 2, "cpu", pause):
            pass
        assert len(list(locks.iterdir())) == 1
    assert not list(locks.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_two_users(reserve, locks):
    """One cannot be read as passwd's, and the two have nothing in common but the folder."""
    stranger = subprocess.Popen(
        ["python3", "-c", _standalone()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=65123,
        group=65123,
        extra_groups=[],
        cwd="/",
        env={"COURSE_SHARED": "1", "COURSE_LOCKS": str(_opened(locks)), "PATH": os.environ["PATH"]},
    )
    try:
        if not is_mine(stranger):
            pytest.skip("another user cannot run Python here")
        (ticket,) = locks.iterdir()
        assert (ticket.stat().st_uid, stat.S_IMODE(ticket.stat().st_mode)) == (65123, 0o644)
        mine = reserve("me")
        assert "user 65123 runs stranger" in mine.stdout.readline()
        stranger.stdin.write("\n")
        stranger.stdin.flush()
        assert is_mine(mine)
    finally:
        stranger.kill()
        stranger.communicate()


def _opened(folder):
    """`folder`, after letting everybody pass through to it."""
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    return folder


def _standalone():
    """RESERVE for a user who may not read this repository: the module's text, without the package around it."""
    text = (
        (REPOSITORY / "course_utils/hardware/sharing.py")
        .read_text()
        .replace("from .nvml import gpus as visible_gpus", "")
    )
    return (
        text
        + '\nimport sys\nwith reserve("stranger", 2, "cpu"):\n    print("mine", flush=True)\n    sys.stdin.readline()\n'
    )
