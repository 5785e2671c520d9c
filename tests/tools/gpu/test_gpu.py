"""The pass over a GPU machine, tried where there is none: it goes on after a failure and after being killed."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from packaging.requirements import Requirement

from course_utils import launch
from tools import notebooks
from tools.gpu import __main__ as gpu_pass
from tools.gpu import ranks
from tools.gpu.experiments import EXPERIMENTS, add_kernels

REPO = Path(__file__).resolve().parents[3]
# Those of the course's dependencies that the Python of a GPU node has where torch is installed.
ON_A_NODE = set(
    "cloudpickle cuda-bindings cuda-core matplotlib numba-cuda numpy nvidia-cuda-nvrtc nvidia-ml-py nvidia-nvvm pandas "
    "psutil pytest-xdist torch torchvision tqdm".split()
)


def call(*arguments, timeout=200, **env):
    return subprocess.run(
        [sys.executable, "-m", "tools.gpu", *map(str, arguments)],
        cwd=REPO,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def results(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines() if line.endswith("}")]


def step(name, code, **parts):
    return gpu_pass.Step(name, [sys.executable, "-c", code], **parts)


def run(out, monkeypatch, *steps, arguments=()):
    """Make a pass of `steps`; its results in order."""
    monkeypatch.setattr(gpu_pass, "steps", lambda: list(steps))
    gpu_pass.main(["--out", str(out), *arguments])
    return results(out)


def test_a_failure_is_named_in_a_line_and_the_next_step_begins(tmp_path, monkeypatch, capsys):
    found = run(
        tmp_path,
        monkeypatch,
        step("good", "print('all is well')"),
        step("bad", "import sys; print('much'); x = {}['a fault']"),
        step("slow", "import time; print('began', flush=True); time.sleep(100)", limit_s=1),
        step("wanting", "", needs="a_module_that_is_nowhere"),
        step("last", "import os, sys; print(os.environ['EXTRA'])", env={"EXTRA": "given"}),
    )
    assert [each["status"] for each in found] == ["passed", "failed", "failed", "not run", "passed"]
    good, bad, slow, wanting, last = (each["said"] for each in found)
    assert (good, bad, last) == ("all is well", "KeyError: 'a fault'", "given")
    assert slow.startswith("no end after 1 s; began") and "a_module_that_is_nowhere is missing" in wanting
    shown = capsys.readouterr().out
    assert "KeyError: 'a fault'" in shown and shown.splitlines()[-1] == "2 failed: bad, slow"
    assert "much" in (tmp_path / "log.txt").read_text()


def test_what_a_step_started_ends_with_it(tmp_path, monkeypatch):
    code = "import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"  # as a kernel is
    (found,) = run(tmp_path, monkeypatch, step("leaves a child", code))
    deadline = time.monotonic() + 100
    while os.path.exists(f"/proc/{found['said']}/cwd") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{found['said']}/cwd")


def test_killed_it_goes_on_where_it_was(tmp_path, monkeypatch):
    program = """
import sys
from tools.gpu import __main__ as gpu_pass
def step(name, code): return gpu_pass.Step(name, [sys.executable, "-c", code])
gpu_pass.steps = lambda: [step("first", "print('once')"), step("second", "import time; time.sleep(1000)")]
gpu_pass.main(["--out", sys.argv[1]])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("first")
    while not (children := psutil.Process(process.pid).children()):
        time.sleep(0.01)
    process.kill()
    process.wait()
    psutil.wait_procs(children, timeout=100)
    assert not any(child.is_running() for child in children)  # a step does not go on without the pass
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"step": "second", "stat')  # as if it had been killed in the middle of a line
    found = run(tmp_path, monkeypatch, step("first", "raise SystemExit('again')"), step("second", "print('now')"))
    assert [(each["step"], each["said"]) for each in found] == [("first", "once"), ("second", "now")]


def test_a_step_that_is_named_runs_again(tmp_path, monkeypatch):
    for said in ("one", "two"):
        run(tmp_path, monkeypatch, step("a step", f"print({said!r})"), arguments=["a step"])
    assert [each["said"] for each in results(tmp_path)] == ["one", "two"]
    with pytest.raises(SystemExit):
        run(tmp_path, monkeypatch, step("a step", ""), arguments=["another"])


def test_when_time_is_up_the_rest_is_not_run_and_is_run_the_next_time(tmp_path, monkeypatch):
    steps = step("quick", "print('done')"), step("late", "print('done, too')")
    found = run(tmp_path, monkeypatch, *steps, arguments=["--minutes", "0"])
    assert {each["said"] for each in found} == {"time was up"}
    found = run(tmp_path, monkeypatch, *steps)
    assert [each["said"] for each in found[2:]] == ["done", "done, too"]
    (found,) = run(
        tmp_path / "cut", monkeypatch, step("long", "import time; time.sleep(100)"), arguments=["--minutes", "0.1"]
    )
    assert found["status"] == "not run" and found["said"] == "cut off after 6 s: time was up"


