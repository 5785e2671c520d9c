"""What the training program's tests share: ranks on the CPU with one thread each, and warm workers."""

import os
from pathlib import Path

import pytest
import torch

from tests.helpers.run_program import OF_RANKS
from tools.answers import wait_until_warm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """No test takes this process for a rank; and float64 on the CPU is what all ways can be held to."""
    for name in OF_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Here and in all processes: the last bits of a sum depend on how many threads have made it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def imported_already():
    """Workers find what FSDP and pipelines need; until it has been imported, each imports it for itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # as `one_process` sets it: with another value another server is started
        wait_until_warm()
