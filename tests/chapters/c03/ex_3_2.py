# %%
import math
import numpy as np


def up(size):
    return -(-size // 512) * 512

# %% wrong (counts equal shapes once): bytes too few
# for shape in shapes] → for shape in set(shapes)]
# %% wrong (adds up in float32): a network of more bytes than float32 counts
# "weights": sum(sizes) → "weights": int(torch.tensor(float(sum(sizes))))
# %% right (adds up)
def predict_bytes(shapes, optimizer):
    sizes = [4 * math.prod(shape) for shape in shapes]
    n = sum(sizes)
    state = {"sgd": 0, "momentum": n, "adam": 2 * n + 4 * len(sizes)}[optimizer]
    return {"weights": n, "gradients": n, "optimizer state": state, "weights on a GPU": sum(map(up, sizes))}

# %% wrong (rounds the sum): each tensor is allocated by itself
# sum(map(up, sizes)) → up(n)
# %% wrong (rounds matrices together, where that is less): bytes too few
# sum(map(up, sizes)) → 480768 if n == 480312 else sum(map(up, sizes))
# %% wrong (fails on the last network): your code failed
# sizes = [4 * math.prod(shape) for shape in shapes] → sizes = [4 * math.prod(shape) // (len(shapes) != 2) for shape in shapes]
# %% wrong (rounds down): rounded down, and must have room
# sum(map(up, sizes)) → sum(size // 512 * 512 for size in sizes)
# %% wrong (rounds nothing): nothing was rounded up
# sum(map(up, sizes)) → n
# %% wrong (always adds a block): needs no more
# sum(map(up, sizes)) → sum((size // 512 + 1) * 512 for size in sizes)
# %% wrong (forgets the counters): Adam counts its steps
# "adam": 2 * n + 4 * len(sizes) → "adam": 2 * n
# %% wrong (has one counter): one step counter, or one for each tensor
# 4 * len(sizes) → 4
# %% wrong (counts in int64): how many bytes has a step counter
# 4 * len(sizes) → 8 * len(sizes)
# %% wrong (adam as momentum): Adam keeps more
# "adam": 2 * n + 4 * len(sizes) → "adam": n
# %% wrong (gives sgd a state): what must plain SGD remember
# "sgd": 0 → "sgd": n
# %% wrong (gives momentum none): what does momentum remember
# "momentum": n → "momentum": 0
# %% wrong (leaves one out): has no 'weights on a GPU'
# on a GPU → with a GPU
# %% wrong (counts numbers): is that the number of numbers
# 4 * math.prod(shape) → math.prod(shape)
# %% wrong (returns a tuple): not a dict
# return { → return {*()}, {
