"""Operations per byte, by hand."""

import pytest
import torch
from torch import nn

from course_utils.measure import intensity


@pytest.mark.parametrize(
    "layer, shape, flops, numbers",
    [
        (nn.Linear(40, 30), (5, 40), 2 * 5 * 40 * 30, 5 * 40 + 5 * 30 + 30 * 40 + 30),
        (nn.Conv2d(3, 8, 5), (2, 3, 12, 12), 2 * 2 * 8 * 8 * 8 * 3 * 25, 2 * 3 * 144 + 2 * 8 * 64 + 8 * 75 + 8),
        (nn.ReLU(), (6, 7), 42, 84),
    ],
)
def test_a_layer_reads_its_input_and_weights_and_writes_its_result(layer, shape, flops, numbers):
    per_byte, reached = intensity.place(layer, torch.randn(shape))
    assert per_byte == pytest.approx(flops / (4 * numbers))
    assert reached > 0


def test_the_roof_is_found():
    bandwidth, peak = intensity.roof("cpu")
    assert bandwidth > 0.1 and peak > 0.1
