"""Checks of chapter 18: goodput, shards for other ranks, a mean without some, who is late, nan, a checkpoint."""

import io
import math
import os
import random
import re
import tempfile
import zipfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ...checks.expect import (
    Wrong,
    case,
    expect,
    expect_number,
    expect_row,
    expect_tensor,
    expect_whole,
    explain,
    same,
    short,
    unchanged,
)
from ...checks.judge import run, wait_for_the_others
from ...checks.watch.calls import forbid
from ...checks.watch.collectives import Collectives
from .disk import left_by

# ---- 18.1 ---------------------------------------------------------------------------------------------------------

_DAY = 86400.0
_LOGS = {  # what is special about it: (seconds, event)
    "two kills while it trains": [
        (12.0, "start"), (112.0, "save"), (115.0, "saved"), (170.0, "killed"), (200.0, "start"), (300.0, "save"),
        (304.0, "saved"), (350.0, "killed"), (390.0, "start"), (420.0, "end"),
    ],
    "a kill in the middle of a save": [
        (5.0, "start"), (65.0, "save"), (70.0, "saved"), (130.0, "save"), (133.0, "killed"), (150.0, "start"),
        (210.0, "save"), (214.0, "saved"), (274.0, "save"), (277.0, "saved"), (280.0, "end"),
    ],
    "a kill before anything was saved": [
        (3.0, "start"), (40.0, "killed"), (55.0, "start"), (95.0, "save"), (97.0, "saved"), (99.5, "end"),
    ],
    "a kill that comes while it is starting again": [
        (10.0, "start"), (60.0, "save"), (61.0, "saved"), (90.0, "killed"), (101.0, "killed"), (120.0, "start"),
        (170.0, "save"), (172.0, "saved"), (180.0, "killed"), (210.0, "start"), (260.0, "end"),
    ],
    "a log that ends with a kill": [
        (8.0, "start"), (58.0, "save"), (60.0, "saved"), (110.0, "save"), (113.0, "saved"), (150.0, "killed"),
    ],
    "no kill": [(2.0, "start"), (52.0, "save"), (55.0, "saved"), (90.0, "end")],
}  # fmt: skip


def check_18_1(account):
    """`account(log)` returns the goodput, and the interval that Young's formula recommends."""
    run(_judge_accounts, account)
    return f"{len(_LOGS) + 1} logs: goodput and interval are right, whatever a kill interrupts."


def _judge_accounts(account):
    for what, log in {**_LOGS, "many kills": _long_log()}.items():
        with case(f"a log with {what}" if not what.startswith("a log") else what):
            given = list(log)
            with unchanged(log=given):
                row = expect_row(account(given), 2, of="the goodput and the interval")
            _judge_account(*row, log)


def _judge_account(goodput, interval, log):
    useful, saves = _useful(log)
    total, kills = log[-1][0], sum(event == "killed" for _, event in log)
    with case("the goodput"):
        began = log[0][0]
        suspects = {
            "the stretch before a save that was killed is not safe: when is it?": _useful(log, begun=1)[0] / total,
            "time whose steps were lost is not useful: when is a stretch of training safe?": _useful(log, lost=0)[0]
            / total,
            "saving is not useful time": _useful(log, saving=1)[0] / total,
            "what the last save does not hold is safe once the job has ended": _useful(log, end=0)[0] / total,
            "the job began at 0, before its first start": useful / (total - began),
        }
        got = expect_number(goodput, "it")
        explain(got, useful / total, suspects, otherwise="which stretches of training were kept, of how much time?")
    with case("the interval"):
        mean_s, mtbf_s = sum(saves) / len(saves), total / kills if kills else math.inf
        begun = _save_times(log)
        starts = sum(event == "start" for _, event in log)
        suspects = {
            "a factor is missing under the root": math.sqrt(mean_s * mtbf_s),
            "a save that was killed does not say how long a save takes": _young(sum(begun) / len(begun), mtbf_s),
            "there are more starts than kills, and which of the two is counted?": _young(mean_s, total / starts),
            "the job began at 0, before its first start": _young(mean_s, (total - log[0][0]) / (kills or 1)),
            "is it the mean of all complete saves?": _young(saves[-1], mtbf_s),
        }
        got = expect_number(interval, "it")
        explain(got, _young(mean_s, mtbf_s), suspects, otherwise="what does a save cost, how often is a kill?")


