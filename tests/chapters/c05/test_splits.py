"""Chapter 05's counts and drawings: three ways to split, what DataParallel's devices hold, and when sums run."""

import os
import threading

import matplotlib
import pytest
import torch
from torch import nn

from course_utils.chapters.c05_data_parallelism import device_zero, figures, overlapped, side_by_side, splits
from course_utils.measure import memory
from course_utils.models import LectureNet
from tools import notebooks

matplotlib.use("agg")
NUM_PARAMETERS = 120_078


def test_one_device_holds_what_the_network_itself_does():
    net, x = LectureNet(), torch.empty(8, 3, 32, 32)
    with memory.Activations(net) as activations:
        net(x)
    (held,) = splits.one_device(8).held
    assert held == 3 * memory.weight_bytes(net) + activations.num_bytes


def test_by_layers_both_ways_at_each_cut_and_all_weights_once():
    cost = splits.by_layers(16, (1, 1, 1, 2))
    assert cost.num_bytes == 2 * 4 * 16 * (128 * 14 * 14 + 400 + 120)
    assert cost.num_waits == 6
    assert splits.by_layers(16, (5,)) == splits.one_device(16)


def test_inside_layers_sums_of_three_tensors():
    cost = splits.inside_layers(16, 4)
    assert cost.num_bytes == 2 * 3 * 4 * 16 * (16 * 10 * 10 + 84 + 400)
    assert (cost.num_waits, len(cost.held), len(set(cost.held))) == (3, 4, 1)


def test_by_data_moves_the_gradients_however_large_the_batch():
    small, large = splits.by_data(16, 4), splits.by_data(64, 4)
    assert small.num_bytes == large.num_bytes == 2 * 3 * 4 * NUM_PARAMETERS
    assert small.num_waits == 10  # an all-reduce for each parameter tensor
    assert large.held == 4 * splits.one_device(16).held
    assert "2.88 MB" in splits.table(64, splits.compare(64, 4, layers=(1, 1, 1, 2)))


def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 1000))


def test_device_0_holds_the_optimizers_state_and_all_outputs_besides():
    zero, other = device_zero.count(wide, 64, 4, numbers_kept=2)
    weights = 4 * (3072 * 16 + 16 + 16 * 1000 + 1000)
    assert (zero["weights"], zero["optimizer state"]) == (weights, 2 * weights)
    assert "optimizer state" not in other
    assert other[device_zero.OWN] == zero[device_zero.OWN] >= 4 * 16 * 1000
    assert zero[device_zero.GATHERED] >= 2 * 4 * 64 * 1000 - 4 * 16 * 1000 and device_zero.GATHERED not in other


def test_remedies_spread_outputs_then_state():
    cases = device_zero.remedies("wide", wide, 64, 4)
    (zero, other), (half, _), (spread, spread_other), (each, each_other) = cases.values()
    assert half["weights"] == zero["weights"]
    assert 2 * half[device_zero.GATHERED] == pytest.approx(zero[device_zero.GATHERED], rel=1e-4)
    assert spread == spread_other | {"optimizer state": zero["optimizer state"]}
    assert sum(spread_other.values()) - sum(other.values()) == pytest.approx(4 * 16 * 1000, rel=2e-3)
    assert each == each_other == spread
    assert len(device_zero.table(cases).splitlines()) == 5
    held = device_zero.by_device(zero, other, 4)
    assert list(held) == ["device 0", "device 1", "device 2", "device 3"]
    assert sum(held["device 0"].values()) == pytest.approx(sum(zero.values()) / 1e6)
    assert list(held["device 3"]) == ["weights", "gradients", device_zero.OWN]
    assert "count stands alone" in device_zero.measured(None, wide, 64, num_gpus=1)


def test_what_an_overlapped_step_did_and_when(shown):
    group, ready = overlapped.NotedGroup(["cpu", "cpu"]), overlapped.NotedQueue()
    for i in (1, 0):
        for replica in (0, 1):
            ready.put((replica, i))
        group.all_reduce([torch.ones(3), torch.ones(3)])
    assert [ready.get() for _ in range(4)] == [(0, 1), (1, 1), (0, 0), (1, 0)]
    times = overlapped.times_ms(ready, group, ["first", "last"])
    assert list(times) == ["last", "first"] and times["last"][0][0] == 0
    assert all(max(complete) <= begin <= end for complete, begin, end in times.values())
    figures.ready_times(times, "What is to be seen.", placement=[torch.device("cpu")])
    assert [text.get_text() for text in shown[0].axes[0].get_yticklabels()] == ["last", "first"]
    assert group.total_bytes == 2 * 2 * 12


@pytest.mark.parametrize(
    ("draw", "texts"),
    [
        (figures.three_ways, ["by layers", "inside layers", "by data", "layer 3"]),
        (figures.data_parallel_step, ["part 0", "part 1", "$g_0 + g_1$", "all-reduce"]),
        (lambda alt: figures.data_parallel_step(alt, library=True), ["part 0", "forward,\nloss"]),
        (figures.overlap, ["layer 0", "layer 3", "done"]),
    ],
)
def test_what_is_drawn_of_a_split(draw, texts, shown, capsys):
    draw("What is to be seen.")
    assert set(texts) <= {text.get_text() for text in shown[0].axes[0].texts}
    assert "What is to be seen." in capsys.readouterr().out


def test_each_device_has_a_thread_of_its_own():
    """Also where a call ends before the next one begins, as with few operations."""
    (path,) = notebooks.notebook_paths(["05"])
    parallel_apply = notebooks.definitions(path)["parallel_apply"]
    for _ in range(20):
        assert len(set(parallel_apply(lambda _: threading.get_ident(), range(4)))) == 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not tie threads to cores")
def test_each_thread_stays_on_one_core():
    cores = os.sched_getaffinity(0)
    (path,) = notebooks.notebook_paths(["05"])
    parallel_apply = notebooks.definitions(path)["parallel_apply"]
    stayed = parallel_apply(lambda _: os.sched_getaffinity(0), range(4))
    assert all(len(each) == 1 for each in stayed) and len(set.union(*stayed)) == min(4, len(cores))
    assert os.sched_getaffinity(0) == cores  # the caller's own thread goes where it likes


def test_cores_that_share_a_physical_core_come_last(monkeypatch):
    side_by_side._apart.cache_clear()
    monkeypatch.setattr(side_by_side.Path, "exists", lambda path: True)
    monkeypatch.setattr(side_by_side.Path, "read_text", lambda path: str(int(path.parts[5][3:]) // 2))
    assert side_by_side._apart((0, 1, 2, 3, 5)) == [0, 2, 5, 1, 3]
    side_by_side._apart.cache_clear()
