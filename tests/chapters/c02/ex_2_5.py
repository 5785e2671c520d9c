# %% wrong (adds to what was there): does what stood there before count
# sums[cuda.blockIdx.x] = total → sums[cuda.blockIdx.x] += total
# %% wrong (forgets its own number): which of them are missing
# total = tile[0] → total = 0.0
# %% wrong (forgets to write): it is what it was before
# sums[cuda.blockIdx.x] = total → tile[0] = total
# %% wrong (lets two write): 2 threads write sums[0]
# if t == 0: → if t < 2:
# %% wrong (has no barrier): there is a race
# -     cuda.syncthreads()
# + 
# if t == 0: → if t == cuda.blockDim.x - 1:
# %% wrong (leaves places unwritten): is not a number: somebody adds a place
# tile[t] = x[i] if i < n else 0  # a → for k in range(i, min(n, i + 1)): tile[t] = x[k]  # a
# %% wrong (guards by the length): behind the first n
# i < n → i < len(x)
# %% wrong (reads twice): is read 2 times: once is asked
# x[i] if i < n else 0 → (x[i] if x[i] > 0 else 0) if i < n else 0
# %% wrong (forgets the last number): is read by no thread
# i < n → i < n - 1
# %% wrong (writes the first place only): block 1 writes sums[0], which is another block's
# sums[cuda.blockIdx.x] → sums[0]

# %% right (adds in one place)
def block_sums(n, x, sums):
    total = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        total[0] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < n:
        cuda.atomic.add(total, 0, x[i])
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = total[0]

# %% wrong (adds in the result itself): 32 threads add to sums[0] itself
# cuda.atomic.add(total, 0, x[i]) → cuda.atomic.add(sums, cuda.blockIdx.x, x[i])

# %% wrong (adds without sharing): each thread reads its own number alone
def block_sums(n, x, sums):
    if cuda.threadIdx.x == 0:
        begin = cuda.blockIdx.x * cuda.blockDim.x
        total = 0.0
        for i in range(begin, min(n, begin + cuda.blockDim.x)):
            total += x[i]
        sums[cuda.blockIdx.x] = total
