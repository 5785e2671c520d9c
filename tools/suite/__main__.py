"""Run everything that CI runs, and print a summary.

    python -m tools.suite [--full] [STEP ...]

The steps, in order: style; tests; notebooks (with their solutions); and alone, the tests with time limits, one at a
time. Without --full the notebooks' measurements are as short as possible.

A failed test is run once more, alone. If it passes then, the run is green and names it as unsteady. This keeps daily
work going, but an unsteady test is a defect to be fixed.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import time

from tools.suite import followed, summary
from tools.suite.followed import ROOT

AT_A_TIME = "3"  # tests or chapters at once, on two cores: most of one's time is waiting
MOST_RUN_AGAIN = 20  # if more fail, it is no coincidence
PYTEST = ("pytest", "-p", "tools.suite.events", "-p", "no:nbval")  # nbval takes 2 s to import in each process


def style(options):
    ruff = [sys.executable, "-m", "ruff"]
    done = [subprocess.run([*ruff, *how, "--quiet"], cwd=ROOT) for how in (["check"], ["format", "--check"])]
    fault = "run `.venv/bin/ruff check` and `.venv/bin/ruff format`" if any(each.returncode for each in done) else ""
    return followed.Found(fault=fault)


def tests(options):
    return followed.run("tests", [*PYTEST, "-n", AT_A_TIME, "--dist", "worksteal", "-m", "not alone", "tests"])


def notebooks(options):
    return followed.run("notebooks", ["tools.solved", "--at-a-time", AT_A_TIME], environment=_length(options))


def alone(options):
    return followed.run("alone", [*PYTEST, "-m", "alone", *followed.files_that_mark("alone")])


STEPS = {each.__name__: each for each in (style, tests, notebooks, alone)}


def run_again(name, names, options):
    """Run the failed tests of a step once more, one at a time; return Found."""
    if name == "notebooks":  # a cell needs the cells before it
        chapters = sorted({test.partition("::")[0] for test in names})
        return followed.run("again", ["tools.solved", *chapters], keep=False, environment=_length(options))
    chosen = followed.FOLDER / "again.args"
    chosen.write_text("\n".join(names))
    return followed.run("again", [*PYTEST, f"@{chosen}"], keep=False)


def _length(options):
    return {"COURSE_QUICK": "" if options.full else "1"}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tools.suite", description="Run everything that CI runs.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all by default")
    parser.add_argument("--full", action="store_true", help="measure at full length in the notebooks, as readers do")
    options = parser.parse_args(argv)
    if unknown := set(options.steps) - STEPS.keys():
        parser.error(f"no step is called {', '.join(sorted(unknown))}: there are {', '.join(STEPS)}")
    begin_s = time.monotonic()
    # A shell makes background jobs ignore Ctrl-C, and programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Otherwise thousands of workers would each compile the course's modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    steps = {name: STEPS[name](options) for name in options.steps or STEPS}
    first, again = {}, {}
    for name, found in steps.items():
        failed = found.named("failed")
        first |= failed
        if failed and len(failed) <= MOST_RUN_AGAIN:
            second = run_again(name, list(failed), options)
            found.fault = found.fault or second.fault
            again |= second.tests
    summary.write_failures(first, again)
    unsteady = [test for test in first if again.get(test, ("failed",))[0] == "passed"]
    lasting = [test for test in first if test not in unsteady]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print()
    for line in summary.lines(steps, lasting, unsteady, time.monotonic() - begin_s, used.ru_utime + used.ru_stime):
        print(line, flush=True)
    sys.exit(bool(lasting or any(found.fault for found in steps.values())))


if __name__ == "__main__":
    main()
