"""What the course says about a node: this one as it is, and others, whose NVML is played (`helpers.machines`)."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pynvml
import pytest
import torch

from course_utils import hardware
from course_utils.hardware import host, nvml
from course_utils.plots import style
from tests.helpers import machines
from tests.helpers.machines import A100, H200, P100, T4
from tests.helpers.played_gpus import PlayedGpus

REPO = Path(__file__).resolve().parents[2]
SHARED = ": right answers, not speed"
OWN = "; the worker calls init_process_group itself"
ON_2 = " on the CPU with gloo; 2 cores, so "
SETTINGS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "COURSE_DEVICE", "COURSE_MAX_WORKERS", "RANK", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def node(monkeypatch):
    """A function that puts a machine of `helpers.machines` into this process's view: its name there, or its parts."""
    return functools.partial(machines.play, monkeypatch)


def run_python(code, **env):
    """Run `code` in a clean interpreter and return what it printed."""
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | env,
        cwd=REPO,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# This machine, whatever it is


def test_import_and_the_short_description_are_quick():
    """Neither imports torch, which takes seconds, unless a GPU makes it necessary."""
    code = """
import sys
import course_utils
package = "torch" in sys.modules
from course_utils import hardware; from course_utils.hardware import nvml
imported = "torch" in sys.modules
hardware.describe()
described = "torch" in sys.modules and not nvml.visible_handles()
print(package, imported, described)
"""
    package, imported, described = run_python(code).split()
    if package == "True":
        pytest.skip("course_utils itself imports torch")
    assert (imported, described) == ("False", "False")


@pytest.fixture(scope="module")
def seen():
    """What tests ask of a clean interpreter with torch, which takes seconds to start: one for all of them."""
    code = """
import json, os, torch
from course_utils import hardware
hardware.gpus(), hardware.devices(2), hardware.machine(), hardware.default_world_size()
hardware.choose_backend(2), hardware.describe(), hardware.describe(full=True)
seen = {"initialised": torch.cuda.is_initialized()}
count = torch.cuda.device_count()
seen["ours"] = [gpu.name for gpu in hardware.gpus()]
seen["torch's"] = [torch.cuda.get_device_properties(i).name for i in range(count)]
os.environ.update(RANK="7", LOCAL_RANK="3")
seen["device"] = str(hardware.rank_device())
seen["current"] = torch.cuda.current_device() if count else None
print(json.dumps(seen))
"""
    return json.loads(run_python(code))


def test_only_gpus_that_cuda_gives_are_asked_for_work():
    """In MIG mode torch 2.11 counts all GPUs, also once CUDA is initialised; CUDA gives a slice of one."""
    with PlayedGpus({"cards": [H200] * 2, "slices": {0: 2, 1: 2}}):
        hardware.wait_for_gpus()
        assert hardware.gpus_in_use() == [torch.device("cuda", 0)]
        assert hardware.gpus_are_well()


def test_nothing_initialises_cuda(seen):
    assert seen["initialised"] is False


