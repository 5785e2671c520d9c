"""Chapter 01: timed copies, their curves and records, the caches that Linux reports, pictures and tracebacks."""

import pytest
import torch

from course_utils.chapters.c01_devices import copies
from course_utils.measure.throughput import Timing
from course_utils.recorded import Record


def test_one_thread_is_undone_also_after_a_failure():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), copies.one_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_every_way_and_size_is_timed_in_every_round():
    made = []

    def make_ways(num_bytes):
        made.append((num_bytes, torch.get_num_threads()))
        source = torch.ones(num_bytes, dtype=torch.uint8)
        return {"there": (source, torch.zeros_like(source)), "back": (torch.zeros_like(source), source)}

    timings = copies.time_copies(make_ways, [8, 16], rounds=2, warmup=0, repeats=3)
    assert made == [(8, 1), (8, 1), (16, 1)] * 2  # each round begins with the smallest, untimed
    assert {way: {n: (len(t.seconds), t.num_samples) for n, t in times.items()} for way, times in timings.items()} == {
        way: {8: (6, 8), 16: (6, 16)} for way in ("there", "back")
    }


def test_a_copy_is_made():
    source, target = torch.arange(4), torch.zeros(4, dtype=torch.long)
    copies.time_copies(lambda _: {"there": (source, target)}, [32], rounds=1, warmup=0, repeats=1)
    assert target.equal(source)


def test_curves_are_in_gb_per_s_and_survive_a_record():
    curve = copies.bandwidth_curve({1024: Timing((1e-6, 2e-6, 3e-6, 4e-6, 1.0), 1024), 2048: Timing((1e-6,), 2048)})
    assert curve[0] == [1024, 2048] and curve[1] == pytest.approx([1.024 / 3, 2.048])
    assert curve[2][0] == pytest.approx([0.256, 2.048]) and curve[2][1] == pytest.approx([0.512, 2.048])
    kept = copies.as_record({"to the GPU, pinned": curve, "host to host": curve})
    assert kept["curves"]["host to host"][0] == [1, 2]
    found = copies.from_records([Record("a GPU", kept, {})], "to the GPU")
    assert found == {"recorded on a GPU, to the GPU, pinned": ([1024, 2048], curve[1])}


def test_caches_are_those_for_data(tmp_path):
    for i, (kind, level, size) in enumerate(
        [("Data", 1, "32K"), ("Instruction", 1, "64K"), ("Unified", 2, "1M"), ("Unified", 3, "77")]
    ):
        (tmp_path / f"index{i}").mkdir()
        for name, text in (("type", kind), ("level", level), ("size", size)):
            (tmp_path / f"index{i}" / name).write_text(f"{text}\n")
    (tmp_path / "index3/size").unlink()  # as in some containers
    assert copies.cache_sizes(tmp_path) == {"L1": 32 * 2**10, "L2": 2**20}
    assert copies.cache_sizes(tmp_path / "nothing") == {}
