"""Exercise 3.2: answers that its check must refuse, each with words from the reason that it must give."""

import math

import numpy as np


def answer(weights, gradients, state, on_gpu):
    return {"weights": weights, "gradients": gradients, "optimizer state": state, "weights on a GPU": on_gpu}


def sizes_of(shapes):
    return [4 * math.prod(shape) for shape in shapes]


def up(size):
    return -(-size // 512) * 512


def numbers_of(optimizer):
    return {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]


def counts_numbers(shapes, optimizer):
    n = sum(math.prod(shape) for shape in shapes)
    return answer(n, n, numbers_of(optimizer) * n, up(n))


def forgets_the_counters(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n, n, numbers_of(optimizer) * n, sum(map(up, sizes_of(shapes))))


def has_one_counter(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n, n, numbers_of(optimizer) * n + 4 * (optimizer == "adam"), sum(map(up, sizes_of(shapes))))


def state_for(shapes, optimizer):
    return numbers_of(optimizer) * sum(sizes_of(shapes)) + 4 * len(shapes) * (optimizer == "adam")


def rounds_the_sum(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n, n, state_for(shapes, optimizer), up(n))


def rounds_down(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n, n, state_for(shapes, optimizer), sum(size // 512 * 512 for size in sizes_of(shapes)))


def rounds_nothing(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n, n, state_for(shapes, optimizer), n)


def always_adds_a_block(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n, n, state_for(shapes, optimizer), sum((size // 512 + 1) * 512 for size in sizes_of(shapes)))


def gives_sgd_a_state(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n, n, n, sum(map(up, sizes_of(shapes))))


def adam_as_momentum(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n, n, 0 if optimizer == "sgd" else n, sum(map(up, sizes_of(shapes))))


def returns_floats(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return answer(n / 1, n, state_for(shapes, optimizer), up(n))


def leaves_one_out(shapes, optimizer):
    n = sum(sizes_of(shapes))
    return {"weights": n, "gradients": n, "optimizer state": state_for(shapes, optimizer)}


def returns_a_tuple(shapes, optimizer):
    return (0, 0, 0, 0)


WRONG = [
    (counts_numbers, "is the number of numbers; how many bytes"),
    (forgets_the_counters, "Adam counts its steps"),
    (has_one_counter, "one step counter, or one for each tensor"),
    (rounds_the_sum, "each tensor is allocated by itself"),
    (rounds_down, "rounded down, and must have room"),
    (rounds_nothing, "nothing was rounded up"),
    (always_adds_a_block, "needs no more"),
    (gives_sgd_a_state, "plain SGD keeps nothing"),
    (adam_as_momentum, "Adam keeps more"),
    (returns_floats, "is not a whole number; bytes are"),
    (leaves_one_out, "has no 'weights on a GPU'"),
    (returns_a_tuple, "not a dict"),
]


def adds_up_in_a_loop(shapes, optimizer):
    total = dict.fromkeys(("weights", "gradients", "optimizer state", "weights on a GPU"), 0)
    for shape in shapes:
        numbers = 1
        for length in shape:
            numbers *= length
        total["weights"] += 4 * numbers
        total["gradients"] += 4 * numbers
        if optimizer == "momentum":
            total["optimizer state"] += 4 * numbers
        if optimizer == "adam":
            total["optimizer state"] += 8 * numbers + 4
        total["weights on a GPU"] += math.ceil(4 * numbers / 512) * 512
    return total


def counts_with_numpy(shapes, optimizer):
    sizes = np.array([4 * np.prod(shape) for shape in shapes])
    state = {"sgd": 0 * sizes, "momentum": sizes, "adam": 2 * sizes + 4}[optimizer]
    return answer(sizes.sum(), sizes.sum(), state.sum(), (-(-sizes // 512) * 512).sum())


RIGHT = [counts_with_numpy, adds_up_in_a_loop]
