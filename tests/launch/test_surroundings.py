"""What a worker finds: torchrun's environment, the notebook's folder and paths, its own random numbers and threads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from torch.distributed import distributed_c10d as c10d

from course_utils.processes.network import loopback
from tests.helpers.kernel import REPOSITORY

WORKER_FILE = """
import os
import sys

import torch
import torch.distributed as dist


def train(steps=5):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return [value.item() for parameter in model.parameters() for value in parameter.flatten()]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(f"RESULT {os.environ['RANK']} {train()}\\n", end="", flush=True)
    dist.destroy_process_group()
"""


def test_environment(notebook):
    values = notebook.run(
        """
os.environ["CUDA_VISIBLE_DEVICES"] = "3"  # which may be there
os.environ["COURSE_DEVICE"] = "cpu"
os.environ["MY_SETTING"] = "é"
sys.path.append("/a/path/of/the/notebook")
def worker():
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS CUDA_VISIBLE_DEVICES MY_SETTING"
    return ([os.environ[name] for name in names.split()], dist.get_rank(), dist.get_world_size(), dist.get_backend(),
            os.getcwd(), sys.path, torch.get_num_threads(), sys.stdin.read(),
            int(os.environ["MASTER_PORT"]) > 0, os.getpid() == os.getpgid(0))
run = launch(worker, world_size=2)
del os.environ["CUDA_VISIBLE_DEVICES"], os.environ["COURSE_DEVICE"], os.environ["MY_SETTING"]
os.environ["PATH"], path = "/elsewhere", os.environ["PATH"]  # which the forkserver began with
seen = launch(lambda: (os.environ["PATH"], "MY_SETTING" in os.environ), world_size=1)[0]
assert seen == ("/elsewhere", False), seen
del os.environ["PATH"]
assert launch(lambda: os.environ.get("PATH"), world_size=1)[0] is None
os.environ["PATH"] = path
assert run[0][4] == os.getcwd() and run[0][5] == sys.path
sys.path.pop()
[(r[0], *r[1:4], *r[6:]) for r in run]
""".strip()
    ).value
    for rank, value in enumerate(values):
        environment = [str(rank), str(rank), "2", "2", "127.0.0.1", "1", "", "é"]  # workers on the CPU see no GPU
        assert value == (environment, rank, 2, "gloo", 1, "", True, True)


def test_without_backend_the_worker_joins_by_itself(notebook):
    value = notebook.run(
        """
sys.modules["course_utils.launch"]._announced.clear()  # a notebook is told once
def worker():
    before = dist.is_initialized()
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return before, total.item()
launch(worker, world_size=2, backend=None).results
""".strip()
    )
    assert value.value == [(False, 2.0)] * 2
    assert "the worker calls init_process_group itself" in value.stdout


def test_ranks_join_without_a_look_at_what_is_installed(notebook):
    """By default torch looks for gloo among all installed packages' entry points, at least 10 ms per worker."""
    value = notebook.run(
        """
def worker():
    import importlib.metadata
    looks, usual = [], importlib.metadata.entry_points
    importlib.metadata.entry_points = lambda **chosen: looks.append(chosen) or usual(**chosen)
    dist.init_process_group("cpu:gloo")
    dist.new_group()
    return looks
launch(worker, world_size=2, backend=None).results
""".strip()
    ).value
    assert value == [[], []]


def test_float32_is_float32_here_and_in_workers(notebook):
    notebook.run("import course_utils; torch.backends.cudnn.allow_tf32 = True; course_utils.describe()")
    assert notebook.run(
        "torch.backends.cudnn.allow_tf32, *launch(lambda: torch.backends.cudnn.allow_tf32, world_size=2)"
    ).value == (False, False, False)


def test_a_fork_finds_neither_cuda_nor_nvml_initialised(notebook):
    """The forkserver has asked for no GPU: neither library can be used in a fork of a process that did."""
    value = notebook.run(
        """
def ask():
    from course_utils.hardware import nvml
    return nvml._nvml.cache_info().currsize, torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()
launch(ask, world_size=2, backend=None).results
""".strip()
    ).value
    assert value == [(0, False, False)] * 2


