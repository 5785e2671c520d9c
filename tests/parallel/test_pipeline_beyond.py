"""Interleaved 1F1B and ZB-H1 can run, with the bubble and the memory that their formulas give."""

import pytest

from course_utils.parallel import pipeline

SIZES = [(stages, micro_batches) for stages in (1, 2, 3, 4, 8) for micro_batches in (1, 2, 3, 4, 8, 12, 16)]
INTERLEAVED = [(K, M, v) for K, M in SIZES if M % K == 0 for v in (2, 3)]


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_zb_h1_is_as_short_as_three_tasks_of_equal_length_allow(num_stages, num_micro_batches):
    K, M = num_stages, num_micro_batches
    schedule = pipeline.zb_h1(K, M)
    spans = pipeline.place(schedule)
    # With fewer micro-batches than stages, the first stage waits for the first gradient: 2K − 1 units.
    assert pipeline.length(spans) == max(3 * M + K - 1, 2 * M + 2 * K - 1)
    if M >= K:
        assert pipeline.bubble_fraction(spans) == pytest.approx((K - 1) / (3 * M + K - 1))
    assert pipeline.peak_activations(schedule) == [min(K, M)] * K


@pytest.mark.parametrize("costs", [(1, 2, 1), (2, 2, 1), (1, 1, 0.5)])
def test_zb_h1_loses_what_the_paper_says(costs):
    forward_s, input_s, weight_s = costs  # the gradients of the weights take no longer than the other two
    spans = pipeline.place(pipeline.zb_h1(4, 8), forward_s, input_s=input_s, weight_s=weight_s)
    assert pipeline.length(spans) == 8 * sum(costs) + 3 * (forward_s + input_s - weight_s)


@pytest.mark.parametrize(("num_devices", "num_micro_batches", "num_chunks"), INTERLEAVED)
def test_interleaving_divides_the_bubble(num_devices, num_micro_batches, num_chunks):
    K, M, v = num_devices, num_micro_batches, num_chunks
    schedule = pipeline.interleaved_1f1b(K, M, v)
    pipeline.validate(schedule, K * v, M, num_devices=K)
    spans = pipeline.place(schedule, 1 / v, 2 / v, num_devices=K)
    assert pipeline.bubble_fraction(spans, K) == pytest.approx((K - 1) / (v * M + K - 1))
    held = [min(v * M, 2 * (K - 1 - device) + (v - 1) * K + 1) for device in range(K)]
    assert pipeline.peak_activations(schedule, K) == held


def test_stages_of_one_device_do_not_run_at_once():
    spans = pipeline.place(pipeline.interleaved_1f1b(2, 4, 2), num_devices=2)
    for device in range(2):
        own = sorted((span.begin, span.end) for span in spans if span.stage % 2 == device)
        assert all(end <= begin for (_, end), (begin, _) in zip(own, own[1:]))


def test_what_cannot_run_is_refused():
    with pytest.raises(ValueError, match="6 micro-batches do not form groups of 4"):
        pipeline.interleaved_1f1b(4, 6, 2)
    early = [(0, 0, "forward"), (0, 0, "weight"), (0, 0, "input")]
    with pytest.raises(
        ValueError, match="the weight gradient of micro-batch 0 for the input gradient of micro-batch 0"
    ):
        pipeline.validate(early, 1, 1)
    with pytest.raises(ValueError, match="the weight gradient of micro-batch 0 on stage 0 is missing"):
        pipeline.validate(early[:1] + early[2:], 1, 1)
    with pytest.raises(ValueError, match="the phases 'forward', 'input' and 'weight'"):
        pipeline.validate([*early, (0, 0, "backward")], 1, 1)


def test_words_name_the_two_parts():
    assert pipeline.words(pipeline.zb_h1(1, 2)) == "F0 I0 W0 F1 I1 W1"


@pytest.mark.parametrize(
    ("schedule", "costs", "units"),
    [
        (pipeline.naive(2, 1), {}, 6.5),  # forward, backward and two messages
        (pipeline.gpipe(4, 8), {}, 34.5),
        (pipeline.one_forward_one_backward(4, 8), {}, 37),
        (pipeline.interleaved_1f1b(4, 8, 2), {"forward_s": 0.5, "backward_s": 1, "num_devices": 4}, 32),
        (pipeline.zb_h1(4, 8), {}, 30),
        (pipeline.interleaved_1f1b(1, 3, 2), {"num_devices": 1}, 18),  # stages of one device send nothing
    ],
)
def test_messages_take_a_quarter_of_a_forward(schedule, costs, units):
    assert pipeline.length(pipeline.place(schedule, **costs, message_s=0.25)) == units
