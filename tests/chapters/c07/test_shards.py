"""What chapter 07 draws, counts and times of layers split over devices."""

import time

import matplotlib
import pytest
import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.chapters.c07_splitting_inside_a_layer import figures, hidden, moved
from course_utils.measure import overlap
from course_utils.parallel.device_group import DeviceGroup

matplotlib.use("agg")


@pytest.mark.parametrize(
    ("draw", "texts", "num_sums"),
    [
        (figures.columns_and_rows, ["by columns", "by rows", "device 1", "summand of $Y$"], 2),
        (figures.pair_and_attention, ["an MLP: columns, then rows", "ReLU", "$W_Q$", "heads"], 4),
    ],
)
def test_what_is_drawn_of_a_split_layer(draw, texts, num_sums, shown, capsys):
    draw("What is to be seen.")
    written = [text.get_text() for text in shown[0].axes[0].texts]
    assert set(texts) <= set(written)
    assert written.count("all-reduce") == num_sums
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
    assert moved.by_layers(group, 5, 3) == 2 * 3 * 4 * 15
    assert moved.alone(group, batch_size=5, summed=3, gathered=8) == 2 * 3 * 4 * 15 + 3 * 4 * 40


def order_both_ways():
    tensor = torch.ones(1000)

    def at_once(span, all_reduce):
        all_reduce(tensor.clone()).wait()
        with span("computing"):
            time.sleep(0.05)

    def at_the_end(span, all_reduce):
        message = all_reduce(summed := tensor.clone())
        with span("computing"):
            time.sleep(0.05)
        message.wait()
        assert summed.eq(dist.get_world_size()).all()

    return hidden.typical({"at once": at_once, "at the end": at_the_end}, overlap.Link(4000 / 0.05), num_rounds=3)


def test_a_message_hides_behind_what_is_computed_meanwhile():
    found = launch(order_both_ways, world_size=2, backend="gloo")[0]
    lengths = {name: hidden.length(spans) for name, spans in found.items()}
    assert lengths["at once"] >= 100 > lengths["at the end"] >= 50
    exposed = {name: hidden.exposed(spans) for name, spans in found.items()}
    assert exposed["at once"] >= 50 > exposed["at the end"]
    rows = hidden.rows(found)
    assert list(rows) == ["at once: computes", "at once: sends", "at the end: computes", "at the end: sends"]
    ((begin, end, _),) = rows["at the end: sends"]
    ((computes, _, _),) = rows["at the end: computes"]
    assert begin <= computes < end and end - begin >= 50
