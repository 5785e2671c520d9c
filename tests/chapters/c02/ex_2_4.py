# %% wrong (ignores the increments): writes y[1], which is not yours: it lies in a gap
# y[i * incy] += a * x[i * incx] → y[i] += a * x[i]
# %% wrong (exchanges the increments): x has 41 elements
# y[i * incy] += a * x[i * incx] → y[i * incx] += a * x[i * incy]
# %% wrong (forgets what y was): does the old y count
# y[i * incy] += a → y[i * incy] = a
# %% wrong (writes into x): x[0] is written, and x is an input
# y[i * incy] += a * x[i * incx] → x[i * incx] = a * x[i * incx] + y[i * incy]
# %% wrong (gives each thread a run): takes the elements 0 and 1 of y
# range(index, n, stride) → range(index * ((n + stride - 1) // stride), min(n, (index + 1) * ((n + stride - 1) // stride)))
# %% right (walks with two indices)
def saxpy(n, a, x, incx, y, incy):
    step = cuda.blockDim.x * cuda.gridDim.x
    at = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    ix, iy = at * incx, at * incy
    while iy <= (n - 1) * incy:
        y[iy] += a * x[ix]
        ix += step * incx
        iy += step * incy
