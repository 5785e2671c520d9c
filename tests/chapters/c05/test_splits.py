"""Chapter 05's counts and timings: three ways to split, what DataParallel's devices hold, and the parts of a step."""

import time
from concurrent.futures import ThreadPoolExecutor

import matplotlib
import pytest
import torch
from torch import nn

from course_utils.chapters.c05_data_parallelism import account, device_zero, figures, splits
from course_utils.measure import memory
from course_utils.models import LectureNet

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
    assert large.held == 4 * splits.one_device(16).held
    assert "2.88 MB" in splits.table(64, splits.compare(64, 4, layers=(1, 1, 1, 2)))


def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 1000))


def test_device_0_holds_the_optimizers_state_and_all_outputs_besides():
    zero, other = device_zero.count(wide, 64, 4, numbers_kept=2)
    weights = 4 * (3072 * 16 + 16 + 16 * 1000 + 1000)
    assert (zero["weights"], zero["optimizer state"]) == (weights, 2 * weights)
    assert "optimizer state" not in other
    assert other["outputs, loss"] == 4 * 16 * 1000
    assert zero["outputs, loss"] - other["outputs, loss"] >= 2 * 4 * 64 * 1000


def test_remedies_spread_outputs_then_state():
    cases = device_zero.remedies("wide", wide, 64, 4)
    (zero, other), (half, _), (spread, spread_other), (each, each_other) = cases.values()
    assert half["weights"] == zero["weights"] and 2 * half["outputs, loss"] == pytest.approx(
        zero["outputs, loss"], rel=1e-4
    )
    assert spread["outputs, loss"] == spread_other["outputs, loss"] < zero["outputs, loss"]
    assert each == each_other == spread
    assert len(device_zero.table(cases).splitlines()) == 5
    held = device_zero.by_device(zero, other, 4)
    assert list(held) == ["device 0", "device 1", "device 2", "device 3"]
    assert held["device 3"] == {part: num_bytes / 1e6 for part, num_bytes in other.items()}
    assert "count stands alone" in device_zero.measured(None, wide, 64, num_gpus=1)


def spin(_):
    begin = time.thread_time()
    while time.thread_time() < begin + 0.02:
        pass


@pytest.mark.alone
def test_every_second_of_a_step_is_put_down_to_a_cause():
    def step(each):
        with each("messages"):
            time.sleep(0.01)
        with each.threads() as watch, ThreadPoolExecutor(2) as threads:
            list(threads.map(watch(spin), [0, 1]))
        with each("messages"):
            time.sleep(0.01)

    begin = time.perf_counter()
    found = account.typical(step, repeats=1, warmup=0)
    in_all = time.perf_counter() - begin
    assert list(found.seconds) == ["messages", account.COMPUTING, account.WAITING, account.STARTING]
    assert found.seconds["messages"] >= 0.02
    assert 0.02 <= found.seconds[account.COMPUTING] < 0.03
    assert found.seconds[account.WAITING] > 0.01  # one interpreter, two threads in Python
    assert found.total_s <= in_all
    assert sum(found.milliseconds.values()) == pytest.approx(1e3 * found.total_s)
    assert "+0.00" in account.compared(found, found).splitlines()[-1]


@pytest.mark.parametrize(
    ("draw", "texts"),
    [
        (figures.three_ways, ["by layers", "inside layers", "by data", "layer 3"]),
        (figures.data_parallel_step, ["part 0", "part 1", "sum\n$g_0 + g_1$"]),
    ],
)
def test_what_is_drawn_of_a_split(draw, texts, shown, capsys):
    draw("What is to be seen.")
    assert set(texts) <= {text.get_text() for text in shown[0].axes[0].texts}
    assert "What is to be seen." in capsys.readouterr().out
