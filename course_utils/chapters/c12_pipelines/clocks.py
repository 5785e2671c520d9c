"""Clocks of several ranks: how far apart are they, so that what the ranks measured can go on one axis?"""

import time

import torch
import torch.distributed as dist


def compare(fast_by_s=0.0, num_rounds=50):
    """Called by rank 0 and rank 1 alike: the seconds that rank 1's clock is ahead, and how far that may be out.

    A ping-pong: rank 1 answers with the time on its clock, and rank 0 takes that for the middle of the round trip. The
    quickest trip errs least, by half its length at most. `fast_by_s` puts rank 1's clock forward, to try the method.
    Returns (ahead_s, error_s) on rank 0 and None on rank 1.
    """
    rank, told, trips = dist.get_rank(), torch.zeros(1, dtype=torch.float64), []
    for _ in range(num_rounds):
        if rank == 0:
            begin = time.perf_counter()
            dist.send(told, 1)
            dist.recv(told, 1)
            end = time.perf_counter()
            trips.append((end - begin, told.item() - (begin + end) / 2))
        else:
            dist.recv(told, 0)
            told.fill_(time.perf_counter() + fast_by_s)
            dist.send(told, 0)
    if rank:
        return None
    trip_s, ahead_s = min(trips)
    return ahead_s, trip_s / 2
