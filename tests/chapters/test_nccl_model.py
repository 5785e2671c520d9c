"""NCCL's own model of an all-reduce, as chapters 08 and 13 compute it by the constants of a version of NCCL."""

import pytest

from course_utils import reveal
from course_utils.measure.throughput import Timing
from tools import notebooks


def cell_with(chapter, text):
    (path,) = notebooks.notebook_paths([chapter])
    (source,) = [cell.source for cell in notebooks.read(path).cells if text in cell.source]
    return source


def test_small_messages_in_nccl_2_16(capsys):
    exec(cell_with("08", "by_tree = "), {})
    one, many = capsys.readouterr().out.splitlines()
    assert "ring    10.2 µs, tree 11.7 µs" in one  # a single node: no factor
    assert "ring 1,101.8 µs, tree 77.5 µs" in many


def test_a_ring_of_two_nodes_in_nccl_2_27():
    names = {"my_ms": None, "reveal": reveal}
    exec(cell_with("13", "def ring_s("), names)
    rate = 2 * 7 / 8 * 2**34 / 127_660e-6  # published, at 16 GiB
    assert names["ring_s"](2**20, 2, 8, rate) == pytest.approx(116e-6, rel=0.005)
    assert names["ring_s"](2**20, 2, 8, rate, names["AMD"]) == pytest.approx(160e-6, rel=0.005)
    assert names["ring_s"](0, 1, 8, rate, names["AMD"]) == pytest.approx((8.4 + 14 * 3.4) * 1e-6)


def test_what_is_timed_with_nccl_is_predicted_too(capsys):
    """Chapter 08's table has a block for each backend that was fitted."""
    (path,) = notebooks.notebook_paths(["08"])
    names = notebooks.definitions(path, ["WORLD_SIZE", "KIB", "MIB"])
    names["WAYS"] = dict.fromkeys(["through rank 0", "tree", "doubling", "ring"])
    names["BACKENDS"] = {"gloo": "gloo on the CPU", "nccl": "NCCL on GPUs"}
    sizes = names["KIB"] * 4, names["MIB"] * 16
    names["lines"] = {"gloo": (1e-3, 1e-9), "nccl": (1e-5, 1e-11)}
    found = {(way, n): Timing((0.001, 0.003, 0.005)) for way in names["WAYS"] for n in sizes}
    names["times"] = dict.fromkeys(names["BACKENDS"], found)
    exec(cell_with("08", "def predict_ms("), names)
    said = capsys.readouterr().out.splitlines()
    (at,) = (i for i, line in enumerate(said) if line.startswith("4 KiB, NCCL on GPUs:"))
    assert said[at + 4].split()[:2] == ["ring", "0.06"]  # six steps of 10 µs
    assert said[0].startswith("4 KiB, gloo on the CPU:")
    assert said[4].split()[:5] == ["ring", "6.01", "6.01", "3.00", "(2.00–4.00)"]
