"""What a step holds over time, with and without activation checkpointing: drawn in round numbers, and measured."""

from ...plots.style import COLOURS, HATCHES, STYLE, keys, new_figure, pale, show

PLANS = ("plain", "checkpointing, attention only", "checkpointing, each block", "checkpointing, all blocks as one")
_INPUT, _TABLES = 0.25, 0.5  # a block's input, and attention's tables, relative to all that it keeps
_AGAIN = {PLANS[1]: 0.25, PLANS[2]: 1, PLANS[3]: 1}  # how much of a forward pass is computed again


def memory_plans(alt, num_blocks=4):
    """Draw the four PLANS: a box for each pass of a block, and below it what is held."""
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
                look = {"color": pale(COLOURS[kind]), "hatch": HATCHES[kind], "edgecolor": "white"}
                boxes.barh(0, end - begin, 0.9, begin, linewidth=1, **look)
                boxes.text((begin + end) / 2, 0, text, ha="center", va="center", fontsize=7.5)
            boxes.set_title(name, fontsize=9)
            boxes.axis("off")
            _draw_held(area, curve, high, long)
        panels[-1].set_xlabel(
            "time (a sketch in round numbers); 1 to 4 are the blocks; what is held is in units of what one block keeps"
        )
        panels[-1].set_xlim(0, long)
        figure.legend(handles=keys(["forward", "backward", "forward again"], pale), loc="outside upper right", ncols=3)
        show(figure, alt)


def _draw_held(axes, curve, high, long):
    times, sizes = zip(*dict(curve).items())  # the last size at each time, so that no zero-width dips are drawn
    axes.fill_between(times, sizes, step="post", color="0.85", edgecolor="0.4")
    _mark_peak(axes, max(sizes), f"{max(sizes):g}", high, long)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.set_ylabel("held", fontsize=8)


def _mark_peak(axes, peak, text, high, long):
    axes.plot([0, long], [peak, peak], color=COLOURS[1], linestyle="--", linewidth=1)
    below = peak > 0.8 * high  # no room above the line
    look = {"xytext": (0, -2 if below else 1), "va": "top" if below else "bottom", "textcoords": "offset points"}
    axes.annotate(f"peak {text} ", (long, peak), ha="right", fontsize=8, **look)
    axes.set_ylim(0, 1.08 * high)


def plan(name, num_blocks):
    """Return ([(kind, begin, end, block)], [(time, held)]); kinds 0 to 2 are forward, backward, forward again.

    A block's forward pass takes 1, its backward pass 2. What it keeps for its backward pass is 1, of which its input is
    a quarter and attention's tables are a half.
    """
    spans, curve, now, held = [], [(0, 0)], 0, 0

    def run(kind, length, block, before=0, after=0):
        nonlocal now, held
        spans.append((kind, now, now + length, str(block)))
        for time, more in ((now, before), (now + length, after)):
            held += more
            curve.append((time, held))
        now += length

    blocks, as_one = range(1, num_blocks + 1), name == PLANS[3]
    kept = {PLANS[1]: 1 - _TABLES, PLANS[2]: _INPUT, PLANS[3]: 0}.get(name, 1)
    for block in blocks:
        run(0, 1, block, before=_INPUT if as_one and block == 1 else kept)
    for block in blocks if as_one else ():
        run(2, 1, block, before=1 - (_INPUT if block == 1 else 0))
    for block in reversed(blocks):
        if name in PLANS[1:3]:
            run(2, _AGAIN[name], block, before=1 - kept)
        run(1, 2, block, after=-1)
    return spans, curve


def measured(curves, alt, placement):
    """Draw {name: MB after each operation of a step}, one below the other, each with its peak: what `plan` sketches."""
    high, long = max(map(max, curves.values())), max(map(len, curves.values()))
    title = "Memory during one step: tensors, weights left out"
    with new_figure("", "", title, 0.9 + 0.95 * len(curves), placement=placement) as (figure, axes):
        axes.remove()
        panels = figure.subplots(len(curves), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for panel, (name, mb) in zip(panels, curves.items()):
            panel.fill_between(range(len(mb)), mb, step="post", color="0.85", edgecolor="0.3", linewidth=0.8)
            _mark_peak(panel, max(mb), f"{max(mb):.1f} MB", high, long)
            panel.set_title(name, fontsize=9)
            panel.set_xlim(0, long)
            panel.set_ylabel("MB")
        panels[-1].set_xlabel("operations, in order")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        show(figure, alt)
