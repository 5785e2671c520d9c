"""Exercise 4.2: answers that its check must refuse, each with words from the reason that it must give."""

import math

import torch


def forgets_the_sign(gradients):
    if not all(g.isfinite().all() for g in gradients):
        return None
    return 2.0 ** math.floor(math.log2(65504 / max(g.max().item() for g in gradients)))


def looks_at_the_first_only(gradients):
    if not all(g.isfinite().all() for g in gradients):
        return None
    return 2.0 ** math.floor(math.log2(65504 / gradients[0].abs().max().item()))


def rounds_up(gradients):
    if not all(g.isfinite().all() for g in gradients):
        return None
    return 2.0 ** math.ceil(math.log2(65504 / max(g.abs().max().item() for g in gradients)))


def is_no_power_of_two(gradients):
    if not all(g.isfinite().all() for g in gradients):
        return None
    return 65504 / max(g.abs().max().item() for g in gradients)


def stays_below_a_round_number(gradients):
    if not all(g.isfinite().all() for g in gradients):
        return None
    return 2.0 ** math.floor(math.log2(32768 / max(g.abs().max().item() for g in gradients)))


def never_goes_below_one(gradients):
    if not all(g.isfinite().all() for g in gradients):
        return None
    scale = 1.0
    while all((2 * scale * g.double()).half().isfinite().all() for g in gradients):
        scale *= 2
    return scale


def begins_at_the_default(gradients):
    if not all(g.isfinite().all() for g in gradients):
        return None
    scale = 65536.0
    while not all((scale * g.double()).half().isfinite().all() for g in gradients):
        scale /= 2
    return scale


def forgets_what_is_not_finite(gradients):
    every = torch.cat([g[g.isfinite()].flatten() for g in gradients])
    return 2.0 ** math.floor(math.log2(65504 / every.abs().max().item()))


def takes_the_smallest(gradients):
    every = torch.cat([g.flatten() for g in gradients]).abs()
    if not every.isfinite().all():
        return None
    return 2.0 ** math.floor(math.log2(65504 / every[every > 0].min().item()))


def returns_the_exponent(gradients):
    if not all(g.isfinite().all() for g in gradients):
        return None
    return math.floor(math.log2(65504 / max(g.abs().max().item() for g in gradients)))


WRONG = [
    (forgets_the_sign, "where the largest in absolute value is negative"),
    (looks_at_the_first_only, "overflows in float16"),
    (rounds_up, "overflows in float16"),
    (is_no_power_of_two, "no power of two"),
    (stays_below_a_round_number, "twice as much would be safe too"),
    (never_goes_below_one, "overflows in float16"),
    (begins_at_the_default, "twice as much would be safe too"),
    (forgets_what_is_not_finite, "no scale makes that finite"),
    (takes_the_smallest, "overflows in float16"),
    (returns_the_exponent, "which is no power of two"),
]


def tries_all(gradients):
    every = torch.cat([g.flatten() for g in gradients]).double()
    if not every.isfinite().all():
        return None
    safe = [k for k in range(-140, 160) if (every * 2.0**k).half().isfinite().all()]
    return 2.0 ** max(safe)


def from_the_exponent(gradients):
    worst = torch.stack([g.abs().amax() for g in gradients]).amax().item()
    if not math.isfinite(worst):
        return None
    mantissa, exponent = math.frexp(worst)  # worst = mantissa · 2^exponent, the mantissa from 0.5 to 1
    return 2.0 ** (16 - exponent if mantissa * 65536 <= 65504 else 15 - exponent)


RIGHT = [tries_all, from_the_exponent]
