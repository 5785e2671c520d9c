"""Checks of chapter 11: where the linear rule breaks, a schedule, the price of a run, the link that hides messages."""

import math
import random

from ...checks.expect import (
    case,
    expect,
    expect_error,
    expect_number,
    expect_whole,
    explain,
    not_a,
    same,
    short,
    unchanged,
)
from ...checks.judge import run

_CLOSE = 1e-6  # accepts float32; no wrong answer is this close


def _rounded(got, truth):
    """Return `got` if it is `truth` rounded to 0 to 4 digits, else None; for suspects."""
    return next((got for digits in range(5) if got == round(truth, digits)), None)


# ---- 11.1 ---------------------------------------------------------------------------------------------------------


def _first(is_worse, order=sorted):
    """Return a rule that finds the first batch size, in `order`, that is worse than the smallest one.

    `is_worse` compares two (mean, deviation, runs).
    """

    def rule(table):
        base = min(table)
        return next((size for size in order(table) if size != base and is_worse(table[size], table[base])), None)

    return rule


def _beyond(error, times=2.0):
    return lambda ours, base: ours[0] - base[0] > times * error(ours, base)


def _standard_error(a, b):
    return math.hypot(a[1] / a[2] ** 0.5, b[1] / b[2] ** 0.5)


def _against_the_one_before(table):
    sizes = sorted(table)
    return next((size for before, size in zip(sizes, sizes[1:]) if _is_worse(table[size], table[before])), None)


def _pooled(a, b):
    return math.sqrt(((a[2] - 1) * a[1] ** 2 + (b[2] - 1) * b[1] ** 2) / (a[2] + b[2] - 2) * (1 / a[2] + 1 / b[2]))


_is_worse = _beyond(_standard_error)
_MISREAD = {  # {reason: the rule with this mistake}
    "the dict is in no particular order: go up from the smallest batch": _first(_is_worse, list),
    "it is the last such batch, or the largest; the first is asked for":
        _first(_is_worse, lambda t: sorted(t, reverse=True)),
    "each batch is held against the one before it; which one is asked for?": _against_the_one_before,
    "it calls every larger error a break; by how much may means differ by chance?": _first(lambda a, b: a[0] > b[0]),
    "a batch that is better than the smallest is no break":
        _first(lambda a, b: abs(a[0] - b[0]) > 2 * _standard_error(a, b)),
    "a difference of exactly two standard errors is not more than two":
        _first(lambda a, b: a[0] - b[0] >= 2 * _standard_error(a, b)),
    "that is one standard error; two are asked for": _first(_beyond(_standard_error, 1.0)),
    "that is 1.96 standard errors, which some take; two are asked for": _first(_beyond(_standard_error, 1.96)),
    "one is taken from the numbers of runs; the standard deviation has that behind it, and the formula none":
        _first(_beyond(lambda a, b: math.hypot(a[1] / max(a[2] - 1, 1) ** 0.5, b[1] / max(b[2] - 1, 1) ** 0.5))),
    "one spread is made of both; the formula leaves each mean its own": _first(_beyond(_pooled)),
    "the spread of single runs is taken for that of their mean: what do the numbers of runs do?":
        _first(_beyond(lambda a, b: math.hypot(a[1], b[1]))),
    "the larger of the two spreads is taken for the standard error: what do the numbers of runs do?":
        _first(_beyond(lambda a, b: max(a[1], b[1]))),
    "two standard errors are added, but chance seldom strikes both at once: how do they go together?":
        _first(_beyond(lambda a, b: a[1] / a[2] ** 0.5 + b[1] / b[2] ** 0.5)),
    "the smallest batch's mean has a standard error as well": _first(_beyond(lambda a, b: a[1] / a[2] ** 0.5)),
    "the other batch's mean has a standard error as well": _first(_beyond(lambda a, b: b[1] / b[2] ** 0.5)),
    "the standard deviation is divided by the number of runs; look at the formula again":
        _first(_beyond(lambda a, b: math.hypot(a[1] / a[2], b[1] / b[2]))),
    "the numbers of runs differ, and each mean has its own":
        _first(_beyond(lambda a, b: math.hypot(a[1], b[1]) / b[2] ** 0.5)),
    "standard deviations are added as they are; the formula has squares":
        _first(_beyond(lambda a, b: (a[1] / a[2] + b[1] / b[2]) ** 0.5)),
}  # fmt: skip
_EDGES = (
    {64: (3.0, 0.5, 5)},
    {8: (3.0, 0.5, 5), 4: (3.1, 0.4, 5)},
    {8: (2.5, 0.0, 3), 16: (2.5, 0.0, 3), 4: (2.5, 0.0, 4)},
    {32: (2.0, 0.0, 4), 64: (2.25, 0.0, 3)},
    {96: (0.0012, 0.0001, 9), 40: (0.0009, 0.0001, 4), 41: (0.00095, 0.0001, 9)},
    {256: (4.0, 0.1, 9), 16: (2.0, 0.1, 4), 1024: (9.0, 0.1, 4), 100: (2.01, 0.1, 16)},
    {8: (2.0, 0.1, 4), 16: (3.0, 0.1, 4), 32: (2.1, 0.1, 4)},
    {8: (2.0, 0.1, 4), 16: (2.0, 0.1, 4), 32: (3.0, 0.1, 4)},
)


