"""COURSE_QUICK=1: what is measured is shorter, said in one line, and not judged; what is counted is."""

import subprocess
import sys

import pytest

from tools import notebooks

CODE = """
from course_utils.measure.claims import claim, full
print(full(9, quick=1), full(range(5), quick=range(2)))
claim("two are faster", True)
claim("one is faster", False)
claim("4 bytes each", True, exact=True)
claim("5 bytes each", False, exact=True)
"""
SAID = "COURSE_QUICK=1: measurements are short here, and what they would have to show is not judged."


@pytest.mark.parametrize("value, said", [
    ("1", [SAID, "1 range(0, 2)", "→ not measured here: two are faster", "→ not measured here: one is faster",
           "→ 4 bytes each", "→ not on this machine: 5 bytes each"]),
    ("", ["9 range(0, 5)", "→ two are faster", "→ not on this machine: one is faster", "→ 4 bytes each",
          "→ not on this machine: 5 bytes each"]),
])  # fmt: skip
def test_what_a_chapter_measures_and_claims(monkeypatch, value, said):
    monkeypatch.setenv("COURSE_QUICK", value)
    done = subprocess.run([sys.executable, "-c", CODE], cwd=notebooks.ROOT, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines() == said, done.stderr
