"""Exercise 12.4: answers that its check must refuse, each with words from the reason that it must give."""

import time

import torch
import torch.distributed as dist


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


def counts_waiting(tasks, wait_for, run, num_stages, num_micro_batches):
    return formula(num_stages, num_micro_batches), measured_between_barriers(tasks, wait_for, run, with_waiting=True)


def divides_by_busy_time(tasks, wait_for, run, num_stages, num_micro_batches):
    return (num_stages - 1) / num_micro_batches, measured_between_barriers(tasks, wait_for, run)


def forgets_the_first_barrier(tasks, wait_for, run, num_stages, num_micro_batches):
    start = time.perf_counter()
    busy_s, _ = run_all(tasks, wait_for, run)
    dist.barrier()
    busy_s, whole_s = summed(busy_s, time.perf_counter() - start)
    return formula(num_stages, num_micro_batches), 1 - busy_s / whole_s


def forgets_the_last_barrier(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    busy_s, whole_s = summed(*run_all(tasks, wait_for, run))
    return formula(num_stages, num_micro_batches), 1 - busy_s / whole_s


def looks_at_its_own_stage(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    start = time.perf_counter()
    busy_s, _ = run_all(tasks, wait_for, run)
    dist.barrier()
    return formula(num_stages, num_micro_batches), 1 - busy_s / (time.perf_counter() - start)


def trusts_the_clocks(tasks, wait_for, run, num_stages, num_micro_batches):
    begin = time.perf_counter()
    busy_s, _ = run_all(tasks, wait_for, run)
    first, last = torch.tensor(begin, dtype=torch.float64), torch.tensor(time.perf_counter(), dtype=torch.float64)
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    (busy_s,) = summed(busy_s)
    return formula(num_stages, num_micro_batches), 1 - busy_s / (num_stages * (last - first).item())


def returns_the_formula_twice(tasks, wait_for, run, num_stages, num_micro_batches):
    run_all(tasks, wait_for, run)
    return (formula(num_stages, num_micro_batches),) * 2


def does_not_run(tasks, wait_for, run, num_stages, num_micro_batches):
    return (formula(num_stages, num_micro_batches),) * 2


def returns_per_cents(tasks, wait_for, run, num_stages, num_micro_batches):
    return 100 * formula(num_stages, num_micro_batches), 100 * measured_between_barriers(tasks, wait_for, run)


def returns_one(tasks, wait_for, run, num_stages, num_micro_batches):
    return measured_between_barriers(tasks, wait_for, run)


def runs_without_waiting(tasks, wait_for, run, num_stages, num_micro_batches):
    return formula(num_stages, num_micro_batches), measured_between_barriers(tasks, lambda task: None, run)


def returns_the_busy_share(tasks, wait_for, run, num_stages, num_micro_batches):
    return formula(num_stages, num_micro_batches), 1 - measured_between_barriers(tasks, wait_for, run)


def trusts_nanoseconds(tasks, wait_for, run, num_stages, num_micro_batches):
    begin = time.perf_counter_ns()
    busy_s, _ = run_all(tasks, wait_for, run)
    first, last = torch.tensor(begin), torch.tensor(time.perf_counter_ns())
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    (busy_s,) = summed(busy_s)
    return formula(num_stages, num_micro_batches), 1 - busy_s / (num_stages * (last - first).item() / 1e9)


def rounds_the_clocks(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    begin = time.perf_counter()
    busy_s, _ = run_all(tasks, wait_for, run)
    dist.barrier()
    times = torch.tensor([busy_s, begin, time.perf_counter()])  # float32
    dist.all_reduce(times)
    return formula(num_stages, num_micro_batches), (1 - times[0] / (times[2] - times[1])).item()


def tells_what_rank_0_saw(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.barrier()
    busy_s, whole_s = run_all(tasks, wait_for, run)
    measured = torch.tensor(1 - busy_s / whole_s)
    dist.broadcast(measured, src=0)
    return formula(num_stages, num_micro_batches), measured.item()


def exchanges_stages_and_micro_batches(tasks, wait_for, run, num_stages, num_micro_batches):
    return formula(num_micro_batches, num_stages), measured_between_barriers(tasks, wait_for, run)


def runs_twice(tasks, wait_for, run, num_stages, num_micro_batches):
    return formula(num_stages, num_micro_batches), measured_between_barriers(tasks, wait_for, lambda task: (run(task), run(task)))


def divides_idle_by_busy(tasks, wait_for, run, num_stages, num_micro_batches):
    measured = measured_between_barriers(tasks, wait_for, run)
    return formula(num_stages, num_micro_batches), measured / (1 - measured)


WRONG = [
    (counts_waiting, "does the time of waiting count as running"),
    (divides_by_busy_time, "idle over all time is asked"),
    (forgets_the_first_barrier, "do all ranks begin together"),
    (forgets_the_last_barrier, "by a common clock it was"),
    (looks_at_its_own_stage, "and must agree"),
    (trusts_the_clocks, "by a common clock it was"),
    (returns_the_formula_twice, "by a common clock it was"),
    (does_not_run, "did not run its tasks in order"),
    (returns_per_cents, "and the formula gives"),
    (returns_one, "not two fractions"),
    (returns_the_busy_share, "by a common clock it was"),
    (trusts_nanoseconds, "by a common clock it was"),
    (rounds_the_clocks, "differ or are rounded"),
    (tells_what_rank_0_saw, "do all stages' times come together?"),
    (exchanges_stages_and_micro_batches, "and the formula gives 0.200"),
    (runs_twice, "was called twice"),
    (divides_idle_by_busy, "by a common clock it was"),
    (runs_without_waiting, "without wait_for before it"),
]


def sends_durations_to_all(tasks, wait_for, run, num_stages, num_micro_batches):
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


def takes_the_longest_time(tasks, wait_for, run, num_stages, num_micro_batches):
    dist.all_reduce(torch.zeros(1))  # as good as a barrier
    busy_s, whole_s = (torch.tensor(seconds) for seconds in run_all(tasks, wait_for, run))
    dist.all_reduce(busy_s)
    dist.all_reduce(whole_s, op=dist.ReduceOp.MAX)
    return torch.tensor(formula(num_stages, num_micro_batches)), 1 - busy_s / (num_stages * whole_s)


RIGHT = [sends_durations_to_all, takes_the_longest_time]
