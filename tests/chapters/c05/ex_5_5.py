# %%
import numpy as np

# %% wrong (overlaps nothing): that is the time without overlap
# return free_ms, max → return max(ready_ms) + sum(sum_ms), max
# %% wrong (lets sums travel at once): carries one sum at a time, and here some travel at once
# free_ms = max(free_ms, ready) + duration → free_ms = max(free_ms, ready + duration)
# %% wrong (keeps the order of the lists): in the order of the lists
# sorted(zip(ready_ms, sum_ms)) → zip(ready_ms, sum_ms)
# %% wrong (takes the last layer first): from the end of the lists
# sorted(zip(ready_ms, sum_ms)) → list(zip(ready_ms, sum_ms))[::-1]
# %% wrong (forgets the sums before): as if the link were free
# free_ms = max(free_ms, ready) + duration → free_ms = ready + duration
# %% wrong (starts once and never waits): never idle
# free_ms = max(free_ms, ready) + duration → free_ms = (free_ms or ready) + duration
# %% wrong (adds up the sums): that is the time of the sums alone: when is the first
# free_ms = max(free_ms, ready) + duration → free_ms += duration
# %% wrong (ends with the pass): that is the end of the backward pass
# return free_ms, max → return max(ready_ms), max
# %% wrong (gives the bound of the text): that is the time of the sums alone: when is the first
# return free_ms, max → return max(max(ready_ms), sum(sum_ms)), max
# %% wrong (waits for both, one too many): when does each of the sums begin
# free_ms = max(free_ms, ready) + duration → free_ms = free_ms + ready + duration
# %% wrong (swaps the two): overlap comes first
# return free_ms, max(ready_ms) + sum(sum_ms) → return max(ready_ms) + sum(sum_ms), free_ms
# %% wrong (overlaps twice): without overlap 55 ms: that is the time with overlap
# max(ready_ms) + sum(sum_ms) → free_ms
# %% wrong (lets all travel at once after the pass): here all travel at once
# max(ready_ms) + sum(sum_ms) → max(ready_ms) + max(sum_ms)
# %% wrong (takes the list's last for the last): the list's last gradient is complete
# max(ready_ms) + sum(sum_ms) → ready_ms[-1] + sum(sum_ms)
# %% wrong (takes the first layer for the last): the list's first gradient is complete
# max(ready_ms) + sum(sum_ms) → ready_ms[0] + sum(sum_ms)
# %% wrong (adds up the ready times): one after another's end
# max(ready_ms) + sum(sum_ms) → sum(ready_ms) + sum(sum_ms)
# %% wrong (forgets the pass): that is the time of the sums alone: when do they begin?
# max(ready_ms) + sum(sum_ms) → sum(sum_ms)
# %% wrong (takes the least): when is the last gradient complete
# max(ready_ms) + sum(sum_ms) → min(ready_ms) + sum(sum_ms) / 2
# %% wrong (rounds to microseconds): when does each of the sums begin
# return free_ms, max → return round(free_ms, 3), max
# %% wrong (sorts what was given): ready_ms holds other items
# sorted(zip(ready_ms, sum_ms)) → zip(ready_ms.sort() or ready_ms, sum_ms)
# %% wrong (returns one time): not a list or tuple of two times
# return free_ms, max(ready_ms) + sum(sum_ms) → return free_ms
# %% wrong (prints instead): is it returned, or only printed?
# return free_ms, max(ready_ms) + sum(sum_ms) → print(free_ms, max(ready_ms) + sum(sum_ms))
# %% right (with numpy, and a list)
def when_done(ready_ms, sum_ms):
    order = np.argsort(ready_ms, kind="stable")
    ready, durations = np.array(ready_ms)[order], np.array(sum_ms)[order]
    left = np.cumsum(durations[::-1])[::-1]  # of the sums from here on
    return [np.max(ready + left), ready[-1] + left[0]]

# %% right (step by step)
def when_done(ready_ms, sum_ms):
    waiting = dict(enumerate(ready_ms))
    free = 0
    while waiting:
        i = min(waiting, key=waiting.get)
        begin = waiting.pop(i)
        if begin < free:
            begin = free
        free = begin + sum_ms[i]
    last = 0
    for at in ready_ms:
        last = at if at > last else last
    for duration in sum_ms:
        last += duration
    return free, last
