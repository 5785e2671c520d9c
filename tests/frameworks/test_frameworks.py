"""Chapter 15's messages if its environment is absent, half made or different, and its claims about real frameworks."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from course_utils import WorkerError, frameworks, launch, recorded
from course_utils.frameworks import Environment, environment
from tests.helpers import machines
from tools import notebooks
from tools.install import elsewhere, trainers


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where an environment is looked for: an empty folder, until `make` makes one."""
    monkeypatch.setenv("COURSE_ELSEWHERE", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(frameworks, "_from_record", set())
    return tmp_path / "elsewhere"


def make(folder, **made):
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    name = "trainers" if folder.name.endswith("_trainers") else "elsewhere"
    whole = environment.wanted(name) | {"cuda": False, "frameworks": dict.fromkeys(environment.members(name), "1.0")}
    (folder / environment.STAMP).write_text(json.dumps(whole | made))


def test_environments_that_are_whole(folder):
    make(folder)
    lacking = [name for name in frameworks.FRAMEWORKS if frameworks.problem(name)]
    assert lacking == ["accelerate", "lightning", "transformers", "jax"]
    make(folder.with_name("elsewhere_trainers"))
    assert [frameworks.problem(name) for name in frameworks.FRAMEWORKS] == [None] * 7


def test_a_shared_nodes_gpu_is_the_workers(folder, tmp_path, monkeypatch):
    """The one that is reserved for it, whatever its interpreter."""
    make(folder, cuda=True)
    python = folder / "bin" / "python"
    python.unlink()  # a link would not be in this one's environment, where cloudpickle is
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    locks = tmp_path / "locks"
    locks.mkdir(mode=0o700)
    monkeypatch.setenv("COURSE_SHARED", "1")
    monkeypatch.setenv("COURSE_LOCKS", str(locks))
    machines.play(monkeypatch, "8 A100")
    run = launch(lambda: os.environ.get("CUDA_VISIBLE_DEVICES"), on=Environment("tensorflow"), world_size=1)
    assert run[0] in {f"GPU-{i}aaa{i}" for i in range(8)}
    assert not list(locks.iterdir())


@pytest.mark.parametrize(
    ("framework", "made", "said"),
    [
        (
            "tensorflow",
            {"requirements": "others"},
            "TensorFlow was made from another list of versions: `make elsewhere` brings it up to date.",
        ),
        ("tensorflow", {"python": "3.9.1"}, "has Python 3.9.1, and this notebook has"),
        ("jax", {"python": "3.9.1"}, "The environment of JAX has Python 3.9.1, and this notebook has"),
        (
            "accelerate",
            {"requirements": "others"},
            "Accelerate was made from another list of versions: `make elsewhere` brings it up to date.",
        ),
        ("horovod.torch", {"torch": "2.2.0"}, "Horovod for PyTorch was built for torch 2.2.0, and torch is"),
        (
            "horovod.torch",
            {"frameworks": {"tensorflow": "2.21.0"}},
            "Horovod for PyTorch could not be built here: `make elsewhere` tries",
        ),
    ],
    ids=["requirements", "python", "python of JAX", "requirements of Accelerate", "torch", "no Horovod"],
)
def test_an_environment_of_another_time(folder, framework, made, said):
    make(folder if environment.home(framework) == "elsewhere" else folder.with_name("elsewhere_trainers"), **made)
    assert said in frameworks.problem(framework)
    with pytest.raises(RuntimeError, match="`make elsewhere`"):
        Environment(framework)


def test_tensorflow_works_where_horovod_was_built_for_another_torch(folder):
    make(folder, torch="2.2.0")
    assert frameworks.problem("tensorflow") is None


def test_an_environment_that_is_half_made(folder):
    make(folder)
    (folder / environment.STAMP).write_text("")  # as it is while it is being made
    assert (
        frameworks.problem("tensorflow")
        == "The environment of the other frameworks is half made: run `make elsewhere` again."
    )


def record(monkeypatch, tmp_path):
    values = {
        "found": {"who": {"rank": 0}},
        "failures": {"alone": "no end after 10 s"},
        "versions": {"tensorflow": "2.21.0"},
    }
    kept = {"provenance": {"machine": "a machine", "date": "2020-01-01"}, "values": values}
    (tmp_path / "records" / "a").mkdir(parents=True)
    (tmp_path / "records" / "a" / "15_frameworks.json").write_text(json.dumps(kept))
    monkeypatch.setattr(recorded.latest, "__defaults__", (tmp_path / "records",))


def test_without_an_environment_the_recorded_run_is_shown(folder, monkeypatch, tmp_path, capsys):
    record(monkeypatch, tmp_path)
    assert frameworks.source() == ""
    assert frameworks.run("who", "tensorflow", list, print) == {"rank": 0}
    assert frameworks.source() == "recorded on a machine"
    assert capsys.readouterr().out == (
        "TensorFlow is not installed for this chapter: `make elsewhere` installs it. Until then: recorded on a "
        "machine, with TensorFlow 2.21.0.\n"
    )
    with pytest.raises(WorkerError, match="no end after 10 s"):
        frameworks.run("alone", "tensorflow", list, print)
    assert capsys.readouterr().out == "(recorded on a machine, with TensorFlow 2.21.0)\n"


def test_what_was_not_found_here_is_not_recorded_again(folder, monkeypatch, tmp_path):
    record(monkeypatch, tmp_path)
    frameworks.run("who", "tensorflow", list, print)
    frameworks.keep()  # of no consequence while nobody records
    monkeypatch.setenv("COURSE_RECORD", str(tmp_path))
    with pytest.raises(RuntimeError, match="who did not run here"):
        frameworks.keep()


def test_what_is_half_made_is_no_reason_to_show_a_record(folder, monkeypatch, tmp_path):
    record(monkeypatch, tmp_path)
    make(folder)
    (folder / environment.STAMP).write_text("")
    with pytest.raises(RuntimeError, match="half made"):
        frameworks.run("who", "tensorflow", list, print)


def test_a_copy_that_is_elsewhere_is_refused():
    truth = [np.zeros(3, "float32")]
    near, far = [np.full(3, 1e-6, "float32")], [np.full(3, 1e-4, "float32")]
    equal = frameworks.ends_at(truth)
    found = equal([{"losses": [1.0], "replicas": [near, truth]}, None])
    assert found == {"losses": [1.0], "apart": pytest.approx(1e-6), "copies": 2, "processes": 2}
    with pytest.raises(AssertionError):
        equal([{"losses": [1.0], "replicas": [truth]}, {"losses": [1.0], "replicas": [far]}])


def test_what_the_course_has_is_not_installed_a_second_time():
    own = {trainers.bootstrap.project(pin) for pin in trainers.own_pins()}
    assert {"accelerate", "lightning", "transformers", "jax", "jaxlib"} <= own
    assert not own & {"torch", "numpy", "triton", "pyyaml", "fsspec"}
    course = trainers.bootstrap.pins(trainers.bootstrap.LOCK)
    others = [pin for pin in trainers.bootstrap.pins(environment.lock("trainers")) if pin not in trainers.own_pins()]
    assert {pin.partition(" ")[0] for pin in others} <= {pin.partition(" ")[0] for pin in course}  # the same versions


def test_workers_with_added_packages_are_the_courses_own(folder):
    """They have torch, a process group, the added packages and the environment's commands."""
    make(folder.with_name("elsewhere_trainers"))
    packages = Path(environment.packages("trainers"))
    packages.mkdir(parents=True)
    (packages / "added.py").write_text("NUMBER = 7\n")

    def look():
        import added
        import torch
        import torch.distributed as dist

        total = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(total)
        return added.NUMBER, total.item(), dist.get_backend(), sys.executable, shutil.which("python")

    run = launch(look, world_size=2, on=Environment("accelerate"))
    python = str(folder.with_name("elsewhere_trainers") / "bin" / "python")
    assert run.results == [(7, 3.0, "gloo", sys.executable, python)] * 2
    assert run.placement.note == "2 processes with Accelerate"
    with pytest.raises(WorkerError, match="No module named 'added'"):
        launch(look, world_size=2)


def test_free_ports_are_several_and_free():
    ports = frameworks.free_ports(3)
    assert len(set(ports)) == 3
    for port in ports:
        with socket.socket() as each:
            each.bind(("127.0.0.1", port))


# make elsewhere


def installation(folder, **variables):
    command = [sys.executable, "-m", "tools.install.elsewhere"]
    environ = os.environ | {"COURSE_ELSEWHERE": str(folder)} | variables
    return subprocess.run(command, cwd=notebooks.ROOT, env=environ, capture_output=True, text=True, timeout=100)


def test_too_small_a_disk_is_said_before_anything_is_downloaded(folder):
    done = installation(folder, COURSE_NEEDED_GB="1000000")
    assert done.returncode == 1
    assert "needs about 1000000 GB, and" in done.stderr
    assert "make room first" in done.stderr


def test_a_missing_compiler_is_said_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SystemExit,
        match="there is no C\\+\\+ compiler: install one .*`sudo apt install g\\+\\+`.*`make elsewhere` again",
    ):
        elsewhere.build_horovod(None)


