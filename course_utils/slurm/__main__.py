"""Write a batch file for Slurm that runs the course's training program, or your own, on one node or many.

    python -m course_utils.slurm dp                                       DataParallel: one process, a node's GPUs
    python -m course_utils.slurm ddp --gpus-per-node 4                    DDP on one node
    python -m course_utils.slurm ddp --nodes 2 --gpus-per-node 4          DDP on several nodes
    python -m course_utils.slurm fsdp --nodes 2 -- --epochs 10            FSDP; what follows -- goes to the program
    python -m course_utils.slurm hsdp --nodes 2                           FSDP inside a node, replicas across nodes
    python -m course_utils.slurm ddp --nodes 2 --program my_train.py      the same for a program of your own
    python -m course_utils.slurm fsdp --program long_run.py --resumes -- FOLDER      that goes on when started again
    python -m course_utils.slurm ddp --workers-per-node 4                        workers on CPU cores

Programs of other frameworks, with the Python that `make elsewhere` installs for them:

    python -m course_utils.slurm mirrored --program my_train.py                  TensorFlow, the GPUs of one node
    python -m course_utils.slurm multiworker --nodes 2 --program my_train.py     TensorFlow on several nodes
    python -m course_utils.slurm horovod --nodes 3 --gpus-per-node 4 --program my_train.py       Horovod

The file goes to the standard output: `… > job.sbatch`, then `sbatch job.sbatch`. Its comments say what to change on
your own cluster.
"""

import argparse
import contextlib
import os
import sys

from . import CPUS_PER_GPU, TITLES, Job


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"slurm: {message}\n")


def _number(text):
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def parser():
    made = _Parser(
        "python -m course_utils.slurm",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("strategy", help=f"one of {', '.join(TITLES)}")
    made.add_argument("--nodes", type=_number, default=1, metavar="N", help="machines (1)")
    made.add_argument("--gpus-per-node", type=_number, metavar="G",
                      help="GPUs of each, with a worker for each (2; 0 if --workers-per-node is given)")  # fmt: skip
    made.add_argument("--workers-per-node", type=_number, metavar="W", help="workers of each node, without GPUs (2)")
    made.add_argument(
        "--cpus-per-task", type=_number, metavar="C", help=f"CPUs of each node ({CPUS_PER_GPU} a GPU, or 1 a worker)"
    )
    made.add_argument("--time", default="01:00:00", metavar="HH:MM:SS", help="the job is ended after it (01:00:00)")
    made.add_argument("--partition", metavar="P", help="the part of the cluster to run on; `sinfo -s` lists them")
    made.add_argument("--account", metavar="A", help="the project that pays, where the cluster asks for one")
    made.add_argument("--name", help="the job's name, with which its output's begins (the strategy)")
    made.add_argument("--program", metavar="FILE", help="a program of your own, in place of course_utils.train")
    made.add_argument(
        "--resumes",
        action="store_true",
        help="your program goes on from its own checkpoint, and ends soon after SIGTERM: before its time is over "
        "the job is put back into the queue, and workers that fail are started again",
    )
    return made


def main(argv=None):
    argv = sys.argv[1:] if argv is None else list(argv)
    end = argv.index("--") if "--" in argv else len(argv)
    options = parser().parse_args(argv[:end])
    try:
        job = Job(**vars(options), arguments=tuple(argv[end + 1 :]))
    except ValueError as error:
        parser().error(str(error))
    if job.program and not os.path.exists(job.program):
        print(
            f"slurm: {job.program} is not here: the job looks for it in the folder where sbatch is run", file=sys.stderr
        )
    with contextlib.suppress(AttributeError):  # UTF-8 in any locale; undecodable names as given
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    print(job, end="")


if __name__ == "__main__":
    main()
