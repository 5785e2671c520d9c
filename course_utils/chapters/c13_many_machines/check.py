"""Checks of chapter 13: the numbers of ranks, an elastic loop, a batch file, the groups of a mesh."""

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ... import checkpoint
from ...checks.expect import Wrong, case, expect, expect_error, expect_row, explain, same, short, unchanged
from ...checks.judge import run, wait_for_the_others
from ...checks.watch.calls import forbid, recorded
from ...checks.watch.meeting import meet
from ...launch import WorkerError

# ---- 13.1 ---------------------------------------------------------------------------------------------------------

_NODES = (2, 2), (4, 2, 8), (1,), (1, 1, 1), (3, 1, 5, 2)
_NAMES = "GROUP_RANK", "LOCAL_RANK", "RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"


def check_13_1(environment):
    """`environment(rank, gpus)` returns what torchrun puts into the environment of a rank."""
    run(_judge_environments, environment)
    return (
        f"{sum(map(sum, _NODES))} ranks on {sum(map(len, _NODES))} nodes, equal and unequal: each finds what torchrun "
        "would tell it."
    )


def _judge_environments(environment):
    for given in _NODES:
        places = [(node, local) for node, count in enumerate(given) for local in range(count)]
        for rank, place in enumerate(places):
            with case(f"environment({rank}, {list(given)})"):
                _judge_environment(environment(rank, list(given)), rank, *place, given)
        for rank in (len(places), len(places) + 7, -1):
            with case(f"environment({rank}, {list(given)})"):
                expect_error(ValueError, lambda rank=rank, given=given: environment(rank, list(given)), naming=[rank])


