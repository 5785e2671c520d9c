"""The command python -m course_utils.doctor [--json]; its exit code is 1 if a check fails, else 0."""

import argparse
import json
import sys
import textwrap
import time
from dataclasses import asdict

from ..hardware.description import count
from ..processes.terminal import say
from . import FAIL, WARN, examine

WIDTH = 120


def main():
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.doctor", description="Check this machine before class."
    )
    parser.add_argument("--json", action="store_true", help="one object on the standard output, for programs")
    options = parser.parse_args()
    started = time.monotonic()
    lines = []
    for line in examine():
        lines.append(line)
        if not options.json:
            show(line)
    failed, warned = (sum(line.status == status for line in lines) for status in (FAIL, WARN))
    seconds = time.monotonic() - started
    if options.json:
        found = {
            "failed": failed,
            "warned": warned,
            "seconds": round(seconds, 2),
            "lines": [asdict(line) for line in lines],
        }
        say(json.dumps(found, indent=1))
    else:
        verdict = "ready for class" if not failed else "not ready for class"
        say(f"\n{verdict}: {len(lines)} lines, {failed} failed, {count(warned, 'warning')}; {seconds:.1f} s")
    sys.exit(bool(failed))


def show(line):
    said = f"{line.said}; {line.cure}" if line.cure else line.said
    head = f"{line.status:5s}{line.check:15s}"
    say(textwrap.fill(f"{head}{said}", WIDTH, subsequent_indent=" " * len(head), break_long_words=False))


if __name__ == "__main__":
    main()