def test_workers_on_the_cpu_see_no_gpu(notebook):
    """Where COURSE_DEVICE=cpu keeps the course off a GPU, DataParallel, for one, would take it all the same."""
    value = notebook.run(
        """
os.environ["COURSE_DEVICE"] = "cpu"
try: seen = launch(lambda: os.environ.get("CUDA_VISIBLE_DEVICES"), world_size=1)[0]
finally: del os.environ["COURSE_DEVICE"]
seen, "CUDA_VISIBLE_DEVICES" in os.environ
""".strip()
    ).value
    assert value == ("", "CUDA_VISIBLE_DEVICES" in os.environ)


def test_random_numbers_differ_between_ranks_and_launches(notebook):
    """As in every new process, and as those of torchrun's ranks do."""
    notebook.run("def worker(): return random.random(), float(np.random.rand()), torch.rand(1).item()")
    first = notebook.run("launch(worker, world_size=4).results").value
    second = notebook.run("launch(worker, world_size=4).results").value
    for kind in (0, 1, 2):
        assert len({result[kind] for result in first + second}) == 8
    notebook.run("from course_utils import Nodes")
    assert len(set(notebook.run("launch(worker, world_size=2, on=Nodes(2)).results").value)) == 2


def test_what_a_new_process_takes_from_the_notebook(notebook):
    """The time zone, the rights of new files, and results where tensors are made on another device by default."""
    value = notebook.run(
        """
import time
before = os.environ.get("TZ"), os.umask(0o077)
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
def worker():
    with open(f"made_{dist.get_rank()}", "w") as file:
        return time.strftime("%Z"), os.fstat(file.fileno()).st_mode & 0o777
found = launch(worker, world_size=2).results
torch.set_default_device("meta")
whole = launch(lambda: (1, torch.ones(2)), world_size=2).results
torch.set_default_device(None)
del os.environ["TZ"]
time.tzset()
os.umask(before[1])
[os.remove(f"made_{rank}") for rank in range(2)]
zone = launch(lambda: time.strftime("%Z"), world_size=1)[0]
found, [(number, x.device.type, x.tolist()) for number, x in whole], zone
""".strip()
    ).value
    assert value == ([("JST", 0o600)] * 2, [(1, "cpu", [1.0, 1.0])] * 2, "UTC")


def test_a_script_may_choose_how_its_processes_start(notebook):
    value = notebook.run(
        """
def worker(method):
    import torch.multiprocessing as mp
    if method: mp.set_start_method(method)
    loader = torch.utils.data.DataLoader(torch.arange(8.0), num_workers=1)
    return mp.get_start_method(), sum(batch.item() for batch in loader)
[launch(worker, method, world_size=2).results for method in ("spawn", None)]
""".strip()
    ).value
    assert value == [[("spawn", 28.0)] * 2, [("fork", 28.0)] * 2]


def test_sockets_have_room_for_their_names_however_long_the_temporary_folders_is(tmp_path):
    temporary = tmp_path / ("a_very_long_name" * 8)
    temporary.mkdir()
    source = """
import torch
from course_utils import launch
def worker(): return sum(batch.item() for batch in torch.utils.data.DataLoader(torch.arange(8.0), num_workers=1))
if __name__ == "__main__": print(launch(worker, world_size=2, timeout=60).results)
"""
    (tmp_path / "script.py").write_text(source)
    env = os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary)}
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-1:] == ["[28.0, 28.0]"], done
    assert not list(temporary.iterdir())


def test_threads_of_the_environment_are_respected(notebook):
    value = notebook.run(
        """
os.environ["OMP_NUM_THREADS"] = "2"
threads = launch(torch.get_num_threads, world_size=2).results
del os.environ["OMP_NUM_THREADS"]
threads
""".strip()
    ).value
    assert value == [2, 2]


@pytest.mark.alone
def test_a_data_loader_with_processes_of_its_own(notebook):
    notebook.run(
        """
def load(how):
    data = torch.arange(64.0)
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, persistent_workers=how != "whole")
    total = 0
    for i, batch in enumerate(loader):
        total += batch.sum()
        if i == 2 and how == "break": break
        if i == 2 and how == "raise": raise ValueError("in the middle")
        if i == 2 and how == "die": os._exit(3)
        if i == 2 and how == "wait": time.sleep(100)
    globals()["kept"] = loader
    return float(total)
""".strip()
    )
    assert notebook.run("launch(load, 'whole', world_size=2).results").value == [2016.0, 2016.0]
    notebook.run("launch(load, 'break', world_size=2)")
    for how in ("raise", "die"):
        outcome = notebook.fail(f"launch(load, {how!r}, world_size=2)")
        assert outcome.seconds < 2
    assert "no end after 1 s" in notebook.fail("launch(load, 'wait', world_size=2, timeout=1)").message
    # torch names its shared memory for an instant, and a process that is killed in that very instant leaves it.
    left = [path for path in Path("/dev/shm").glob("torch_*") if not psutil.pid_exists(int(path.name.split("_")[1]))]
    assert len(left) <= 2, left
    for path in left:
        path.unlink()


