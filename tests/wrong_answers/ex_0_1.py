"""Exercise 0.1: answers that its check must refuse, each with words from the reason that it must give."""

import os

import torch
import torch.distributed as dist


def prints_instead_of_returning():
    print(dist.get_rank(), dist.get_world_size())


def takes_the_environment_as_it_is():
    return os.environ["RANK"], os.environ["WORLD_SIZE"]


def swaps_the_two():
    return dist.get_world_size(), dist.get_rank()


def returns_the_rank_alone():
    return dist.get_rank()


def counts_from_one():
    return dist.get_rank() + 1, dist.get_world_size()


def assumes_four_workers():
    return dist.get_rank(), 4


def counts_cores_for_workers():
    return dist.get_rank(), os.cpu_count()


def writes_the_rank_of_the_first():
    return 0, dist.get_world_size()


def takes_the_process_for_the_rank():
    return os.getpid(), dist.get_world_size()


def returns_a_tensor():
    return torch.tensor([dist.get_rank(), dist.get_world_size()])


def wants_the_rank_as_an_argument(rank):
    return rank, dist.get_world_size()


WRONG = [
    (prints_instead_of_returning, "only what it returns comes back"),
    (takes_the_environment_as_it_is, "the environment holds texts"),
    (swaps_the_two, "which of the two numbers comes first"),
    (returns_the_rank_alone, "rank 0 returned 0, not a pair"),
    (counts_from_one, "ranks count from 0"),
    (assumes_four_workers, "ask, do not assume"),
    (counts_cores_for_workers, "ask, do not assume"),
    (writes_the_rank_of_the_first, "each worker must tell its own"),
    (takes_the_process_for_the_rank, "ranks count from 0"),
    (returns_a_tensor, "not a pair (rank, world_size)"),
    (wants_the_rank_as_an_argument, "missing 1 required positional argument: 'rank'"),
]


def reads_the_environment():
    return [int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])]


def asks_everyone():
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, os.getpid())
    return everyone.index(os.getpid()), len(everyone)


RIGHT = [reads_the_environment, asks_everyone]
