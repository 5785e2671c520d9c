"""The results of all submissions, as tables, CSV and JSON."""

import json
import textwrap

from .inbox import legible

FORMULAS = tuple("=+-@\t\r＝＋－＠")  # with which a formula begins, in full width, too
SIGNS = {
    "passed": "✓",
    "wrong": "✗",
    "open": "○",
    "missing": "–",
    "endless": "∞",
    "ended": "†",
    "tampered": "!",
    "fault": "?",
}
MEANINGS = {
    "passed": "passed",
    "wrong": "wrong",
    "open": "not attempted",
    "missing": "no cell has it",
    "endless": "did not end",
    "ended": "ended its process",
    "tampered": "replaced what verdicts rest on",
    "fault": "not judged",
}
WIDTH = 120
_MOST, _MOST_LINES = 500, 20  # of a reason on the screen: characters of a line, lines


PLAIN_SIGNS = dict(zip(SIGNS, "+xo-~e!?", strict=True))  # for a terminal without UTF-8


class MarkersFault(str):
    """Why a submission was not judged, if the marking failed, and not the submission; told to the lecturer."""


def signs_for(encoding):
    """Return signs that a terminal with this encoding can show."""
    try:
        "".join(SIGNS.values()).encode(encoding)
        return SIGNS
    except UnicodeEncodeError:
        return PLAIN_SIGNS


def num_passed(verdicts):
    return sum(verdict.state == "passed" for verdict in verdicts)


def tables(marked, shown=SIGNS):
    """Return a table for each chapter, as text; `marked` is {name: [Verdict] or why it cannot be read}."""
    chapters, unreadable = {}, []
    for name, verdicts in marked.items():
        if isinstance(verdicts, str):
            unreadable.append(f"{name}: {verdicts}")
        else:
            chapters.setdefault(int(verdicts[0].exercise.partition(".")[0]), {})[name] = verdicts
    found = [table(chapters[number], shown) for number in sorted(chapters)]
    return "\n\n".join([*found, *(["\n".join(unreadable)] if unreadable else [])])


def table(marked, shown=SIGNS):
    """Return the table of one chapter, with a column for each exercise; `marked` is {name: [Verdict]}."""
    exercises = [verdict.exercise for verdict in next(iter(marked.values()))]
    width = max([len("submission"), *map(len, marked)]) + 2
    lines = ["".join(["submission".ljust(width), *(f"{number:>6s}" for number in exercises), "   passed"])]
    for name, verdicts in marked.items():
        signs = "".join(f"{shown[verdict.state]:>6s}" for verdict in verdicts)
        lines.append(f"{name.ljust(width)}{signs}   {num_passed(verdicts)} of {len(verdicts)}")
    used = {verdict.state for verdicts in marked.values() for verdict in verdicts}
    return "\n".join([*lines, "", "   ".join(f"{shown[state]} {MEANINGS[state]}" for state in SIGNS if state in used)])


def reasons(marked):
    """Return a paragraph for each exercise that did not pass, with the reason, whose lines are kept."""
    paragraphs = []
    for name, verdicts in marked.items():
        for verdict in verdicts if not isinstance(verdicts, str) else ():
            if verdict.state not in ("passed", "open"):
                head = f"{name}  {verdict.exercise}  {MEANINGS[verdict.state]}: "
                first, *rest = _shown_lines(verdict.reason)
                paragraphs += [_filled(head + first), *(_filled(f"    {line}") for line in rest)]
    return "\n".join(paragraphs)


def _shown_lines(reason):
    """Return the beginning of a reason as lines that can be printed, without empty ones."""
    lines = [legible(line.expandtabs(4).rstrip()) for line in reason.splitlines() if line.strip()] or [""]
    shown = [line if len(line) <= _MOST else f"{line[:_MOST]} …" for line in lines[:_MOST_LINES]]
    return shown + ["…"] * (len(lines) > _MOST_LINES)


def _filled(line):
    indent = "    " + line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def not_judged(marked):
    """Return the names of submissions that were not judged, with the exercises if it is only some."""
    found = []
    for name, verdicts in marked.items():
        faults = () if isinstance(verdicts, str) else [each.exercise for each in verdicts if each.state == "fault"]
        if isinstance(verdicts, str) or faults:
            found.append(f"{name} ({', '.join(faults)})" if faults else name)
    return found


COLUMNS = ("submission", "exercise", "passed", "state", "reason", "seconds")


def rows(name, verdicts):
    """Return a submission's rows of the CSV: one per exercise, or one that says why it cannot be read."""
    if isinstance(verdicts, str):
        return [(harmless(name), "", "", "unreadable", harmless(verdicts), "")]
    found = []
    for verdict in verdicts:
        passed = "" if verdict.state == "fault" else int(verdict.state == "passed")
        found.append(
            (harmless(name), verdict.exercise, passed, verdict.state, harmless(_lines(verdict.reason)), verdict.seconds)
        )
    return found


def harmless(text):
    """Return `text` with a quote before it if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.lstrip(" \n\"'")[:1] in FORMULAS else text


def _lines(text):
    """Return a text of several lines in which all else that is not printed is escaped."""
    return "\n".join(map(legible, text.splitlines()))


def as_json(marked):
    submissions = [
        {"submission": name, "unreadable": verdicts, "is_fault": isinstance(verdicts, MarkersFault)}
        if isinstance(verdicts, str)
        else {
            "submission": name,
            "passed": num_passed(verdicts),
            "exercises": [vars(verdict) for verdict in verdicts],
        }
        for name, verdicts in marked.items()
    ]
    return json.dumps({"submissions": submissions}, indent=1, ensure_ascii=False) + "\n"