def _judge_environment(found, rank, node, local, gpus):
    expect(isinstance(found, dict), f"{short(found)} came back, and a dict is asked")
    missing, more = [name for name in _NAMES if name not in found], [name for name in found if name not in _NAMES]
    expect(not missing, f"{', '.join(missing)} is missing in what came back")
    named = ", ".join(map(str, more[:3])) + f" and {len(more) - 3} more" * (len(more) > 3)
    expect(not more, f"{named} {'is' if len(more) == 1 else 'are'} in it, and none of the five")
    for name, value in found.items():
        expect(isinstance(value, str), f"{name} is {short(value)}, which os.environ would not take: it holds strings")
    truth = dict(zip(_NAMES, (node, local, rank, gpus[node], sum(gpus))))
    suspects = {
        "RANK": {"it counts within the node": local, "it is as on equal nodes": node * gpus[node] + local},
        "GROUP_RANK": {"it is as on equal nodes": rank // gpus[0], "that is a rank, and a node is asked": rank},
        "LOCAL_RANK": {
            "it is as on equal nodes": rank % gpus[0],
            "it is not counted from this node's first rank": rank,
        },
        "LOCAL_WORLD_SIZE": {"that is the first node's": gpus[0], "that is the largest node's": max(gpus)},
        "WORLD_SIZE": {"it is as on equal nodes": len(gpus) * gpus[node], "it counts nodes": len(gpus)},
    }
    for name in _NAMES:
        expected = {reason: str(value) for reason, value in suspects[name].items()}
        explain(
            found[name],
            str(truth[name]),
            expected,
            said=f"{name} is {found[name]!r}",
            otherwise="which rank is the first of its node?",
        )


# ---- 13.2 ---------------------------------------------------------------------------------------------------------

_NUM_STEPS, _BATCH = 9, 12
# (number of ranks, rank to kill, at which of its forward passes). The last two attempts finish; the second of them has
# no steps left to do. Five ranks cannot share a batch equally.
_ATTEMPTS = (5, 4, 4), (2, 0, 3), (3, None, None), (1, None, None)


def check_13_2(train_elastic):
    """`train_elastic(model, optimizer, images, labels, num_steps, path)` resumes from `path` on any number of ranks."""
    history = []  # (ranks, first step, end step) of past attempts
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        for attempt, (num_ranks, killed, when) in enumerate(_ATTEMPTS):
            begin = history[-1][2] if history else 0
            with case(f"attempt {attempt}, {num_ranks} rank{'s' * (num_ranks > 1)} from step {begin}"):
                if _goes_through(train_elastic, path, begin, num_ranks, killed, when, history):
                    history.append((num_ranks, begin, _NUM_STEPS))
                else:
                    (done,) = run(
                        _judge_saved, train_elastic, path, num_ranks, begin, killed, begin + when - 1, history
                    )
                    history.append((num_ranks, begin, done))
    return (
        "5, 2, 3 and 1 ranks in turn, two of them killed: no step twice, none left out, and the parameters of "
        "one process."
    )


def _goes_through(train_elastic, path, begin, num_ranks, killed, when, history):
    """Run one attempt and judge its results; return False if its rank was killed."""
    try:
        results = run(_train_until_killed, train_elastic, path, killed, when, world_size=num_ranks)
    except WorkerError as error:
        if killed is None or error.ranks[killed].died != -signal.SIGKILL:
            raise
        return False
    expect(
        killed is None,
        f"all ranks had returned before rank {killed} was in its forward pass number {when}: were steps left out?",
    )
    run(_judge_results, train_elastic, results, [*history, (num_ranks, begin, _NUM_STEPS)])
    steps = _NUM_STEPS - begin
    saves, images = ([result[i] for result in results] for i in (2, 3))
    expect(
        sum(saves) == steps,
        f"checkpoint.save was called {sum(saves)} times in {steps} step{'s' * (steps != 1)} (ranks 0 to "
        f"{num_ranks - 1}: {', '.join(map(str, saves))}): one rank saves, after each step",
    )
    expect(
        sum(images) == _BATCH * steps,
        f"all ranks together put {sum(images)} images through the model in {steps} step{'s' * (steps != 1)}, and "
        f"{_BATCH * steps} are asked: the ranks share the {_BATCH} of a step",
    )
    return True


def _train_until_killed(train_elastic, path, killed, when):
    (model, optimizer), (images, labels), forwards = _make(), _data(), []

    def count(module, given):
        forwards.append(given)
        if dist.get_rank() == killed and len(forwards) == when:
            os.kill(os.getpid(), signal.SIGKILL)

    model.register_forward_pre_hook(count)
    with unchanged(images=images, labels=labels), recorded(checkpoint.save) as calls:
        steps = train_elastic(model, optimizer, images, labels, _NUM_STEPS, path)
    wait_for_the_others()
    images = sum(len(batch) for (batch,) in forwards)
    return steps, [p.detach() for p in model.parameters()], len(calls["save"]), images


def _judge_results(train_elastic, results, history):
    _, begin, end = history[-1]
    for rank, (steps, parameters, *_) in enumerate(results):
        with case(f"rank {rank}"):
            steps = expect_row(steps, None, "what came back", of="the steps of this call")
            asked = f"{list(range(begin, end))} were left to do" if begin < end else "none was left to do"
            expect(steps == list(range(begin, end)), f"it made the steps {short(steps)}, and {asked}")
            suspects = _mistakes(parameters, [history])
            explain(parameters, _imitate(history), suspects, said="the parameters are not those of one process")


def _judge_saved(train_elastic, path, num_ranks, begin, killed, step, history):
    """Return the number of steps in the file, recognised by its parameters.

    The kill in `step` may have interrupted the last save. Raises Wrong if the file is missing or wrong.
    """
    expect(path.exists(), f"rank {killed} was killed in step {step}, and no file was there: when is it saved?")
    try:
        states = torch.load(path, weights_only=True)["states"].values()
    except Exception:  # torch's errors for other files vary
        raise Wrong("the file at path is none of checkpoint.save's") from None
    models = [list(state.values()) for state in states if "0.weight" in state]
    expect(models, "the model is not in the checkpoint")
    expect(
        any("param_groups" in state for state in states),
        "the optimizer is not in the checkpoint: what does it remember from step to step?",
    )
    histories = [[*history, (num_ranks, begin, done)] for done in (step, step - 1)]
    for each in histories:
        if same(models[0], _imitate(each)):
            return each[-1][2]
    said = f"rank {killed} was killed in step {step}, and the parameters in the file are not those of one process"
    explain(models[0], _imitate(histories[0]), _mistakes(models[0], histories), said=said)


def _data():
    generator = torch.Generator().manual_seed(132)
    images = torch.randn(_NUM_STEPS * _BATCH, 6, generator=generator, dtype=torch.float64)
    return images, torch.randint(4, (len(images),), generator=generator)


def _make():
    torch.manual_seed(13)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def _mistakes(found, histories):
    """Return {reason: a function that returns `found` if this mistake leads to it in one of `histories`, else None}."""
    mistakes = {
        "is the optimizer's state loaded?": [{"forgets": True}],
        "was the last saved step made again?": [{"shift": -1}],
        "was a step left out?": [{"shift": 1}],
        "did an attempt begin with the first images again?": [{"shift": None}],
        "is the checkpoint loaded at all?": [{"anew": True}],
        "is the gradient the sum of the ranks' means?": [{"weigh": lambda size, num_ranks: 1.0}],
        "is it the mean of the ranks' means, although some ranks have fewer images?": [
            {"weigh": lambda size, num_ranks: 1 / num_ranks}
        ],
        "is it a sum over images, and no mean?": [{"weigh": lambda size, num_ranks: float(size)}],
        "is it one rank's own gradient?": [
            {"alone": True, "weigh": weigh} for weigh in (_share, lambda size, num_ranks: 1.0)
        ],
        "were images left out that the ranks cannot share equally?": [
            {"drops": True, "weigh": weigh} for weigh in (_share, lambda size, num_ranks: 1 / num_ranks)
        ],
    }

    def made(variants):
        return next(
            (found for variant in variants for each in histories if same(found, _imitate(each, **variant))), None
        )

    return {reason: functools.partial(made, variants) for reason, variants in mistakes.items()}


def _share(size, num_ranks):
    return size / _BATCH


def _imitate(history, forgets=False, anew=False, shift=0, weigh=_share, alone=False, drops=False):
    """Return the parameters after the attempts in `history`, correctly or with a mistake.

    `weigh` gives the factor of a rank's mean loss.
    """
    (model, optimizer), (images, labels) = _make(), _data()
    for attempt, (num_ranks, begin, end) in enumerate(history):
        if attempt and (forgets or anew):
            model, optimizer = _make() if anew else (model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9))
        first = 0 if anew or shift is None else begin + (shift if attempt else 0)
        for step in range(first, min(first + end - begin, _NUM_STEPS)):
            x, y = (each[_BATCH * step : _BATCH * (step + 1)] for each in (images, labels))
            used = _BATCH // num_ranks * num_ranks if drops else _BATCH
            parts = [slice(rank, used, num_ranks) for rank in range(1 if alone else num_ranks)]
            optimizer.zero_grad()
            sum(weigh(len(y[part]), num_ranks) * F.cross_entropy(model(x[part]), y[part]) for part in parts).backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()]


