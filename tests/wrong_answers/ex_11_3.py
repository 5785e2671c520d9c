"""Exercise 11.3: answers that its check must refuse, each with words from the reason that it must give."""

import math

import torch


def answer(per_epoch, updates, hours, dollars):
    return {"updates_per_epoch": per_epoch, "updates": updates, "hours": hours, "dollars": dollars}


def refuse(num_images, batch):
    if batch > num_images:
        raise ValueError("the batch is larger than the data")


def one_ranks_batch(num_images, per_rank, world_size, num_epochs, step_s, price):
    n = num_images // per_rank
    return answer(n, n * num_epochs, n * num_epochs * step_s / 3600, n * num_epochs * step_s / 3600 * price * world_size)


def rounds_up(num_images, per_rank, world_size, num_epochs, step_s, price):
    n = math.ceil(num_images / (per_rank * world_size))
    return answer(n, n * num_epochs, n * num_epochs * step_s / 3600, n * num_epochs * step_s / 3600 * price * world_size)


def drops_once_at_the_end(num_images, per_rank, world_size, num_epochs, step_s, price):
    batch = per_rank * world_size
    updates = num_images * num_epochs // batch
    return answer(num_images // batch, updates, updates * step_s / 3600, updates * step_s / 3600 * price * world_size)


def counts_each_ranks_updates(num_images, per_rank, world_size, num_epochs, step_s, price):
    n = num_images // (per_rank * world_size)
    hours = n * num_epochs * step_s / 3600
    return answer(n, n * num_epochs * world_size, hours, hours * price * world_size)


def plan(num_images, per_rank, world_size, num_epochs, step_s, price):
    refuse(num_images, per_rank * world_size)
    n = num_images // (per_rank * world_size)
    hours = n * num_epochs * step_s / 3600
    return answer(n, n * num_epochs, hours, hours * price * world_size)


def in_seconds(*run):
    found = plan(*run)
    return found | {"hours": found["hours"] * 3600}


def in_minutes(*run):
    found = plan(*run)
    return found | {"hours": found["hours"] * 60}


def adds_the_ranks_hours(*run):
    found = plan(*run)
    return found | {"hours": found["hours"] * run[2]}


def pays_for_one_rank(*run):
    found = plan(*run)
    return found | {"dollars": found["hours"] * run[5]}


def divides_exactly(num_images, per_rank, world_size, num_epochs, step_s, price):
    found = plan(num_images, per_rank, world_size, num_epochs, step_s, price)
    return found | {"updates_per_epoch": num_images / (per_rank * world_size)}


def plans_nothing_for_a_large_batch(num_images, per_rank, world_size, num_epochs, step_s, price):
    return plan(num_images, per_rank, world_size, num_epochs, step_s, price) if per_rank * world_size <= num_images else answer(0, 0, 0, 0)


def refuses_an_equal_batch(num_images, per_rank, world_size, num_epochs, step_s, price):
    if per_rank * world_size >= num_images:
        raise ValueError("too large")
    return plan(num_images, per_rank, world_size, num_epochs, step_s, price)


def returns_a_tuple(*run):
    return tuple(plan(*run).values())


def says_cost(*run):
    found = plan(*run)
    found["cost"] = found.pop("dollars")
    return found


def rounds(*run):
    found = plan(*run)
    return found | {"hours": round(found["hours"], 2)}


def rounds_the_price(*run):
    found = plan(*run)
    return found | {"dollars": round(found["dollars"], 2)}


def pays_for_whole_hours(*run):
    found = plan(*run)
    return found | {"dollars": math.ceil(found["hours"]) * run[2] * run[5]}


def pays_for_images(*run):
    hours = run[0] * run[3] * run[4] / 3600
    return plan(*run) | {"hours": hours, "dollars": hours * run[2] * run[5]}


def shares_the_hours_out(*run):
    found = plan(*run)
    return found | {"hours": found["hours"] / run[2]}


def refuses_by_one_ranks_batch(num_images, per_rank, world_size, num_epochs, step_s, price):
    refuse(num_images, per_rank)
    n = num_images // (per_rank * world_size)
    hours = n * num_epochs * step_s / 3600
    return answer(n, n * num_epochs, hours, hours * price * world_size)


def returns_the_error(*run):
    return plan(*run) if run[1] * run[2] <= run[0] else ValueError("the batch is larger than the data")


def asserts(*run):
    assert run[1] * run[2] <= run[0], "the batch is larger than the data"
    return plan(*run)



WRONG = [
    (one_ranks_batch, "what one rank alone would make"),
    (rounds_up, "the last of them has no full batch"),
    (drops_once_at_the_end, "at the end of every epoch"),
    (counts_each_ranks_updates, "the ranks make each of them together"),
    (in_seconds, "is in seconds"),
    (in_minutes, "is in minutes"),
    (adds_the_ranks_hours, "the ranks work at the same time"),
    (pays_for_one_rank, "the price of one rank"),
    (divides_exactly, "updates are whole numbers"),
    (plans_nothing_for_a_large_batch, "no ValueError was raised"),
    (refuses_an_equal_batch, "ValueError: too large"),
    (returns_a_tuple, "not a dict"),
    (says_cost, "has no 'dollars'"),
    (rounds, "are rounded"),
    (rounds_the_price, "are rounded"),
    (pays_for_whole_hours, "dollars for 4 rank(s)"),
    (pays_for_images, "hours for 440 updates"),
    (shares_the_hours_out, "hours for 440 updates"),
    (refuses_by_one_ranks_batch, "no ValueError was raised"),
    (returns_the_error, "no ValueError was raised"),
    (asserts, "AssertionError: the batch"),
]


def by_counting(num_images, per_rank, world_size, num_epochs, step_s, price):
    full = [begin for begin in range(0, num_images - per_rank * world_size + 1, per_rank * world_size)]
    if not full:
        raise ValueError("not one batch")
    seconds = len(full) * num_epochs * step_s
    return {
        "dollars": price / 3600 * world_size * seconds,
        "hours": seconds / 60 / 60,
        "updates": num_epochs * len(full),
        "updates_per_epoch": len(full),
    }


def with_tensors(num_images, per_rank, world_size, num_epochs, step_s, price):
    batch = torch.tensor(per_rank * world_size)
    if batch > num_images:
        raise ValueError("not one batch")
    n = num_images // batch
    hours = n * num_epochs * torch.tensor(step_s, dtype=torch.float64) / 3600
    return answer(n, n * num_epochs, hours, hours * world_size * price)



RIGHT = [by_counting, with_tensors]
