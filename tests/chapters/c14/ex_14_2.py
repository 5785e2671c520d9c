# %% wrong (one step short): it has to wait, although nobody
# <= tau → < tau
# %% wrong (one step far): steps ahead of the slowest
# <= tau → <= tau + 1
# %% wrong (the fastest): ahead of the slowest
# sorted(clocks.values())[spared:] → sorted(clocks.values(), reverse=True)
# %% wrong (spares nobody): it has to wait, although
# sorted(clocks.values())[spared:] → sorted(clocks.values())
# %% wrong (spares the fastest): it has to wait, although
# sorted(clocks.values())[spared:] → sorted(clocks.values())[: len(clocks) - spared]
# %% wrong (spares one at most): it has to wait, although
# sorted(clocks.values())[spared:] → sorted(clocks.values())[min(spared, 1) :]
# %% wrong (spares one too many): and is 1 steps ahead
# sorted(clocks.values())[spared:] → sorted(clocks.values())[spared + 1 :]
# %% wrong (spares by the worker's number): it has to wait, although
# sorted(clocks.values())[spared:] → sorted(list(clocks.values())[: len(clocks) - spared])
# %% wrong (waits where nobody counts): nobody that counts is behind it
# not counted or → bool(counted) and
# %% wrong (a set drops equals): it has to wait
# sorted(clocks.values())[spared:] → sorted(set(clocks.values()))[:1]
# %% wrong (a set): and is
# sorted(clocks.values())[spared:] → sorted(set(clocks.values()))[spared:]
# %% wrong (says how far): True or False is asked
# return not counted or step - counted[0] <= tau → return max(0, tau + 1 - step + counted[0]) if counted else 1
# %% wrong (takes a negative number to spare): a ValueError should be raised
# {"tau": tau, "spared": spared} → {"tau": tau}
# %% wrong (keeps worker 1 alone back): steps ahead of the slowest that counts
# step - counted[0] → min(step, clocks.get(1, step)) - counted[0]
# %% right (with NumPy's answer)
def may_begin(step, clocks, tau, spared):
    import numpy as np

    if tau < 0 or spared < 0:
        raise ValueError(f"tau = {tau}, spared = {spared}")
    behind = np.array(sorted(clocks.values()))[spared:]
    return np.all(step - behind <= tau)
# %% right (with torch)
def may_begin(step, clocks, tau, spared):
    if min(tau, spared) < 0:
        raise ValueError(f"{tau}, {spared}")
    return (torch.tensor([step - other for other in clocks.values()]) > tau).sum() <= spared
# %% right (counts who is too far behind)
def may_begin(step, clocks, tau, spared):
    if tau < 0:
        raise ValueError("not a bound: %d" % tau)
    if spared < 0:
        raise ValueError("nobody to spare: %d" % spared)
    return len([other for other in clocks.values() if other < step - tau]) <= spared
