"""Puts together what containers said of the notebooks of a folder: see tools/mark_in_containers.sh.

    python -m course_utils.grade.collected INBOX SAID [--csv FILE] [--feedback FOLDER] [--try]

SAID holds the marker's JSON for each notebook that lies in INBOX itself, under its name and .json. What else was handed
in is named as not judged. The exit code is 1 if something was not judged.
"""

import argparse
import csv
import json
import sys
from pathlib import Path

from . import inbox, report, submissions, written
from .marking import Verdict

_FIELDS = {"exercise": str, "state": str, "reason": str, "seconds": (int, float)}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m course_utils.grade.collected")
    parser.add_argument("inbox", type=Path)
    parser.add_argument("said", type=Path)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a line for each exercise")
    parser.add_argument("--feedback", type=Path, metavar="FOLDER", help="a text for each submission, and totals.csv")
    parser.add_argument("--try", action="store_true", dest="is_try", help="only see whether these can be made")
    options = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="backslashreplace")
    rest = ", and put what is not in it into a folder of its own"
    file = written.open_new(options.csv, parser, is_for_excel=True, and_the_rest=rest) if options.csv else None
    if options.is_try and file:
        file.close()
        options.csv.unlink()
    if options.feedback:
        written.make_new(options.feedback, parser)
    if options.is_try:
        return
    found = [(name, path, why) for name, path, why in inbox.find([options.inbox]) if name]
    marked = {name: why or of_container(path, options) for name, path, why in found}
    if file:
        rows = [row for name, verdicts in marked.items() for row in report.rows(name, verdicts)]
        csv.writer(file, lineterminator="\n").writerows([report.COLUMNS, *rows])
        file.close()
    sys.exit(bool(written.tell(marked, options.feedback)))


def of_container(path, options):
    """Return [Verdict] of the notebook at `path`, or why there are none."""
    if path.parent != options.inbox:
        return "lies in a folder: only what lies in the inbox itself is marked in containers"
    try:
        (said,) = json.loads((options.said / f"{path.name}.json").read_text(encoding="utf-8"))["submissions"]
        if "unreadable" not in said:
            return [verdict(each) for each in said["exercises"]]
        return (report.MarkersFault if said["is_fault"] else str)(said["unreadable"])
    except (OSError, ValueError, KeyError, TypeError):  # also what a submission may have written in its place
        why = "could not be marked, which is no fault of the student's: its container's own lines say why"
        return report.MarkersFault(why)


def verdict(said):
    """Return the Verdict of {field: value}; raises ValueError for what the marker would not say."""
    exercises = {number for chapter in submissions.chapters().values() for number in chapter.stubs}
    is_right = all(isinstance(said[name], kind) for name, kind in _FIELDS.items())
    if not is_right or said["state"] not in report.SIGNS or said["exercise"] not in exercises:
        raise ValueError("no verdict of the marker's")
    return Verdict(**{name: said[name] for name in _FIELDS})


if __name__ == "__main__":
    main()
