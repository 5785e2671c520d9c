"""Exercise 10.3: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.distributed as dist


def _start(shard, asynchronous=True):
    gathered = shard.new_empty(shard.numel() * dist.get_world_size())
    return dist.all_gather_into_tensor(gathered, shard, async_op=asynchronous), gathered


def _weight(gathered, shape):
    return gathered[: shape[0] * shape[1]].view(shape)


def gathers_when_needed(shards, shapes, x):
    for shard, shape in zip(shards, shapes):
        work, gathered = _start(shard)
        work.wait()
        x = torch.tanh(x @ _weight(gathered, shape).T)
    return x


def gathers_all_first(shards, shapes, x):
    started = [_start(shard) for shard in shards]
    for (work, gathered), shape in zip(started, shapes):
        work.wait()
        x = torch.tanh(x @ _weight(gathered, shape).T)
    return x


def waits_inside(shards, shapes, x):
    following = _start(shards[0], False)[1]
    for i, shape in enumerate(shapes):
        weight = _weight(following, shape)
        if i + 1 < len(shapes):
            following = _start(shards[i + 1], False)[1]
        x = torch.tanh(x @ weight.T)
    return x


def never_waits(shards, shapes, x):
    following = _start(shards[0])[1]
    for i, shape in enumerate(shapes):
        weight = _weight(following, shape)
        if i + 1 < len(shapes):
            following = _start(shards[i + 1])[1]
        x = torch.tanh(x @ weight.T)
    return x


def waits_after_computing(shards, shapes, x):
    work, gathered = _start(shards[0])
    for i, shape in enumerate(shapes):
        weight, before = _weight(gathered, shape), work
        if i + 1 < len(shapes):
            work, gathered = _start(shards[i + 1])
        x = torch.tanh(x @ weight.T)
        before.wait()
    return x


def starts_after_computing(shards, shapes, x):
    work, gathered = _start(shards[0])
    for i, shape in enumerate(shapes):
        work.wait()
        x = torch.tanh(x @ _weight(gathered, shape).T)
        if i + 1 < len(shapes):
            work, gathered = _start(shards[i + 1])
    return x


def two_ahead(shards, shapes, x):
    started = [_start(shards[0]), _start(shards[1])]
    for i, shape in enumerate(shapes):
        work, gathered = started.pop(0)
        work.wait()
        if i + 2 < len(shapes):
            started.append(_start(shards[i + 2]))
        x = torch.tanh(x @ _weight(gathered, shape).T)
    return x


def keeps_every_weight(shards, shapes, x):
    weights, following = [], _start(shards[0])
    for i, shape in enumerate(shapes):
        work, gathered = following
        work.wait()
        weights.append(gathered)
        if i + 1 < len(shapes):
            following = _start(shards[i + 1])
        x = torch.tanh(x @ _weight(gathered, shape).T)
    return x


def cuts_the_wrong_end(shards, shapes, x):
    following = _start(shards[0])
    for i, (rows, columns) in enumerate(shapes):
        work, gathered = following
        work.wait()
        weight = gathered[gathered.numel() - rows * columns :].view(rows, columns)
        if i + 1 < len(shapes):
            following = _start(shards[i + 1])
        x = torch.tanh(x @ weight.T)
    return x


def ignores_the_padding(shards, shapes, x):
    following = _start(shards[0])
    for i, shape in enumerate(shapes):
        work, gathered = following
        work.wait()
        weight = gathered.view(shape)
        if i + 1 < len(shapes):
            following = _start(shards[i + 1])
        x = torch.tanh(x @ weight.T)
    return x


def forgets_the_last_tanh(shards, shapes, x):
    following = _start(shards[0])
    for i, shape in enumerate(shapes):
        work, gathered = following
        work.wait()
        weight = _weight(gathered, shape)
        if i + 1 < len(shapes):
            following = _start(shards[i + 1])
            x = torch.tanh(x @ weight.T)
    return x @ weight.T


def uses_its_shards_alone(shards, shapes, x):
    for shard, (rows, columns) in zip(shards, shapes):
        whole = shard.repeat(dist.get_world_size())[: rows * columns]
        x = torch.tanh(x @ whole.view(rows, columns).T)
    return x


def returns_nothing(shards, shapes, x):
    two_ahead(shards, shapes, x)


def waits_as_soon_as_it_has_started(shards, shapes, x):
    work, following = _start(shards[0])
    work.wait()
    for i, shape in enumerate(shapes):
        weight = _weight(following, shape)
        if i + 1 < len(shapes):
            work, following = _start(shards[i + 1])
            work.wait()
        x = torch.tanh(x @ weight.T)
    return x


def keeps_copies(shards, shapes, x):
    following, copies = _start(shards[0]), []
    for i, shape in enumerate(shapes):
        following[0].wait()
        copies.append(_weight(following[1], shape).clone())
        following = _start(shards[i + 1]) if i + 1 < len(shapes) else None
        x = torch.tanh(x @ copies[i].T)
    return x


def gathers_the_first_once_more(shards, shapes, x):
    following = _start(shards[0])
    for i, shape in enumerate(shapes):
        following[0].wait()
        weight = _weight(following[1], shape)
        following = _start(shards[(i + 1) % len(shards)])
        x = torch.tanh(x @ weight.T)
    return x


def averages_the_activations(shards, shapes, x):
    following = _start(shards[0])
    for i, shape in enumerate(shapes):
        following[0].wait()
        weight = _weight(following[1], shape)
        following = _start(shards[i + 1]) if i + 1 < len(shapes) else None
        x = torch.tanh(x @ weight.T)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x


WRONG = [
    (gathers_when_needed, "the gather of layer 1 had not been started"),
    (gathers_all_first, "5 gathered weights were alive at once"),
    (waits_inside, "waited inside an all-gather"),
    (never_waits, "never waited for 5 of its gathers"),
    (waits_after_computing, "read before its gather was waited for"),
    (starts_after_computing, "the gather of layer 1 had not been started"),
    (two_ahead, "3 gathered weights were alive at once"),
    (keeps_every_weight, "gathered weights were alive at once"),
    (cuts_the_wrong_end, "which are padding?"),
    (ignores_the_padding, "is invalid for input of size"),
    (forgets_the_last_tanh, "differs by"),
    (uses_its_shards_alone, "called no all-gather"),
    (returns_nothing, "returned None"),
    (waits_as_soon_as_it_has_started, "had been waited for already"),
    (keeps_copies, "5 gathered weights were alive at once"),
    (gathers_the_first_once_more, "gathered 6 times for 5 layers"),
    (averages_the_activations, "differs by"),
]


def with_lists(shards, shapes, x):
    def start(i):
        parts = [torch.empty_like(shards[i]) for _ in range(dist.get_world_size())]
        return parts, dist.all_gather(parts, shards[i], async_op=True)

    pending = [start(0)]
    for i, (rows, columns) in enumerate(shapes):
        parts, work = pending.pop()
        work.wait()
        weight = torch.cat(parts)[: rows * columns].view(rows, columns)
        del parts
        if i + 1 < len(shapes):
            pending.append(start(i + 1))
        x = (x @ weight.T).tanh()
    return x


def with_two_buffers(shards, shapes, x):
    longest = max(shard.numel() for shard in shards) * dist.get_world_size()
    buffers = [shards[0].new_empty(longest) for _ in range(2)]

    def start(i):
        into = buffers[i % 2][: shards[i].numel() * dist.get_world_size()]
        return dist.all_gather_into_tensor(into, shards[i], async_op=True), into

    works = {0: start(0)}
    for i, shape in enumerate(shapes):
        if i + 1 < len(shapes):
            works[i + 1] = start(i + 1)
        work, gathered = works.pop(i)
        work.wait()
        x = torch.tanh(torch.nn.functional.linear(x, gathered[: shape[0] * shape[1]].view(shape)))
    return x


def starts_before_it_waits(shards, shapes, x):
    started = {0: _start(shards[0])}
    for i, shape in enumerate(shapes):
        if i + 1 < len(shapes):
            started[i + 1] = _start(shards[i + 1])
        work, gathered = started.pop(i)
        work.wait()
        x = (x @ _weight(gathered, shape).T).tanh()
        del work, gathered
    return x


def yields_weights(shards, shapes, x):
    def weights():
        following = _start(shards[0])
        for i, shape in enumerate(shapes):
            following[0].wait()
            weight = _weight(following[1], shape)
            following = _start(shards[i + 1]) if i + 1 < len(shapes) else None
            yield weight
            del weight

    for weight in weights():
        x = torch.nn.functional.linear(x, weight).tanh()
        del weight
    return x


RIGHT = [with_lists, with_two_buffers, starts_before_it_waits, yields_weights]
