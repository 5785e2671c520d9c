"""Exercise 8.2: answers that its check must refuse, each with words from the reason that it must give."""

import functools

import torch
import torch.distributed as dist

from course_utils.parallel import messages, ring


def go_round(x, first=-1, steps=None, direction=1, combine=torch.Tensor.add_):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    for step in range(world_size - 1 if steps is None else steps):
        outgoing = chunks[(rank + direction * (first - step)) % world_size]
        incoming = chunks[(rank + direction * (first - step - 1)) % world_size]
        arrived = torch.empty_like(incoming)
        messages.exchange(outgoing, (rank + direction) % world_size, arrived, (rank - direction) % world_size)
        combine(incoming, arrived)


def calls_all_reduce(x):
    dist.all_reduce(x)


def calls_reduce(x):
    for other, chunk in enumerate(x.tensor_split(dist.get_world_size())):
        if len(chunk):
            dist.reduce(chunk, dst=other)


begins_with_its_own_chunk = functools.partial(go_round, first=0)
overwrites = functools.partial(go_round, combine=torch.Tensor.copy_)
goes_the_other_way = functools.partial(go_round, direction=-1)


def goes_all_the_way_round(x):
    ring.all_reduce(x)


def stops_early(x):
    go_round(x, steps=dist.get_world_size() - 2)


def does_not_touch_x(x):
    go_round(x.clone())


def sends_its_own_chunks_only(x):
    """Adds in a copy, and sends on what was there at the start."""
    total = x.clone()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks, sums = x.tensor_split(world_size), total.tensor_split(world_size)
    for step in range(1, world_size):
        incoming = sums[(rank - step - 1) % world_size]
        arrived = torch.empty_like(incoming)
        messages.exchange(chunks[(rank - step) % world_size], (rank + 1) % world_size, arrived, (rank - 1) % world_size)
        incoming += arrived
    x.copy_(total)


def sends_everything_to_everyone(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, part = x.clone(), torch.empty_like(x)
    for distance in range(1, world_size):
        messages.exchange(mine, (rank + distance) % world_size, part, (rank - distance) % world_size)
        x += part


def sends_whole_tensors_round(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    outgoing = x.clone()
    for _ in range(world_size - 1):
        part = torch.empty_like(x)
        messages.exchange(outgoing, (rank + 1) % world_size, part, (rank - 1) % world_size)
        x += part
        outgoing = part


def needs_equal_chunks(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.view(world_size, -1)
    for step in range(1, world_size):
        arrived = torch.empty_like(chunks[0])
        messages.exchange(chunks[(rank - step) % world_size], (rank + 1) % world_size, arrived, (rank - 1) % world_size)
        chunks[(rank - step - 1) % world_size] += arrived


def adds_in_float32(x):
    go_round(x, combine=lambda incoming, arrived: incoming.copy_(incoming.float() + arrived.float()))


def sends_first(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    for step in range(1, world_size):
        incoming = chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(incoming)
        dist.send(chunks[(rank - step) % world_size], (rank + 1) % world_size)
        dist.recv(arrived, (rank - 1) % world_size)
        incoming += arrived


def adds_twice(x):
    go_round(x, combine=lambda incoming, arrived: incoming.add_(2 * arrived))


def adds_before_it_has_come(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks, works = x.tensor_split(world_size), []
    for step in range(1, world_size):
        outgoing, incoming = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        arrived = torch.zeros_like(incoming)
        works += [dist.isend(outgoing, (rank + 1) % world_size), dist.irecv(arrived, (rank - 1) % world_size)]
        incoming += arrived
    for work in works:
        work.wait()


def takes_the_mean(x):
    go_round(x)
    mine = x.tensor_split(dist.get_world_size())[dist.get_rank()]
    mine.copy_(mine / dist.get_world_size())


def leaves_out_the_rest(x):
    whole = len(x) // dist.get_world_size() * dist.get_world_size()
    go_round(x[:whole])


def adds_outside_of_x(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = list(x.tensor_split(world_size))
    for step in range(1, world_size):
        k = (rank - step - 1) % world_size
        arrived = torch.empty_like(chunks[k])
        messages.exchange(chunks[(rank - step) % world_size], (rank + 1) % world_size, arrived, (rank - 1) % world_size)
        chunks[k] = chunks[k] + arrived


def sends_to_the_owner(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    for distance in range(1, world_size):
        arrived, owner = torch.empty_like(chunks[rank]), (rank + distance) % world_size
        messages.exchange(chunks[owner], owner, arrived, (rank - distance) % world_size)
        chunks[rank].add_(arrived)


WRONG = [
    (calls_all_reduce, "called a collective (allreduce)"),
    (calls_reduce, "called a collective (reduce)"),
    (begins_with_its_own_chunk, "with which chunk must a rank begin so that its own comes to it last?"),
    (overwrites, "is what arrives added to what is there"),
    (goes_the_other_way, "in the ring it sends to rank"),
    (goes_all_the_way_round, "the result is right, but rank 0 sent"),
    (stops_early, "x on rank 0 is as it was"),
    (does_not_touch_x, "x on rank 0 is as it was: the sum belongs into x itself"),
    (sends_its_own_chunks_only, "is made of ranks 0 and 2, without rank 1"),
    (sends_everything_to_everyone, "are enough: one chunk in each of world_size − 1 steps"),
    (sends_whole_tensors_round, "are enough: one chunk in each of world_size − 1 steps"),
    (needs_equal_chunks, "shape '[2, -1]' is invalid for input of size 11"),
    (adds_in_float32, "is anything rounded or cast?"),
    (adds_twice, "more than once"),
    (adds_before_it_has_come, "what is added must have come before"),
    (takes_the_mean, "is the mean over ranks, and the sum is asked"),
    (leaves_out_the_rest, "with 2 ranks and 11 numbers, only 5 of the 6 numbers of chunk 0"),
    (adds_outside_of_x, "the sum belongs into x itself"),
    (sends_to_the_owner, "in the ring it sends to rank"),
]
ENDLESS = [(sends_first, "ranks 0 and 1 were in send at")]


def by_isend_and_a_buffer(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    buffer = torch.empty_like(chunks[0])
    k = (rank - 1) % world_size
    for _ in range(world_size - 1):
        work = dist.isend(chunks[k].clone(), (rank + 1) % world_size)
        k = (k - 1) % world_size
        dist.recv(buffer[: len(chunks[k])], (rank - 1) % world_size)
        chunks[k].add_(buffer[: len(chunks[k])])
        work.wait()


def keeps_the_sum_in_hand(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    carried = chunks[(rank - 1) % world_size].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank - step - 2) % world_size]
        arrived = torch.empty_like(mine)
        messages.exchange(carried, (rank + 1) % world_size, arrived, (rank - 1) % world_size)
        carried = arrived + mine
    chunks[rank].copy_(carried)


def breaks_the_ring_at_rank_0(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    for step in range(1, world_size):
        incoming = chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(incoming)
        calls = [(dist.recv, arrived, (rank - 1) % world_size), (dist.send, chunks[(rank - step) % world_size], (rank + 1) % world_size)]
        for call, tensor, other in calls[:: -1 if rank == 0 else 1]:
            call(tensor, other)  # an empty one too
        incoming += arrived
    return x


RIGHT = [breaks_the_ring_at_rank_0, by_isend_and_a_buffer, keeps_the_sum_in_hand]
