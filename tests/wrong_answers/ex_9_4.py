"""Exercise 9.4: answers that its check must refuse, each with words from the reason that it must give."""

import math
import random

import numpy as np
import torch
import torch.distributed as dist


def permutation(num_samples, seed):
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).tolist()


def pad(order, world_size):
    return order + order[: -len(order) % world_size]


def deals_out_what_there_is(num_samples, rank, world_size, epoch):
    return permutation(num_samples, epoch)[rank::world_size]


def cuts_chunks(num_samples, rank, world_size, epoch):
    return torch.tensor(permutation(num_samples, epoch)).chunk(world_size)[rank].tolist()


def drops_the_last_few(num_samples, rank, world_size, epoch):
    each = num_samples // world_size
    return permutation(num_samples, epoch)[rank * each : (rank + 1) * each]


def shuffles_by_rank(num_samples, rank, world_size, epoch):
    return pad(permutation(num_samples, 1000 * epoch + rank), world_size)[rank::world_size]


def seeds_with_epoch_times_rank(num_samples, rank, world_size, epoch):
    return pad(permutation(num_samples, epoch * rank), world_size)[rank::world_size]


def forgets_the_epoch(num_samples, rank, world_size, epoch):
    return pad(permutation(num_samples, 0), world_size)[rank::world_size]


def does_not_shuffle(num_samples, rank, world_size, epoch):
    return pad(list(range(num_samples)), world_size)[rank::world_size]


def draws_from_the_global_generator(num_samples, rank, world_size, epoch):
    return pad(torch.randperm(num_samples).tolist(), world_size)[rank::world_size]


def draws_from_pythons_generator(num_samples, rank, world_size, epoch):
    order = list(range(num_samples))
    random.shuffle(order)
    return pad(order, world_size)[rank::world_size]


def divides_before_shuffling(num_samples, rank, world_size, epoch):
    mine = pad(list(range(num_samples)), world_size)[rank::world_size]
    random.Random(epoch).shuffle(mine)
    return mine


def gives_everything_to_all(num_samples, rank, world_size, epoch):
    return permutation(num_samples, epoch)


def cuts_without_rank(num_samples, rank, world_size, epoch):
    return permutation(num_samples, epoch)[: math.ceil(num_samples / world_size)]


def pads_one_round_too_many(num_samples, rank, world_size, epoch):
    order = permutation(num_samples, epoch)
    order += order[: world_size - num_samples % world_size]  # a whole round where it divides
    return order[rank::world_size]


def pads_with_what_is_not_there(num_samples, rank, world_size, epoch):
    order = permutation(num_samples, epoch)
    order += range(num_samples, num_samples + -num_samples % world_size)
    return order[rank::world_size]


def counts_samples_from_one(num_samples, rank, world_size, epoch):
    return [index + 1 for index in pad(permutation(num_samples, epoch), world_size)[rank::world_size]]


def draws_with_replacement(num_samples, rank, world_size, epoch):
    order = np.random.default_rng(epoch).choice(num_samples, math.ceil(num_samples / world_size) * world_size)
    return order[rank::world_size].tolist()


def asks_for_its_rank(num_samples, rank, world_size, epoch):
    return pad(permutation(num_samples, epoch), world_size)[dist.get_rank() :: dist.get_world_size()]


def forgets_to_return(num_samples, rank, world_size, epoch):
    pad(permutation(num_samples, epoch), world_size)[rank::world_size]


WRONG = [
    (deals_out_what_there_is, "the shards hold [3, 3, 2, 2] samples"),
    (cuts_chunks, "a rank with one more would wait"),
    (drops_the_last_few, "what about the last few"),
    (shuffles_by_rank, "cut from the same order"),
    (seeds_with_epoch_times_rank, "in epoch 1: are they all cut from the same order"),
    (forgets_the_epoch, "epoch 1 repeats the order"),
    (does_not_shuffle, "epoch 1 repeats the order"),
    (draws_from_the_global_generator, "the same call gave two answers"),
    (draws_from_pythons_generator, "the same call gave two answers"),
    (divides_before_shuffling, "which comes first"),
    (gives_everything_to_all, "where 3 are enough"),
    (cuts_without_rank, "all ranks have the same"),
    (pads_one_round_too_many, "with 12 samples on 4 ranks, each rank has 4 samples, where 3 are enough"),
    (pads_with_what_is_not_there, "indices outside 0…9"),
    (counts_samples_from_one, "indices outside 0…9"),
    (draws_with_replacement, "samples are on no rank"),
    (asks_for_its_rank, "process group has not been initialized"),
    (forgets_to_return, "rank 0 was given None, not a list of indices"),
]


def cuts_contiguous_pieces(num_samples, rank, world_size, epoch):
    each = math.ceil(num_samples / world_size)
    order = np.random.default_rng([9, epoch]).permutation(num_samples)
    return np.resize(order, each * world_size)[rank * each : (rank + 1) * each].tolist()


def pads_with_random_others(num_samples, rank, world_size, epoch):
    draw = random.Random(f"epoch {epoch}")
    order = list(range(num_samples))
    draw.shuffle(order)
    while len(order) % world_size:
        order.append(draw.randrange(num_samples))
    return order[rank::world_size]


def pads_with_the_last(num_samples, rank, world_size, epoch):
    generator = torch.Generator()
    generator.manual_seed(1234 + epoch)
    order = torch.randperm(num_samples, generator=generator)
    order = torch.cat([order, order[-1:].expand(-num_samples % world_size)])
    return order.view(-1, world_size)[:, rank]


RIGHT = [cuts_contiguous_pieces, pads_with_random_others, pads_with_the_last]


def pads_by_whole_rounds(num_samples, rank, world_size, epoch):
    order = permutation(num_samples, epoch)
    while len(order) % world_size:
        order += order[:world_size]
    return order[rank::world_size]


ENDLESS = [(pads_by_whole_rounds, "in pads_by_whole_rounds")]
