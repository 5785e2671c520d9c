"""What ranks print, in the cell and in `run.logs`."""

import re

import pytest


def test_a_flood_from_one_rank(notebook):
    notebook.run(
        """
def worker():
    if dist.get_rank() == 1:
        for i in range(200_000): print("line", i)
""".strip()
    )
    outcome = notebook.run("run = launch(worker, world_size=2)")
    excerpt = outcome.stdout.splitlines()
    assert "[rank 1] line 0" in excerpt[:3]
    assert excerpt[-1] == "[rank 1] line 199999"
    assert any("lines left out here; run.logs has more" in line for line in excerpt)
    assert len(excerpt) < 500
    assert len(outcome.stdout) < 50_000
    assert notebook.run("run.logs[0], run.logs[1] == ''.join(f'line {i}\\n' for i in range(200_000))").value == (
        "",
        True,
    )


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_flood_from_every_rank(notebook, world_size):
    notebook.run(
        """
def worker():
    for i in range(100_000): print("line", i)
""".strip()
    )
    outcome = notebook.run(f"run = launch(worker, world_size={world_size})")
    assert len(outcome.stdout.splitlines()) < 500
    assert len(outcome.stdout) < 50_000
    assert notebook.run("all(log == ''.join(f'line {i}\\n' for i in range(100_000)) for log in run.logs)").value is True
    notebook.run("del run")


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_kind_of_output(notebook, world_size):
    """C code, standard error, subprocesses, threads, lines without end, bytes that are no text: all with the rank."""
    notebook.run(
        """
def worker():
    rank, libc = dist.get_rank(), ctypes.CDLL(None)
    print("python", rank)
    libc.printf(b"c code %d\\n", rank)
    print("error", rank, file=sys.stderr)
    subprocess.run(["echo", f"subprocess {rank}"])
    subprocess.run(f"echo shell {rank} >&2", shell=True)
    os.write(1, b"descriptor \\xff\\n")
    thread = threading.Thread(target=lambda: print("thread", rank)); thread.start(); thread.join()
    for percent in range(0, 101, 50): print(f"\\r{percent} %", end="")
    print()
    print("x" * 5_000_000)
    print("no end", rank, end="")
    libc.printf(b", c no end")
""".strip()
    )
    outcome = notebook.run(f"run = launch(worker, world_size={world_size})")
    lines = outcome.stdout.splitlines()
    for rank in range(world_size):
        mine = [line.removeprefix(f"[rank {rank}] ") for line in lines if line.startswith(f"[rank {rank}]")]
        assert mine[:7] == [f"python {rank}", f"c code {rank}", f"error {rank}", f"subprocess {rank}", f"shell {rank}",
                            "descriptor \N{REPLACEMENT CHARACTER}", f"thread {rank}"]  # fmt: skip
        assert mine[7] == "100 %"
        assert mine[8].startswith("xxx")
        assert len(mine[8]) < 1_100
        assert sorted([f"no end {rank}", ", c no end"]) == sorted(re.split("(?<=end)(?=no)|(?<=[0-9])(?=,)", mine[9]))
        assert len(mine) == 10
    assert notebook.run("[len(log) > 5_000_000 for log in run.logs]").value == [True] * world_size
    notebook.run("del run")


def test_output_comes_while_the_run_goes_on(notebook):
    notebook.run(
        """
def worker():
    libc = ctypes.CDLL(None)
    print("from python"); libc.printf(b"from c\\n")
    dist.barrier()
    while not os.path.exists("go on"): time.sleep(0.01)
""".strip()
    )
    seen = []

    def watch(text):
        seen.append(text)
        if "".join(seen).count("] from") == 4:
            (notebook.directory / "go on").touch()

    outcome = notebook.wait(notebook.start("launch(worker, world_size=2, timeout=20)"), on_output=watch)
    assert not outcome.error, outcome.shown
    (notebook.directory / "go on").unlink()


def test_what_was_printed_before_a_failure_is_kept(notebook):
    notebook.run(
        """
def worker():
    print("before", dist.get_rank(), end="")
    dist.barrier()
    if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
""".strip().replace('end=""', "flush=True")
    )
    outcome = notebook.fail("launch(worker, world_size=2)")
    assert "[rank 1] before 1" in outcome.stdout
    assert notebook.run("sys.last_value.run.logs[1]").value == "before 1\n"


@pytest.mark.alone
def test_workers_that_treat_their_output_badly(notebook):
    notebook.run(
        """
def close_stdout():
    print("closing")
    sys.stdout.close()
    return 1
def close_descriptors():
    os.close(1); os.close(2)
    return 1
def no_stdout():
    sys.stdout = sys.stderr = None
    return 1
def print_later():
    def later():
        while True: print("later")
    threading.Thread(target=later, daemon=True).start()
    return 1
def print_in_a_thread_to_the_end():
    threading.Thread(target=lambda: (time.sleep(0.2), print("the end"))).start()
    return 1
def fork():
    if not os.fork(): return "child"
    os.wait()
    return 1
def fork_and_raise():
    if not os.fork(): raise ValueError("in the child")
    os.wait()
    return 1
def fork_and_exit():
    if not os.fork(): sys.exit()
    os.wait()
    return 1
""".strip()
    )
    for name in (
        "close_stdout",
        "close_descriptors",
        "no_stdout",
        "print_later",
        "print_in_a_thread_to_the_end",
        "fork",
        "fork_and_raise",
        "fork_and_exit",
    ):
        outcome = notebook.run(f"run = launch({name}, world_size=2)\nrun.results")
        assert outcome.value == [1, 1], name
        assert outcome.seconds < 3, name
        if name == "print_in_a_thread_to_the_end":
            assert "[rank 1] the end" in outcome.stdout
        if name == "fork_and_raise":
            assert "[rank 1] ValueError: in the child" in outcome.stdout


@pytest.mark.parametrize("call", ["log(x=1)", "breakpoint()"])
def test_a_process_that_a_rank_forked_says_that_it_is_no_rank(notebook, call):
    """Its row would mix with the rank's, and its prompt wait for ever."""
    notebook.run(
        f"""
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        {call}
        return i * i
def worker():
    return len(list(torch.utils.data.DataLoader(Squares(), num_workers=1, multiprocessing_context="fork")))
""".strip()
    )
    outcome = notebook.fail("launch(worker, world_size=2)")
    assert "RuntimeError" in outcome.message and "set num_workers=0" in outcome.message, outcome.shown


def test_messages_from_threads_do_not_mix(notebook):
    """Two threads log while the worker returns a result."""
    notebook.run(
        """
def worker():
    def logging():
        while True: log(**{f"text{i}": "x" * 1000 for i in range(5)})
    for _ in range(2): threading.Thread(target=logging, daemon=True).start()
    time.sleep(0.1)
    return dist.get_rank()
""".strip()
    )
    for _ in range(5):
        assert notebook.run("run = launch(worker, world_size=2)\nrun.results").value == [0, 1]
    assert notebook.run("set(map(len, run.metrics['text4']))").value == {1000}
    notebook.run("del run")