def _tables():
    """Return 150 tables of errors like chapter 11's, with batch sizes in random order.

    No difference is within 0.5 % of two standard errors; many are within 2 %.
    """
    chance, tables = random.Random(11), list(_EDGES)
    while len(tables) < 150:
        sizes = sorted(chance.sample(range(4, 900), chance.randint(3, 7)))
        table, error = {}, chance.uniform(2, 6)
        for size in sizes:
            table[size] = (round(error, 3), round(chance.uniform(0.2, 3), 3), chance.randint(3, 20))
            error = max(0.5, error + chance.choice((-1, 0.1, 0.5, 1, 2)))
        base, close = table[min(table)], chance.choice(sizes[1:])
        if len(tables) % 4 == 0:  # just below or above two standard errors
            at = base[0] + chance.choice((1.975, 2.025)) * _standard_error(table[close], base)
            table[close] = (round(at, 3), *table[close][1:])
        ratios = [
            (ours[0] - base[0]) / _standard_error(ours, base) for size, ours in table.items() if size != min(table)
        ]
        if all(abs(abs(ratio) - 2) > 0.01 for ratio in ratios):
            chance.shuffle(sizes)
            tables.append({size: table[size] for size in sizes})
    return tables


def check_11_1(find_break):
    """`find_break(table)` returns the first batch size with a significantly larger error than the smallest, or None."""
    run(_judge_break, find_break)
    return "150 tables, with breaks and without: each was read as two standard errors say."


def _judge_break(find_break):
    tables, answers = _tables(), []
    for table in tables:
        with case(f"{short(table)}"), unchanged(table=table):
            answer = find_break(table)
            answers.append(answer if answer is None else expect_whole(answer))
            expect(
                answer is None or answers[-1] in table,
                f"the answer is {short(answer)}: neither None nor a batch size of the table",
            )
    truths = [_first(_is_worse)(table) for table in tables]
    failed = next(
        (
            f"for {table} your answer is {answer}"
            for table, answer, truth in zip(tables, answers, truths)
            if answer != truth
        ),
        "",
    )
    suspects = {reason: [rule(table) for table in tables] for reason, rule in _MISREAD.items()} if failed else {}
    explain(
        answers,
        truths,
        suspects,
        said=f"{failed}, which is not right",
        otherwise="compute by hand, for each batch, the difference and its standard error",
    )


# ---- 11.2 ---------------------------------------------------------------------------------------------------------

