"""What a command that marks prints at its end, and the files and folders that it makes."""

import csv
import sys

from ..processes.terminal import say
from . import feedback, report


def tell(marked, folder=None):
    """Print what was found, and write the feedback into `folder`; return the names of what was not judged."""
    say(f"\n{report.tables(marked, report.signs_for(sys.stdout.encoding))}\n\n{report.reasons(marked)}".rstrip())
    if folder:
        feedback.write(folder, marked)
        say(f"\n{folder} has a text for each submission, and {feedback.TOTALS}.")
    not_judged = report.not_judged(marked)
    if not_judged:
        say(f"\nNot judged, so that the exit code is not 0: {', '.join(not_judged)}")
    return not_judged


def open_new(path, parser, is_for_excel, and_the_rest=""):
    """Return a new text file at `path`, open; ends with the parser's error if there is one, or none can be made.

    Where there is one, `and_the_rest` says how to mark only what is not in it.
    """
    try:
        # Excel reads UTF-8 only after a byte order mark; the readers of JSON do not expect one.
        encoding = "utf-8-sig" if is_for_excel else "utf-8"
        return path.open("x", encoding=encoding, errors="backslashreplace", newline="")
    except FileExistsError:
        parser.error(f"{path} is there already, and nothing is written over: name another file{and_the_rest}")
    except OSError as error:
        parser.error(f"{path} cannot be written ({error.strerror}): name a file in a folder that is there")


def submissions_in(path, parser):
    """Return the set of submissions in the CSV of an earlier run; ends with the parser's error if it is none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != report.COLUMNS:
                parser.error(f"{path} is no table that --csv has written: name one as it was written")
            return {row["submission"] for row in reader}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        parser.error(f"{path} cannot be read ({error}): name a file that --csv has written")


def make_new(folder, parser):
    """Make an empty folder, which may be there; ends with the parser's error if it is not empty, or cannot be made."""
    try:
        folder.mkdir(exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        parser.error(f"{folder} cannot be made ({error.strerror}): name a folder in one that is there")
    if not is_empty:
        parser.error(f"{folder} is not empty, and nothing is written over: name a new folder")
