"""Where answers run: for how long, and whether what judges them is as it was before."""

import builtins
import contextlib
import functools
import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from course_utils.checks import expect, intact, judge, of_chapter
from course_utils.checks.expect import Wrong
from course_utils.launch import WorkerError
from course_utils.launch.worker import worker as of_launch
from course_utils.processes import linux
from tests.helpers.played_gpus import PlayedGpus

CHECKS_OF_01 = of_chapter(1)
OWN_S, DEADLINE_S = 0.4, 0.8  # of three that share a core, each has had 0.4 s after 1.2 s
BUSY = "import os\nos.sched_setaffinity(0, {%d})\nwhile os.getppid() == %d: pass"


@contextlib.contextmanager
def busy_core(num_programs=2):
    """A core that so many programs share which never wait."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-S", "-c", BUSY % (core, os.getpid())]
    # Each in a session of its own, as a worker is: where the system shares a core among sessions, all count alike.
    programs = [subprocess.Popen(command, start_new_session=True) for _ in range(num_programs)]
    try:
        yield core
    finally:
        for program in programs:
            program.kill()
            program.wait()


def compute(answer, core):
    """Compute for OWN_S of this process's own time, in turn with all others of this core, then what the answer does."""
    os.sched_setaffinity(0, {core})
    before = time.process_time()
    while time.process_time() < before + OWN_S:
        pass
    return answer()


def loop():
    while True:
        pass


def wait_for_one_another():
    dist.recv(torch.zeros(1), 1 - dist.get_rank())


def sum_of_ranks(answer):
    total = torch.tensor([answer()])
    dist.all_reduce(total)
    return total.item(), dist.get_backend_config()


def test_on_a_node_with_gpus_answers_exchange_cpu_tensors_with_gloo():
    """Ranks of a check need not wait for NCCL, which connects for seconds, nor for GPUs."""
    with PlayedGpus("8 A100"):
        found = judge.run(sum_of_ranks, lambda: dist.get_rank() + 1, world_size=2)
    assert found == [(3, "cpu:gloo,cuda:gloo")] * 2


@pytest.mark.skipif(not linux.core_seconds(os.getpid()), reason="this system does not say who had a core")
def test_time_without_a_core_is_not_counted_and_what_never_ends_is_told_beside_other_programs(monkeypatch):
    monkeypatch.setattr(judge, "DEADLINE_S", DEADLINE_S)
    with busy_core() as core:
        begin = time.monotonic()
        assert judge.run(compute, int, core) == [0]
        assert time.monotonic() - begin > DEADLINE_S, "the core was not busy"
        told = r"no end after 0.8 s, not counting \d+.* s in which other programs used the cores, so all workers were"
        with pytest.raises(WorkerError, match=told + r"[^$]*rank 0 was at .*judge.py, line \d+, in loop"):
            judge.run(compute, loop, core)
        with pytest.raises(WorkerError, match=r"no end after 0.8 s[^$]*ranks 0 and 1 were in recv at .*in wait_for"):
            judge.run(compute, wait_for_one_another, core, world_size=2)


REPLACED = {  # (owner, name, what is put there)
    "a check": (CHECKS_OF_01, "check_1_4", lambda answer: "ok"),
    "a helper that checks import": (CHECKS_OF_01, "expect", lambda *_: None),
    "a class": (CHECKS_OF_01, "Wrong", ValueError),
    "a method": (Wrong, "__str__", lambda self: ""),
    "the code of a function": (expect.expect, "__code__", (lambda condition, reason: None).__code__),
    "what tells of the answer": (of_launch, "send", lambda *_: None),
    "a builtin": (builtins, "sorted", list),
    "of torch": (torch, "equal", lambda *_: True),
    "of a tensor": (torch.Tensor, "element_size", lambda self: 4),
    "of a library's submodule": (torch.nn.functional, "cross_entropy", lambda *_: 0),
}


@pytest.mark.parametrize("what", REPLACED)
def test_what_an_answer_replaces_is_found_in_workers_and_by_the_marker(what, monkeypatch):
    owner, name, value = REPLACED[what]
    for before in (intact.functions(), intact.functions(intact._IN_WORKERS)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            replaced = intact.replaced(before)
        where, name_there = (expect, "expect") if name == "__code__" else (owner, name)
        assert f"{where.__name__}.{name_there}" in replaced
        assert {each.rpartition(".")[2] for each in replaced} == {name_there}
        assert not intact.replaced(before)


def test_what_is_deleted_is_found():
    before = intact.functions(intact._IN_WORKERS)
    function = CHECKS_OF_01.check_1_4
    try:
        del CHECKS_OF_01.check_1_4
        assert intact.replaced(before) == ["course_utils.chapters.c01_devices.check.check_1_4"]
    finally:
        CHECKS_OF_01.check_1_4 = function


def test_what_harms_no_verdict_may_be_replaced(monkeypatch):
    before = intact.functions()
    monkeypatch.setattr(torch, "load", functools.partial(torch.load, weights_only=False))
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: str(self.shape))
    entropy = torch.nn.functional.cross_entropy
    monkeypatch.setattr(torch.nn.functional, entropy.__name__, torch.no_grad()(entropy))  # torch wraps it
    assert not intact.replaced(before)
