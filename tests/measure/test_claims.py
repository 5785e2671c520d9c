"""COURSE_QUICK=1: what is measured is shorter, said in one line, and not judged; what is counted is."""

import ast
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


# How a sentence may state a number to which its claim compares.
WORDS = {2: ("twice", "double"), 5: ("fifth",), 0.25: ("quarter",), 1e-6: ("millionth",), 1: ("",), 0: ("",)}


def thresholds(condition):
    """The numbers in a condition: what something is compared with, a factor; not an index."""
    inside = {
        id(each) for index in ast.walk(condition) if isinstance(index, ast.Subscript) for each in ast.walk(index.slice)
    }
    numbers = [node for node in ast.walk(condition) if isinstance(node, ast.Constant) and id(node) not in inside]
    return {node.value for node in numbers if isinstance(node.value, (int, float)) and not isinstance(node.value, bool)}


def is_said(number, text):
    as_percent = f"{100 * number:g}"
    said = (f"{number:g}", str(number), f"{as_percent}%", f"{as_percent} %", *WORDS.get(number, ()))
    return any(each in text for each in said)


def test_a_denial_is_judged_by_what_the_sentence_says():
    """What a claim compares with stands in its sentence: else "not on this machine" would deny what is true."""
    found = []
    for path in notebooks.notebook_paths(["08", "09", "10", "11", "12", "13", "14", "15", "19"]):
        for cell in notebooks.read(path).cells:
            if cell.cell_type != "code":
                continue
            for call in ast.walk(ast.parse(notebooks.of_notebook(cell.source))):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "claim" and not call.keywords:
                    text = ast.unparse(call.args[0])
                    found += [
                        (path.stem[:2], number, text)
                        for number in thresholds(call.args[1])
                        if not is_said(number, text)
                    ]
    assert not found
