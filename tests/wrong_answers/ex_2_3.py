# %% right (two ends meet)
def reverse(n, x):
    first = cuda.grid(1)
    last = n - 1 - first
    while first < last:
        kept = x[first]
        x[first] = x[last]
        x[last] = kept
        first += cuda.gridsize(1)
        last -= cuda.gridsize(1)

# %% right (gives each thread a run of pairs)
def reverse(n, x):
    each = (n // 2 + cuda.gridsize(1) - 1) // cuda.gridsize(1)
    for i in range(cuda.grid(1) * each, min((cuda.grid(1) + 1) * each, n // 2)):
        x[i], x[n - 1 - i] = x[n - 1 - i], x[i]

# %% wrong (collects the pairs): it uses a list
# -     for i in range(cuda.grid(1) * each, min((cuda.grid(1) + 1) * each, n // 2)):
# +     for i in [k for k in range(n // 2) if each and k // each == cuda.grid(1)]:
# %% wrong (gives each thread a run of numbers): all threads are to share the work
# (n // 2 + → (n +

# %% right (turns the middle one too)
def reverse(n, x):
    for i in range(cuda.grid(1), (n + 1) // 2, cuda.gridsize(1)):
        low, high = x[i], x[n - 1 - i]
        if i != n - 1 - i:
            x[n - 1 - i] = low
        x[i] = high

# %% wrong (swaps everything twice): x[0] is written 2 times, by thread 0 of block 0 and thread 3 of block 0
def reverse(n, x):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x[i], x[n - 1 - i] = x[n - 1 - i], x[i]

# %% wrong (each fetches its own): there is a race
# x[i], x[n - 1 - i] = x[n - 1 - i], x[i] → x[i] = x[n - 1 - i]
# %% wrong (takes one step only): x[8] and 3 more are written by no thread
# -     for i in range(cuda.grid(1), n, cuda.gridsize(1)):
# +     i = cuda.grid(1)
# +     if i < n // 2:
# %% wrong (starts with the thread): is written 2 times
# grid(1), n, cuda.gridsize(1) → threadIdx.x, n // 2, cuda.blockDim.x
# %% wrong (leaves all to block 0): all threads are to share the work
# -     for i in range(cuda.grid(1), n, cuda.gridsize(1)):
# -         x[i], x[n - 1 - i] = x[n - 1 - i], x[i]
# +     if cuda.blockIdx.x == 0:
# +         for i in range(cuda.threadIdx.x, n // 2, cuda.blockDim.x):
# +             x[i], x[n - 1 - i] = x[n - 1 - i], x[i]
# %% endless (never steps): does its loop come to an end
# -     for i in range(cuda.grid(1), n, cuda.gridsize(1)):
# +     i = cuda.grid(1)
# +     while i < n // 2:
# %% wrong (counts from the length): which is not yours
# -     for i in range(cuda.grid(1), n, cuda.gridsize(1)):
# -         x[i], x[n - 1 - i] = x[n - 1 - i], x[i]
# +     for i in range(cuda.grid(1), n // 2, cuda.gridsize(1)):
# +         x[i], x[len(x) - 1 - i] = x[len(x) - 1 - i], x[i]
# %% wrong (swaps neighbours): where should it have gone
# n, cuda → n // 2, cuda
# x[i], x[n - 1 - i] = x[n - 1 - i], x[i] → x[2 * i], x[2 * i + 1] = x[2 * i + 1], x[2 * i]
# %% wrong (swaps by sums): where should it have gone
# n, cuda → n // 2, cuda
# -         x[i], x[n - 1 - i] = x[n - 1 - i], x[i]
# +         x[i] += x[n - 1 - i]
# +         x[n - 1 - i] = x[i] - x[n - 1 - i]
# +         x[i] -= x[n - 1 - i]
# %% wrong (uses a slice): an index is a whole number
# x[i], x[n - 1 - i] = x[n - 1 - i], x[i] → x[:n] = x[:n][::-1]

# %% wrong (calls itself): it can neither call itself nor keep anything there
def reverse(n, x, first=0):
    i = first + cuda.grid(1)
    if i < n // 2:
        x[i], x[n - 1 - i] = x[n - 1 - i], x[i]
        reverse(n, x, first + cuda.gridsize(1))
