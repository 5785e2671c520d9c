"""The measurements, each a function of a Plan that returns what is recorded.

Functions are launched from live kernels that define them in a cell. Methods take turns, so that all see the same
machine.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tools.bench.kernel import ROOT, CellFailed, Kernel


@dataclass(frozen=True)
class Plan:
    """Sizes and repetitions of the measurements."""

    sizes: tuple = (2, 4, 8, 16)
    num_rounds: int = 3  # of all methods in turn
    num_launches: int = 7  # of fast methods in each round
    num_new_kernels: int = 5
    num_trainings: int = 6
    train_repeats: int = 12
    reading_s: float = 2  # a student reads the setup cell, which warms launch
    num_results: int = 5
    result_bytes: tuple = (50_000_000, 10**9)
    ring_sizes: tuple = (2, 4)
    ring_rounds: int = 7
    save_rounds: int = 2
    save_bytes: int = 200_000_000
    save_steps: int = 18  # from the beginning of a save: paced, it takes 4 s
    print_s: float = 20  # but at least print_mb per worker, since a busy machine prints slowly
    print_mb: float = 150
    kernels_in_turn: int = 8
    launches_in_turn: int = 6
    panel_sizes: tuple = (2, 8)
    panel_pairs: int = 40
    panel_window_s: float = 2
    panel_shown_s: float = 4  # until the panel and its plot are visible
    num_calls: int = 50
    num_failures: int = 5
    failing_mib: int = 1024
    log_s: float = 5
    recorder_launches: int = 10
    recorder_rounds: int = 20
    recorder_steps: int = 40  # in each round; ten times as many calls of a collective or of a message


def first_launches(plan):
    """Seconds of `import torch` in a new interpreter, and of first launches in new kernels, cold and warmed."""
    importing, first, second, warmed = [], [], [], []
    for _ in range(plan.num_new_kernels):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        importing.append(time.monotonic() - begin)
        with Kernel() as kernel:
            kernel.cell("first_launches")
            for times, seconds in zip((first, second), kernel("times")):
                times.append(seconds)
        with Kernel() as kernel:
            kernel.cell("setup")
            time.sleep(plan.reading_s)
            kernel.cell("first_launches")
            warmed.append(kernel("times[0]"))
    return {
        "import torch": importing,
        "first launch": first,
        "second launch": second,
        "first launch, two seconds after describe()": warmed,
    }


def latency(kernel, plan):
    """Seconds of each method: {method: {world_size: [[to the last rank's first all-reduce, to its return], …]}}."""
    methods = {
        "launch": "by_launch",
        "launch, one DDP step": "by_ddp_step",
        "spawn": "by_spawn",
        "torchrun": "by_torchrun",
        "loky, pool reused": "by_loky",
    }
    times = {method: {n: [] for n in plan.sizes} for method in methods}
    for n in plan.sizes:
        # Warm up each size.
        kernel(f"[timed(by_launch, {n}), timed(by_ddp_step, {n}), timed(by_loky, {n})]")
        for _ in range(plan.num_rounds):
            for method, function in methods.items():
                repeats = plan.num_launches if method.startswith("launch") else 1
                times[method][n] += kernel(f"[timed({function}, {n}) for _ in range({repeats})]")
            print(".", end="", flush=True)
    print()
    return times


def costs(kernel, plan):
    """The memory of workers, and the cost of results of 50 MB and 1 GB and of a call of log."""
    most, (some_bytes, all_bytes) = max(plan.sizes), plan.result_bytes
    nothing, some = [], []
    for _ in range(plan.num_results):
        nothing.append(kernel("seconds(launch, give, 0, world_size=2)"))
        some.append(kernel(f"seconds(launch, give, {some_bytes}, world_size=2)"))
    return {
        "private MB of workers, idle": kernel(f"launch(private_dirty_mb, False, world_size={most}).results"),
        "private MB of workers, one DDP step": kernel(f"launch(private_dirty_mb, True, world_size={most}).results"),
        "seconds, nothing returned": nothing,
        "seconds, 50 MB returned": some,
        "share of 1 GB that arrived": kernel(f"launch(give, {all_bytes}, world_size=2)[0].nbytes") / all_bytes,
        "microseconds of a call of log": kernel("launch(log_cost, world_size=2).results"),
        "seconds of marking five phases": kernel("marks_cost()"),
    }


def throughput(kernel, plan):
    """The images/s of one of two DDP ranks, under launch and under torchrun, in turn."""
    rates = {"launch": [], "torchrun": []}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    for _ in range(plan.num_trainings):
        rates["launch"].append(kernel(f"launch(from_file.train, {plan.train_repeats}, world_size=2)[0]"))
        # The exit code is ignored: a finished program with gloo and DDP sometimes aborts at exit.
        done = subprocess.run(
            [*command, "-m", "tools.bench.from_file", "train", str(plan.train_repeats)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        rates["torchrun"].append(float(done.stdout))
    return rates


def ring(kernel, plan):
    """The ring's share of dist.all_reduce's bandwidth with 16 MiB: {world_size: [share, …]}."""
    shares = {n: [] for n in plan.ring_sizes}
    for n in plan.ring_sizes * plan.ring_rounds:  # each launch gets other memory
        ranks = kernel(f"launch(race, 16 * 2**20, world_size={n}).results")
        ours, library = (max(times) for times in zip(*ranks))  # the slowest rank counts
        shares[n].append(library / ours)
    return shares


def saving(kernel, plan):
    """Seconds of steps before, while and after checkpoints are written by two ranks, as `saves.step_times` returns."""
    with tempfile.TemporaryDirectory() as folder:
        given = f"{folder!r}, {plan.save_rounds}, after={plan.save_steps}, num_bytes={plan.save_bytes}"
        return kernel(f"launch(saves.step_times, {given}, world_size=2, timeout=600)[0]")


def flood(plan):
    """The MB that a loop printing at full speed adds to the memory of a notebook."""
    with Kernel() as kernel:
        kernel.cell("flood")
        return dict(zip(("growth_mb", "printed_mb", "seconds"), kernel(f"growth({plan.print_s}, {plan.print_mb})")))


def watching(plan):
    """Measurements of the panel, persistent ranks, a failure's frames, and a flood of logged rows."""
    with Kernel(COURSE_PANEL="1") as kernel, Kernel() as other, ThreadPoolExecutor(1) as pool:
        kernel.cell("watching")
        values = {
            "panel": {
                n: kernel(f"panel_cost({n}, {plan.panel_pairs}, {plan.panel_window_s}, {plan.panel_shown_s})")
                for n in plan.panel_sizes
            },
            "calls": kernel(f"calls_ms({plan.num_calls})"),
            "failure": kernel(
                f"[[failure_s(size) for _ in range({plan.num_failures})] for size in (1, {plan.failing_mib // 4})]"
            ),
        }
        launches, rounds, steps = plan.recorder_launches, plan.recorder_rounds, plan.recorder_steps
        values["recorder"] = {
            "DDP step": kernel(f"recorder_cost(step_of_ddp, 2, {launches}, {rounds}, {steps})"),
            "collective": kernel(f"recorder_cost(sum_of_a_number, 1, {launches}, {rounds}, {10 * steps})"),
            "message": kernel(f"notes_cost({launches}, {rounds}, {10 * steps})"),
        }
        rows = pool.submit(kernel, f"flooded({plan.log_s})")
        answers = []
        while not rows.done():
            begin = time.monotonic()
            other("1")
            answers.append(time.monotonic() - begin)
        values["flood of rows"] = {"answers": answers, "rows per second, MiB": rows.result()}
    return values


def in_turn(plan):
    """The times of every launch of several kernels on a shared node: [request, start, end] on one clock.

    Each kernel launches in a loop. Returns None if one of them failed; the table then says so.
    """
    n = plan.kernels_in_turn
    with tempfile.TemporaryDirectory() as locks, contextlib.ExitStack() as stack, ThreadPoolExecutor(n) as pool:
        # The CPU is one resource, so one launch runs at a time whatever GPUs there are.
        settings = {"COURSE_SHARED": "1", "COURSE_DEVICE": "cpu", "COURSE_LOCKS": locks, "TMPDIR": locks}
        kernels = [stack.enter_context(Kernel(**settings)) for _ in range(n)]
        try:
            list(pool.map(lambda kernel: kernel.cell("in_turn"), kernels))
            cells = [f"launches({time.monotonic() + 1 + 0.1 * i}, {plan.launches_in_turn})" for i in range(n)]
            each = pool.map(lambda kernel, cell: kernel(cell), kernels, cells)
            return [launch for launches in each for launch in launches]
        except (CellFailed, TimeoutError) as error:
            print("bench: a notebook of several on a shared node failed:", error, sep="\n", file=sys.stderr)
            return None
