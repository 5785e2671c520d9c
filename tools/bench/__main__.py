"""Measure the time and cost of a launch, the cost of clocking a step, and the speed of our ring: `make bench`.

    python -m tools.bench [--print-seconds 120]

Everything is measured in one run, from live IPython kernels whose cells define the workers' functions, except for
`torch.multiprocessing.spawn` and `torchrun`, which need a file. Prints the tables and writes the numbers to
data/recorded/<machine>/launch.json. Takes about ten minutes on an idle machine.
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
        values["saving"] = measurements.saving(kernel, plan)
    values["watching"] = measurements.watching(plan)
    values["flood"] = measurements.flood(plan)
    values["in turn"] = measurements.in_turn(plan)
    return values


if __name__ == "__main__":
    main(sys.argv[1:])
