"""An exception of the student's own is shown whatever it says; what torch says of a lost partner is a consequence."""

import re

import pytest

SETUP = """
import bdb, urllib.error, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

def worker(deed):
    if dist.get_rank() == 0:
        time.sleep(0.05)  # the other has returned by then
        deed()

def cut_connections():
    for connection in __import__("psutil").Process().net_connections("tcp"):
        if connection.raddr:
            end = socket.socket(fileno=os.dup(connection.fd))
            end.shutdown(socket.SHUT_RDWR)

def wait_for_the_others(): raise ValueError("my own wait")
def wait_for_gpus(): raise ValueError("my own GPUs")
def _shutdown(): raise ValueError("my own end")
def wrapper(): raise ValueError("my own wrapper")
def url(): raise urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))
def ffmpeg(): raise BrokenPipeError("my pipe to ffmpeg is broken")
def plain(): raise RuntimeError("Connection closed by peer")
def of_torch(): raise dist.DistBackendError("Connection reset by peer")
def gone(): raise RuntimeError("server 3 is gone")
class BdbQuit(Exception): pass
def quits(): raise BdbQuit("not a debugger's")
def refused(): socket.create_connection(("127.0.0.1", 1), timeout=5)
def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"frame")
def store(): dist.TCPStore("127.0.0.1", 1, is_master=False, timeout=__import__("datetime").timedelta(seconds=0.1))
def chained():
    try: plain()
    except RuntimeError as error: raise KeyError("what I make of it") from error
def again():
    try: plain()
    except RuntimeError: raise
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return 2 * x
    @staticmethod
    def backward(ctx, grad): raise RuntimeError("Broken pipe in my backward")
def backward(): Doubled.apply(torch.ones(1, requires_grad=True)).backward()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
    def forward(self, x): raise RuntimeError("Socket closed in my forward")
def forward(): DistributedDataParallel(Net(), init_sync=False)(torch.ones(1, 1))
"""
OWN = {
    "url": "URLError: <urlopen error [Errno 111] Connection refused>",
    "ffmpeg": "BrokenPipeError: my pipe to ffmpeg is broken",
    "plain": "RuntimeError: Connection closed by peer",
    "of_torch": "DistBackendError: Connection reset by peer",
    "gone": "RuntimeError: server 3 is gone",
    "quits": "BdbQuit: not a debugger's",
    "refused": "ConnectionRefusedError: [Errno 111] Connection refused",
    "closed_pipe": "BrokenPipeError: [Errno 32] Broken pipe",
    "chained": "KeyError: 'what I make of it'",
    "again": "RuntimeError: Connection closed by peer",
    "backward": "RuntimeError: Broken pipe in my backward",
    "forward": "RuntimeError: Socket closed in my forward",
    "wait_for_the_others": "ValueError: my own wait",
    "wait_for_gpus": "ValueError: my own GPUs",
    "_shutdown": "ValueError: my own end",
    "wrapper": "ValueError: my own wrapper",
}


@pytest.fixture(scope="module")
def prepared(new_notebook):
    made = new_notebook()
    made.run(SETUP)
    return made


@pytest.mark.parametrize("deed", OWN)
def test_an_exception_of_ones_own_is_the_cause_whatever_it_says(prepared, deed):
    outcome = prepared.fail(f"launch(worker, {deed}, world_size=2)")
    assert outcome.error == "WorkerError", outcome.shown
    head, place, _, other, *trace = outcome.message.splitlines()
    assert head == f"rank 0: {OWN[deed]}"
    assert re.match(r"  at Cell In\[\d+\], line \d+, in \w+:  ", place), place
    assert other == "rank 1 had returned"
    assert f"in {deed}" in "\n".join(trace) and "Traceback of rank 0" in "\n".join(trace)


def test_a_store_that_does_not_answer_is_shown_too(prepared):
    """Such an error from torch reads like a lost connection, so both errors are shown."""
    outcome = prepared.fail("launch(worker, store, world_size=2)")
    assert "127.0.0.1" in outcome.message and "in store" in outcome.message, outcome.shown
    assert "DistNetworkError" in outcome.message or "DistStoreError" in outcome.message, outcome.shown


