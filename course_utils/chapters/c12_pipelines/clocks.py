"""Compare the clocks of two ranks, so that their measurements can be put on one time axis."""

import time

import torch
import torch.distributed as dist


def compare(fast_by_s=0.0, num_rounds=50):
    """Return the seconds by which rank 1's clock is ahead, and the largest possible error.

    Rank 0 and rank 1 both call this. It is a ping-pong: rank 1 answers with its time, which rank 0 takes for the middle
    of the round trip. The fastest trip has the smallest error, at most half its duration. `fast_by_s` advances rank 1's
    clock, to test the method. Returns (ahead_s, error_s) on rank 0 and None on rank 1.
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
