"""The training program's arguments, and the checks that refuse wrong ones before anything is trained."""

import argparse
import math
import reprlib

from .. import hardware
from .places import Refused

STRATEGIES = {
    "single": "one process on one device",
    "dp": "DataParallel: one process, the batch cut over its GPUs",
    "ddp": "a replica in each process, gradients averaged",
    "fsdp": "parameters, gradients and optimizer state cut over the processes",
    "pipeline": "each process some of the layers, 1F1B",
    "tensor": "each process a part of each layer",
}
MODELS = {  # name: (height and width, channels) of its input images
    "digits": (16, 1),
    "lecture": (32, 3),
    "mlp": (16, 1),
    "transformer": (16, 1),
}
PRECISIONS = ("fp32", "bf16", "amp", "fp64")
_OF_ROWS = ("mlp", "transformer")  # sequences of layers, which a pipeline can cut
# What tensor parallelism divides: the features of the layers that it cuts, or the heads of attention.
_PARTS = {"digits": 64, "lecture": 120, "mlp": 512, "transformer": 4}


_LARGEST_WHOLE = 2**63 - 1  # torch takes larger seeds, but the epoch is added to it
_LARGEST = 3.4e38  # in float32
_YEAR_S = 365 * 24 * 3600  # torch's clocks count nanoseconds in 64 bits


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(f"{message}; --help explains every option")


def _whole(least):
    def whole(text):
        try:
            value = int(text) if text.isdecimal() else -1
        except ValueError:  # Python refuses to convert thousands of digits
            value = math.inf
        if value < least:
            raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not a whole number, {least} or more")
        if value > _LARGEST_WHOLE:
            raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is more than {_LARGEST_WHOLE}, the most there is")
        return value

    return whole


def _number(least, exclusive, most=_LARGEST):
    def number(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least < value < math.inf or value == least and not exclusive):
            wanted = f"above {least}" if exclusive else f"of {least} or more"
            raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not a number {wanted}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is more than {most:g}, the most there is")
        return value

    return number


def make_parser(description):
    """Return the training program's argparse parser."""
    parser = _Parser(
        "python -m course_utils.train",
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parser.add_argument_group("what is trained").add_argument)
    _add_rate(parser.add_argument_group("the learning rate").add_argument)
    _add_processes(parser.add_argument_group("several processes").add_argument)
    _add_files(parser.add_argument_group("what is kept").add_argument)
    return parser


def _add_what(about):
    how = "; ".join(f"{name}: {what}" for name, what in STRATEGIES.items())
    about("--strategy", choices=STRATEGIES, default="single", help=f"how the work is divided (default: single). {how}")
    about(
        "--model",
        choices=MODELS,
        default="digits",
        help="the network: digits and lecture are convolutional, mlp and transformer rows of equal blocks, which a "
        "pipeline can cut (default: digits)",
    )
    about(
        "--data",
        default="digits",
        metavar="NAME",
        help=(
            "the images: digits, which are bundled, or mnist, fashion_mnist or cifar10, which are read from the "
            "folder COURSE_DATA or downloaded (default: digits)"
        ),
    )
    about("--epochs", type=_whole(1), default=5, metavar="N", help="how often the images are gone through (default: 5)")
    about(
        "--batch-size",
        type=_whole(1),
        default=64,
        metavar="N",
        help=(
            "images in each step, of all processes together, so that any number of them computes the same (default: 64)"
        ),
    )
    about(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help=(
            "fp32: 32 bits everywhere; bf16: bfloat16 where autocast finds it safe; amp: float16 with a scaled loss "
            "on GPUs, bfloat16 on CPUs; fp64: for proofs that two ways compute the same (default: fp32)"
        ),
    )
    about("--seed", type=_whole(0), default=0, metavar="N", help="of the first weights and of the order (default: 0)")


def _add_rate(about):
    about(
        "--lr",
        type=_number(0, True),
        default=0.02,
        metavar="RATE",
        help="the rate for --base-batch images (default: 0.02)",
    )
    about(
        "--base-batch",
        type=_whole(1),
        default=64,
        metavar="N",
        help="for another batch size the rate is --lr × --batch-size / --base-batch: the linear rule (default: 64)",
    )
    about(
        "--warmup",
        type=_number(0, False),
        default=1.0,
        metavar="EPOCHS",
        help="a rate that the rule has raised is reached in a straight line from --lr, in so many epochs (default: 1)",
    )
    about("--fixed-lr", action="store_true", help="--lr whatever the batch size: neither rule nor warm-up")
    about("--momentum", type=_number(0, False), default=0.9, metavar="M", help="of SGD (default: 0.9)")


def _add_processes(about):
    about(
        "--replicas",
        type=_whole(1),
        default=1,
        metavar="R",
        help=(
            "with fsdp: the model is cut over 1/R of the processes and there are R replicas of it, as for R nodes: "
            "HSDP (default: 1)"
        ),
    )
    about(
        "--micro-batches",
        type=_whole(1),
        default=8,
        metavar="M",
        help="with pipeline: the parts of a batch that follow one another through the stages (default: 8)",
    )
    about(
        "--backend",
        choices=("auto", "nccl", "gloo"),
        default="auto",
        help="who carries the messages: auto takes NCCL where each process has a GPU of its own, otherwise gloo "
        "(default: auto)",
    )
    about(
        "--timeout",
        type=_number(1, False, most=_YEAR_S),
        default=300.0,
        metavar="SECONDS",
        help="how long a process waits for the others, at the start and in every message (default: 300)",
    )


