"""NCCL's own model of an all-reduce, as chapters 08 and 13 compute it by the constants of a version of NCCL."""

import pytest

from course_utils import reveal
from course_utils.measure.throughput import Timing
from tests.helpers.played_gpus import PlayedGpus
from tools import notebooks


def cell_with(chapter, text):
    (path,) = notebooks.notebook_paths([chapter])
    (source,) = [cell.source for cell in notebooks.read(path).cells if text in cell.source]
    return source


def estimates_of_08(machine, capsys):
    """The names of chapter 08's cell of estimates on a machine with GPUs, and what it prints."""
    (path,) = notebooks.notebook_paths(["08"])
    with PlayedGpus(machine):
        names = notebooks.definitions(path, ["WORLD_SIZE"])
        exec(cell_with("08", "def nccl_us("), names)
    return names, capsys.readouterr().out.splitlines()


def test_small_messages_in_nccl_2_16(capsys):
    names, _ = estimates_of_08("H200", capsys)
    assert names["nccl_us"](1, 8) == "ring 10.2 µs, tree 11.7 µs"  # a single node: no factor
    assert names["nccl_us"](64, 8) == "ring 1,101.8 µs, tree 77.5 µs"
    exec(cell_with("08", "published for two nodes of four H100s: 32"), names)
    assert "ring 19.2 µs, tree 20.0 µs" in capsys.readouterr().out


@pytest.mark.parametrize(("machine", "sizes"), [("V100", []), ("H200", []), ("8 A100", [2, 4])])
def test_estimates_are_printed_for_the_gpus_that_nccl_gets(machine, sizes, capsys):
    names, said = estimates_of_08(machine, capsys)
    small = {2: "ring 4.5 µs, tree 5.4 µs", 4: "ring 6.4 µs, tree 7.5 µs"}
    lines = [f"NCCL 2.16 would expect of {p} GPUs (NVLink), for a tiny tensor: {small[p]}" for p in sizes]
    assert (names["TEAMS"], said) == (sizes, lines)


def test_estimates_come_before_nccl_is_timed():
    (path,) = notebooks.notebook_paths(["08"])
    sources = [cell.source for cell in notebooks.read(path).cells]
    estimated, raced, timed = (
        next(i for i, source in enumerate(sources) if words in source)
        for words in ("TEAMS = [", "make_all_reduces, WAY_SIZES", "in TEAMS:  # measured")
    )
    assert estimated < raced and estimated < timed


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
