# %%
from itertools import combinations, pairwise, product

import numpy as np

# %% wrong (returns the cuts): are those the cuts?
# return list(min(steps, key=steps.get)) → return list(np.cumsum(min(steps, key=steps.get))[:-1])
# %% wrong (returns one size too few): sizes for 2 stages
# return list(min(steps, key=steps.get)) → return [len(forward_ms)]
# %% wrong (leaves a stage empty): every stage needs a layer
# return list(min(steps, key=steps.get)) → return [len(forward_ms)] + [0] * (num_stages - 1)
# %% wrong (drops the last layer): together 4 layers, and there are 5
# return list(min(steps, key=steps.get)) → return [1] * (num_stages - 1) + [len(forward_ms) - num_stages]
# %% wrong (returns a step): not a list or tuple of sizes
# return list(min(steps, key=steps.get)) → return min(steps.values())
# %% wrong (returns times): not a whole number
# return list(min(steps, key=steps.get)) → return [size / 1 for size in min(steps, key=steps.get)]
# %% wrong (takes the longest): were all ways to cut tried?
# return list(min(steps → return list(max(steps
# %% wrong (forgets the messages): do not messages take time too?
# , message_s=message_ms) → )
# %% wrong (forgets the backward pass): does a stage not also go backward?
# pipeline.place(schedule, *costs, → pipeline.place(schedule, costs[0], 0,
# %% wrong (forgets the forward pass): does a stage not also go forward?
# pipeline.place(schedule, *costs, → pipeline.place(schedule, 0, costs[1],
# %% wrong (balances the stages): do not filling and emptying count as well?
# = pipeline.length(spans) → = max(map(sum, zip(*costs)))
# %% wrong (takes GPipe): is that the best cut for GPipe?
# pipeline.one_forward_one_backward( → pipeline.gpipe(
# %% wrong (reverses the caller's list): belongs to the caller
# -     steps = {}
# +     steps = {}
# +     forward_ms.reverse()
# %% wrong (shares out the layers by number): are the layers equally long?
def choose_sizes(forward_ms, backward_ms, num_stages, num_micro_batches, message_ms):
    return [len(part) for part in np.array_split(np.arange(len(forward_ms)), num_stages)]

# %% wrong (one layer for all but the last): does a stage not also go backward?
def choose_sizes(forward_ms, backward_ms, num_stages, num_micro_batches, message_ms):
    return [1] * (num_stages - 1) + [len(forward_ms) - num_stages + 1]

# %% right (tries every row of sizes)
def choose_sizes(forward_ms, backward_ms, num_stages, num_micro_batches, message_ms):
    schedule, best = pipeline.one_forward_one_backward(num_stages, num_micro_batches), None
    for sizes in product(range(1, len(forward_ms) + 1), repeat=num_stages):
        if sum(sizes) == len(forward_ms):
            ends = np.cumsum(sizes)[:-1]
            forward = [float(part.sum()) for part in np.split(np.array(forward_ms), ends)]
            backward = [float(part.sum()) for part in np.split(np.array(backward_ms), ends)]
            step = pipeline.length(pipeline.place(schedule, forward, backward, message_s=message_ms))
            if best is None or step < best[0]:
                best = step, sizes
    return best[1]

# %% right (cuts layers with split_layers' sizes, the last of the best)
def choose_sizes(forward_ms, backward_ms, num_stages, num_micro_batches, message_ms):
    n, found = len(forward_ms), []
    for cuts in combinations(range(1, n), num_stages - 1):
        bounds = list(pairwise((0, *cuts, n)))
        times = [[sum(each[slice(*bound)]) for bound in bounds] for each in (forward_ms, backward_ms)]
        tasks = pipeline.one_forward_one_backward(num_stages, num_micro_batches)
        step = pipeline.length(pipeline.place(tasks, *times, message_s=message_ms))
        found.append((step, [end - begin for begin, end in bounds]))
    return min(reversed(found), key=lambda pair: pair[0])[1]

# %% right (recursively)
def choose_sizes(forward_ms, backward_ms, num_stages, num_micro_batches, message_ms):
    def ways(num_layers, num_stages):
        if num_stages == 1:
            return [[num_layers]]
        return [[first, *rest] for first in range(1, num_layers - num_stages + 2)
                for rest in ways(num_layers - first, num_stages - 1)]

    def step(sizes):
        forward, backward, at = [], [], 0
        for size in sizes:
            forward.append(sum(forward_ms[at : at + size]))
            backward.append(sum(backward_ms[at : at + size]))
            at += size
        tasks = pipeline.one_forward_one_backward(len(sizes), num_micro_batches)
        return pipeline.length(pipeline.place(tasks, forward, backward, message_s=message_ms))

    return min(ways(len(forward_ms), num_stages), key=step)

# %% right (places the tasks itself)
def choose_sizes(forward_ms, backward_ms, num_stages, num_micro_batches, message_ms):
    def step(sizes):
        ends = [sum(sizes[: i + 1]) for i in range(num_stages)]
        cost = [{"forward": sum(forward_ms[end - size : end]), "backward": sum(backward_ms[end - size : end])}
                for size, end in zip(sizes, ends)]
        free, done = [0] * num_stages, {}
        for stage, m, phase in pipeline.one_forward_one_backward(num_stages, num_micro_batches):
            before = (stage - 1, m, phase) if phase == "forward" else (stage + 1, m, phase)
            ready = done[before] + message_ms if before in done else done.get((stage, m, "forward"), 0)
            done[stage, m, phase] = free[stage] = max(free[stage], ready) + cost[stage][phase]
        return max(free)

    all_sizes = product(range(1, len(forward_ms)), repeat=num_stages) if num_stages > 1 else [(len(forward_ms),)]
    return list(min((sizes for sizes in all_sizes if sum(sizes) == len(forward_ms)), key=step))