def _add_files(about):
    about(
        "--checkpoint",
        metavar="DIR",
        help="keep the state of the run in this folder, which all nodes must see, after each epoch; the state before "
        "stays beside it, so that a kill at any moment loses nothing but steps",
    )
    about("--save-every", type=_whole(1), metavar="STEPS", help="save also after so many steps of an epoch")
    about(
        "--sharded",
        action="store_true",
        help="each process writes its own shards, into a new folder in DIR, while training goes on: for models that no "
        "single process could hold; a folder is complete once it has the file .metadata",
    )
    about(
        "--keep",
        type=_whole(1),
        metavar="N",
        help="with --sharded: how many complete checkpoints stay in DIR, older ones being removed (default: 2)",
    )
    about(
        "--save-mb-per-s",
        type=_number(0, True),
        metavar="MB",
        help="with --sharded: how fast each process writes while training goes on, so that it takes less of the cores, "
        "the disk and the network (default: as fast as it can)",
    )
    about(
        "--resume",
        nargs="?",
        const="always",
        choices=("always", "auto"),
        metavar="auto",
        help=(
            "go on from --checkpoint, to the same bits as without the interruption; nothing there is an error, or "
            "with `auto` the beginning of the run: for jobs that are started again (torchrun's restarted workers go "
            "on by themselves). `auto` also goes on with another number of processes, equal up to rounding. Where "
            "other rates, --momentum, --replicas or --micro-batches are given than before, they count from there on"
        ),
    )
    about(
        "--json",
        metavar="FILE",
        help="append the figures of each epoch to this file as a line of JSON; if the run was "
        "interrupted, an epoch may have two lines, of which the last counts",
    )


# Checks


def check(options, place):
    """Raise Refused if `options` contradict one another, or do not fit the number of processes."""
    world_size, batch_size, strategy = place.world_size, options.batch_size, options.strategy
    if strategy in ("single", "dp") and world_size > 1:
        raise Refused(
            f"--strategy {strategy} is one process, and {world_size} were started: start one, or choose another"
        )
    if strategy in ("ddp", "fsdp") and batch_size % world_size:
        raise Refused(
            f"--batch-size {batch_size} cannot be divided by {world_size} processes: choose a multiple of "
            f"{world_size}, such as {batch_size + -batch_size % world_size}"
        )
    if not options.fixed_lr and (rate := options.lr * batch_size / options.base_batch) > _LARGEST:
        raise Refused(
            f"--lr × --batch-size / --base-batch, the rate by the linear rule, is {rate:g}, more than a float32 holds: "
            "choose a smaller --lr"
        )
    if options.replicas > 1 and (strategy != "fsdp" or world_size % options.replicas):
        raise Refused(
            f"--replicas {options.replicas} is for --strategy fsdp and a number of processes that it divides; "
            f"here are --strategy {strategy} and {world_size}"
        )
    if strategy == "pipeline":
        _check_pipeline(options, world_size)
    if strategy == "tensor" and _PARTS[options.model] % world_size:
        raise Refused(
            f"--strategy tensor gives every process as much of a layer, but {world_size} processes cannot share "
            f"{_PARTS[options.model]} parts of --model {options.model} equally: start a number that divides it"
        )
    if strategy in ("pipeline", "tensor") and options.precision == "amp":
        raise Refused(
            "--precision amp skips a step in which a process finds an infinity, and with --strategy "
            f"{strategy} the others would not know: choose --precision bf16, where the loss is not scaled"
        )
    if options.data == "cifar10" and MODELS[options.model][1] == 1:
        raise Refused(
            f"--data cifar10 is in colour, and --model {options.model} takes grey images: choose --model lecture"
        )
    if options.keep and not options.sharded:
        raise Refused("--keep is for --sharded; without it, DIR holds the newest checkpoint and the one before")
    if options.save_mb_per_s and not options.sharded:
        raise Refused("--save-mb-per-s is for --sharded; without it, training waits for every checkpoint")
    for name in ("resume", "save_every", "sharded"):
        if getattr(options, name) and not options.checkpoint:
            raise Refused(f"--{name.replace('_', '-')} needs --checkpoint DIR, the folder in which the state is kept")


def _check_pipeline(options, world_size):
    num_layers = 6  # of both models: input, four blocks, output
    if options.model not in _OF_ROWS:
        raise Refused(
            f"--strategy pipeline cuts a row of layers, and --model {options.model} is none: choose --model "
            + " or ".join(_OF_ROWS)
        )
    if world_size > num_layers:
        raise Refused(
            f"--model {options.model} is a row of {num_layers} layers, too few for {world_size} stages: "
            f"start {num_layers} processes at most"
        )
    if options.batch_size % options.micro_batches or options.micro_batches < world_size:
        raise Refused(
            f"--micro-batches {options.micro_batches} must divide --batch-size {options.batch_size}, and be at "
            f"least the number of stages, {world_size}"
        )


def read(argv, place, description):
    """Return the options in `argv`, and a sentence that says what is wrong with them, or None."""
    parser = make_parser(description)
    try:
        options = parser.parse_args(argv)
        check(options, place)
        if options.backend == "nccl" and hardware.choose_backend(place.num_local).backend != "nccl":
            num_gpus = hardware.num_devices() if hardware.choose_backend(1).device_type == "cuda" else 0
            raise Refused(
                f"--backend nccl needs a GPU for each process, but this node runs {place.num_local} and has "
                f"{num_gpus} to use: start fewer, or leave --backend out"
            )
    except (Refused, ValueError) as fault:  # ValueError: a wrong COURSE_DEVICE
        return parser.parse_args([]), str(fault)
    return options, None
