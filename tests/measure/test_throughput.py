"""Clocks and the phases of a step, on work whose length is known."""

import time

import pytest
import torch

from course_utils.measure import throughput
from tests.helpers.played_gpus import PlayedGpus


def spin(seconds):
    """Be busy for about so long; return how long it was, which a busy machine decides."""
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        pass
    return time.perf_counter() - begin


def test_measure_leaves_the_warm_up_out_and_keeps_each_repeat():
    took, begin = [], time.perf_counter()
    timing = throughput.measure(lambda: took.append(spin(0.01)), num_samples=32, warmup=2, repeats=3)
    in_all = time.perf_counter() - begin
    assert len(took) == 5
    assert all(really <= said for said, really in zip(timing.seconds, took[2:]))
    assert sum(timing.seconds) <= in_all - sum(took[:2])
    assert timing.median_s == sorted(timing.seconds)[1]
    assert timing.samples_per_s == 32 / timing.median_s
    assert f"{timing.median_s * 1e3:.1f} ms (median of 3, half of them " in str(timing)


@pytest.mark.parametrize("values, expected", [
    ([3.0], (3, 3, 3)), ([4, 0, 1, 3, 2], (1, 2, 3)), ([9, 1, 2, 3, 4, 5, 900], (2.5, 4, 7)),
])  # fmt: skip
def test_the_middle_half_does_not_see_what_is_rare(values, expected):
    assert throughput.quartiles(values) == expected
    timing = throughput.Timing(tuple(values), num_samples=8)
    assert (timing.middle_half_s, timing.median_s) == (expected[::2], expected[1])
    assert timing.samples_per_s_half == (8 / expected[2], 8 / expected[0])


def test_ratios_are_taken_turn_by_turn():
    slow, quick = throughput.Timing((3.0, 4.0, 8.0)), throughput.Timing((2.0, 2.0, 2.0))
    assert throughput.ratio(slow, quick) == (1.75, 2, 3) and throughput.ratio(quick, quick) == (1, 1, 1)
    with pytest.raises(ValueError, match="shorter"):
        throughput.ratio(slow, throughput.Timing((1.0,)))


def played(monkeypatch, first=1, **seconds):
    """Return ({name: step}, the names in the order of the calls); steps take so many seconds of a played clock.

    Each step's first call takes `first` times as long.
    """
    clock, called = [0.0], []
    monkeypatch.setattr(throughput, "now", lambda: clock[0])

    def make_step(name):
        def step():
            clock[0] += seconds[name] * (1 if name in called else first)
            called.append(name)

        return step

    return {name: make_step(name) for name in seconds}, called


def test_steps_take_turns_in_every_round(monkeypatch):
    steps, called = played(monkeypatch, a=0.01, b=0.03)
    found = throughput.in_turn(steps, 2, {"a": 64, "b": 128}, warmup={"a": 2, "b": 0}, repeats={"a": 1, "b": 2})
    assert "".join(called) == "aaabb" * 2
    assert [(name, len(each.seconds), each.num_samples) for name, each in found.items()] == [
        ("a", 2, 64),
        ("b", 4, 128),
    ]
    assert [each.median_s for each in found.values()] == pytest.approx([0.01, 0.03])


def test_a_turn_may_be_a_block_whose_length_is_found_once(monkeypatch):
    steps, called = played(monkeypatch, first=10, quick=0.01, slow=0.03)
    found = throughput.in_turn(steps, 2, warmup=0, block_s=0.02)
    lengths = ["quick"] * 3 + ["slow"] * 3  # of three calls each
    assert called == ["quick", "slow", *lengths, *2 * ["quick", "quick", "slow"]]
    assert [each.block for each in found.values()] == [2, 1]
    assert [each.median_s for each in found.values()] == pytest.approx([0.01, 0.03])


def test_a_block_of_steps_has_one_reading_of_the_clock_at_its_end(monkeypatch):
    happened, clock = [], [0.0]

    def step():
        happened.append("step")
        clock[0] += 0.02

    def now():
        happened.append("reading")
        return clock[0]

    monkeypatch.setattr(throughput, "now", now)
    timing = throughput.measure(step, num_samples=32, warmup=1, repeats=2, block_s=0.1)
    block = ["reading", *5 * ["step"], "reading"]
    assert happened == ["step", *3 * ["reading", "step", "reading"], *block, *block]
    assert timing.seconds == pytest.approx((0.02, 0.02)) and timing.samples_per_s == pytest.approx(1600)
    assert str(timing) == "20.0 ms (median of 2 blocks of 5, half of them 20.0–20.0)"
    assert throughput.measure(step, block_s=0.001).block == 1  # a step that is longer than the block


