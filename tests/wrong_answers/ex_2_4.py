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

# %% wrong (ignores the increments): writes y[1], which is not yours: it lies in a gap
def saxpy(n, a, x, incx, y, incy):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] = a * x[i] + y[i]

# %% wrong (uses one increment for both): which is not yours: it lies in a gap
# y[i] = a * x[i] + y[i] → y[i * incx] = a * x[i * incx] + y[i * incx]
# %% wrong (exchanges the increments): x has 41 elements
# y[i] = a * x[i] + y[i] → y[i * incx] = a * x[i * incy] + y[i * incx]
# %% wrong (forgets what y was): does the old y count
# y[i] = a * x[i] + y[i] → y[i * incy] = a * x[i * incx]
# %% wrong (writes into x): x[0] is written, and x is an input
# y[i] = a * x[i] + y[i] → x[i * incx] = a * x[i * incx] + y[i * incy]
# %% wrong (multiplies the sum): and should be 1002.5
# y[i] = a * x[i] + y[i] → y[i * incy] = a * (x[i * incx] + y[i * incy])
# %% wrong (asks torch): torch.tensor runs on the host only
# y[i] = a * x[i] + y[i] → y[i * incy] += torch.tensor(a * x[i * incx]).item()
# %% wrong (looks places up): it uses a dict
# y[i] = a * x[i] + y[i] → y[{0: i * incy}[0]] += a * x[i * incx]
# %% wrong (takes turns in a generator): it makes a generator
# y[i] = a * x[i] + y[i] → y[i * incy] = sum(part for part in (y[i * incy], a * x[i * incx]))
# %% wrong (leaves all to thread 0): how far apart are a thread's elements in a grid-stride loop
# -     for i in range(cuda.grid(1), n, cuda.gridsize(1)):
# -         y[i] = a * x[i] + y[i]
# +     if cuda.grid(1) == 0:
# +         for i in range(n):
# +             y[i * incy] += a * x[i * incx]
# %% wrong (gives each thread a run): takes the elements 0 and 1 of y
# -     for i in range(cuda.grid(1), n, cuda.gridsize(1)):
# -         y[i] = a * x[i] + y[i]
# +     each = (n + cuda.gridsize(1) - 1) // cuda.gridsize(1)
# +     for i in range(cuda.grid(1) * each, min(n, (cuda.grid(1) + 1) * each)):
# +         y[i * incy] += a * x[i * incx]
# %% wrong (forgets the gap between threads): it lies in a gap
# n, cuda.gridsize(1) → n * incy, cuda.gridsize(1) * incy
# x[i] + → x[i // incy * incx] +
# %% wrong (strides by the grid): y[3] is written 2 times
# cuda.gridsize(1) → cuda.gridDim.x
# %% wrong (has no limit): x has 41 elements
# n, cuda → len(y), cuda
# y[i] = a * x[i] + y[i] → y[i * incy] = a * x[i * incx] + y[i * incy]
# %% wrong (takes one turn): by no thread
# -     for i in range(cuda.grid(1), n, cuda.gridsize(1)):
# +     i = cuda.grid(1)
# +     if i < n:
