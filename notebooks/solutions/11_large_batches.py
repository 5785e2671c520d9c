# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 11.1
import math


def find_break(table):
    sizes = sorted(table)
    base_mean, base_spread, base_runs = table[sizes[0]]
    for size in sizes[1:]:
        mean, spread, runs = table[size]
        standard_error = math.sqrt(spread**2 / runs + base_spread**2 / base_runs)
        if mean - base_mean > 2 * standard_error:
            return size
    return None


# %%
# Exercise 11.2
def trapezoid(step, num_steps, base, peak, warmup, cooldown):
    if step < warmup:
        return base + (peak - base) * (step + 1) / warmup
    left = num_steps - step  # updates still to come, this one included
    if left < cooldown:
        return peak * left / cooldown
    return peak


# %%
# Exercise 11.3
def plan_run(num_images, per_rank, world_size, num_epochs, step_s, price_per_hour):
    batch_size = per_rank * world_size
    if batch_size > num_images:
        raise ValueError(f"a batch of {batch_size} is larger than the data, {num_images} images")
    updates_per_epoch = num_images // batch_size
    updates = num_epochs * updates_per_epoch
    hours = updates * step_s / 3600
    return {
        "updates_per_epoch": updates_per_epoch,
        "updates": updates,
        "hours": hours,
        "dollars": hours * world_size * price_per_hour,
    }


# %%
# Exercise 11.4
def link_that_hides(num_bytes, num_servers, backward_s, wait_s):
    if num_servers == 1:
        return 0
    time_s = backward_s - wait_s
    if time_s <= 0:
        return math.inf
    num_sent = 2 * (num_servers - 1) / num_servers * num_bytes
    return 8 * num_sent / time_s / 1e9
