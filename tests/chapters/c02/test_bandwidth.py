"""Chapter 02's instrument: GB/s of every way and size, here and from a record."""

import types

import torch

from course_utils import recorded
from course_utils.chapters.c02_a_cuda_kernel import bandwidth


def test_every_size_of_every_way_has_its_bytes_and_a_rate():
    def ways(x, y, out):
        found = {"copy": (8, lambda: out.copy_(x))}
        return found | ({"torch.add": (12, lambda: torch.add(x, y, out=out))} if len(x) < 100 else {})

    before = torch.get_num_threads()
    found = bandwidth.measure_sizes(ways, [64, 128], torch.device("cpu"))
    assert {way: [num_bytes for num_bytes, *_ in points] for way, points in found.items()} == {
        "copy": [512, 1024], "torch.add": [768]
    }  # fmt: skip
    assert all(0 < slow <= median <= fast for points in found.values() for _, median, slow, fast in points)
    assert torch.get_num_threads() == before


def test_strides_are_timed_in_turn_and_found_in_a_record_that_has_them():
    asked = []

    def make_way(apart, n, x, y, out):
        return 12 * n // apart, lambda: asked.append((apart, torch.get_num_threads(), len(x), len(y), len(out)))

    found = bandwidth.measure_apart(make_way, 64, torch.device("cpu"), rounds=2)
    assert list(found) == list(bandwidth.APART) == [1, 2, 4, 8, 16, 32]
    assert all(0 < slow <= median <= fast for median, slow, fast in found.values())
    assert {each[1:] for each in asked} == {(1, 64, 64, 64)}
    old, new = ({"gb_per_s": {way: {str(2**26): 9.0} for way in ways}} for ways in (["copy"], ["copy", "8 apart"]))
    assert bandwidth.apart_of(types.SimpleNamespace(values=old)) == {}
    assert bandwidth.apart_of(types.SimpleNamespace(values=new)) == {8: 9.0}


def test_the_recorded_kernels_are_found_by_the_chapters_names():
    records = recorded.elsewhere("kernels")
    assert "NVIDIA H200" in [record.machine for record in records] or recorded.hardware.machine() == "NVIDIA H200"
    for record in records:
        rates = bandwidth.kernels_of(record)
        assert rates["our kernel"] < rates["four, one by one"] < rates["four, loads first"]
        assert list(rates)[-1] == "torch.add"
