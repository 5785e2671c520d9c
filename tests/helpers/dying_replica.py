"""A replica that kills itself where the plan says: `dying_replica.py ADDRESS NUMBER FILE PLAN`, a program of its own.

PLAN is a list of deaths that come together, {number: point} each. Each comes when all that were to die before are gone
and four are there again. Two steps after the last one the training ends, and FILE gets the parameters.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from course_utils.parallel.membership import Member

NUM_SAMPLES, BATCH_SIZE, WIDTH = 96, 23, 40  # the batch is not divisible


def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(NUM_SAMPLES, WIDTH, generator=generator, dtype=torch.float64)


def make_model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 3)
    model = torch.nn.Sequential(*layers).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batch_of(step):
    return torch.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE) % NUM_SAMPLES


def gradient(model, x):
    """The sum over samples of each parameter's gradient, in three buckets, and the number of samples behind it."""
    model.zero_grad()
    model(x).square().sum().backward()
    parts = [parameter.grad.flatten() for parameter in model.parameters()]
    return torch.cat([*parts, torch.tensor([float(len(x))], dtype=torch.float64)]).chunk(3)


def apply(model, optimizer, sums):
    *parts, count = torch.cat(list(sums)).split([*(p.numel() for p in model.parameters()), 1])
    for parameter, part in zip(model.parameters(), parts, strict=True):
        parameter.grad = (part / count).view_as(parameter)
    optimizer.step()


step = 0  # of this replica, now


def die(*_):
    print(json.dumps({"died": int(sys.argv[2]), "step": step, "time_s": time.time()}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


class _DyingStore(dist.Store):
    """A store whose user dies once it has published its own address, before it reads another's."""

    def __init__(self, store):
        super().__init__()
        self._store = store

    def set(self, key, value):
        self._store.set(key, value)

    get = wait = multi_get = check = die


def prepare(member, point):
    """Have `member` die at `point` of the step that begins."""
    if point == "compute":
        die()
    elif point.startswith("bucket"):
        at, usual = int(point.split()[1]), member.all_reduce

        def all_reduce(tensors):
            if usual(tensors[:at]):
                member._group.allreduce([tensors[at]])  # has begun; others have its first messages, or not
                if point.endswith("later"):
                    time.sleep(0.002)
            die()

        member.all_reduce = all_reduce
    elif point == "before the vote":
        member.commit = die
    elif point == "after the vote":
        member._hear_outcome = die
    elif point == "outcome":
        usual_commit = member.commit
        member.commit = lambda ok: usual_commit(ok) and die()
    elif point == "group":
        member._make_group = die
    elif point == "published":
        usual_store = dist.PrefixStore
        dist.PrefixStore = lambda *arguments: _DyingStore(usual_store(*arguments))
    elif point == "made":
        usual_made = member._make_group
        member._make_group = lambda: (usual_made(), die())
    elif point == "state":
        member._share_state = die
    elif point == "state sent":
        usual_share = member._share_state
        member._share_state = lambda *arguments: (usual_share(*arguments), die())
    else:
        raise ValueError(point)


def main(address, number, file, plan):
    global step
    torch.set_num_threads(1)
    number, plan = int(number), json.loads(plan)
    own = next((at for at, deaths in enumerate(plan) if str(number) in deaths), None)
    before = {int(each) for deaths in plan[:own] for each in deaths}
    x, (model, optimizer) = samples(), make_model()
    with Member(address, number) as member:
        last, is_armed = None, False
        if own is not None and plan[own][str(number)].startswith("arriving"):
            prepare(member, plan[own][str(number)].partition(" ")[2])
        while last is None or step <= last:
            step = member.meet(step, model, optimizer)
            is_full = member.world_size == 4 and not before.intersection(member.members)
            if own is None and is_full and last is None:
                last = step + 2
            if own is not None and is_full and not is_armed:
                is_armed = True
                prepare(member, plan[own][str(number)])
            shares = batch_of(step).tensor_split(member.world_size)
            buckets = gradient(model, x[shares[member.rank]])
            is_committed = False
            while not is_committed:
                member.meet(step, model, optimizer)
                sums = [bucket.clone() for bucket in buckets]
                is_committed = member.commit(member.all_reduce(sums))
            apply(model, optimizer, sums)
            step += 1
    torch.save([step, *(p.detach() for p in model.parameters()), *optimizer.state_dict()["state"].values()], file)


if __name__ == "__main__":
    main(*sys.argv[1:])