# ---- 13.3 ---------------------------------------------------------------------------------------------------------

_JOBS = (2, 3, 20), (1, 2, 5), (3, 1, 90)  # nodes, workers on each, minutes
_NUMBERS = 41_234, 41_235, 7, 67_108_801  # of jobs; the first two may run on one node
# {number of nodes: (their names, as SLURM_JOB_NODELIST has them)}
_NODE_NAMES = {1: (["node7"], "node7"), 2: (["node7", "node9"], "node[7,9]"),
               3: (["node7", "node9", "node10"], "node[7,9-10]")}  # fmt: skip
_ARGUMENTS = "--epochs", "3", "--name", "first try"  # of the program
_IN_TASK = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
# Stand-ins for Slurm's commands on a job's first node; they start real processes, all on this machine.
_SRUN = """
import os, subprocess, sys
given, options = sys.argv[1:], []
while given and given[0].startswith("-"):
    options.append(given.pop(0))
    if options[-1] in ("-n", "-N", "-c", "--ntasks", "--nodes", "--ntasks-per-node", "--cpus-per-task"):
        options.append(given.pop(0))
nodes, tasks = int(os.environ["SLURM_NNODES"]), int(os.environ["SLURM_NTASKS"])
names = os.environ["COURSE_NODES"].split()
for task in range(tasks):
    own = {"SLURM_PROCID": task, "SLURM_LOCALID": task % (tasks // nodes), "SLURM_NODEID": task // (tasks // nodes)}
    own |= {"SLURMD_NODENAME": names[own["SLURM_NODEID"]], "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    env = os.environ | {name: str(value) for name, value in own.items()}
    ended = subprocess.run(given, env=env)
    if ended.returncode:
        sys.exit(ended.returncode)
"""
_STANDINS = {
    "srun": f"#!{sys.executable}{_SRUN}",
    "scontrol": (
        "#!/bin/sh\n[ \"$1 $2\" = 'show hostnames' ] || exit 1\nfor name in $COURSE_NODES; do echo $name; done\n"
    ),
    "hostname": "#!/bin/sh\necho ${SLURMD_NODENAME:-node7}\n",
    "program": (
        '#!/bin/sh\n[ $# = 4 ] && [ "$4" = \'first try\' ] || { echo "program was started with $# arguments: $*" >&2; '
        'exit 9; }\nenv -0 > "$COURSE_OUT/$SLURM_PROCID.$$"\n'
    ),
}


