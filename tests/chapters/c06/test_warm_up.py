"""1F1B with twice the warm-up: what it holds, and that messages cost it no more than GPipe."""

import functools

import pytest

from course_utils.parallel import pipeline

deep_1f1b = functools.partial(pipeline.one_forward_one_backward, ahead_per_stage=2)


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [(4, 8), (1, 3), (3, 2), (4, 16), (2, 5)])
def test_a_longer_warm_up_is_a_whole_schedule(num_stages, num_micro_batches):
    schedule = deep_1f1b(num_stages, num_micro_batches)
    pipeline.validate(schedule, num_stages, num_micro_batches)
    most = [min(2 * (num_stages - 1 - stage) + 1, num_micro_batches) for stage in range(num_stages)]
    assert pipeline.peak_activations(schedule) == most


def test_it_buys_what_messages_cost_1f1b():
    makers = {"GPipe": pipeline.gpipe, "1F1B": pipeline.one_forward_one_backward, "deep": deep_1f1b}
    lengths = {
        name: [pipeline.length(pipeline.place(make(4, 8), message_s=message_s)) for message_s in (0, 0.25)]
        for name, make in makers.items()
    }
    assert lengths == {"GPipe": [33, 34.5], "1F1B": [33, 37], "deep": [33, 34.5]}
