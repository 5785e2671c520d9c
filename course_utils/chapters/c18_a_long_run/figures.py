"""Figures of a long run: what a kill costs, what saving costs, and the goodput that remains."""

from dataclasses import dataclass
from statistics import median

import torch

from ...plots import charts
from ...plots.drawings import draw_part
from ...plots.passes import draw_arrow
from ...plots.style import COLOURS, DASHES, HATCHES, MARKERS, STYLE, keys, new_figure, pale, show

TRAINING, SAVING, LOST, STARTING = "training that counts", "saving", "lost by a kill", "starting again"
_KINDS = (TRAINING, SAVING, LOST, STARTING)


@dataclass(frozen=True)
class Spent:
    """What one job did with its time: `spans` are (begin, end, kind), `kills` the times of kills that found it."""

    spans: tuple[tuple[float, float, str], ...]
    kills: tuple[float, ...]

    @property
    def goodput(self):
        useful = sum(end - begin for begin, end, kind in self.spans if kind == TRAINING)
        return useful / self.spans[-1][1]


def spend(interval, save, restart, kills, end):
    """Return the `Spent` of a job until `end`, which saves after each `interval` of training; times in one unit.

    A kill loses all since the last save that was complete; starting again takes `restart`, after which it trains.
    """
    spans, now, found = [], 0.0, []
    waiting = [kill for kill in kills if kill < end]
    while now < end:
        stop = min(now + interval + save, end)
        killed = next((kill for kill in waiting if now <= kill < stop), None)
        if killed is None:
            trained = min(now + interval, end)
            spans.append((now, trained, TRAINING))
            if trained < stop:
                spans.append((trained, stop, SAVING))
            now = stop
        else:
            found.append(killed)
            spans.append((now, killed, LOST))
            now = min(killed + restart, end)
            spans.append((killed, now, STARTING))
        waiting = [kill for kill in waiting if kill >= now]
    return Spent(tuple(spans), tuple(found))


def jobs(rows, alt, unit="hours"):
    """Draw {name: Spent} as one bar each, with a cross at every kill."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 1.35 + 0.5 * len(rows)), layout="constrained")
        for y, spent in enumerate(rows.values()):
            for begin, end, kind in spent.spans:
                i = _KINDS.index(kind)
                look = {"color": COLOURS[i], "hatch": HATCHES[i], "edgecolor": "white", "linewidth": 0.3}
                axes.barh(y, end - begin, 0.55, begin, **look)
            axes.plot(spent.kills, [y - 0.42] * len(spent.kills), "X", color="black", markersize=6, clip_on=False)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.5, -0.75)
        axes.set_xlim(0, max(spent.spans[-1][1] for spent in rows.values()))
        axes.set_xlabel(f"time ({unit}); a cross is a kill")
        axes.grid(axis="y", visible=False)
        figure.legend(handles=keys(_KINDS), loc="outside upper center", ncols=4)
        show(figure, alt)


def sawtooth(interval, save, alt, num_saves=5):
    """Draw the training that a kill would lose, against the moment of the kill, while the job runs."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 2.1), layout="constrained")
        period = interval + save
        for i in range(num_saves):
            begin = i * period
            label = {"label": "what a kill at this moment would lose"} if i == 0 else {}
            axes.plot([begin, begin + interval, begin + period], [0, interval, interval], color=COLOURS[1], **label)
            axes.plot([begin + period] * 2, [interval, 0], color=COLOURS[1], linestyle=":", linewidth=0.8)
            label = {"label": SAVING} if i == 0 else {}
            axes.axvspan(begin + interval, begin + period, color=COLOURS[1], alpha=0.2, linewidth=0, **label)
        axes.axhline(interval / 2, color="0.3", linestyle="--", linewidth=1)
        axes.text(num_saves * period, interval / 2, "  half an\n  interval", va="center", fontsize=8, color="0.3")
        axes.set_xlim(0, num_saves * period)
        axes.set_yticks([0, interval / 2, interval], ["0", "τ/2", "τ"])
        axes.set_xticks([i * period for i in range(num_saves + 1)], [])
        axes.set_ylim(0, 1.15 * interval)
        axes.set_xlabel("time, from save to save")
        axes.set_ylabel("training lost")
        figure.legend(loc="outside upper center", ncols=2)
        show(figure, alt)


def goodputs(curves, points, at, alt, source="", placement=None):
    """Draw goodput against the interval: `curves` {name: (seconds, goodputs)} computed, `points` {name: …} measured.

    `at` is (name, seconds): an interval that is marked by a vertical line.
    """
    with new_figure(
        "interval between saves (CPU time, ms)", "goodput", "Useful time / time, by interval", 3.3, source, placement
    ) as (
        figure,
        axes,
    ):
        for i, (name, (seconds, values)) in enumerate(curves.items()):
            look = {"color": ("0.45", COLOURS[0])[i % 2], "linestyle": DASHES[1 - i % 2]}
            axes.plot([1e3 * s for s in seconds], values, label=f"{name} (computed)", **look)
        for i, (name, (seconds, values)) in enumerate(points.items()):
            look = {"color": COLOURS[1 + i], "marker": MARKERS[1 + i], "linestyle": ""}
            axes.plot([1e3 * s for s in seconds], values, label=f"{name} (measured)", **look)
        axes.axvline(1e3 * at[1], color="0.6", linewidth=1, linestyle=":", label=at[0])
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 1)
        figure.legend(loc="outside upper right", ncols=2)
        show(figure, alt)


