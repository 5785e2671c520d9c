"""Exercise 10.4: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def _flat(parameters):
    pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([piece.detach().reshape(-1) for piece in pieces])


def _padded(flat):
    length = -(-flat.numel() // dist.get_world_size())
    return F.pad(flat, (0, length * dist.get_world_size() - flat.numel())), length


def _clear(parameters):
    for p in parameters:
        p.grad = None


def adds_up(parameters):
    flat, length = _padded(_flat(parameters))
    shard = flat.new_empty(length)
    dist.reduce_scatter_tensor(shard, flat)
    _clear(parameters)
    return shard


def divides_twice(parameters):
    flat, length = _padded(_flat(parameters))
    shard = flat.new_empty(length)
    dist.reduce_scatter_tensor(shard, flat / dist.get_world_size(), op=dist.ReduceOp.AVG)
    _clear(parameters)
    return shard


def keeps_the_gradients(parameters):
    flat, length = _padded(_flat(parameters))
    shard = flat.new_empty(length)
    dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    return shard


def zeroes_the_gradients(parameters):
    shard = keeps_the_gradients(parameters)
    for p in parameters:
        if p.grad is not None:
            p.grad.zero_()
    return shard


def reduces_everything(parameters):
    flat, length = _padded(_flat(parameters))
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    _clear(parameters)
    return flat[dist.get_rank() * length :][:length].clone()


def returns_a_view(parameters):
    flat, length = _padded(_flat(parameters))
    mine = flat[dist.get_rank() * length :][:length]
    dist.reduce_scatter_tensor(mine, flat.clone(), op=dist.ReduceOp.AVG)
    _clear(parameters)
    return mine


def sends_nothing(parameters):
    flat, length = _padded(_flat(parameters))
    _clear(parameters)
    return flat[dist.get_rank() * length :][:length].clone()


def trips_over_none(parameters):
    flat, length = _padded(torch.cat([p.grad.reshape(-1) for p in parameters]))
    shard = flat.new_empty(length)
    dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    _clear(parameters)
    return shard


def leaves_missing_ones_out(parameters):
    flat, length = _padded(torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None]))
    shard = flat.new_empty(length)
    dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    _clear(parameters)
    return shard


def does_not_pad(parameters):
    flat = _flat(parameters)
    shard = flat.new_empty(flat.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    _clear(parameters)
    return shard


def missing_ones_count_as_the_parameter(parameters):
    flat, length = _padded(torch.cat([(p if p.grad is None else p.grad).detach().reshape(-1) for p in parameters]))
    shard = flat.new_empty(length)
    dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    _clear(parameters)
    return shard


def averages_over_those_that_have_one(parameters):
    counts = torch.cat([torch.full((p.numel(),), float(p.grad is not None)) for p in parameters]).double()
    flat, length = _padded(_flat(parameters))
    counts, _ = _padded(counts)
    shard, number = flat.new_empty(length), flat.new_empty(length)
    dist.reduce_scatter_tensor(shard, flat)
    dist.reduce_scatter_tensor(number, counts)
    _clear(parameters)
    return shard / number.clamp(min=1)


def returns_all(parameters):
    flat, length = _padded(_flat(parameters))
    shard, everything = flat.new_empty(length), torch.empty_like(flat)
    dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    dist.all_gather_into_tensor(everything, shard)
    _clear(parameters)
    return everything


def _whole(parameters):
    return _padded(_flat(parameters))[0]


def _reduced(flat, **settings):
    shard = flat.new_zeros(flat.numel() // dist.get_world_size())
    return shard, dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG, **settings)


def empties_the_parameters(parameters):
    shard, _ = _reduced(_whole(parameters))
    _clear(parameters)
    for p in parameters:
        p.data.zero_()
    return shard


def gathers_the_mean(parameters):
    flat = _whole(parameters)
    shard, _ = _reduced(flat)
    dist.all_gather_into_tensor(flat, shard)
    _clear(parameters)
    return flat.chunk(dist.get_world_size())[dist.get_rank()].clone()


def reduces_in_float32(parameters):
    shard, _ = _reduced(_whole(parameters).float())
    _clear(parameters)
    return shard.double()


def sends_nothing_if_it_has_nothing(parameters):
    if all(p.grad is None for p in parameters):
        flat = _whole(parameters)
        _clear(parameters)
        return flat.new_zeros(flat.numel() // dist.get_world_size())
    shard, _ = _reduced(_whole(parameters))
    _clear(parameters)
    return shard


def does_not_wait(parameters):
    shard, _ = _reduced(_whole(parameters), async_op=True)
    _clear(parameters)
    return shard.clone()


def gives_a_row(parameters):
    flat = _whole(parameters)
    shard = flat.new_empty(1, flat.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.AVG)
    _clear(parameters)
    return shard


WRONG = [
    (adds_up, "a sum and no mean"),
    (divides_twice, "the mean was taken twice"),
    (keeps_the_gradients, "still holds 4 gradients"),
    (zeroes_the_gradients, "should be None afterwards"),
    (reduces_everything, "and has sent allreduce"),
    (returns_a_view, "is a view of"),
    (sends_nothing, "this rank's own gradients"),
    (trips_over_none, "NoneType"),
    (leaves_missing_ones_out, "their order, shapes and dtypes"),
    (does_not_pad, "cannot be cut into 3 equal parts"),
    (missing_ones_count_as_the_parameter, "not that of the mean gradient"),
    (averages_over_those_that_have_one, "not that of the mean gradient"),
    (returns_all, "the shard has 24 numbers and should have 8"),
    (empties_the_parameters, "parameters have been changed"),
    (gathers_the_mean, "and has sent"),
    (reduces_in_float32, "not that of the mean gradient"),
    (sends_nothing_if_it_has_nothing, "has sent nothing"),
    (does_not_wait, "not that of the mean gradient"),
    (gives_a_row, "gloo takes flat tensors"),
]


def with_a_list(parameters):
    world_size = dist.get_world_size()
    flat, length = _padded(_flat(parameters))
    shard = torch.zeros(length, dtype=flat.dtype)
    dist.reduce_scatter(shard, [part.contiguous() for part in flat.split(length)])
    for p in parameters:
        p.grad = None
    return shard / world_size


def fills_one_buffer(parameters):
    world_size = dist.get_world_size()
    total = sum(p.numel() for p in parameters)
    length = (total + world_size - 1) // world_size
    buffer, begin = parameters[0].detach().new_zeros(length * world_size), 0
    for p in parameters:
        if p.grad is not None:
            buffer[begin : begin + p.numel()] = p.grad.flatten() / world_size
            p.grad = None
        begin += p.numel()
    shard = torch.empty_like(buffer[:length])
    dist.reduce_scatter_tensor(shard, buffer)
    return shard


def waits_at_last(parameters):
    shard, work = _reduced(_whole(parameters), async_op=True)
    _clear(parameters)
    work.wait()
    return shard


RIGHT = [with_a_list, fills_one_buffer, waits_at_last]
