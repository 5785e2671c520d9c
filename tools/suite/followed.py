"""Run pytest with a progress bar driven by its events; its output goes to a file in build/."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tools.suite import events
from tools.suite.bar import Bar

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "tests"
DURATIONS = ROOT / "build" / "durations"  # {test: seconds} of the last run


@dataclass
class Found:
    """The result of a step: {test: (outcome, seconds, text)}, and a text for faults outside its tests."""

    tests: dict = field(default_factory=dict)
    fault: str = ""

    def named(self, outcome):
        return {name: text for name, (found, _, text) in self.tests.items() if found == outcome}


def files_that_mark(mark):
    """The test files that use a pytest mark, sorted: pytest would import all others, too, to find its tests."""
    return [str(file) for file in sorted((ROOT / "tests").rglob("test_*.py")) if f"mark.{mark}" in file.read_text()]


def expected(name):
    """The seconds of each test in a step's last run, {test: seconds}; empty if there was none."""
    try:
        return json.loads((DURATIONS / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}


def run(name, command, keep=True, environment=None):
    """Run `python -m command`, which runs pytest with the plugin `events`; return Found.

    With `keep`, the tests' seconds are stored for the next run's bar.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    told, printed = FOLDER / f"{name}.jsonl", FOLDER / f"{name}.txt"
    told.write_text("")
    bar, found = Bar(name, expected(name)), Found()
    variables = os.environ | {events.FILE: str(told)} | (environment or {})
    with printed.open("w") as output, told.open() as lines:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _follow(process, lines, bar, found)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    bar.show(last=True)
    if process.returncode not in (0, 1, 5):  # passed, tests failed, none selected
        found.fault = f"pytest ended with {process.returncode}: {printed.relative_to(ROOT)} says why"
    elif process.returncode == 1 and not found.named("failed"):
        found.fault = f"no test failed, and yet something did: {printed.relative_to(ROOT)} says what"
    if keep and found.tests:
        DURATIONS.mkdir(parents=True, exist_ok=True)
        seconds = {test: took for test, (_, took, _) in found.tests.items()}
        (DURATIONS / f"{name}.json").write_text(json.dumps(seconds, indent=0))
    return found


def _follow(process, lines, bar, found):
    """Read the events as they come, until the process has ended and all are read."""
    ended = threading.Event()
    threading.Thread(target=lambda: (process.wait(), ended.set()), daemon=True).start()
    rest = ""
    while True:
        last = ended.wait(0.2)
        *whole, rest = (rest + lines.read()).split("\n")
        for line in whole:
            event = json.loads(line)
            if "total" in event:
                bar.expect(event["total"])
                continue
            found.tests[event["test"]] = event["outcome"], event["seconds"], event["text"]
            bar.add(event["test"], event["outcome"])
        bar.show()
        if last:
            return
