"""Checks of chapter 15: a Horovod training loop, TensorFlow's TF_CONFIG, the script whose replicas drift apart."""

import ast
import contextlib
import functools
import itertools
import json
import tempfile
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ... import frameworks
from ...checks.expect import (
    Wrong,
    case,
    expect,
    expect_error,
    expect_number,
    expect_row,
    explain,
    not_a,
    same,
    short,
    unchanged,
)
from ...checks.judge import run
from ...launch import WorkerError, launch, unannounced
from .horovod import Horovod

# ---- 15.1 ---------------------------------------------------------------------------------------------------------

_NUM_STEPS, _BATCH, _LR = 4, 64, 0.3
_LOSSES = 1e-6  # a loss may have been sent as float32
_REAL = "horovod.torch"


@dataclass(frozen=True)
class _Start:
    """How the ranks start; those of `trained` have made steps, so that their optimizers have state."""

    what: str
    num_ranks: int
    momentum: float
    trained: tuple


_STARTS = (
    _Start("2 ranks that have trained apart before", 2, 0.9, (0, 1)),
    _Start("4 ranks on 2 nodes, of which rank 0 has trained before", 4, 0.9, (0,)),
    _Start("1 rank, without momentum", 1, 0.0, ()),
)


@dataclass(frozen=True)
class _Trained:
    """A rank's results; `used` has the numbers of its images, `calls` the names of the Horovod functions called."""

    losses: list
    parameters: list
    used: list
    calls: list


def check_15_1(train_horovod):
    """`train_horovod(model, optimizer, images, labels, num_steps)` trains with Horovod and returns each step's loss."""
    for start in _STARTS:
        with case(start.what):
            found = run(_train, train_horovod, start, world_size=start.num_ranks)
            run(_judge_training, train_horovod, found, start)
    really = ""
    if frameworks.problem(_REAL) is None:
        with case("with Horovod itself"), case(_STARTS[0].what):
            run(_judge_training, train_horovod, _train_with_horovod(train_horovod, _STARTS[0]), _STARTS[0])
        really = f", and Horovod {frameworks.stamp()['frameworks'][_REAL]} itself on 2"
    return f"a stand-in for Horovod on 2, 4 and 1 ranks{really}: the parameters and losses of one process."


def _train(train_horovod, start):
    with Horovod(per_node=2) as horovod:
        return _train_watched(train_horovod, start, horovod.rank, horovod.calls)


class _NotStarted(Exception):
    """Horovod itself does not start in the worker, whatever the answer is."""


def _train_with_horovod(train_horovod, start):
    """Train on all ranks with Horovod itself, as `_train` does with the stand-in, and return the results.

    Raises RuntimeError if Horovod was built and does not start.
    """
    try:
        with tempfile.TemporaryDirectory() as folder, unannounced():
            on = frameworks.Environment(_REAL)
            return launch(
                _train_in_horovod, train_horovod, start, folder, world_size=start.num_ranks, timeout=60, on=on
            ).results
    except WorkerError as error:
        if error.is_a(_NotStarted):
            again = "remove build/elsewhere, then run `make elsewhere`"
            raise RuntimeError(f"Horovod was built here and does not start ({error.message}): {again}") from None
        raise Wrong(error.message if error.is_a(Wrong) else f"your code failed in a worker:\n{error.text}") from None


def _train_in_horovod(train_horovod, start, folder):
    try:
        frameworks.meet_for_horovod(folder)
        import horovod.torch as hvd

        hvd.init()  # the answer's own call then does nothing
    except Exception as error:
        raise _NotStarted(f"{type(error).__name__}: {error}") from error
    return _train_watched(train_horovod, start, hvd.rank(), [])


