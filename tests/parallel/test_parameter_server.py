"""A parameter server equals one process if no worker is stale, keeps its staleness bound, and reports who has ended."""

import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_utils import WorkerError, launch, models
from course_utils.data import load_images
from course_utils.parallel import messages
from course_utils.parallel.parameter_server import (
    Asynchronous,
    BoundedDelay,
    Client,
    Plan,
    Scaled,
    Served,
    ServerGone,
    Synchronous,
    WorkerGone,
    schedule,
    serve,
    wire,
)  # fmt: skip

EXACT = {"rtol": 1e-9, "atol": 1e-12}
BATCH, STEPS = 24, 6
digits = load_images("digits", size=16)
X, Y = digits.images[: BATCH * STEPS], digits.labels[: BATCH * STEPS]


def run(worker, *args, world_size, **kwargs):
    return launch(worker, *args, world_size=world_size, backend="gloo", timeout=60, **kwargs)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def digits_net(dtype):
    torch.manual_seed(0)
    model = models.DigitsNet().to(dtype)
    return model, dict(model.named_parameters())


@functools.cache
def alone(optimizer=sgd, dtype=torch.float64):
    model, parameters = digits_net(dtype)
    optimizer = optimizer(model.parameters())
    for x, y in zip(X.to(dtype).split(BATCH), Y.split(BATCH)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: p.detach() for name, p in parameters.items()}


def ranks(num_servers, num_workers, num_spares=0):
    last = num_servers + num_workers
    return range(num_servers), range(num_servers, last), range(last, last + num_spares)


def take_part(num_servers, num_workers, rule, optimizer=sgd, dtype=torch.float64, adding=None):
    """Train the digits' network; `adding` is {step: spare that then begins to serve}."""
    adding = adding or {}
    model, parameters = digits_net(dtype)
    plan = Plan(parameters, *ranks(num_servers, num_workers, len(adding)))
    if dist.get_rank() not in plan.workers:
        return serve(plan, parameters, optimizer, rule)
    client = Client(plan)
    share = plan.workers.index(dist.get_rank())
    for step, (x, y) in enumerate(zip(X.to(dtype).split(BATCH), Y.split(BATCH))):
        if step in adding:
            client.add_server(adding[step])
        client.pull(parameters)
        model.zero_grad()
        x, y = x.chunk(num_workers)[share], y.chunk(num_workers)[share]
        (F.cross_entropy(model(x), y) * len(x) / BATCH).backward()
        client.push({name: p.grad for name, p in parameters.items()})
    client.pull(parameters)
    client.leave()
    return {name: p.detach() for name, p in parameters.items()}


def served(results):
    """What the servers held at the end, combined, and the Served of those that held something."""
    told = [result for result in results if isinstance(result, Served) and result.parameters]
    keys = [name for one in told for name in one.parameters]
    assert len(keys) == len(set(keys))  # each on one server
    return {name: tensor for one in told for name, tensor in one.parameters.items()}, told


# ---- The same as one process


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_synchronous_equals_one_process(num_servers):
    results = run(take_part, num_servers, 2, Synchronous(), world_size=num_servers + 2).results
    found, told = served(results)
    for parameters in (found, *results[num_servers:]):
        torch.testing.assert_close(parameters, {name: alone()[name] for name in parameters}, **EXACT)
    assert found.keys() == alone().keys()
    for one in told:
        assert one.num_updates == STEPS and len(one.pushes) == 2 * STEPS and not one.lost
        assert {(push.staleness, push.ahead) for push in one.pushes} == {(0, 0)}


def test_synchronous_in_float32_and_with_adam():
    found, _ = served(run(take_part, 2, 3, Synchronous(), sgd, torch.float32, world_size=5).results)
    torch.testing.assert_close(found, {name: alone(sgd, torch.float32)[name] for name in found})
    found, _ = served(run(take_part, 2, 2, Synchronous(), adam, world_size=4).results)
    torch.testing.assert_close(found, {name: alone(adam)[name] for name in found}, **EXACT)