def _young(save_s, mtbf_s):
    return math.sqrt(2 * save_s * mtbf_s)


def _useful(log, lost=1, saving=0, begun=0, end=1):
    """Return the seconds of training that were kept, with slips, and the seconds of each complete save."""
    useful, since, waiting, saves, last = 0.0, None, 0.0, [], 0.0
    for seconds, event in log:
        if event in ("save", "killed", "end") and since is not None:
            waiting = seconds - since
        if event == "save":
            last, since = seconds, None
            useful += begun * waiting
        elif event == "saved":
            saves.append(seconds - last)
            useful += (not begun) * waiting + saving * saves[-1]
            waiting, since = 0.0, seconds
        elif event == "start":
            since = seconds
        elif event == "killed":
            useful += (not lost) * waiting
            since, waiting = None, 0.0
        elif event == "end":
            useful += end * waiting
    return useful, saves


def _save_times(log):
    """The seconds of each save, also of those that were killed."""
    return [after - seconds for (seconds, event), (after, _) in zip(log, log[1:]) if event == "save"]


def _long_log():
    """A log of days, made up."""
    draw, log, seconds = random.Random(181), [(90.0, "start")], 90.0
    next_kill = seconds + draw.expovariate(1 / 11000)
    while seconds < 3 * _DAY:
        for event, lasts in (("save", 1200.0), ("saved", 60.0 + draw.random())):
            if seconds + lasts > next_kill:
                log += [(next_kill, "killed"), (next_kill + 300.0, "start")]
                seconds = next_kill + 300.0
                next_kill = seconds + draw.expovariate(1 / 11000)
                break
            seconds += lasts
            log.append((seconds, event))
    return [*log, (seconds + 17.0, "end")]


# ---- 18.2 ---------------------------------------------------------------------------------------------------------

_SHARDED = (  # numbers, ranks that saved, ranks that load
    (10, 4, 3),
    (10, 3, 4),
    (24, 4, 2),
    (23, 8, 2),
    (12, 4, 4),
    (9, 4, 1),
    (9, 1, 4),
    (5, 4, 6),
    (1, 3, 2),
)


def check_18_2(reshard):
    """`reshard(read, numel, old_world_size, rank, world_size)` returns this rank's shard, read from the old files."""
    run(_judge_shards, reshard)
    return f"{len(_SHARDED)} changes of the number of ranks: each rank has its shard, and read no number too many."


def _judge_shards(reshard):
    for numel, old, new in _SHARDED:
        whole = torch.arange(1, numel + 1).float() / 7
        for rank in range(new):
            with case(f"{numel} numbers, saved by {old} and loaded by {new}: rank {rank}"):
                _judge_shard(reshard, whole, old, rank, new)


