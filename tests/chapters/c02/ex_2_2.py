# %% wrong (has no guard): is there a guard
# if i < n → if True
# %% wrong (guards one too early): x[49] is written by no thread
# i < n → i < n - 1
# %% wrong (guards by the length): writes x[40], which is not yours: it lies behind the first n
# i < n → i < len(x)
# %% wrong (looks into a list): numba has no list for a GPU
# i < n → i in list(range(n))
# %% wrong (multiplies by the grid): x[7] is written 2 times, by thread 7 of block 0
# cuda.blockDim.x → cuda.gridDim.x
# %% wrong (adds instead): became 3.5, and should be 2.5
# x[i] *= a → x[i] += a
# %% wrong (leaves all to thread 0): there is a thread for each
# -     if i < n:
# -         x[i] *= a
# +     for k in range(n if i == 0 else 0):
# +         x[k] *= a
# %% right (calls a device function)
@cuda.jit(device=True)
def times(a, b):
    return a * b


def scale(n, a, x):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x[i] = times(a, x[i])