def test_twice_the_same_bits():
    twice = [served(run(take_part, 1, 3, Synchronous(), world_size=4).results)[0] for _ in range(2)]
    assert all(torch.equal(tensor, twice[1][name]) for name, tensor in twice[0].items())


@pytest.mark.parametrize("rule", [Asynchronous(), BoundedDelay(0), BoundedDelay(3)], ids=repr)
def test_one_worker_alone_is_never_stale(rule):
    found, told = served(run(take_part, 2, 1, rule, world_size=3).results)
    torch.testing.assert_close(found, {name: alone()[name] for name in found}, **EXACT)
    assert all(push.staleness == 0 for one in told for push in one.pushes)


def push_twice(rule):
    held = {"w": torch.zeros(2)}
    plan = Plan(held, [0], [1])
    if dist.get_rank() == 0:
        return serve(plan, held, lambda parameters: torch.optim.SGD(parameters, lr=1.0), rule)
    client = Client(plan)
    client.pull(held)
    for _ in range(3):  # the second gradient has missed one update, the third one two
        client.push({"w": torch.ones(2)})
    client.leave()


@pytest.mark.parametrize(("rule", "moved"), [(Asynchronous(), 3), (Scaled(), 1 + 1 / 2 + 1 / 3)], ids=repr)
def test_a_scaled_rule_weighs_a_gradient_by_its_staleness(rule, moved):
    told = run(push_twice, rule, world_size=2)[0]
    assert [push.staleness for push in told.pushes] == [0, 1, 2]
    torch.testing.assert_close(told.parameters["w"], torch.full((2,), -float(moved)))


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_servers_are_added_while_it_trains_and_the_optimizers_state_goes_along(optimizer):
    # Rank 4 serves from step 2 on, rank 3 from step 4 on, taking keys from three servers.
    results = run(take_part, 1, 2, Synchronous(), optimizer, adding={2: 4, 4: 3}, world_size=5).results
    found, told = served(results)
    assert len(told) == 3
    torch.testing.assert_close(found, {name: alone(optimizer)[name] for name in found}, **EXACT)
    for parameters in results[1:3]:
        torch.testing.assert_close(parameters, alone(optimizer), **EXACT)


def test_a_spare_that_nobody_needs_ends_with_the_others():
    def train():
        plan = Plan({"w": torch.zeros(2)}, [0], [1], [2])
        if dist.get_rank() != 1:
            return serve(plan, {"w": torch.zeros(2)}, sgd, Asynchronous())
        Client(plan).leave()

    results = run(train, world_size=3).results
    assert results[2] == Served()


# ---- Which key lies where


def test_keys_are_dealt_out_by_bytes_and_whole():
    _, parameters = digits_net(torch.float32)
    plan = Plan(parameters, [0, 1, 2], [3])
    assert sorted(name for held in plan.held.values() for name in held) == sorted(parameters)
    assert plan.held[0] == ["fc1.weight"] and sum(map(plan.bytes_of, plan.servers)) == 4 * 38_282
    assert plan.bytes_of(1) == 4 * 4608 and plan.bytes_of(2) == 4 * (38_282 - 32_768 - 4608)


def test_adding_a_server_moves_keys_to_it_alone():
    tensors = {f"w{i}": torch.zeros(10) for i in range(12)}
    plan = Plan(tensors, [0, 1], [5], [2, 3])
    for rank, wanted in ((2, 4), (3, 3)):
        before, plan = plan, plan.with_server(rank)
        assert [len(held) for held in plan.held.values()] == [wanted] * len(plan.servers)
        for server in before.servers:
            assert set(plan.held[server]) <= set(before.held[server])
    assert plan.spares == () and before.spares == (3,)  # the earlier plan is what it was


# ---- Sparse keys

ROWS = [[0, 3, 3], [3, 7], [9], [0, 1, 2]]


