"""How long a launch takes, what it costs, what clocking a step costs, and how quick our ring is: `make bench`.

Everything is measured in one run and from live IPython kernels with the workers' functions defined in a cell, except
for `torch.multiprocessing.spawn` and `torchrun`, which need them in a file. The methods take turns, so that all of them
see the same machine. Prints the tables and keeps the numbers in data/recorded/.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jupyter_client.manager import start_new_kernel

from tools import recorded

SIZES = (2, 4, 8, 16)
ROUNDS = 3  # of all methods in turn
LAUNCHES = 7  # quick ones in each round

# Shared by all methods: `seconds` is time.monotonic() after the first all-reduce of a rank.
WORKER = """
import os, sys, time
import torch, torch.distributed as dist

def first_all_reduce():
    dist.all_reduce(torch.ones(1))
    return time.monotonic()

def by_hand(rank, world_size, port, folder=None):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seconds = first_all_reduce()
    dist.destroy_process_group()
    if folder:
        open(f"{folder}/{rank}", "w").write(str(seconds))
    return seconds

def train(repeats=12):
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel
    from course_utils.measure import throughput
    from course_utils.models import LectureNet
    torch.manual_seed(0)
    model = DistributedDataParallel(LectureNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return throughput.measure(step, 64, repeats=repeats).samples_per_s

if __name__ == "__main__":  # torchrun
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    value = train() if sys.argv[1] == "train" else first_all_reduce()
    if sys.argv[1] == "train" and dist.get_rank():
        value = ""
    sys.stdout.write(f"{value}\\n")  # in one piece: torchrun's workers write unbuffered
    dist.destroy_process_group()
"""

SETUP = """
import json, os, socket, statistics, subprocess, sys, tempfile, time
import torch, torch.distributed as dist
from course_utils import hardware, launch, log
from course_utils.measure import throughput
from course_utils.parallel import ring
sys.path.insert(0, FOLDER)
import bench_worker

def first_all_reduce():
    dist.all_reduce(torch.ones(1))
    return time.monotonic()

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

def timed(method, world_size):
    begin = time.monotonic()
    ends = method(world_size)
    return max(ends) - begin, time.monotonic() - begin

def by_launch(n):
    return launch(first_all_reduce, world_size=n).results

def by_spawn(n):
    with tempfile.TemporaryDirectory() as out:
        torch.multiprocessing.spawn(bench_worker.by_hand, args=(n, free_port(), out), nprocs=n)
        return [float(open(f"{out}/{r}").read()) for r in range(n)]

def by_torchrun(n):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}"]
    done = subprocess.run([*command, bench_worker.__file__, "all_reduce"], capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]

pools = {}

def by_loky(n):
    from loky import ProcessPoolExecutor
    if n not in pools:
        for pool in pools.values():
            pool.shutdown(kill_workers=True)
        pools.clear()
        pools[n] = ProcessPoolExecutor(max_workers=n)
    port = free_port()
    return [f.result(timeout=120) for f in [pools[n].submit(bench_worker.by_hand, r, n, port) for r in range(n)]]

def one_step():
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    return time.monotonic()

def by_ddp_step(n):
    return launch(one_step, world_size=n).results

def private_dirty_mb(work):
    if work:
        one_step()
    else:
        dist.barrier()
    dist.barrier()
    text = open("/proc/self/smaps_rollup").read()
    return int(text.split("Private_Dirty:")[1].split()[0]) / 1024

