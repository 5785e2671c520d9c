"""Exercise 8.5: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.distributed as dist


def share(values, swap, collect, tell):
    theirs = swap(values)
    total, largest = values.sum(), [torch.empty(()) for _ in range(dist.get_world_size())]
    collect(total, largest, values.max())
    mean = total / (dist.get_world_size() * len(values))
    tell(mean)
    return theirs, mean, largest


def swap(values):
    rank, world_size, theirs = dist.get_rank(), dist.get_world_size(), torch.empty_like(values)
    work = dist.isend(values, (rank + 1) % world_size)
    dist.recv(theirs, (rank - 1) % world_size)
    work.wait()
    return theirs


def collect(total, largest, mine):
    dist.reduce(total, dst=0)
    dist.all_gather(largest, mine)


def tell(mean):
    dist.broadcast(mean, src=0)


def send_first(values):
    rank, world_size, theirs = dist.get_rank(), dist.get_world_size(), torch.empty_like(values)
    dist.send(values, (rank + 1) % world_size)
    dist.recv(theirs, (rank - 1) % world_size)
    return theirs


def collect_in_two_orders(total, largest, mine):
    if dist.get_rank() == 0:
        dist.reduce(total, dst=0)
        dist.all_gather(largest, mine)
    else:
        dist.all_gather(largest, mine)
        dist.reduce(total, dst=0)


def tell_from_rank_0_alone(mean):
    if dist.get_rank() == 0:
        dist.broadcast(mean, src=0)


def still_sends_first(values):
    return share(values, send_first, collect, tell)


def keeps_two_orders(values):
    return share(values, swap, collect_in_two_orders, tell)


def only_rank_0_broadcasts(values):
    return share(values, swap, collect, tell_from_rank_0_alone)


def drops_the_broadcast(values):
    return share(values, swap, collect, lambda mean: None)


def each_broadcasts_its_own(values):
    return share(values, swap, collect, lambda mean: dist.broadcast(mean, src=dist.get_world_size() - 1))


def drops_the_swap(values):
    return share(values, lambda values: values, collect, tell)


def swaps_with_the_next(values):
    def swap_backwards(values):
        rank, world_size, theirs = dist.get_rank(), dist.get_world_size(), torch.empty_like(values)
        work = dist.isend(values, (rank - 1) % world_size)
        dist.recv(theirs, (rank + 1) % world_size)
        work.wait()
        return theirs

    return share(values, swap_backwards, collect, tell)


def collects_the_sums(values):
    return share(values, swap, lambda total, largest, mine: (dist.all_gather(largest, total), dist.reduce(total, dst=0)), tell)


def returns_a_dictionary(values):
    theirs, mean, largest = share(values, swap, collect, tell)
    return {"theirs": theirs, "mean": mean, "largest": largest}


def takes_what_broadcast_returns(values):
    theirs, mean, largest = share(values, swap, collect, lambda mean: None)
    return theirs, dist.broadcast(mean, src=0), largest


def marks_absence_with_zeros(values):
    theirs, mean, _ = share(values, swap, collect, tell)
    largest = torch.zeros(dist.get_world_size())
    largest[dist.get_rank()] = values.max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return theirs, mean, largest


def knows_how_many_there_are(values):
    theirs, mean, largest = share(values, swap, collect, tell)
    return theirs, mean * len(values) / 4, largest


def receives_into_its_values(values):
    def swap_in_place(values):
        work = dist.isend(values.clone(), (dist.get_rank() + 1) % dist.get_world_size())
        dist.recv(values, (dist.get_rank() - 1) % dist.get_world_size())
        work.wait()
        return values

    return share(values, swap_in_place, collect, tell)


def reads_before_it_has_come(values):
    def swap_too_early(values):
        rank, world_size, theirs = dist.get_rank(), dist.get_world_size(), torch.zeros_like(values)
        works = dist.isend(values, (rank + 1) % world_size), dist.irecv(theirs, (rank - 1) % world_size)
        found = theirs.clone()
        for work in works:
            work.wait()
        return found

    return share(values, swap_too_early, collect, tell)


WRONG = [
    (only_rank_0_broadcasts, "while rank 0 was in broadcast at"),
    (drops_the_broadcast, "what has the last collective to do, and on which ranks?"),
    (each_broadcasts_its_own, "returned the mean"),
    (drops_the_swap, "as the values of rank 1, which had"),
    (swaps_with_the_next, "as the values of rank 2, which had"),
    (collects_the_sums, "as the largest of each rank, and they are"),
    (returns_a_dictionary, "returned dict, and should return theirs, mean and largest"),
    (takes_what_broadcast_returns, "rank 0 returned None as the mean: a collective fills the tensor that it is given"),
    (marks_absence_with_zeros, "returned [0.0, 0.0, 0.0] as the largest of each rank"),
    (knows_how_many_there_are, "with 3 ranks and 3 values each, rank 0 returned the mean"),
    (receives_into_its_values, "as the largest of each rank, and they are"),
    (reads_before_it_has_come, "rank 0 returned [0.0, 0.0, 0.0, 0.0] as the values of rank 1"),
]
ENDLESS = [
    (still_sends_first, "ranks 0 and 1 were in send at"),
    (keeps_two_orders, "was in all_gather at"),
]


def evens_send_first(values):
    rank, world_size, theirs = dist.get_rank(), dist.get_world_size(), torch.empty_like(values)
    if rank == 0:
        dist.send(values, (rank + 1) % world_size)
        dist.recv(theirs, (rank - 1) % world_size)
    else:
        dist.recv(theirs, (rank - 1) % world_size)
        dist.send(values, (rank + 1) % world_size)
    mean, maxima = values.mean(), [None] * world_size
    dist.all_gather_object(maxima, values.max().item())
    dist.all_reduce(mean)
    return [theirs, (mean / world_size).item(), maxima]


def by_one_collective(values):
    everyone = torch.empty(dist.get_world_size() * len(values))
    dist.all_gather_into_tensor(everyone, values)
    everyone = everyone.view(-1, len(values))
    return everyone[dist.get_rank() - 1], everyone.mean(), everyone.amax(dim=1)


RIGHT = [evens_send_first, by_one_collective]