def test_full_precision_is_that_of_products_too_where_the_environment_asks_for_less():
    """NVIDIA's containers of PyTorch set this variable."""
    code = """
import torch
from course_utils import hardware
switches = torch.backends.cuda.matmul, torch.backends.cudnn
before = [switch.allow_tf32 for switch in switches]
hardware.full_precision()
print(*before, *(switch.allow_tf32 for switch in switches))
"""
    assert run_python(code, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1") == "True True False False"


def test_gpus_are_those_of_torch_in_its_order(seen):
    assert seen["ours"] == seen["torch's"]


def test_rank_device_is_current_in_a_worker(seen):
    count = len(seen["torch's"])
    expected = (f"cuda:{3 % count}", 3 % count) if count else ("cpu", None)
    assert (seen["device"], seen["current"]) == expected


def test_full_description_names_what_chapter_00_reads():
    text = hardware.describe(full=True)
    for word in ("CPU", "Memory", torch.__version__, "CUDA", "NCCL", "/dev/shm", "gloo", "III"):
        assert word in text
    assert "\n" not in hardware.describe() or nvml.problem()


def test_cores_follow_affinity():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from course_utils import hardware; print(hardware.num_cores())"
    assert run_python(code) == "1"


def play_cgroups(root, monkeypatch, groups, files):
    """Let the course see /proc/self/cgroup with `groups`, and of /sys/fs/cgroup the `files`, a dict of texts."""
    for path, text in ({"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{path}": files[path] for path in files}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    monkeypatch.setattr(host, "_ROOT", root)


@pytest.mark.parametrize(
    ("quota", "above", "cores"),
    [("max 100000", "max 100000", 64), ("350000 100000", "max 100000", 4), ("300000 100000", "max 100000", 3),
     ("max 100000", "200000 100000", 2), ("50000 100000", "max 100000", 1), ("9000000 100000", "max 100000", 64)],
)  # fmt: skip
def test_cores_follow_the_containers_quota(tmp_path, monkeypatch, quota, above, cores):
    files = {"class/student/cpu.max": quota, "class/cpu.max": above}
    play_cgroups(tmp_path, monkeypatch, "3:cpuset:/\n0::/class/student", files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert hardware.num_cores() == cores


@pytest.mark.parametrize("folder", ["docker/1a2b/", ""], ids=["own name", "at the top"])
@pytest.mark.parametrize(("quota", "cores"), [("-1", 64), ("350000", 4), ("300000", 3), ("50000", 1), ("9000000", 64)])
def test_cores_follow_the_quota_of_cgroups_version_1(tmp_path, monkeypatch, folder, quota, cores):
    files = {f"cpu/{folder}cpu.cfs_quota_us": quota, f"cpu/{folder}cpu.cfs_period_us": "100000"}
    groups = "5:cpuset:/docker/1a2b\n4:cpu,cpuacct:/docker/1a2b\n1:name=systemd:/docker/1a2b\n0::/docker/1a2b"
    play_cgroups(tmp_path, monkeypatch, groups, files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert hardware.num_cores() == cores


@pytest.mark.parametrize(
    ("groups", "file", "limit", "expected"),
    [
        ("0::/", "memory.max", "1073741824", 2**30),
        ("0::/", "memory.max", "max", 2**99),
        ("4:memory:/docker/1a2b", "memory/memory.limit_in_bytes", "1073741824", 2**30),
        ("4:memory:/docker/1a2b", "memory/memory.limit_in_bytes", "9223372036854771712", 2**99),
    ],
)
def test_memory_follows_the_containers_limit(tmp_path, monkeypatch, groups, file, limit, expected):
    play_cgroups(tmp_path, monkeypatch, groups, {file: limit})
    assert host.memory_bytes() == min(expected, psutil.virtual_memory().total)


# Which GPUs are visible


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, "012"), ("", ""), ("2,0", "20"), ("1", "1"), ("0,-1,2", "0"), ("0,7,1", "0"),
     ("1,1", ""), ("GPU-2aaa2,GPU-0a", "20"), ("GPU-", ""), ("GPU-9", ""), ("NoDevFiles", "")],
)  # fmt: skip
def test_cuda_visible_devices(node, monkeypatch, visible, expected):
    node(A100, A100, A100)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in hardware.gpus()] == [f"GPU-{i}aaa{i}" for i in expected]
    assert [gpu.index for gpu in hardware.gpus()] == list(range(len(expected)))
    assert (nvml.problem() is None) == bool(expected)  # hidden GPUs are mentioned


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, "MIG-0ccc0"), ("0", "MIG-0ccc0"), ("1", "GPU-1aaa1"), ("1,0", "MIG-0ccc0"), ("GPU-0aaa0", "MIG-0ccc0"),
     ("MIG-0ccc2", "MIG-0ccc2"), ("MIG-0ccc1,MIG-0ccc2", "MIG-0ccc1"), ("MIG-9", None)],
)  # fmt: skip
@pytest.mark.parametrize("is_root", [True, False])
def test_of_a_cut_gpu_a_process_uses_one_slice(node, monkeypatch, visible, expected, is_root):
    """NVIDIA's MIG User Guide: CUDA enumerates a single slice, and no whole GPU beside it."""
    node(H200, H200, slices={0: 3}, is_root=is_root)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = hardware.gpus()
    assert [gpu.uuid for gpu in found] == [expected] * (expected is not None)
    if found:
        assert found[0].compute_capability == (9, 0)
        assert found[0].memory_bytes == (16 if expected.startswith("MIG") else 140) * 2**30
    hardware.describe(full=True)  # asks nothing that an ordinary user is refused


