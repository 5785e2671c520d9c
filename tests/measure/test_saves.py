"""What a save costs the steps around it: every step is counted once, and the folder is left as it was."""

import math

import pytest

from course_utils import launch
from course_utils.measure import saves


def test_each_step_is_in_one_phase_and_nothing_is_left(tmp_path):
    found = launch(saves.step_times, str(tmp_path), 2, 2, 3, num_bytes=100_000, world_size=2)[0]
    assert tuple(found) == saves.WAYS and not list(tmp_path.iterdir())
    for way, rows in found.items():
        assert len(rows) == 2
        for row in rows:
            assert len(row["before"]) == 2 and len(row["during"]) + len(row["after"]) == 3
            assert 0 < row["save"] <= row["written"]
            assert way != "synchronous" or (row["save"] == row["written"] and not row["during"])


def test_what_was_lost_is_what_the_steps_would_not_have_taken():
    row = {"before": [1.0, 1.0], "save": 0.25, "during": [1.5, 1.25], "written": 3.0, "after": [1.0]}
    assert saves.lost_s(row) == 1.0
    assert saves.ratio([row, row | {"during": [1.5]}]) == 1.5
    assert math.isnan(saves.ratio([row | {"during": []}]))
    assert saves.lost_s(row | {"during": []}) == pytest.approx(0.25)