def _padded(whole, world_size):
    length = -(-len(whole) // world_size)
    return F.pad(whole, (0, length * world_size - len(whole))).view(world_size, length)


def _judge_shard(reshard, whole, old, rank, new):
    files, asked = _padded(whole, old), []

    def read(old_rank, start, stop):
        for name, value in {"old_rank": old_rank, "start": start, "stop": stop}.items():
            expect_whole(value, f"read's {name}")
        expect(0 <= old_rank < old, f"read was asked for rank {old_rank}'s file, and {old} ranks saved")
        expect(
            0 <= start <= stop <= files.shape[1],
            f"read was asked for numbers {start} to {stop} of a file that holds {files.shape[1]}",
        )
        asked.append((old_rank, start, stop))
        return files[old_rank, start:stop].clone()

    truth = _padded(whole, new)[rank]
    shard = reshard(read, len(whole), old, rank, new)
    expect(isinstance(shard, torch.Tensor), f"{short(shard)} was returned, and a tensor is wanted")
    expect(shard.dim() == 1, f"the shard has shape {tuple(shard.shape)}, and should be flat")
    length = truth.shape[0]
    expect(len(shard) == length, f"the shard holds {len(shard)} numbers, and all ranks should hold {length}")
    here = whole[rank * length : (rank + 1) * length]
    floor = len(whole) // new
    suspects = {
        "zeros belong behind the numbers": torch.cat([truth[len(here) :], here]),
        "that is what this rank's own old file begins with": _as_long(files[min(rank, old - 1)], length),
        "that is the shard of another rank": lambda: _padded(whole, new)[rank - 1],
        "it begins at a place that rounds down; how long is each shard?": _as_long(whole[rank * floor :], length),
    }
    explain(expect_tensor(shard, like=truth), truth, suspects, otherwise="from where to where does this shard reach?")
    num_read = sum(stop - start for _, start, stop in asked)
    expect(
        num_read <= len(here),
        f"the shard is right, but {num_read} numbers were read for the {len(here)} that it holds without padding",
    )


def _as_long(tensor, length):
    return F.pad(tensor[:length], (0, max(0, length - len(tensor))))


# ---- 18.3 ---------------------------------------------------------------------------------------------------------

_FINE, _NAN, _INF = "", "nan", "inf"
_STEPS = (  # what each rank has: (samples, what is wrong with its gradient)
    ("all ranks have equally many samples", ((4, _FINE), (4, _FINE), (4, _FINE))),
    ("ranks have 5, 2 and 3 samples", ((5, _FINE), (2, _FINE), (3, _FINE))),
    ("rank 1's gradient holds nan", ((4, _FINE), (2, _NAN), (3, _FINE))),
    ("rank 0's gradient holds inf", ((4, _INF), (2, _FINE), (3, _FINE))),
    ("rank 2 has no samples, and a mean over none, which is nan", ((4, _FINE), (2, _FINE), (0, _NAN))),
    ("rank 2 has no samples, and a gradient of zeros", ((4, _FINE), (2, _FINE), (0, _FINE))),
    ("two of three ranks have nan", ((4, _NAN), (2, _NAN), (3, _FINE))),
    ("no rank has a usable gradient", ((4, _NAN), (2, _INF), (0, _NAN))),
)


def check_18_3(average_usable):
    """`average_usable(gradients, num_samples)` makes the mean over usable ranks' samples, and returns their number."""
    seen = run(_average_each, average_usable, world_size=3)
    for (what, ranks), results in zip(_STEPS, zip(*seen)):
        for rank, (gradients, count) in enumerate(results):
            with case(f"a step in which {what}: rank {rank}"):
                _judge_average(gradients, count, ranks, rank)
    return f"{len(_STEPS)} steps on three ranks: the mean is that of the samples that remain, on every rank."


def _gradients(rank, samples, wrong):
    generator = torch.Generator().manual_seed(10 * rank + 183)
    gradients = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (4,), ())]
    if samples == 0:
        return [torch.full_like(each, math.nan if wrong else 0.0) for each in gradients]
    if wrong:
        gradients[1][2] = float(wrong)
    return gradients


def _average_each(average_usable):
    rank, found = dist.get_rank(), []
    for what, ranks in _STEPS:
        samples, wrong = ranks[rank]
        gradients = _gradients(rank, samples, wrong)
        given = list(gradients)
        with case(f"a step in which {what}"):
            with Collectives() as collectives:
                count = average_usable(gradients, samples)
            collectives.expect_waited()
        is_kept = len(gradients) == len(given) and all(a is b for a, b in zip(given, gradients))
        expect(is_kept, "the list holds other tensors: change the tensors that are given, in place")
        found.append(([each.detach().clone() for each in given], count))
    wait_for_the_others()
    return found


def _judge_average(gradients, count, ranks, rank):
    everyone = [_gradients(r, *each) for r, each in enumerate(ranks)]
    usable = [samples > 0 and not wrong for samples, wrong in ranks]
    weights = [samples * good for (samples, _), good in zip(ranks, usable)]
    total = sum(weights)
    clean = [[torch.where(g.isfinite(), g, 0.0) for g in each] for each in everyone]

    def mean(weights, divisor, gradients=clean):
        return [sum(w * g for w, g in zip(weights, parts)) / divisor for parts in zip(*gradients)] if divisor else None

    truth = mean(weights, total) or [torch.zeros_like(each) for each in clean[0]]
    with case("the gradients"):
        finite = all(bool(each.isfinite().all()) for each in gradients)
        expect(finite, "they hold nan or inf: what is nan times zero, and what is nothing divided by nothing?")
        suspects = {
            "they are this rank's own": everyone[rank],
            "a rank without a usable gradient takes part in the divisor": mean(weights, sum(n for n, _ in ranks)),
            "all ranks count alike, and some have more samples": mean([float(u) for u in usable], sum(usable)),
            "the sum is divided by the number of ranks": mean(weights, len(ranks)),
            "the sum is not divided": mean(weights, 1),
            "only the numbers that are not finite were left out, and the whole rank should be": mean(
                [n for n, _ in ranks], sum(n for n, _ in ranks)
            ),
        }
        explain(gradients, truth, suspects, otherwise="is it the mean over the samples of the ranks that can be used?")
    with case("the number of samples"):
        suspects = {
            "those are this rank's own": ranks[rank][0],
            "samples of a rank that was left out are counted": sum(samples for samples, _ in ranks),
            "that is a number of ranks": sum(usable),
        }
        got = expect_number(count, "it")
        explain(got, total, suspects, otherwise="how many samples are in the mean?")


