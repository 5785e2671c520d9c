# %% wrong (has no guard): is there a guard
# if i < n → if True
# %% wrong (guards one too early): x[49] is written by no thread
# i < n → i < n - 1
# %% wrong (guards by the length): writes x[40], which is not yours: it lies behind the first n
# i < n → i < len(x)
# %% wrong (looks into a list): numba has no list for a GPU
# i < n → i in list(range(n))
# %% wrong (looks into a generator): it makes a generator
# i < n → any(i == k for k in range(n))
# %% wrong (looks into a dict from outside): is nothing that a GPU's threads can use
# i < n → i < n and numbers[0]
# - def scale(n, a, x):
# + numbers = {0: 1}
# + def scale(n, a, x):
# %% wrong (is decorated itself): give the function itself, without the decorator
# - def scale(n, a, x):
# + @cuda.jit
# + def scale(n, a, x):
# %% wrong (multiplies by the grid): x[7] is written 2 times, by thread 7 of block 0
# cuda.blockDim.x → cuda.gridDim.x
# %% wrong (adds instead): became 3.5, and should be 2.5
# x[i] *= a → x[i] += a
# %% wrong (forgets to write): nothing is written
# x[i] *= a → y = a * x[i]  # noqa: F841
# %% wrong (returns the result): a kernel returns nothing
# x[i] *= a → return a * x[i]
# %% wrong (leaves all to thread 0): there is a thread for each
# -     if i < n:
# -         x[i] *= a
# +     for k in range(n if i == 0 else 0):
# +         x[k] *= a
# %% wrong (catches what goes wrong): thread 2 of block 6 reads x[50]
# -     if i < n:
# -         x[i] *= a
# +     try:
# +         x[i] *= a
# +     except:  # noqa: E722
# +         pass
# %% wrong (catches nothing): it catches an exception
# -     if i < n:
# -         x[i] *= a
# +     try:
# +         if i < n:
# +             x[i] *= a
# +     except IndexError:
# +         return

# %% right (calls a device function)
@cuda.jit(device=True)
def times(a, b):
    return a * b


def scale(n, a, x):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x[i] = times(a, x[i])

# %% wrong (calls an ordinary function): times is an ordinary Python function
# @cuda.jit(device=True) → 

# %% right (leaves early)
def scale(n, a, x):
    i = cuda.grid(1)
    if i >= n:
        return
    x[i] *= a
