"""Several ways of one thing, timed in turn: a slow moment of the machine then hits all of them, not one alone."""

from . import throughput


def in_turn(ways, rounds=8, warmup=3, repeats=2):
    """Call every step of {name: step} `warmup` times, then time it `repeats` times in each of `rounds` rounds.

    Returns {name: Timing} of all its repeats. In a worker every rank calls it alike, as for `throughput.measure`.
    """
    seconds = {name: throughput.measure(step, warmup=warmup, repeats=0).seconds for name, step in ways.items()}
    for _ in range(rounds):
        for name, step in ways.items():
            seconds[name] += throughput.measure(step, warmup=0, repeats=repeats).seconds
    return {name: throughput.Timing(each) for name, each in seconds.items()}
