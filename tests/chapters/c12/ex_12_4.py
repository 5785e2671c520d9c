# %% wrong (divides by its own time): and must agree
# dist.all_reduce(times)  # busy and whole time of all stages → dist.all_reduce(times[:1])
# (times[0] / times[1]).item() → (times[0] / times[1] / num_stages).item()
# %% wrong (counts waiting): does the time of waiting count as running?
# -         wait_for(task)
# -         begin = time.perf_counter()
# +         begin = time.perf_counter()
# +         wait_for(task)
# %% wrong (runs twice): was called twice
# run(task) → run(task); run(task)
# %% wrong (runs without waiting): without wait_for before it
# wait_for(task) → pass
# %% wrong (runs from the back): and another task comes first in the list
# in tasks: → in tasks[::-1]:
# %% wrong (does not run): 0 of 8 tasks were run
# in tasks: → in tasks and ():
# %% wrong (tells what rank 0 saw): that is the share of one rank alone
# dist.all_reduce(times)  # → dist.broadcast(times, src=0)  #
# %% wrong (rounds the clocks): by whose clock, and is anything rounded?
# time.perf_counter(), 0.0 → torch.tensor(time.perf_counter()), 0.0
# time.perf_counter() - start] → torch.tensor(time.perf_counter()) - start]
# %% wrong (measures nothing): no clock of the module time was read
# start, busy_s = time.perf_counter(), 0.0 → start, busy_s = 0.0, 0.0
# begin = time.perf_counter() → begin = 0.0
# busy_s += time.perf_counter() - begin → busy_s += 1.0
# time.perf_counter() - start] → 2.0 * len(tasks)]
# %% wrong (forgets the first barrier): when do all ranks begin together?
# -     dist.barrier()
# -     start, busy_s = time.perf_counter(), 0.0
# +     start, busy_s = time.perf_counter(), 0.0
# %% wrong (forgets the last barrier): do all ranks' times go on until all have ended?
# -     dist.barrier()
# -     times = torch.tensor([busy_s, time.perf_counter() - start], dtype=torch.float64)
# +     times = torch.tensor([busy_s, time.perf_counter() - start], dtype=torch.float64)
# %% wrong (returns the busy share): that is the share in which they ran
# 1 - (times[0] / times[1]).item() → (times[0] / times[1]).item()
# %% wrong (divides idle by busy): that is idle over busy time
# 1 - (times[0] / times[1]).item() → (times[1] / times[0]).item() - 1
# %% wrong (measures in per cent): another: that is in per cent
# 1 - (times[0] / times[1]).item() → 100 * (1 - (times[0] / times[1]).item())
# %% wrong (returns the formula twice): that is the formula's number
# return predicted, measured → return predicted, predicted
# %% wrong (predicts in per cent): formula's: that is in per cent
# return predicted, measured → return 100 * predicted, measured
# %% wrong (divides by busy time): idle over all time is asked
# (num_micro_batches + num_stages - 1) → num_micro_batches
# %% wrong (exchanges stages and micro-batches): which of the two numbers counts stages?
# = (num_stages - 1) → = (num_micro_batches - 1)
# %% right (sends durations to all, by nanoseconds)
from time import monotonic_ns as now


def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    start, idle = now(), 0
    for task in tasks:
        begin = now()
        wait_for(task)
        idle += now() - begin
        run(task)
    begin = now()
    dist.barrier()
    end = now()
    everyone = [None] * num_stages
    dist.all_gather_object(everyone, (idle + end - begin, end - start))
    idle, whole = (sum(values) for values in zip(*everyone))
    return [(num_stages - 1) / (num_micro_batches + num_stages - 1), idle / whole]