def test_mig_mode_without_a_slice_is_said(node):
    node(H200, slices={0: 0}, is_root=False)
    assert hardware.gpus() == ()
    assert "is in MIG mode and has no slice, so the CPU is used" in hardware.describe()
    node(H200, A100, slices={0: 0})
    assert [gpu.name for gpu in hardware.gpus()] == [A100[0]]


def test_a_gpu_that_does_not_tell_its_memory(node, monkeypatch):
    node(H200)
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetMemoryInfo", _no_permission)
    assert hardware.describe().startswith("NVIDIA H200; an unknown amount of memory; ")
    assert "NVIDIA H200, an unknown amount, compute" in hardware.describe(full=True)
    assert hardware.choose_backend(8).device_type == "cuda"


def _no_permission(handle):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)


def test_fastest_first_unless_bus_order_is_asked_for(node, monkeypatch):
    node(T4, H200, T4)
    assert [gpu.name for gpu in hardware.gpus()] == ["NVIDIA H200", "Tesla T4", "Tesla T4"]
    assert hardware.machine() == "NVIDIA H200, 2 × Tesla T4"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.name for gpu in hardware.gpus()] == ["Tesla T4"]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert [gpu.name for gpu in hardware.gpus()] == ["NVIDIA H200"]


# A driver, a GPU or a torch that does not fit


