"""The training program: all strategies match one process, killed runs resume bit for bit, and errors are one sentence.

Workers come from `launch`, which starts them in a tenth of a second. Command-line tests run in a fork of a worker, and
once as a reader would run it: a Python that imports torch takes two seconds.
"""

import argparse
import contextlib
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import termios
import traceback
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from course_utils import WorkerError, checkpoint, hardware, launch, log, models, train
from course_utils.data import batches, load_images
from course_utils.train import program, strategies
from course_utils.train.options import _PARTS, MODELS, make_parser
from course_utils.train.places import Place, Refused, find_place
from tests.helpers.machines import H200
from tests.helpers.played_gpus import PlayedGpus, played
from tests.helpers.refusals import refusals
from tests.helpers.run_program import OF_RANKS, update_as_on_gpus

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ("-m", "course_utils.train")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
EXACT = {"rtol": 1e-9, "atol": 1e-12}  # for float64
SHORT = ("--epochs", "1", "--batch-size", "480", "--lr", "0.01")  # two steps, the first at a lower rate


def run(*command, **settings):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, **settings)


def run_forked(
    *arguments, program="from course_utils.train.program import program; program()", world_size=1, stderr=None
):
    """Run the text `program` in forks of workers and return how they ended, as a list.

    There is one fork without ranks, or several as torchrun starts them. `stderr` is the path of a device for errors.
    """

    def fork():
        with tempfile.TemporaryDirectory() as folder:
            paths = [f"{folder}/out", f"{folder}/err"]
            if not (child := os.fork()):
                try:
                    run_here(*paths)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                os._exit(99)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said = [Path(path).read_text() if os.path.exists(path) else None for path in paths]
            return code, *said

    def run_here(out, err):
        for fd, path in ((1, out), (2, stderr or err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), fd)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
        sys.argv = ["train", *map(str, arguments)]
        for name in OF_RANKS if world_size == 1 else ():
            del os.environ[name]
        log.__globals__["_channel"] = None  # as in a process that no launch has started
        exec(program, {})

    results = launch(fork, world_size=world_size, backend=None)
    return [subprocess.CompletedProcess(arguments, *result) for result in results]


def state_in(folder):
    """(the parameters, the momentum of each) in a checkpoint folder, whole tensors by name."""
    values = checkpoint.load(Path(folder) / "last.pt")
    optimizer = values["optimizer"]["state"]
    return values["model"], {name: state["momentum_buffer"] for name, state in optimizer.items()}


def train_in_ranks(*cases):
    """In workers: train once for each list of arguments; return what `main` returned."""
    update_as_on_gpus()
    return [train.main(case) for case in cases]


# ---- The same parameters


