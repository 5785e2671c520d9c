"""Exercise 2.3: answers that its check must refuse, each with words from the reason that it must give."""

from numba import cuda


def swaps_everything_twice(n, x):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x[i], x[n - 1 - i] = x[n - 1 - i], x[i]


def writes_over_the_other_half(n, x):
    for i in range(cuda.grid(1), n // 2, cuda.gridsize(1)):
        x[i] = x[n - 1 - i]
        x[n - 1 - i] = x[i]


def each_fetches_its_own(n, x):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x[i] = x[n - 1 - i]


def counts_from_the_length(n, x):
    for i in range(cuda.grid(1), n // 2, cuda.gridsize(1)):
        x[i], x[len(x) - 1 - i] = x[len(x) - 1 - i], x[i]


def takes_one_step_only(n, x):
    i = cuda.grid(1)
    if i < n // 2:
        x[i], x[n - 1 - i] = x[n - 1 - i], x[i]


def starts_with_the_thread(n, x):
    for i in range(cuda.threadIdx.x, n // 2, cuda.blockDim.x):
        x[i], x[n - 1 - i] = x[n - 1 - i], x[i]


def swaps_neighbours(n, x):
    for i in range(cuda.grid(1), n // 2, cuda.gridsize(1)):
        x[2 * i], x[2 * i + 1] = x[2 * i + 1], x[2 * i]


def never_steps(n, x):
    i = cuda.grid(1)
    while i < n // 2:
        x[i], x[n - 1 - i] = x[n - 1 - i], x[i]


def uses_a_slice(n, x):
    x[:n] = x[:n][::-1]


def leaves_all_to_thread_0(n, x):
    if cuda.grid(1) == 0:
        for i in range(n // 2):
            x[i], x[n - 1 - i] = x[n - 1 - i], x[i]


WRONG = [
    (leaves_all_to_thread_0, "only 1 of the threads take part"),
    (swaps_everything_twice, "x[0] is written 2 times, by thread 0 of block 0 and thread 3 of block 0"),
    (writes_over_the_other_half, "where should it have gone"),
    (each_fetches_its_own, "there is a race"),
    (counts_from_the_length, "which is not yours"),
    (takes_one_step_only, "x[8] and 3 more are written by no thread"),
    (starts_with_the_thread, "is written 2 times"),
    (swaps_neighbours, "where should it have gone"),
    (never_steps, "does its loop come to an end"),
    (uses_a_slice, "an index is a whole number"),
]


def two_ends_meet(n, x):
    first = cuda.grid(1)
    last = n - 1 - first
    while first < last:
        kept = x[first]
        x[first] = x[last]
        x[last] = kept
        first += cuda.gridsize(1)
        last -= cuda.gridsize(1)


def turns_the_middle_one_too(n, x):
    for i in range(cuda.grid(1), (n + 1) // 2, cuda.gridsize(1)):
        low, high = x[i], x[n - 1 - i]
        if i != n - 1 - i:
            x[n - 1 - i] = low
        x[i] = high


RIGHT = [two_ends_meet, turns_the_middle_one_too]
