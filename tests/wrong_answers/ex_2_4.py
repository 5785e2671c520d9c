"""Exercise 2.4: answers that its check must refuse, each with words from the reason that it must give."""

from numba import cuda


def ignores_the_increments(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] = a * x[i] + y[i]


def uses_one_increment_for_both(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i * incx] = a * x[i * incx] + y[i * incx]


def exchanges_the_increments(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i * incx] = a * x[i * incy] + y[i * incx]


def forgets_what_y_was(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i * incy] = a * x[i * incx]


def writes_into_x(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x[i * incx] = a * x[i * incx] + y[i * incy]


def multiplies_the_sum(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i * incy] = a * (x[i * incx] + y[i * incy])


def forgets_the_gap_between_threads(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n * incy, cuda.gridsize(1) * incy):
        y[i] = a * x[i // incy * incx] + y[i]


def strides_by_the_grid(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n, cuda.gridDim.x):
        y[i * incy] = a * x[i * incx] + y[i * incy]


def has_no_limit(n, a, x, incx, y, incy):
    i = cuda.grid(1)
    while i * incx < len(y):
        y[i * incy] = a * x[i * incx] + y[i * incy]
        i += cuda.gridsize(1)


def leaves_all_to_thread_0(n, a, x, incx, y, incy):
    if cuda.grid(1) == 0:
        for i in range(n):
            y[i * incy] += a * x[i * incx]


WRONG = [
    (leaves_all_to_thread_0, "only 1 of the threads take part"),
    (ignores_the_increments, "n = 21, incx = 2, incy = 3, thread 1 of block 0 writes y[1], which is not yours: it lies in a gap"),
    (uses_one_increment_for_both, "which is not yours: it lies in a gap"),
    (exchanges_the_increments, "x has 41 elements"),
    (forgets_what_y_was, "does the old y count"),
    (writes_into_x, "x[0] is written, and x is an input"),
    (multiplies_the_sum, "and should be 1002.5"),
    (forgets_the_gap_between_threads, "it lies in a gap"),
    (strides_by_the_grid, "y[3] is written 2 times"),
    (has_no_limit, "x has 41 elements"),
]


def walks_with_two_indices(n, a, x, incx, y, incy):
    step = cuda.blockDim.x * cuda.gridDim.x
    at = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    ix, iy = at * incx, at * incy
    while iy <= (n - 1) * incy:
        y[iy] += a * x[ix]
        ix += step * incx
        iy += step * incy


RIGHT = [walks_with_two_indices]
