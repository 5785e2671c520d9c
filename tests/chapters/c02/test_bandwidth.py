"""Chapter 02's instrument: GB/s of every way and size, here and from a record."""

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


def test_the_recorded_kernels_are_found_by_the_chapters_names():
    records = recorded.elsewhere("kernels")
    assert "NVIDIA H200" in [record.machine for record in records] or recorded.hardware.machine() == "NVIDIA H200"
    for record in records:
        rates = bandwidth.kernels_of(record)
        assert rates["our kernel"] < rates["four, one by one"] < rates["four, loads first"]
        assert list(rates)[-1] == "torch.add"
