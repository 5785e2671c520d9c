"""Measurements of the panel, of persistent ranks, and of the frames that a failure reports."""

import ctypes
import itertools
import os
import pickle
import statistics
import threading
import time

import torch
import torch.distributed as dist
from IPython import get_ipython

from course_utils import Ranks, WorkerError, launch, log
from course_utils.launch import latest_run, warm
from course_utils.launch.display.panel import Hidden

os.environ.pop("PYTEST_CURRENT_TEST", None)
warm()


def train(seconds):
    """Return the steps per second of a DDP model that logs each step."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 512), torch.randint(0, 10, (64,))
    steps, begin, is_over = 0, time.monotonic(), torch.zeros(1)
    while not is_over.item():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log(loss=loss.detach(), samples=len(x))
        steps += 1
        if steps % 10 == 0:
            is_over.fill_(time.monotonic() - begin > seconds)
            dist.all_reduce(is_over, dist.ReduceOp.MAX)
    return steps / (time.monotonic() - begin)


def panel_cost(world_size, pairs, window_s, shown_s):
    """Ratios of steps per second with the panel to those without, one per pair of windows in one training.

    The order within a pair alternates. The first window begins after `shown_s` seconds.
    """
    edges, orders = [], [(0, 1) if i % 2 else (1, 0) for i in range(pairs)]

    def take_turns():
        while (run := latest_run()) is None or run.seconds is not None or len(run.metrics) == 0:
            time.sleep(0.1)
        supervisor, shown = run._supervisor, run._supervisor.display
        displays = Hidden(supervisor, run.history), shown
        time.sleep(shown_s)
        for has_panel in sum(orders, ()):
            supervisor.display = displays[has_panel]
            edges.append(time.monotonic() - run.started)
            time.sleep(window_s)
        supervisor.display = shown
        edges.append(time.monotonic() - run.started)

    thread = threading.Thread(target=take_turns)
    thread.start()
    run = launch(train, 2 * pairs * window_s + shown_s + 2, world_size=world_size, timeout=600)
    thread.join()
    moments = run.metrics.query("rank == 0").seconds
    counts = [int(((moments >= begin) & (moments < end)).sum()) for begin, end in itertools.pairwise(edges)]
    ratios = []
    for i, order in enumerate(orders):
        pair = dict(zip(order, counts[2 * i : 2 * i + 2], strict=True))
        ratios.append(pair[1] / pair[0])
    return ratios


def median_ms(action, times):
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        found.append(1000 * (time.perf_counter() - begin))
    return statistics.median(found)


def nothing():
    pass


def calls_ms(times):
    """The median ms of a call and of a %%ranks cell: {number of ranks: [call, cell]}."""
    found = {}
    for world_size in (2, 4):
        with Ranks(world_size) as ranks:
            ranks.run(nothing)
            cell = median_ms(lambda: get_ipython().run_cell("%%ranks\nx = rank\n", silent=True), times)
            found[world_size] = [median_ms(lambda: ranks.run(nothing), times), cell]
    return found


def failing(size):
    """Fail with four tensors of `size` MiB in the frames."""
    held = [torch.zeros(size, 2**18) for _ in range(4)]
    dist.barrier()
    begin = time.monotonic()
    if dist.get_rank() == 1:
        log(begin=begin)
        raise ValueError(len(held))
    dist.barrier()


def failure_s(size):
    """Seconds from a rank's failure until the launch has raised its error."""
    try:
        launch(failing, size, world_size=2)
    except WorkerError as error:
        return time.monotonic() - error.run.metrics.begin[0]


def flood(seconds):
    """Rows per second that each rank logs, of 10,000 that it attempts."""
    count, begin = 0, time.monotonic()
    while (now := time.monotonic() - begin) < seconds:
        while count < 10_000 * now:
            log(x=count)
            count += 1
        time.sleep(0.001)
    return count / seconds


