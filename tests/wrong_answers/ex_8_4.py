"""Exercise 8.4: answers that its check must refuse, each with words from the reason that it must give."""

import fractions
import math

import torch


def chunk_lengths(length, world_size):
    return [length // world_size + (k < length % world_size) for k in range(world_size)]


def formula_for_lengths_that_divide(length, itemsize, rank, world_size):
    return 2 * (world_size - 1) * length * itemsize // world_size


def formula_unrounded(length, itemsize, rank, world_size):
    return 2 * (world_size - 1) / world_size * length * itemsize


def rounds_chunks_up(length, itemsize, rank, world_size):
    return 2 * (world_size - 1) * math.ceil(length / world_size) * itemsize


def counts_one_half(length, itemsize, rank, world_size):
    return (world_size - 1) * length * itemsize // world_size


def counts_elements(length, itemsize, rank, world_size):
    return 2 * length - sum(chunk_lengths(length, world_size)[k % world_size] for k in (rank, rank + 1))


def keeps_its_own_twice(length, itemsize, rank, world_size):
    return 2 * (length - chunk_lengths(length, world_size)[rank]) * itemsize


def keeps_the_one_before(length, itemsize, rank, world_size):
    lengths = chunk_lengths(length, world_size)
    return (2 * length - lengths[rank] - lengths[rank - 1]) * itemsize


def puts_long_chunks_last(length, itemsize, rank, world_size):
    lengths = chunk_lengths(length, world_size)[::-1]
    return (2 * length - lengths[rank] - lengths[(rank + 1) % world_size]) * itemsize


def sends_whole_tensors(length, itemsize, rank, world_size):
    return 2 * (world_size - 1) * length * itemsize


def assumes_float32(length, itemsize, rank, world_size):
    return counts_elements(length, itemsize, rank, world_size) * 4


def returns_nothing(length, itemsize, rank, world_size):
    counts_elements(length, itemsize, rank, world_size)


def cuts_as_chunk_does(length, itemsize, rank, world_size):
    lengths = [len(chunk) for chunk in torch.empty(length).chunk(world_size)] + [0] * world_size
    return (2 * length - lengths[rank] - lengths[(rank + 1) % world_size]) * itemsize


def forgets_that_the_ring_closes(length, itemsize, rank, world_size):
    lengths = chunk_lengths(length, world_size)
    return (2 * length - lengths[rank] - lengths[rank + 1]) * itemsize


def one_for_each_half(length, itemsize, rank, world_size):
    lengths = torch.tensor(chunk_lengths(length, world_size))
    return (length - lengths[[rank, (rank + 1) % world_size]]) * itemsize


WRONG = [
    (formula_for_lengths_that_divide, "13 elements make chunks of unequal length"),
    (formula_unrounded, "ring_bytes(13, 4, 0, 3) returned 69.3"),
    (rounds_chunks_up, "13 elements make chunks of unequal length"),
    (counts_one_half, "an all-reduce has two halves"),
    (counts_elements, "ring_bytes(12, 4, 0, 3) returned 16, and 64 bytes were counted"),
    (keeps_its_own_twice, "which of them does this rank send?"),
    (keeps_the_one_before, "which of them does this rank send?"),
    (puts_long_chunks_last, "which of them does this rank send?"),
    (sends_whole_tensors, "think of the chunks that this rank sends, one by one"),
    (assumes_float32, "ring_bytes(12, 8, 0, 3) returned 64, and 128 bytes were counted"),
    (returns_nothing, "returned None, not a number of bytes"),
    (cuts_as_chunk_does, "13 elements make chunks of unequal length"),
    (forgets_that_the_ring_closes, "IndexError: list index out of range"),
    (one_for_each_half, "returned tensor([32, 32]), not a number of bytes"),
]


def step_by_step(length, itemsize, rank, world_size):
    chunks = torch.empty(length).tensor_split(world_size)
    sent = 0
    for step in range(world_size - 1):
        sent += chunks[(rank - 1 - step) % world_size].numel() + chunks[(rank - step) % world_size].numel()
    return sent * itemsize


def as_a_tensor(length, itemsize, rank, world_size):
    return torch.tensor(step_by_step(length, itemsize, rank, world_size))


def as_a_float(length, itemsize, rank, world_size):
    return float(step_by_step(length, itemsize, rank, world_size))


def as_a_fraction(length, itemsize, rank, world_size):
    return fractions.Fraction(step_by_step(length, itemsize, rank, world_size))


RIGHT = [step_by_step, as_a_tensor, as_a_float, as_a_fraction]
