"""Exercise 8.3: answers that its check must refuse, each with words from the reason that it must give."""

import functools

import torch
import torch.distributed as dist

from course_utils.parallel import messages


def go_round(x, first=0, steps=None, direction=1):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    for step in range(world_size - 1 if steps is None else steps):
        outgoing = chunks[(rank + direction * (first - step)) % world_size]
        incoming = chunks[(rank + direction * (first - step - 1)) % world_size]
        messages.exchange(outgoing, (rank + direction) % world_size, incoming, (rank - direction) % world_size)


def calls_broadcasts(x):
    for other, chunk in enumerate(x.tensor_split(dist.get_world_size())):
        dist.broadcast(chunk, src=other)


def calls_all_gather(x):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, x.tensor_split(len(everyone))[dist.get_rank()])
    x.copy_(torch.cat(everyone))


def stops_early(x):
    go_round(x, steps=dist.get_world_size() - 2)


def goes_once_too_often(x):
    go_round(x, steps=dist.get_world_size())


goes_the_other_way = functools.partial(go_round, direction=-1)
begins_with_the_chunk_before = functools.partial(go_round, first=-1)


def sends_to_everyone(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    for distance in range(1, world_size):
        source = (rank - distance) % world_size
        messages.exchange(chunks[rank], (rank + distance) % world_size, chunks[source], source)


def always_sends_its_own(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    for step in range(world_size - 1):
        incoming = chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(chunks[(rank - 1) % world_size])
        messages.exchange(chunks[rank], (rank + 1) % world_size, arrived, (rank - 1) % world_size)
        incoming.copy_(arrived[: len(incoming)] if len(arrived) >= len(incoming) else incoming)


def fills_a_copy(x):
    go_round(x.clone())


def pads_what_it_sends(x):
    """Sends chunks of equal length, padded, and cuts off what is too much."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    outgoing = torch.zeros_like(chunks[0])
    outgoing[: len(chunks[rank])] = chunks[rank]
    for step in range(1, world_size):
        arrived = torch.empty_like(outgoing)
        messages.exchange(outgoing, (rank + 1) % world_size, arrived, (rank - 1) % world_size)
        incoming = chunks[(rank - step) % world_size]
        incoming.copy_(arrived[: len(incoming)])
        outgoing = arrived


def needs_equal_chunks(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.view(world_size, -1)
    for step in range(world_size - 1):
        outgoing, incoming = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        messages.exchange(outgoing, (rank + 1) % world_size, incoming, (rank - 1) % world_size)


def receives_into_its_own(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = x.tensor_split(world_size)[rank]
    arrived = torch.empty_like(x.tensor_split(world_size)[(rank - 1) % world_size])
    messages.exchange(mine, (rank + 1) % world_size, arrived, (rank - 1) % world_size)
    mine.copy_(arrived[: len(mine)] if len(arrived) >= len(mine) else torch.zeros_like(mine))


def passes_on_what_has_not_come(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks, works = x.tensor_split(world_size), []
    for step in range(world_size - 1):
        works.append(dist.isend(chunks[(rank - step) % world_size], (rank + 1) % world_size))
        works.append(dist.irecv(chunks[(rank - step - 1) % world_size], (rank - 1) % world_size))
    for work in works:
        work.wait()


def adds_what_arrives(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    for step in range(world_size - 1):
        incoming = chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(incoming)
        messages.exchange(chunks[(rank - step) % world_size], (rank + 1) % world_size, arrived, (rank - 1) % world_size)
        incoming += arrived


def sends_float32(x):
    rounded, mine = x.float(), x.tensor_split(dist.get_world_size())[dist.get_rank()]
    own = mine.clone()
    go_round(rounded)
    x.copy_(rounded)
    mine.copy_(own)


def goes_through_rank_0(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank:
        messages.send(x.tensor_split(world_size)[rank], 0)
        messages.recv(x, 0)
        return
    for other in range(1, world_size):
        messages.recv(x.tensor_split(world_size)[other], other)
    for other in range(1, world_size):
        messages.send(x, other)


WRONG = [
    (calls_broadcasts, "called a collective (broadcast)"),
    (calls_all_gather, "called a collective (allgather"),
    (stops_early, "are there enough steps?"),
    (goes_once_too_often, "the result is right, but rank 0 sent"),
    (goes_the_other_way, "in the ring it sends to rank"),
    (begins_with_the_chunk_before, "rank 0 no longer has its own chunk: where is what arrives written to?"),
    (sends_to_everyone, "in the ring it sends to rank"),
    (always_sends_its_own, "which chunk does the previous rank send in each step"),
    (fills_a_copy, "x on rank 0 is as it was: what arrives belongs into x itself"),
    (pads_what_it_sends, "the result is right, but rank 1 sent"),
    (needs_equal_chunks, "shape '[2, -1]' is invalid for input of size 11"),
    (receives_into_its_own, "rank 0 no longer has its own chunk"),
    (passes_on_what_has_not_come, "has it come itself by then"),
    (adds_what_arrives, "was what arrived added to what was there?"),
    (sends_float32, "they are rounded, so what is cast?"),
    (goes_through_rank_0, "the result is right, but rank 0 sent 96 bytes"),
]


def by_isend_and_recv(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    k = rank
    for _ in range(world_size - 1):
        work = dist.isend(chunks[k], (rank + 1) % world_size)
        k = (k - 1) % world_size
        dist.recv(chunks[k], (rank - 1) % world_size)
        work.wait()


def with_offsets(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    base, extra = divmod(len(x), world_size)
    begins = [k * base + min(k, extra) for k in range(world_size + 1)]
    for step in range(world_size - 1):
        out, into = (rank - step) % world_size, (rank - step - 1) % world_size
        parts = x[begins[out] : begins[out + 1]], x[begins[into] : begins[into + 1]]
        receive = dist.irecv(parts[1], (rank - 1) % world_size)
        dist.send(parts[0], (rank + 1) % world_size)
        receive.wait()


def puts_it_together_at_the_end(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = list(x.tensor_split(world_size))
    for step in range(world_size - 1):
        k = (rank - step - 1) % world_size
        arrived = torch.empty_like(chunks[k])
        messages.exchange(chunks[(rank - step) % world_size], (rank + 1) % world_size, arrived, (rank - 1) % world_size)
        chunks[k] = arrived
    x[:] = torch.cat(chunks)


RIGHT = [by_isend_and_recv, with_offsets, puts_it_together_at_the_end]