def test_a_test_that_fails_is_kept_although_its_run_is_cut_off(tmp_path, monkeypatch):
    (tmp_path / "test_two.py").write_text(
        "import os\ndef test_a(): assert 6 * 7 == 41\ndef test_b(): os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.suite.events", "-p", "no:nbval", str(tmp_path)]
    (found,) = run(tmp_path / "out", monkeypatch, gpu_pass.Step("tests", command))
    assert found["status"] == "failed"
    events = [json.loads(line) for line in (tmp_path / "out" / "tests.jsonl").read_text().splitlines()]
    assert [(e["outcome"], "assert (6 * 7) == 41" in e["text"]) for e in events if "test" in e] == [("failed", True)]


def test_an_experiment_is_kept_and_every_step_exists(tmp_path):
    done = call("--out", tmp_path, "machine", "experiment vector_add")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads((tmp_path / "experiments.json").read_text())
    assert kept.keys() == {"vector_add"}
    assert "Python.h" in (tmp_path / "log.txt").read_text()
    listed = [each.name for each in gpu_pass.steps()]
    assert len(listed) == len(set(listed)) and {"tests gpu", "record 00", "record 12", "solved"} <= set(listed)


def test_the_sums_that_are_timed_are_chapter_02s_and_compile():
    found = add_kernels()
    assert {name: kernel.source.count("__restrict__") for name, kernel in found.items() if "apart" in name} == {
        "MANY_BLOCKS, apart": 3, "ONE_BY_ONE, apart": 3
    }  # fmt: skip
    assert [name for name, kernel in found.items() if "#pragma unroll 1" in kernel.source] == ["MANY_BLOCKS, rolled"]
    assert [each.name for each in found["STRIDED"].parameters] == ["n", "x", "y", "out", "apart"]


def test_what_chapters_do_on_ranks_is_measured_without_a_gpu_too():
    found = EXPERIMENTS["two_stages"]()
    assert found["schedules like one process"] == 3
    found = EXPERIMENTS["a_shard_of_four"]()
    assert found == {"allowed, MB": 84.7744, "outcome": "two steps made, 8,477,440 parameters"}


def test_a_profile_names_an_all_reduce_between_two_ranks():
    """With gloo, on the CPU: NCCL's part is the same function."""
    assert ("CPU", "gloo:all_reduce") in launch(ranks.names_of_an_all_reduce, world_size=2, backend="gloo")[0]


def test_a_chapter_is_recorded_and_packed(tmp_path):
    """In a copy, since it writes into the notebooks, of a chapter that is soon done."""
    copy = tmp_path / "course"
    subprocess.run(["git", "clone", "--quiet", REPO, copy], check=True)
    chapter = copy / "notebooks" / "00_start_here.ipynb"
    notebooks.write(new_notebook(cells=[new_code_cell("print(6 * 7)")], metadata=notebooks.METADATA), chapter)
    done = subprocess.run([sys.executable, "-m", "tools.gpu", "--out", tmp_path / "out", "record 00"], cwd=copy,
                          capture_output=True, text=True, timeout=250)  # fmt: skip
    assert done.returncode == 0, done.stdout + (tmp_path / "out" / "log.txt").read_text()
    with tarfile.open(tmp_path / "out" / "recorded.tar.gz") as tar:
        names = tar.getnames()
        recorded = tar.extractfile("notebooks/00_start_here.ipynb").read().decode()
    assert "42" in recorded and "notebooks/12_pipelines_and_split_layers.ipynb" in names


def without(folder, distributions):
    """An environment in which Python imports nothing of these distributions."""
    modules = [
        name for name, found in importlib.metadata.packages_distributions().items() if distributions & set(found)
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({modules}))"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(REPO)])}


def test_it_needs_nothing_but_what_a_node_has_and_its_tests_what_is_carried(tmp_path):
    """All other dependencies of the course are missing."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    required = sum(project["optional-dependencies"].values(), project["dependencies"])
    missing = {Requirement(each).name for each in required} - ON_A_NODE
    assert {"playwright", "submitit", "jupyterlab", "jupytext", "nbformat"} <= missing
    command = [sys.executable, "-m", "tools.gpu", "--list"]
    done = subprocess.run(command, cwd=REPO, env=without(tmp_path / "node", missing), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [each.name for each in gpu_pass.steps()]
    arguments = [each for step in gpu_pass.steps() if "pytest" in step.command for each in step.command]
    tests = [each for each in arguments if each.endswith(".py") or each.partition("/")[0] == "tests"]
    assert {"tests/hardware", "tests/launch"} < set(tests)
    env = without(tmp_path / "carried", missing - gpu_pass.closure(gpu_pass.ROOTS))
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", "-q", "--collect-only", *tests]
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
