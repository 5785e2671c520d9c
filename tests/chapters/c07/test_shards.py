"""What chapter 07 draws and counts of layers split over devices."""

import matplotlib
import pytest
import torch

from course_utils.chapters.c07_splitting_inside_a_layer import figures, moved
from course_utils.parallel.device_group import DeviceGroup

matplotlib.use("agg")


@pytest.mark.parametrize(
    ("draw", "texts", "num_sums"),
    [
        (figures.columns_and_rows, ["by columns", "by rows", "device 1", "summand of $Y$"], 2),
        (figures.pair_and_attention, ["an MLP: columns, then rows", "ReLU\n→", "$W_Q$", "heads"], 4),
    ],
)
def test_what_is_drawn_of_a_split_layer(draw, texts, num_sums, shown, capsys):
    draw("What is to be seen.")
    written = [text.get_text() for text in shown[0].axes[0].texts]
    assert set(texts) <= set(written)
    assert [written.count(sent) for sent in ("all-reduce", "all-reduce\nof ∂L/∂X")] == 2 * [num_sums // 2]
    assert "What is to be seen." in capsys.readouterr().out


def test_split_tokens_are_gathered_and_scattered_in_both_passes(shown, capsys):
    figures.split_tokens("What is to be seen.")
    written = [text.get_text() for text in shown[0].axes[0].texts]
    assert [written.count(message) for message in ("all-\ngather", "reduce-\nscatter", "all-reduce")] == [2, 2, 0]
    assert "What is to be seen." in capsys.readouterr().out


def test_every_device_has_its_channels_of_a_convolution(shown, capsys):
    figures.channels("What is to be seen.")
    written = [text.get_text() for text in shown[0].axes[0].texts]
    assert {f"device {i}: 16 channels" for i in range(4)} <= set(written)
    assert "What is to be seen." in capsys.readouterr().out


@pytest.mark.parametrize("num_devices", [2, 3, 4])
def test_each_lane_fills_its_own_shard(num_devices, shown):
    figures.lanes({"one": [("A", 3, 12, "columns")]}, "A.", num_devices)
    filled = [patch for patch in shown[0].axes[0].patches if patch.get_fill() and hasattr(patch, "get_x")]
    assert len(filled) == num_devices
    starts, ends = [patch.get_x() for patch in filled], [patch.get_x() + patch.get_width() for patch in filled]
    assert starts[1:] == pytest.approx(ends[:-1])


class Echo:
    """A split layer whose two passes all-reduce what they are given."""

    def __init__(self, group):
        self.group = group

    def forward(self, xs):
        ys = [x.clone() for x in xs]
        self.group.all_reduce(ys)
        return ys

    backward = forward


def test_bytes_are_those_of_the_messages():
    group = DeviceGroup(["cpu"] * 4)
    assert moved.inside_layers(Echo(group), torch.ones(5, 3)) == 2 * 2 * 3 * 4 * 15
    assert moved.by_data(group, [torch.ones(5, 3), torch.ones(2)]) == 2 * 3 * 4 * 17
