"""Machine code tells what PTX does not: the order in which the hardware is told to load and store."""

import pytest

from course_utils.chapters.c02_a_cuda_kernel import machine_code
from tools import notebooks


def order(name, arch):
    (path,) = notebooks.notebook_paths(["02"])
    return machine_code.memory_order(notebooks.definitions(path)[name], arch).split()


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_loads_first_are_first_in_machine_code(arch):
    if machine_code._cuobjdump() is None:
        pytest.skip("no cuobjdump here")
    assert order("LOADS_FIRST", arch)[:8] == ["ld"] * 8
    assert order("ONE_BY_ONE", arch) == ["ld", "ld", "add", "st"] * 4


def test_without_cuobjdump_it_says_so(monkeypatch):
    monkeypatch.setattr(machine_code, "_cuobjdump", lambda: None)
    assert "cuobjdump" in machine_code.memory_order("anything")