_SCHEDULES = (  # num_steps, base, peak, warmup, cooldown
    (12, 0.1, 0.7, 4, 3),
    (6, 0.02, 0.32, 0, 3),
    (7, 0.02, 0.32, 3, 0),
    (5, 0.3, 0.3, 0, 0),
    (9, 0.05, 1.6, 4, 5),
    (1, 0.1, 0.4, 1, 0),
    (1, 0.1, 0.4, 0, 1),
    (3, 0.1, 0.4, 0, 3),
    (3, 0.1, 0.4, 3, 0),
    (8, 0.0, 0.5, 2, 2),
    (6, 0.6, 0.2, 3, 2),
    (40, 1, 3, 10, 10),
)


def check_11_2(trapezoid):
    """`trapezoid(step, num_steps, base, peak, warmup, cooldown)` returns the rate of an update, counted from 0."""
    run(_judge_trapezoid, trapezoid)
    return f"{len(_SCHEDULES)} schedules, with warm-up and cool-down and without, are right at each update."


def _judge_trapezoid(trapezoid):
    for num_steps, base, peak, warmup, cooldown in _SCHEDULES:
        with case(f"num_steps={num_steps}, base={base}, peak={peak}, warmup={warmup}, cooldown={cooldown}"):
            rates = {}
            for step in [*range(num_steps), *reversed(range(num_steps))]:  # twice, to find an answer that keeps state
                rate = expect_number(
                    trapezoid(step, num_steps, base, peak, warmup, cooldown), f"the rate of update {step}"
                )
                again = rates.setdefault(step, rate)
                expect(
                    same(rate, again),
                    f"update {step} has the rate {float(rate):.4g} now, and had {float(again):.4g}: what remembers?",
                )
            _expect_no_whole_division(rates, num_steps, base, peak, warmup, cooldown)
            for step, rate in sorted(rates.items()):
                said = f"update {step} has the rate {float(rate):.4g}"
                if step < warmup:
                    _judge_climb(rate, said, base, peak, (step + 1), warmup)
                elif num_steps - step <= cooldown:
                    _judge_fall(rate, said, base, peak, num_steps - step, cooldown)
                else:
                    explain(
                        rate,
                        peak,
                        said=said,
                        close=_CLOSE,
                        otherwise="neither in the climb nor in the fall, it should have the peak",
                    )