def test_exit_without_a_code_is_an_end_like_any_other(notebook):
    notebook.run(
        """
def worker():
    if dist.get_rank() == 1: sys.exit()
    return 1
""".strip()
    )
    assert notebook.run("launch(worker, world_size=2).results").value == [1, None]


def test_a_launch_within_a_worker_is_refused(notebook):
    notebook.run("def inner(): pass\ndef worker(): launch(inner, world_size=2)")
    outcome = notebook.fail("launch(worker, world_size=2)")
    assert "RuntimeError: launch was called inside a worker" in outcome.shown.splitlines()[0]


def test_only_loopback_is_listened_on(notebook):
    notebook.run(
        """
def worker():
    dist.new_group([0, 1])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(3)).sum().backward()
    print("ready", flush=True)
    while not os.path.exists("go on"): time.sleep(0.01)
""".strip()
    )
    kernel_alone, during = notebook.listening(), set()

    def look(text):
        during.update(notebook.listening())
        (notebook.directory / "go on").touch()

    outcome = notebook.wait(notebook.start("launch(worker, world_size=4)"), on_output=look)
    (notebook.directory / "go on").unlink()
    assert not outcome.error, outcome.shown
    assert len(during - kernel_alone) >= 2  # the store's, gloo's
    assert {address for address, _ in during} == {"127.0.0.1"}


def test_torch_does_not_warn_of_messages_that_are_no_fault(notebook):
    name = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"
    assert notebook.run(f"launch(lambda: os.environ[{name!r}], world_size=1)[0]").value == "false"


def test_nccl_listens_on_loopback_alone(notebook):
    """Left to itself it takes a network card, and another where the notebook's environment names one."""
    value = notebook.run(
        """
from course_utils import Nodes
os.environ["NCCL_SOCKET_IFNAME"] = "eth0"
def look(): return os.environ["NCCL_SOCKET_IFNAME"]
run, on_nodes = launch(look, world_size=1), launch(look, world_size=2, on=Nodes(2))
del os.environ["NCCL_SOCKET_IFNAME"]
[*run, *on_nodes]
""".strip()
    ).value
    assert value == [loopback()] * 3


def test_metrics_arrive_while_the_run_goes_on(notebook):
    notebook.run(
        """
def worker():
    for step in range(3): log(loss=1 / (step + 1), samples=np.int64(8), accuracy=torch.tensor(0.5))
    log(step=100, note="later")
    while not os.path.exists("go on"): time.sleep(0.01)
def watch():
    while True:
        run = latest_run()
        if run is not None and run.name == "worker" and len(run.metrics) == 8: break
        time.sleep(0.01)
    seen.append((run.seconds, run.metrics))
    open("go on", "w").close()
log(loss=1)  # does nothing outside launch
seen = []
thread = threading.Thread(target=watch)
thread.start()
run = launch(worker, world_size=2, timeout=20)
thread.join()
os.remove("go on")
""".strip()
    )
    value = notebook.run(
        """
during, table = seen[0][1], run.metrics
assert seen[0][0] is None and run.seconds > 0
assert list(table.columns) == ["rank", "step", "seconds", "loss", "samples", "accuracy", "note"], table.columns
assert sorted(map(tuple, table[["rank", "step"]].values.tolist())) == [(r, s) for r in (0, 1) for s in (0, 1, 2, 100)]
assert during.equals(table) and (0 <= table.seconds).all() and (table.seconds <= run.seconds).all()
mine = table[table["rank"] == 1]
(mine.loss.tolist()[:3], mine.samples.tolist()[:3], mine.accuracy.tolist()[:3], mine.note.tolist()[-1],
 mine.step.is_monotonic_increasing)
""".strip()
    ).value
    assert value == ([1.0, 0.5, 1 / 3], [8.0] * 3, [0.5] * 3, "later", True)
    assert notebook.run("list(launch(nothing, world_size=2).metrics.columns)").value == ["rank", "step", "seconds"]


