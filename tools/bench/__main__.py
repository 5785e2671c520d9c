"""How long a launch takes, what it costs, what clocking a step costs, and how quick our ring is: `make bench`, or

    python -m tools.bench [--print-seconds 120]

Everything is measured in one run and from live IPython kernels with the workers' functions defined in a cell, except
for `torch.multiprocessing.spawn` and `torchrun`, which need them in a file. Prints the tables and keeps the numbers in
data/recorded/<machine>/launch.json. It takes about ten minutes, on a machine that does nothing else.
"""

import argparse
import sys

from tools.bench import measurements
from tools.bench.bars import report
from tools.bench.kernel import CellFailed, Kernel
from tools.record import keeping


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Measure launch and what surrounds it.")
    parser.add_argument(
        "--print-seconds",
        type=float,
        default=measurements.Plan.print_s,
        metavar="S",
        help="how long workers print at full speed (default: %(default)s)",
    )
    plan = measurements.Plan(print_s=parser.parse_args(arguments).print_seconds)
    try:
        values = measure_all(plan)
    except (CellFailed, TimeoutError) as error:
        sys.exit(f"bench: a cell failed:\n{error}")
    report(values)
    print("kept in", keeping.save("launch", values, "make bench").relative_to(keeping.ROOT))


def measure_all(plan):
    values = {"first launch": measurements.first_launches(plan)}
    with Kernel() as kernel:
        kernel.cell("ways")
        values["latency"] = measurements.latency(kernel, plan)
        values["costs"] = measurements.costs(kernel, plan)
        values["throughput"] = measurements.throughput(kernel, plan)
        values["ring"] = measurements.ring(kernel, plan)
    values["watching"] = measurements.watching(plan)
    values["flood"] = measurements.flood(plan)
    values["in turn"] = measurements.in_turn(plan)
    return values


if __name__ == "__main__":
    main(sys.argv[1:])