def _train_watched(train_horovod, start, rank, calls):
    (model, optimizer), (images, labels), used = _make(rank, start), _data(), []
    numbers = {tuple(image): number for number, image in enumerate(images.tolist())}

    def note(module, given):
        expect(len(given[0]) > 0, "the model was given a batch of no images: were they used up in the steps before?")
        if torch.is_grad_enabled():
            used.extend(numbers.get(tuple(image)) for image in given[0].tolist())

    model.register_forward_pre_hook(note)
    with unchanged(images=images, labels=labels):
        losses = train_horovod(model, optimizer, images, labels, _NUM_STEPS)
    losses = expect_row(losses, _NUM_STEPS, "what came back", of="a loss for each step")
    losses = [float(expect_number(loss, f"the loss of step {step}")) for step, loss in enumerate(losses)]
    return _Trained(losses, [p.detach() for p in model.parameters()], used, calls)


def _data():
    generator = torch.Generator().manual_seed(151)
    images = torch.randn(_NUM_STEPS * _BATCH + 100, 6, generator=generator, dtype=torch.float64)  # 100 are unused
    return images, torch.randint(4, (len(images),), generator=generator)


def _make(rank, start):
    torch.manual_seed(15 + rank)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR, momentum=start.momentum)
    for _ in range(2 * (rank in start.trained)):
        F.cross_entropy(model(torch.randn(8, 6, dtype=torch.float64)), torch.arange(8) % 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _judge_training(train_horovod, ranks, start):
    num_ranks, share = start.num_ranks, _BATCH // start.num_ranks
    _judge_images([each.used for each in ranks], share)
    whole = [[range(_BATCH * step, _BATCH * (step + 1))] for step in range(_NUM_STEPS)]
    parts = [[each.used[share * step : share * (step + 1)] for each in ranks] for step in range(_NUM_STEPS)]
    losses, parameters = (found * num_ranks for found in _imitate(start, whole))
    found = [each.parameters for each in ranks]
    calls = list(dict.fromkeys(name for each in ranks for name in each.calls))
    after = f"after calls of {', '.join(calls)}, " if calls else ""
    explain(
        found,
        parameters,
        _mistakes(found, start, parts, calls),
        said=f"{after}the parameters are not those of one process",
        otherwise="do all ranks begin alike, and is each step's gradient that of the mean over its 64 images?",
    )
    own, late = _imitate(start, parts)[0], _imitate(start, whole, is_late=True)[0] * num_ranks
    slips = {
        "each rank has the mean over its own images": own,
        "rank 0 has the mean over all 64 images, and other ranks have not": [losses[0], *own[1:]],
        "they are added up over the ranks, and not divided": [[num_ranks * loss for loss in each] for each in losses],
        "they are divided by the number of ranks once too often": [
            [loss / num_ranks for loss in each] for each in losses
        ],
        "they are those after the steps, and not those that the gradients belong to": late,
    }
    explain(
        [each.losses for each in ranks],
        losses,
        slips,
        said="the parameters are right, and the losses are not",
        close=_LOSSES,
        otherwise="of which images is each the mean?",
    )


def _judge_images(used, share):
    """Raise Wrong unless the ranks share each step's images equally; `used` has each rank's image numbers."""
    for rank, numbers in enumerate(used):
        expect(None not in numbers, f"rank {rank} put images through its model that it was not given")
        has_all = len(used) > 1 and len(set(numbers)) == _BATCH * _NUM_STEPS
        expect(not has_all, f"rank {rank} put {_BATCH} images through its model in each step: what do the ranks share?")
        expect(
            len(numbers) == share * _NUM_STEPS,
            f"rank {rank} put {len(numbers)} images through its model in {_NUM_STEPS} steps, and "
            f"its equal share is {share * _NUM_STEPS}",
        )
    for step in range(_NUM_STEPS):
        with case(f"step {step}"):
            _judge_parts(
                [numbers[share * step : share * (step + 1)] for numbers in used],
                range(_BATCH * step, _BATCH * (step + 1)),
            )


def _judge_parts(parts, images):
    for rank, other in itertools.combinations(range(len(parts)), 2):
        are_namesakes = rank % 2 == other % 2 and not set(parts[0]) & set(parts[1])
        why = (
            "they are on two nodes, and each has the same number on its own"
            if are_namesakes
            else "what tells their shares apart?"
        )
        expect(not set(parts[rank]) & set(parts[other]), f"ranks {rank} and {other} used the same images: {why}")
    for rank, part in enumerate(parts):
        others = [number for number in part if number not in images]
        expect(not others, f"rank {rank} used image {others[:1] and others[0]}, which is none of this step's")
        expect(len(set(part)) == len(part), f"rank {rank} used an image twice")


def _mistakes(found, start, parts, calls):
    """Return {reason: a function that returns `found` if this mistake leads to it, else None}.

    Each mistake is tried with and without the momentum of earlier steps.
    """
    num_ranks, knows = start.num_ranks, ": what does the optimizer that DistributedOptimizer returns know of it?"
    mistakes = {
        "the momentum of rank 0's earlier steps is gone" + knows * ("DistributedOptimizer" in calls): {},
        "each rank went on from its own parameters": {"begin": None},
        "each rank went on from its own parameters, and its optimizer from its own state": {
            "begin": None,
            "state": None,
        },
        "the parameters began alike, and each rank's optimizer went on from its own state": {"state": None},
        "each rank made its steps with its own gradient": {"alone": True},
        "each rank made its steps with its own gradient, and from its own parameters": {
            "alone": True,
            "begin": None,
            "state": None,
        },
        "the gradients were added up over the ranks, and not divided": {"factor": num_ranks},
        "the gradient was divided by the number of ranks once too often": {"factor": 1 / num_ranks},
        "the learning rate has grown with the number of ranks, and the batch has not": {"rate": num_ranks},
        "the ranks end alike, and did not begin so": {"begin": None, "ends_alike": True},
        "the ranks end alike, and neither they nor their optimizers began so": {
            "begin": None,
            "state": None,
            "ends_alike": True,
        },
        "all ranks began with another rank's parameters than rank 0's": {"begin": num_ranks - 1},
        "all ranks began with what another rank than rank 0 had": {"begin": num_ranks - 1, "state": num_ranks - 1},
        "are gradients of earlier steps still in it?": {"adds": True},
    }

    def made(mistake):
        variants = (_imitate(start, parts, **mistake, forgets=forgets)[1] for forgets in (False, True))
        return found if any(same(found, each) for each in variants) else None

    return {reason: functools.partial(made, mistake) for reason, mistake in mistakes.items()}


def _imitate(
    start,
    parts,
    begin=0,
    state=0,
    forgets=False,
    alone=False,
    factor=1.0,
    rate=1.0,
    adds=False,
    ends_alike=False,
    is_late=False,
):
    """Return (losses, parameters) of each rank after training on `parts[step][rank]`, correctly or with a mistake.

    The ranks start with the parameters of rank `begin` and the optimizer state of rank `state`; None means their own.
    """
    (images, labels), ranks, losses = _data(), [], []
    for rank in range(len(parts[0])):
        model, optimizer = _make(rank if begin is None else begin, start)
        optimizer.load_state_dict(_make(rank if state is None else state, start)[1].state_dict())
        optimizer.param_groups[0]["lr"] *= rate
        if forgets:
            optimizer.state.clear()
        ranks.append((model, optimizer))

    def losses_of(step):
        of_ranks = zip(ranks, map(list, parts[step]))
        return [F.cross_entropy(model(images[part]), labels[part]) for (model, _), part in of_ranks]

    for step in range(len(parts)):
        for model, _ in ranks:
            if not adds:
                model.zero_grad()
        found = losses_of(step)
        sum(found).backward()
        for copies in zip(*(model.parameters() for model, _ in ranks)) if not alone else ():
            mean = factor * sum(p.grad for p in copies) / len(copies)
            for p in copies:
                p.grad = mean.clone()
        for _, optimizer in ranks:
            optimizer.step()
        losses.append([loss.item() for loss in (losses_of(step) if is_late else found)])
    parameters = [[p.detach() for p in model.parameters()] for model, _ in ranks]
    return [list(each) for each in zip(*losses)], [parameters[0]] * len(ranks) if ends_alike else parameters


# ---- 15.2 ---------------------------------------------------------------------------------------------------------

_CLUSTERS = (
    (["node0", "node1"], 2, 2222),
    (["gpu7", "gpu3", "gpu5"], 3, 12345),
    (["10.0.0.9"], 4, 5000),
    (["b", "a", "d"], 1, 7070),
)


def check_15_2(tf_config):
    """`tf_config(hosts, workers_per_host, port, host, local)` returns the text of a worker's TF_CONFIG."""
    run(_judge_clusters, tf_config)
    num_workers = sum(len(hosts) * share for hosts, share, _ in _CLUSTERS)
    return (
        f"{num_workers} workers of {len(_CLUSTERS)} clusters: JSON, one cluster for all of its workers, and each "
        "finds itself in it."
    )


def _judge_clusters(tf_config):
    for given, share, port in _CLUSTERS:
        hosts = list(given)
        for host, local in itertools.product(range(len(hosts)), range(share)):
            with case(_call(hosts, share, port, host, local)), unchanged(hosts=hosts):
                _judge_config(tf_config(hosts, share, port, host, local), given, share, port, host, local)
        for host, local in ((len(hosts), 0), (-1, 0), (0, share), (0, -1), (len(hosts) + 40, 0), (0, -share)):
            with case(_call(hosts, share, port, host, local)):
                call = functools.partial(tf_config, hosts, share, port, host, local)
                expect_error(ValueError, call, naming=[host or local])


def _call(hosts, share, port, host, local):
    return f"tf_config({hosts}, {share}, {port}, host={host}, local={local})"


def _judge_config(text, hosts, share, port, host, local):
    config = _parse(text)
    expect(isinstance(config, dict), f"the text is JSON of {short(config)}, not of an object")
    _expect_keys(config, "the object", "cluster", "task")
    cluster, task = config["cluster"], config["task"]
    expect(isinstance(cluster, dict), f"'cluster' is {short(cluster)}, and should be an object: {{job: its addresses}}")
    _expect_keys(cluster, "'cluster'", "worker")
    _judge_workers(cluster["worker"], hosts, share, port, host, local)
    expect(isinstance(task, dict), f"'task' is {short(task)}, and should be an object")
    _expect_keys(task, "'task'", "type", "index")
    expect(
        task["type"] == "worker", f"the task's type is {short(task['type'])}, and no job of the cluster has that name"
    )
    index = task["index"]
    expect(not isinstance(index, str), f"the task's index is {index!r}, a text: what is it in JSON if it is a number?")
    expect(
        isinstance(index, int) and not isinstance(index, bool),
        f"the task's index is {not_a(index, 'a whole number')}",
    )
    explain(index, host * share + local, {
        "that is the number on its own host": local,
        "that is the host's number": host,
        "it counts from 1": None if host or local else 1,
        "it counts through the hosts first, and the list of addresses does not": local * len(hosts) + host,
        "are there as many workers on a host as there are hosts?": host * len(hosts) + local,
    }, said=f"the task's index is {index}", otherwise="which place has its address in the list?")  # fmt: skip


def _parse(text):
    expect(text is not None, "None came back: is it returned, or only printed or set?")
    expect(not isinstance(text, dict), "a dict came back, and os.environ takes texts only")
    expect(isinstance(text, str), f"{short(text)} came back, and a text is asked")
    try:
        return json.loads(text)
    except ValueError as error:
        reason = f"it is no JSON ({error})"
    with contextlib.suppress(ValueError, SyntaxError):
        if isinstance(ast.literal_eval(text), dict):
            reason = "it is a dict as Python prints it, and no JSON: which quotes does JSON have?"
    expect(False, f"{short(text)} came back: {reason}")


def _expect_keys(found, what, *keys):
    missing, more = [key for key in keys if key not in found], [key for key in found if key not in keys]
    expect(not missing, f"{what} has no {' and no '.join(map(repr, missing))}")
    expect(not more, f"{what} has {', '.join(map(repr, more))}, too, which is not asked for")


def _judge_workers(found, hosts, share, port, host, local):
    found = expect_row(found, None, "'worker'", of="addresses")
    strange = [address for address in found if not isinstance(address, str)]
    expect(
        not strange, f"an address is {short(strange[:1] and strange[0])}, and should be a text with a host and a port"
    )
    places = [(name, i) for name in hosts for i in range(share)]
    truth, own = [f"{name}:{port + i}" for name, i in places], f"{hosts[host]}:{port + local}"
    others, number = [address for address in truth if address != own], truth.index(own)
    suspects = {
        "those are the addresses of one host": [f"{hosts[host]}:{port + i}" for i in range(share)],
        "each host has one address in it": [f"{name}:{port}" for name in hosts],
        "the workers of a host cannot all listen on the same port": [f"{name}:{port}" for name, _ in places],
        "its ports go on from host to host": [f"{name}:{port + number}" for number, (name, _) in enumerate(places)],
        "the workers of a host cannot share a port": [f"{name}:{port + hosts.index(name)}" for name, _ in places],
        "which port has the first worker of a host?": [f"{name}:{port + i + 1}" for name, i in places],
        "it goes through the hosts once for each port": [f"{name}:{port + i}" for i in range(share) for name in hosts],
        "is the worker itself left out? The cluster is the same for all workers": others,
        "is the worker itself the first? The cluster is the same for all workers": [own, *others],
        "does it begin with the worker itself? The cluster is the same for all workers": truth[number:]
        + truth[:number],
        "are the hosts in another order in it?": found if sorted(found) == sorted(truth) else None,
    }
    explain(
        found,
        truth,
        suspects,
        said=f"the workers are {short(found)}",
        otherwise="which ports are there on each of the hosts?",
    )


# ---- 15.3 ---------------------------------------------------------------------------------------------------------

_WORDS = ("start", "rate", "state", "device", "data")
_RIGHT_SCRIPTS = {
    "A": "what do two ranks draw after the same torch.manual_seed?",
    "B": "how many images does a step of all its ranks use?",
    "D": "which numbers does hvd.local_rank() have on a server of four GPUs?",
    "E": "which image is in two ranks' shares, and which in none?",
}
_HINTS = {
    "start": "every rank has rank 0's parameters before the first step. What else is loaded?",
    "rate": "all ranks step at one rate. What goes into a step beside the rate and the gradient?",
    "device": "it runs as it is on one GPU or many. What has rank 0 that the other ranks have not?",
    "data": "whichever images the ranks use, all have one mean gradient. What makes their steps differ?",
}


def check_15_3(wrong_script):
    """`wrong_script()` returns the letter of the wrong script, and the word for its fault."""
    run(_judge_script, wrong_script)
    return "that one it is: after its first step the replicas differ, and no error says so."


def _judge_script(wrong_script):
    letter, word = expect_row(wrong_script(), 2, of="a script's letter and a word")
    letter = letter.strip().upper() if isinstance(letter, str) else letter
    expect(
        isinstance(letter, str) and letter in tuple("ABCDE"),
        f"the first item is {short(letter)}, and the scripts are 'A' to 'E'",
    )
    words = ", ".join(map(repr, _WORDS))
    expect(isinstance(word, str) and word in _WORDS, f"the second item is {short(word)}, and the words are {words}")
    expect(letter not in _RIGHT_SCRIPTS, f"{letter} does what it should: {_RIGHT_SCRIPTS.get(letter)}")
    expect(word not in _HINTS, f"that script is wrong, and {word!r} is not why: {_HINTS.get(word)}")
