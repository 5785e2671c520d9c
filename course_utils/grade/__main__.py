"""Mark submitted notebooks.

    python -m course_utils.grade SUBMISSION … [--chapter 09] [--csv FILE] [--json FILE] [--feedback FOLDER]

A SUBMISSION is a notebook, or a folder with the notebooks of many students. The course's check judges each exercise.
Each submission runs in a process of its own, without network if the system allows that. The exit code is 1 if something
could not be judged, 130 after an interrupt, else 0.
"""

import argparse
import contextlib
import csv
import math
import os
import signal
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from ..hardware import gpus, num_cores
from ..processes import linux
from ..processes.terminal import say
from . import inbox, isolation, marking, report, submissions, written
from .process import Stopped

TO_STDOUT = Path("-")


def main(argv=None):
    options, parser = _options(argv)
    for stream in (sys.stdout, sys.stderr):  # names may have bytes or characters that cannot be printed
        stream.reconfigure(errors="backslashreplace")
    try:
        if options.chapter and options.chapter not in submissions.chapters():
            parser.error(f"there is no chapter {options.chapter!r}: take one of {', '.join(submissions.chapters())}")
        found = inbox.find(options.submissions)
    except FileNotFoundError as error:
        sys.exit(f"grade: {error}")
    before = set().union(*(written.submissions_in(path, parser) for path in options.marked_before))
    files = {}
    for kind in ("csv", "json"):
        if (path := getattr(options, kind)) and path != TO_STDOUT:
            and_the_rest = f"; to mark only what is not in it, add --except {path}" if kind == "csv" else ""
            files[kind] = written.open_new(path, parser, kind == "csv", and_the_rest)
    if options.feedback:
        written.make_new(options.feedback, parser)
    for _, path, why in (each for each in found if not each[0]):
        say(f"{inbox.legible(str(path))}: not looked at, {why}", _beside(options))
    named = [path for path in _paths(options) if path is not None]
    options.hidden = [*named, *(path for _, path, _ in found if not os.path.islink(path))]
    if "COURSE_CONTAINED" not in os.environ and not isolation.can_leave_files():  # set by tools/mark_in_containers.sh
        why = "this system hides no files from students' code: mark in a container, as docs/lecturers.md says"
        say(f"grade: {why}", sys.stderr)
    left = [each for each in found if each[0] and report.harmless(each[0]) not in before]
    is_interrupted, marked = mark_all(left, options, files.get("csv"))
    if "json" in files:
        files["json"].write(report.as_json(marked))
    for file in files.values():
        file.flush()
    if options.json == TO_STDOUT:
        print(report.as_json(marked), flush=True)
        not_judged = report.not_judged(marked)
    else:
        not_judged = written.tell(marked, options.feedback)
    if is_interrupted:
        rest = f"; --except {options.csv} leaves them out the next time" if options.csv else ""
        say(f"grade: interrupted; {len(marked)} submissions were marked before{rest}; exit code 130", sys.stderr)
    os._exit(130 if is_interrupted else bool(not_judged))


def _paths(options):
    return (*options.submissions, options.csv, options.json, options.feedback, *options.marked_before)


def _beside(options):
    """Return the stream for what is said while submissions are marked."""
    return sys.stderr if options.json == TO_STDOUT else sys.stdout


def _options(argv):
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.grade", description="Mark notebooks that were handed in."
    )
    parser.add_argument(
        "submissions", nargs="+", metavar="SUBMISSION", help="a notebook, or a folder with those of many students"
    )
    parser.add_argument("--chapter", metavar="09", help="refuse notebooks of other chapters")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a line for each exercise, written as they are judged")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the same for programs; - prints it, and no table")
    parser.add_argument(
        "--feedback", type=Path, metavar="FOLDER", help="a text for each submission to give back, and totals.csv"
    )
    parser.add_argument(
        "--except",
        type=Path,
        action="append",
        default=[],
        dest="marked_before",
        metavar="FILE",
        help="leave out the submissions in this CSV of an earlier run, as after an interrupt",
    )
    parser.add_argument(
        "--limit",
        type=_seconds,
        default=60,
        metavar="S",
        help="seconds for an exercise (%(default)s); each launch of its check gets a third of them, and at least 8",
    )
    parser.add_argument(
        "--jobs", type=_count, default=max(1, num_cores() // 2), metavar="N", help="submissions at a time (%(default)s)"
    )
    parser.add_argument(
        "--memory",
        type=_gibibytes,
        default=None if gpus() else 8,
        metavar="GIB",
        help="memory for each process of a submission (8; with a GPU, where this is untried, no limit)",
    )
    parser.add_argument("--network", action="store_true", help="let the students' code use the network")
    return parser.parse_args(argv), parser


def _seconds(text):
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0: take 60")
    return seconds


def _gibibytes(text):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number < 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GiB from 1 on, and torch needs 1: take 8")
    return number


def _count(text):
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of submissions from 1 to 1000: take 2")
    return int(text)


def mark_all(found, options, file=None):
    """Mark all submissions; return (whether it was interrupted, {name: [Verdict] or why it cannot be read}).

    The names are in the order of `found`. When a submission is marked, prints a line, which begins with how many are,
    and writes its rows to `file`.
    """
    linux.adopt_orphans()
    stop, stopping = os.pipe()
    writer = csv.writer(file, lineterminator="\n") if file else None
    if file:
        writer.writerow(report.COLUMNS)
        file.flush()
    marked, is_interrupted = {}, False
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    pool = ThreadPoolExecutor(options.jobs)
    try:
        waiting = {pool.submit(mark_one, path, why, options, stop): name for name, path, why in found}
        for future in as_completed(waiting):
            name, verdicts = waiting[future], future.result()
            marked[name] = verdicts
            try:
                if file:
                    writer.writerows(report.rows(name, verdicts))
                    file.flush()
                say(f"{len(marked)} of {len(found)}  {name}: {_in_short(verdicts)}", _beside(options))
            except OSError as error:  # a full disk: the table at the end shows it
                with contextlib.suppress(OSError):
                    say(f"grade: {name} cannot be written ({error.strerror}): see the table", sys.stderr)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # cleaning up takes seconds, and must finish
        os.close(stopping)
        pool.shutdown(cancel_futures=True)
        linux.kill_descendants()  # processes that escaped from their watching process
    return is_interrupted, {name: marked[name] for name, *_ in found if name in marked}


def mark_one(path, why, options, stop):
    """Return [Verdict] of a submission, or why it cannot be read; a bug of the marker fails only this submission."""
    if why:
        return why
    try:
        memory_bytes = None if options.memory is None else int(options.memory * 2**30)
        offline, hidden = not options.network, options.hidden
        return marking.mark(path, options.chapter, options.limit, offline, stop, hidden, memory_bytes)
    except submissions.Unreadable as error:
        return str(error)
    except Stopped:
        raise
    except Exception as error:
        traceback.print_exc()
        why = f"could not be marked, which is no fault of the student's ({type(error).__name__}: {error})"
        return report.MarkersFault(why)


def _in_short(verdicts):
    return verdicts if isinstance(verdicts, str) else f"{report.num_passed(verdicts)} of {len(verdicts)} passed"


if __name__ == "__main__":
    main()
