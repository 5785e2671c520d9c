"""When the parts of a training step run, and what is held meanwhile:
ideas, computed from round numbers, not measured.
"""

from ...plots.style import COLOURS, HATCHES, STYLE, keys, pale, show

_LOAD, _COPY, _STEP = 1.3, 0.6, 1.5  # how long they take in the drawing
LOADING = ("plain loop", "loader workers", "workers, and prefetch", "data on the device")


def overlaps(alt, num_batches=4):
    """Draw how loading, copying and computing follow or overlap one another in four loops, on one time axis."""
    import matplotlib.pyplot as plt

    rows = ("CPU: load", "copy", "device: step")
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(len(LOADING), 1, figsize=(6.8, 4.6), layout="constrained", sharex=True)
        for axes, way in zip(panels, LOADING):
            spans = loading_spans(way, num_batches)
            for row, batch, begin, end in spans:
                look = {"color": pale(COLOURS[(5, 4, 2)[row]]), "hatch": HATCHES[(0, 1, 2)[row]]}
                axes.barh(row, end - begin, 0.8, begin, edgecolor="white", linewidth=1, **look)
                axes.text((begin + end) / 2, row, str(batch), ha="center", va="center", fontsize=7.5)
            axes.axvline(spans[-1][3], color="0.3", linewidth=1, linestyle="--")
            axes.set_title(way, fontsize=9)
            axes.set_yticks(range(3), rows, fontsize=8)
            axes.set_ylim(2.6, -0.6)
            axes.set_xticks([])
            axes.grid(visible=False)
        panels[-1].set_xlabel("time; the numbers are batches, the dashed line is the end of the last step")
        panels[-1].set_xlim(0, num_batches * (_LOAD + _COPY + _STEP) + 0.2)
        show(figure, alt)


def loading_spans(way, num_batches):
    """[(row, batch, begin, end)] of one of LOADING, in the drawing's units: rows 0 to 2 are load, copy and step."""
    loads, copies, steps = [], [], []
    for i in range(num_batches):
        if way == "data on the device":
            begin = steps[-1][1] if steps else 0
            steps.append((begin, begin + _STEP))
            continue
        earlier = [loads[-1][1] if loads else 0]
        earlier += [steps[-1][1]] if way == "plain loop" and steps else []
        earlier += [copies[i - 3][0]] if i >= 3 else []  # workers stay at most two batches ahead
        loads.append((max(earlier), max(earlier) + _LOAD))
        ready = [loads[i][1], copies[-1][1] if copies else 0]
        if way != LOADING[2]:
            ready.append(steps[-1][1] if steps else 0)
        elif i >= 2:
            ready.append(steps[i - 2][1])  # there is room for the batch in use and for the next one
        copies.append((max(ready), max(ready) + _COPY))
        begin = max(copies[i][1], steps[-1][1] if steps else 0)
        steps.append((begin, begin + _STEP))
    return [(row, i + 1, *span) for row, spans in enumerate((loads, copies, steps)) for i, span in enumerate(spans)]


def memory_plans(alt, num_blocks=4):
    """Draw what a step computes and what it holds meanwhile: plain, in micro-batches,
    and with blocks computed again.
    """
    import matplotlib.pyplot as plt

    plans = {name: plan(name, num_blocks) for name in PLANS}
    high = max(held for _, curve in plans.values() for _, held in curve)
    long = max(end for spans, _ in plans.values() for _, _, end, _ in spans)
    with plt.rc_context(STYLE):
        ratios = [1, 2] * len(plans)
        figure, panels = plt.subplots(
            len(ratios), 1, figsize=(6.8, 6.0), layout="constrained", sharex=True, height_ratios=ratios
        )
        for (name, (spans, curve)), boxes, area in zip(plans.items(), panels[::2], panels[1::2]):
            for kind, begin, end, text in spans:
                boxes.barh(
                    0,
                    end - begin,
                    0.9,
                    begin,
                    color=pale(COLOURS[kind]),
                    hatch=HATCHES[kind],
                    edgecolor="white",
                    linewidth=1,
                )
                boxes.text((begin + end) / 2, 0, text, ha="center", va="center", fontsize=7.5)
            boxes.set_title(name, fontsize=9)
            boxes.axis("off")
            times, sizes = zip(*dict(curve).items())  # of several sizes at one time the last: no dips of no length
            area.fill_between(times, sizes, step="post", color="0.85", edgecolor="0.4")
            peak = max(sizes)
            area.plot([0, long], [peak, peak], color=COLOURS[1], linestyle="--", linewidth=1)
            below = peak > 0.8 * high  # above the line there is no room
            look = {
                "xytext": (0, -2 if below else 1),
                "textcoords": "offset points",
                "va": "top" if below else "bottom",
            }
            area.annotate(f"peak {peak:g} ", (long, peak), ha="right", fontsize=8, **look)
            area.set_ylim(0, 1.08 * high)
            area.set_yticks([])
            area.set_xticks([])
            area.set_ylabel("held", fontsize=8)
        panels[-1].set_xlabel("time; numbers are blocks; what is held is in units of one block's inside")
        panels[-1].set_xlim(0, long)
        figure.legend(handles=keys(["forward", "backward", "forward again"], pale), loc="outside upper right", ncols=3)
        show(figure, alt)


PLANS = ("plain", "two micro-batches", "checkpointing, each block", "checkpointing, all blocks as one")
_INPUT = 0.25  # of a block, in units of what its inside holds


def plan(name, num_blocks):
    """([(kind, begin, end, block)], [(time, held)]): kinds 0 to 2 are forward, backward and forward again.

    A forward pass through a block takes 1, a backward pass 2; what a block keeps for its backward pass is 1, its input
    alone a quarter.
    """
    spans, curve, now, held = [], [(0, 0)], 0, 0

    def run(kind, length, block, before=0, after=0):
        nonlocal now, held
        spans.append((kind, now, now + length, str(block)))
        for time, more in ((now, before), (now + length, after)):
            held += more
            curve.append((time, held))
        now += length

    blocks = range(1, num_blocks + 1)
    parts = 2 if name == PLANS[1] else 1
    kept = {PLANS[2]: _INPUT, PLANS[3]: 0}.get(name, 1)
    for _ in range(parts):
        for block in blocks:
            first = _INPUT if name == PLANS[3] and block == 1 else 0
            run(0, 1 / parts, block, before=first + kept / parts)
        if name == PLANS[3]:
            for block in blocks:
                run(2, 1, block, before=1 - (_INPUT if block == 1 else 0))
        for block in reversed(blocks):
            if name == PLANS[2]:
                run(2, 1, block, before=1 - _INPUT)
            run(1, 2 / parts, block, after=-1 / parts)
    return spans, curve
