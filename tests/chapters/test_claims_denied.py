"""What a claim prints where it fails is true too: the sentence says what is compared, no more.

A claim is the notebook's own, evaluated with numbers that a machine could have measured.
"""

import ast

import pytest

from course_utils.measure import claims
from tools import notebooks

DENIED = "→ not on this machine: "


def the_claim(chapter, words, names):
    """Run the one claim of the chapter whose source has these words, and the assignment of `text` or `words` above."""
    (path,) = notebooks.notebook_paths([chapter])
    (cell,) = (cell for cell in notebooks.read(path).cells if cell.cell_type == "code" and words in cell.source)
    for node in ast.walk(ast.parse(cell.source)):
        source = ast.get_source_segment(cell.source, node) if isinstance(node, (ast.Assign, ast.Expr)) else None
        if source and (source.startswith(("text = ", "words = ")) or source.startswith("claim(") and words in source):
            exec(source, names)


@pytest.mark.parametrize(
    ("chapter", "words", "found", "said"),
    [
        # A machine with one free core, a Python without the lock.
        ("05", "two devices are {found", {"found": 1.1, "BATCHES": (4, 16, 64), "small": [0.3]},
         "Heavy layers, 64 images: two devices are 1.10 times as fast as one, over 1.3."),
        ("05", "times with small layers, below", {"of_heavy": 2.0, "of_small": 2.0, "apart": 2.0},
         "Against one by one, threads are 2.00 times as fast with heavy layers, over 1.3, and 2.00 times with "
         "small layers, below 1.25; processes 2.00 times, over 1.5."),
        ("03", "over a tenth faster", {"kept": 100.0, "returned": 100.0, "before": 100.0},
         "With batch 256, keeping memory is over a tenth faster: 100 images/s, not 100."),
        # A copy that takes half as long as the layers: the claim is true, and nothing is denied.
        ("06", "than for the copy", {"layers": 2.0, "copy": 1.0}, None),
        ("06", "than for the copy", {"layers": 1.0, "copy": 2.0},
         "Device 1 waits longer for device 0's layers than for the copy."),
        ("06", "At once takes less", {"at_once": 72.7, "apart": 72.9},
         "At once takes less than nine tenths of the time: 72.7 ms, one after the other 72.9 ms."),
        ("06", "of one device's time", {"ms": {"GPipe": 129.0}, "one_device_ms": 130.0},
         "GPipe on two devices takes less than nine tenths of one device's time: 129 ms, not 130 ms."),
        ("06", "saves over 15 %", {"saved": {"equal stages, scaled parts": 0.12}},
         "With equal stages and scaled parts ZB-H1 saves over 15 % of 1F1B's step: 12.0%."),
        # A gain too small for a bar that the sentence did not name.
        ("04", "Rung 4 lowers the peak", {"peak": {"3": 50, "4 mixed precision": 48}, "third": "3"}, None),
        ("04", "This one pass saves", {"pool_ms": 4.0, "step_ms": 10.0},
         "This one pass saves over half of what rung 5 saves in a step: 4.0 and 10.0 ms."),
        ("04", "less than four fifths of the time", {"compiled_s": 0.024, "written_s": 0.027},
         "Compiled, the function takes less than four fifths of the time: 24.0 and 27.0 ms."),
        ("03", "With no model at all", {"alone": {2: 1000, 64: 1100}}, None),
        ("01", "It learns", {"first": 2.0, "last": 1.5}, None),
        ("07", "the forgetful network is worse", {"on_one": 1.1, "on_four": 1.0}, None),
        # Staleness that costs nothing, and workers that wait for one another although none is slow.
        ("14", "From delay 0 to 9", {"best": [(0.2, 1.0), (0.1, 0.5)]},
         "From delay 0 to 9, the best length becomes 4 or more times shorter (1, 0.5); from each delay to the next, "
         "the lowest loss rises (0.20, 0.10)."),
        ("14", "not waiting gains less", {"gains": [3.0], "ratios": [2.0], "median": max},
         "Among equals, not waiting gains less in every round (3.00 times as many steps, 3.00 to 3.00) than in any "
         "with worker 4 slow (2.00, 2.00 to 2.00)."),
        ("01", "less than four times as long", {"one": 1.0, "sixteen": 5.0},
         "On the host, 16 KiB, 16 times the bytes of 1 KiB, take less than four times as long: 5.0 µs and 1.0 µs."),
        ("04", "less than a fifth as much", {"rounding": 0.3, "batch": 1.0},
         "16 bits change the gradient less than a fifth as much as another batch does: by 30.0% and 100%."),
    ],
)  # fmt: skip
def test_a_denial_is_true(chapter, words, found, said, monkeypatch, capsys):
    monkeypatch.setattr(claims, "is_quick", lambda: False)
    the_claim(chapter, words, {"claim": claims.claim, **found})
    printed = capsys.readouterr().out.strip()
    assert printed == f"{DENIED}{said}" if said else printed.startswith(claims.HERE) and DENIED not in printed
