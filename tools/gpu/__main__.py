"""Run all checks that need a GPU, in at most 25 minutes, the most valuable first.

    python -m tools.gpu --prepare             where there is a network: fetch what a machine with torch alone lacks
    python -m tools.gpu [--out DIR] [--minutes 24] [STEP ...]

It needs this checkout, torch 2.11 or newer and the course's imports; the chapters also need Jupyter, which --prepare
puts into build/wheels. A failed step is reported in one line, and the next begins. Results are written as they come:
DIR/results.jsonl has a line per step, tests.jsonl one per test or cell, log.txt all output, experiments.json and
recorded.tar.gz the measurements. After a kill, a call with the same DIR continues: finished steps are not repeated,
unless they are named.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from course_utils.processes import linux
from tools.suite import events
from tools.suite.followed import files_that_mark

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "wheels"
COMMIT = WHEELS / "commit.txt"
MARK = "COURSE_GPU_PASS"  # environment variable that marks the processes of a pass
ANSI_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# The packages that run notebooks; a GPU node's Python with torch has the rest.
ROOTS = ("ipykernel", "ipywidgets", "nbval", "nbclient", "nbformat", "jupytext", "nbstripout", "pytest-timeout")
# Compiled for one Python version, and needed for debugging only.
LEFT_OUT = {"debugpy", "pip", "setuptools"}
QUICK = {"COURSE_QUICK": "1"}  # what is asked is whether chapters run, not how fast
FIRST = ("02", "04", "03", "01")  # chapters that show the most on one GPU


@dataclass
class Step:
    """A command, its time limit in seconds, its variables and, if one may be missing, a module it needs."""

    name: str
    command: list
    limit_s: float = 300
    env: dict = field(default_factory=dict)
    needs: str = ""


def python(*arguments):
    return [sys.executable, "-u", *arguments]


def steps():
    """All steps, the most valuable first."""
    from course_utils import hardware
    from tools.gpu.experiments import EXPERIMENTS

    chapters = sorted(path.name[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    chapters.sort(key=lambda chapter: (FIRST.index(chapter) if chapter in FIRST else len(FIRST), chapter))
    pytest = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.suite.events")
    side_by_side = max(2, hardware.num_cores() // 2)
    return [
        Step("machine", python("-m", "tools.gpu", "--describe"), 60),
        Step("doctor", python("-m", "course_utils.doctor")),
        Step("tests gpu", [*pytest, "-m", "gpu", *files_that_mark("gpu")]),
        *(Step(f"experiment {name}", python("-m", "tools.gpu.experiments", name), 150) for name in EXPERIMENTS),
        Step("solved", python("-m", "tools.solved", "--at-a-time", str(side_by_side)), 800, QUICK, "nbval"),
        *(Step(f"record {each}", python("-m", "tools.record", each), 240, needs="nbclient")
          for each in chapters if each != "15"),  # it records other frameworks, which a GPU node does not have
        Step("tests hardware", [*pytest, "tests/hardware"]),
        Step("tests launch", [*pytest, "-n", str(side_by_side), "tests/launch"], 400, needs="xdist"),
        Step("on the CPU", python("-m", "tools.solved", "08", "09"), 300, QUICK | {"COURSE_DEVICE": "cpu"}, "nbval"),
        Step("NCCL as it was", python("-m", "tools.solved", "09", "12"), 300,
             QUICK | {"TORCH_DIST_USE_NCCL2": "0", "NCCL_DEBUG": "WARN"}, "nbval"),
    ]  # fmt: skip


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help="only these, such as 'record 04', also if they ended before"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_pass", metavar="DIR")
    parser.add_argument("--minutes", type=float, default=24)
    parser.add_argument("--prepare", action="store_true", help="fetch wheels into build/wheels, and note the commit")
    parser.add_argument("--python", default="", metavar="3.12", help="with --prepare: that machine's Python")
    parser.add_argument("--describe", action="store_true", help="print what this machine is")
    parser.add_argument("--list", action="store_true", help="print the steps")
    options = parser.parse_args(argv)
    if options.prepare:
        return prepare(options.python)
    if options.describe:
        return describe()
    everything = steps()
    if options.list:
        return print(*(step.name for step in everything), sep="\n")
    unknown = sorted(set(options.steps) - {step.name for step in everything})
    if unknown:
        parser.error(f"there is no step {unknown[0]!r}; --list prints them")
    end = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    done = {} if options.steps else read_results(options.out)
    chosen = [step for step in everything if step.name in options.steps or not options.steps and step.name not in done]
    if done:
        print(f"{len(done)} steps had ended before")
    env = environment(options.out)
    failed = [name for name, result in done.items() if result["status"] == "failed"]
    for step in chosen:
        result = run(step, options.out, env, end)
        write_result(options.out, step.name, result)
        failed += [step.name] * (result["status"] == "failed")
        print(f"{step.name:32s} {result['status']:8s} {result['seconds']:6.1f} s  {result['said']}", flush=True)
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


def run(step, out, env, end):
    """Run a step with its output going to the log; return {"status", "seconds", "said"}, `said` a summary line."""
    left = end - time.monotonic()
    if left < 5:
        return {"status": "not run", "seconds": 0.0, "said": "time was up"}
    if step.needs and not is_there(step.needs, env):
        return {
            "status": "not run",
            "seconds": 0.0,
            "said": f"{step.needs} is missing: carry build/wheels along (--prepare)",
        }
    begin = time.monotonic()
    with (out / "log.txt").open("ab") as log:
        log.write(f"\n===== {step.name}\n".encode())
        log.flush()
        start = log.tell()
        process = subprocess.Popen(
            step.command, cwd=ROOT, env=env | step.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            process_group=0, preexec_fn=functools.partial(linux.end_with_parent, os.getpid()),
        )  # fmt: skip
        try:
            process.wait(min(step.limit_s, left))
        except subprocess.TimeoutExpired:
            pass
        finally:
            was_running = process.poll() is None
            kill(process, env[MARK])
    with (out / "log.txt").open("rb") as log:
        log.seek(start)
        text = log.read().decode(errors="replace")
    seconds = time.monotonic() - begin
    if was_running and left < step.limit_s:
        return {"status": "not run", "seconds": seconds, "said": f"cut off after {seconds:.0f} s: time was up"}
    if was_running:
        return {"status": "failed", "seconds": seconds, "said": f"no end after {seconds:.0f} s; {last_line(text)}"}
    # pytest exits with 5 if there is no test
    ended_well = process.returncode == 0 or process.returncode == 5 and "tests" in step.name
    if ended_well and step.name.startswith("experiment "):
        try:
            keep_experiment(out, step.name.partition(" ")[2], json.loads(text.strip().splitlines()[-1]))
        except ValueError:  # a library printed something after it
            ended_well = False
    if ended_well and step.name.startswith("record "):
        pack(out)
    return {
        "status": "passed" if ended_well else "failed",
        "seconds": seconds,
        "said": last_line(text) if ended_well else reason(text) or f"exit code {process.returncode}",
    }


def kill(process, mark):
    """Kill the step and all it started, including notebooks' kernels, which have their own process groups."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    linux.kill_marked(MARK, mark)


