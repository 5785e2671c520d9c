"""What needs no worker: the bounds of the excerpt, the words for what became of ranks, objects on their way."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch

from course_utils.launch import LauncherError, WorkerError
from course_utils.launch.forkserver.protocol import Report
from course_utils.launch.watch.explain import explain
from course_utils.launch.watch.outcome import Outcome, frames_of_dump, names_of
from course_utils.launch.watch.streams import Output
from course_utils.launch.worker.consequence import Consequence
from course_utils.processes import payload
from tests.helpers.kernel import REPOSITORY

CONNECTION_LOST = "[pair.cc:547] Connection closed by peer [127.0.0.1]:4711"


def report(type_name, message="", frames=(), exitcode=None, **more):
    return Report(type_name, message, traceback="", frames=frames, while_doing="", exitcode=exitcode, **more)


def lost(rank, time):
    """A rank that torch has told that its partner is gone."""
    return Outcome(
        rank, report=report("RuntimeError", CONNECTION_LOST, consequence=Consequence.LOST_CONNECTION), time=time
    )


# Output


@pytest.fixture
def pipe():
    """A pipe's reading end, not blocking, and a function that writes to it and has `Output` read it."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def feed(output, data, rank=0):
        for start in range(0, len(data), 60_000):  # what a pipe holds
            os.write(writer, data[start : start + 60_000])
            assert output.read(rank, reader)

    yield feed
    os.close(reader)
    os.close(writer)


def shown(world_size=1):
    stream = io.StringIO()
    return Output(world_size, stream), stream


def test_a_flood_shows_head_and_tail_and_is_kept_whole(pipe):
    output, stream = shown()
    lines = [f"line {i}" for i in range(50_000)]
    pipe(output, "".join(f"{line}\n" for line in lines).encode())
    output.finish()
    excerpt = stream.getvalue().splitlines()
    assert excerpt[0] == "[rank 0] line 0"
    assert excerpt[-10:] == [f"[rank 0] {line}" for line in lines[-10:]]
    assert len(excerpt) < 250
    assert output.log(0).splitlines() == lines
    said = sum(int(line.split()[1].replace(",", "")) for line in excerpt if line.startswith("…"))
    kept = sum(line.startswith("[rank 0]") for line in excerpt)
    assert said + kept == len(lines)


def test_few_lines_are_all_shown_in_order_with_their_ranks(pipe):
    output, stream = shown(2)
    pipe(output, b"a\nb", rank=1)
    pipe(output, b"c\n", rank=0)
    pipe(output, b"b\n\n", rank=1)
    output.finish()
    assert stream.getvalue() == "[rank 1] a\n[rank 0] c\n[rank 1] bb\n[rank 1] \n"
    assert (output.log(0), output.log(1)) == ("c\n", "a\nbb\n\n")


@pytest.mark.alone
def test_a_line_that_never_ends_is_cut_and_costs_no_more_than_its_length(pipe):
    output, stream = shown()
    line = b"x" * 40_000_000
    started = time.monotonic()
    pipe(output, line)
    output.finish()
    assert time.monotonic() - started < 2
    assert len(stream.getvalue()) < 2_000
    assert "39,999,000 more characters" in stream.getvalue()
    assert 30_000_000 < len(output.log(0)) < len(line)  # no line of it could be kept whole
    assert "(6 MB) are not kept" in output.log(0)


def test_of_a_flood_the_beginning_and_the_end_are_kept_in_order(pipe):
    output, _ = shown(2)
    lines = [f"line {i:08}" for i in range(4_000_000)]
    for start in range(0, len(lines), 100_000):
        pipe(output, "".join(f"{line}\n" for line in lines[start : start + 100_000]).encode(), rank=1)
    kept = output.log(1).splitlines()
    (gap,) = [i for i, line in enumerate(kept) if line.startswith("…")]
    count = int(re.search(r"… ([\d,]+) lines \(\d+ MB\) are not kept …", kept[gap])[1].replace(",", ""))
    begun = kept[gap - 1]  # a line that was cut
    assert lines[gap - 1].startswith(begun)
    assert kept[: gap - 1] == lines[: gap - 1]
    assert kept[gap + 1 :] == lines[-len(kept[gap + 1 :]) :]
    assert gap - 1 + count + len(kept[gap + 1 :]) == len(lines)
    assert 15_000_000 < len(output.log(1)) < 18_000_000
    assert output.log(0) == ""


