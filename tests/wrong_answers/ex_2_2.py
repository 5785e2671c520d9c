"""Exercise 2.2: answers that its check must refuse, each with words from the reason that it must give."""

from numba import cuda


def has_no_guard(n, a, x):
    i = cuda.grid(1)
    x[i] = a * x[i]


def guards_one_too_early(n, a, x):
    i = cuda.grid(1)
    if i < n - 1:
        x[i] = a * x[i]


def guards_by_the_length(n, a, x):
    i = cuda.grid(1)
    if i < len(x):
        x[i] = a * x[i]


def guards_whole_blocks(n, a, x):
    i = cuda.grid(1)
    if (cuda.blockIdx.x + 1) * cuda.blockDim.x <= n:
        x[i] = a * x[i]


def takes_the_thread_alone(n, a, x):
    i = cuda.threadIdx.x
    if i < n:
        x[i] = a * x[i]


def multiplies_by_the_grid(n, a, x):
    i = cuda.blockIdx.x * cuda.gridDim.x + cuda.threadIdx.x
    if i < n:
        x[i] = a * x[i]


def loops_in_every_thread(n, a, x):
    for i in range(n):
        x[i] = a * x[i]


def adds_instead(n, a, x):
    i = cuda.grid(1)
    if i < n:
        x[i] = a + x[i]


def forgets_to_write(n, a, x):
    i = cuda.grid(1)
    if i < n:
        y = a * x[i]  # noqa: F841


def returns_the_result(n, a, x):
    return a * x[cuda.threadIdx.x]


def leaves_all_to_thread_0(n, a, x):
    if cuda.grid(1) == 0:
        for i in range(n):
            x[i] *= a


def leaves_all_to_block_0(n, a, x):
    if cuda.blockIdx.x == 0:
        for i in range(cuda.threadIdx.x, n, cuda.blockDim.x):
            x[i] *= a


WRONG = [
    (leaves_all_to_thread_0, "there is a thread for each"),
    (leaves_all_to_block_0, "there is a thread for each"),
    (has_no_guard, "is there a guard"),
    (guards_one_too_early, "x[49] is written by no thread"),
    (guards_by_the_length, "writes x[40], which is not yours: it lies behind the first n"),
    (guards_whole_blocks, "x[48] and 1 more are written by no thread"),
    (takes_the_thread_alone, "which elements does thread 0 of block 1 take"),
    (multiplies_by_the_grid, "x[7] is written 2 times, by thread 7 of block 0"),
    (loops_in_every_thread, "x[0] is written 56 times"),
    (adds_instead, "and should be 2.5: with a = 2.5"),
    (forgets_to_write, "nothing is written"),
    (returns_the_result, "a kernel returns nothing"),
]


def leaves_early(n, a, x):
    i = cuda.blockDim.x * cuda.blockIdx.x + cuda.threadIdx.x
    if i >= n:
        return
    x[i] *= a


def loops_to_be_safe(n, a, x):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x[i] = x[i] * a


RIGHT = [leaves_early, loops_to_be_safe]
