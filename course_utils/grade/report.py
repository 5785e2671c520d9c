"""What came of all submissions: a table, CSV, JSON."""

import csv
import io
import json
import textwrap

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


def num_passed(verdicts):
    return sum(verdict.state == "passed" for verdict in verdicts)


def tables(marked):
    """A table for each chapter. `marked`: {name: [Verdict]}, or {name: why it cannot be read}."""
    chapters, unreadable = {}, []
    for name, verdicts in marked.items():
        if isinstance(verdicts, str):
            unreadable.append(f"{name}: {verdicts}")
        else:
            chapters.setdefault(int(verdicts[0].exercise.partition(".")[0]), {})[name] = verdicts
    found = [table(chapters[number]) for number in sorted(chapters)]
    return "\n\n".join([*found, *(["\n".join(unreadable)] if unreadable else [])])


def table(marked):
    """`marked`: {name: [Verdict]} of one chapter; a column for each exercise."""
    exercises = [verdict.exercise for verdict in next(iter(marked.values()))]
    width = max([len("submission"), *map(len, marked)]) + 2
    lines = ["".join(["submission".ljust(width), *(f"{number:>6s}" for number in exercises), "   passed"])]
    for name, verdicts in marked.items():
        signs = "".join(f"{SIGNS[verdict.state]:>6s}" for verdict in verdicts)
        lines.append(f"{name.ljust(width)}{signs}   {num_passed(verdicts)} of {len(verdicts)}")
    used = {verdict.state for verdicts in marked.values() for verdict in verdicts}
    return "\n".join([*lines, "", "   ".join(f"{SIGNS[state]} {MEANINGS[state]}" for state in SIGNS if state in used)])


def reasons(marked):
    """Why each exercise did not pass, a paragraph each."""
    paragraphs = []
    for name, verdicts in marked.items():
        for verdict in verdicts if not isinstance(verdicts, str) else ():
            if verdict.state not in ("passed", "open"):
                head = f"{name}  {verdict.exercise}  {MEANINGS[verdict.state]}: "
                paragraphs.append(
                    textwrap.fill(head + " ".join(verdict.reason.split())[:500], WIDTH, subsequent_indent="    ")
                )
    return "\n".join(paragraphs)


def as_csv(marked):
    """A line per exercise, and one per submission that cannot be read."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["submission", "exercise", "passed", "state", "reason", "seconds"])
    for name, verdicts in marked.items():
        if isinstance(verdicts, str):
            writer.writerow([harmless(name), "", "", "unreadable", harmless(verdicts), ""])
            continue
        for verdict in verdicts:
            passed = "" if verdict.state == "fault" else int(verdict.state == "passed")
            writer.writerow(
                [harmless(name), verdict.exercise, passed, verdict.state, harmless(verdict.reason), verdict.seconds]
            )
    return text.getvalue()


def harmless(text):
    """A text that a spreadsheet takes for no formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def as_json(marked):
    submissions = [
        {"submission": name, "unreadable": verdicts}
        if isinstance(verdicts, str)
        else {
            "submission": name,
            "passed": num_passed(verdicts),
            "exercises": [vars(verdict) for verdict in verdicts],
        }
        for name, verdicts in marked.items()
    ]
    return json.dumps({"submissions": submissions}, indent=1, ensure_ascii=False) + "\n"