def give(num_bytes):
    return torch.ones(num_bytes // 4) if dist.get_rank() == 0 else None

def log_cost():
    begin = time.perf_counter()
    for step in range(20_000):
        log(loss=0.5, samples=64)
    return (time.perf_counter() - begin) / 20_000 * 1e6

def marks_cost():
    def step(phase):
        for name in ("load", "copy", "forward", "backward", "update"):
            with phase(name):
                pass
    found = throughput.measure_phases(step, device=hardware.devices(1)[0], repeats=500)
    return found.step.median_s - found.unmarked_step.median_s

# Seconds of the ring and of the library on this rank, in turn; the lower quartile, as in chapter 08.
def race(num_bytes, repeats=8):
    x, found = torch.zeros(num_bytes // 4), {ring.all_reduce: [], dist.all_reduce: []}
    for i in range(repeats):
        for way in list(found)[:: (-1) ** i]:  # each is first in every second round: what ran last left its caches
            dist.barrier()
            found[way] += throughput.measure(lambda: way(x), warmup=0, repeats=1).seconds
    return [statistics.quantiles(times[1:], n=4)[0] for times in found.values()]

def seconds(function, *args, **kwargs):
    begin = time.monotonic()
    result = function(*args, **kwargs)
    return time.monotonic() - begin, result
"""


class Kernel:
    """A live IPython kernel; `kernel(source)` returns the value of the source's last expression, through JSON."""

    def __init__(self):
        self._manager, self._client = start_new_kernel(kernel_name="python3")

    def __call__(self, source):
        *body, last = source.strip().split("\n")
        texts, errors = [], []

        def hook(message):
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                texts.append(content["text"])
            if message["msg_type"] == "error":
                errors.extend(content["traceback"])

        code = "\n".join([*body, f"import json; print('\\n=>' + json.dumps(({last})))"])
        self._client.execute_interactive(code, timeout=600, output_hook=hook)
        if errors:
            sys.exit("bench: a cell failed:\n" + "\n".join(errors))
        return json.loads("".join(texts).rsplit("\n=>", 1)[1])

    def close(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def main():
    values = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench_worker.py"
        file.write_text(WORKER)
        setup = f"FOLDER = {folder!r}\n{SETUP}\n0"
        values["first launch"] = measure_first_launch(setup)
        kernel = Kernel()
        try:
            kernel(setup)
            values["latency"] = measure_latency(kernel)
            values["costs"] = measure_costs(kernel)
            values["throughput"] = measure_throughput(kernel, file)
            values["ring"] = measure_ring(kernel)
        finally:
            kernel.close()
    report(values)
    print("kept in", recorded.save("launch", values, "make bench").relative_to(recorded.ROOT))


def measure_first_launch(setup):
    """Seconds of `import torch` in a new interpreter, and of the first launch of a new kernel, not warmed and warmed."""
    importing, cold, warmed = [], [], []
    for _ in range(ROUNDS):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        importing.append(time.monotonic() - begin)
        source = "from course_utils import launch, describe\ndef f():\n    import torch, time, torch.distributed as dist\n"
        source += "    dist.all_reduce(torch.ones(1))\n    return time.monotonic()\nimport time\n"
        kernel = Kernel()
        cold.append(kernel(source + "begin = time.monotonic()\nmax(launch(f, world_size=2).results) - begin"))
        kernel.close()
        kernel = Kernel()
        kernel(source + "describe()\nimport torch\n0")  # as every chapter's setup cell does
        time.sleep(2)  # a student reads
        warmed.append(kernel("begin = time.monotonic()\nmax(launch(f, world_size=2).results) - begin"))
        kernel.close()
    return {"import torch": importing, "first launch": cold, "first launch, two seconds after describe()": warmed}


def measure_latency(kernel):
    """{method: {world_size: [[seconds to the last rank's first all-reduce, seconds until it returns], …]}}"""
    methods = {"launch": "by_launch", "launch, one DDP step": "by_ddp_step", "spawn": "by_spawn"}
    methods |= {"torchrun": "by_torchrun", "loky, pool reused": "by_loky"}
    times = {method: {n: [] for n in SIZES} for method in methods}
    for n in SIZES:
        # What only the first use of a size pays.
        kernel(f"timed(by_launch, {n}), timed(by_ddp_step, {n}), timed(by_loky, {n})")
        for _ in range(ROUNDS):
            for method, function in methods.items():
                repeats = LAUNCHES if method.startswith("launch") else 1
                times[method][n] += kernel(f"[timed({function}, {n}) for _ in range({repeats})]")
            print(".", end="", flush=True)
    print()
    return times


def measure_costs(kernel):
    """Memory of workers, results of 50 MB and 1 GB, and a call of log."""
    nothing, fifty = [], []
    for _ in range(5):
        nothing.append(kernel("seconds(launch, give, 0, world_size=2)[0]"))
        fifty.append(kernel("seconds(launch, give, 50_000_000, world_size=2)[0]"))
    return {
        "private MB of 16 workers, idle": kernel("launch(private_dirty_mb, False, world_size=16).results"),
        "private MB of 16 workers, one DDP step": kernel("launch(private_dirty_mb, True, world_size=16).results"),
        "seconds, nothing returned": nothing,
        "seconds, 50 MB returned": fifty,
        "bytes of 1 GB that arrived": kernel("launch(give, 10**9, world_size=2)[0].sum().item() * 4"),
        "microseconds of a call of log": kernel("launch(log_cost, world_size=2).results"),
        "seconds of marking five phases": kernel("marks_cost()"),
    }


def measure_throughput(kernel, file):
    """images/s of one rank of two that train with DDP: under launch and under torchrun, in turn."""
    rates = {"launch": [], "torchrun": []}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", file, "train"]
    for _ in range(2 * ROUNDS):
        rates["launch"].append(kernel("launch(bench_worker.train, world_size=2)[0]"))
        # Not its exit code: now and then a program that has done all its work aborts as it ends, with gloo and DDP.
        done = subprocess.run(command, capture_output=True, text=True)
        rates["torchrun"].append(float(done.stdout))
    return rates


def measure_ring(kernel):
    """{world_size: [the ring's share of dist.all_reduce's bandwidth, 16 MiB, …]}"""
    shares = {2: [], 4: []}
    for n in list(shares) * 7:  # each launch finds other places in memory
        ranks = kernel(f"launch(race, 16 * 2**20, world_size={n}).results")
        ours, library = (max(times) for times in zip(*ranks))  # what counts is the slowest rank
        shares[n].append(library / ours)
    return shares


def report(values):
    latency, costs = values["latency"], values["costs"]
    median = {m: {n: statistics.median(first for first, _ in t) for n, t in by_n.items()} for m, by_n in latency.items()}
    print("\nSeconds from the call to the last rank's first all-reduce: median (min–max)")
    print(f"{'':24s}" + "".join(f"{f'{n} workers':>24s}" for n in SIZES))
    for method, by_size in latency.items():
        cells = []
        for n in SIZES:
            firsts = [first for first, _ in by_size[n]]
            cells.append(f"{median[method][n]:.3f} ({min(firsts):.3f}–{max(firsts):.3f})")
        print(f"{method:24s}" + "".join(f"{cell:>24s}" for cell in cells))
    returns = {n: statistics.median(r for _, r in latency["launch"][n]) for n in SIZES}
    first = {name: statistics.median(times) for name, times in values["first launch"].items()}
    idle, worked = costs["private MB of 16 workers, idle"], costs["private MB of 16 workers, one DDP step"]
    fifty = statistics.median(costs["seconds, 50 MB returned"]) - statistics.median(costs["seconds, nothing returned"])
    rate = {name: statistics.median(rates) for name, rates in values["throughput"].items()}
    rows = [  # what, measured, bar, whether more is better
        *((f"all-reduce, {n} workers (s)", median["launch"][n], bar) for n, bar in ((2, 0.06), (8, 0.16), (16, 0.35))),
        *((f"DDP step, {n} workers (s)", median["launch, one DDP step"][n], bar) for n, bar in ((2, 0.1), (8, 0.25), (16, 0.5))),
        *((f"cell returns, {n} workers (s)", returns[n], bar) for n, bar in ((2, 0.12), (8, 0.3))),
        *((f"spawn over launch, {n} workers", median["spawn"][n] / median["launch"][n], -bar) for n, bar in ((2, 20), (8, 40))),
        ("first launch less import torch (s)", first["first launch"] - first["import torch"], 1.5),
        ("first launch, 2 s after describe (s)", first["first launch, two seconds after describe()"], 0.12),
        ("private memory, 16 idle (MB, largest)", max(idle), 20),
        ("private memory, one DDP step (MB)", max(worked), 40),
        ("images/s, launch over torchrun", rate["launch"] / rate["torchrun"], -0.97),
        ("50 MB returned, more than nothing (s)", fifty, 1),
        ("a call of log (µs)", max(costs["microseconds of a call of log"]), 20),
        ("marking 5 phases, share of a 10 ms step", costs["seconds of marking five phases"] / 0.010, 0.01),
        *((f"ring over all_reduce, 16 MiB, {n} workers", statistics.median(s), -0.8) for n, s in values["ring"].items()),
        ("GB returned of 1", costs["bytes of 1 GB that arrived"] / 1e9, -1),
    ]
    print(f"\n{'what':42s}{'measured':>10s}{'bar':>10s}")
    for what, value, bar in rows:
        met = value >= -bar if bar < 0 else value <= bar
        print(f"{what:42s}{value:10.3f}{'≥' if bar < 0 else '≤':>5s} {abs(bar):<6g}{'' if met else '  NOT MET'}")


if __name__ == "__main__":
    main()
