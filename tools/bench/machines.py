"""Measure launches beyond one machine: agents, Slurm, the training program, and kills.

    python -m tools.bench.machines [agents slurm program kills]

Agents and Slurm's nodes all run on this machine over loopback, so the result is the overhead of launching, not of a
network. Writes data/recorded/<machine>/machines.json. Takes about ten minutes on an idle machine.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from tests.helpers.slurm_cluster import MISSING, cluster
from tools.bench.bars import Row
from tools.bench.kernel import ROOT, Kernel
from tools.record import keeping

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TRAIN = ("-m", "course_utils.train", "--batch-size", "64")
NUM_ROUNDS, NUM_KILLS = 5, 30
NUM_TOGETHER, NUM_EPOCHS = 5, 12
RATES = ("launch", "torchrun", "Slurm")


def agents():
    """Seconds from the call to the first all-reduce of 2 × 2 ranks: by Nodes(2), and by torchrun started twice."""
    found = {"launch(on=Nodes(2))": [], "torchrun, twice": []}
    with Kernel() as kernel:
        kernel.cell("on_machines")
        kernel("first(on_nodes)")  # warm-up
        for i in range(NUM_ROUNDS):
            found["launch(on=Nodes(2))"].append(kernel("first(on_nodes)"))
            begin, endpoint = time.monotonic(), f"127.0.0.1:{29600 + i}"
            command = [
                *TORCHRUN,
                "--nnodes=2",
                "--nproc-per-node=2",
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint={endpoint}",
                "-m",
                "tools.bench.from_file",
                "all_reduce",
            ]
            both = [
                subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                for _ in range(2)
            ]
            moments = [float(line) for process in both for line in process.communicate()[0].split()]
            found["torchrun, twice"].append(max(moments) - begin)
    return found


def slurm():
    """Seconds of a job on two nodes: to srun's empty step, to the first all-reduce, and to the results."""
    found = {"srun, an empty step": [], "first all-reduce": [], "result": []}
    with cluster() as slurm, Kernel(SLURM_CONF=slurm.env["SLURM_CONF"], PATH=slurm.env["PATH"]) as kernel:
        kernel.cell("on_machines")
        for _ in range(NUM_ROUNDS):
            begin = time.monotonic()
            slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", "true")
            found["srun, an empty step"].append(time.monotonic() - begin)
            first, result = kernel("on_slurm()")
            found["first all-reduce"].append(first)
            found["result"].append(result)
    return found