def flooded(seconds):
    """The rows/s of each rank, and the MiB by which this process has grown."""
    import psutil

    process = psutil.Process()
    before = process.memory_info().rss
    run = launch(flood, seconds, world_size=8)
    return run.results, (process.memory_info().rss - before) / 2**20


def step_of_ddp(group):
    """A step of a DDP model in `group`, as a function."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 512), torch.randint(0, 10, (64,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def sum_of_a_number(group):
    """An all-reduce of one number in `group`, as a function."""
    x = torch.zeros(1)
    return lambda: dist.all_reduce(x, group=group)


def with_or_without_recorder(make, size, num_rounds, repeats, off):
    """In 2 · `size` ranks, two groups that take turns: group number `off` without torch's recorder.

    Return seconds of each round's `repeats` calls of what `make(group)` returns, of this rank's group; and how many
    collectives of a call have been recorded. The order of the groups alternates.
    """
    rank = int(os.environ["RANK"])
    if rank // size == off:
        os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    dist.init_process_group("gloo")
    groups = [dist.new_group(range(first, first + size)) for first in (0, size)]
    action, seconds = make(groups[rank // size]), []
    for number in range(num_rounds + 1):  # the first warms up
        for turn in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            if turn == rank // size:
                begin = time.perf_counter()
                for _ in range(repeats):
                    action()
                seconds.append(time.perf_counter() - begin)
    dump = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False))
    numbers = [each["collective_seq_id"] for each in dump["entries"] if each["process_group"][1] != "default_pg"]
    return seconds[1:], max(numbers, default=0) / (repeats * (num_rounds + 1))


def recorder_cost(make, size, num_launches, num_rounds, repeats):
    """For each launch: seconds with the recorder over those without, µs more a call, µs of a call, its collectives.

    Of times they are medians over its rounds. Which group goes without alternates.
    """
    found = []
    for number in range(num_launches):
        off = number % 2
        given = {"world_size": 2 * size, "backend": None, "timeout": 300}
        run = launch(with_or_without_recorder, make, size, num_rounds, repeats, off, **given)
        (with_s, num_calls), (without_s, num_without) = run[size * (1 - off)], run[size * off]
        assert num_calls and not num_without
        pairs = list(zip(with_s, without_s, strict=True))
        more = statistics.median(a - b for a, b in pairs) / repeats
        ratio, usual = statistics.median(a / b for a, b in pairs), statistics.median(without_s) / repeats
        found.append((ratio, 1e6 * more, 1e6 * usual, num_calls))
    return found


def messages_with_and_without_notes(num_rounds, repeats):
    """In two ranks: seconds of each round's messages and answers, as launch notes them, and as torch has them."""
    method = ctypes.pythonapi.PyInstanceMethod_New  # without it a function of C++ does not get its group
    method.restype, method.argtypes = ctypes.py_object, [ctypes.py_object]
    names = "send", "recv", "recv_anysource"
    noted = {name: getattr(dist.ProcessGroup, name) for name in names}
    bare = {name: method(function.__wrapped__) for name, function in noted.items()}
    x, rank, found = torch.zeros(1), dist.get_rank(), []
    first, then = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
    for number in range(num_rounds + 1):  # the first warms up
        pair = {}
        for turn in (0, 1) if number % 2 else (1, 0):
            for name, function in (noted, bare)[turn].items():
                setattr(dist.ProcessGroup, name, function)
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(repeats):
                first(x, 1 - rank)
                then(x, 1 - rank)
            pair[turn] = time.perf_counter() - begin
        found.append((pair[0], pair[1]))
    return found[1:]


def notes_cost(num_launches, num_rounds, repeats):
    """For each launch, medians over its rounds: seconds with notes over those without, and µs more a message."""
    found, given = [], {"world_size": 2, "backend": "gloo", "timeout": 300}
    for _ in range(num_launches):
        rounds = launch(messages_with_and_without_notes, num_rounds, repeats, **given)[0]
        more = statistics.median(noted - bare for noted, bare in rounds) / (2 * repeats)
        found.append((statistics.median(noted / bare for noted, bare in rounds), 1e6 * more))
    return found