def is_there(module, env):
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([sys.executable, "-c", code], env=env).returncode == 0


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""


def reason(text):
    """The most telling part of a failed step's output: failed test and first exception, else the last line."""
    text = ANSI_COLOUR.sub("", text)
    patterns = r"^FAILED (\S+.*?)(?: - |$)", r"^\s*(?:E\s+)?([\w.]*(?:Error|Exception): .*)"
    found = [re.search(pattern, text, re.MULTILINE) for pattern in patterns]
    parts = [match[1].strip() for match in found if match]
    return ": ".join(parts)[:300] or last_line(text)


def read_results(out):
    """The results of finished steps, {name: result}; a line cut off by a kill does not count."""
    found = {}
    path = out / "results.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if result["status"] != "not run":
            found[result["step"]] = result
    return found


def write_result(out, name, result):
    with (out / "results.jsonl").open("a") as file:
        file.write("\n" * (file.tell() > 0 and not ends_a_line(out / "results.jsonl")))
        file.write(json.dumps({"step": name} | result | {"seconds": round(result["seconds"], 1)}) + "\n")


def ends_a_line(path):
    return path.read_bytes().endswith(b"\n")


def keep_experiment(out, name, found):
    path = out / "experiments.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(kept | {name: found}, indent=1, ensure_ascii=False) + "\n")
    part.replace(path)


