"""Schedules have the bubble and the memory that the formulas give, and what cannot run is refused."""

import pytest
import torch
from torch import nn

from course_utils.parallel import pipeline
from course_utils.parallel.pipeline import Task

SIZES = [(stages, micro_batches) for stages in (1, 2, 3, 4, 8) for micro_batches in (1, 2, 3, 4, 7, 16)]
SCHEDULES = [pipeline.naive, pipeline.gpipe, pipeline.one_forward_one_backward]


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
@pytest.mark.parametrize("make", SCHEDULES)
def test_one_process_can_run_every_schedule_in_the_order_of_its_list(make, num_stages, num_micro_batches):
    schedule = make(num_stages, num_micro_batches)
    pipeline.validate(schedule, num_stages, num_micro_batches)
    done = set()
    for stage, micro_batch, phase in schedule:
        if phase == "forward":
            assert stage == 0 or (stage - 1, micro_batch, "forward") in done
        else:
            assert (stage, micro_batch, "forward") in done
            assert stage == num_stages - 1 or (stage + 1, micro_batch, "backward") in done
        assert (stage, micro_batch, phase) not in done
        done.add((stage, micro_batch, phase))
    assert len(done) == 2 * num_stages * num_micro_batches


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
@pytest.mark.parametrize(("forward", "backward"), [(1, 2), (1, 1), (3, 1)])
def test_the_bubble_is_the_formulas(num_stages, num_micro_batches, forward, backward):
    def bubble(make):
        spans = pipeline.place(make(num_stages, num_micro_batches), forward, backward)
        end = max(span.end for span in spans)
        return pipeline.bubble_fraction(spans), end

    for make in (pipeline.gpipe, pipeline.one_forward_one_backward):
        fraction, end = bubble(make)
        assert fraction == pytest.approx((num_stages - 1) / (num_micro_batches + num_stages - 1))
        assert end == pytest.approx((num_micro_batches + num_stages - 1) * (forward + backward))
    assert bubble(pipeline.naive)[0] == pytest.approx((num_stages - 1) / num_stages)


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_what_each_stage_holds(num_stages, num_micro_batches):
    def peaks(make):
        return pipeline.peak_activations(make(num_stages, num_micro_batches))

    assert peaks(pipeline.naive) == [1] * num_stages
    assert peaks(pipeline.gpipe) == [num_micro_batches] * num_stages
    assert peaks(pipeline.one_forward_one_backward) == [
        min(num_stages - stage, num_micro_batches) for stage in range(num_stages)
    ]


def test_spans_do_not_overlap_on_a_stage_and_begin_after_their_input_when_stages_differ():
    schedule = pipeline.one_forward_one_backward(4, 6)
    spans = pipeline.place(schedule, [1, 3, 2, 1], [2, 5, 4, 1])
    end_of = {(span.stage, span.micro_batch, span.phase): span.end for span in spans}
    for stage in range(4):
        own = sorted((span.begin, span.end) for span in spans if span.stage == stage)
        assert all(end <= begin for (_, end), (begin, _) in zip(own, own[1:]))
    for span in spans:
        if span.phase == "forward" and span.stage:
            assert span.begin >= end_of[span.stage - 1, span.micro_batch, "forward"]
        if span.phase == "backward" and span.stage < 3:
            assert span.begin >= end_of[span.stage + 1, span.micro_batch, "backward"]
    assert sum(span.end - span.begin for span in spans) == 6 * (7 + 12)
    # The slowest stage sets the pace: it is never idle between its first and its last micro-batch by more than a round.
    assert max(end_of.values()) >= 6 * 8