def program():
    """Measure images/s per epoch with two ranks under launch, torchrun and Slurm, and a bare loop's relative seconds.

    All three train at the same time, because the machine's speed varies by a factor of 1.4 within seconds and then
    affects all alike. Epochs at either end, while not all are running, do not count.
    """
    rates = {way: [] for way in RATES}
    with cluster() as slurm, Kernel() as kernel, tempfile.TemporaryDirectory() as folder:
        kernel.cell("on_machines")
        for i in range(NUM_TOGETHER):
            kept = {way: Path(folder, f"{way}_{i}.jsonl") for way in RATES}
            options = [*TRAIN[2:], "--strategy", "ddp", "--model", "lecture", "--epochs", str(NUM_EPOCHS), "--json"]
            options = {way: [*options, str(path)] for way, path in kept.items()}
            meet = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{29590 + i}"]
            running = [
                _start([*TORCHRUN, "--standalone", "--nproc-per-node=2", *TRAIN[:2], *options["torchrun"]]),
                _start(
                    ["srun", "--nodes=2", "--ntasks-per-node=1", *TORCHRUN, *meet, *TRAIN[:2], *options["Slurm"]],
                    slurm.env,
                ),
            ]
            kernel(f"trained({options['launch']})")
            assert [process.wait() for process in running] == [0, 0]
            for way, path in kept.items():
                found = [json.loads(line)["images_per_s"] for line in path.read_text().splitlines()]
                rates[way] += found[NUM_EPOCHS // 4 : -NUM_EPOCHS // 4]
        shares = [kernel("bare_over_program()") for _ in range(NUM_ROUNDS)]
    return {"images/s": rates, "bare loop's seconds over the program's": shares}


def kills():
    """Train once under two torchrun agents while killing a worker or an agent `NUM_KILLS` times.

    Returns the seconds from each kill to the next training step, by what was killed, and whether the parameters equal
    those of an undisturbed run.
    """
    with tempfile.TemporaryDirectory() as folder:
        alone = _elastic(Path(folder, "alone"), kill=False)
        seconds, parameters = _elastic(Path(folder, "killed"), kill=True)
        left = [p for p in psutil.process_iter() if _is_ours(p, folder)]
    return {"seconds to the next step": seconds, "equal": parameters == alone[1], "left running": len(left)}


def _is_ours(process, folder):
    with contextlib.suppress(psutil.Error):
        return folder in " ".join(process.cmdline())
    return False


def _elastic(folder, kill):
    """Train under two agents; with `kill`, kill one process after the other.

    Returns the seconds to recover, and a digest of the result.
    """
    folder.mkdir()
    steps, port = folder / "steps", random.randrange(20000, 30000)
    # An agent silent for 3 s counts as lost (torchrun's default is 15 s). Agent 0 serves the rendezvous and the job
    # dies with it, so random kills spare agent 0, but not its worker.
    commands = [
        [
            *TORCHRUN,
            "--nnodes=2",
            "--nproc-per-node=1",
            "--max-restarts=100",
            "--monitor-interval=0.2",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            f"--rdzv-conf=is_host={number == 0},keep_alive_interval=1",
            "-m",
            "tools.bench.elastic",
            str(folder),
        ]
        for number in range(2)
    ]
    running = [_start(command) for command in commands]
    seconds, chance = {"worker": [], "agent": []}, random.Random(0)
    try:
        while kill and sum(map(len, seconds.values())) < NUM_KILLS:
            before = _content(steps)
            while _content(steps) == before:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.5))
            victim = chance.choice(["worker 0", "worker 1", "agent 1"])
            _kill(victim, running, commands)
            begin, attempts = time.monotonic(), _content(steps).count("\n")
            while _content(steps).count("\n") == attempts or _content(steps).endswith("\n"):
                assert time.monotonic() - begin < 120, f"no step within 120 s after {victim} was killed"
                time.sleep(0.01)
            seconds[victim.split()[0]].append(time.monotonic() - begin)
        folder.joinpath("enough").touch()
        assert [process.wait(300) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    return seconds, folder.joinpath("digest").read_text()


def _start(command, env=os.environ):
    """Start a process without output.

    An agent must not keep one store for all attempts, or the one that replaces a killed agent would wait for ever.
    """
    env = env | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)


def _content(path):
    return path.read_text() if path.exists() else ""


def _kill(victim, running, commands):
    what, number = victim.split()
    agent = running[int(number)]
    workers = psutil.Process(agent.pid).children()
    if what == "agent":
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        running[int(number)] = _start(commands[int(number)])
    for worker in workers[:1]:  # torchrun's workers outlive a killed agent; on a failing machine both die
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


PARTS = {"agents": agents, "slurm": slurm, "program": program, "kills": kills}


def rows(values):
    if "agents" in values:
        ours, theirs = values["agents"].values()
        yield Row("Nodes(2) over torchrun twice, to an all-reduce", 1, [median(ours) / median(theirs)])
    if "slurm" in values:
        empty, first, result = values["slurm"].values()
        yield Row("a Slurm job's first all-reduce, over srun's (s)", 4, [a - b for a, b in zip(first, empty)])
        yield Row("results, after the last rank returned (s)", 1, result)
    if "program" in values:
        rates = {way: median(found) for way, found in values["program"]["images/s"].items()}
        yield Row(
            "slowest of launch, torchrun, Slurm over quickest", 0.95, [min(rates.values()) / max(rates.values())], True
        )
        yield Row(
            "the program over a bare loop, time",
            1.02,
            [1 / median(values["program"]["bare loop's seconds over the program's"])],
        )
    if "kills" in values:
        for victim, seconds in values["kills"]["seconds to the next step"].items():
            yield Row(f"{len(seconds)} times a killed {victim}, to the next step (s)", 10, seconds)
        yield Row("same parameters as without kills", 1, [values["kills"]["equal"]], True)
        yield Row("left running", 0, [values["kills"]["left running"]])


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.machines", description="Measure beyond one machine's workers."
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to measure (all)")
    names = parser.parse_args(arguments).parts or list(PARTS)
    if MISSING:
        print("no Slurm here, so these are left out: slurm, program")
        names = [name for name in names if name not in ("slurm", "program")]
    values = {name: PARTS[name]() for name in names}
    print(json.dumps(values, indent=1))
    for row in rows(values):
        print(row)
    if set(names) == set(PARTS):
        print("kept in", keeping.save("machines", values, "python -m tools.bench.machines").relative_to(keeping.ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
