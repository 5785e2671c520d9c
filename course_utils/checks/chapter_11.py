"""Checks of chapter 11: where the linear rule breaks, a schedule, the price of a run, the link that hides messages."""

import itertools
import math
import numbers
import random
import reprlib

from .wrong import expect, is_whole, judge_in_worker


def _plain(value):
    """`value`, or the number in a tensor or an array without dimensions, which is as good."""
    return value.item() if getattr(value, "shape", None) == () else value


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _close(value, truth):
    # Not EQUAL: a tensor's float32 is right too, and no wrong answer comes so near.
    return value == truth or math.isclose(value, truth, rel_tol=1e-6, abs_tol=1e-12)


def _is_rounded(value, truth):
    return any(value == round(truth, digits) for digits in range(5))


# ---- 11.1 ---------------------------------------------------------------------------------------------------------


def _standard_error(ours, base):
    return math.sqrt(ours[1] ** 2 / ours[2] + base[1] ** 2 / base[2])


def _pooled(a, b):
    return math.sqrt(((a[2] - 1) * a[1] ** 2 + (b[2] - 1) * b[1] ** 2) / (a[2] + b[2] - 2) * (1 / a[2] + 1 / b[2]))


def _first(table, is_worse, order=sorted):
    sizes = order(table)
    return next((size for size in sizes if size != min(table) and is_worse(table[size], table[min(table)])), None)


def _beyond(error, times=2.0):
    return lambda ours, base: ours[0] - base[0] > times * error(ours, base)


def _against_the_one_before(table):
    sizes = sorted(table)
    worse = _beyond(_standard_error)
    return next((size for before, size in itertools.pairwise(sizes) if worse(table[size], table[before])), None)


_is_worse = _beyond(_standard_error)
_BREAKS = {  # reason: the answer of one who does this
    "a batch that is better than the smallest is no break": lambda table: _first(
        table, lambda ours, base: abs(ours[0] - base[0]) > 2 * _standard_error(ours, base)
    ),
    "the dict is in no particular order: go up from the smallest batch": lambda table: _first(table, _is_worse, list),
    "it is the last such batch, or the largest; the first is asked for": lambda table: _first(
        table, _is_worse, lambda sizes: sorted(sizes, reverse=True)
    ),
    "each batch is held against the one before it; which one is asked for?": _against_the_one_before,
    "it calls every larger error a break; by how much may means differ by chance?": lambda table: _first(table, lambda a, b: a[0] > b[0]),
    "that is one standard error; two are asked for": lambda table: _first(table, _beyond(_standard_error, 1.0)),
    "that is 1.96 standard errors, which some take; two are asked for": lambda table: _first(table, _beyond(_standard_error, 1.96)),
    "one is taken from the numbers of runs; the standard deviation has that behind it, and the formula none": lambda table: _first(
        table, _beyond(lambda a, b: math.hypot(a[1] / math.sqrt(a[2] - 1), b[1] / math.sqrt(b[2] - 1)))
    ),
    "one spread is made of both; the formula leaves each mean its own": lambda table: _first(table, _beyond(_pooled)),
    "the spread of single runs is taken for that of their mean: what do the numbers of runs do?": lambda table: _first(
        table, _beyond(lambda a, b: math.hypot(a[1], b[1]))
    ),
    "the larger of the two spreads is taken for the standard error: what do the numbers of runs do?": lambda table: _first(
        table, _beyond(lambda a, b: max(a[1], b[1]))
    ),
    "two standard errors are added, but chance seldom strikes both at once: how do they go together?": lambda table: _first(
        table, _beyond(lambda a, b: a[1] / math.sqrt(a[2]) + b[1] / math.sqrt(b[2]))
    ),
    "the smallest batch's mean has a standard error as well": lambda table: _first(table, _beyond(lambda a, b: a[1] / math.sqrt(a[2]))),
    "the other batch's mean has a standard error as well": lambda table: _first(table, _beyond(lambda a, b: b[1] / math.sqrt(b[2]))),
    "the standard deviation is divided by the number of runs; look at the formula again": lambda table: _first(
        table, _beyond(lambda a, b: math.hypot(a[1] / a[2], b[1] / b[2]))
    ),
    "the numbers of runs differ, and each mean has its own": lambda table: _first(
        table, _beyond(lambda a, b: math.hypot(a[1], b[1]) / math.sqrt(b[2]))
    ),
    "standard deviations are added as they are; the formula has squares": lambda table: _first(
        table, _beyond(lambda a, b: math.sqrt(a[1] / a[2] + b[1] / b[2]))
    ),
}


