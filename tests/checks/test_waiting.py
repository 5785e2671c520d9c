"""What a notebook shows while a check takes long, and what an interrupt of it says."""

import re

import pytest

SETUP = """
from course_utils import check
open_gate = os.path.abspath("gate")
def wait_for_gate(*args):
    while not os.path.exists(open_gate): pass
"""


@pytest.fixture
def watched(seen_notebook):
    gate = seen_notebook.directory / "gate"
    gate.unlink(missing_ok=True)
    seen_notebook.run(SETUP)
    yield seen_notebook
    gate.unlink(missing_ok=True)


def test_a_check_that_takes_long_says_so_until_its_verdict(watched):
    gate = watched.directory / "gate"
    watched.run("import course_utils.checks.waiting as of_checks\nof_checks._has_checked = False")
    for is_first in (True, False):
        cell = watched.start("check('9.2', wait_for_gate)")
        outcome = watched.wait(cell, on_display=lambda text: gate.touch() if text.startswith("checking") else None)
        line, verdict = outcome.values
        assert re.match(r"checking exercise 9\.2: \d+ s; ■ stops it\.", line)
        assert ("its workers have PyTorch to import" in line) == is_first
        assert (outcome.updates[-1], outcome.moved[-1][1]) == ("", "")
        assert verdict.startswith("✗ Exercise 9.2")
        assert not outcome.stdout
        gate.unlink()


def test_a_quick_check_shows_its_verdict_alone(watched):
    (watched.directory / "gate").touch()
    watched.run("check('9.2', wait_for_gate)")
    outcome = watched.run("check('9.2', wait_for_gate)")
    assert len(outcome.values) == 1 and not outcome.updates


def test_where_nobody_looks_no_line_is_shown(watched):
    """As while a notebook is recorded or tested."""
    watched.run("os.environ['COURSE_PANEL'] = '0'\nfrom course_utils.checks import judge\n"
                "usual, judge.DEADLINE_S = judge.DEADLINE_S, 4")  # fmt: skip
    try:
        outcome = watched.run("check('9.2', wait_for_gate)")
        assert "no end after 4 s" in outcome.values[0]
        assert len(outcome.values) == 1 and not outcome.updates
    finally:
        watched.run("os.environ['COURSE_PANEL'] = '1'\njudge.DEADLINE_S = usual")


def test_an_interrupt_names_the_check_and_says_where_the_answer_was(watched):
    cell = watched.start("check('9.2', wait_for_gate)")
    outcome = watched.wait(cell, on_display=lambda text: watched.interrupt() if text.startswith("checking") else None)
    assert outcome.error == "Interrupted"
    head, _, where = outcome.message.partition("\n\n")
    assert head == "the check of exercise 9.2 was interrupted"
    assert re.match(r"ranks? \d.* (was|were) (in \w+ )?at Cell In\[\d+\], line 4, in wait_for_gate:", where), where
    assert "latest_run" not in outcome.message and "_until_it_returns" not in outcome.shown
    assert outcome.updates[-1] == ""
