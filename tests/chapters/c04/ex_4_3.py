# %% right (a list of what runs at the same time)
def step_ms(phases_ms, num_workers, prefetching):
    others = dict(phases_ms)
    load, copy = others.pop("load"), others.pop("copy")
    side_by_side = [sum(others.values())]
    if prefetching:
        side_by_side.append(copy)
    else:
        side_by_side[0] += copy
    return max([*side_by_side, load / num_workers]) if num_workers else load + side_by_side[0]

# %% wrong (knows three phases only): are all other phases counted
# sum(others.values()) → sum(others.get(name, 0.0) for name in ("forward", "backward", "update"))
# %% wrong (overlaps without workers): if there are no workers
# else load + side_by_side[0] → else max(load, side_by_side[0])
# %% wrong (leaves loading out without workers): who loads?
# else load + side_by_side[0] → else side_by_side[0]
# %% wrong (adds the loading): does the loop wait until a batch is loaded
# max([*side_by_side, load / num_workers]) → sum([*side_by_side, load / num_workers])
# %% wrong (counts one worker): several workers load several batches
# load / num_workers]) → load])
# %% wrong (prefetches with any workers): who copies if nothing is prefetched
# if prefetching: → if num_workers:
# %% wrong (never prefetches): prefetching copies while the device computes
# if prefetching: → if False:
# %% wrong (forgets that copies can be the slowest): may the copies take longer
# side_by_side.append(copy) → pass
# %% wrong (lets the workers copy): do the workers copy, too
# -         side_by_side[0] += copy
# +         load += copy if num_workers else 0
# +         side_by_side[0] += 0 if num_workers else copy
# %% wrong (takes the quickest): what the quickest part would allow
# max([*side_by_side → min([*side_by_side
# %% wrong (returns a rate): what at the same time
# return max( → return 1e3 / max(
# %% wrong (changes what it is given): phases_ms
# dict(phases_ms) → phases_ms
# %% wrong (returns nothing): a number of ms is wanted
# return max( → max(
