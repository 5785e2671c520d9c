# %% wrong (ignores the increments): writes y[1], which is not yours: it lies in a gap
# y[i * incy] += a * x[i * incx] → y[i] += a * x[i]
# %% wrong (exchanges the increments): x has 41 elements
# y[i * incy] += a * x[i * incx] → y[i * incx] += a * x[i * incy]
# %% wrong (forgets what y was): does the old y count
# y[i * incy] += a → y[i * incy] = a
# %% wrong (writes into x): x[0] is written, and x is an input
# y[i * incy] += a * x[i * incx] → x[i * incx] = a * x[i * incx] + y[i * incy]
# %% wrong (asks torch): torch.tensor runs on the host only
# a * x[i * incx] → torch.tensor(a * x[i * incx]).item()
# %% wrong (looks places up): it uses a dict
# y[i * incy] → y[{0: i * incy}[0]]
# %% wrong (imports): it imports something
# -     for i in range(index, n, stride):
# +     from math import floor
# +     for i in range(index, floor(n), stride):
# %% wrong (gives each thread a run): takes the elements 0 and 1 of y
# range(index, n, stride) → range(index * ((n + stride - 1) // stride), min(n, (index + 1) * ((n + stride - 1) // stride)))
# %% wrong (strides by the grid): y[3] is written 2 times
# stride = cuda.blockDim.x * cuda.gridDim.x → stride = cuda.gridDim.x
# %% wrong (has no limit): y has 61 elements
# range(index, n, stride) → range(index, len(y), stride)
# %% wrong (takes one turn): by no thread
# range(index, n, stride) → range(index, min(n, index + 1))

# %% right (walks with two indices)
def saxpy(n, a, x, incx, y, incy):
    step = cuda.blockDim.x * cuda.gridDim.x
    at = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    ix, iy = at * incx, at * incy
    while iy <= (n - 1) * incy:
        y[iy] += a * x[ix]
        ix += step * incx
        iy += step * incy

# %% right (comes from behind)
def saxpy(n, a, x, incx, y, incy):
    i = n - 1 - cuda.grid(1)
    while i >= 0:
        y[i * incy] += a * x[i * incx]
        i -= cuda.gridsize(1)
