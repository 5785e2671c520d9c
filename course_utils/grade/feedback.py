"""Files to give back: one text for each submission, as its student reads it, and totals.csv for the lecturer."""

import csv
import textwrap
import unicodedata

from . import report, submissions
from .inbox import legible

COLUMNS = ("submission", "chapter", "passed", "of", "core_passed", "core_of", "note", "file")
TOTALS = "totals.csv"
_MOST = 60  # characters of a file's name: a file system takes 255 bytes


def write(folder, marked):
    """Write the files into a folder; `marked` is {name: [Verdict] or why it cannot be read}."""
    names = file_names(marked)
    for name, verdicts in marked.items():
        (folder / names[name]).write_text(text(name, verdicts), encoding="utf-8", errors="backslashreplace")
    # With a byte order mark, without which Excel takes it for another encoding.
    with (folder / TOTALS).open("w", encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*totals(name, verdicts), names[name]) for name, verdicts in marked.items())


def file_names(names):
    """Return {name: file name}; no system takes a name for a path, an option or a formula, or two names for the same.

    Some systems take `A` and `a` for the same.
    """
    found, taken = {}, set()
    for name in names:
        plain = "".join("_" if each in '<>:"/\\|?*' or not each.isprintable() else each for each in name)
        stem = unicodedata.normalize("NFC", plain).lstrip(" .-~'" + "".join(report.FORMULAS))[:_MOST].rstrip(" .")
        stem, number = f"{stem or 'unnamed'}_feedback", 1  # so that none is `con`, which Windows keeps for itself
        while (unique := stem if number == 1 else f"{stem}_{number}").casefold() in taken:
            number += 1
        taken.add(unique.casefold())
        found[name] = f"{unique}.txt"
    return found


def text(name, verdicts):
    """Return what a student is told of a submission."""
    if isinstance(verdicts, report.MarkersFault):
        return f"{legible(name)}\n\nThis file has not been marked yet; that is not your fault.\n"
    if isinstance(verdicts, str):
        return f"{legible(name)}\n\nThis file could not be marked. It {legible(verdicts)}.\n"
    core = _core(verdicts)
    _, chapter, passed, of, core_passed, core_of, note = totals(name, verdicts)
    of_core = f", {core_passed} of {core_of} of the core ones" if core_of else ""
    parts = [f"{legible(name)}\nChapter {chapter}: {passed} of {of} exercises passed{of_core}."]
    if note:
        parts[0] += f" {note}."
    for verdict in verdicts:
        kind = "core" if verdict.exercise in core else "further"
        head = f"Exercise {verdict.exercise} ({kind}): {report.MEANINGS[verdict.state]}"
        # What stands with a fault is about the marker.
        reason = "This says nothing about your answer." if verdict.state == "fault" else verdict.reason
        lines = [] if verdict.state == "open" else [legible(line.expandtabs(4)) for line in reason.splitlines()]
        parts.append("\n".join([head, textwrap.indent("\n".join(lines), "    ")]).rstrip())
    return "\n\n".join(parts) + "\n"


def totals(name, verdicts):
    """Return a submission's row of totals.csv, without its file."""
    if isinstance(verdicts, str):
        return (report.harmless(name), "", "", "", "", "", report.harmless(verdicts))
    core = [verdict for verdict in verdicts if verdict.exercise in _core(verdicts)]
    faults = sum(verdict.state == "fault" for verdict in verdicts)
    counts = [count for part in (verdicts, core) for count in (report.num_passed(part), len(part))]
    return (report.harmless(name), _chapter(verdicts), *counts, f"{faults} not judged" if faults else "")


def _chapter(verdicts):
    return verdicts[0].exercise.partition(".")[0].zfill(2)


def _core(verdicts):
    return submissions.chapters()[_chapter(verdicts)].core
