# %% wrong (one step short): how far may it be?
# <= tau → < tau
# %% wrong (one step short of a delay): it is 2 ahead of the slowest
# <= tau → < max(tau, 1)
# %% wrong (keeps worker 1 alone back): a worker began a step
# return step → return min(step, clocks[1])
# %% wrong (one step far): steps ahead of worker
# <= tau → <= tau + 1
# %% wrong (the fastest): ahead of worker
# min(clocks.values()) → max(clocks.values())
# %% wrong (says how far): True or False is asked
# return step - min(clocks.values()) <= tau → return max(0, tau + 1 - step + min(clocks.values()))
# %% right (with torch)
def may_begin(step, clocks, tau):
    if tau < 0:
        raise ValueError(f"tau = {tau}")
    return bool((step - torch.tensor(list(clocks.values())) <= tau).all())
