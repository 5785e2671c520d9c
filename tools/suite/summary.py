"""The results of a run: a short summary, and all failures in build/tests/failures.txt."""

from collections import Counter

from tools.suite.bar import minutes
from tools.suite.followed import FOLDER, ROOT

FAILURES = FOLDER / "failures.txt"


def write_failures(first, again):
    """Write each failed test's output, from the first run and any second one; `first` is {test: text}."""
    FAILURES.unlink(missing_ok=True)
    for test, text in first.items():
        second = again.get(test)
        then = (
            "not run again" if second is None else "failed again:" if second[0] == "failed" else "passed when run again"
        )
        with FAILURES.open("a") as file:
            file.write(f"==== {test}\n\n{text}\n\n---- {then}\n{second[2] if second else ''}\n\n")


def lines(steps, failed, unsteady, wall_s, cpu_s):
    """The summary as lines; `steps` is {name: Found}, `failed` and `unsteady` are lists of tests."""
    tests = [each for found in steps.values() for each in found.tests.values()]
    outcomes = Counter(outcome for outcome, _, _ in tests)
    reasons = Counter(text for outcome, _, text in tests if outcome == "skipped")
    where = FAILURES.relative_to(ROOT)
    yield f"Took {minutes(wall_s)}, and {minutes(cpu_s)} of processor time: " + ", ".join(
        f"{name} {len(found.tests):,}" for name, found in steps.items() if found.tests
    )
    yield "Slowest: " + ", ".join(f"{test.partition('/')[2]} {took:.0f} s" for took, test in _slowest(steps))
    yield "Skipped: " + ("; ".join(f"{n} ({reason})" for reason, n in reasons.most_common()) or "nothing")
    if unsteady:
        yield f"UNSTEADY, each a defect to be mended (failed, then passed alone; see {where}): {', '.join(unsteady)}"
    else:
        yield "Unsteady: nothing"
    for test in failed:
        yield f"FAILED: {test} (see {where})"
    yield from (f"FAILED: {name}: {found.fault}" for name, found in steps.items() if found.fault)
    num_failed = len(failed) + sum(bool(found.fault) for found in steps.values())
    passed = outcomes["passed"] + len(unsteady)
    yield f"{passed} passed, {num_failed} failed, {outcomes['skipped']} skipped"


def _slowest(steps, number=4):
    took = [(seconds, test) for found in steps.values() for test, (_, seconds, _) in found.tests.items()]
    return sorted(took, reverse=True)[:number]