# ---- 18.4 ---------------------------------------------------------------------------------------------------------

_LEAST_S = 0.02
_RECORDS = (  # what is special, ranks, the late rank of each collective (None: nobody), answer
    ("one rank was late once, by far", 4, [1, (0, 30.0), 1, 1, 1], 1),
    ("one rank is late in most steps", 4, [2, 2, None, 2, 2, 1, 2], 2),
    ("rank 0 is late in most steps", 3, [0, 0, 0, 1, 0, 2], 0),
    ("each rank is late now and then", 4, [0, 1, 2, 3, None, 1], None),
    ("one rank is always a little behind the others", 3, 6 * [(1, 0.009)], None),
    ("nobody is late", 3, [None, None, None, None], None),
    ("a rank is late in exactly half of the steps", 4, [1, 1, 0, 2], None),
)


def check_18_4(find_straggler):
    """`find_straggler(rows, least_s)` returns the rank that is late in most collectives, or None."""
    run(_judge_stragglers, find_straggler)
    return f"{2 * len(_RECORDS) + 2} logs, written by clocks that disagree: the straggler is found where there is one."


def _judge_stragglers(find_straggler):
    draw = random.Random(184)
    for what, world_size, late, answer in _RECORDS:
        for cut in (False, True):
            rows = _rows(draw, world_size, late, cut)
            with case(f"a log in which {what}{', and of which ranks lack some rows' if cut else ''}"):
                _judge_straggler(find_straggler, rows, answer)
    rows = _rows(draw, 3, [1, 1, 0], False)
    rows += [(rank, 3, 100.0 + rank, None) for rank in (0, 2)]  # two wait, and rank 1 has not come
    with case("a log that ends while two ranks are waiting"):
        _judge_straggler(find_straggler, rows, 1)
    with case("a log without a collective that all have left"):
        _judge_straggler(find_straggler, [(0, 0, 1.0, None), (1, 1, 3.0, 4.0)], None)


def _rows(draw, world_size, late, is_cut):
    """Rows (rank, number, entered_s, left_s): each rank's clock differs by hours; who is late keeps others waiting."""
    offsets = [draw.uniform(-9000, 9000) for _ in range(world_size)]
    rows, now = [], 0.0
    for number, who in enumerate(late):
        who, by = who if isinstance(who, tuple) else (who, draw.uniform(0.05, 0.3))
        arrive = [now + draw.uniform(0.1, 0.11) + by * (rank == who) for rank in range(world_size)]
        now = max(arrive) + 0.001
        rows += [(rank, number, arrive[rank] + offset, now + offset) for rank, offset in enumerate(offsets)]
    if is_cut:  # rank 1's recorder began later; rank 0 waits in a collective that no other has reached
        rows = [row for row in rows if row[0] != 1 or row[1] > 0]
        rows = [(*row[:1], row[1] + 1, *row[2:]) for row in rows]
        rows += [(1, 0, 5.0, 500.0)]
        rows += [(0, len(late) + 1, now + 1, None)]
    draw.shuffle(rows)
    return rows


def _judge_straggler(find_straggler, rows, truth):
    given = list(rows)
    with unchanged(rows=given):
        got = find_straggler(given, _LEAST_S)
    said = f"{short(got)} was returned"
    if truth is None:
        expect(got is not False and got != [], f"{said}, and None says that there is no straggler")
        if got is None:
            return
    else:
        expect(got is not None, f"{said}: who was late in more than half of the collectives that all ranks have left?")
    got = expect_whole(got, "the rank")
    suspects = {
        "who waits longest was there first": _straggler(rows, longest=True),
        "a rank is late only if all others waited at least least_s longer": _straggler(rows, least_s=0.0),
        "who is late in half of them, or less, is no straggler": _straggler(rows, share=0.0),
        "ranks' clocks do not agree, so times of different ranks cannot be compared": _straggler(rows, by_clock=True),
        "the sum or mean of the waits is ruled by one bad step": _by_mean(rows),
    }
    otherwise = "whom did the others wait for, in each collective?"
    explain(got, -1 if truth is None else truth, suspects, said=said, otherwise=otherwise)


