"""Exercise 11.2: answers that its check must refuse, each with words from the reason that it must give."""

import math

import torch


def shape(climb, fall):
    def trapezoid(step, num_steps, base, peak, warmup, cooldown):
        if step < warmup:
            return climb(step, base, peak, warmup)
        if num_steps - step <= cooldown:
            return fall(num_steps - step, base, peak, cooldown)
        return peak

    return trapezoid


def right_climb(step, base, peak, warmup):
    return base + (peak - base) * (step + 1) / warmup


def right_fall(left, base, peak, cooldown):
    return peak * left / cooldown


climbs_late = shape(lambda step, base, peak, warmup: base + (peak - base) * step / warmup, right_fall)
climbs_from_zero = shape(lambda step, base, peak, warmup: peak * (step + 1) / warmup, right_fall)
does_not_climb = shape(lambda step, base, peak, warmup: peak, right_fall)
climbs_in_a_curve = shape(lambda step, base, peak, warmup: base + (peak - base) * ((step + 1) / warmup) ** 2, right_fall)
ends_at_zero = shape(right_climb, lambda left, base, peak, cooldown: peak * (left - 1) / (cooldown - 1) if cooldown > 1 else 0)
falls_early = shape(right_climb, lambda left, base, peak, cooldown: peak * (left - 1) / cooldown if left > 1 else peak / 9)
falls_to_the_base = shape(right_climb, lambda left, base, peak, cooldown: base + (peak - base) * left / cooldown)
falls_in_a_curve = shape(right_climb, lambda left, base, peak, cooldown: peak * (left / cooldown) ** 2)
does_not_fall = shape(right_climb, lambda left, base, peak, cooldown: peak)


def falls_after_the_warm_up(step, num_steps, base, peak, warmup, cooldown):
    if step < warmup:
        return right_climb(step, base, peak, warmup)
    return peak * (num_steps - step) / (num_steps - warmup)


def returns_nothing_on_top(step, num_steps, base, peak, warmup, cooldown):
    if step < warmup:
        return right_climb(step, base, peak, warmup)
    if num_steps - step <= cooldown:
        return right_fall(num_steps - step, base, peak, cooldown)


def divides_by_nothing(step, num_steps, base, peak, warmup, cooldown):
    return min(base + (peak - base) * (step + 1) / warmup, peak, peak * (num_steps - step) / cooldown)


def climbs_to_the_peak_early(step, num_steps, base, peak, warmup, cooldown):
    if step < warmup:
        return base + (peak - base) * step / max(warmup - 1, 1)
    return right_fall(num_steps - step, base, peak, cooldown) if num_steps - step <= cooldown else peak


def stays_at_the_base(step, num_steps, base, peak, warmup, cooldown):
    if step < warmup:
        return right_climb(step, base, peak, warmup)
    if num_steps - step <= cooldown:
        return right_fall(num_steps - step, base, peak, cooldown)
    return peak if warmup else base


def climbs_too_far(step, num_steps, base, peak, warmup, cooldown):
    if warmup and step <= warmup:
        return right_climb(step, base, peak, warmup)
    return right_fall(num_steps - step, base, peak, cooldown) if num_steps - step <= cooldown else peak


def rounds(step, num_steps, base, peak, warmup, cooldown):
    return round(takes_the_smallest(step, num_steps, base, peak, warmup, cooldown), 2)


def counts_its_calls(step, num_steps, base, peak, warmup, cooldown, calls=[0]):  # noqa: B006
    calls[0] += 1
    return takes_the_smallest(min(calls[0], num_steps) - 1, num_steps, base, peak, warmup, cooldown)


falls_along_a_cosine = shape(right_climb, lambda left, base, peak, cooldown: peak * (1 - math.cos(math.pi * left / cooldown)) / 2)
is_not_a_number = shape(lambda *given: math.nan, right_fall)



WRONG = [
    (climbs_late, "the climb is one update late"),
    (climbs_from_zero, "it climbs from 0"),
    (does_not_climb, "there is no climb"),
    (climbs_in_a_curve, "not on the line of the climb"),
    (ends_at_zero, "that is not on the line of the fall"),
    (falls_early, "the fall is one update early"),
    (falls_to_the_base, "towards the base"),
    (falls_in_a_curve, "not on the line of the fall"),
    (does_not_fall, "is it still level there"),
    (falls_after_the_warm_up, "neither in the climb nor in the fall"),
    (returns_nothing_on_top, "is None, not a number"),
    (divides_by_nothing, "division by zero"),
    (climbs_to_the_peak_early, "the climb is one update late"),
    (stays_at_the_base, "neither in the climb nor in the fall"),
    (climbs_too_far, "neither in the climb nor in the fall"),
    (rounds, "that is rounded"),
    (counts_its_calls, "neither in the climb nor in the fall"),
    (falls_along_a_cosine, "not on the line of the fall"),
    (is_not_a_number, "is nan"),
]


def takes_the_smallest(step, num_steps, base, peak, warmup, cooldown):
    up = base + (peak - base) * min(1, (step + 1) / max(warmup, 1))
    down = peak * min(1, (num_steps - step) / max(cooldown, 1))
    return up if step < warmup else down


def by_lists(step, num_steps, base, peak, warmup, cooldown):
    climb = [base + (peak - base) * (i + 1) / warmup for i in range(warmup)]
    fall = torch.linspace(peak, peak / max(cooldown, 1), cooldown, dtype=torch.float64).tolist()
    return (climb + [peak] * (num_steps - warmup - cooldown) + fall)[step]


def in_float32(step, num_steps, base, peak, warmup, cooldown):
    climb, fall = torch.linspace(base, peak, warmup + 1)[1:], torch.linspace(peak, 0, cooldown + 1)[:-1]
    return torch.cat([climb, torch.full((num_steps - warmup - cooldown,), peak), fall])[step]



RIGHT = [takes_the_smallest, by_lists, in_float32]