F, B = "forward", "backward"


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ([], "the schedule is empty"),
        ([1, 2], "each \\(stage, micro_batch, phase\\)"),
        (
            [(0, 0, F), (0, 0, "back")],
            "the back of micro-batch 0 on stage 0 is in the schedule, but there are stages 0 to 0",
        ),
        ([(0, 0, F)], "the backward of micro-batch 0 on stage 0 is missing"),
        ([(0, 0, F), (0, 0, B), (0, 0, B)], "the backward of micro-batch 0 on stage 0 is in the schedule 2 times"),
        (
            [(0, 0, B), (0, 0, F)],
            "stage 0 waits with the backward of micro-batch 0 for the forward of micro-batch 0 on stage 0",
        ),
    ],
)
def test_a_schedule_that_cannot_run_is_refused(schedule, words):
    with pytest.raises(ValueError, match=words):
        pipeline.validate(schedule, 1, 1)


def test_a_deadlock_is_told_as_who_waits_for_whom():
    # Stage 1 wants micro-batch 1 first, which stage 0 only sends after micro-batch 0 has come back.
    stuck = [(0, 0, F), (0, 0, B), (0, 1, F), (0, 1, B), (1, 1, F), (1, 1, B), (1, 0, F), (1, 0, B)]
    with pytest.raises(
        ValueError,
        match="stage 0 waits with the backward of micro-batch 0 for the backward of micro-batch 0 on "
        "stage 1; stage 1 waits with the forward of micro-batch 1 for the forward of",
    ):
        pipeline.validate(stuck, 2, 2)
    with pytest.raises(ValueError, match="never ends"):
        pipeline.place(stuck)


@pytest.mark.parametrize("make", SCHEDULES)
@pytest.mark.parametrize("sizes", [(0, 4), (2, 0), (2, 1.5), (True, 2), (2, "4")])
def test_sizes_that_are_no_whole_numbers_are_refused(make, sizes):
    with pytest.raises(ValueError, match="it must be a whole number, 1 or more"):
        make(*sizes)


def test_place_wants_a_cost_for_every_stage():
    with pytest.raises(ValueError, match="forward_s has 2 values for 3 stages"):
        pipeline.place(pipeline.gpipe(3, 2), [1, 2])
    with pytest.raises(ValueError, match="there are no spans"):
        pipeline.bubble_fraction([])


def test_stages_hold_all_layers_in_order_and_are_the_layers_themselves():
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    stages = pipeline.split_layers(layers, [2, 1, 2])
    assert [len(stage) for stage in stages] == [2, 1, 2]
    assert [layer for stage in stages for layer in stage] == list(layers)
    x = torch.randn(7, 3)
    out = x
    for stage in stages:
        out = stage(out)
    assert torch.equal(out, layers(x))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([1, 1, 1, 1], "3 layers cannot be cut into 4 stages"),
        ([3, 0], "every stage needs a layer"),
        ([1, 1], "add up to 2, but there are 3 layers"),
        ([], "add up to 0"),
    ],
)
def test_stages_that_cannot_be_cut_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        pipeline.split_layers([nn.ReLU(), nn.ReLU(), nn.ReLU()], sizes)


def test_micro_batches_are_equal_or_refused():
    batch = torch.arange(12).reshape(6, 2)
    parts = pipeline.split_batch(batch, 3)
    assert [len(part) for part in parts] == [2, 2, 2] and torch.equal(torch.cat(parts), batch)
    with pytest.raises(
        ValueError, match="6 samples cannot be cut into 4 equal micro-batches: choose one of 1, 2, 3, 6"
    ):
        pipeline.split_batch(batch, 4)
    with pytest.raises(ValueError, match="6 samples cannot be cut into 0"):
        pipeline.split_batch(batch, 0)
    with pytest.raises(ValueError, match="needs a sample at least"):
        pipeline.split_batch(batch[:0], 1)


def test_tasks_are_plain_triples():
    assert pipeline.naive(1, 1) == [(0, 0, F), (0, 0, B)] == [Task(0, 0, F), Task(0, 0, B)]


def test_gpipe_goes_back_with_the_last_micro_batch_first():
    assert pipeline.gpipe(1, 3) == [(0, 0, F), (0, 1, F), (0, 2, F), (0, 2, B), (0, 1, B), (0, 0, B)]
