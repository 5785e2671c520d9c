# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 2.1
def find_writer(element, grid, block):
    index = element % (grid * block)  # a thread's elements differ by multiples of the stride
    return index // block, index % block


# %%
# Exercise 2.2
def scale(n, a, x):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < n:
        x[i] *= a


# %%
# Exercise 2.3
def reverse(n, x):
    index = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    stride = cuda.blockDim.x * cuda.gridDim.x
    for i in range(index, n // 2, stride):  # a pair each; an odd one in the middle stays
        last = n - 1 - i
        x[i], x[last] = x[last], x[i]


# %%
# Exercise 2.4
def saxpy(n, a, x, incx, y, incy):
    index = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    stride = cuda.blockDim.x * cuda.gridDim.x
    for i in range(index, n, stride):
        y[i * incy] += a * x[i * incx]


# %%
# Exercise 2.5
def block_sums(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * cuda.blockDim.x + t
    tile[t] = x[i] if i < n else 0  # a place for every thread, or the sum would take in what nobody wrote
    cuda.syncthreads()
    if t == 0:
        total = tile[0]
        for k in range(1, cuda.blockDim.x):
            total += tile[k]
        sums[cuda.blockIdx.x] = total
