# %%
import numpy as np

# %% wrong (returns the size): a size in samples
# return min(steps, key=steps.get) → return batch_size // min(steps, key=steps.get)
# %% wrong (returns the shortest step): no size in `costs` cuts the batch
# return min(steps, key=steps.get) → return round(min(steps.values())) + 1000
# %% wrong (returns a time): not a whole number
# return min(steps, key=steps.get) → return min(steps.values())
# %% wrong (ignores the limit): samples at once, and 64 are allowed
# if min(num_stages, M) * size <= max_samples: → if True:
# %% wrong (counts one micro-batch as held): samples at once
# min(num_stages, M) * size → size
# %% wrong (supposes GPipe's memory): a ValueError was raised
# min(num_stages, M) * size → batch_size
# %% wrong (holds more micro-batches than there are): was a size left out?
# min(num_stages, M) * size → num_stages * size
# %% wrong (forgets to fill and empty the pipeline): do not stages also wait for one another?
# (M + num_stages - 1) * cost → M * cost
# %% wrong (as many as possible): the bubble is smallest there
# return min(steps, key=steps.get) → return max(steps)
# %% wrong (takes the bubble for the step): the bubble is smallest there
# (M + num_stages - 1) * cost → (num_stages - 1) * cost
# %% wrong (fills and empties twice): how many micro-batches' time does a step take?
# (M + num_stages - 1) * cost → (M + 2 * (num_stages - 1)) * cost
# %% wrong (refuses nothing): ValueError
# -         raise ValueError(f"no size keeps stage 0 within {max_samples} samples")
# +         return 1
# %% wrong (leaves no sample free): the bubble is smallest there
# <= max_samples: → < max_samples:
# %% wrong (sorts the costs on the way): belongs to the caller
# -     steps = {}
# +     steps, costs[1] = {}, 1e9
# %% right (places every schedule)
def choose_count(costs, batch_size, num_stages, max_samples):
    counts = {}
    for size, cost in costs.items():
        schedule = pipeline.one_forward_one_backward(num_stages, batch_size // size)
        if max(pipeline.peak_activations(schedule)) * size <= max_samples:
            counts[batch_size // size] = pipeline.length(pipeline.place(schedule, cost / 3, 2 * cost / 3))
    if counts:
        return min(counts, key=counts.get)
    raise ValueError("nothing fits")

# %% right (filters first, and leaves the refusal to min)
def choose_count(costs, batch_size, num_stages, max_samples):
    fitting = [size for size in costs if size * min(num_stages, batch_size / size) <= max_samples]
    return batch_size // min(fitting, key=lambda size: costs[size] * (batch_size / size + num_stages - 1))

# %% right (with arrays)
def choose_count(costs, batch_size, num_stages, max_samples):
    sizes, times = np.array(list(costs)), np.array(list(costs.values()))
    counts = batch_size // sizes
    steps = np.where(np.minimum(counts, num_stages) * sizes <= max_samples, (counts + num_stages - 1) * times, np.inf)
    if np.isinf(steps).all():
        raise ValueError
    return counts[steps.argmin()]

# %% right (by the bubble)
def choose_count(costs, batch_size, num_stages, max_samples):
    best = None
    for size, cost in costs.items():
        M = batch_size // size
        bubble = (num_stages - 1) / (M + num_stages - 1)
        step = M * cost / (1 - bubble)
        if size * min(M, num_stages) <= max_samples and (best is None or step < best[0]):
            best = step, M
    if best is None:
        raise ValueError("no micro-batch is small enough")
    return best[1]
