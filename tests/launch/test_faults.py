"""Workers that fail: the student reads the cause first, at the line of the cell, and nothing is left.

Every test runs with two and with four real workers, from a cell of a live notebook.
"""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.parametrize("world_size", [2, 4]), pytest.mark.alone]


def fail(notebook, source, world_size, within=2.0, error="WorkerError", **settings):
    """Define `worker` by `source`, launch it in a cell of its own, and return the outcome."""
    notebook.run(source.strip())
    arguments = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    outcome = notebook.fail(f"launch(worker, world_size={world_size}, {arguments})")
    assert outcome.error == error, outcome.shown
    assert outcome.seconds < within, f"took {outcome.seconds:.1f} s\n{outcome.shown}"
    return outcome


def first_lines(outcome, count=2):
    return outcome.shown.splitlines()[:count]


def others(world_size, but=1):
    """How the message names all ranks but one."""
    ranks = [rank for rank in range(world_size) if rank != but]
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def test_an_exception_before_a_collective_is_the_cause(notebook, world_size):
    outcome = fail(
        notebook,
        """
def worker():
    if dist.get_rank() == 1:
        raise ValueError("the loss is not a number")
    dist.all_reduce(torch.ones(3))
""",
        world_size,
    )
    head, place = first_lines(outcome)
    assert head == "WorkerError: rank 1: ValueError: the loss is not a number"
    assert re.match(r"  at Cell In\[\d+\], line 3, in worker:  raise ValueError\(", place), place
    assert re.search(rf"{others(world_size)} (was|were) in all_reduce at Cell In\[\d+\], line 4", outcome.shown)
    assert "onnection" not in outcome.shown


def test_an_exception_in_a_process_of_a_data_loader_is_told_as_it_was_there(notebook, world_size):
    """PyTorch raises it again at the line that asked for a batch, with its traceback as the message."""
    outcome = fail(
        notebook,
        """
class NoSuchSample(Exception): pass
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 5: raise NoSuchSample("5")
        return i
def worker():
    for batch in torch.utils.data.DataLoader(Samples(), num_workers=2):
        pass
""",
        world_size,
        within=10.0,
    )
    head, place = first_lines(outcome)
    assert re.match(r"WorkerError: rank \d: NoSuchSample: 5$", head), outcome.shown
    assert re.match(r"  at Cell In\[\d+\], line 5, in __getitem__:  if i == 5: raise NoSuchSample", place), place
    traced = outcome.shown.partition("Traceback of rank")[2]
    assert re.search(r"line 8, in worker\n.*\nIn DataLoader worker process 1:\n(.*\n)+.*line 5, in __getitem__", traced)
    assert traced.count("in __getitem__") == 1 and "/ipykernel_" not in outcome.shown, outcome.shown


def test_one_collective_too_many(notebook, world_size):
    outcome = fail(
        notebook,
        """
def worker():
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))
""",
        world_size,
    )
    others_had = rf"WorkerError: {others(world_size, but=0)} had returned"
    assert re.match(
        rf"{others_had} while rank 0 was in all_reduce at Cell In\[\d+\], line 4", first_lines(outcome)[0]
    ), outcome.shown
    # What torch says of it comes last: it is true, and no cause.
    assert "onnection" not in outcome.shown.partition("Traceback of rank 0")[0]
    assert "RuntimeError: " in outcome.shown.splitlines()[-1]
    assert "returned after 1 collective." in " ".join(outcome.shown.split())


@pytest.mark.parametrize(
    "call",
    [
        "dist.all_reduce(torch.ones(3 + (rank == 1)))",
        "dist.all_reduce(torch.ones(3, dtype=torch.float64 if rank == 1 else torch.float32))",
        "dist.all_reduce(torch.ones(3)) if rank == 1 else dist.broadcast(torch.ones(3), 0)",
    ],
    ids=["shape", "dtype", "order"],
)
def test_unequal_collectives_with_debug(notebook, world_size, call):
    outcome = fail(
        notebook,
        f"""
def worker():
    rank = dist.get_rank()
    {call}
""",
        world_size,
        debug=True,
    )
    head = outcome.shown.partition("\n\n")[0]
    assert re.search(r"(?s)WorkerError: Collective 1 was .* and .*\.$", head), head  # wrapped at 100 characters
    assert re.search(r"\nrank \d: RuntimeError: Detected mismatch between collectives on ranks", outcome.shown)
    assert re.search(r"at Cell In\[\d+\], line 3, in worker", outcome.shown)