def test_crumbs_cost_no_more_than_their_bytes(pipe):
    output, _ = shown()
    pipe(output, b"x" * (17 << 20))  # the beginning is full
    before = psutil.Process().memory_info().rss
    for _ in range(200_000):
        pipe(output, b"y")
    assert psutil.Process().memory_info().rss - before < 4 << 20


def test_a_stream_that_refuses_is_left_alone_and_the_log_goes_on(pipe):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    output = Output(1, Full())
    pipe(output, b"a\nb\n")
    pipe(output, b"c\n")
    output.finish()
    assert output.trouble.errno == 28
    assert output.log(0) == "a\nb\nc\n"


def test_a_stream_that_can_only_be_written_to_and_none_at_all(pipe, monkeypatch):
    written = []
    output = Output(1, type("Tee", (), {"write": lambda self, text: written.append(text)})())
    pipe(output, b"a\nb\n")
    output.finish()
    assert ("".join(written), output.trouble) == ("[rank 0] a\n[rank 0] b\n", None)
    monkeypatch.setattr(sys, "stdout", None)
    output = Output(1)
    pipe(output, b"a\n")
    output.finish()
    assert (output.log(0), output.trouble) == ("a\n", None)


def test_a_program_without_stdout_gets_its_results(tmp_path):
    code = "from course_utils import launch\nopen('out', 'w').write(str(launch(lambda: print(1), world_size=2).logs))"
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, timeout=100)
    assert (tmp_path / "out").read_text() == "['1\\n', '1\\n']", done.stderr


def test_lines_typed_into_python_have_numbers():
    """Before Python 3.13 nobody has their text."""
    typed = "from course_utils import launch\nimport torch.distributed as dist\n"
    typed += "def f():\n    if dist.get_rank() == 1:\n        raise ValueError('no')\n    dist.barrier()\n\n"
    typed += "launch(f, world_size=3)\n"
    command = [sys.executable, "-i", "-q"]
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY))
    ended = subprocess.run(command, input=typed, env=environment, capture_output=True, text=True, timeout=120)
    place = r"at <(stdin|python-input-\d+)>, line \d, in f"
    assert re.search(rf"rank 1: ValueError: no\n  {place}", ended.stderr), ended.stderr
    assert re.search(rf"ranks 0 and 2 were in barrier {place}", ended.stderr), ended.stderr


def test_of_a_progress_bar_the_last_state_is_shown(pipe):
    output, stream = shown()
    pipe(output, b"\r 0%\r 50%\r100%\nwindows\r\n\r1%\r2%")
    output.finish()
    assert stream.getvalue() == "[rank 0] 100%\n[rank 0] windows\n[rank 0] 2%\n"


def test_bytes_that_are_no_text(pipe):
    output, stream = shown()
    pipe(output, b"\xff\xfe caf\xc3")
    pipe(output, b"\xa9\n")
    output.finish()
    assert stream.getvalue() == "[rank 0] \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} caf\xe9\n"


# What became of ranks


def test_the_first_failure_in_time_is_the_cause():
    late = Outcome(0, report=report("TypeError", "late"), time=2.0)
    early = Outcome(1, report=report("ValueError", "early"), time=1.0)
    error = explain([late, early])
    assert error.rank == 1
    assert str(error).startswith("rank 1: ValueError: early")
    assert "rank 0 failed too: TypeError: late" in str(error)


def test_an_error_has_fields_and_a_students_message_stays_as_it_is():
    message = "index 3 was out of bounds, lost its way"
    frames = (("/a/file.py", 3, "train"),)
    late = [Outcome(i, report=report("ValueError", message), time=2.0) for i in (0, 2)]
    error = explain([late[0], Outcome(1, report=report("IndexError", message, frames), time=1.0), late[1]])
    assert (error.rank, error.type_name, error.message, error.frames) == (1, "IndexError", message, frames)
    assert (error.exitcode, error.timed_out, error.advice) == (None, False, "")
    assert f"ranks 0 and 2 failed too: ValueError: {message}" in error.text == str(error)
    assert [fate.rank for fate in error.ranks] == [0, 1, 2]
    assert error.ranks[2].report.message == message