def test_one_call_that_is_held_up_does_not_shorten_the_blocks(monkeypatch):
    clock, lengths = [0.0], iter([0.01, 0.2, 0.01, 0.01] + 8 * [0.01])
    monkeypatch.setattr(throughput, "now", lambda: clock[0])

    def step():
        clock[0] += next(lengths)

    timing = throughput.measure(step, warmup=1, repeats=2, block_s=0.04)
    assert timing.block == 4 and timing.seconds == pytest.approx((0.01, 0.01))


@pytest.mark.parametrize(("marked", "unmarked", "costs"), [
    ((1.6, 2.0, 2.1), (1.5, 1.6, 1.7), True),
    ((1.5, 1.6, 1.7), (1.5, 1.6, 1.7), False),
    ((1.5, 1.6, 1.7), (1.6, 2.0, 2.1), False),  # without marks it happened to be slower
])  # fmt: skip
def test_marks_cost_time_where_the_middle_halves_lie_apart(marked, unmarked, costs):
    found = throughput.Phases({}, throughput.Timing(marked), throughput.Timing(unmarked))
    assert found.marks_cost == costs


def test_events_are_made_in_the_first_step_and_used_again(monkeypatch):
    made, recorded = [], []

    class Event:
        def __init__(self, enable_timing):
            made.append(self)

        def record(self):
            recorded.append(made.index(self))

        def elapsed_time(self, other):
            return 1000.0 * (made.index(other) - made.index(self))

    def step(phase):
        with phase("forward"):
            pass
        with phase("update"):
            pass

    with PlayedGpus(1):
        monkeypatch.setattr(torch.cuda, "Event", Event)
        found = throughput.measure_phases(step, warmup=1, repeats=3)
    assert len(made) == 4 and recorded == 4 * [0, 1, 2, 3]  # the warm-up and three marked steps
    assert {name: timing.seconds for name, timing in found.phases.items()} == {
        "forward": (1.0, 1.0, 1.0),
        "update": (1.0, 1.0, 1.0),
    }


@pytest.mark.alone
def test_phases_add_up_to_the_step_and_come_in_order():
    took = []

    def step(phase):
        with phase("load"):
            load = spin(0.002)
        forward = 0
        for _ in range(2):  # a phase may come twice
            with phase("forward"):
                forward += spin(0.004)
        with phase("update"):
            update = spin(0.001)
        took.append({"load": load, "forward": forward, "update": update})

    found = throughput.measure_phases(step, num_samples=8, warmup=1, repeats=5)
    assert list(found.phases) == ["load", "forward", "update"]
    marked = took[1::2]  # after the warm-up, every marked step is followed by one without marks
    for name, timing in found.phases.items():
        assert all(really[name] <= said for said, really in zip(timing.seconds, marked))
    assert 0.95 < found.covered <= 1
    assert found.step.num_samples == 8 and len(found.unmarked_step.seconds) == 5
    assert [line.split()[0] for line in str(found).splitlines()] == ["load", "forward", "update", "step"]


def test_what_lies_between_phases_is_missed_and_seen():
    def step(phase):
        with phase("forward"):
            inside = spin(0.004)
        spin(inside)

    assert throughput.measure_phases(step).covered < 0.7


def test_a_step_without_phases_and_one_with_nested_phases_are_refused():
    with pytest.raises(ValueError, match="has no phases: put its parts under"):
        throughput.measure_phases(lambda phase: None)

    def nested(phase):
        with phase("forward"), phase("loss"):
            pass

    with pytest.raises(ValueError, match="'loss' begins inside phase 'forward'"):
        throughput.measure_phases(nested)


def test_a_step_that_fails_shows_its_own_error():
    def step(phase):
        with phase("forward"):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        throughput.measure_phases(step, warmup=0)


def test_the_clock_waits_for_every_gpu_in_use_and_begins_to_use_no_other(monkeypatch):
    waited = []
    with PlayedGpus("8 A100"):
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index in (1, 6))
        monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
        throughput.measure(lambda: None, warmup=0, repeats=1)
        throughput.now("cpu")
        throughput.now("cuda:3")
    assert waited == 2 * [torch.device("cuda", 1), torch.device("cuda", 6)] + ["cuda:3"]


@pytest.mark.gpu
def test_phases_on_a_gpu_add_up_and_see_the_work_that_the_cpu_only_asked_for():
    x = torch.randn(4096, 4096, device="cuda")

    def step(phase):
        with phase("multiply"):
            for _ in range(20):
                x @ x
        with phase("add"):
            x + x

    found = throughput.measure_phases(step)
    assert 0.95 < found.covered <= 1.02
    assert found.phases["multiply"].median_s > 10 * found.phases["add"].median_s
    assert found.step.median_s == pytest.approx(found.unmarked_step.median_s, rel=0.2)
