"""Chapter 08's sweep times its methods at every size in turn, on the backend's device; the slowest rank counts."""

from course_utils import launch
from course_utils.chapters.c08_processes_that_talk import sweep

SIZES = 1, 64, 4096


def make_ways(x):
    assert x.device.type == "cpu"
    return {"add": lambda: x.add_(1), "fill": lambda: x.zero_()}


def test_every_way_is_timed_at_every_size():
    by_rank = launch(sweep.time_ways, "gloo", make_ways, SIZES, 2, 3, world_size=2, backend="gloo", timeout=60).results
    cases = {(name, num_bytes) for name in ("add", "fill") for num_bytes in SIZES}
    assert all(times.keys() == cases and min(map(min, times.values())) > 0 for times in by_rank)
    assert {len(seconds) for times in by_rank for seconds in times.values()} == {2 * 3}  # rounds, repeats


def test_a_tensor_has_as_many_bytes_as_its_size_says():
    seen = []
    sweep.time_ways("gloo", lambda x: {"look": lambda: seen.append(x.nbytes)}, SIZES, 1, 1)
    assert sorted(set(seen)) == sorted(SIZES)


def test_the_slowest_rank_of_each_repeat_counts_and_a_curve_holds_one_way():
    times = sweep.slowest(
        [
            {("add", 1): (1.0, 5.0, 1.0), ("add", 64): (2.0, 2.0, 2.0), ("fill", 1): (9.0, 9.0, 9.0)},
            {("add", 1): (3.0, 4.0, 1.0), ("add", 64): (1.0, 1.0, 1.0), ("fill", 1): (8.0, 8.0, 8.0)},
        ]
    )
    assert {case: timing.seconds for case, timing in times.items()} == {
        ("add", 1): (3.0, 5.0, 1.0), ("add", 64): (2.0, 2.0, 2.0), ("fill", 1): (9.0, 9.0, 9.0),
    }  # fmt: skip
    assert sweep.curve(times, "add") == ([1, 64], [3.0, 2.0], ((2.0, 2.0), (4.0, 2.0)))
