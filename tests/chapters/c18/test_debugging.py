"""Torch's tools for hanging jobs, as the chapter shows them: torchfrtrace, and the debug server."""

import pickle
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import debug

from course_utils import launch
from course_utils.chapters.c18_a_long_run import debugging


def write_records(folder):
    """In workers: rank 1 calls one all-reduce fewer than rank 0 has begun, and both write their records."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(3))
    works = [dist.all_reduce(torch.ones(5), async_op=True)] if rank == 0 else []
    record = _distributed_c10d._dump_fr_trace(includeStackTraces=False)
    with open(f"{folder}/rank_{rank}", "wb") as file:
        file.write(debugging.for_torchfrtrace(record))
    works or dist.all_reduce(torch.ones(5))
    [work.wait() for work in works]


def test_torchfrtrace_names_the_rank_that_is_missing(tmp_path):
    launch(write_records, str(tmp_path), world_size=2, backend="gloo")
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sequence number: 2" in done.stderr and "missing ranks: {1}" in done.stderr
    assert "input sizes: [[5]]" in done.stderr


def test_a_record_that_names_its_group_stays_as_it_is():
    """As NCCL's does."""
    record = {"pg_config": {"0": {"name": "0"}}, "entries": [{"profiling_name": "nccl:all_reduce"}]}
    assert pickle.loads(debugging.for_torchfrtrace(pickle.dumps(record))) == record


def test_the_debug_server_listens_on_all_interfaces_and_is_gone_afterwards():
    if reason := debugging.why_no_server():
        pytest.skip(reason)

    def serve(port):
        with debugging.unlogged():
            debug.start_debug_server(port)
            pages = debugging.pages(port) if dist.get_rank() == 0 else []
            where = debugging.listening()
            dist.barrier()
            if dist.get_rank() == 0:
                debug.stop_debug_server()
        return pages, where, debugging.listening()

    port = debugging.free_port()
    run = launch(serve, port, world_size=2, backend="gloo")
    (pages, where, after), (_, other, _) = run
    assert {"stacks", "fr_trace"} <= set(pages)
    assert f"[::]:{port}" in where and len(where) == 2 and len(other) == 1
    assert not after and "listening" not in "".join(run.logs)


def test_on_a_shared_node_or_without_what_it_needs_it_is_not_started(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed.debug._frontend", None)  # its import fails
    monkeypatch.delattr(debug, "_frontend", raising=False)
    assert "which is not installed" in debugging.why_no_server()
    monkeypatch.setenv("COURSE_SHARED", "1")
    assert "others share this node" in debugging.why_no_server()
