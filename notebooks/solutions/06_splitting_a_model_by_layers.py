# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 6.1
def forward_with_skip(x, first, second, third, fourth, device0, device1):
    skip = first(x.to(device0))  # on device 0
    h = third(second(skip).to(device1))  # on device 1
    return fourth(h + skip.to(device1))


# %%
# Exercise 6.2
def emit_1f1b(num_stages, num_micro_batches):
    schedule = []
    for stage in range(num_stages):
        first = min(num_stages - 1 - stage, num_micro_batches)  # forwards before the pairs begin
        schedule += [(stage, m, "forward") for m in range(first)]
        for m in range(num_micro_batches):
            if first + m < num_micro_batches:
                schedule.append((stage, first + m, "forward"))
            schedule.append((stage, m, "backward"))
    return schedule


# %%
# Exercise 6.3
def choose_count(costs, batch_size, num_stages, max_samples):
    steps = {}
    for size, cost in costs.items():
        M = batch_size // size
        if min(num_stages, M) * size <= max_samples:  # stage 0 holds most
            steps[M] = (M + num_stages - 1) * cost
    if not steps:
        raise ValueError(f"no size keeps stage 0 within {max_samples} samples")
    return min(steps, key=steps.get)


# %%
# Exercise 6.4
def choose_sizes(forward_ms, backward_ms, num_stages, num_micro_batches, message_ms):
    from itertools import combinations, pairwise

    schedule = pipeline.one_forward_one_backward(num_stages, num_micro_batches)
    steps = {}
    for cuts in combinations(range(1, len(forward_ms)), num_stages - 1):
        parts = list(pairwise([0, *cuts, len(forward_ms)]))  # first layer of a stage, and of the next
        costs = [[sum(each[a:b]) for a, b in parts] for each in (forward_ms, backward_ms)]
        spans = pipeline.place(schedule, *costs, message_s=message_ms)
        steps[tuple(b - a for a, b in parts)] = pipeline.length(spans)
    return list(min(steps, key=steps.get))


# %%
# Exercise 6.5
def emit_zb_h1(num_stages, num_micro_batches):
    schedule = []
    for stage in range(num_stages):
        first = num_stages - 1 - stage  # forwards before the first input task
        schedule += [(stage, m, "forward") for m in range(first)]
        for m in range(num_micro_batches + stage):
            if first + m < num_micro_batches:
                schedule.append((stage, first + m, "forward"))
            if m < num_micro_batches:
                schedule.append((stage, m, "input"))
            if m >= stage:
                schedule.append((stage, m - stage, "weight"))
    return schedule