def _tables():
    """Tables of errors as chapter 11's, in no order; no difference lies within 0.5 % of two standard errors, many within 2 %."""
    chance = random.Random(11)
    tables = [{64: (3.0, 0.5, 5)}, {8: (3.0, 0.5, 5), 4: (3.1, 0.4, 5)}]
    while len(tables) < 150:
        sizes = [2**k for k in range(chance.randint(2, 4), chance.randint(6, 10))]
        table, error = {}, chance.uniform(2, 6)
        for size in sizes:
            table[size] = (round(error, 3), round(chance.uniform(0.2, 3), 3), chance.randint(3, 20))
            error = max(0.5, error + chance.choice((-1, 0.1, 0.5, 1, 2)))
        base, close = table[min(table)], chance.choice(sizes[1:])
        if len(tables) % 4 == 0:  # a little less than two, or more
            at = base[0] + chance.choice((1.975, 2.025)) * _standard_error(table[close], base)
            table[close] = (round(at, 3), *table[close][1:])
        ratios = [(ours[0] - base[0]) / _standard_error(ours, base) for size, ours in table.items() if size != min(table)]
        if all(abs(abs(ratio) - 2) > 0.01 for ratio in ratios):
            chance.shuffle(sizes)
            tables.append({size: table[size] for size in sizes})
    return tables


def check_11_1(find_break):
    """`find_break(table)` returns the first batch size whose error is really larger than the smallest one's, or None."""
    judge_in_worker(_judge_break, find_break)
    return "150 tables, with breaks and without: each was read as two standard errors say."


def _judge_break(find_break):
    suspects = dict(_BREAKS)
    failed = None
    for table in _tables():
        given = dict(table)
        answer, truth = _plain(find_break(given)), _first(table, _is_worse)
        expect(list(given.items()) == list(table.items()), "your function changed the table that it was given: leave it as it was")
        expect(answer is None or (is_whole(answer) and answer in table),
               f"the answer is {reprlib.repr(answer)}: neither None nor a batch size of the table {table}")
        suspects = {reason: wrong for reason, wrong in suspects.items() if wrong(table) == answer}
        if failed is None and answer != truth:
            failed = f"for {table} your answer is {answer}, which is not right"
    if failed:
        expect(not suspects, f"{failed}: {next(iter(suspects), '')}")
        expect(False, f"{failed}; compute by hand, for each batch, the difference and its standard error")


# ---- 11.2 ---------------------------------------------------------------------------------------------------------

_SCHEDULES = [  # num_steps, base, peak, warmup, cooldown
    (12, 0.1, 0.7, 4, 3), (6, 0.02, 0.32, 0, 3), (7, 0.02, 0.32, 3, 0), (5, 0.3, 0.3, 0, 0), (9, 0.05, 1.6, 4, 5), (1, 0.1, 0.4, 1, 0),
    (3, 0.1, 0.4, 0, 3),
]  # fmt: skip


def check_11_2(trapezoid):
    """`trapezoid(step, num_steps, base, peak, warmup, cooldown)` is the rate of an update, counted from 0."""
    judge_in_worker(_judge_trapezoid, trapezoid)
    return f"{len(_SCHEDULES)} schedules, with warm-up and cool-down and without, are right at each update."