@pytest.fixture(scope="module")
def truths(tmp_path_factory):
    """{model: (figures, parameters, momentum)} of one process on one device, after one epoch in float64."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in OF_RANKS:
            patch.delenv(name, raising=False)
        patch.setenv("COURSE_DEVICE", "cpu")
        for model in MODELS:
            if model != "lecture":
                folder = tmp_path_factory.mktemp(model)
                options = [*SHORT, "--model", model, "--precision", "fp64", "--checkpoint", str(folder)]
                found[model] = train.main(options), *state_in(folder)
    return found


def test_one_process_computes_what_a_loop_by_hand_does(truths):
    digits = load_images("digits", size=16)
    torch.manual_seed(0)
    model = models.DigitsNet().double()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    losses = []
    # The linear rule: 480 images are 7.5 times 64. Warm-up: one epoch, of two steps.
    for rate, (x, y) in zip(
        [0.01 + 0.065 / 2, 0.075], batches(digits.images.double(), digits.labels, 480), strict=False
    ):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        losses.append(F.cross_entropy(model(x), y))
        losses[-1].backward()
        optimizer.step()
    figures, parameters, _ = truths["digits"]
    torch.testing.assert_close(parameters, dict(model.state_dict()), **EXACT)
    assert figures["loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-9)
    test = load_images("digits", train=False, size=16)
    right = (model(test.images.double()).argmax(1) == test.labels).sum().item()
    assert figures["accuracy"] == right / len(test) and figures["learning_rate"] == pytest.approx(0.075)


CASES = {  # by number of ranks: (model, arguments)
    2: [
        ("digits", ["ddp"]),
        ("digits", ["fsdp"]),
        ("digits", ["tensor"]),
        ("mlp", ["pipeline"]),
        ("mlp", ["tensor"]),
        ("transformer", ["tensor"]),
    ],
    4: [("digits", ["fsdp", "--replicas", "2"]), ("mlp", ["pipeline", "--micro-batches", "4"])],
}


@pytest.mark.parametrize("world_size", CASES)
def test_every_strategy_ends_where_one_process_does(world_size, truths, tmp_path):
    cases = [
        [*SHORT, "--model", model, "--precision", "fp64", "--strategy", *how, "--checkpoint", str(tmp_path / str(i))]
        for i, (model, how) in enumerate(CASES[world_size])
    ]
    results = launch(train_in_ranks, *cases, world_size=world_size)
    assert all(result == results[0] for result in results)  # every rank returns the same figures
    for i, ((model, _), figures) in enumerate(zip(CASES[world_size], results[0], strict=True)):
        truth, *state = truths[model]
        for ours, theirs in zip(state_in(tmp_path / str(i)), state, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)
        assert figures["loss"] == pytest.approx(truth["loss"], rel=1e-9) and figures["accuracy"] == truth["accuracy"]


def test_lower_precisions_stay_near(truths):
    cases = [[*SHORT, "--model", "mlp", "--precision", precision, "--strategy", strategy]
             for precision, strategy in (("fp32", "ddp"), ("bf16", "fsdp"), ("amp", "ddp"), ("bf16", "pipeline"),
                                         ("bf16", "tensor"))]  # fmt: skip
    run = launch(train_in_ranks, *cases, world_size=2)
    losses = [figures["loss"] for figures in run[0]]
    assert losses[0] == pytest.approx(truths["mlp"][0]["loss"], rel=1e-6)
    assert losses[1:] == pytest.approx([losses[0]] * 4, rel=1e-2)
    assert losses[0] not in losses[1:]  # they do round
    assert "--precision amp: on CPUs bfloat16" in run.logs[0] and "--precision amp" not in run.logs[1]


@pytest.mark.parametrize(("precision", "has_tf32"), [("fp32", False), ("amp", True)])
def test_on_a_gpu_float32_is_not_rounded_to_tf32(precision, has_tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's default
    options = make_parser("").parse_args(["--precision", precision])
    with PlayedGpus("T4"):
        assert program.start(options, Place()).device.type == "cuda"
        assert torch.backends.cudnn.allow_tf32 == has_tf32


def test_models_are_cut_as_the_options_believe(truths):
    rows = models.mlp(), models.transformer()
    assert [len(row) for row in rows] == [6, 6]  # what _check_pipeline counts on
    # each stage has something to train
    assert all(any(True for _ in layer.parameters()) for row in rows for layer in row)
    assert _PARTS["mlp"] == rows[0][1][0].out_features == rows[0][1][2].in_features
    assert _PARTS["transformer"] == rows[1][1].attention.q.out_features // rows[1][1].attention.head_dim
    for name, net in (("digits", models.DigitsNet()), ("lecture", models.LectureNet())):
        assert _PARTS[name] == net.fc1.out_features == net.fc2.in_features
    assert [sum(p.numel() for p in row.parameters()) for row in rows] == [561_034, 202_314]


@pytest.mark.parametrize(
    "given, rates",
    [
        (["--batch-size", "64"], [0.02] * 3),
        (["--batch-size", "256", "--warmup", "0"], [0.08] * 3),
        (["--batch-size", "256", "--warmup", "0.4"], [0.05, 0.08, 0.08]),  # 0.4 of 5 steps
        (["--batch-size", "256", "--base-batch", "128", "--warmup", "1"], [0.024, 0.028, 0.032]),
        (["--batch-size", "256", "--fixed-lr"], [0.02] * 3),
        (["--batch-size", "32", "--lr", "0.1"], [0.05] * 3),  # a smaller batch begins at its own rate
    ],
)
def test_the_learning_rate_follows_the_linear_rule(given, rates):
    options = make_parser("").parse_args(given)
    digits = load_images("digits", size=16)
    made = train.program.Run(options, Place(), torch.device("cpu"), digits, digits)
    assert [made.rate_at(step) for step in range(3)] == pytest.approx(rates)


# ---- Killed and resumed

INTERRUPTED = ("--epochs", "2", "--batch-size", "96", "--model", "mlp", "--save-every", "4")
# Kills one rank in the middle of the second epoch, as an operator's kill -9 or a lost node would, and always at the
# same
# step: a kill from outside would strike now before the first checkpoint, now after the last.
KILLED = """
import os, signal, sys
from course_utils.train import program
learn, calls = program.{kind}.learn, []
def learn_until_killed(self, x, y):
    calls.append(None)
    begun_before = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if len(calls) == 21 and int(os.environ.get("RANK", 0)) == {rank} and not begun_before:
        os.kill(os.getpid(), signal.SIGKILL)
    return learn(self, x, y)
