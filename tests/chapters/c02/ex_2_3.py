# %% wrong (swaps everything twice): is written 2 times, by thread
# n // 2, stride → n, stride
# %% wrong (each fetches its own): there is a race
# n // 2, stride → n, stride
# x[i], x[last] = x[last], x[i] → x[i] = x[last]
# %% wrong (takes one step only): x[8] and 3 more are written by no thread
# for i in range(index, n // 2, stride): → for i in range(index, min(index + 1, n // 2)):
# %% wrong (swaps neighbours): where should it have gone
# last = n - 1 - i → last = i + n // 2 + n % 2
# %% right (turns the middle one too)
def reverse(n, x):
    for i in range(cuda.grid(1), (n + 1) // 2, cuda.gridsize(1)):
        low, high = x[i], x[n - 1 - i]
        if i != n - 1 - i:
            x[n - 1 - i] = low
        x[i] = high

# %% wrong (gives each thread a run of numbers): all threads are to share the work
def reverse(n, x):
    each = (n + cuda.gridsize(1) - 1) // cuda.gridsize(1)
    for i in range(cuda.grid(1) * each, min((cuda.grid(1) + 1) * each, n // 2)):
        x[i], x[n - 1 - i] = x[n - 1 - i], x[i]
