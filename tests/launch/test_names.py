"""What pickles by name finds in a worker's `__main__` what it would find in a script's: the notebook's names."""

import pytest

SETUP = """
import collections, concurrent.futures, dataclasses, enum, io, multiprocessing, pickle, typing
import ctypes, functools, os, random, signal, socket, subprocess, sys, threading, time
import numpy as np, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from course_utils import Ranks, WorkerError, launch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
class Colour(enum.Enum): RED = 1
UserId = typing.NewType("UserId", int)
Shape = typing.TypeVarTuple("Shape")
Point = collections.namedtuple("Point", "x y")
class Mark:
    def __reduce__(self): return "MISSING"
MISSING = Mark()
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
class Squares(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.tensor(float(i * i))
def collate(items): return Batch(torch.stack(items))
def double(x): return 2 * x
factor = 3
def times(x): return factor * x
"""


@pytest.fixture
def prepared(notebook):
    """The shared notebook, with these names beside its own."""
    with notebook.keeping_names():
        notebook.run(SETUP)
        yield notebook


def test_what_a_cell_defines_goes_to_other_ranks_and_is_the_same_there(prepared):
    assert (
        prepared.run("""
def gather():
    out = [None] * 2
    dist.all_gather_object(out, (double, Net, Colour.RED, UserId, Point(1, 2), MISSING, times, Shape))
    function, net, red, user, point, mark, of_factor, shape = out[1 - dist.get_rank()]
    return (function is double, net is Net, red is Colour.RED, user is UserId, point == Point(1, 2), mark is MISSING,
            of_factor(2), shape is Shape)
launch(gather, world_size=2).results
""").value
        == [(*[True] * 6, 6, True)] * 2
    )


def test_a_whole_model_is_saved_and_loaded(prepared):
    assert prepared.run("""
def save():
    file = io.BytesIO()
    torch.save(Net(), file)
    file.seek(0)
    return type(torch.load(file, weights_only=False)) is Net, type(pickle.loads(pickle.dumps(Net()))) is Net
launch(save, world_size=1).results
""").value == [(True, True)]


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_data_loaders_processes_know_what_came_as_an_argument(prepared, how):
    assert prepared.run(f"""
def load(data, collate_fn):
    loader = DataLoader(data, 2, num_workers=1, collate_fn=collate_fn, multiprocessing_context="{how}")
    return [(type(batch) is Batch, batch.x.tolist()) for batch in loader]
launch(load, Squares(), collate, world_size=1).results
""").value == [[(True, [0.0, 1.0]), (True, [4.0, 9.0])]]


def test_processes_that_a_worker_starts_itself(prepared):
    """What cannot travel, such as a lock, is no name of theirs."""
    assert prepared.run("""
lock = None
def start(how):
    global lock
    lock = threading.Lock()
    context = multiprocessing.get_context(how)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return [pool.submit(*call).result() for call in [(times, 5), (Point, 1, 2), (double, 4)]]
[launch(start, how, world_size=1)[0] == [15, Point(1, 2), 8] for how in ("fork", "spawn")]
""").value == [True, True]


def test_a_queue_carries_what_a_cell_defines(prepared):
    assert prepared.run("""
def put():
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=queue.put, args=(Batch(4),))
    child.start()
    got = queue.get(timeout=50)
    child.join()
    return type(got) is Batch, got.x
launch(put, world_size=1).results
""").value == [(True, 4)]


def test_the_notebooks_own_names_stay_as_they_are(prepared):
    assert prepared.run("""
def change():
    global factor
    factor = 7
    return times, times(1)
returned, value = launch(change, world_size=1)[0]
returned(1), value, factor, times(1)
""").value == (7, 7, 3, 3)


def test_ranks_that_persist_know_classes_that_came_with_a_call_and_keep_their_own_names(prepared):
    assert prepared.run("""
with Ranks(2) as ranks:
    ranks["factor"] = 11
    def gather():
        out = [None] * 2
        dist.all_gather_object(out, Batch(times(1)))
        return [(type(batch) is Batch, batch.x) for batch in out]
    first, own = ranks.run(gather)[0], ranks["factor"]
    @dataclasses.dataclass
    class Batch:
        x: int
        y: int = 0
    second = ranks.run(gather)[1]
first, second, list(own)
""").value == ([(True, 3)] * 2, [(True, 3)] * 2, [11, 11])


def test_a_worker_has_no_ipython_and_can_ask(prepared):
    value = prepared.run("""
def ask():
    try: get_ipython()
    except NameError as error: return str(error)
launch(ask, world_size=1).results
""").value
    assert value[0].startswith("name 'get_ipython' is not defined: a worker has no IPython")
    outcome = prepared.fail("""
def list_files():
    !ls
launch(list_files, world_size=1)
""")
    assert outcome.message.startswith("rank 0: NameError: name 'get_ipython' is not defined"), outcome.shown
    assert prepared.run("launch(lambda: exit(), world_size=1).results").value == [None]
    assert "left with exit code 3" in prepared.fail("launch(lambda: quit(3), world_size=1)").message
