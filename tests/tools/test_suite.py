"""`python -m tools.suite`, in a checkout of its own with a handful of tests: what is run twice, and what is said."""

import os
import shutil
import subprocess
import sys

from tools import notebooks

TESTS = """
import os
from pathlib import Path
import pytest

def test_fine(): pass

def test_unsteady():
    marker = Path(__file__).with_name("marker")
    was_here = marker.exists()
    marker.touch()
    assert was_here, "the weather"

def test_skipped(): pytest.skip("needs a moon: build one")

def test_beside(): assert "PYTEST_XDIST_WORKER" in os.environ

@pytest.mark.alone
def test_alone(): assert "PYTEST_XDIST_WORKER" not in os.environ
"""
BROKEN = "\ndef test_broken(): assert 6 * 7 == 43, 'no reason'\n"


def run_suite(folder, tests):
    shutil.copytree(notebooks.ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    (folder / "tests" / "test_sample.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    command = [sys.executable, "-m", "tools.suite", "tests", "alone"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COURSE_TEST_EVENTS"))}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
    return done.returncode, done.stdout.splitlines(), done.stdout + done.stderr


def test_what_passes_when_run_again_is_unsteady_and_green(tmp_path):
    status, lines, said = run_suite(tmp_path, TESTS)
    assert status == 0, said
    assert lines[-1] == "4 passed, 0 failed, 1 skipped"
    assert "UNSTEADY" in lines[-2] and lines[-2].endswith("): tests/test_sample.py::test_unsteady")
    assert lines[-3] == "Skipped: 1 (needs a moon: build one)"
    assert any(line.startswith("tests     [########################] 4 of 4, 1 failed, ") for line in lines), said
    failures = (tmp_path / "build" / "tests" / "failures.txt").read_text()
    assert "the weather" in failures and "passed when run again" in failures
    assert "test_fine" in (tmp_path / "build" / "durations" / "tests.json").read_text()


def test_what_fails_twice_has_failed(tmp_path):
    status, lines, said = run_suite(tmp_path, TESTS + BROKEN)
    assert status == 1, said
    assert lines[-1] == "4 passed, 1 failed, 1 skipped"
    assert lines[-2].startswith("FAILED: tests/test_sample.py::test_broken (see ")
    assert (tmp_path / "build" / "tests" / "failures.txt").read_text().count("no reason") >= 2


def test_a_file_that_cannot_be_collected_has_failed(tmp_path):
    status, lines, said = run_suite(tmp_path, "import nothing_of_the_kind\n")
    assert status == 1, said
    assert lines[-1].startswith("0 passed, ") and not lines[-1].startswith("0 passed, 0 failed")
