"""The doctor on this machine, and where things are broken for real: in namespaces of its own, in a copy of the checkout."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from course_utils.doctor import FAIL, OK, WARN, gpus, installed, machine, workers
from course_utils.hardware import GPU, nvml
from course_utils.launch import launch
from tests import machines

ROOT = Path(__file__).resolve().parent.parent


def doctor(*before, checkout=ROOT, **options):
    """(exit code, {check: its lines}, what was printed to the error stream); `before` is put before the command."""
    env = os.environ | {"PYTHONPATH": str(checkout)} | options.pop("env", {})
    done = subprocess.run([*before, sys.executable, "-m", "course_utils.doctor", "--json"], cwd=checkout, env=env,
                          capture_output=True, text=True, timeout=120, **options)  # fmt: skip
    assert done.stdout, done.stderr
    found = {}
    for line in json.loads(done.stdout)["lines"]:
        found.setdefault(line["check"], []).append(line)
    return done.returncode, found, done.stderr


def test_a_machine_that_is_well():
    code, found, error = doctor()
    lines = [line for group in found.values() for line in group]
    # The tests run many notebooks at a time, and on machines with little; what is broken would be a failure.
    assert code == 0 and error == "" and not any(line["status"] == FAIL for line in lines), lines
    assert {"Python", "packages", "torch", "loopback", "host name", "driver", "data", "launch", "addresses"} <= found.keys()
    assert all(line["status"] == OK for name in ("packages", "loopback", "data", "launch", "addresses") for line in found[name])
    assert not any(line["cure"] for line in lines if line["status"] == OK)


def test_it_prints_a_line_for_each_check_and_says_whether_to_begin(tmp_path):
    done = subprocess.run([sys.executable, "-m", "course_utils.doctor"], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"COURSE_DATA": str(tmp_path / "none")})  # fmt: skip
    assert done.returncode == 1 and "not ready for class: 1 failed" in done.stdout
    assert "fail data           COURSE_DATA is" in done.stdout and "unset it" in " ".join(done.stdout.split())
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


# Faults

BROKEN = """
set -e
mkdir -p "$1/home" "$1/tmp"
mount -t tmpfs -o size=4k tmpfs /dev/shm
mount -t tmpfs -o size=64k tmpfs "$1/home"
mount -t tmpfs -o size=64k tmpfs "$1/tmp"
head -c 60000 /dev/zero > "$1/home/full"
hostname no-such-host.invalid
ulimit -Sn 128
shift
exec "$@"
"""
NO_NAMESPACES = shutil.which("unshare") is None or subprocess.run(
    ["unshare", "--mount", "--net", "--uts", "true"], capture_output=True).returncode != 0  # fmt: skip


@pytest.fixture(scope="module")
def broken_checkout(tmp_path_factory):
    """A copy of the checkout whose lock file names another NumPy, without the digits."""
    checkout = tmp_path_factory.mktemp("broken") / "checkout"
    shutil.copytree(ROOT / "course_utils", checkout / "course_utils", ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("requirements*.lock"), ROOT / "pyproject.toml"):
        shutil.copy(file, checkout)
    lock = checkout / "requirements.lock"
    lines = [line if not line.startswith("numpy==") else "numpy==1.26.4" for line in lock.read_text().splitlines()]
    lock.write_text("\n".join([*lines, "a-package-that-is-not-there==1", ""]))
    return checkout


@pytest.mark.skipif(NO_NAMESPACES, reason="namespaces of one's own take root here")
def test_eight_faults_are_named_with_their_cure(broken_checkout, tmp_path):
    play = tmp_path / "sitecustomize.py"  # a GPU whose driver is too old for this torch
    play.write_text("import sys\nif sys.argv[:1] == ['-m']:\n    import pytest\n    sys.path.append({!r})\n"
                    "    from tests import machines\n    machines.play(pytest.MonkeyPatch(), 'driver 550')\n".format(str(ROOT)))  # fmt: skip
    env = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": f"{broken_checkout}{os.pathsep}{tmp_path}"}
    code, found, error = doctor("env", "-u", "COURSE_DEVICE", "-u", "CUDA_VISIBLE_DEVICES", "unshare", "--mount", "--net", "--uts", "sh", "-c", BROKEN, "sh", str(tmp_path), checkout=broken_checkout,
                                env=env)  # fmt: skip
    assert code == 1 and error == ""
    faults = {
        "/dev/shm": (FAIL, "bus error", "--shm-size"),
        "driver": (FAIL, "the NVIDIA driver 550.54.15 is too old", "`make lab CUDA=12.6` installs"),
        "host name": (WARN, "no-such-host.invalid has no address", "/etc/hosts"),
        "disk": (FAIL, f"nothing can be written to {tmp_path / 'home'} (No space left on device)", "remove what is not needed"),
        "packages": (WARN, "numpy is", "`make lab` installs those that were tested together"),
        "data": (FAIL, "data/digits.npz is missing", "git checkout data/digits.npz"),
        "open files": (FAIL, "a process may open 128", "ulimit -n 4096"),
        "loopback": (FAIL, "127.0.0.1 cannot be reached", "ip link set lo up"),
    }
    for check, (status, said, cure) in faults.items():
        line = next((line for line in found[check] if said in line["said"]), found[check])
        assert (line["status"], cure in line["cure"]) == (status, True), line
    assert "a-package-that-is-not-there not installed" in found["packages"][0]["said"]
    alarms = {line["check"] for group in found.values() for line in group if line["status"] != OK}
    assert alarms == faults.keys() | {"launch"}  # which is not tried where loopback is closed


def test_a_line_for_a_check_that_breaks_itself():
    code, found, error = doctor(env={"COURSE_DEVICE": "gpu"})
    assert code == 1 and error == ""
    broken = [line for group in found.values() for line in group if line["status"] == FAIL]
    assert broken and all("COURSE_DEVICE is 'gpu'" in line["said"] for line in broken)


def lines_of(check, *arguments):
    return [(line.status, line.said) for line in check(*arguments)]


@pytest.mark.parametrize("prefix, status", [(ROOT / ".venv", FAIL), (Path("/opt/conda"), WARN)])
def test_versions_count_for_more_in_the_course_s_own_environment(monkeypatch, prefix, status):
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(installed, "_installed", lambda have=installed._installed(): have | {"numpy": "1.26.4"})
    (line,) = installed.packages()
    assert line.status == status and "1 differ from the lock file: numpy is 1.26.4 instead of" in line.said


def test_shared_memory_of_a_container(tmp_path, monkeypatch):
    def usage(total, free):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(total, total - free, free))
        return list(machine.shared_memory(str(tmp_path)))[0]

    assert usage(64 * 2**20, 64 * 2**20).status == WARN and "--shm-size" in usage(64 * 2**20, 64 * 2**20).cure
    assert usage(8e9, 1e6).status == FAIL and "ended programs" in usage(8e9, 1e6).cure
    assert usage(8e9, 8e9).status == OK
    assert lines_of(machine.shared_memory, str(tmp_path / "none")) == []


def test_a_name_server_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(machine, "LOOK_UP_S", 0.05)
    waits = threading.Event()
    for name in ("getaddrinfo", "getnameinfo"):
        monkeypatch.setattr(machine.socket, name, lambda *arguments: waits.wait(5))
    said = lines_of(machine.names)
    waits.set()
    assert [status for status, _ in said] == [WARN, WARN] and "no answer" in said[0][1] and "127.0.0.1" in said[1][1]


# GPUs, played


def test_eight_gpus_that_others_use(monkeypatch):
    for name in ("COURSE_DEVICE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    machines.play(monkeypatch, "8 A100")
    assert lines_of(gpus.driver) == [(OK, "595.10, which runs CUDA up to 13.2")]
    assert lines_of(gpus.links) == [(OK, "28 pairs over NVLink")]
    busy = lines_of(gpus.free)  # of these, half of the memory is taken
    assert len(busy) == 8 and busy[3] == (WARN, "NVIDIA A100-SXM4-80GB, cuda:3, has 40 of 80 GiB free")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert lines_of(gpus.driver)[0][0] == WARN
    nvml._nvml.cache_clear()


def test_a_slow_link_is_named():
    found = [GPU(i, "NVIDIA A100-SXM4-80GB", str(i), 80, 80, (8, 0), "595.10") for i in range(3)]
    table = [["-", "NVLink", "NVLink"], ["NVLink", "-", "host"], ["NVLink", "host", "-"]]
    lines = list(workers.judge(found, table, {(0, 1): 200.0, (0, 2): 21.0, (1, 2): 18.0}))
    assert [(line.status, line.said) for line in lines] == [
        (WARN, "cuda:0 and cuda:2: 21 GB/s over NVLink, 208 are published"),
        (OK, "all-reduce between 2 pairs of GPUs, 18 to 200 GB/s"),
    ]


def test_every_pair_is_measured():
    """With gloo, on the CPU: NCCL's part is the same function."""
    pairs = [(0, 1), (0, 2), (1, 2)]
    measured = launch(workers.pair_bandwidths, pairs, 2**20, world_size=3, backend="gloo")
    assert all(set(result) == set(pairs) and all(0 < value < 1000 for value in result.values()) for result in measured)