def embed(num_workers, rows):
    torch.manual_seed(0)
    table = nn.Embedding(1000, 4, sparse=True).double()
    head = nn.Linear(4, 1).double()
    parameters = {"table": table.weight, "head": head.weight}
    plan = Plan(parameters, [0], range(1, 1 + num_workers))
    make = lambda parameters: torch.optim.SGD(parameters, lr=0.5)
    if dist.get_rank() == 0:
        return serve(plan, parameters, make, Synchronous())
    client = Client(plan)
    table.weight.data.zero_()  # what is not pulled must not matter
    with messages.Traffic() as traffic:
        for step in rows:
            mine = torch.tensor(step)
            client.pull(parameters, rows={"table": mine})
            table.zero_grad()
            head.zero_grad()
            (head(table(mine)).square().sum() * dist.get_rank()).backward()
            client.push({"table": table.weight.grad, "head": head.weight.grad})
    client.leave()
    return traffic.sent_bytes, traffic.received_bytes


def test_of_sparse_keys_only_rows_travel():
    results = run(embed, 2, ROWS, world_size=3).results
    torch.manual_seed(0)
    table, head = nn.Embedding(1000, 4).double(), nn.Linear(4, 1).double()
    optimizer = torch.optim.SGD([table.weight, head.weight], lr=0.5)
    for step in ROWS:
        optimizer.zero_grad()
        (head(table(torch.tensor(step))).square().sum() * 3).backward()
        optimizer.step()
    torch.testing.assert_close(
        results[0].parameters, {"table": table.weight.detach(), "head": head.weight.detach()}, **EXACT
    )
    distinct = sum(len(set(step)) for step in ROWS)
    about = 8 * (4 * len(ROWS) + distinct)  # two keys, each with its place and its number of rows
    values = 8 * (4 * distinct + 4 * len(ROWS))
    for sent, received in results[1:]:
        assert sent == len(ROWS) * 2 * wire.HEADER_BYTES + 2 * about + values
        assert received == len(ROWS) * wire.HEADER_BYTES + values


def test_sparse_gradients_are_checked_without_a_warning():
    """In torch 2.11, a warning came in the first sparse step of a process, beside what students read."""
    program = """
import torch
from course_utils.parallel.parameter_server.shard import Shard
shard = Shard({"table": torch.zeros(4, 3)}, lambda parameters: torch.optim.SGD(parameters, lr=1.0))
for _ in range(2):
    gradients = [shard.gradients({"table": torch.tensor([0, 2])}, torch.ones(6)) for _ in range(2)]
    shard.update(gradients)
assert shard.parameters["table"].sum() == -24
try:
    shard.gradients({"table": torch.tensor([0, 4])}, torch.ones(6))
except RuntimeError as error:
    assert "found index 4" in str(error), error
else:
    raise AssertionError("a row that the table lacks was taken")
"""
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], check=True, timeout=120)


# ---- Staleness


