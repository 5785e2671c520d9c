"""What a measured pipeline says of itself: its costs, its replay, its gap."""

import pytest

from course_utils.parallel import pipeline


def late(spans, by):
    """The spans, every task but the first stage's forwards begun `by` later for each message that it waited for."""
    return [span._replace(begin=span.begin + by, end=span.end + by) if span.stage else span for span in spans]


def test_costs_are_each_stages_medians():
    spans = pipeline.place(pipeline.gpipe(2, 3), [1.0, 2.0], [4.0, 3.0])
    assert pipeline.median_costs(spans) == ([1.0, 2.0], [4.0, 3.0])


@pytest.mark.parametrize("make", [pipeline.naive, pipeline.gpipe, pipeline.one_forward_one_backward])
def test_a_plan_is_its_own_replay(make):
    plan = pipeline.place(make(3, 5), [1.0, 2.0, 1.5], [2.0, 3.0, 4.0])
    assert sorted(pipeline.replay(plan)) == sorted(plan)
    assert pipeline.gap(pipeline.length(plan), plan, plan) == pytest.approx(
        {"formula": pipeline.length(plan), "imbalance": 0, "variation": 0, "rest": 0}
    )


def test_the_gaps_parts_add_up_and_each_finds_its_cause():
    schedule = pipeline.gpipe(2, 4)
    equal, own = pipeline.place(schedule, 1.5, 3.0), pipeline.place(schedule, [1.0, 2.0], [2.5, 3.5])
    slow = pipeline.place(schedule, [1.0, 2.25], [2.5, 3.5])
    measured = late(slow, 0.5)
    end = max(span.end for span in measured if span.stage)  # stage 0's backwards wait for stage 1's
    measured = [
        s._replace(begin=s.begin + 1, end=s.end + 1) if (s.stage, s.phase) == (0, "backward") else s for s in measured
    ]
    gap = pipeline.gap(pipeline.length(equal), own, measured)
    assert end <= max(span.end for span in measured)
    assert gap["imbalance"] == pytest.approx(pipeline.length(own) - pipeline.length(equal))
    assert gap["variation"] == pytest.approx(pipeline.length(slow) - pipeline.length(own))
    assert gap["rest"] == pytest.approx(1.0)
    assert sum(gap.values()) == pytest.approx(pipeline.length(measured))


def test_titles_tell_length_and_idle_share():
    assert (
        pipeline.title("1F1B", pipeline.place(pipeline.one_forward_one_backward(2, 4), 0.001, 0.002))
        == "1F1B: 15 ms, 20% idle"
    )
