# %%
def formula(num_stages, num_micro_batches):
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)


def run_all(tasks, wait_for, run, with_waiting=False):
    """Busy seconds, and the seconds from the first task's wait to the last one's end."""
    start, busy_s = time.perf_counter(), 0.0
    for task in tasks:
        before = time.perf_counter()
        wait_for(task)
        begin = before if with_waiting else time.perf_counter()
        run(task)
        busy_s += time.perf_counter() - begin
    return busy_s, time.perf_counter() - start


def summed(*values):
    values = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(values)
    return values.tolist()


def measured_between_barriers(tasks, wait_for, run, with_waiting=False):
    dist.barrier()
    start = time.perf_counter()
    busy_s, _ = run_all(tasks, wait_for, run, with_waiting)
    dist.barrier()
    busy_s, whole_s = summed(busy_s, time.perf_counter() - start)
    return 1 - busy_s / whole_s

# %% right (sends durations to all)
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    start, idle_s = time.monotonic(), 0.0
    for task in tasks:
        begin = time.monotonic()
        wait_for(task)
        idle_s += time.monotonic() - begin
        run(task)
    begin = time.monotonic()
    dist.barrier()
    end = time.monotonic()
    everyone = [None] * num_stages
    dist.all_gather_object(everyone, (idle_s + end - begin, end - start))
    idle, whole = (sum(values) for values in zip(*everyone))
    return [formula(num_stages, num_micro_batches), idle / whole]

# %% right (takes the longest time)
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.all_reduce(torch.zeros(1))  # as good as a barrier
    busy_s, whole_s = (torch.tensor(seconds) for seconds in run_all(tasks, wait_for, run))
    dist.all_reduce(busy_s)
    dist.all_reduce(whole_s, op=dist.ReduceOp.MAX)
    return torch.tensor(formula(num_stages, num_micro_batches)), 1 - busy_s / (num_stages * whole_s)

# %% wrong (counts waiting): does the time of waiting count as running
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    return formula(num_stages, num_micro_batches), measured_between_barriers(tasks, wait_for, run, with_waiting=True)

# %% wrong (runs twice): was called twice
# run, with_waiting=True → lambda task: (run(task), run(task))
# %% wrong (runs without waiting): without wait_for before it
# wait_for, run, with_waiting=True → lambda task: None, run

# %% wrong (looks at its own stage): and must agree
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    start = time.perf_counter()
    busy_s, _ = run_all(tasks, wait_for, run)
    dist.barrier()
    return formula(num_stages, num_micro_batches), 1 - busy_s / (time.perf_counter() - start)

# %% wrong (rounds the clocks): from when to when is each stage's time measured, by whose clock, and i
# start = time.perf_counter() → begin = time.perf_counter()
# -     return formula(num_stages, num_micro_batches), 1 - busy_s / (time.perf_counter() - start)
# +     times = torch.tensor([busy_s, begin, time.perf_counter()])  # float32
# +     dist.all_reduce(times)
# +     return formula(num_stages, num_micro_batches), (1 - times[0] / (times[2] - times[1])).item()

# %% wrong (trusts the clocks): from when to when is each stage's time measured, by whose clock, and i
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    begin = time.perf_counter()
    busy_s, _ = run_all(tasks, wait_for, run)
    first, last = torch.tensor(begin, dtype=torch.float64), torch.tensor(time.perf_counter(), dtype=torch.float64)
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    (busy_s,) = summed(busy_s)
    return formula(num_stages, num_micro_batches), 1 - busy_s / (num_stages * (last - first).item())

# %% wrong (trusts nanoseconds): from when to when is each stage's time measured, by whose clock, and i
# begin = time.perf_counter() → begin = time.perf_counter_ns()
# -     first, last = torch.tensor(begin, dtype=torch.float64), torch.tensor(time.perf_counter(), dtype=torch.float64)
# +     first, last = torch.tensor(begin), torch.tensor(time.perf_counter_ns())
# -     return formula(num_stages, num_micro_batches), 1 - busy_s / (num_stages * (last - first).item())
# +     return formula(num_stages, num_micro_batches), 1 - busy_s / (num_stages * (last - first).item() / 1e9)

# %% wrong (does not run): tasks were run
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    return (formula(num_stages, num_micro_batches),) * 2

# %% wrong (returns one): not a list or tuple of two fractions
# (formula(num_stages, num_micro_batches),) * 2 → measured_between_barriers(tasks, wait_for, run)

# %% wrong (returns the busy share): that is the share in which they ran
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    return formula(num_stages, num_micro_batches), 1 - measured_between_barriers(tasks, wait_for, run)

# %% wrong (divides by busy time): idle over all time is asked
# formula(num_stages, num_micro_batches), 1 - → (num_stages - 1) / num_micro_batches,
# %% wrong (returns per cents): that is in per cent
# formula(num_stages, num_micro_batches), 1 - → 100 * formula(num_stages, num_micro_batches), 100 *
# %% wrong (exchanges stages and micro batches): which of the two numbers counts stages?
# num_stages, num_micro_batches), 1 - → num_micro_batches, num_stages),

# %% wrong (forgets the first barrier): do all ranks begin together
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    start = time.perf_counter()
    busy_s, _ = run_all(tasks, wait_for, run)
    dist.barrier()
    busy_s, whole_s = summed(busy_s, time.perf_counter() - start)
    return formula(num_stages, num_micro_batches), 1 - busy_s / whole_s

# %% wrong (forgets the last barrier): do all ranks' times go on until all have ended?
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    busy_s, whole_s = summed(*run_all(tasks, wait_for, run))
    return formula(num_stages, num_micro_batches), 1 - busy_s / whole_s

# %% wrong (returns the formula twice): that is the formula's number
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    run_all(tasks, wait_for, run)
    return (formula(num_stages, num_micro_batches),) * 2

# %% wrong (tells what rank 0 saw): that is the share of one rank alone
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    busy_s, whole_s = run_all(tasks, wait_for, run)
    measured = torch.tensor(1 - busy_s / whole_s)
    dist.broadcast(measured, src=0)
    return formula(num_stages, num_micro_batches), measured.item()

# %% wrong (divides idle by busy): that is idle over busy time
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    measured = measured_between_barriers(tasks, wait_for, run)
    return formula(num_stages, num_micro_batches), measured / (1 - measured)
