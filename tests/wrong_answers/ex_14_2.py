# %% wrong (one step short): how far may it be?
# <= tau → < tau
# %% wrong (one step far): steps ahead of worker
# <= tau → <= tau + 1
# %% wrong (the fastest): ahead of worker
# min(clocks.values()) → max(clocks.values())
# %% wrong (the mean): ahead of worker
# min(clocks.values()) → sum(clocks.values()) / len(clocks)
# %% wrong (the median): ahead of worker
# min(clocks.values()) → sorted(clocks.values())[len(clocks) // 2]
# %% wrong (never waits): ahead of worker
# return step - min(clocks.values()) <= tau → return True
# %% wrong (counts the next step): it has to wait
# return step - → return step + 1 -
# %% wrong (waits for those ahead): it has to wait
# return step - min(clocks.values()) <= tau → return all(abs(step - c) <= tau for c in clocks.values())
# %% wrong (refuses nothing): a ValueError should be raised
# -     if tau < 0:
# -         raise ValueError(f"tau is a number of steps, from 0 up, not {tau}")
# +
# %% wrong (does not name it): whoever reads it wants to know
# f"tau is a number of steps, from 0 up, not {tau}" → "tau is a number of steps"
# %% wrong (refuses 0): tau is a number of steps
# if tau < 0: → if tau <= 0:
# %% wrong (says how far): True or False is asked
# return step - min(clocks.values()) <= tau → return max(0, tau + 1 - step + min(clocks.values()))
# %% wrong (worker 2 only): ahead of worker
# min(clocks.values()) → clocks[2]
# %% wrong (forgets workers): holds other items
# return step → clocks.popitem() if len(clocks) > 1 else None; return step
# %% wrong (prints): None came back
# return step - min(clocks.values()) <= tau → print(step - min(clocks.values()) <= tau)

# %% right (for all others)
def may_begin(step, clocks, tau):
    if not tau >= 0:
        raise ValueError(f"a bound of {tau} steps")
    return all(step <= other + tau for other in clocks.values())
# %% right (sorted)
def may_begin(step, clocks, tau):
    if tau < 0:
        raise ValueError(tau)
    slowest = sorted(clocks.items(), key=lambda item: item[1])[0]
    if step > slowest[1] + tau:
        return False
    return True
# %% right (with torch)
def may_begin(step, clocks, tau):
    if tau < 0:
        raise ValueError(f"tau = {tau}")
    return bool((step - torch.tensor(list(clocks.values())) <= tau).all())
