"""The doctor on this machine, and on real faults, in separate namespaces and in a copy of the checkout."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

import pytest

from course_utils import doctor as doctor_package
from course_utils.doctor import FAIL, OK, WARN, gpus, installed, machine, workers
from course_utils.doctor import __main__ as doctor_program
from course_utils.hardware import GPU, nvml
from course_utils.launch import launch
from tests.helpers import machines

ROOT = Path(__file__).resolve().parents[2]


def doctor(*before, checkout=ROOT, **options):
    """(exit code, {check: its lines}, what was printed to the error stream); `before` is put before the command."""
    env = os.environ | {"PYTHONPATH": str(checkout)} | options.pop("env", {})
    done = subprocess.run([*before, sys.executable, "-m", "course_utils.doctor", "--json"], cwd=checkout, env=env,
                          capture_output=True, text=True, timeout=120, **options)  # fmt: skip
    assert done.stdout, done.stderr
    assert all(line["cure"] for line in json.loads(done.stdout)["lines"] if line["status"] != OK)
    found = {}
    for line in json.loads(done.stdout)["lines"]:
        found.setdefault(line["check"], []).append(line)
    return done.returncode, found, done.stderr


def test_a_machine_that_is_well():
    code, found, error = doctor()
    lines = [line for group in found.values() for line in group]
    # The tests run many notebooks at a time, and on machines with little; what is broken would be a failure.
    assert code == 0 and error == "" and not any(line["status"] == FAIL for line in lines), lines
    assert {
        "Python",
        "packages",
        "torch",
        "loopback",
        "host name",
        "driver",
        "data",
        "launch",
        "addresses",
    } <= found.keys()
    assert all(
        line["status"] == OK for name in ("packages", "loopback", "data", "launch", "addresses") for line in found[name]
    )
    assert not any(line["cure"] for line in lines if line["status"] == OK)


def run_here(capsys, *arguments):
    """The doctor in this process, which has torch already: (exit code, what it printed, its errors)."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(sys, "argv", ["doctor", *arguments])
        doctor_program.main()
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


def test_it_prints_a_line_for_each_check_and_says_whether_to_begin(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "none"))
    code, said, _ = run_here(capsys)
    warned = sum(line.startswith("warn ") for line in said.splitlines())  # of this machine's Python, if it is in a home
    assert code == 1 and f"1 failed, {warned} warning" in said and "not ready for class: " in said
    assert "fail data           COURSE_DATA is" in said and "unset it" in " ".join(said.split())
    assert all(len(line) <= 120 for line in said.splitlines())


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
NO_NAMESPACES = (
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--mount", "--net", "--uts", "true"], capture_output=True).returncode != 0
)


