"""Operations per byte, by hand."""

import pytest
import torch
from torch import nn

from course_utils.measure import intensity, throughput
from tests.helpers.played_gpus import PlayedGpus


@pytest.mark.parametrize(
    "layer, shape, flops, numbers",
    [
        (nn.Linear(40, 30), (5, 40), 2 * 5 * 40 * 30, 5 * 40 + 5 * 30 + 30 * 40 + 30),
        (nn.Conv2d(3, 8, 5), (2, 3, 12, 12), 2 * 2 * 8 * 8 * 8 * 3 * 25, 2 * 3 * 144 + 2 * 8 * 64 + 8 * 75 + 8),
        (nn.ReLU(), (6, 7), 42, 84),
    ],
)
def test_a_layer_reads_its_input_and_weights_and_writes_its_result(layer, shape, flops, numbers):
    per_byte, reached = intensity.time_call(layer, torch.randn(shape)).point
    assert per_byte == pytest.approx(flops / (4 * numbers))
    assert reached > 0


def test_a_call_that_one_graph_repeats_is_timed_by_its_part(monkeypatch):
    asked = []

    class Counted(nn.ReLU):
        def forward(self, x):
            asked.append(1)
            return super().forward(x)

    with PlayedGpus(1):
        monkeypatch.setattr(throughput, "measure", lambda step, **_: throughput.Timing((0.5,)))
        x = torch.zeros(1000, device="cuda")
        alone, in_graph = intensity.time_call(Counted(), x), intensity.time_call(Counted(), x, num_in_graph=100)
    assert len(asked) == 2 + 100  # counted twice, and recorded
    assert (alone.seconds, in_graph.seconds) == (0.5, 0.005)
    assert in_graph.point == (1000 / 8000, pytest.approx(1000 / 0.005 / 1e9))


def test_the_roof_is_found():
    bandwidth, peak = intensity.roof("cpu")
    assert bandwidth > 0.1 and peak > 0.1
