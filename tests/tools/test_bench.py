"""The benchmark still runs, with a little of everything, and judges what it measured by its bars. No test of times."""

from contextlib import nullcontext

import pytest

from tools.bench import machines, measurements
from tools.bench.__main__ import measure_all
from tools.bench.bars import Row, line, report
from tools.bench.kernel import CellFailed, Kernel

LITTLE = measurements.Plan(
    sizes=(2,), num_rounds=1, num_launches=1, num_new_kernels=1, num_trainings=1, train_repeats=1, reading_s=0,
    num_results=1, result_bytes=(1000, 1000), ring_sizes=(2,), ring_rounds=1, save_rounds=1, save_bytes=100_000,
    print_s=0.1, print_mb=1,
    kernels_in_turn=1, launches_in_turn=2, panel_sizes=(2,), panel_pairs=1, panel_window_s=0.3, panel_shown_s=0.5,
    num_calls=2, num_failures=1, failing_mib=4, log_s=0.2, recorder_launches=2, recorder_rounds=1, recorder_steps=2,
)  # fmt: skip


def test_a_little_of_everything(capsys, monkeypatch, tmp_path):
    """In one kernel, since each new one imports torch twice."""
    with Kernel(COURSE_SHARED="1", COURSE_LOCKS=str(tmp_path), TMPDIR=str(tmp_path)) as kernel:
        monkeypatch.setattr("tools.bench.measurements.Kernel", lambda **_: nullcontext(kernel))
        monkeypatch.setattr("tools.bench.__main__.Kernel", lambda: nullcontext(kernel))
        values = measure_all(LITTLE)
        with pytest.raises(CellFailed, match="ZeroDivisionError"):
            kernel("1 / 0")
    report(values)
    shown = capsys.readouterr().out
    for what in (
        "the second, right after it",
        "DDP step, 2 workers",
        "spawn over launch",
        "one DDP step (MB, largest)",
        "launch over torchrun",
        "ring over all_reduce",
        "asynchronous save returns, over synchronous",
        "with the panel over without, 2 workers",
        "a call on 4 persistent ranks",
        "%%ranks, 4 ranks",
        "a collective with torch's recorder, more",
        "DDP step with it over without",
        "a message with launch's note of it",
        "in its frames",
        "another notebook while 8 ranks log",
        "are printed in",
        "overtaken of 2 launches in line",
    ):
        assert what in shown
    assert "failed" not in shown and "nan" not in shown
    assert values["costs"]["share of 1 GB that arrived"] == 1
    assert values["flood"]["printed_mb"] >= 2
    assert all(asked <= begun <= over for asked, begun, over in values["in turn"])


@pytest.mark.parametrize(
    "row, ends",
    [
        (Row("seconds", 0.04, [0.03, 0.04, 0.5]), "≤ 0.04" + 13 * " " + "0.030–0.500"),
        (Row("seconds", 0.04, [0.03, 0.05, 0.5]), "≤ 0.04    NOT MET  0.030–0.500"),
        (Row("share", 0.8, [0.8], at_least=True), "≥ 0.8"),
        (Row("share", 0.8, [0.7], at_least=True), "≥ 0.8     NOT MET"),
        (Row("overtaken", 0, [0]), "≤ 0"),
        (Row("overtaken", 0, [1]), "≤ 0       NOT MET"),
        (Row("overtaken", 0, []), "≤ 0       NOT MET"),
    ],
)
def test_a_bar_that_is_missed_is_marked(row, ends):
    assert str(row).endswith(ends)


def test_who_waits_in_line():
    in_turn = [(0.0, 0.1, 1.0), (0.5, 1.1, 2.0), (0.6, 2.1, 3.0), (3.5, 3.6, 4.0)]
    overtaken, waits = line(in_turn)
    assert overtaken == 0 and waits == pytest.approx([0.1, 0.05, 0.2 / 3, 0.1])
    # Those that asked almost at once may begin in either order.
    assert line([(0.0, 0.5, 0.6), (0.01, 0.1, 0.4)])[0] == 0
    # The first asks again as soon as it is over and goes first twice more: the second waits for what nobody owes it.
    greedy = [(0.0, 0.0, 1.0), (0.5, 3.0, 4.0), (1.0, 1.0, 2.0), (2.0, 2.0, 3.0)]
    overtaken, waits = line(greedy)
    assert overtaken == 1 and waits[1] == pytest.approx((2.5 - 0.5) / 2)


def test_bars_beyond_one_machine_are_ratios_of_what_was_measured():
    values = {
        "agents": {"launch(on=Nodes(2))": [2, 1, 4], "torchrun, twice": [8, 10, 9]},
        "slurm": {"srun, an empty step": [1, 1], "first all-reduce": [4, 7], "result": [0.1, 2]},
        "program": {
            "images/s": {"launch": [90, 100, 110], "torchrun": [99], "Slurm": [94, 80, 95]},
            "bare loop's seconds over the program's": [0.99, 0.5, 1],
        },
        "kills": {
            "seconds to the next step": {"worker": [6, 7], "agent": [9, 12, 30]},
            "equal": True,
            "left running": 1,
        },
    }
    shown = [str(row) for row in machines.rows(values)]
    ratios = "0.222 4.500 1.050 0.940 1.010 6.500 12.000 1.000 1.000".split()
    met = (True, False, False, False, True, True, False, True, False)
    for found, ratio, is_met in zip(shown, ratios, met, strict=True):
        assert ratio in found and ("NOT MET" in found) != is_met, found
    assert "2 times a killed worker" in shown[5] and "3 times a killed agent" in shown[6]