def _expect_no_whole_division(rates, num_steps, base, peak, warmup, cooldown):
    climb = [base + (peak - base) * ((step + 1) // warmup) for step in range(warmup)]
    fall = [peak * (left // cooldown) for left in range(cooldown, 0, -1)]
    for part, wrong in (("climb", climb), ("fall", fall)):
        got = [rates[step] for step in (range(warmup) if part == "climb" else range(num_steps - cooldown, num_steps))]
        expect(
            len(wrong) < 2 or not same(got, wrong),
            f"the rates of the {part} are {short(got)}, as // makes them, which rounds down",
        )


def _judge_climb(rate, said, base, peak, done, warmup):
    truth = base + (peak - base) * done / warmup
    suspects = {
        f"the climb is one update late; the last of its {warmup} updates should have the peak": base
        + (peak - base) * (done - 1) / warmup,
        "it climbs from 0; from where should it?": peak * done / warmup,
        "it climbs from 0, and one update late; from where should it?": peak * (done - 1) / warmup,
        "there is no climb": peak,
        "that is rounded; leave the rate as it comes out": _rounded(rate, truth),
    }
    explain(rate, truth, suspects, said=said, close=_CLOSE, otherwise="that is not on the line of the climb")


def _judge_fall(rate, said, base, peak, left, cooldown):
    truth = peak * left / cooldown
    early = f"the fall is one update early; the first of its {cooldown} updates should still have the peak"
    explain(rate, truth, {
        "the update would do nothing; the last one should have peak / cooldown": 0,
        early: peak * (left - 1) / cooldown,
        f"is it still level there? {left} updates are left, this one included": peak,
        "the fall goes towards the base, not to 0": base + (peak - base) * left / cooldown,
        "that is rounded; leave the rate as it comes out": _rounded(rate, truth),
    }, said=said, close=_CLOSE, otherwise="that is not on the line of the fall")  # fmt: skip


# ---- 11.3 ---------------------------------------------------------------------------------------------------------

_RUNS = (  # num_images, per_rank, world_size, num_epochs, step_s, price_per_hour
    (1437, 16, 4, 20, 0.25, 3.0),
    (1437, 16, 1, 7, 0.1, 2.5),
    (1000, 25, 8, 3, 1.5, 24.0),
    (96, 12, 8, 90, 12.0, 0.4),
    (128, 128, 1, 1, 2, 1),
    (1_000_003, 32, 256, 90, 0.26, 3.06),
    (191, 12, 8, 2, 0.5, 1.5),
)
_TOO_LARGE = ((100, 16, 8, 3, 0.1, 1.0), (15, 16, 1, 3, 0.1, 1.0), (31, 4, 8, 1, 0.1, 1.0))


def check_11_3(plan_run):
    """`plan_run(...)` returns the updates, hours and dollars of a run, for all ranks together."""
    run(_judge_plan, plan_run)
    return f"{len(_RUNS)} runs planned and priced, and a batch larger than the data refused."


def _judge_plan(plan_run):
    for num_images, per_rank, world_size, num_epochs, step_s, price in _RUNS:
        ranks = f"{world_size} rank{'s' * (world_size > 1)}"
        with case(f"{num_images} images, {per_rank} a rank, {ranks}, {num_epochs} epoch{'s' * (num_epochs > 1)}"):
            answer = plan_run(num_images, per_rank, world_size, num_epochs, step_s, price)
            expect(isinstance(answer, dict), f"the answer is {not_a(answer, 'a dict')}")
            for key in ("updates_per_epoch", "updates", "hours", "dollars"):
                expect(key in answer, f"the answer has no {key!r}; its keys are {sorted(map(str, answer))}")
            batch = per_rank * world_size
            per_epoch = num_images // batch
            updates, hours = num_epochs * per_epoch, num_epochs * per_epoch * step_s / 3600
            _expect_updates(answer, num_images, per_rank, world_size, num_epochs)
            given = expect_number(answer["hours"], "'hours'")
            explain(
                given,
                hours,
                {
                    "that is in seconds, and hours are asked for": hours * 3600,
                    "that is in minutes, and hours are asked for": hours * 60,
                    "that counts each rank's, but the ranks work at the same time": hours * world_size,
                    "that is rounded; leave the hours as they come out": _rounded(given, hours),
                },
                said=f"'hours' is {given}",
                close=_CLOSE,
                otherwise=f"there are {updates} updates of {step_s} s",
            )
            given, dollars = expect_number(answer["dollars"], "'dollars'"), hours * world_size * price
            explain(
                given,
                dollars,
                {
                    "that is the price of one rank": hours * price,
                    "that is rounded; leave the dollars as they come out": _rounded(given, dollars),
                },
                said=f"'dollars' is {given:.6g}",
                close=_CLOSE,
                otherwise=f"{ranks} at {price} an hour are paid for",
            )
    for too_large in _TOO_LARGE:
        with case(f"{too_large[0]} images and a batch of {too_large[1] * too_large[2]}"):
            expect_error(ValueError, lambda: plan_run(*too_large))


def _expect_updates(answer, num_images, per_rank, world_size, num_epochs):
    batch = per_rank * world_size
    per_epoch = num_images // batch
    given = expect_whole(answer["updates_per_epoch"], "'updates_per_epoch'")
    explain(
        given,
        per_epoch,
        {
            "that is what one rank alone would make": num_images // per_rank,
            "the last of them has no full batch": math.ceil(num_images / batch),
            "those are of all epochs, not of one": per_epoch * num_epochs,
        },
        said=f"'updates_per_epoch' is {given}",
        otherwise="how many images go into one update, on all ranks?",
    )
    given = expect_whole(answer["updates"], "'updates'")
    explain(given, num_epochs * per_epoch, {
        "images are left out at the end of every epoch": num_images * num_epochs // batch,
        "the ranks make each of them together": num_epochs * per_epoch * world_size,
    }, said=f"'updates' is {given}", otherwise=f"there are {per_epoch} in each of {num_epochs} epochs")  # fmt: skip


# ---- 11.4 ---------------------------------------------------------------------------------------------------------

_LINKS = (  # num_bytes, num_servers, backward_s, wait_s
    (100e6, 32, 0.120, 0.0),
    (100e6, 2, 0.120, 0.030),
    (120_078 * 4, 5, 0.050, 0.012),
    (14e9, 128, 3.5, 0.75),
    (1001, 3, 2, 1),
    (5e6, 4, 0.0015, 0.0012),
)
_SPECIAL = (  # num_servers, backward_s, wait_s, answer, reason
    (1, 0.12, 0.0, 0, "a single server has nobody to send to"),
    (8, 0.12, 0.12, math.inf, "no time is left, and no link is fast enough"),
    (8, 0.12, 0.20, math.inf, "the first gradients come after the backward pass, and no link is fast enough"),
    (1, 0.12, 0.12, 0, "a single server needs no link, however little time there is"),
    (1, 0.12, 0.20, 0, "a single server needs no link, however little time there is"),
)


def check_11_4(link_that_hides):
    """`link_that_hides(num_bytes, num_servers, backward_s, wait_s)` returns the link's speed in Gbit/s."""
    run(_judge_link, link_that_hides)
    return f"{len(_LINKS)} links and {len(_SPECIAL)} special cases are right."


def _judge_link(link_that_hides):
    for num_bytes, p, backward_s, wait_s in _LINKS:
        with case(f"{num_bytes:g} bytes, {p} servers, {backward_s} s, waiting {wait_s} s"):
            answer = expect_number(link_that_hides(num_bytes, p, backward_s, wait_s))
            sent, time_s = 2 * (p - 1) / p * num_bytes, backward_s - wait_s
            truth = sent * 8 / time_s / 1e9
            explain(
                answer,
                truth,
                {
                    "that is in gigabytes a second": truth / 8,
                    "that is in bits a second": truth * 1e9,
                    "that is in megabits a second": truth * 1e3,
                    "a gigabit is 10^9 bits": truth * 1e9 / 2**30,
                    "the gradients go round the ring twice, once to be added up and once as the sum": truth / 2,
                    "a server does not send everything twice; which share of it?": truth * p / (p - 1),
                    "how many bytes does one server send in a ring all-reduce?": truth / 2 * p / (p - 1),
                    "it counts all the gradients in each step; which share is sent in one?": math.log2(p)
                    * num_bytes
                    * 16
                    / time_s
                    / 1e9,
                    "that is what all servers send together; each has a link of its own": truth * p,
                    "nothing can be sent in the first part of the backward pass": sent * 8 / backward_s / 1e9,
                    "waiting leaves less time to send, not more": sent * 8 / (backward_s + wait_s) / 1e9,
                    "that is rounded; leave the speed as it comes out": _rounded(answer, truth),
                },
                said=f"the answer is {float(answer):.5g} Gbit/s",
                close=_CLOSE,
                otherwise="which bytes, in which time?",
            )
    for p, backward_s, wait_s, truth, reason in _SPECIAL:
        with case(f"{p} server{'s' * (p > 1)}, {backward_s} s, waiting {wait_s} s"):
            try:
                answer = link_that_hides(100e6, p, backward_s, wait_s)
            except ZeroDivisionError:
                expect(False, f"a ZeroDivisionError came, and {truth} should: {reason}")
            explain(
                expect_number(answer), truth, said=f"the answer is {answer}, and should be {truth}", otherwise=reason
            )
