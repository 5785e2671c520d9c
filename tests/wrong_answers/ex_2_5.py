"""Exercise 2.5: answers that its check must refuse, each with words from the reason that it must give."""

from numba import cuda, float32


def has_no_barrier(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i] if i < n else 0
    if t == cuda.blockDim.x - 1:
        total = 0.0
        for k in range(cuda.blockDim.x):
            total += tile[k]
        sums[cuda.blockIdx.x] = total


def leaves_places_unwritten(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if i < n:
        tile[t] = x[i]
    cuda.syncthreads()
    if t == 0:
        total = 0.0
        for k in range(cuda.blockDim.x):
            total += tile[k]
        sums[cuda.blockIdx.x] = total


def waits_in_a_branch(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = 0
    if i < n:
        tile[t] = x[i]
        cuda.syncthreads()
    if t == 0:
        total = 0.0
        for k in range(cuda.blockDim.x):
            total += tile[k]
        sums[cuda.blockIdx.x] = total


def has_no_guard(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        total = 0.0
        for k in range(cuda.blockDim.x):
            total += tile[k]
        sums[cuda.blockIdx.x] = total


def lets_everyone_write(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i] if i < n else 0
    cuda.syncthreads()
    total = 0.0
    for k in range(cuda.blockDim.x):
        total += tile[k]
    sums[cuda.blockIdx.x] = total


def halves_any_size(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i] if i < n else 0
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            tile[t] += tile[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def assumes_a_full_block(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i] if i < n else 0
    cuda.syncthreads()
    if t == 0:
        total = 0.0
        for k in range(32):
            total += tile[k]
        sums[cuda.blockIdx.x] = total


def adds_without_sharing(n, x, sums):
    if cuda.threadIdx.x == 0:
        begin = cuda.blockIdx.x * cuda.blockDim.x
        total = 0.0
        for i in range(begin, min(n, begin + cuda.blockDim.x)):
            total += x[i]
        sums[cuda.blockIdx.x] = total


def adds_to_what_was_there(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i] if i < n else 0
    cuda.syncthreads()
    if t == 0:
        for k in range(cuda.blockDim.x):
            sums[cuda.blockIdx.x] += tile[k]


def writes_the_first_place_only(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i] if i < n else 0
    cuda.syncthreads()
    if t == 0:
        total = 0.0
        for k in range(cuda.blockDim.x):
            total += tile[k]
        sums[0] = total


def uses_the_global_index_in_the_tile(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[i] = x[i] if i < n else 0
    cuda.syncthreads()
    if t == 0:
        total = 0.0
        for k in range(cuda.blockDim.x):
            total += tile[k]
        sums[cuda.blockIdx.x] = total


WRONG = [
    (has_no_barrier, "there is a race"),
    (leaves_places_unwritten, "is not a number: somebody adds a place"),
    (waits_in_a_branch, "syncthreads"),
    (has_no_guard, "is there a guard"),
    (lets_everyone_write, "32 threads write sums[0]"),
    (halves_any_size, "with 2 blocks of 5 threads and n = 9, sums[0]"),
    (assumes_a_full_block, "is not a number: somebody adds a place"),
    (adds_without_sharing, "each thread reads its own number alone"),
    (adds_to_what_was_there, "does what stood there before count"),
    (writes_the_first_place_only, "block 1 writes sums[0], which is another block's"),
    (uses_the_global_index_in_the_tile, "writes tile[32]"),
]


def adds_pairs_in_rounds(n, x, sums):
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * cuda.blockDim.x + t
    tile[t] = 0
    if i < n:
        tile[t] = x[i]
    half = 16
    while half > 0:
        cuda.syncthreads()
        if t < half and t + half < cuda.blockDim.x:
            tile[t] += tile[t + half]
        half //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def adds_in_one_place(n, x, sums):
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


RIGHT = [adds_pairs_in_rounds, adds_in_one_place]
