# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 3.1
import statistics
import time


def images_per_s(step, batch_size, synchronize):
    for _ in range(3):  # warm up
        step()
    seconds = []
    for _ in range(10):
        synchronize()
        begin = time.perf_counter()
        step()
        synchronize()
        seconds.append(time.perf_counter() - begin)
    return batch_size / statistics.median(seconds)


# %%
# Exercise 3.2
import math


def predict_bytes(shapes, optimizer):
    sizes = [4 * math.prod(shape) for shape in shapes]
    state = {"sgd": 0, "momentum": sum(sizes), "adam": 2 * sum(sizes) + 4 * len(sizes)}
    return {
        "weights": sum(sizes),
        "gradients": sum(sizes),
        "optimizer state": state[optimizer],
        "weights on a GPU": sum((size + 511) // 512 * 512 for size in sizes),
    }


# %%
# Exercise 3.3
def predict_activations(C, S):
    image = 3 * S * S * 4
    maps = C * S * S * 4
    a = image + 2 * maps + 10 * 4 + 8  # conv's input, BatchNorm's input, ReLU's output; log-probabilities, label
    c = 2 * C * 4 + 4  # BatchNorm's statistics; the loss's sum of weights
    return a, c


# %%
# Exercise 3.4
def accumulate(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for micro_x, micro_y in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        loss = F.cross_entropy(model(micro_x), micro_y, reduction="sum") / len(x)
        loss.backward()
    optimizer.step()
