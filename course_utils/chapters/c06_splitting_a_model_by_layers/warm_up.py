"""1F1B with a longer warm-up: more micro-batches held, fewer waits for messages."""

from ...parallel.pipeline.schedules import Task, expect_sizes, in_one_order

_PHASES = ("forward", "backward")


def deep_1f1b(num_stages, num_micro_batches):
    """1F1B whose stages begin with two forwards for each later stage, where 1F1B has one.

    So stage s holds at most 2 (K − 1 − s) + 1 micro-batches.
    """
    expect_sizes(num_stages, num_micro_batches)
    waiting = []
    for stage in range(num_stages):
        ahead = min(2 * (num_stages - 1 - stage), num_micro_batches)
        forward, backward = ([Task(stage, m, phase) for m in range(num_micro_batches)] for phase in _PHASES)
        in_turn = [task for pair in zip(forward[ahead:], backward) for task in pair]
        waiting.append(forward[:ahead] + in_turn + backward[num_micro_batches - ahead :])
    return in_one_order(waiting, num_stages)
