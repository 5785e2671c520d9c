"""Exercise 8.1: answers that its check must refuse, each with words from the reason that it must give."""

import math

import torch
import torch.distributed as dist

from course_utils.parallel import messages

SENT = []


def tree(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place, have = (rank - root) % world_size, 1
    while have < world_size:
        if place < have and place + have < world_size:
            messages.send(x, (rank + have) % world_size)
        elif have <= place < 2 * have:
            messages.recv(x, (rank - have) % world_size)
        have *= 2


def calls_broadcast(x, root):
    dist.broadcast(x, src=root)


def sums_with_zeros(x, root):
    if dist.get_rank() != root:
        x.zero_()
    dist.all_reduce(x)


def sends_from_the_root_to_all(x, root):
    if dist.get_rank() == root:
        for other in range(dist.get_world_size()):
            if other != root:
                dist.send(x, other)
    else:
        dist.recv(x, root)


def passes_along_a_chain(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank != root:
        dist.recv(x, (rank - 1) % world_size)
    if (rank + 1) % world_size != root:
        dist.send(x, (rank + 1) % world_size)


def ignores_the_root(x, root):
    tree(x, 0)


def needs_a_power_of_two(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place, distance = (rank - root) % world_size, 1
    while distance * 2 <= world_size:
        if place < distance:
            dist.send(x, (rank + distance) % world_size)
        elif place < 2 * distance:
            dist.recv(x, (rank - distance) % world_size)
        distance *= 2


def fills_a_copy(x, root):
    tree(x.clone(), root)


def sends_everything_twice(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place, have = (rank - root) % world_size, 1
    part = x.clone()
    while have < world_size:
        if place < have and place + have < world_size:
            messages.send(x, (rank + have) % world_size)
            messages.send(x, (rank + have) % world_size)
        elif have <= place < 2 * have:
            messages.recv(x, (rank - have) % world_size)
            messages.recv(part, (rank - have) % world_size)
        have *= 2


def adds_instead_of_filling(x, root):
    mine = x.clone()
    tree(x, root)
    if dist.get_rank() != root:
        x += mine


def waits_for_itself(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.recv(x, (rank - 1) % world_size)
    dist.send(x, (rank + 1) % world_size)


def sends_to_itself(x, root):
    if dist.get_rank() == root:
        for other in range(dist.get_world_size()):
            messages.send(x, other)
    else:
        messages.recv(x, root)


def rounds_the_logarithm(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place = (rank - root) % world_size
    for have in [2**k for k in range(round(math.log2(world_size)))]:
        if place < have and place + have < world_size:
            dist.send(x, (rank + have) % world_size)
        elif have <= place < 2 * have:
            dist.recv(x, (rank - have) % world_size)


def goes_down_a_heap(x, root):
    world_size = dist.get_world_size()
    place = (dist.get_rank() - root) % world_size
    if place:
        dist.recv(x, ((place - 1) // 2 + root) % world_size)
    for child in (2 * place + 1, 2 * place + 2):
        if child < world_size:
            dist.send(x, (child + root) % world_size)


def passes_on_what_has_not_come(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place, have = (rank - root) % world_size, 1
    while have < world_size:
        if place < have and place + have < world_size:
            SENT.append(dist.isend(x, (rank + have) % world_size))
        elif have <= place < 2 * have:
            SENT.append(dist.irecv(x, (rank - have) % world_size))
        have *= 2


def sends_back_to_the_root(x, root):
    """Nobody receives some of the messages, nor waits for them."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place, have = (rank - root) % world_size, 1
    while have < world_size:
        if place < have:
            SENT.append(dist.isend(x, (rank + have) % world_size))
        elif have <= place < 2 * have:
            dist.recv(x, (rank - have) % world_size)
        have *= 2


def sends_the_largest_subtree_last(x, root):
    world_size = dist.get_world_size()
    place, have, children = (dist.get_rank() - root) % world_size, 1, []
    while have < world_size:
        if place < have and place + have < world_size:
            children.append(place + have)
        elif have <= place < 2 * have:
            dist.recv(x, (place - have + root) % world_size)
        have *= 2
    for child in reversed(children):
        dist.send(x, (child + root) % world_size)


WRONG = [
    (calls_broadcast, "called a collective (broadcast): build it from messages alone"),
    (sums_with_zeros, "called a collective (allreduce)"),
    (sends_from_the_root_to_all, "who else could pass it on meanwhile?"),
    (passes_along_a_chain, "does everyone who has it send in every round?"),
    (ignores_the_root, "with 2 ranks and root 1, the root's own tensor has changed"),
    (needs_a_power_of_two, "with 3 ranks and root 0, rank 2 still had what it began with"),
    (fills_a_copy, "rank 1 still had what it began with: x itself must be filled"),
    (sends_everything_twice, "rank 1 received 2 messages: one is enough"),
    (adds_instead_of_filling, "rank 1 ended with a tensor that no rank had at the start"),
    (sends_to_itself, "cannot send to rank 0"),
    (rounds_the_logarithm, "with 5 ranks and root 0, rank 4 still had what it began with"),
    (goes_down_a_heap, "with 7 ranks and root 0, the last rank has it after 4 rounds"),
    (passes_on_what_has_not_come, "rank 1 still had what it began with"),
    (sends_back_to_the_root, "with 3 ranks and root 0, 3 messages were sent, and only 2 received"),
    (sends_the_largest_subtree_last, "does everyone who has it send in every round?"),
]
ENDLESS = [(waits_for_itself, "ranks 0 and 1 were in recv at")]


def halves_the_range(x, root):
    """The far half first: the holder of a range gives its middle to a new holder, who keeps the upper part."""
    world_size = dist.get_world_size()
    place, low, high = (dist.get_rank() - root) % world_size, 0, world_size
    while high - low > 1:
        middle = (low + high + 1) // 2
        if place == low:
            dist.send(x, (middle + root) % world_size)
        elif place == middle:
            dist.recv(x, (low + root) % world_size)
        low, high = (low, middle) if place < middle else (middle, high)


def without_waiting(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place, distance, works = (rank - root) % world_size, 1, []
    while distance <= place:
        distance *= 2
    if place:
        parent = place - distance // 2
        dist.irecv(x, (parent + root) % world_size).wait()
    while place + distance < world_size:
        works.append(dist.isend(torch.clone(x), (rank + distance) % world_size))
        distance *= 2
    for work in works:
        work.wait()


def by_bits(x, root):
    world_size = dist.get_world_size()
    place, mask = (dist.get_rank() - root) % world_size, 1
    while mask < world_size and not place & mask:
        mask <<= 1
    if place:
        dist.recv(x)  # from whoever sends
    while mask := mask >> 1:
        if place + mask < world_size:
            dist.send(x, (place + mask + root) % world_size)
    return x


RIGHT = [halves_the_range, without_waiting, by_bits]