def test_log_refuses_what_is_no_number(notebook):
    for value, words in (("torch.ones(3)", "a Tensor of shape (3,)"), ("[1, 2]", "a list"), ("None", "a NoneType")):
        notebook.run(f"def worker(): log(loss={value})")
        head = notebook.fail("launch(worker, world_size=2)").shown.splitlines()[0]
        assert "ValueError: log(loss=…) was given " + words in head
    notebook.run("def worker(): log(seconds=3)")
    assert "ValueError" in notebook.fail("launch(worker, world_size=2)").shown.splitlines()[0]


def test_the_same_file_under_torchrun(notebook, torchrun, tmp_path):
    for folder in (notebook.directory, tmp_path):
        (folder / "train_replica.py").write_text(WORKER_FILE.strip())
    results = notebook.run("import train_replica\nlaunch(train_replica.train, world_size=2).results").value
    _, said = torchrun(tmp_path / "train_replica.py")
    # Not its exit code: torch 2.15 with gloo now and then aborts a process that is ending, after its work is done.
    lines = sorted(line for line in "\n".join(said).splitlines() if line.startswith("RESULT"))
    assert lines == [f"RESULT {rank} {result}" for rank, result in enumerate(results)], said


def test_a_script_without_a_guard_is_not_run_twice_and_its_errors_have_its_lines(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
print("the script begins", flush=True)
from course_utils import launch
import torch.distributed as dist
def worker(): return dist.get_rank()
print(launch(worker, world_size=2).results)
def fail():
    raise ValueError('no')
launch(fail, world_size=2)
""")
    finished = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert finished.stdout.count("the script begins") == 1
    assert "[0, 1]" in finished.stdout
    assert finished.returncode == 1
    assert "WorkerError: rank" in finished.stderr
    assert "script.py, line 8, in fail:  raise ValueError('no')" in finished.stderr


def test_options_given_to_a_script_reach_its_workers_and_those_of_a_kernel_do_not(notebook, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import argparse
from course_utils import launch
def worker():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    return parser.prog, parser.parse_args().lr
if __name__ == "__main__":
    print(launch(worker, world_size=2).results)
""")
    command = [sys.executable, script, "--lr", "0.25"]
    environment = {"PYTHONPATH": str(REPOSITORY)}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "[('script.py', 0.25), ('script.py', 0.25)]" in finished.stdout, finished.stderr
    assert notebook.run("len(sys.argv) > 1, launch(lambda: sys.argv, world_size=1)[0]").value == (True, [""])


def test_settings_made_after_the_first_launch_reach_workers(notebook):
    """Also those that a library reads once, as it is imported, and the cores that the notebook may use."""
    notebook.run(
        """
def look():
    return torch.jit._state._enabled.enabled, len(os.sched_getaffinity(0)), torch.get_num_threads()
usual = launch(look, world_size=2).results
os.environ.update(PYTORCH_JIT="0", OMP_NUM_THREADS="")
cores = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(cores)})
""".strip()
    )
    try:
        changed = notebook.run("launch(look, world_size=1).results").value  # a new forkserver, on one core
        notebook.run("os.environ['OMP_NUM_THREADS'] = 'many'")
        assert notebook.run("len(launch(nothing, world_size=2).results)").value == 2
    finally:
        notebook.run("del os.environ['PYTORCH_JIT'], os.environ['OMP_NUM_THREADS']\nos.sched_setaffinity(0, cores)")
    assert changed == [(False, 1, 1)]
    assert notebook.run("launch(look, world_size=1).results == usual[:1]").value


@pytest.mark.skipif(not hasattr(c10d, "ProcessGroupNCCL2"), reason="this torch has one implementation of NCCL's groups")
def test_the_implementation_of_nccl_that_a_cell_asks_for(notebook):
    """Torch reads the variable when it registers its backends, which the forkserver does for all workers."""
    notebook.run("def look(): return dist.Backend._plugins['NCCL'].creator_fn.__name__")
    usual = notebook.run("launch(look, world_size=1)[0]").value
    try:
        notebook.run("os.environ['TORCH_DIST_USE_NCCL2'] = '0'")
        assert notebook.run("launch(look, world_size=1)[0]").value == "_create_nccl_process_group" != usual
    finally:
        notebook.run("del os.environ['TORCH_DIST_USE_NCCL2']")
    assert notebook.run("launch(look, world_size=1)[0]").value == usual