def sleep_and_push(num_workers, num_pushes, rule, longest_s):
    parameters = {"w": torch.zeros(2, dtype=torch.float64)}
    plan = Plan(parameters, *ranks(1, num_workers))
    if dist.get_rank() == 0:
        return serve(plan, parameters, lambda parameters: torch.optim.SGD(parameters, lr=1.0), rule)
    client, chance = Client(plan), random.Random(dist.get_rank())
    for _ in range(num_pushes // num_workers):
        client.pull(parameters)
        if chance.random() < 0.1:
            time.sleep(longest_s * chance.random())
        client.push({"w": torch.ones(2, dtype=torch.float64)})
    client.leave()


@pytest.mark.parametrize("tau, num_pushes, longest_s", [(0, 400, 0.004), (1, 400, 0.004), (4, 1000, 0.04)])
def test_never_staler_than_the_bound(tau, num_pushes, longest_s):
    num_workers = 4
    told = run(sleep_and_push, num_workers, num_pushes, BoundedDelay(tau), longest_s, world_size=5)[0]
    assert len(told.pushes) == told.num_updates == num_pushes
    assert told.parameters["w"].tolist() == [-num_pushes] * 2  # every gradient went in, once
    assert max(push.ahead for push in told.pushes) == tau  # the bound is kept, and reached
    assert max(push.staleness for push in told.pushes) <= (num_workers - 1) * (2 * tau + 1)


def test_without_a_bound_a_worker_may_be_far_ahead():
    told = run(sleep_and_push, 4, 800, Asynchronous(), 0.1, world_size=5)[0]
    assert max(push.ahead for push in told.pushes) > 10
    assert told.parameters["w"].tolist() == [-800] * 2


# ---- Bytes


def count_bytes(num_servers, num_workers, num_steps):
    parameters = {f"w{i}": torch.zeros(100 * (i + 1)) for i in range(7)}
    plan = Plan(parameters, *ranks(num_servers, num_workers))
    if dist.get_rank() in plan.servers:
        return serve(plan, parameters, sgd, Synchronous())
    client = Client(plan)
    with messages.Traffic() as traffic:
        for _ in range(num_steps):
            client.pull(parameters)
            client.push(parameters)
    client.leave()
    return traffic.sent, [plan.bytes_of(server) for server in plan.servers]


@pytest.mark.parametrize("num_servers, num_workers", [(1, 1), (1, 4), (2, 3), (3, 2)])
def test_bytes_into_a_server_are_the_formulas(num_servers, num_workers):
    results = run(count_bytes, num_servers, num_workers, 3, world_size=num_servers + num_workers).results
    into = dict.fromkeys(range(num_servers), 0)
    for sent, held in results[num_servers:]:
        for server, num_bytes in sent:
            into[server] += num_bytes
    assert into == {server: 3 * num_workers * (held[server] + 2 * wire.HEADER_BYTES) for server in into}


# ---- Somebody is gone


def train_until_one_dies(rule, num_steps):
    """Worker 3 kills itself before its fifth step; tell when that was, and what became of the others."""
    parameters = {"w": torch.zeros(1000)}
    plan = Plan(parameters, [0], [1, 2, 3])
    if dist.get_rank() == 0:
        return serve(plan, parameters, sgd, rule)
    client = Client(plan)
    died_s = torch.zeros((), dtype=torch.float64)
    for step in range(num_steps):
        try:
            client.pull(parameters)
        except WorkerGone as error:
            return time.monotonic(), str(error)
        if dist.get_rank() == 3 and step == 4:
            print(time.monotonic(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        client.push(parameters)
        time.sleep(0.01)
    client.leave()
    return died_s.item()


@pytest.mark.alone
@pytest.mark.parametrize("rule", [Asynchronous(), BoundedDelay(2), Synchronous()], ids=repr)
def test_a_worker_is_killed(rule):
    found = run(train_until_one_dies, rule, 100, world_size=4, keep_going=True)
    assert list(found.failures) == [3]
    died_s, told = float(found.logs[3]), found[0]
    assert next(iter(told.lost)) == 3  # where the others cannot go on, they end without a word, too
    later = [push.time_s for push in told.pushes if push.time_s > died_s]
    if rule.adds_up:
        for when, said in found.results[1:3]:
            assert when - died_s < 2
            assert said.startswith("worker 3 is gone: the synchronous rule adds up the gradients of all workers")
        assert told.num_updates == 4
    else:
        assert min(later) - died_s < 2 and len(later) > 150
        assert told.num_updates == len(told.pushes) == 204  # 4 of the one that died


def push_until_one_dies(dying, num_bytes):
    """Two workers push large gradients; `dying` is killed within one of the pushes, which take nearly all the time."""
    parameters = {"w": torch.zeros(num_bytes // 4), "b": torch.zeros(1)}
    plan = Plan(parameters, [0, 1], [2, 3])
    pids = [None] * 4
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() in plan.servers:
        return serve(plan, parameters, lambda parameters: torch.optim.SGD(parameters, lr=0.1), Asynchronous())
    client = Client(plan)
    if dist.get_rank() == 3:
        threading.Timer(0.5, os.kill, (pids[dying], signal.SIGKILL)).start()
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + 3:
            client.push(parameters)
    except ServerGone as error:
        return time.monotonic() - begun, str(error)
    client.leave()
    return client.step


def test_a_server_is_killed_in_the_middle_of_a_push():
    found = run(push_until_one_dies, 0, 64 << 20, world_size=4, keep_going=True)
    assert list(found.failures) == [0]
    for took_s, said in found.results[2:]:
        assert said.startswith("server 0 is gone, and with it w: no worker can go on without them")
        assert took_s < 0.5 + wire.PATIENCE_S + 2
    assert not [p for p in psutil.Process().children(recursive=True) if p.name().startswith("rank ")]


def test_a_worker_is_killed_in_the_middle_of_a_push():
    found = run(push_until_one_dies, 2, 64 << 20, world_size=4, keep_going=True)
    assert list(found.failures) == [2]
    for told in found.results[:2]:
        assert list(told.lost) == [2]
        of_each = [sum(push.worker == worker for push in told.pushes) for worker in (2, 3)]
        assert of_each[1] == found[3] and told.num_updates == sum(of_each)  # half a gradient counts for nothing
        assert told.pushes[-1].worker == 3 and of_each[0] < of_each[1]


# ---- The end of training


def train_until_told(rule, last, num_servers):
    parameters = {"w": torch.zeros(3), "b": torch.zeros(2)}
    plan = Plan(parameters, *ranks(num_servers, 3))
    if dist.get_rank() in plan.servers:
        end = (lambda num_updates, _: num_updates == last) if dist.get_rank() == 0 else None
        return serve(plan, parameters, lambda parameters: torch.optim.SGD(parameters, lr=1.0), rule, watch=end)
    client = Client(plan)
    while client.pull(parameters):
        client.push({name: torch.ones_like(p) for name, p in parameters.items()})
    client.leave()
    return client.step


@pytest.mark.parametrize("num_servers", [1, 2])
@pytest.mark.parametrize("rule", [Asynchronous(), BoundedDelay(2), Synchronous()], ids=repr)
def test_a_server_ends_the_training(rule, num_servers):
    first, *others = run(train_until_told, rule, 20, num_servers, world_size=num_servers + 3)
    num_gradients = 20 * (3 if rule.adds_up else 1)
    assert first.num_updates == 20 and len(first.pushes) == num_gradients and not first.lost  # all of them whole
    assert {value for p in first.parameters.values() for value in p.tolist()} == {-num_gradients}
    steps = others[num_servers - 1 :]
    # one under way from each of the others, at most
    assert steps == [20] * 3 if rule.adds_up else 20 <= sum(steps) <= 22


def leave_early(num_steps):
    parameters = {"w": torch.zeros(1)}
    plan = Plan(parameters, [0], [1, 2])
    if dist.get_rank() == 0:
        return serve(plan, parameters, lambda parameters: torch.optim.SGD(parameters, lr=1.0), Synchronous())
    client = Client(plan)
    try:
        for _ in range(num_steps[dist.get_rank() - 1]):
            client.pull(parameters)
            client.push({"w": torch.ones(1)})
    except WorkerGone as error:
        return str(error)
    client.leave()
    return client.step


def test_a_sum_is_never_that_of_some_workers_only():
    served, five, said = run(leave_early, (5, 8), world_size=3)
    assert served.num_updates == five == 5 and served.parameters["w"].item() == -10
    assert said.startswith("worker 1 is gone: the synchronous rule adds up")


# ---- What cannot be right


def expect(error, text):
    return pytest.raises(error, match=text)


def test_what_a_plan_refuses():
    two = {"a": torch.zeros(1), "b": torch.zeros(2)}
    with expect(
        ValueError, "3 servers cannot share 2 keys, since a key lies on one server, whole: take 2 servers at most"
    ):
        Plan(two, range(3), [3])
    with expect(ValueError, r"servers \(0, 1\), workers \(1, 2\)"):
        Plan(two, [0, 1], [1, 2])
    with expect(ValueError, "one server and one worker at least"):
        Plan(two, [0], [])
    with expect(ValueError, r"need one dtype, and have \['torch.float32', 'torch.int64'\]"):
        Plan(two | {"c": torch.zeros(1, dtype=torch.int64)}, [0], [1])
    with expect(ValueError, "no key that rank 3 could take over"):
        Plan(two, [0, 1], [2], [3]).with_server(3)
    with expect(ValueError, r"rank 5 is not one of the spares \(3,\)"):
        Plan(two, [0], [2], [3]).with_server(5)


@pytest.mark.parametrize("tau", [-1, 1.5, True, None])
def test_a_bound_is_a_number_of_steps(tau):
    with expect(ValueError, f"a whole number from 0 up, not {tau}"):
        BoundedDelay(tau)


def ask_for_what_is_not_there():
    held = {"w": torch.zeros(3), "b": torch.zeros(2, 2)}
    plan = Plan(held, [0], [1])
    if dist.get_rank() == 0:
        return serve(plan, held, sgd, Synchronous()).num_updates
    client, said = Client(plan), []
    for wrong in (
        lambda: client.pull(held | {"v": torch.zeros(3)}),
        lambda: client.push({"v": torch.zeros(3)}),
        lambda: client.push(held | {"w": torch.zeros(1)}),
        lambda: client.push(held | {"w": torch.zeros(3, dtype=torch.float64)}),
        lambda: client.pull({"w": held["w"]}, rows={"b": torch.tensor([0])}),
        lambda: client.pull(held, rows={"b": torch.tensor([2])}),
    ):
        try:
            wrong()
        except ValueError as error:
            said.append(str(error))
    client.pull(held)  # it all works as before
    client.push(held)
    client.leave()
    return said


def test_a_key_that_no_server_holds_another_shape_and_dtype():
    num_updates, said = run(ask_for_what_is_not_there, world_size=2).results
    assert num_updates == 1
    assert said == [
        "no server holds the key 'v'; the keys are w, b",
        "no server holds the key 'v'; the keys are w, b",
        "w has the shape (1,) here and (3,) on its server",
        "w is torch.float64 here and torch.float32 on its server",
        "rows are asked for of 'b', which is not pulled",
        "b has 2 rows, from 0 on: there is no row 2",
    ]


def serve_as_a_worker():
    return serve(Plan({"w": torch.zeros(3)}, [0], [1]), {"w": torch.zeros(3)}, sgd, Synchronous())


def test_a_rank_that_does_not_serve_says_so():
    with expect(WorkerError, r"rank 1: ValueError: rank 1 does not serve: the servers are \(0,\), the spares \(\)"):
        run(serve_as_a_worker, world_size=2)


def fail_in_the_optimizer():
    held = {"w": torch.zeros(3)}
    plan = Plan(held, [0], [1])
    if dist.get_rank() == 0:
        return serve(plan, held, sgd, Asynchronous(), watch=lambda *_: 1 / 0)
    client = Client(plan)
    for _ in range(3):
        client.pull(held)
        client.push(held)


def test_what_fails_in_a_servers_thread_fails_the_server():
    with expect(WorkerError, "rank 0: ZeroDivisionError"):
        run(fail_in_the_optimizer, world_size=2)


# ---- What would be, without messages


@pytest.mark.parametrize(
    "rule, fast, slow", [(Synchronous(), 3, 3), (BoundedDelay(2), 5, 3), (Asynchronous(), 12, 3)], ids=repr
)
def test_a_schedule_keeps_the_rule(rule, fast, slow):
    steps = schedule(rule, [1, 1, 4], until=12)
    assert [sum(step.worker == worker for step in steps) for worker in range(3)] == [fast, fast, slow]
    for step in steps:
        done = [sum(other.end <= step.begin for other in steps if other.worker == worker) for worker in range(3)]
        assert done[step.worker] == step.step and rule.may_begin(step.step, dict(enumerate(done)))
        assert step.end - step.begin == [1, 1, 4][step.worker]