@pytest.mark.parametrize(
    ("deed", "words", "exitcode"),
    [
        ("sys.exit(3)", r"left with exit code 3 \(sys.exit\)", 3),
        ("os._exit(3)", r"ended with exit code 3", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"killed \(SIGKILL\)", -9),
        ("ctypes.string_at(0)", r"ended by a segmentation fault \(SIGSEGV\)", -11),
    ],
    ids=["sys.exit", "os._exit", "SIGKILL", "segfault"],
)
def test_a_process_that_ends(notebook, world_size, deed, words, exitcode):
    outcome = fail(
        notebook,
        f"""
def worker():
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        {deed}
    dist.all_reduce(torch.ones(3))
""",
        world_size,
    )
    assert re.match(f"WorkerError: rank 1: {words}", first_lines(outcome)[0]), outcome.shown
    assert "debug" not in outcome.shown
    assert notebook.run("sys.last_value.rank, sys.last_value.exitcode").value == (1, exitcode)
    if exitcode == -11:  # the only one of these that can say where it was
        assert re.search(r"at Cell In\[\d+\], line 4, in worker:  ctypes", outcome.shown), outcome.shown


def test_with_debug_a_segmentation_fault_may_be_its_doing(notebook, world_size):
    """It is one that any worker may have: the sentence is of a possible cause."""
    source = "def worker():\n    if dist.get_rank() == 1: ctypes.string_at(0)\n    dist.barrier()"
    outcome = fail(notebook, source, world_size, debug=True)
    assert "debug=True was on, with which DDP on the CPU makes torch" in " ".join(outcome.shown.split())


@pytest.fixture
def small_memory(request):
    """A memory cgroup of 1 GiB, of version 1 or 2, for a worker to join; its folder."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(root) / f"course-test-{request.node.name.replace('/', '-')}"
        if not (Path(root) / "cgroup.procs").exists():
            continue
        try:
            folder.mkdir()
            (folder / limit).write_text(str(1 << 30))
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no memory cgroup can be made here, so nothing can be killed for memory safely")


def test_killed_for_memory(notebook, world_size, small_memory):
    notebook.run(f"cgroup = {str(small_memory / 'cgroup.procs')!r}")
    outcome = fail(
        notebook,
        """
def worker():
    if dist.get_rank() == 1:
        with open(cgroup, "w") as file:
            file.write(str(os.getpid()))
        with open(cgroup) as file:
            assert str(os.getpid()) in file.read().split()  # never without a limit
        taken = bytearray(2 << 30)
        taken[::4096] = b"1" * len(taken[::4096])
    dist.all_reduce(torch.ones(3))
""",
        world_size,
        within=5.0,  # filling a gigabyte takes its time
    )
    assert "rank 1: killed (SIGKILL) by the system, which had run out of memory" in first_lines(outcome)[0]
    assert notebook.run("sys.last_value.rank, sys.last_value.exitcode").value == (1, -9)


def test_time_is_up(notebook, world_size):
    outcome = fail(
        notebook,
        """
def worker():
    if dist.get_rank() == 1:
        time.sleep(100)
    dist.all_reduce(torch.ones(3))
""",
        world_size,
        within=7.0 - 5.0 + 2.0,
        timeout=2,  # the table's 5 s and 7 s, three seconds shorter
    )
    assert first_lines(outcome)[0].startswith("WorkerError: no end after 2 s, so all workers were stopped")
    assert re.search(r"^rank 1 was .*at Cell In\[\d+\], line 3, in worker:  time.sleep", outcome.shown, re.MULTILINE)
    where = rf"^{others(world_size)} (was|were) in all_reduce at Cell In\[\d+\], line 4, in worker:  dist.all_reduce"
    assert re.search(where, outcome.shown, re.MULTILINE), outcome.shown
    assert notebook.run("sys.last_value.rank").value == 1


def test_a_result_that_cannot_travel(notebook, world_size):
    """It cannot be pickled in the worker, or not be rebuilt in the notebook."""
    outcome = fail(notebook, "def worker(): return threading.Lock()", world_size)
    assert re.match(r"WorkerError: rank \d: TypeError: cannot pickle '_thread.lock' object", outcome.shown)
    assert "while sending back its result, a lock: return plain values or tensors" in outcome.shown
    outcome = fail(
        notebook,
        """