def test_what_a_worker_says_as_it_leaves_is_shown(notebook):
    outcome = notebook.fail("launch(lambda: sys.exit('no data in /data'), world_size=1)")
    assert outcome.message.startswith("rank 0: left with exit code 1 (sys.exit: no data in /data) before it returned")
    outcome = notebook.fail("launch(lambda: sys.exit(3), world_size=1)")
    assert outcome.message.startswith("rank 0: left with exit code 3 (sys.exit) before it returned")


def test_the_last_line_of_a_traceback_is_the_heading_whole(notebook):
    for made in ("__import__('pickle').PicklingError('no')", "__import__('queue').Empty()", "KeyError('k')"):
        outcome = notebook.fail(f"def leave(): raise {made}\nlaunch(leave, world_size=1)")
        assert outcome.message.splitlines()[-1].strip(" ^~") == "", outcome.shown  # marks below the line that raised


def test_three_or_more_ranks_in_a_row_are_a_range():
    told = {(3,): "rank 3", (0, 2): "ranks 0 and 2", (0, 1): "ranks 0 and 1", (1, 2, 3): "ranks 1–3"}
    told |= {(0, 1, 3, 4, 5, 6, 7): "ranks 0, 1 and 3–7", (0, 1, 2, 4): "ranks 0–2 and 4"}
    told |= {(0, 2, 3, 4, 6, 8, 9, 10): "ranks 0, 2–4, 6 and 8–10"}
    assert {ranks: names_of(list(ranks)) for ranks in told} == told


def test_several_ranks_are_spoken_of_in_the_plural():
    cause = Outcome(0, report=report("ValueError", "no"), time=1.0)
    died = [Outcome(i, died=3, time=2.0) for i in (3, 4)] + [Outcome(5, died=-signal.SIGKILL, time=2.0)]
    text = str(explain([cause, lost(1, 2.0), lost(2, 2.0), *died]))
    assert "ranks 1 and 2 lost their connection when they were running" in text
    assert "ranks 3 and 4 ended with exit code 3" in text
    assert "rank 5 was killed (SIGKILL)" in text


def test_time_that_is_up_is_a_field_and_advice_stands_apart():
    error = explain([Outcome(0), Outcome(1, returned=True)], timeout=3)
    assert error.timed_out
    assert error.advice == "If they only needed longer: launch(…, timeout=seconds)."
    assert str(error) == f"{error.text}\n\n{error.advice}"
    assert error.advice not in error.text


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_fault_of_the_launchers_own_is_no_workers(is_ours):
    ours = Report("OSError", "no room", traceback="", frames=(), while_doing="starting", is_ours=is_ours)
    error = explain([Outcome(0), Outcome(1, report=ours, time=1.0)])
    assert isinstance(error, LauncherError if is_ours else WorkerError)
    assert str(error).startswith("rank 1: OSError: no room\n  while starting")


def test_a_lost_connection_is_never_the_cause_where_another_rank_has_a_better_one():
    error = explain([lost(0, 1.0), Outcome(1, report=report("ValueError", "the cause"), time=2.0)])
    assert str(error).startswith("rank 1: ValueError: the cause")
    error = explain([lost(0, 1.0), Outcome(1, died=-signal.SIGSEGV, time=2.0)])
    assert str(error).startswith("rank 1: ended by a segmentation fault")


@pytest.mark.parametrize(
    ("code", "memory", "words"),
    [
        (3, False, "exit code 3 before the worker returned"),
        (0, False, "exit code 0 before the worker returned"),
        (-signal.SIGKILL, True, "by the system, which had run out of memory"),
        (-signal.SIGKILL, False, "by another process, or by the system for want of memory"),
        (-signal.SIGABRT, False, "its own abort (SIGABRT)"),
        (-signal.SIGBUS, False, "/dev/shm is full"),
        (-signal.SIGHUP, False, "signal 1 (Hangup)"),
    ],
)
def test_the_words_for_a_process_that_died(code, memory, words):
    error = explain([Outcome(0, returned=True), Outcome(1, died=code, time=1.0)], killed_for_memory=memory)
    assert str(error).startswith("rank 1: ")
    assert words in str(error).splitlines()[0]
    assert (error.rank, error.exitcode) == (1, code)


def test_ranks_of_which_the_same_is_to_be_said_share_a_line():
    cause = Outcome(2, report=report("ValueError", "no"), time=1.0)
    text = str(
        explain(
            [Outcome(0, returned=True), Outcome(1, returned=True), cause, *(Outcome(i, returned=True) for i in (3, 4))]
        )
    )
    assert "ranks 0, 1, 3 and 4 had returned" in text
    text = str(explain([cause, *(Outcome(i, returned=True) for i in range(3, 7))]))
    assert "ranks 3–6 had returned" in text