def in_background(alt):
    """Draw training that stops for a save, and training that stops for the copy while a thread writes."""
    rows = {
        "save and wait": [(0, 4, "steps"), (4, 5, "copy"), (5, 9, "write to disk"), (9, 14, "steps")],
        "async: training": [(0, 4, "steps"), (4, 5, "copy"), (5, 10, "steps")],
        "async: thread": [(5, 9.4, "write to disk")],
    }
    charts.timeline(rows, alt, xlabel="time (in steps)", source="drawn, not measured")


def delays(delays_ms, stops_ms, alt, placement):
    """Draw {way: [ms of delay]} as a point for each round, its median, and {way: ms} that training stood still."""
    with new_figure(
        "ms longer than the same steps without a save", "", "What a save delays, by round", 2.6, placement=placement
    ) as (
        figure,
        axes,
    ):
        for y, (way, values) in enumerate(delays_ms.items()):
            places = [y + 0.3 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
            axes.plot(values, places, MARKERS[0], color=COLOURS[0], markersize=4, label="" if y else "a round")
            axes.plot([median(values)] * 2, [y - 0.35, y + 0.35], color="black", label="" if y else "median")
        ways, stops = list(delays_ms), list(stops_ms.values())
        axes.plot(stops, [ways.index(way) for way in stops_ms], "X", color=COLOURS[1], label="training stands still")
        axes.axvline(0, color="0.6", linewidth=1, linestyle=":")
        axes.set_yticks(range(len(ways)), ways)
        axes.set_ylim(len(ways) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper right", ncols=3)
        show(figure, alt)


def shares(num_samples, dead, alt, num_replicas=4):
    """Draw the samples of each replica in one step, with `dead`'s crossed out, and the mean of the rest."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.8 + 0.45 * num_replicas), layout="constrained")
        axes.axis("off")
        for replica in range(num_replicas):
            is_dead, y = replica == dead, replica
            colour = "0.85" if is_dead else pale(COLOURS[0])
            axes.text(-0.2, y, f"replica {replica}", ha="right", va="center", fontsize=8.5)
            draw_part(axes, 0, y - 0.35, 3.2, 0.7, facecolor=colour)
            first = replica * num_samples
            axes.text(1.6, y, f"samples {first}–{first + num_samples - 1}", ha="center", va="center", fontsize=8)
            if is_dead:
                axes.plot([0, 3.2], [y - 0.35, y + 0.35], color=COLOURS[1], linewidth=1.5)
                axes.text(3.4, y, "dies in mid-step", va="center", fontsize=8, color=COLOURS[1])
            else:
                middle = (num_replicas - 1) / 2
                draw_arrow(axes, (3.25, y), (6.55, middle + 0.25 * (y - middle)), {"color": COLOURS[0]})
        left = (num_replicas - 1) * num_samples
        text = f"sum of the gradients\nof {left} samples\n÷ {left}"
        axes.text(7.6, (num_replicas - 1) / 2, text, ha="center", va="center", fontsize=8.5)
        axes.set_xlim(-1.5, 8.8)
        axes.set_ylim(num_replicas - 0.4, -0.6)
        show(figure, alt)


def around(timeline, death, alt, before=2, after=3):
    """Draw what each replica did from `before` steps before a death until `after` steps that count after it."""
    steps = range(death.next_step - before, death.next_step + after)
    tries = [each for each in timeline.tries if each.step in steps]
    failed = {(each.replica, each.step) for each in tries if each.stage == "step" and not each.committed}
    origin, rows = death.killed_s, {}
    for each in sorted(tries, key=lambda each: each.replica):
        kind = {"group": "makes a new group", "state": "weights for a new one"}.get(each.stage)
        again = "sums again: counts" if (each.replica, each.step) in failed else "step that counts"
        kind = kind or (again if each.committed else "step whose sum failed")
        row, begin, end = rows.setdefault(f"replica {each.replica}", []), each.begin_s - origin, each.end_s - origin
        if each.replica == death.replica and end > 0:  # its try ends when the death is noticed
            row += [(1e3 * begin, 0, kind), (0, 1e3 * end, "dead, not yet noticed")]
        else:
            row.append((1e3 * begin, 1e3 * end, kind))
    title = f"Around step {death.next_step}, in which replica {death.replica} dies"
    charts.timeline(rows, alt, title=title, xlabel="ms since the kill", placement=torch.device("cpu"))