CALLS = {
    "all_reduce": "dist.all_reduce(torch.ones(3))",
    "work": "work = dist.all_reduce(torch.ones(3), async_op=True)\n    work.wait()",
    "recv": "dist.recv(torch.ones(3), src=1)",
    "object": "dist.all_gather_object([None, None], 3)",
    "backward": "model(torch.ones(1, 1)).sum().backward()",
    "reraised": "try: dist.barrier()\n    except RuntimeError as error: raise error",
}


@pytest.mark.parametrize("call", CALLS)
def test_what_torch_says_of_a_lost_partner_is_not_the_cause(prepared, call):
    outcome = prepared.fail(
        f"""
def part():
    model = DistributedDataParallel(nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    dist.barrier()
    if dist.get_rank() == 1:
        cut_connections()
        time.sleep(0.3)  # the other fails first
        raise ValueError("late")
    {CALLS[call]}
launch(part, world_size=2)
"""
    )
    head, _, _, other, *_ = outcome.message.splitlines()
    assert head == "rank 1: ValueError: late", outcome.shown
    assert re.match(r"rank 0 lost its connection when it was (in \w+ )?at Cell", other), other


KNOWN = {  # what one rank does and the other does not → what is said of it
    "all_reduce(dist, x)": "Rank 0 was in collective 1, all_reduce of (1,) float32, which rank 1 had not called",
    "all_reduce(dist, torch.ones(2 + dist.get_rank()))": "Collective 1 was all_reduce of (2,) float32 on rank 0 and",
}


@pytest.mark.parametrize("call", KNOWN)
def test_where_the_cause_is_known_torch_adds_no_guess(prepared, call):
    """The traceback ends at the student's own line, and of torch's message its first sentence is left."""
    condition = "if dist.get_rank() == 0: " if "x)" in call else ""
    outcome = prepared.fail(f"""
def all_reduce(dist, x):
    dist.all_reduce(x)
def unequal(x=torch.ones(1)):
    {condition}{call}
launch(unequal, world_size=2)""")
    assert KNOWN[call] in outcome.message, outcome.message
    *_, trace, torchs = outcome.message.split("\n\n")
    assert re.fullmatch(
        r"Traceback of rank [01] \(most recent call last\):\n  Cell In\[\d+\], line 4, in unequal\n    .*\n"
        r"  Cell In\[\d+\], line 2, in all_reduce\n    dist.all_reduce\(x\)",
        trace,
    ), trace
    assert re.fullmatch(r"RuntimeError: .*Connection .*(closed|reset).* …", torchs), torchs
    assert "typically" not in outcome.message
    kept = prepared.run("import sys; sys.last_value.traceback").value
    assert "distributed_c10d.py" in kept


def test_a_partner_of_the_courses_own_that_has_gone_is_named_first(prepared):
    outcome = prepared.fail("""
from course_utils.parallel.parameter_server.client import ServerGone
def part():
    if dist.get_rank() == 1:
        time.sleep(0.05)
        raise ValueError("the cause")
    raise ServerGone("nobody answers")
launch(part, world_size=2)
""")
    assert outcome.message.splitlines()[0] == "rank 1: ValueError: the cause"


RULES = {
    "dist.all_reduce(torch.ones(2 + (rank == 1)))": "with the same shape and dtype",
    "dist.all_reduce(x) if rank else dist.broadcast(x, 0)\n    dist.broadcast(x, 0) if rank else dist.all_reduce(x)": (
        "in the same order"
    ),
    "dist.recv(x, 1 - rank) if rank < 2 else None": "Each recv needs a send",
    "dist.recv(x, 1) if rank == 0 else None": "Each recv needs a send",
    "dist.new_group([0]) if rank == 0 else None": "Every rank must call new_group, also those that are not to be in",
    "time.sleep(100) if rank else dist.barrier()": None,  # it may only need longer
}


@pytest.mark.parametrize("statement", RULES)
def test_what_ranks_that_wait_have_to_agree_on(notebook, statement):
    outcome = notebook.fail(f"""
def worker(rank, x=torch.ones(1)):
    {statement}
launch(lambda: worker(dist.get_rank()), world_size=2, timeout=2)""")
    if (rule := RULES[statement]) is None:
        assert "must call" not in outcome.message and "needs a send" not in outcome.message
    else:
        assert rule in outcome.message, outcome.message
