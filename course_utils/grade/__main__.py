"""Mark notebooks that were handed in:

    python -m course_utils.grade SUBMISSION … [--chapter 09] [--csv FILE] [--json FILE]

A SUBMISSION is a notebook, or a folder with the notebooks of many students. Each exercise is judged by the course's
check, each submission in a process of its own, without the network where the system allows that. The exit code is 1
where something could not be judged, else 0.
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..hardware import num_cores
from . import marking, report, submissions


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.grade", description="Mark notebooks that were handed in."
    )
    parser.add_argument(
        "submissions", nargs="+", metavar="SUBMISSION", help="a notebook, or a folder with those of many students"
    )
    parser.add_argument("--chapter", metavar="09", help="refuse notebooks of other chapters")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a line for each exercise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the same for programs")
    parser.add_argument("--limit", type=float, default=60, metavar="S", help="seconds for an exercise (%(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=max(1, num_cores() // 2), metavar="N", help="submissions at a time (%(default)s)"
    )
    parser.add_argument("--network", action="store_true", help="let the students' code use the network")
    options = parser.parse_args(argv)
    try:
        if options.chapter and options.chapter not in submissions.chapters():
            parser.error(f"there is no chapter {options.chapter!r}: take one of {', '.join(submissions.chapters())}")
        for file in filter(None, (options.csv, options.json)):
            if file.exists():
                parser.error(f"{file} is there already: name another file, or move it away")
        found = submissions.find(options.submissions)
    except FileNotFoundError as error:
        sys.exit(f"grade: {error}")
    try:
        marked = mark_all(found, options)
    except KeyboardInterrupt:
        os.write(2, b"\ngrade: interrupted\n")
        os._exit(130)
    print(f"\n{report.tables(marked)}\n\n{report.reasons(marked)}".rstrip())
    for file, text in ((options.csv, report.as_csv(marked)), (options.json, report.as_json(marked))):
        if file:
            file.write_text(text, encoding="utf-8")
    sys.exit(
        any(
            isinstance(verdicts, str) or any(verdict.state == "fault" for verdict in verdicts)
            for verdicts in marked.values()
        )
    )


def mark_all(found, options):
    """{name: [Verdict], or why it cannot be read}, in the order of `found`; says of each when it is done."""

    def mark_one(item):
        name, path = item
        try:
            submission = submissions.read(name, path, options.chapter)
            verdicts = marking.mark(submission, options.limit, offline=not options.network)
            done = f"{report.num_passed(verdicts)} of {len(verdicts)} passed"
        except submissions.Unreadable as error:
            verdicts = done = str(error)
        print(f"{name}: {done}", flush=True)
        return name, verdicts

    with ThreadPoolExecutor(options.jobs) as pool:
        return dict(pool.map(mark_one, found))


if __name__ == "__main__":
    main()
