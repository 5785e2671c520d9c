"""Run everything that CI runs many times under load, and print how often each test failed.

    python -m tools.suite.steady [N] [--busy 2] [STEP ...]

N is 10 by default. The load is processes that only compute. Each run's output is kept in build/steady/. The exit code
is 1 unless every run was green.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import time
from collections import Counter

from tools.suite.bar import minutes
from tools.suite.followed import FOLDER, ROOT

KEPT = ROOT / "build" / "steady"
COMPUTE = "while True: sum(range(100_000))"


@contextlib.contextmanager
def load(number):
    """Run `number` processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", COMPUTE]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_once(number, steps):
    """Run the suite; return (is it green, its last lines, the tests that failed at first)."""
    begin_s = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "tools.suite", *steps], cwd=ROOT, text=True, stdout=subprocess.PIPE)
    folder = KEPT / str(number)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(FOLDER, folder)
    (folder / "printed.txt").write_text(done.stdout)
    failures = folder / "failures.txt"
    heads = failures.read_text().splitlines() if failures.exists() else []
    failed = [line.removeprefix("==== ") for line in heads if line.startswith("==== ")]
    lines = done.stdout.strip().splitlines()
    print(f"run {number}: {lines[-1] if lines else 'nothing was printed'}, {minutes(time.monotonic() - begin_s)}")
    for test in failed:
        print(f"    failed at first: {test}")
    return done.returncode == 0, failed


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tools.suite.steady", description="Run the suite many times.")
    parser.add_argument("runs", type=int, nargs="?", default=10, metavar="N", help="how often (%(default)s)")
    parser.add_argument("--busy", type=int, default=2, metavar="N", help="processes of load (%(default)s)")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="of the suite; all by default")
    options = parser.parse_args(argv)
    with load(options.busy):
        found = [run_once(number, options.steps) for number in range(1, options.runs + 1)]
    unsteady = Counter(test for _, failed in found for test in failed)
    num_green = sum(is_green for is_green, _ in found)
    print(f"\n{num_green} of {options.runs} runs were green, beside {options.busy} busy processes")
    for test, times in unsteady.most_common():
        print(f"{times:3d} of {options.runs}: {test}")
    sys.exit(num_green < options.runs)


if __name__ == "__main__":
    main()
