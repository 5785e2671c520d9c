# %%
import datetime
import statistics

# %% right (upper median of another clock)
def images_per_s(step, batch_size, synchronize):
    for _ in range(4):
        step()
    seconds = []
    for _ in range(12):
        synchronize()
        begin = time.monotonic()
        step()
        synchronize()
        seconds.append(time.monotonic() - begin)
    return batch_size / sorted(seconds)[6]

# %% wrong (takes the quickest): that is the quickest of its steps
# [6] → [0]
# %% wrong (takes the slowest): that is the slowest of its steps
# [6] → [-1]
# %% wrong (takes the mean): that is a mean: what do the hiccups
# sorted(seconds)[6] → statistics.fmean(seconds)
# %% wrong (takes the mean of rates): that is a mean of rates
# batch_size / sorted(seconds)[6] → statistics.fmean(batch_size / s for s in seconds)
# %% wrong (counts steps): that is steps per second
# batch_size / sorted → 1 / sorted
# %% wrong (returns the time of an image): that is seconds per image
# batch_size / sorted(seconds)[6] → sorted(seconds)[6] / batch_size
# %% wrong (returns the time of a step): that is seconds per step
# batch_size / sorted → sorted
# %% wrong (counts milliseconds): that is images per millisecond
# batch_size / sorted → 1e-3 * batch_size / sorted
# %% wrong (doubles the batch): which steps, and what else, lie between
# batch_size / sorted → 0.5 * batch_size / sorted
# %% wrong (times two steps): from 2 steps without the slow first ones: too few to say what is typical
# range(4) → range(3)
# range(12) → range(2)
# [6] → [0]
# %% wrong (times the first ones): one of the slow first steps
# range(4) → range(0)
# range(12) → range(6)
# [6] → [3]
# %% wrong (waits before a step only): nobody waited for the last
# -         step()
# -         synchronize()
# +         step()
# %% wrong (reads the clock before it waits): is the device done at both readings
# -         synchronize()
# -         seconds.append(time.monotonic() - begin)
# +         seconds.append(time.monotonic() - begin)
# +         synchronize()
# %% wrong (returns infinity): no number of images per second
# batch_size / sorted(seconds)[6] → float("inf")
# %% wrong (never asks for a step): step() was never called
# -     for _ in range(4):
# +     step = int
# +     for _ in range(4):
# %% wrong (asks for ever): does the loop end
# for _ in range(4) → while True

# %% right (three repeats, waits once more, another clock)
def images_per_s(step, batch_size, synchronize):
    def clock():
        synchronize()
        return datetime.datetime.now().timestamp()

    return statistics.median([batch_size / (-clock() + (step(), clock())[1]) for _ in range(9)][6:])

# %% right (the median of blocks, waits once in each)
def images_per_s(step, batch_size, synchronize, num_steps=5):
    def block():
        begin = time.perf_counter()
        for _ in range(num_steps):
            step()
        synchronize()
        return (time.perf_counter() - begin) / num_steps

    for _ in range(3):
        step()
    synchronize()
    return batch_size / statistics.median(block() for _ in range(7))

# %% right (three blocks of ten)
# num_steps=5 → num_steps=10
# range(7) → range(3)
# %% right (blocks of two)
# num_steps=5 → num_steps=2
# %% right (blocks, and a clock of its own)
# begin = time.perf_counter() → begin = datetime.datetime.now().timestamp()
# (time.perf_counter() - begin) → (datetime.datetime.now().timestamp() - begin)
# %% wrong (blocks so long that most hold a hiccup): there is a hiccup in most of its blocks
# num_steps=5 → num_steps=50
# %% wrong (one block): that is a mean: what do the hiccups
# range(7) → range(1)
# %% wrong (the mean of blocks): that is a mean: what do the hiccups
# statistics.median → statistics.fmean
# %% wrong (never waits in a block): nobody waited for the last
# -         synchronize()
# -         return (time.perf_counter() - begin) / num_steps
# +         return (time.perf_counter() - begin) / num_steps

# %% wrong (waits at both ends without warm up): right: the slow first steps and the hiccups
def images_per_s(step, batch_size, synchronize):
    synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        step()
    synchronize()
    return 10 * batch_size / (time.perf_counter() - begin)

# %% wrong (counts one step for ten): how many images went through in that time
# return 10 * batch_size → return batch_size
# %% wrong (never waits): never called synchronize()
# -     synchronize()
# -     begin = time.perf_counter()
# +     begin = time.perf_counter()
# -     synchronize()
# -     return 10 * batch_size / (time.perf_counter() - begin)
# +     return batch_size / (time.perf_counter() - begin)
# %% endless (loops without a step): no end after
# range(10) → iter(int, 1)
# step() → pass