def test_what_is_adapted_in_horovod_is_named_where_it_has_changed(monkeypatch, tmp_path):
    monkeypatch.setattr(elsewhere, "SOURCE", tmp_path)
    (tmp_path / "CMakeLists.txt").write_text("project(another)")
    with pytest.raises(SystemExit, match="Horovod's CMakeLists.txt is not the one"):
        elsewhere.adapt()


# The frameworks themselves


def real(framework):
    why = frameworks.problem(framework)
    return pytest.mark.skipif(why is not None, reason=str(why))


@real("horovod.torch")
def test_horovod_listens_on_this_machine_alone(tmp_path):
    def meet(folder):
        frameworks.meet_for_horovod(folder)
        import horovod.torch as hvd

        hvd.init()
        return [each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN]

    run = launch(meet, str(tmp_path), world_size=2, on=Environment("horovod.torch"))
    assert set(run[0]) == set(run[0] + run[1]) == {"127.0.0.1"}


@real("tensorflow")
def test_tensorflow_listens_on_all_addresses_as_the_chapter_says():
    def meet(ports):
        workers = [f"127.0.0.1:{port}" for port in ports]
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": workers}, "task": {"type": "worker", "index": int(os.environ["RANK"])}}
        )
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        mine = [each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN]
        return strategy.num_replicas_in_sync, mine

    for replicas, addresses in launch(meet, frameworks.free_ports(2), world_size=2, on=Environment("tensorflow")):
        assert replicas == 2
        assert addresses == ["::"]


@real("tensorflow")
def test_a_failing_worker_of_tensorflow_names_its_line_and_the_environment_stays_usable():
    def multiply():
        import tensorflow as tf

        return tf.matmul(tf.ones((2, 3)), tf.ones((2, 3)))

    with pytest.raises(WorkerError, match="InvalidArgumentError") as failed:
        launch(multiply, on=Environment("tensorflow"))
    assert "return tf.matmul(tf.ones((2, 3)), tf.ones((2, 3)))" in str(failed.value)
    assert launch(os.getcwd, on=Environment("tensorflow")).results == [os.getcwd()]


def test_every_way_that_was_recorded_ends_where_pytorch_does():
    found = recorded.latest("frameworks").values["found"]
    ways = {name: values for name, values in found.items() if isinstance(values, dict) and "copies" in values}
    ways |= found["one_process"]
    assert len(ways) == 12
    assert all(values["apart"] < 1e-6 for values in ways.values()), ways
    assert found["sampler"]["apart"] > 1e-3
    assert found["not_broadcast"]["apart"] > 1e-3
    assert found["jax"]["all_reduces"] > 0
