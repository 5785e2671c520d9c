"""Programs of the course and its tools where the locale has no UTF-8: a character may be lost, but nothing fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for folder in ("course_utils", "tools")
    for path in (ROOT / folder).rglob("*.py")
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
)


def run(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment | PLAIN, capture_output=True, timeout=200
    )


def test_what_a_terminal_lacks_is_a_question_mark():
    for package in ("course_utils", "tools"):
        code = f"import importlib\nimportlib.import_module({package!r})\nprint('3 \\xd7 4 \\u2212 1')"
        done = run("-c", code)
        assert (done.returncode, done.stdout) == (0, b"3 ? 4 ? 1\n"), done.stderr.decode()


def test_every_program_is_reached():
    """Each is run as `python -m`, so each begins with its package."""
    assert {"course_utils.doctor", "course_utils.grade", "tools.suite", "tools.site"} <= {*PROGRAMS}
    assert all((ROOT / name.split(".")[0] / "__init__.py").exists() for name in PROGRAMS)


@pytest.mark.parametrize("program", ["course_utils.doctor", "course_utils.planner.published"])
def test_a_program_prints_all_its_lines(program):
    done = run("-m", program)
    assert b"UnicodeEncodeError" not in done.stdout + done.stderr
    assert b"ready for class: " in done.stdout or b"median error" in done.stdout, done.stderr.decode()


def test_a_batch_file_is_the_same_in_every_locale(tmp_path):
    program = tmp_path / "träin.py"
    program.touch()
    done = run("-m", "course_utils.slurm", "ddp", "--program", str(program))
    assert done.returncode == 0 and "träin.py".encode() in done.stdout, done.stderr.decode()


@pytest.mark.parametrize("program", ["doctor", "doctor --json", "grade"])
def test_nobody_reads_on(program, tmp_path):
    """As after `| head -1`: no traceback, and the exit code is what it would have been."""
    (tmp_path / "empty.ipynb").touch()
    name, *options = program.split()
    command = [sys.executable, "-m", f"course_utils.{name}", *options, *([str(tmp_path)] if name == "grade" else [])]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=200)
    os.close(writing)
    assert b"BrokenPipeError" not in done.stderr and b"Traceback" not in done.stderr
    assert done.returncode == 1 if name == "grade" else done.returncode in (0, 1)