def test_the_address_that_tutorials_set(notebook):
    """The DDP tutorial of torch sets MASTER_PORT itself."""
    value = notebook.run(
        """
def setup_as_the_tutorial_does(rank=None, world_size=2):
    rank = int(os.environ["RANK"])
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total), os.environ["MASTER_PORT"]
launch(setup_as_the_tutorial_does, world_size=2, backend=None, timeout=10).results
""".strip()
    ).value
    assert value == [(2, "12355")] * 2


def test_a_folder_that_is_gone(notebook):
    notebook.run("here = os.getcwd()\nos.mkdir('gone'); os.chdir('gone'); os.rmdir(os.getcwd())")
    try:
        outcome = notebook.fail("launch(nothing, world_size=2)")
        assert outcome.message == (
            "the folder in which this notebook works has been deleted, and workers need one: os.chdir to another"
        )
    finally:
        notebook.run("os.chdir(here)")
    notebook.run("def worker(): os.mkdir('lost'); os.chdir('lost'); os.rmdir(os.getcwd()); raise ValueError('its own')")
    assert notebook.fail("launch(worker, world_size=1)").message.startswith("rank 0: ValueError: its own\n")


def test_log_takes_numbers_and_texts_of_any_class_as_pythons_own(notebook):
    folder = notebook.directory / "elsewhere"
    folder.mkdir()
    (folder / "only_there.py").write_text("class Text(str): pass\nclass Number(int): pass\n")
    notebook.run(
        """
def worker():
    sys.path.append("elsewhere")
    import only_there
    log(step=only_there.Number(7), note=only_there.Text("hello"), count=only_there.Number(3), right=True,
        mean=np.float64(0.5))
""".strip()
    )
    row = notebook.run("launch(worker, world_size=1).metrics.iloc[0].to_dict()").value
    assert (row["step"], row["note"], row["count"], row["right"], row["mean"]) == (7, "hello", 3, True, 0.5)


def test_a_data_set_of_a_cell_where_pythons_default_is_a_forkserver(notebook):
    """As from Python 3.14 on."""
    value = notebook.run(
        """
import multiprocessing
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return i * i
def worker(): return sum(int(x) for x in torch.utils.data.DataLoader(Squares(), num_workers=1, batch_size=None))
launch(worker, world_size=2).results, launch(multiprocessing.get_start_method, world_size=1)[0]
""".strip()
    ).value
    assert value == ([140, 140], "fork")


@pytest.mark.alone
def test_host_names_are_looked_up_as_usual_after_a_launch_and_within_it_only_for_a_moment(notebook):
    value = notebook.run(
        """
import contextlib
network = sys.modules["course_utils.processes.network"]
seconds, usual = [], network.names_from_files
@contextlib.contextmanager
def timed():
    begin = time.monotonic()
    with usual(): yield
    seconds.append(time.monotonic() - begin)
network.names_from_files = timed
for _ in range(10): launch(nothing, world_size=2)
network.names_from_files = usual
len(seconds), sorted(seconds)[5] < 0.02
""".strip()
    ).value
    assert value == (10, True)


def test_in_process_and_network_namespaces_of_its_own(tmp_path):
    """As in a container, where the program that launches is process number 1; loopback may be down in it at first."""
    script = tmp_path / "script.py"
    script.write_text("""
import fcntl, os, socket, struct
from course_utils import launch
try: launch(lambda: None, world_size=2)
except Exception as error: print(f"{type(error).__name__}: {error}")
SIOCSIFFLAGS, IFF_UP_AND_RUNNING = 0x8914, 0x41
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_AND_RUNNING))
print(os.getpid(), launch(os.getpid, world_size=2, backend=None).results)
""")
    begin = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*begin, "true"], capture_output=True).returncode:
        pytest.skip("a process cannot have namespaces of its own here")
    finished = subprocess.run(
        [*begin, sys.executable, script],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(REPOSITORY)),
        check=False,
        timeout=60,
    )
    said = finished.stdout + finished.stderr
    assert finished.stdout.startswith("LauncherError: this machine has no loopback interface (127.0.0.1)"), said
    assert re.search(r"^1 \[\d+, \d+\]$", finished.stdout, re.MULTILINE), said