program.{kind}.learn = learn_until_killed
program.program()
"""


def without_clocks(figures):
    return {name: value for name, value in figures.items() if not re.search("images_per_s|peak", name)}


def lines_of(file):
    """The last line of each epoch, without what a clock or the system says."""
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    return {line["epoch"]: without_clocks(line) for line in lines}


def assert_same_end(folder, whole):
    """To the last bit: parameters, momentum, and what was written for each epoch."""
    for ours, theirs in zip(state_in(folder), state_in(whole), strict=True):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert lines_of(folder / "figures") == lines_of(whole / "figures") != {}


def keep_in(folder):
    return ["--checkpoint", str(folder), "--json", str(folder / "figures")]


def test_a_killed_process_goes_on_to_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    train.main([*INTERRUPTED, *keep_in(whole)])
    arguments = [*INTERRUPTED, *keep_in(killed), "--resume", "auto"]  # nothing is there: it begins
    (done,) = run_forked(*arguments, program=KILLED.format(kind="EndToEnd", rank=0))
    assert done.returncode == -signal.SIGKILL, done.stderr
    saved = checkpoint.load(killed / "last.pt")
    assert (saved["epoch"], saved["step"]) == (1, 4)  # the 20th step was the 6th of epoch 1
    train.main([*INTERRUPTED, *keep_in(killed), "--resume"])
    assert_same_end(killed, whole)


@pytest.mark.parametrize("strategy, kind", [("fsdp", "EndToEnd"), ("pipeline", "Staged")])
def test_ranks_that_were_interrupted_go_on_to_the_same_bits(strategy, kind, tmp_path):
    """In workers, which are quick to start; the first two kill themselves."""
    common = [*INTERRUPTED, "--strategy", strategy]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()

    def train_until_killed():
        learn, calls = getattr(strategies, kind).learn, []

        def learn_until_killed(self, x, y):
            calls.append(None)
            if len(calls) == 21 and train.program.dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return learn(self, x, y)

        getattr(strategies, kind).learn = learn_until_killed
        train.main([*common, *keep_in(killed)])

    launch(train_in_ranks, [*common, *keep_in(whole)], world_size=2)
    with pytest.raises(WorkerError, match="^rank 1: killed"):
        launch(train_until_killed, world_size=2)
    saved = checkpoint.load(killed / "last.pt")
    assert (saved["epoch"], saved["step"]) == (1, 4)
    launch(train_in_ranks, [*common, *keep_in(killed), "--resume"], world_size=2)
    assert_same_end(killed, whole)


def test_torchrun_starts_a_killed_rank_again_and_nothing_is_lost(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    common = [*INTERRUPTED, "--strategy", "ddp"]
    program = tmp_path / "killed.py"
    program.write_text(KILLED.format(kind="EndToEnd", rank=1))
    # without --resume: it is the same run
    done = run(*TORCHRUN, "--max-restarts", "1", program, *common, *keep_in(killed))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^epoch (\d)", done.stdout, flags=re.MULTILINE) == ["0", "1"]
    assert done.stdout.count("ddp: 2 ranks on cpu") == 2 and "it/s" not in done.stderr  # it was begun twice
    launch(train_in_ranks, [*common, *keep_in(whole)], world_size=2)
    assert_same_end(killed, whole)


def test_another_number_of_processes_goes_on_where_that_is_asked_for(tmp_path):
    common = [*INTERRUPTED, "--strategy", "pipeline", "--precision", "fp64"]
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    launch(train_in_ranks, [*common, "--checkpoint", str(whole)], world_size=2)
    launch(train_in_ranks, [*common, "--checkpoint", str(moved), "--epochs", "1"], world_size=2)
    strict, lenient = ([*common, "--checkpoint", str(moved), "--resume", *more] for more in ([], ["auto"]))
    (said,) = launch(refusals, strict, world_size=3)[0]
    assert re.search("last.pt was saved by 2 processes, and here are 3: start as many, or give `--resume auto`", said)
    gone_on = launch(train_in_ranks, lenient, world_size=3)
    assert "2 processes saved the checkpoint and 3 go on: equal up to rounding" in gone_on.logs[0]
    for ours, theirs in zip(state_in(moved), state_in(whole), strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


MOMENTA = {"without": ("0", "0"), "kept": ("0.5", "0.5"), "taken away": ("0.9", "0"), "added": ("0", "0.9")}


def cases_of_momenta(folder, *how):
    """Arguments of two trainings for each of MOMENTA: an epoch, and from its checkpoint on a second one."""
    for name, momenta in MOMENTA.items():
        for epochs, momentum, resume in zip("12", momenta, ([], ["--resume"]), strict=True):
            yield ["--batch-size", "480", "--precision", "fp64", "--fixed-lr", *how, "--epochs", epochs, "--momentum",
                   momentum, "--checkpoint", str(folder / name), *resume]  # fmt: skip


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """{name in MOMENTA: the parameters} where one process was resumed."""
    folder = tmp_path_factory.mktemp("resumed")
    with pytest.MonkeyPatch.context() as patch:
        for name in OF_RANKS:
            patch.delenv(name, raising=False)
        patch.setenv("COURSE_DEVICE", "cpu")
        for case in cases_of_momenta(folder, "--model", "mlp"):
            train.main(case)
    return {name: checkpoint.load(folder / name / "last.pt")["model"] for name in MOMENTA}


@pytest.mark.parametrize("name", MOMENTA)
def test_a_resumed_run_computes_with_the_momentum_that_is_given(name, resumed):
    digits = load_images("digits", size=16)
    torch.manual_seed(0)
    model = models.mlp().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch, momentum in enumerate(map(float, MOMENTA[name])):
        optimizer.param_groups[0]["momentum"] = momentum
        order = torch.randperm(len(digits.labels), generator=torch.Generator().manual_seed(epoch))
        for chosen in order[: 2 * 480].split(480):
            optimizer.zero_grad()
            F.cross_entropy(model(digits.images[chosen].double()), digits.labels[chosen]).backward()
            optimizer.step()
    torch.testing.assert_close(resumed[name], dict(model.state_dict()), **EXACT)


def test_every_strategy_is_resumed_with_any_momentum(resumed, tmp_path):
    cases = {strategy: list(cases_of_momenta(tmp_path / strategy, "--model", "mlp", "--strategy", strategy))
             for strategy in ("ddp", "fsdp", "tensor", "pipeline", "dp")}  # fmt: skip
    for case in cases["dp"]:
        train.main(case)
    launch(train_in_ranks, *itertools.chain(*(cases[name] for name in cases if name != "dp")), world_size=2)
    for strategy in cases:
        for name in MOMENTA:
            ours = checkpoint.load(tmp_path / strategy / name / "last.pt")["model"]
            torch.testing.assert_close(ours, resumed[name], **EXACT)


def backends_here():
    return program.backend_of(hardware.rank_device()), program.backend_of(torch.device("cpu"))


def test_the_backend_that_is_said_is_the_devices():
    assert launch(played, 2, backends_here, world_size=2, backend="gloo").results == [("nccl", "gloo")] * 2
    assert launch(backends_here, world_size=2, backend="gloo").results == [("gloo", "gloo")] * 2


def test_dp_takes_the_gpus_that_cuda_gives():
    """In MIG mode torch counts all GPUs, and CUDA gives a slice of one."""
    run = argparse.Namespace(device=torch.device("cuda", 0))
    with PlayedGpus({"cards": [H200] * 2, "slices": {0: 2, 1: 2}}):
        taken = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strategies.nn, "DataParallel", lambda model, gpus: taken.extend(gpus))
            strategies.dp(None, run)
    assert taken == [0]


def test_what_differs_from_the_checkpoint_is_said_in_one_line(tmp_path, capsys):
    common = ["--batch-size", "480", "--checkpoint", str(tmp_path)]
    train.main([*common, "--epochs", "1", "--lr", "0.01"])
    capsys.readouterr()
    train.main([*common, "--epochs", "2", "--resume", "--momentum", "0", "--warmup", "2"])
    said = "other than in the checkpoint, from here on: --lr 0.01 → 0.02, --warmup 1.0 → 2.0, --momentum 0.9 → 0.0"
    assert said in capsys.readouterr().out.splitlines()
    figures = train.main([*common, "--epochs", "3", "--resume", "--momentum", "0", "--fixed-lr", "--warmup", "2"])
    assert "from here on: --fixed-lr False → True\n" in capsys.readouterr().out and figures["learning_rate"] == 0.02
    train.main([*common, "--epochs", "4", "--resume", "--momentum", "0", "--fixed-lr", "--warmup", "2"])
    assert "from here on" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, said",
    [
        ({}, "last.pt is no whole checkpoint: it lacks states, classes, values, random; load another one"),
        ({"states": {}, "classes": {}, "values": {}, "random": {}},
         "last.pt: the random states in it cannot be restored .*python"),
        ({"values": {}}, "last.pt was not saved by this program, for it lacks model, .*figures: name another"),
        ({"values.epoch": "one"}, "last.pt was not saved by this program, for it lacks epoch: name another"),
        ({"values.model": {}}, "last.pt does not fit this run .*: name another --checkpoint folder"),
        ({"values.optimizer": {"state": {"fc1.weight": {}}}}, "last.pt does not fit this run"),
        ({"values.scaler": {"scale": 1}}, None),  # of a run without a scaled loss it is not needed
    ],
)  # fmt: skip
def test_a_checkpoint_that_was_tampered_with_is_refused_in_one_sentence(content, said, tmp_path):
    common = [*SHORT, "--checkpoint", str(tmp_path)]
    train.main(common)
    file = tmp_path / "last.pt"
    whole = torch.load(file, weights_only=True)
    changed = {name.partition(".")[2]: value for name, value in content.items() if "." in name}
    if changed:
        content = whole | {"values": whole["values"] | changed}
    elif content == {"values": {}}:
        content = whole | content
    torch.save({"format": whole["format"]} | content, file)
    if said is None:
        train.main([*common, "--resume"])
        return
    with pytest.raises(Refused, match=said) as refusal:
        train.main([*common, "--resume"])
    assert "\n" not in str(refusal.value)


def test_a_run_that_is_complete_is_left_as_it_is(tmp_path, capsys):
    common = [*SHORT, "--checkpoint", str(tmp_path)]
    figures = train.main(common)
    before = (tmp_path / "last.pt").read_bytes()
    capsys.readouterr()
    assert train.main([*common, "--resume"]) == figures
    assert "nothing is left to do" in capsys.readouterr().out
    assert (tmp_path / "last.pt").read_bytes() == before


def test_where_the_newest_checkpoint_is_damaged_the_one_before_is_taken(tmp_path, capsys):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    common = [*SHORT, "--epochs", "2", "--save-every", "1"]
    train.main([*common, "--checkpoint", str(whole)])
    train.main([*common, "--checkpoint", str(damaged)])
    (damaged / "last.pt").write_bytes((damaged / "last.pt").read_bytes()[:-100])
    capsys.readouterr()
    train.main([*common, "--checkpoint", str(damaged), "--resume"])
    assert re.search(
        r"last.pt is truncated or damaged .*: load .*last.pt.previous; it is taken", capsys.readouterr().out
    )
    for ours, theirs in zip(state_in(damaged), state_in(whole), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for name in ("last.pt", "last.pt.previous"):
        (damaged / name).write_text("no checkpoint")
    with pytest.raises(Refused, match=r"last.pt is truncated or damaged"):
        train.main([*common, "--checkpoint", str(damaged), "--resume", "auto"])
    assert (damaged / "last.pt").read_text() == "no checkpoint"


# ---- Bad input: one sentence, before anything is trained or lost

BAD = [
    (["--strategy", "zero"], "argument --strategy: invalid choice: 'zero' .*choose from .*ddp"),
    (["--model", "resnet"], "argument --model: invalid choice: 'resnet' .*choose from .*lecture"),
    (["--data", "imagenet"], "--data imagenet: there is no data set 'imagenet'; choose one of digits, mnist"),
    (["--data", "cifar10"], "cifar10 is in colour, and --model digits takes grey images: choose --model lecture"),
    (["--epochs", "0"], "argument --epochs: '0' is not a whole number, 1 or more"),
    (["--lr", "nan"], "argument --lr: 'nan' is not a number above 0"),
    (["--warmup", "-1"], "argument --warmup: .*-1"),
    (["--warmup", "1e308"], "argument --warmup: '1e308' is more than 3.4e\\+38, the most there is"),
    (["--momentum", "1e300"], "argument --momentum: '1e300' is more than"),
    (["--lr", "1e300"], "argument --lr: '1e300' is more than"),
    (["--lr", "3e38"], "the rate by the linear rule, is 2.25e\\+39, more than a float32 holds: choose a smaller --lr"),
    (["--timeout", "1e300"], "argument --timeout: '1e300' is more than 3.1536e\\+07"),
    (["--timeout", "1e-300"], "argument --timeout: '1e-300' is not a number of 1 or more"),
    (["--seed", "9" * 20], "argument --seed: '9{20}' is more than 9223372036854775807, the most there is"),
    (["--base-batch", "1" * 400], "argument --base-batch: '1+[.]{3}1+' is more than"),
    (["--batch-size", "1" * 5000], "argument --batch-size: '1+[.]{3}1+' is more than"),
    (["--strategy", "ddp", "--batch-size", "9" * 18], "--batch-size 9{18} is more than the 1437 images"),
    (["--btach-size", "64"], "unrecognized arguments: --btach-size 64"),
    (["--batch-size", "2000"], "--batch-size 2000 is more than the 1437 images of digits"),
    (["--resume"], "--resume needs --checkpoint DIR"),
    (["--save-every", "5"], "--save-every needs --checkpoint DIR"),
    (["--sharded"], "--sharded needs --checkpoint DIR"),
    (["--checkpoint", "{empty}", "--save-mb-per-s", "3"], "--save-mb-per-s is for --sharded; without it, training"),
    (["--checkpoint", "{empty}", "--keep", "3"], "--keep is for --sharded; without it, DIR holds the newest"),
    (["--checkpoint", "{full}", "--resume", "--sharded"], "last.pt was saved without --sharded: leave it out"),
    (["--resume", "--checkpoint", "{empty}"],
     "--resume: there is no checkpoint in .*; `--resume auto` would begin anew"),
    (["--checkpoint", "{full}"], "holds a checkpoint: --resume goes on from it; or name another folder"),
    (["--checkpoint", "{full}", "--resume", "--model", "digits"],
     "saved by a run with model mlp, and here it is digits"),
    (["--checkpoint", "{full}", "--resume", "--model", "mlp", "--strategy", "ddp"],
     "strategy single, and here it is ddp"),
    (["--checkpoint", "{full}", "--resume", "--model", "mlp", "--batch-size", "64"],
     "batch size 480, and here it is 64"),
    (["--checkpoint", "{file}/folder"], "Not a directory: .*folder"),
    (["--json", "{empty}"], "Is a directory: "),
    (["--replicas", "2"], "--replicas 2 is for --strategy fsdp"),
    (["--strategy", "pipeline"],
     "--strategy pipeline cuts a row of layers, and --model digits is none: choose --model mlp"),
    (["--strategy", "pipeline", "--model", "mlp", "--micro-batches", "7"],
     "--micro-batches 7 must divide --batch-size 480"),
    (["--strategy", "tensor", "--precision", "amp"], "--precision amp skips a step .*choose --precision bf16"),
    (["--backend", "nccl"], "--backend nccl needs a GPU for each process, but this node runs 1 and has 0 to use"),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    found = {name: folder / name for name in ("empty", "full", "file")}
    found["empty"].mkdir()
    found["file"].write_text("notes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_DEVICE", "cpu")
        train.main([*SHORT, "--model", "mlp", "--checkpoint", str(found["full"])])
    return found


@pytest.mark.parametrize("given, said", BAD, ids=[" ".join(given) for given, _ in BAD])
def test_what_cannot_be_right_is_refused_in_one_sentence(given, said, places):
    before = {path: path.read_bytes() for path in places["full"].iterdir()}
    with pytest.raises(Refused, match=said) as refusal:
        train.main([*SHORT, *(text.format(**places) for text in given)])
    assert "\n" not in str(refusal.value)
    assert {path: path.read_bytes() for path in places["full"].iterdir()} == before
    assert not train.program.dist.is_initialized()


def test_every_rank_is_refused_alike_and_the_group_stays():
    cases = {
        ("--strategy", "single"): "--strategy single is one process, and 3 were started",
        ("--strategy", "ddp"): "--batch-size 64 cannot be divided by 3 processes: choose a multiple of 3, such as 66",
        ("--strategy", "fsdp", "--batch-size", "66", "--replicas", "2"): "--replicas 2 is for .* a number of processes",
        ("--strategy", "tensor", "--model", "transformer"): "3 processes cannot share 4 parts of --model transformer",
        ("--strategy", "pipeline", "--model", "mlp", "--micro-batches", "2"): "at least the number of stages, 3",
        ("--strategy", "nonsense"): "invalid choice",
    }
    results = launch(refusals, *map(list, cases), world_size=3)
    assert results[0] == results[1] == results[2]
    for said, wanted in zip(results[0], cases.values(), strict=True):
        assert re.search(wanted, said), said


def test_a_folder_that_one_rank_does_not_see_is_refused_on_all(tmp_path):
    def resume_elsewhere(here, elsewhere):
        folder = here if train.program.dist.get_rank() == 0 else elsewhere
        return refusals([*SHORT, "--strategy", "ddp", "--checkpoint", folder, "--resume", "auto"])

    launch(train_in_ranks, [*SHORT, "--strategy", "ddp", "--checkpoint", str(tmp_path / "a")], world_size=2)
    for said in launch(resume_elsewhere, str(tmp_path / "a"), str(tmp_path / "b"), world_size=2):
        assert re.search(
            r"\(epoch, step\) is \(1, 0\) on rank 0 and None on rank 1: every node must see the same", said[0]
        )


def test_the_command_line_says_it_once_and_fails(tmp_path):
    ranks = run_forked("--strategy", "ddp", "--batch-size", "63", world_size=2)
    assert [done.returncode for done in ranks] == [2, 2] and not ranks[0].stdout + ranks[1].stdout
    assert re.findall("^train: .*", ranks[0].stderr + ranks[1].stderr, flags=re.MULTILINE) == [
        "train: --batch-size 63 cannot be divided by 2 processes: choose a multiple of 2, such as 64"
    ]
    alone = run(*PROGRAM, "--data", "imagenet")
    assert alone.returncode == 2 and not alone.stdout
    assert re.fullmatch("train: --data imagenet: there is no data set .*\n", alone.stderr)


def test_an_endpoint_that_does_not_answer_ends_in_a_sentence(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match=r"^rank 1 did not find the other 1 at 127.0.0.1:1 within 1 s .*\?$"):
        train.main(["--strategy", "ddp", "--timeout", "1"])


@pytest.mark.parametrize(
    "environment, said",
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK=0, MASTER_ADDR= and MASTER_PORT=, which do not say at which node"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}, "MASTER_ADDR=127.0.0.1 and MASTER_PORT=, which"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "http"}, "MASTER_PORT=http"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "99999"}, "MASTER_PORT=99999"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 of WORLD_SIZE=2 .*: start the program with torchrun, or unset RANK"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 of WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_RANK=0 of LOCAL_WORLD_SIZE=0, but ranks"),
        ({"RANK": "0", "WORLD_SIZE": "many"}, "RANK and WORLD_SIZE must both be whole numbers"),
    ],
)  # fmt: skip
def test_an_environment_that_names_no_place_is_refused_in_one_sentence(environment, said, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match=said) as refusal:
        train.main(["--strategy", "ddp", "--timeout", "1"])
    assert "\n" not in str(refusal.value) and not train.program.dist.is_initialized()


@pytest.mark.parametrize("given", [["--seed", "9223372036854775807"], ["--warmup", "3e38"], ["--timeout", "31536000"],
                                   ["--momentum", "3e38"], ["--lr", "4e37"], ["--lr", "3e38", "--fixed-lr"],
                                   ["--lr", "1e-320"]], ids=" ".join)  # fmt: skip
def test_the_largest_and_smallest_numbers_are_used(given, tmp_path):
    common = [*SHORT, "--strategy", "ddp", *given, "--checkpoint", str(tmp_path)]
    assert train.main(common) and train.main([*common, "--epochs", "2", "--resume"])["epoch"] == 1


# ---- What is shown and written


def test_what_is_no_number_is_null_in_the_json(tmp_path):
    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    train.main([*SHORT, "--lr", "1e30", "--epochs", "2", "--json", str(tmp_path / "figures")])
    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "figures").read_text().splitlines()]
    assert lines[-1]["loss"] is None and lines[-1]["epoch"] == 1


def test_a_line_of_json_for_each_epoch_and_no_bar_in_a_file(tmp_path):
    file = tmp_path / "figures.json"
    common = [*SHORT, "--epochs", "2", "--model", "mlp", "--json", str(file)]
    train.main(common)
    (done,) = run_forked(*common)  # it does not delete the other's lines
    assert done.returncode == 0 and not done.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 0, 1]
    assert [(line["strategy"], line["model"], line["world_size"]) for line in lines] == [("single", "mlp", 1)] * 4
    assert all(line["images_per_s"] > 0 and 10e6 < line["peak_bytes"] < 10e9 for line in lines)
    printed = re.findall(
        r"^epoch (\d): loss (\S+), accuracy (\S+) %, \S+ images/s \(\S+ a rank\), peak \S+ MB a rank$",
        done.stdout,
        flags=re.MULTILINE,
    )
    wanted = [(str(line["epoch"]), f"{line['loss']:.4f}", f"{100 * line['accuracy']:.1f}") for line in lines[2:]]
    assert [row[:3] for row in printed] == wanted


def test_a_terminal_gets_a_bar():
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    (done,) = run_forked(*SHORT, stderr=os.ttyname(theirs))  # which is less than a terminal keeps for its reader
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert done.returncode == 0 and b"epoch 0:" in shown


def test_launch_collects_the_figures(capfd):
    run = launch(train_in_ranks, [*SHORT, "--strategy", "ddp"], world_size=2)
    figures = run[1][0]
    row = run.metrics.iloc[0]
    assert len(run.metrics) == 1 and row["rank"] == 0
    assert {name: row[name] for name in figures} == figures
    assert figures["images_per_s"] == 2 * figures["images_per_s_per_rank"]
    assert "epoch 0: loss" in run.logs[0] and not run.logs[1]


def test_help_explains_every_option():
    text = make_parser(program.__doc__).format_help()
    for action in make_parser("")._actions:
        assert action.help and len(action.help.split()) > 3, action.option_strings
        assert action.option_strings[-1] in text
    assert text.count("torchrun") >= 3 and "srun" in text


def test_one_device_reads_as_one_device():
    """Every line with a name of several devices is marked, so that a reader can tell what one device needs."""
    texts = [Path(part.__file__).read_text(encoding="utf-8").split('"""', 2)[2] for part in (strategies, program)]
    code = "".join(texts).partition("# ---- Figures")[0]
    marked = re.compile(r"\b(dist|mesh|tp|stage|schedule|cuts_batch|num_parts\]|device_ids|fully_shard|Schedule1F1B)\b")
    unmarked = [line for line in code.splitlines() if marked.search(line.split("  #")[0])
                and not re.search("# (NEW|DP|DDP|FSDP|PIPE|TP)\\b", line) and '"""' not in line]  # fmt: skip
    assert not unmarked, "\n".join(unmarked)