def check_13_3(batch_file):
    """`batch_file(nodes, workers_per_node, minutes, program)` returns a file for sbatch; srun starts each worker."""
    run(_judge_batch_files, batch_file)
    return (
        f"{len(_JOBS)} files: read as Slurm would, and run{_taken_by_slurm()}: each worker found its own six variables."
    )


def _taken_by_slurm():
    return " (and taken by this machine's Slurm)" if _slurm_answers() else ""


def _slurm_answers():
    return bool(shutil.which("sbatch")) and subprocess.run(["sinfo"], capture_output=True).returncode == 0


def _judge_batch_files(batch_file):
    for nodes, share, minutes in _JOBS:
        with tempfile.TemporaryDirectory() as folder, case(f"batch_file({nodes}, {share}, {minutes}, …)"):
            text = batch_file(nodes, share, minutes, shlex.join([f"{folder}/program", *_ARGUMENTS]))
            _judge_directives(text, nodes, share, minutes)
            ports = {}
            for number in _NUMBERS:
                with case(f"job {number}"):
                    ports[number] = _judge_run(text, Path(folder), nodes, share, number)
            first, second, *_ = ports.values()
            expect(
                first != second,
                f"jobs {_NUMBERS[0]} and {_NUMBERS[1]} have the same MASTER_PORT: on one node, the second would meet "
                "the first",
            )
            _hand_in(text, Path(folder))


def _judge_directives(text, nodes, share, minutes):
    """Check the #SBATCH lines, which sbatch reads only above the first command."""
    expect(isinstance(text, str), f"{short(text)} came back, and the file's text is asked")
    expect(text.startswith("#!"), "the first line must name the shell, #!/bin/bash: sbatch refuses a file without it")
    lines = text.splitlines()
    last = next((i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), len(lines))
    late = [line for line in lines[last:] if line.startswith("#SBATCH")]
    expect(not late, f"{late[:1] and late[0]!r} stands behind the first command, where sbatch no longer reads")
    asked = dict(re.findall(r"^#SBATCH +(--?[\w-]+)(?:[= ]+(\S+))?", "\n".join(lines[:last]), flags=re.MULTILINE))
    names = {"-N": "--nodes", "-n": "--ntasks", "-t": "--time", "-G": "--gpus"}
    asked = {names.get(name, name): value for name, value in asked.items()}
    expect(asked.get("--nodes") == str(nodes), f"--nodes is {asked.get('--nodes') or 'not asked for'}")
    each, in_all = asked.get("--ntasks-per-node"), asked.get("--ntasks")
    expect(each or in_all, "how many tasks are there on a node? Slurm would start one")
    is_right = each in (None, str(share)) and in_all in (None, str(nodes * share))
    expect(
        is_right,
        f"the file asks for {each or in_all} tasks {'on each node' if each else 'in all'}, and srun starts as many: a "
        "task is a worker here",
    )
    _judge_gpus(asked, nodes, share)
    found = asked.get("--time", "")
    expect(found, "--time is not asked for: a job without it waits longer, or is cut short by the partition's limit")
    seconds = _seconds(found)
    explain(
        seconds,
        minutes * 60,
        {"are those hours?": minutes * 3600, "are those seconds?": minutes},
        said=f"--time={found} is {seconds} s",
    )


def _judge_gpus(asked, nodes, share):
    """Check that there is a GPU for each worker, in one of Slurm's ways to ask for them."""
    right = {"--gpus-per-node": share, "--gres": share, "--gpus-per-task": 1, "--gpus": nodes * share}
    given = {name: asked[name] for name in right if name in asked}
    expect(given, "no GPUs are asked for, and each worker needs one")
    for name, value in given.items():
        count = value.rpartition(":")[2]
        count = "1" if name == "--gres" and count == "gpu" else count
        expect(count == str(right[name]), f"{name}={value}, and {right[name]} is one for each worker")