def test_no_driver_is_no_problem(node):
    node(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert hardware.gpus() == ()
    assert "\n" not in hardware.describe()
    assert hardware.machine().endswith("no GPU")


def test_a_container_without_nvml_is_said_with_the_cure(node, tmp_path, monkeypatch):
    monkeypatch.setattr(nvml, "_ROOT", tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    node("no GPU")
    assert nvml.problem() is None
    (tmp_path / "dev" / "nvidia0").touch()
    node("no GPU")
    assert "GPU is here without NVML" in hardware.describe() and "compute,utility" in hardware.describe()
    assert hardware.choose_backend(2).device_type == "cpu"


def test_a_driver_that_does_not_answer_is_said(node):
    node(A100, init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert hardware.gpus() == ()
    assert "does not answer" in hardware.describe()
    assert "does not answer" in hardware.describe(full=True)


def test_an_old_driver_is_said_with_the_cure(node):
    node(A100, driver="550.54", cuda=12040)
    assert hardware.gpus() == ()
    text = hardware.describe()
    for words in ("550.54", "CUDA 12.4", "CUDA 13.2", "`make lab CUDA=12.6` installs PyTorch 2.14"):
        assert words in text
    node(A100, driver="580.65", cuda=13000)  # an older minor version runs the same major one
    assert len(hardware.gpus()) == 1


def test_an_old_gpu_is_said_with_the_cure_and_numbers_do_not_shift(node, monkeypatch):
    node(P100, driver="580.65", cuda=13000)
    assert hardware.gpus() == ()
    assert "Tesla P100 has compute capability 6.0, too old" in hardware.describe()
    assert "make lab CUDA=12.6" in hardware.describe(full=True)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    node(A100, P100, A100)
    assert [gpu.index for gpu in hardware.gpus()] == [0]


@pytest.mark.parametrize("capability", [(8, 9), (10, 3), (12, 1)])
def test_a_minor_version_later_than_the_kernels_is_fine(node, capability):
    node(("some GPU", capability, 100, 16))
    assert len(hardware.gpus()) == 1


def test_a_gpu_newer_than_torch_is_said(node):
    node(("some GPU", (13, 0), 100, 16))
    assert hardware.gpus() == ()
    assert "install a newer torch" in hardware.describe()


def test_a_torch_without_cuda_uses_the_cpu(node, monkeypatch):
    node(A100)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert hardware.gpus() == ()
    assert "built without CUDA" in hardware.describe()


# Placement

ON_CPU = {
    1: "1 worker on the CPU with gloo",
    2: "2 workers on the CPU with gloo, one core each",
    4: "4 workers" + ON_2 + "two workers share each core",
    8: "8 workers" + ON_2 + "four workers share each core",
}
ON_GPU = {1: "1 worker that can use one GPU, with NCCL for GPU tensors"} | {
    n: f"{n} workers that can share one GPU, with gloo{SHARED}" for n in (2, 4, 8)
}
TOO_SMALL = " (they would share 4.0 GiB of GPU memory, and each needs 1.5 GiB)"
FOUND = {  # machine: its caption, where 1, 2, 4 and 8 workers run, and what else is said
    "no GPU": ("", ON_CPU, None),
    "T4": ("Tesla T4", ON_GPU, None),
    "4 GB laptop": ("NVIDIA GeForce RTX 3050 Laptop GPU", ON_GPU | {n: ON_CPU[n] + TOO_SMALL for n in (4, 8)}, None),
    "8 A100": (
        "8 × NVIDIA A100-SXM4-80GB",
        ON_GPU | {n: f"{n} workers that can use one GPU each, with NCCL for GPU tensors" for n in (2, 4, 8)},
        None,
    ),
    "H200": ("NVIDIA H200", ON_GPU, None),
    "MIG slice": ("NVIDIA H200 MIG 1g.18gb", ON_GPU, None),
    "V100": (
        "",
        ON_CPU,
        "Tesla V100-SXM2-16GB has compute capability 7.0, too old for this torch, which begins at 7.5",
    ),
    "driver 550": (
        "",
        ON_CPU,
        "the NVIDIA driver 550.54.15 is too old: it runs CUDA 12.4 and this torch was built for CUDA",
    ),
}


@pytest.mark.parametrize("name", machines.MACHINES)
def test_one_machine_says_the_same_everywhere(node, name):
    """In one line and in full, in figures' captions, by the number of workers, and in README's table."""
    node(name)
    if hardware.num_cores() < 2:
        pytest.skip("this container grants less than two cores")
    caption, notes, problem = FOUND[name]
    full, line = hardware.describe(full=True), hardware.describe()
    assert hardware.machine() == caption or not caption and hardware.machine().endswith(", no GPU")
    assert line.startswith(f"{hardware.machine()}; ")
    assert style._caption("", hardware.devices(8)) == f"this machine: {hardware.machine()}"
    for world_size, note in notes.items():
        placed = hardware.choose_backend(world_size)
        on_gpu = "GPU" in note and "CPU" not in note
        backend, device_type = "nccl" if "NCCL" in note else "gloo", "cuda" if on_gpu else "cpu"
        assert placed == hardware.Placement(backend, device_type, note, world_size)
    default = notes[hardware.default_world_size()]
    assert f"By default launch starts {default}." in line
    assert re.search(rf"^(III  08–12|     11   )    {re.escape(default)}$", full, re.MULTILINE)
    assert ("Note: " in line) == (problem is not None) and (problem or "") in line and (problem or "")[1:] in full
    count = len(hardware.gpus())
    assert set(re.findall(r"^(?:I+|IV|V)? +(\d\d.*?)  +on the CPU: 4 workers", full, re.MULTILINE)) == (
        {"10, 12", "13", "16, 17"} if 0 < count < 4 else set()
    )
    assert (f"III  08, 09   {notes[4]}\n" in full) == (0 < count < 4)
    assert {str(each) for each in hardware.devices(8)} == ({f"cuda:{i}" for i in range(count)} or {"cpu"})
    assert hardware.num_devices() == (count or 2)
    rows = [row for row in (REPO / "README.md").read_text().splitlines() if re.match(rf"\|.*\b{name}\b.*\|.*\|$", row)]
    assert len(rows) == 1, "README's table has no row for it, or several"
    said = re.findall("`([^`]* workers?[^`]*)`", rows[0])
    assert said and all(notes[int(text.split()[0])].startswith(text) for text in said)


@pytest.mark.parametrize(
    ("num_gpus", "cores", "cap", "expected"),
    [(0, 1, None, 2), (0, 3, None, 3), (0, 64, None, 4), (1, 64, None, 4), (2, 64, None, 2),
     (8, 2, None, 8), (0, 64, "16", 16), (0, 3, "16", 3), (8, 64, "4", 4), (0, 64, "2", 2)],
)  # fmt: skip
def test_default_world_size(node, monkeypatch, num_gpus, cores, cap, expected):
    node(*[A100] * num_gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    if cap is not None:
        monkeypatch.setenv("COURSE_MAX_WORKERS", cap)
    assert hardware.default_world_size() == min(expected, max(2, hardware.num_cores(), num_gpus))


@pytest.mark.parametrize("cap", ["0", "1", "-3", "many", "2.5"])
def test_a_bad_cap_is_refused(monkeypatch, cap):
    monkeypatch.setenv("COURSE_MAX_WORKERS", cap)
    with pytest.raises(ValueError, match=f"COURSE_MAX_WORKERS is '{cap}'; it must be"):
        hardware.default_world_size()


@pytest.mark.parametrize(
    ("num_gpus", "world_size", "backend", "expected"),
    [
        (0, 1, "auto", ("gloo", "cpu", "1 worker on the CPU with gloo")),
        (0, 2, "auto", ("gloo", "cpu", "2 workers on the CPU with gloo, one core each")),
        (0, 3, "gloo", ("gloo", "cpu", "3 workers" + ON_2 + "up to two workers share a core")),
        (0, 4, "auto", ("gloo", "cpu", "4 workers" + ON_2 + "two workers share each core")),
        (0, 2, None, (None, "cpu", "2 workers on the CPU, one core each" + OWN)),
        (1, 1, "auto", ("nccl", "cuda", "1 worker that can use one GPU, with NCCL for GPU tensors")),
        (1, 4, "auto", ("gloo", "cuda", "4 workers that can share one GPU, with gloo" + SHARED)),
        (2, 3, "auto", ("gloo", "cuda", "3 workers that can share 2 GPUs, with gloo" + SHARED)),
        (8, 8, "auto", ("nccl", "cuda", "8 workers that can use one GPU each, with NCCL for GPU tensors")),
        (8, 2, "gloo", ("gloo", "cuda", "2 workers that can use 8 GPUs, with gloo")),
        (8, 8, None, (None, "cuda", "8 workers that can use one GPU each" + OWN)),
    ],
)
def test_choose_backend(node, monkeypatch, num_gpus, world_size, backend, expected):
    node(*[H200] * num_gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    if hardware.num_cores() < 2:
        pytest.skip("this container grants less than two cores")
    assert hardware.choose_backend(world_size, backend) == hardware.Placement(*expected, world_size)


@pytest.mark.parametrize(
    ("num_gpus", "on_own", "shared"),
    [
        (0, "CPU, 4 workers with gloo", "CPU, 4 workers with gloo"),
        (1, "CPU, 4 workers with gloo", "NVIDIA H200, 4 workers with gloo"),
        (2, "CPU, 4 workers with gloo", "2 × NVIDIA H200, 4 workers with gloo"),
        (4, "4 × NVIDIA H200, 4 workers with NCCL", "4 × NVIDIA H200, 4 workers with NCCL"),
        (8, "4 × NVIDIA H200, 4 workers with NCCL", "4 × NVIDIA H200, 4 workers with NCCL"),
    ],
)
def test_what_a_launch_of_four_used(node, num_gpus, on_own, shared):
    """A chapter that computes on GPUs only where each worker has one; and one whose workers share them."""
    node(*[H200] * num_gpus)
    cpu = hardware.used(torch.device("cpu")).removeprefix("this machine: ")
    placement = hardware.choose_backend(4)
    for used, expected in ((placement.on_gpus_with_nccl(), on_own), (placement, shared)):
        assert hardware.used(used) == f"this machine: {expected.replace('CPU', cpu)}"
    assert hardware.used(placement.on_cpu()) == f"this machine: {cpu}, 4 workers with gloo"


def test_what_several_launches_and_devices_used(node):
    node(H200, H200, T4)
    found = hardware.used(*map(hardware.choose_backend, (2, 1)), hardware.choose_backend(4), *hardware.devices(2))
    assert found == (
        "this machine: 2 × NVIDIA H200, 1 and 2 workers with NCCL; 2 × NVIDIA H200, Tesla T4, 4 workers with gloo"
    )
    away = hardware.Placement(None, "cuda", "2 × 2 workers as a job of Slurm", 4, is_here=False)
    assert hardware.used(away) == "2 × 2 workers as a job of Slurm"
    cpu = hardware.used(torch.device("cpu")).removesuffix(", GPU not used")
    assert hardware.used(torch.device("cpu"), away) == f"{cpu}, GPU not used; {away.note}"
    on_cpu, here = hardware.choose_backend(2).on_cpu(), hardware.choose_backend(1)
    assert hardware.used(on_cpu, here) == f"{cpu}, 2 workers with gloo; NVIDIA H200, 1 worker with NCCL"
    assert hardware.used(torch.device("cpu"), *hardware.devices(1)) == f"{cpu}; NVIDIA H200"


def test_one_core_is_shared_by_all(node, monkeypatch):
    node()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert hardware.choose_backend(4).note.endswith("; 1 core, so all four workers share it")


def test_impossible_backends_are_refused(node):
    node(A100)
    with pytest.raises(ValueError, match="world_size is 2 and 1 GPU is visible.*world_size=1"):
        hardware.choose_backend(2, "nccl")
    with pytest.raises(ValueError, match="'auto', 'gloo', 'nccl' or None"):
        hardware.choose_backend(2, "mpi")
    node()
    with pytest.raises(ValueError, match="no NVIDIA GPU was found.*backend='gloo'"):
        hardware.choose_backend(1, "nccl")


def test_course_device_decides(node, monkeypatch):
    node(A100, A100)
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    assert hardware.choose_backend(2).device_type == "cpu"
    assert hardware.rank_device() == torch.device("cpu")
    assert hardware.devices(2) == [torch.device("cpu")] * 2
    assert hardware.machine().endswith("GPU not used")
    monkeypatch.setenv("COURSE_DEVICE", "tpu")
    with pytest.raises(ValueError, match="COURSE_DEVICE is 'tpu'"):
        hardware.rank_device()
    node()
    monkeypatch.setenv("COURSE_DEVICE", "cuda")
    with pytest.raises(ValueError, match="no NVIDIA GPU was found"):
        hardware.rank_device()


def test_devices(node):
    node(A100, A100)
    assert hardware.devices(2) == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert hardware.devices(3)[2] == torch.device("cuda", 0)
    node(A100)
    assert hardware.devices(2) == [torch.device("cuda", 0)] * 2
    node()
    assert hardware.devices(4) == [torch.device("cpu")] * 4
    for wrong in (0, -1, 2.0, True, "two"):
        with pytest.raises(ValueError, match="whole number of devices"):
            hardware.devices(wrong)


@pytest.mark.skipif(not torch.cuda._is_compiled(), reason="this torch was built without CUDA")
def test_full_description_of_a_node_with_gpus(node):
    node(A100, A100, A100)
    text = hardware.describe(full=True)
    assert "cuda:2" in text
    assert "compute capability 8.0" in text
    assert "PCIe to cuda:1, between CPUs to cuda:2" in text
    node(A100, A100, linked=True)
    assert "NVLink to cuda:1" in hardware.describe(full=True)
    assert hardware.describe().startswith("2 × NVIDIA A100-SXM4-80GB; 80 GiB of memory each; torch ")
