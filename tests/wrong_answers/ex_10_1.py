"""Exercise 10.1: answers that its check must refuse, each with words from the reason that it must give."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F


def does_not_pad(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    return flat.chunk(world_size)[rank].clone()


def cuts_the_rest_off(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = flat.numel() // world_size
    return flat[rank * length : (rank + 1) * length].clone()


def pads_when_it_divides(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = flat.numel() // world_size + 1
    flat = F.pad(flat, (0, length * world_size - flat.numel()))
    return flat[rank * length : (rank + 1) * length].clone()


def returns_a_view(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    flat = F.pad(flat, (0, length * world_size - flat.numel()))
    return flat[rank * length : (rank + 1) * length]


def keeps_the_gradient(tensors, rank, world_size):
    flat = torch.cat([t.reshape(-1) for t in tensors])
    length = math.ceil(flat.numel() / world_size)
    flat = F.pad(flat, (0, length * world_size - flat.numel()))
    return flat[rank * length : (rank + 1) * length].clone()


def deals_them_out(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    return F.pad(flat, (0, length * world_size - flat.numel()))[rank::world_size].clone()


def pads_with_ones(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    flat = torch.cat([flat, flat.new_ones(length * world_size - flat.numel())])
    return flat[rank * length : (rank + 1) * length].clone()


def pads_in_front(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    flat = F.pad(flat, (length * world_size - flat.numel(), 0))
    return flat[rank * length : (rank + 1) * length].clone()


def shards_each_tensor(tensors, rank, world_size):
    parts = []
    for t in tensors:
        flat = t.detach().reshape(-1)
        length = -(-flat.numel() // world_size)
        parts.append(F.pad(flat, (0, length * world_size - flat.numel()))[rank * length : (rank + 1) * length])
    return torch.cat(parts)


def always_float32(tensors, rank, world_size):
    flat = torch.cat([t.detach().float().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    flat = F.pad(flat, (0, length * world_size - flat.numel()))
    return flat[rank * length : (rank + 1) * length].clone()


def views_instead_of_reshaping(tensors, rank, world_size):
    flat = torch.cat([t.detach().view(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    flat = F.pad(flat, (0, length * world_size - flat.numel()))
    return flat[rank * length : (rank + 1) * length].clone()


def asks_for_its_rank(tensors, rank, world_size):
    return does_not_pad(tensors, dist.get_rank(), dist.get_world_size())


def returns_all_parts(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    return F.pad(flat, (0, length * world_size - flat.numel())).view(world_size, length)


def returns_nothing(tensors, rank, world_size):
    does_not_pad(tensors, 0, 1)


def _cut(tensors, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    return F.pad(flat, (0, length * world_size - flat.numel())).view(world_size, length)


def repeats_numbers(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = -(-flat.numel() // world_size)
    return torch.cat([flat, flat])[rank * length : (rank + 1) * length].clone()


def one_part_too_long(tensors, rank, world_size):
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    length = flat.numel() // world_size + 1
    return F.pad(flat, (0, length * world_size - flat.numel()))[rank * length : (rank + 1) * length].clone()


def keeps_two_dimensions(tensors, rank, world_size):
    return _cut(tensors, world_size)[rank : rank + 1].clone()


def returns_a_parameter(tensors, rank, world_size):
    shard = _cut(tensors, world_size)[rank].clone()
    return torch.nn.Parameter(shard) if shard.is_floating_point() else shard


def changes_what_it_was_given(tensors, rank, world_size):
    shard = _cut(tensors, world_size)[rank].clone()
    for t in tensors:
        t.data.zero_()
    return shard


WRONG = [
    (does_not_pad, "equally many on every rank"),
    (cuts_the_rest_off, "and should have"),
    (pads_when_it_divides, "no more than"),
    (returns_a_view, "is a view of"),
    (keeps_the_gradient, "requires a gradient"),
    (deals_them_out, "the shard is ["),
    (pads_with_ones, "not zeros"),
    (pads_in_front, "the shard is ["),
    (shards_each_tensor, "and should be ["),
    (always_float32, "dtype is torch.float32"),
    (views_instead_of_reshaping, "view size is not compatible"),
    (asks_for_its_rank, "process group"),
    (returns_all_parts, "should be flat"),
    (returns_nothing, "was None, not a tensor"),
    (repeats_numbers, "not zeros"),
    (one_part_too_long, "no more than"),
    (keeps_two_dimensions, "should be flat"),
    (returns_a_parameter, "requires a gradient"),
    (changes_what_it_was_given, "have been changed"),
]


def fills_an_empty_shard(tensors, rank, world_size):
    with torch.no_grad():
        total = sum(t.numel() for t in tensors)
        length = (total + world_size - 1) // world_size
        shard = torch.zeros(length, dtype=tensors[0].dtype)
        mine = torch.cat([t.flatten() for t in tensors])[rank * length : (rank + 1) * length]
        shard[: len(mine)] = mine
    return shard


def in_lists(tensors, rank, world_size):
    numbers = [value for t in tensors for value in t.detach().flatten().tolist()]
    while len(numbers) % world_size:
        numbers.append(0)
    length = len(numbers) // world_size
    return torch.tensor(numbers[rank * length : (rank + 1) * length], dtype=tensors[0].dtype)


def looks_each_number_up(tensors, rank, world_size):
    flat = torch.cat([t.detach().ravel() for t in tensors])
    length = math.ceil(len(flat) / world_size)
    places = torch.arange(rank * length, (rank + 1) * length)
    return torch.where(places < len(flat), flat[places.clamp(max=len(flat) - 1)], torch.zeros((), dtype=flat.dtype))


RIGHT = [fills_an_empty_shard, in_lists, looks_each_number_up]