@pytest.fixture(scope="module")
def broken_checkout(tmp_path_factory):
    """A copy of the checkout whose lock file names another NumPy, without the digits."""
    checkout = tmp_path_factory.mktemp("broken") / "checkout"
    shutil.copytree(ROOT / "course_utils", checkout / "course_utils", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", checkout / "requirements")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    lock = checkout / "requirements" / "course.lock"
    lines = [line if not line.startswith("numpy==") else "numpy==1.26.4" for line in lock.read_text().splitlines()]
    lock.write_text("\n".join([*lines, "a-package-that-is-not-there==1", ""]))
    return checkout


@pytest.mark.skipif(NO_NAMESPACES, reason="namespaces of one's own take root here")
def test_eight_faults_are_named_with_their_cure(broken_checkout, tmp_path):
    play = tmp_path / "sitecustomize.py"  # a GPU whose driver is too old for this torch
    play.write_text(
        f"import sys\nif sys.argv[:1] == ['-m']:\n    import pytest\n    sys.path.append({str(ROOT)!r})\n"
        "    from tests.helpers import machines\n    machines.play(pytest.MonkeyPatch(), 'driver 550')\n"
    )
    env = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": f"{broken_checkout}{os.pathsep}{tmp_path}",
    }
    apart = "env -u COURSE_DEVICE -u CUDA_VISIBLE_DEVICES unshare --mount --net --uts sh -c".split()
    code, found, error = doctor(*apart, BROKEN, "sh", str(tmp_path), checkout=broken_checkout, env=env)
    assert code == 1 and error == ""
    faults = {
        "/dev/shm": (FAIL, "bus error", "--shm-size"),
        "driver": (FAIL, "the NVIDIA driver 550.54.15 is too old", "`make lab CUDA=12.6` installs"),
        "host name": (WARN, "no-such-host.invalid has no address", "/etc/hosts"),
        "disk": (
            FAIL,
            f"nothing more can be written to {tmp_path / 'home'} (home): No space left on device",
            "remove what is not needed",
        ),
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


def test_a_python_that_others_cannot_run_is_told_where_they_may_use_the_installation(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as there:  # pytest's own folders are closed
        os.chmod(there, 0o755)
        Path(there, "open").mkdir(mode=0o755)
        Path(there, "closed").mkdir(mode=0o700)
        for python, root, status in (("closed", "open", WARN), ("closed", "closed", OK), ("open", "open", OK)):
            monkeypatch.setattr(installed, "ROOT", Path(there, root))
            monkeypatch.setattr(sys, "executable", f"{there}/{python}/python3")
            (line,) = installed.python()
            assert line.status == status and (f"{there}/closed is closed to them" in line.said) == (status == WARN)


def test_a_line_for_a_check_that_breaks_itself(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_DEVICE", "gpu")
    code, said, error = run_here(capsys, "--json")
    assert code == 1 and error == ""
    broken = [line for line in json.loads(said)["lines"] if line["status"] == FAIL]
    assert broken and all("COURSE_DEVICE is 'gpu'" in line["said"] for line in broken)


def lines_of(check, *arguments):
    return [(line.status, line.said) for line in check(*arguments)]


@pytest.mark.parametrize("prefix, status", [(ROOT / ".venv", FAIL), (Path("/opt/conda"), WARN)])
def test_versions_count_for_more_in_the_course_s_own_environment(monkeypatch, prefix, status):
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(installed, "_installed", lambda have=installed._installed(): have | {"numpy": "1.26.4"})
    (line,) = installed.packages()
    assert line.status == status and "1 differ from the lock file: numpy is 1.26.4 instead of" in line.said


def test_the_first_version_on_the_path_counts(tmp_path, monkeypatch):
    """As imports have it."""
    (tmp_path / "numpy-1.0.dist-info").mkdir()
    (tmp_path / "numpy-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    before = installed._installed.__wrapped__()["numpy"]
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert installed._installed.__wrapped__()["numpy"] == before != "1.0"


@pytest.mark.parametrize("cuda", ["12.6", "12.8"])
def test_an_installation_of_an_older_build_is_well(monkeypatch, cuda):
    """Its own lock file takes lines away, and torch brings in what it needs: another triton, for one."""
    locked = installed._locked(ROOT / "requirements/course.lock", cuda)
    assert (
        "nvidia-nvvm" not in locked and locked["torch"] != installed._locked(ROOT / "requirements/course.lock")["torch"]
    )
    monkeypatch.setattr(installed, "_cuda", lambda: cuda)
    monkeypatch.setattr(installed, "_installed", lambda: locked | {"torch": f"{locked['torch']}+cu126", "triton": "0"})
    assert [line.status for line in installed.packages()] == [OK]


def test_a_torch_that_does_not_load(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.15.0+cu132'\ncuda: str = '13.2'\n")
    code, found, _ = doctor(env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert code == 1 and "libcudart.so.13" in found["torch"][-1]["said"] and "launch" not in found


def test_no_check_s_time_is_used_up_while_torch_is_read_from_a_slow_disk(tmp_path):
    """It holds the interpreter meanwhile, so no check may run beside it, and none may import it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("__version__ = '2.15.0+cu132'\ncuda: str = '13.2'\n")
    (tmp_path / "torch/__init__.py").write_text(
        "import os, sys, traceback\n"
        "with open(os.environ['STACKS'], 'a') as file:\n"
        "    for frame in sys._current_frames().values():\n"
        "        file.write(' '.join(entry.name for entry in traceback.extract_stack(frame)) + '\\n')\n"
        "raise OSError('libcudart.so.13: cannot open shared object file')"
    )
    stacks = tmp_path / "stacks"
    doctor(env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "STACKS": str(stacks)})
    assert "examine" in stacks.read_text() and "_lines" not in stacks.read_text()


def test_kinds_of_torch_and_torchvision_that_do_not_go_together(monkeypatch):
    versions = {"torch": {"__version__": "2.15.0+cu132", "cuda": "13.2"}, "torchvision": {"__version__": "0.30.0+cpu"}}
    monkeypatch.setattr(installed, "_version_file", versions.get)
    (line,) = installed.torch()
    assert line.status == FAIL and "cu132" in line.said and "cpu" in line.said
    versions["torch"] = None
    assert "torch not installed" in next(installed.torch()).said


def test_a_check_that_takes_too_long_is_a_line():
    (line,) = doctor_package._within(0.05, threading.Event().wait)
    assert line.status == FAIL and "no answer within 0.05 s" in line.said and line.cure


def test_processes_that_a_container_may_still_start(monkeypatch):
    played = {"pids.max": ["max", "600"], "pids.current": ["4000", "200"]}
    monkeypatch.setattr(machine.host, "cgroup_limits", lambda file, controller, files: played[file])
    (line,) = machine._processes()
    assert line.status == WARN and "only 400 more" in line.said


@pytest.mark.parametrize("command, expected", [
    (["python", "-m", "jupyterlab"], True), (["/x/bin/python3", "/x/bin/jupyter-lab", "--ip=0.0.0.0"], True),
    (["python", "/home/me/jupyter-notes/serve.py"], False), (["vim", "jupyterlab.py"], False), ([], False),
])  # fmt: skip
def test_servers_are_known_by_their_program(command, expected):
    assert bool(machine._is_jupyter(command)) == expected


@pytest.mark.parametrize(
    "address, expected",
    [("127.0.0.2", True), ("::ffff:127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_addresses_of_this_machine_alone(address, expected):
    assert machine.is_loopback(address) == expected


def test_shared_memory_of_a_container(tmp_path, monkeypatch):
    def usage(total, free):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(total, total - free, free))
        return list(machine.shared_memory(str(tmp_path)))[0]

    assert usage(64 * 2**20, 64 * 2**20).status == WARN and "--shm-size" in usage(64 * 2**20, 64 * 2**20).cure
    assert usage(8e9, 1e6).status == FAIL and "no process uses" in usage(8e9, 1e6).cure
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
    assert len(busy) == 8 and busy[3] == (WARN, "NVIDIA A100-SXM4-80GB, cuda:3, has 40.0 of 80.0 GiB free")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert lines_of(gpus.driver)[0][0] == WARN
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    assert lines_of(gpus.driver)[0][0] == OK and lines_of(gpus.free) == []


@pytest.fixture
def node(monkeypatch):
    """A machine of tests/helpers/machines.py: its NVML, in which more can be changed."""
    for name in ("COURSE_DEVICE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def play(name, **answers):
        machines.play(monkeypatch, name, **answers)
        return sys.modules["pynvml"]

    return play


def test_gpus_that_a_job_was_not_given_and_one_that_is_lost(node, monkeypatch):
    library = node("8 A100")
    by_index = library.nvmlDeviceGetHandleByIndex

    def refuse(error, wanted):
        def handle(i):
            if i in wanted:
                raise library.NVMLError(error)
            return by_index(i)

        monkeypatch.setattr(library, "nvmlDeviceGetHandleByIndex", handle)

    refuse(library.NVML_ERROR_NO_PERMISSION, range(2, 8))
    assert (
        len(nvml.gpus()) == 2
        and lines_of(gpus.driver)[0][0] == OK
        and lines_of(gpus.links) == [(OK, "1 pair over NVLink")]
    )
    refuse(library.NVML_ERROR_GPU_IS_LOST, [5])
    (line,) = gpus.driver()
    assert (
        line.status == FAIL
        and "a GPU does not answer" in line.said
        and "restart this machine or have it reset" in line.cure
    )
    assert lines_of(gpus.free) == lines_of(gpus.links) == []


@pytest.mark.parametrize(
    "error, said, cure",
    [
        ("NVML_ERROR_DRIVER_NOT_LOADED", "an NVIDIA GPU is in this machine, and no driver answers", "modprobe nvidia"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "does not answer", "the driver was updated while it ran"),
        ("NVML_ERROR_UNKNOWN", "does not answer", "restart this machine"),
    ],
)
def test_a_driver_that_does_not_answer(node, tmp_path, monkeypatch, error, said, cure):
    device = tmp_path / "0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    monkeypatch.setattr(gpus, "PCI", tmp_path)
    monkeypatch.setattr(nvml, "_ROOT", tmp_path)
    library = node("8 A100")
    node("8 A100", init_error=getattr(library, error))
    (line,) = gpus.driver()
    assert line.status in (WARN, FAIL) and said in line.said and cure in line.cure


def test_a_screen_takes_some_of_a_laptops_memory(node):
    library = node("4 GB laptop")
    library.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=4 * 2**30, free=3.5 * 2**30)
    assert lines_of(gpus.free) == [(OK, "1 × NVIDIA GeForce RTX 3050 Laptop GPU free")]


def some_gpus(name, number):
    return [GPU(i, name, str(i), 80, 80, (8, 0), "595.10") for i in range(number)]


def test_a_slow_link_is_named():
    found, table = some_gpus("NVIDIA A100-SXM4-80GB", 8), [["NVLink"] * 8 for _ in range(8)]
    measured = dict.fromkeys(itertools.combinations(range(8), 2), 200.0) | {(0, 2): 21.0}
    assert lines_of(workers.judge, found, table, measured) == [
        (WARN, "cuda:0 and cuda:2 21 instead of 208 GB/s over NVLink"),
        (OK, "all-reduce between 27 pairs of GPUs, 200 to 200 GB/s"),
    ]
    # All of them are slow: on eight it is known what they should reach. On four, each pair has a third of the links.
    assert lines_of(workers.judge, found, table, dict.fromkeys(measured, 80.0))[0][0] == WARN
    assert lines_of(workers.judge, found[:4], table, {(0, 1): 80.0, (0, 2): 80.0}) == [
        (OK, "all-reduce between 2 pairs of GPUs, 80 to 80 GB/s")
    ]
    # Of other links nothing is known but what this machine's others reach.
    table = [["-", "NVLink", "host"], ["NVLink", "-", "host"], ["host", "host", "-"]]
    assert (
        lines_of(workers.judge, some_gpus("Tesla T4", 3), table, {(0, 1): 40.0, (0, 2): 4.0, (1, 2): 4.1})[0][0] == OK
    )


def test_every_pair_is_measured():
    """With gloo, on the CPU: NCCL's part is the same function."""
    pairs = [(0, 1), (0, 2), (1, 2)]
    run = launch(workers.measure_and_listen, pairs, 2**20, world_size=3, backend="gloo")
    for measured, addresses in run:
        assert set(measured) == set(pairs) and all(0 < value < 1000 for value in measured.values())
        assert addresses == {"127.0.0.1"}
    assert workers._about_addresses("workers with NCCL", addresses).said == "workers with NCCL listen on 127.0.0.1 only"
    assert workers._about_addresses("workers with NCCL", {"10.0.0.7"} | addresses).status == WARN


def test_a_user_without_a_name_and_a_home(tmp_path):
    """As in a container that was given a user id only; the course's folder is another's."""
    begin = ["unshare", "--user", "--map-user=54321"]
    if subprocess.run([*begin, "true"], capture_output=True).returncode:
        pytest.skip("a process cannot have another user id here")
    shutil.copytree(ROOT / "course_utils", tmp_path / "course_utils", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "data").mkdir(mode=0o555)
    code = """
import pathlib
try: pathlib.Path.home()
except RuntimeError: print("none")
from course_utils import data
from course_utils.doctor import machine
print(data.files.folders() == [data.files.DATA / "downloads"])
print([line.said for line in machine.disk() if "home" in line.said])
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "COURSE_DATA")}
    done = subprocess.run([*begin, sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True,
                          text=True, timeout=100)  # fmt: skip
    lines = ["none", "True", "['this user has no home folder, where settings and caches go']"]
    assert done.stdout.splitlines() == lines, done.stderr
