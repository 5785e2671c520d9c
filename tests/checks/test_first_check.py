import pytest

from course_utils import checks


@pytest.fixture
def said(monkeypatch):
    """What is printed while checks of a kernel that has just started run."""
    lines = []
    monkeypatch.setattr(checks, "_has_checked", False)
    monkeypatch.setattr(checks, "is_watched", lambda: True)
    monkeypatch.setattr(checks, "shows_values", lambda: True)  # else the result is printed, too
    monkeypatch.setattr(checks, "print", lines.append, raising=False)
    return lines


def _takes(lines):
    def check(answer):
        """Take until a line has been printed."""
        while not lines:
            pass
        return "right"

    return lambda exercise: check


def test_a_first_check_that_takes_long_is_explained_once(said, monkeypatch):
    monkeypatch.setattr(checks, "_find", _takes(said))
    monkeypatch.setattr(checks, "_FIRST_S", 0)
    assert checks.check("9.2", None).state == "passed"
    assert said == [checks._MOMENT]
    assert checks.check("9.2", None).state == "passed"
    assert said == [checks._MOMENT]


def test_a_first_check_that_is_quick_is_not(said, monkeypatch):
    monkeypatch.setattr(checks, "_find", lambda exercise: lambda answer: "right")
    monkeypatch.setattr(checks, "_FIRST_S", 60)
    checks.check("9.2", None)
    assert said == []