def refuse():
    if "COURSE_IN_WORKER" not in os.environ:
        raise ValueError("only in a worker")
class Fragile:
    def __reduce__(self): return refuse, ()
def worker(): return Fragile() if dist.get_rank() == 1 else None
""",
        world_size,
    )
    assert first_lines(outcome) == [
        "WorkerError: rank 1: ValueError: only in a worker",
        "  while rebuilding its result in the notebook: return plain values or tensors",
    ]


def test_an_argument_that_loads_only_in_the_notebook(notebook, world_size):
    outcome = fail(
        notebook,
        """
def refuse():
    if "COURSE_IN_WORKER" in os.environ:
        raise ValueError("only in the notebook")
class Fragile:
    def __reduce__(self): return refuse, ()
def worker(argument=Fragile()): return argument
""",
        world_size,
    )
    assert re.match("WorkerError: rank . ValueError: only in the notebook".replace(". V", r"\d: V"), outcome.shown)
    assert "while loading the worker function and its arguments" in outcome.shown


def test_a_failure_after_a_partner_was_lost_is_not_the_cause(notebook, world_size):
    """The first failure in time is not always the cause: a lost connection waits for the better story."""
    outcome = fail(
        notebook,
        """
def worker():
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline: pass
        raise ValueError("late")
    dist.all_reduce(torch.ones(3))
""",
        world_size,
    )
    assert first_lines(outcome)[0] == "WorkerError: rank 1: ValueError: late"


ODD_EXCEPTIONS = """
class Mute(Exception):
    def __str__(self): raise RuntimeError("no words")
def chained():
    try: {}["key"]
    except KeyError as error: raise ValueError("second") from error
def group(): raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
def deep(n=0): return deep(n + 1)
def long(): raise ValueError("x" * 10_000_000)
def mute(): raise Mute()
def surrogate(): raise ValueError("half a pair \\udc80")
def worker(deed):
    if dist.get_rank() == 1: deed()
"""


def test_odd_exceptions(notebook, world_size):
    notebook.run(ODD_EXCEPTIONS)

    def shown(name):
        outcome = notebook.fail(f"launch(worker, {name}, world_size={world_size})")
        assert outcome.error == "WorkerError"
        assert outcome.seconds < 2, name
        assert re.search(r"\n  at Cell In\[\d+\], line \d+, in ", outcome.shown[:20_000])
        return outcome

    chained = shown("chained").shown
    assert chained.startswith("WorkerError: rank 1: ValueError: second\n")
    assert "KeyError: 'key'" in chained
    group = shown("group").shown
    assert group.startswith("WorkerError: rank 1: ExceptionGroup: several (2 sub-exceptions)\n")
    assert "TypeError: b" in group
    assert shown("deep").shown.startswith("WorkerError: rank 1: RecursionError: maximum recursion depth exceeded")
    assert shown("mute").shown.startswith("WorkerError: rank 1: Mute")
    assert shown("surrogate").shown.startswith("WorkerError: rank 1: ValueError: half a pair")
    assert len(shown("long").shown) < 100_000


def test_a_worker_that_resists(notebook, world_size):
    """All signals ignored or blocked: it says where it is all the same, and ends."""
    outcome = fail(
        notebook,
        """
def worker():
    if dist.get_rank() == 1:
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    while True: pass
""",
        world_size,
        within=3.5,
        timeout=1,
    )
    assert "no end after 1 s" in first_lines(outcome)[0]
    assert "\nrank" in outcome.shown
    assert "in worker:  while True: pass" in outcome.shown
    assert "did not say where" not in outcome.shown


def test_a_thread_that_never_ends(notebook, world_size):
    outcome = fail(
        notebook,
        """
def worker():
    if dist.get_rank() == 1:
        threading.Thread(target=threading.Event().wait).start()
    return 1
""",
        world_size,
        within=3.0,
        timeout=1,
    )
    assert "rank 1 had returned, but a thread is still running" in outcome.shown, outcome.shown