def _seconds(text):
    """Return the seconds of a Slurm time: [days-]hours:minutes:seconds, minutes:seconds or minutes.

    With days, minutes and seconds may be missing. Raises Wrong for another text.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    expect(match, f"--time={text} is no time of Slurm's")
    days, *parts = match.groups()
    parts = [int(part) for part in parts if part is not None]
    if days is not None:
        parts = [*parts, 0, 0][:3]
        return ((int(days) * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2]
    scale = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(parts)]
    return sum(part * each for part, each in zip(parts, scale))


def _judge_run(text, folder, nodes, share, number):
    """Run the file as a job's first node would, with a stand-in for srun, and return the MASTER_PORT."""
    for name, content in _STANDINS.items():
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    out = folder / f"out_{number}"
    out.mkdir()
    names, listed = _NODE_NAMES[nodes]
    job = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": nodes * share,
        "SLURM_NTASKS_PER_NODE": share,
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NODELIST": listed,
        "SLURM_NODELIST": listed,
        "SLURMD_NODENAME": "node7",
        "SLURM_PROCID": 0,
        "SLURM_LOCALID": 0,
        "SLURM_NODEID": 0,
    }
    mine = {name: value for name, value in os.environ.items() if name not in _IN_TASK and not name.startswith("SLURM_")}
    env = mine | {name: str(value) for name, value in job.items()}
    env |= {"PATH": f"{folder}:{os.environ['PATH']}", "COURSE_OUT": str(out), "COURSE_NODES": " ".join(names)}
    (folder / "job.sbatch").write_text(text)
    done = subprocess.run(
        ["bash", folder / "job.sbatch"], env=env, capture_output=True, text=True, timeout=5, cwd=folder
    )
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1].replace(str(folder), "…")
    expect(done.returncode == 0, f"the file failed with exit code {done.returncode}, and said: {said}")
    starts = sorted(out.iterdir())
    found = {
        int(file.stem): dict(pair.split("=", 1) for pair in file.read_text().split("\0") if "=" in pair)
        for file in starts
    }
    expect(
        len(found) == nodes * share,
        f"the program was started by {len(found)} tasks, not by {nodes * share}: what does srun run?",
    )
    expect(
        len(starts) == len(found),
        f"the program was started {len(starts)} times by {len(found)} tasks: once for each is asked",
    )
    return _judge_tasks([found[task] for task in range(nodes * share)], nodes, share, names)


def _judge_tasks(tasks, nodes, share, names):
    for task, env in enumerate(tasks):
        with case(f"task {task}"):
            missing = [name for name in _IN_TASK if not env.get(name)]
            expect(not missing, f"{' and '.join(missing)} is not in its environment, or empty: is it exported?")
            truth = {"RANK": task, "LOCAL_RANK": task % share, "WORLD_SIZE": nodes * share, "LOCAL_WORLD_SIZE": share}
            for name, value in truth.items():
                all_alike = task and env[name] == tasks[0][name] and value != 0
                why = (
                    "task 0 has the same: who replaced the variable, and when?"
                    if all_alike and "RANK" in name
                    else "which is not its own"
                )
                expect(env[name] == str(value), f"{name} is {env[name]}: {why}")
            own = env["MASTER_ADDR"] != tasks[0]["MASTER_ADDR"]
            expect(
                not own,
                f"MASTER_ADDR is {env['MASTER_ADDR']}, and task 0 has {tasks[0]['MASTER_ADDR']}: all meet at one "
                "address",
            )
            expect(
                env["MASTER_ADDR"] == names[0],
                f"MASTER_ADDR is {env['MASTER_ADDR']!r}, and the job's nodes are {', '.join(names)}: the first one's "
                "name is asked",
            )
            port = env["MASTER_PORT"]
            expect(
                port.isdecimal() and 1024 <= int(port) <= 65535,
                f"MASTER_PORT is {port}, and no port from 1024 to 65535",
            )
            expect(port == tasks[0]["MASTER_PORT"], f"MASTER_PORT is {port}, and task 0 has {tasks[0]['MASTER_PORT']}")
    return tasks[0]["MASTER_PORT"]