def _judge_trapezoid(trapezoid):
    for num_steps, base, peak, warmup, cooldown in _SCHEDULES:
        rates = [_plain(trapezoid(step, num_steps, base, peak, warmup, cooldown)) for step in range(num_steps)]
        named = f"num_steps={num_steps}, base={base}, peak={peak}, warmup={warmup}, cooldown={cooldown}"
        for step, rate in enumerate(rates):
            expect(_is_number(rate), f"{named}: the rate of update {step} is {reprlib.repr(rate)}, not a number")
            expect(math.isfinite(rate), f"{named}: the rate of update {step} is {rate}")
            left, where = num_steps - step, f"{named}: update {step} has the rate {float(rate):.4g}"
            if step < warmup:
                truth = base + (peak - base) * (step + 1) / warmup
                if _close(rate, truth):
                    continue
                expect(not _close(rate, base + (peak - base) * step / warmup),
                       f"{where}: the climb is one update late; the last of its {warmup} updates should have the peak")
                expect(not _close(rate, peak * (step + 1) / warmup) and not _close(rate, peak * step / warmup),
                       f"{where}: it climbs from 0; from where should it?")
                expect(not _close(rate, peak), f"{where}: there is no climb")
                expect(not _is_rounded(rate, truth), f"{where}: that is rounded; leave the rate as it comes out")
                expect(False, f"{where}: that is not on the line of the climb")
            if left <= cooldown:
                truth = peak * left / cooldown
                if _close(rate, truth):
                    continue
                expect(rate != 0, f"{where}: the update would do nothing; the last one should have peak / cooldown")
                expect(not _close(rate, peak * (left - 1) / cooldown),
                       f"{where}: the fall is one update early; the first of its {cooldown} updates should still have the peak")
                expect(not _close(rate, peak), f"{where}: is it still level there? {left} of {num_steps} updates are left, this one included")
                expect(not _close(rate, base + (peak - base) * left / cooldown), f"{where}: the fall goes towards the base, not to 0")
                expect(not _is_rounded(rate, truth), f"{where}: that is rounded; leave the rate as it comes out")
                expect(False, f"{where}: that is not on the line of the fall")
            expect(_close(rate, peak), f"{where}: neither in the climb nor in the fall, it should have the peak")


# ---- 11.3 ---------------------------------------------------------------------------------------------------------

_RUNS = [  # num_images, per_rank, world_size, num_epochs, step_s, price_per_hour
    (1437, 16, 4, 20, 0.25, 3.0), (1437, 16, 1, 7, 0.1, 2.5), (1000, 25, 8, 3, 1.5, 24.0), (96, 12, 8, 90, 12.0, 0.4),
    (1_000_003, 32, 256, 90, 0.26, 3.06),
]  # fmt: skip
_KEYS = ("updates_per_epoch", "updates", "hours", "dollars")


def check_11_3(plan_run):
    """`plan_run(...)` returns the updates, the hours and the dollars of a run, all ranks together."""
    judge_in_worker(_judge_plan, plan_run)
    return f"{len(_RUNS)} runs planned and priced, and a batch larger than the data refused."