def _whole_collectives(rows):
    ranks = {row[0] for row in rows}
    by_number = {}
    for rank, number, entered, left in rows:
        if left is not None:
            by_number.setdefault(number, {})[rank] = entered, left
    return [found for found in by_number.values() if found.keys() == ranks]


def _straggler(rows, longest=False, by_clock=False, share=0.5, least_s=_LEAST_S):
    """Return the straggler, or None; with slips."""
    late, wholes = [], _whole_collectives(rows)
    for found in wholes:
        waits = sorted((-entered if by_clock else left - entered, rank) for rank, (entered, left) in found.items())
        waits = [(-wait, rank) for wait, rank in reversed(waits)] if longest else waits
        if longest or waits[1][0] - waits[0][0] >= least_s:
            late.append(waits[0][1])
    most = max(set(late), key=late.count, default=None)
    return most if late.count(most) > share * len(wholes) else None


def _by_mean(rows):
    sums = {}
    for found in _whole_collectives(rows):
        for rank, (entered, left) in found.items():
            sums[rank] = sums.get(rank, 0.0) + left - entered
    return min(sums, key=sums.get, default=None)


# ---- 18.5 ---------------------------------------------------------------------------------------------------------

_NUM_LAYERS = 3
_ORIGINS = (  # what is special, (step, stage, layer, ranks) of the first values that are not finite, those that follow
    ("a layer's output is nan on one rank", (3, "forward", 1, [2])),
    ("a loss is inf on one rank", (2, "loss", None, [0])),
    ("a gradient is nan on one rank", (4, "backward", 1, [1])),
    ("two ranks begin at the same place", (1, "forward", 0, [0, 2])),
    ("the average overflows, of gradients that are finite", (2, "averaged", None, [0, 1, 2])),
    ("it begins in the last layer's gradient", (0, "backward", 2, [2])),
    ("it begins in the first layer's gradient", (5, "backward", 0, [1])),
)


def check_18_5(where_it_began):
    """`where_it_began(rows)` returns (step, stage, layer, ranks) of the first value that is not finite, or None."""
    run(_judge_origins, where_it_began)
    return f"{len(_ORIGINS) + 2} tables: step, stage, layer and ranks are right."


def _judge_origins(where_it_began):
    draw = random.Random(185)
    for what, origin in _ORIGINS:
        with case(f"a table in which {what}"):
            _judge_origin(where_it_began, _table(draw, origin), origin)
    with case("a table of which a rank's rows end early"):
        rows = _table(draw, (3, "forward", 0, [1]))
        rows = [row for row in rows if not (row[0] == 2 and row[1] >= 2)]
        _judge_origin(where_it_began, rows, (3, "forward", 0, [1]))
    with case("a table in which all is finite"):
        _judge_origin(where_it_began, _table(draw, None), None)


def _places():
    """The places of a step, in the order in which they are computed: (stage, layer)."""
    forward = [("forward", layer) for layer in range(_NUM_LAYERS)]
    backward = [("backward", layer) for layer in reversed(range(_NUM_LAYERS))]
    return [*forward, ("loss", None), *backward, ("averaged", None)]


def _table(draw, origin, num_steps=7):
    """Rows (rank, step, stage, layer, norm): what comes after the origin on its ranks, and after an average on all."""
    order, rows = _places(), []
    kinds = draw.sample([math.nan, math.inf], 2)
    for rank in range(3):
        is_bad = False
        for step in range(num_steps):
            for stage, layer in order:
                if origin is not None:
                    at = (step, order.index((stage, layer))) >= (origin[0], order.index(origin[1:3]))
                    is_bad |= at and (rank in origin[3] or stage == "averaged")
                norm = draw.uniform(0.1, 9000.0)
                if is_bad:  # of one kind at first, of the other later
                    norm = kinds[step > origin[0]]
                rows.append((rank, step, stage, layer, norm))
    draw.shuffle(rows)
    return rows


