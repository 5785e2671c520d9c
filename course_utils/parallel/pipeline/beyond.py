"""Schedules with a smaller bubble than 1F1B's: several stages per device, and a backward pass in two parts.

Sources: interleaving, Narayanan et al. 2021, section 2.2; ZB-H1, Qi et al. 2024 (arXiv 2401.10241), section 2.1.
"""

from .schedules import Task, expect_sizes, in_one_order


def interleaved_1f1b(num_devices, num_micro_batches, num_chunks):
    """1F1B over `num_devices * num_chunks` stages, stage s on device s % num_devices, micro-batches in groups.

    A device takes `num_devices` micro-batches through its first stage, then through its second, and so on. Raises
    ValueError unless `num_micro_batches` is a multiple of `num_devices`.
    """
    expect_sizes(num_devices, num_micro_batches)
    if num_micro_batches % num_devices:
        raise ValueError(
            f"{num_micro_batches} micro-batches do not form groups of {num_devices}, one micro-batch per device: take "
            "a multiple"
        )
    total = num_micro_batches * num_chunks
    waiting = []
    for device in range(num_devices):

        def task(i, phase, device=device):
            group, place = divmod(i, num_devices * num_chunks)
            chunk, within = divmod(place, num_devices)
            chunk = chunk if phase == "forward" else num_chunks - 1 - chunk
            return Task(chunk * num_devices + device, group * num_devices + within, phase)

        ahead = min(2 * (num_devices - 1 - device) + (num_chunks - 1) * num_devices, total)
        forward, backward = ([task(i, phase) for i in range(total)] for phase in ("forward", "backward"))
        in_turn = [task for pair in zip(forward[ahead:], backward) for task in pair]
        waiting.append(forward[:ahead] + in_turn + backward[total - ahead :])
    return in_one_order(waiting, num_devices * num_chunks)


def zb_h1(num_stages, num_micro_batches):
    """ZB-H1: 1F1B with the backward in two tasks; stage s delays the weights' gradients by s micro-batches.

    So every stage holds at most K micro-batches, as many as 1F1B's first stage. With three tasks of equal length and
    M >= K the bubble is (K - 1)/(3M + K - 1).
    """
    expect_sizes(num_stages, num_micro_batches)
    waiting = []
    for stage in range(num_stages):
        ahead = min(num_stages - 1 - stage, num_micro_batches)
        tasks = [Task(stage, m, "forward") for m in range(ahead)]
        for m in range(num_micro_batches + stage):
            if ahead + m < num_micro_batches:
                tasks.append(Task(stage, ahead + m, "forward"))
            if m < num_micro_batches:
                tasks.append(Task(stage, m, "input"))
            if m >= stage:
                tasks.append(Task(stage, m - stage, "weight"))
        waiting.append(tasks)
    return in_one_order(waiting, num_stages)
