"""Ways take turns."""

from course_utils.measure import turns


def test_ways_take_turns():
    said = []
    timings = turns.in_turn({name: lambda name=name: said.append(name) for name in "ab"}, rounds=2, warmup=1, repeats=2)
    assert "".join(said) == "ab" + "aabb" * 2
    assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 4, "b": 4}