def _judge_origin(where_it_began, rows, origin):
    given = list(rows)
    got = where_it_began(given)
    is_kept = len(given) == len(rows) and all(a is b for a, b in zip(given, rows))
    expect(is_kept, "the list of rows was changed: what was given belongs to the caller")
    if origin is None:
        expect(got is None, f"{short(got)} was returned, and every value is finite: None says so")
        return
    expect(got is not None, "None was returned, and there are values that are not finite: inf is one, and nan")
    step, stage, layer, ranks = expect_row(got, 4, of="step, stage, layer and ranks")
    bad = [row for row in rows if not math.isfinite(row[4])]
    with case("the step"):
        suspects = {
            "an inf is not finite either": _first(bad, math.isnan),
            "a nan is not finite either": _first(bad, math.isinf),
        }
        explain(expect_whole(step, "it"), origin[0], suspects, otherwise="in which step is the first value not finite?")
    with case("the stage"):
        expect(isinstance(stage, str), f"it is {short(stage)}: give a stage's name")
        expect(stage == origin[1], f"{stage!r} is not right: in which order does a step compute its stages?")
    with case("the layer"):
        expect(
            layer == origin[2],
            f"{layer!r} is not right: in which order do the forward and the backward pass visit the layers?",
        )
    with case("the ranks"):
        ranks = expect_row(ranks, None, "it")
        everyone = sorted({row[0] for row in bad})
        suspects = {
            "those are all that were ever not finite, also later": everyone,
            "are they sorted?": origin[3][::-1],
            "more than one rank begins at this place": origin[3][:1],
        }
        explain(ranks, origin[3], suspects, otherwise="on which ranks is it not finite at this very place?")


def _first(bad, holds):
    return min((row[1] for row in bad if holds(row[4])), default=None)


# ---- 18.6 ---------------------------------------------------------------------------------------------------------

_SAVED_AFTER, _NAME = 5, "a run.2.pt"


def _run_with_adam():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


def _run_with_restarts():
    model = nn.Sequential(
        nn.Linear(8, 6), nn.PReLU(), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3), nn.Dropout(0.1)
    )
    flat, others = ([p for p in model.parameters() if (p.dim() == 1) == is_flat] for is_flat in (True, False))
    optimizer = torch.optim.SGD([{"params": others}, {"params": flat, "lr": 0.2}], lr=0.1, momentum=0.8)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3, T_mult=2)


_RUNS = {"Adam and StepLR": _run_with_adam, "SGD with momentum and CosineAnnealingWarmRestarts": _run_with_restarts}
_PARTS = {
    "parameters": "the model's parameters are not those that were saved",
    "buffers": "the model's buffers (BatchNorm's statistics) are not those that were saved",
    "averages": "the optimizer's averages are not those that were saved",
    "rates": "the optimizer's rates are not those that were saved",
    "random": "torch's random state is another: dropout and batches will differ",
    "next rates": "the rates of the next steps are others: what does the scheduler know besides the rate?",
    "next losses": "all looks right, yet the losses of the next steps are others",
}