def test_a_rank_whose_gpu_waits_for_a_message_that_nobody_sends(notebook):
    """With NCCL a call only queues the message; the worker function ends, and the GPU does not."""
    outcome = notebook.fail("""
def worker():
    if dist.get_rank() == 0:
        torch.cuda.is_initialized, torch._C._cuda_getDeviceCount = lambda: True, lambda: 1
        torch._C._cuda_hasPrimaryContext = lambda i: True
        exec(compile("import time\\ndef synchronize(gpu): time.sleep(1000)", torch.cuda.__file__, "exec"), here := {})
        torch.cuda.synchronize = here["synchronize"]
launch(worker, world_size=3, timeout=1)
""")
    assert outcome.error == "WorkerError"
    line = (
        "rank 0 had reached the end of the worker function, but its GPU is still waiting for a message from ranks that "
        "sent none"
    )
    assert line in outcome.message and "ranks 1 and 2 had returned" in outcome.message


def test_frames_of_a_stack_that_faulthandler_wrote():
    dump = """Current thread 0x00007f (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/tmp/ipykernel_7/1.py", line 3 in train
"""
    frames = (("/tmp/ipykernel_7/1.py", 3, "train"), ("/lib/torch/distributed/distributed_c10d.py", 2806, "all_reduce"))
    assert frames_of_dump(dump) == frames
    fatal = f"Fatal Python error: Aborted\n\n{dump}"
    assert frames_of_dump(f"{fatal}\nExtension modules: numpy (total: 1)\n") == frames
    since_3_14 = (
        '\nCurrent thread\'s C stack trace (most recent call first):\n  Binary file "libc.so.6", at abort+0x1\n'
    )
    assert frames_of_dump(fatal + since_3_14) == frames
    assert frames_of_dump("") == ()


# Objects on their way


def there_and_back(value):
    fd = payload.dump(value)
    try:
        return payload.load(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64], ids=str)
def test_tensors_arrive_equal_and_can_be_written_to(dtype):
    value = torch.randn(7, 5).to(dtype)
    back = there_and_back(value)
    assert back.dtype == dtype
    assert torch.equal(back, value)
    back.zero_()
    assert not torch.equal(back, value)


def test_views_of_one_storage_still_share_it():
    base = torch.arange(12.0).reshape(3, 4)
    views = there_and_back({"base": base, "row": base[1], "turned": base.t(), "again": base})
    views["base"][1, 2] = -1
    assert views["row"][2] == -1
    assert views["turned"][2, 1] == -1
    assert views["again"] is views["base"]
    large = torch.ones(1_000_000)
    fd = payload.dump([large[i:] for i in range(10)])
    assert os.fstat(fd).st_size < 1.1 * large.nbytes  # the storage travels once
    os.close(fd)


def test_tied_parameters_stay_tied():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    back = there_and_back(model)
    assert back[1].weight is back[0].weight
    assert isinstance(back[0].weight, torch.nn.Parameter)
    assert back[0].weight.requires_grad
    x = torch.randn(2, 3)
    assert torch.equal(back(x), model(x))


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.eye(3)),
        np.arange(10)[::2],
        np.array(["a", None], dtype=object),
        np.empty(0),
        np.float32(2.5),
        b"x" * 100_000,
        None,
        {"a": [1, (2, "three")]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_and_plain_values(value):
    back = there_and_back(value)
    assert type(back) is type(value)
    assert np.array_equal(back, value) if isinstance(value, np.ndarray) else back == value


def test_odd_tensors():
    values = [
        torch.empty(0),
        torch.tensor(3.0),
        torch.eye(3).to_sparse(),
        torch.ones(2, requires_grad=True) * 2,
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.empty(3, device="meta"),
        torch.ones(4, 4)[::2, ::2],
    ]
    for value in values:
        back = there_and_back(value)
        assert back.shape == value.shape
        if value.device.type != "meta":
            assert torch.equal(back.to_dense(), value.to_dense())


def test_what_cannot_be_pickled_leaves_no_descriptor_open():
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(TypeError):
        payload.dump([torch.ones(3), threading.Lock()])
    assert len(os.listdir("/proc/self/fd")) == len(before)
