"""A pytest plugin that writes a line of JSON for each test to the file that COURSE_TEST_EVENTS names.

    {"total": 2811}                                    tests that will run
    {"test": "tests/test_data.py::test_x", "outcome": "failed", "seconds": 0.4, "text": "the traceback"}

`outcome` is "passed", "failed" or "skipped"; for skipped tests `text` is the reason. A file that cannot be collected
counts as a failed test.
"""

import json
import os

FILE = "COURSE_TEST_EVENTS"


def pytest_configure(config):
    path = os.environ.pop(FILE, None)  # tests' own subprocesses must not inherit it
    if path is not None and not hasattr(config, "workerinput"):  # xdist's workers report to their controller
        config.pluginmanager.register(Events(path), "course-events")


class Events:
    """Writes the file."""

    def __init__(self, path):
        self._file, self._found = open(path, "a", buffering=1), {}

    def pytest_collection_finish(self, session):
        if session.items:  # under xdist, workers collect
            self._write(total=len(session.items))

    def pytest_xdist_node_collection_finished(self, node, ids):
        self._write(total=len(ids))

    def pytest_collectreport(self, report):
        if report.failed:
            self._write(test=report.nodeid, outcome="failed", seconds=0.0, text=report.longreprtext)

    def pytest_runtest_logreport(self, report):
        outcome, seconds, text = self._found.get(report.nodeid, ("passed", 0.0, ""))
        if report.failed:
            outcome, text = "failed", text + report.longreprtext + _printed(report)
        elif report.skipped and outcome != "failed":
            outcome, text = "skipped", _reason(report)
        self._found[report.nodeid] = outcome, seconds + report.duration, text
        if report.when not in ("setup", "call"):  # "teardown", or "???" if xdist's worker died
            outcome, seconds, text = self._found.pop(report.nodeid)
            self._write(test=report.nodeid, outcome=outcome, seconds=round(seconds, 3), text=text)

    def _write(self, **event):
        self._file.write(json.dumps(event) + "\n")


def _reason(report):
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else report.longreprtext


def _printed(report):
    return "".join(f"\n---- {title}\n{text}" for title, text in report.sections if text.strip())