def pack(out):
    """Pack the notebooks as they ran here, and this machine's records."""
    from tools.record.keeping import machine_folder

    part = out / "recorded.part"
    with tarfile.open(part, "w:gz") as tar:
        for path in [*sorted(machine_folder().glob("*.json")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]:
            tar.add(path, path.relative_to(ROOT))
    part.replace(out / "recorded.tar.gz")


def environment(out):
    """The environment of all steps: this checkout first, then carried wheels that are not installed here."""
    env = dict(os.environ, PYTHONUNBUFFERED="1")
    env[MARK] = str(out.resolve())
    env[events.FILE] = str(out.resolve() / "tests.jsonl")  # each test as it ends: a run that is cut off prints nothing
    linux.kill_marked(MARK, env[MARK])  # left by a pass that was killed
    paths = [str(ROOT)]
    if missing := [wheel for wheel in sorted(WHEELS.glob("*.whl")) if not is_installed(wheel)]:
        site = out.resolve() / "site"
        if not site.is_dir():
            part = out.resolve() / "site.part"
            pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--target", str(part)]
            done = subprocess.run(python(*pip, *map(str, missing)), capture_output=True, text=True)
            if done.returncode:
                print(f"the wheels in {WHEELS.relative_to(ROOT)} could not be installed: {last_line(done.stderr)}")
            else:
                part.rename(site)
        paths.append(str(site))
    if COMMIT.exists():
        env.setdefault("COURSE_COMMIT", COMMIT.read_text().strip())
    env["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [env.get("PYTHONPATH")])])
    return env


def is_installed(wheel):
    try:
        importlib.metadata.version(wheel.name.partition("-")[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def prepare(version):
    """Fetch the wheels of what runs notebooks, in the versions installed here, for a Python `version`."""
    from tools.record.keeping import commit

    WHEELS.mkdir(parents=True, exist_ok=True)
    for old in WHEELS.iterdir():
        old.unlink()
    pins = [f"{name}=={importlib.metadata.version(name)}" for name in sorted(closure(ROOTS))]
    platforms = [f"manylinux_2_{n}_x86_64" for n in range(17, 40)] + ["manylinux1_x86_64", "manylinux2014_x86_64"]
    version = version or "{}.{}".format(*sys.version_info)
    pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp",
           "--python-version", version, "--dest", str(WHEELS)]  # fmt: skip
    done = subprocess.run(
        python(*pip, *(f"--platform={each}" for each in platforms), *pins), capture_output=True, text=True
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    COMMIT.write_text(commit() + "\n")
    size = sum(wheel.stat().st_size for wheel in WHEELS.glob("*.whl"))
    print(f"{len(list(WHEELS.glob('*.whl')))} wheels, {size / 2**20:.0f} MiB, in {WHEELS.relative_to(ROOT)}")
    return done.returncode


def closure(names):
    """The packages `names` and all that they require here."""
    from packaging.requirements import Requirement

    found, waiting = set(), list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or name in LEFT_OUT:
            continue
        found.add(name)
        required = map(Requirement, importlib.metadata.requires(name) or [])
        waiting += [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def describe():
    """Describe this machine as far as possible; missing information is skipped."""
    import platform
    import shutil
    import sysconfig

    from course_utils import hardware

    print("Python", platform.python_version(), "on", platform.platform())
    for name in ("torch", "torchvision", "numba-cuda", "cuda-core", "cuda-bindings", "ipykernel", "nbval"):
        try:
            print(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: not installed")
    print(
        "Python.h:", Path(sysconfig.get_path("include"), "Python.h").exists(), "| gcc:", shutil.which("gcc") is not None
    )
    for command in (
        "nvidia-smi -L",
        "nvidia-smi --query-gpu=driver_version,mig.mode.current --format=csv",
        "df -h /dev/shm",
    ):
        done = subprocess.run(["bash", "-c", f"timeout 20 {command}"], capture_output=True, text=True)
        print(f"$ {command}\n{(done.stdout or done.stderr).strip()}")
    print(hardware.describe(True))
    print(hardware.describe())


if __name__ == "__main__":
    sys.exit(main())