def _judge_plan(plan_run):
    for run in _RUNS:
        num_images, per_rank, world_size, num_epochs, step_s, price = run
        batch = per_rank * world_size
        per_epoch = num_images // batch
        hours = num_epochs * per_epoch * step_s / 3600
        answer, where = plan_run(*run), f"{num_images} images, {per_rank} a rank, {world_size} rank(s), {num_epochs} epochs"
        expect(isinstance(answer, dict), f"the answer is {reprlib.repr(answer)}, not a dict")
        answer = {key: _plain(value) for key, value in answer.items()}
        for key in _KEYS:
            expect(key in answer, f"the answer has no {key!r}; its keys are {sorted(map(str, answer))}")
            expect(_is_number(answer[key]), f"{where}: {key!r} is {reprlib.repr(answer[key])}, not a number")
        for key in _KEYS[:2]:
            given = answer[key]
            expect(is_whole(given), f"{where}: {key!r} is {given!r}; updates are whole numbers, ints")
        given = answer["updates_per_epoch"]
        if given != per_epoch:
            expect(given != num_images // per_rank, f"{where}: {given} updates an epoch is what one rank alone would make")
            expect(given != math.ceil(num_images / batch), f"{where}: {given} updates an epoch; the last of them has no full batch")
            expect(given != per_epoch * num_epochs, f"{where}: {given} updates are those of all epochs, not of one")
            expect(False, f"{where}: {given} updates an epoch is not right; how many images go into one update, on all ranks?")
        given = answer["updates"]
        if given != num_epochs * per_epoch:
            expect(given != num_images * num_epochs // batch, f"{where}: {given} updates; images are left out at the end of every epoch")
            expect(given != num_epochs * per_epoch * world_size, f"{where}: {given} updates; the ranks make each of them together")
            expect(False, f"{where}: {given} updates, with {per_epoch} in each of {num_epochs} epochs")
        given = answer["hours"]
        if not _close(given, hours):
            expect(not _close(given, hours * 3600), f"{where}: {given} is in seconds, and hours are asked for")
            expect(not _close(given, hours * 60), f"{where}: {given} is in minutes, and hours are asked for")
            expect(not _close(given, hours * world_size), f"{where}: 'hours' counts each rank's, but the ranks work at the same time")
            expect(not _is_rounded(given, hours), f"{where}: {given} hours are rounded; leave them as they come out")
            expect(False, f"{where}: {given} hours for {num_epochs * per_epoch} updates of {step_s} s is not right")
        given = answer["dollars"]
        if not _close(given, hours * world_size * price):
            expect(not _close(given, hours * price), f"{where}: {given:.4g} dollars is the price of one rank")
            expect(not _is_rounded(given, hours * world_size * price), f"{where}: {given} dollars are rounded; leave them as they come out")
            expect(False, f"{where}: {given} dollars for {world_size} rank(s) at {price} an hour is not right")
    for run in ((100, 16, 8, 3, 0.1, 1.0), (15, 16, 1, 3, 0.1, 1.0)):
        try:
            answer = plan_run(*run)
        except ValueError:
            continue
        expect(False, f"{run[0]} images and a batch of {run[1] * run[2]}: the answer is {reprlib.repr(answer)}, and no ValueError was raised")


# ---- 11.4 ---------------------------------------------------------------------------------------------------------

_LINKS = [  # num_bytes, num_servers, backward_s, wait_s
    (100e6, 32, 0.120, 0.0), (100e6, 2, 0.120, 0.030), (120_078 * 4, 5, 0.050, 0.012), (14e9, 128, 3.5, 0.75),
]  # fmt: skip
_SPECIAL = [  # num_servers, backward_s, wait_s, answer, reason
    (1, 0.12, 0.0, 0, "a single server has nobody to send to"),
    (8, 0.12, 0.12, math.inf, "no time is left, and no link is fast enough"),
    (8, 0.12, 0.20, math.inf, "the first gradients come after the backward pass, and no link is fast enough"),
    (1, 0.12, 0.12, 0, "a single server needs no link, however little time there is"),
]


def check_11_4(link_that_hides):
    """`link_that_hides(num_bytes, num_servers, backward_s, wait_s)` is the link's speed in Gbit/s."""
    judge_in_worker(_judge_link, link_that_hides)
    return f"{len(_LINKS)} links and {len(_SPECIAL)} special cases are right."


def _judge_link(link_that_hides):
    for num_bytes, p, backward_s, wait_s in _LINKS:
        answer, where = _plain(link_that_hides(num_bytes, p, backward_s, wait_s)), f"{num_bytes:g} bytes, {p} servers, {backward_s} s, waiting {wait_s} s"
        expect(_is_number(answer), f"{where}: the answer is {reprlib.repr(answer)}, not a number")
        sent, time_s = 2 * (p - 1) / p * num_bytes, backward_s - wait_s
        truth = sent * 8 / time_s / 1e9
        if _close(answer, truth):
            continue
        as_if = {
            truth / 8: "that is in gigabytes a second",
            truth * 1e9: "that is in bits a second",
            truth * 1e3: "that is in megabits a second",
            truth * 1e9 / 2**30: "a gigabit is 10^9 bits",
            truth / 2: "the gradients go round the ring twice, once to be added up and once as the sum",
            truth * p / (p - 1): "a server does not send everything twice; which share of it?",
            truth / 2 * p / (p - 1): "how many bytes does one server send in a ring all-reduce?",
            math.log2(p) * num_bytes * 16 / time_s / 1e9: "it counts all the gradients in each step; which share is sent in one?",
            truth * p: "that is what all servers send together; each has a link of its own",
            sent * 8 / backward_s / 1e9: "nothing can be sent in the first part of the backward pass",
            sent * 8 / (backward_s + wait_s) / 1e9: "waiting leaves less time to send, not more",
        }
        for value, reason in as_if.items():
            expect(not _close(answer, value), f"{where}: the answer is {float(answer):.5g}; {reason}")
        expect(not _is_rounded(answer, truth), f"{where}: {answer} Gbit/s are rounded; leave them as they come out")
        expect(False, f"{where}: {float(answer):.5g} Gbit/s is not right; which bytes, in which time?")
    for p, backward_s, wait_s, truth, reason in _SPECIAL:
        try:
            answer = _plain(link_that_hides(100e6, p, backward_s, wait_s))
            shown = reprlib.repr(answer)
        except ZeroDivisionError:
            answer, shown = None, "a ZeroDivisionError"
        expect(_is_number(answer) and answer == truth,
               f"{p} server(s), {backward_s} s, waiting {wait_s} s: the answer is {shown}, and {truth} was expected: {reason}")
