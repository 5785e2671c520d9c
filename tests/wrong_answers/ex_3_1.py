"""Exercise 3.1: answers that its check must refuse, each with words from the reason that it must give."""

import statistics
import time


def as_given(step, batch_size, synchronize):
    begin = time.perf_counter()
    for _ in range(10):
        step()
    return batch_size / (time.perf_counter() - begin)


def waits_at_the_end_only(step, batch_size, synchronize):
    begin = time.perf_counter()
    for _ in range(10):
        step()
    synchronize()
    return 10 * batch_size / (time.perf_counter() - begin)


def waits_at_both_ends_without_warm_up(step, batch_size, synchronize):
    synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        step()
    synchronize()
    return 10 * batch_size / (time.perf_counter() - begin)


def takes_the_mean(step, batch_size, synchronize):
    for _ in range(3):
        step()
    synchronize()
    begin = time.perf_counter()
    for _ in range(20):
        step()
    synchronize()
    return 20 * batch_size / (time.perf_counter() - begin)


def waits_before_each_step_only(step, batch_size, synchronize):
    for _ in range(3):
        step()
    seconds = []
    for _ in range(10):
        synchronize()
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return batch_size / statistics.median(seconds)


def counts_one_step_for_ten(step, batch_size, synchronize):
    synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        step()
    synchronize()
    return batch_size / (time.perf_counter() - begin)


def times_one_step(step, batch_size, synchronize):
    for _ in range(3):
        step()
    synchronize()
    begin = time.perf_counter()
    step()
    synchronize()
    return batch_size / (time.perf_counter() - begin)


def returns_steps_per_second(step, batch_size, synchronize):
    for _ in range(3):
        step()
    seconds = []
    for _ in range(9):
        synchronize()
        begin = time.perf_counter()
        step()
        synchronize()
        seconds.append(time.perf_counter() - begin)
    return 1 / statistics.median(seconds)


def returns_text(step, batch_size, synchronize):
    step()
    synchronize()
    return "fast"


def returns_infinity(step, batch_size, synchronize):
    step()
    synchronize()
    return float("inf")


WRONG = [
    (returns_infinity, "not a number of images per second"),
    (as_given, "never called synchronize()"),
    (waits_at_the_end_only, "the older work, the slow first steps"),
    (waits_at_both_ends_without_warm_up, "the slow first steps and the hiccups"),
    (takes_the_mean, "that is a mean"),
    (waits_before_each_step_only, "still under way when it returned"),
    (counts_one_step_for_ten, "how many images went through in that time"),
    (times_one_step, "too few to say what is typical"),
    (returns_steps_per_second, "that is steps per second"),
    (returns_text, "not a number of images per second"),
]


def waits_once_more_than_needed(step, batch_size, synchronize):
    def wait_and_read():
        synchronize()
        return time.monotonic()

    times = []
    for _ in range(16):
        begin = wait_and_read()
        step()
        times.append(wait_and_read() - begin)
    typical = sorted(times[4:])[len(times[4:]) // 2]
    return batch_size / typical


RIGHT = [waits_once_more_than_needed]