def _hand_in(text, folder):
    """Let this machine's Slurm, if any, check the file; nodes that it does not have are no error."""
    if not _slurm_answers():
        return
    done = subprocess.run(["sbatch", "--test-only", folder / "job.sbatch"], capture_output=True, text=True, timeout=5)
    bad = re.search(
        r"(?:unrecognized|invalid) option.*|Invalid (?:time|numeric|--).*|This does not look like a batch script.*",
        done.stderr,
    )
    expect(not bad, f"this machine's sbatch refuses the file: {bad and bad[0]}")


# ---- 13.4 ---------------------------------------------------------------------------------------------------------

_MESHES = {6: ((2, 3), (3, 2)), 4: ((2, 2), (2, 1, 2), (4,), (1, 4)), 8: ((2, 2, 2),), 1: ((1, 1),)}


def check_13_4(make_groups):
    """`make_groups(shape)` returns this rank's process group along each axis of a mesh."""
    for world_size in _MESHES:
        run(_judge_groups, make_groups, world_size=world_size)
    return (
        f"{sum(map(len, _MESHES.values()))} meshes with 1 to 3 axes: each group is made by all ranks, holds the right "
        "ones, and adds up."
    )


def _judge_groups(make_groups):
    world_size = dist.get_world_size()
    for shape in _MESHES[world_size]:
        with case(f"make_groups({shape}) on rank {dist.get_rank()}"):
            instead = "make the groups with dist.new_group"
            with forbid("torch.distributed.device_mesh", instead=instead), _new_groups_watched():
                groups = make_groups(shape)
            groups = expect_row(groups, len(shape), "what came back", of="a process group for each axis")
            for axis, group in enumerate(groups):
                with case(f"axis {axis}"):
                    _judge_group(group, shape, axis)


class _new_groups_watched:
    """Raise Wrong if the ranks' calls of dist.new_group differ, instead of a deadlock.

    The ranks meet at each call and at the end of the block.
    """

    def __enter__(self):
        self._new_group = dist.new_group

        def new_group(ranks=None, *args, **kwargs):
            if not kwargs.get("use_local_synchronization"):
                self._meet(f"new_group({sorted(map(int, ranks)) if ranks is not None else 'all'})")
            return self._new_group(ranks, *args, **kwargs)

        dist.new_group = new_group

    def __exit__(self, kind, *error):
        dist.new_group = self._new_group
        if kind is None:
            self._meet("the end of your function")

    def _meet(self, what):
        told = meet(what)
        for rank, other in enumerate(told):
            expect(
                other == told[0],
                f"rank 0 came to {told[0]} and rank {rank} to {other}: new_group is called by all ranks, for every "
                "group, in one order",
            )


def _judge_group(group, shape, axis):
    expect(group is not dist.GroupMember.NON_GROUP_MEMBER, "the group is one that this rank is not in")
    expect(isinstance(group, dist.ProcessGroup), f"{short(group)} stands there, not a process group")
    rank, mesh = dist.get_rank(), torch.arange(dist.get_world_size())
    found, truth = dist.get_process_group_ranks(group), _lines(mesh.view(shape), axis, rank)
    others = {
        "those are the ranks of another axis": next(
            (
                line
                for other in range(len(shape))
                if other != axis and (line := _lines(mesh.view(shape), other, rank)) == found
            ),
            None,
        ),
        "does the first axis change fastest in your mesh?": _lines(
            mesh.view(shape[::-1]).permute(*range(len(shape))[::-1]), axis, rank
        ),
        "those are all ranks": list(range(len(mesh))),
    }
    explain(
        found,
        truth,
        others,
        said=f"the group has the ranks {found}",
        otherwise="which ranks differ from this one on this axis only?",
    )
    x = torch.tensor([10.0**rank], dtype=torch.float64)
    dist.all_reduce(x, group=group)
    expect(
        x.item() == sum(10.0**other for other in truth), "an all-reduce in the group did not add up its ranks' numbers"
    )


def _lines(mesh, axis, rank):
    """Return the ranks on the line along `axis` of the mesh through `rank`."""
    lines = mesh.movedim(axis, -1).reshape(-1, mesh.shape[axis])
    return next(line for line in lines.tolist() if rank in line)