def check_18_6(Checkpoint):
    """`Checkpoint(path, model, optimizer, scheduler)` with `save(step)` and `load()` continues a run bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        (saved,) = run(_save_runs, Checkpoint, folder)
        (resumed,) = run(_resume_runs, Checkpoint, folder, {what: seen["file"] for what, seen in saved.items()})
    for what, before in saved.items():
        with case(f"a run with {what}, in a new process"):
            step = expect_whole(resumed[what]["step"], "what load() returned")
            expect(step == 2 * _SAVED_AFTER, f"load() returned {step}, and save({2 * _SAVED_AFTER}) was called last")
            for part, reason in _PARTS.items():
                expect(same(before[part], resumed[what][part], 0), f"after load() {reason}")
    with tempfile.TemporaryDirectory() as folder:  # last: it takes longest
        run(_damage_runs, Checkpoint, folder)
    return (
        "two runs continued bit for bit in a new process, and neither a kill nor a full disk damaged the file of "
        "before."
    )


def _save_runs(Checkpoint, folder):
    return {what: _save_run(Checkpoint, *run) for what, *run in _runs(folder)}


def _save_run(Checkpoint, where, path, parts):
    with case(where):
        answer = Checkpoint(path, *parts)
        for step in (_SAVED_AFTER, 2 * _SAVED_AFTER):
            _train(*parts, _SAVED_AFTER)
            seen = _state(*parts)
            with _forbid_the_courses(), unchanged(model=parts[0]):
                answer.save(step)
            now = _state(*parts)
            is_alike = all(same(seen[name], now[name], 0) for name in now)
            expect(is_alike, "save() drew random numbers, or changed the run")
            expect(os.path.isfile(path), "save() left no file at self.path")
            _expect_readable(path)
        seen["file"] = Path(path).read_bytes()
        return seen | _train(*parts, 8)


def _damage_runs(Checkpoint, folder):
    for _, where, path, parts in _runs(folder):
        with case(where):
            answer = Checkpoint(path, *parts)
            _train(*parts, _SAVED_AFTER)
            answer.save(_SAVED_AFTER)
            damage = _damage(lambda answer=answer: answer.save(2 * _SAVED_AFTER), path)
            expect(not damage, damage)


def _runs(folder):
    """Yield each run's name, words for its case, the path to save to, and (model, optimizer, scheduler)."""
    for i, (what, make) in enumerate(_RUNS.items()):
        path = os.path.join(folder, str(i), _NAME)
        os.mkdir(os.path.dirname(path))
        torch.manual_seed(43)
        yield what, f"a run with {what}", path, make()


def _forbid_the_courses():
    return forbid("course_utils.checkpoint", instead="torch.save and torch.load are enough for it")


def _expect_readable(path):
    try:
        torch.load(path, weights_only=True)
    except Exception as error:  # torch.load raises many types
        found = re.search(r"GLOBAL (\S+)", str(error))
        why = f"it holds a {found[1]}, and not only tensors and plain values" if found else type(error).__name__
        raise Wrong(f"the file cannot be read with weights_only=True: {why}") from None


def _damage(save, path):
    """Return why this save may leave neither the old file nor a complete new one, or None if it is safe."""
    old = Path(path).read_bytes()
    for left in left_by(save, path):
        if left.content != old and not _is_whole(left.content):
            what = "no file" if left.content is None else "a damaged file" if left.content else "an empty file"
            fate = "when the disk was full, `{}` left {}" if left.is_full else "a kill at `{}` would leave {}"
            return f"{fate.format(left.line, what)} at self.path: until when is the file of before needed?"
    return None


def _is_whole(content):
    try:
        torch.load(io.BytesIO(content), weights_only=True)
        return not zipfile.is_zipfile(io.BytesIO(content)) or zipfile.ZipFile(io.BytesIO(content)).testzip() is None
    except Exception:  # torch and zipfile raise many types for a damaged file
        return False


def _train(model, optimizer, scheduler, num_steps):
    data = torch.linspace(-1, 1, 8 * 60).view(60, 8).sin()
    losses, rates = [], []
    for _ in range(num_steps):
        chosen = torch.randint(60, (12,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[chosen]), chosen % 3)
        loss.backward()
        optimizer.step()
        if chosen[0] % 2:  # so that the scheduler does not step with every training step
            scheduler.step()
        losses.append(loss.item())
        rates.append([group["lr"] for group in optimizer.param_groups])
    return {"next losses": losses, "next rates": rates}


def _state(model, optimizer, scheduler):
    return {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "buffers": [b.clone() for b in model.buffers()],
        "averages": [
            v.clone() for p in model.parameters() for v in optimizer.state.get(p, {}).values() if v is not None
        ],
        "rates": [group["lr"] for group in optimizer.param_groups],
        "random": torch.get_rng_state(),
    }


def _resume_runs(Checkpoint, folder, files):
    found = {}
    for i, (what, content) in enumerate(files.items()):
        path = Path(folder, f"resumed {i}", _NAME)  # a folder with this one file of all that save() wrote
        path.parent.mkdir()
        path.write_bytes(content)
        torch.manual_seed(77)
        parts = _RUNS[what]()
        answer = Checkpoint(str(path), *parts)
        with (
            case(f"a run with {what}, in a new process"),
            _forbid_the_courses(),
            unchanged(model=parts[0], allow=("values",)),
        ):
            step = answer.load()
        found[what] = {"step": step, **_state(*parts), **_train(*parts, 8)}
    return found