# ---- Where the ranks come from

SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "5",
         "SLURM_JOB_ID": "70001", "SLURM_STEP_ID": "2",
         "SLURM_STEP_NODELIST": "gpu[07-09]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}  # fmt: skip


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """What stands in for Slurm's own program, and answers as it does."""
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$*" = "show hostnames gpu[07-09]" ] && printf "gpu07\\ngpu08\\ngpu09\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.fixture
def set_slurm(monkeypatch):
    def set_all(**values):
        for name in OF_RANKS:  # find_place sets them; so that they are taken back
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


def test_a_task_of_slurm_finds_its_place(scontrol, set_slurm):
    set_slurm(**SLURM)
    assert find_place() == Place(rank=3, local_rank=1, world_size=5, num_local=2)
    assert os.environ["MASTER_ADDR"] == "gpu07" and 1024 < int(os.environ["MASTER_PORT"]) < 32768
    port = os.environ["MASTER_PORT"]
    set_slurm(**SLURM | {"SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"})
    assert find_place() == Place(4, 0, 5, 1) and os.environ["MASTER_PORT"] == port
    set_slurm(**SLURM | {"SLURM_STEP_ID": "3"})
    assert find_place() and os.environ["MASTER_PORT"] != port


def test_where_slurm_gives_each_task_its_gpus_it_has_the_first(scontrol, set_slurm):
    set_slurm(**SLURM, SLURM_GPUS_PER_TASK="1")
    assert find_place() == Place(rank=3, local_rank=0, world_size=5, num_local=1)


def test_torchrun_under_slurm_and_a_batch_file_itself_are_no_tasks(set_slurm):
    set_slurm(**SLURM, RANK="1", LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
    assert find_place() == Place(1, 0, 2, 1)
    set_slurm(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NTASKS="4", SLURM_JOB_ID="7", SLURM_STEP_NUM_TASKS="1")
    assert find_place() == Place()


def test_a_slurm_that_does_not_answer_is_refused(set_slurm, monkeypatch, tmp_path):
    set_slurm(**SLURM)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="`scontrol show hostnames gpu.07-09.` does not say .*set MASTER_ADDR"):
        find_place()
    set_slurm(RANK="1")
    with pytest.raises(Refused, match="the environment has RANK=1.*start the program with torchrun, or unset RANK"):
        find_place()