def test_settings_of_the_notebook_are_a_workers(notebook):
    notebook.run("""
import warnings
class Mine(UserWarning): pass
def read():
    with warnings.catch_warnings(record=True):
        try: warnings.warn("now", Mine)
        except Mine: raised = True
        else: raised = False
    return (raised, repr(np.array([1 / 3])), repr(torch.tensor([1 / 3])), torch.ones(1).dtype, np.geterr()["invalid"],
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
            torch.is_anomaly_enabled())
usual, filters, printed, errors = read(), warnings.filters[:], np.get_printoptions(), np.geterr()
""")
    assert notebook.run("launch(read, world_size=1)[0] == read()").value is True
    try:
        notebook.run("""
warnings.simplefilter("error", Mine)
np.set_printoptions(precision=2, formatter={"int": lambda value: "…"})
np.seterr(invalid="raise")
torch.set_printoptions(precision=2, sci_mode=True)
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
torch.set_float32_matmul_precision("medium")
torch.autograd.set_detect_anomaly(True)
""")
        here, there = notebook.run("str(read()), str(launch(read, world_size=1)[0])").value
        assert there == here
        assert here.startswith("(True, 'array([0.33])', 'tensor([3.33e-01])', torch.float64, 'raise', True, 'medium', ")
        notebook.run("torch.set_default_dtype(torch.float32); torch.autograd.set_detect_anomaly(False)")
        here, there = notebook.run("str(read()), str(launch(read, world_size=1)[0])").value
        assert there == here and "float32" in here
    finally:
        notebook.run("""
warnings.filters[:] = filters
warnings.simplefilter("default", Mine)  # the names of what tells warnings of a new list differ between versions
del warnings.filters[0]
np.set_printoptions(**printed); np.seterr(**errors)
torch.set_printoptions(profile="default", sci_mode=None)
torch.set_default_dtype(torch.float32)
torch.use_deterministic_algorithms(False)
torch.set_float32_matmul_precision(usual[6])
torch.autograd.set_detect_anomaly(False)
assert read() == usual
""")


def test_signals_that_a_worker_handles_are_its_own(notebook):
    """People save a checkpoint at SIGUSR1; asking a silent rank where it is must not make it do so."""
    outcome = notebook.fail("""
def wait():
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: print("my handler"))
    os.kill(os.getpid(), signal.SIGUSR1)
    dist.barrier() if dist.get_rank() else time.sleep(100)
launch(wait, world_size=2, timeout=1)
""")
    assert outcome.stdout.count("my handler") == 2, outcome.stdout
    assert "rank 1 was in barrier at Cell" in outcome.message and "rank 0 was at Cell" in outcome.message


def test_a_manager_of_the_notebook_answers_workers(notebook):
    assert notebook.run("""
import multiprocessing
with multiprocessing.Manager() as manager:
    table = manager.dict()
    def write(table): table[dist.get_rank()] = "here"
    launch(write, table, world_size=2)
    written = dict(table)
del manager, table  # and their connections
written
""").value == {0: "here", 1: "here"}


def test_shared_memory_of_the_notebook_stays(notebook):
    assert notebook.run("""
from multiprocessing import resource_tracker, shared_memory
memory, other = (shared_memory.SharedMemory(create=True, size=16) for _ in range(2))
def write(name, unlinked):
    opened = shared_memory.SharedMemory(name)
    opened.buf[dist.get_rank()] = 7
    opened.close()
    dist.barrier()
    if dist.get_rank() == 0:
        theirs = shared_memory.SharedMemory(unlinked)
        theirs.close()
        theirs.unlink()
run = launch(write, memory.name, other.name, world_size=2)
again = shared_memory.SharedMemory(memory.name)
found = bytes(again.buf[:2]), run.logs, os.path.exists(f"/dev/shm/{other.name}")
again.close(), memory.close(), memory.unlink(), other.close()
resource_tracker.unregister(other._name, "shared_memory")
resource_tracker._resource_tracker._stop()
found
""").value == (b"\x07\x07", ["", ""], False)


def test_a_tensor_of_which_a_rank_holds_a_part_is_not_logged(notebook):
    notebook.wait_until_warm()  # else each worker imports DTensor for itself
    notebook.run("""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
def worker(placement):
    mesh = init_device_mesh("cpu", (2,))
    log(loss=DTensor.from_local(torch.tensor(dist.get_rank() + 1.0), mesh, [placement]))
""")
    outcome = notebook.fail("launch(worker, Partial(), world_size=2)")
    assert "of which each rank holds a part (P" in outcome.message and ".full_tensor()" in outcome.message
    assert notebook.run("sorted(launch(worker, Replicate(), world_size=2).metrics.loss)").value == [1.0, 2.0]
