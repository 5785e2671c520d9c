"""Figures of data parallelism: a step of the replicas, and when their gradients are sent, in theory and measured."""

from ...measure import overlap
from ...plots.charts import timeline
from ...plots.style import COLOURS, HATCHES, MARKERS, STYLE, keys, pale, show


def replicas(alt, num_ranks=4):
    """Draw one step: equal parameters, each rank's gradient from its own images, an all-reduce, the same mean."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyBboxPatch

    places = {"parameters": 0, "images": 1.75, "gradient": 3.7, "mean": 6.75, "after": 8.6}
    words = {
        "parameters": "equal\nparameters",
        "images": "images\nof its own",
        "gradient": "a gradient\nof its own",
        "mean": "the mean\ngradient",
        "after": "equal\nparameters",
    }
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.9 + 0.48 * num_ranks), layout="constrained")
        for name, text in words.items():
            axes.text(places[name], -0.62, text, ha="center", va="bottom", fontsize=8)
        for rank in range(num_ranks):
            axes.text(-0.75, rank, f"rank {rank}", ha="right", va="center", fontsize=8, color="0.3")
            for name, ranks in (
                ("parameters", ()),
                ("images", (rank,)),
                ("gradient", (rank,)),
                ("mean", range(num_ranks)),
                ("after", ()),
            ):
                _draw_box(axes, places[name], rank, ranks, num_ranks)
            for begin, end in ((0.45, 1.3), (2.2, 3.25), (4.15, 4.8), (5.65, 6.3), (7.2, 8.15)):
                axes.annotate(
                    "", (end, rank), (begin, rank), arrowprops={"arrowstyle": "->", "color": "0.3", "linewidth": 1.1}
                )
        for x, text in ((2.72, "forward,\nbackward"), (7.68, "step")):
            axes.text(x, -0.62, text, ha="center", va="bottom", fontsize=7.5, color="0.35", style="italic")
        look = {"boxstyle": "round,pad=0.02", "facecolor": "white", "edgecolor": "0.2", "linewidth": 1.4}
        axes.add_patch(FancyBboxPatch((4.85, -0.4), 0.75, num_ranks - 0.2, **look))
        axes.text(5.225, (num_ranks - 1) / 2, "all-reduce", rotation=90, ha="center", va="center", fontsize=8.5)
        axes.set_xlim(-1.7, 9.2)
        axes.set_ylim(num_ranks - 0.5, -1.45)
        axes.axis("off")
        show(figure, alt)


def _draw_box(axes, x, y, ranks, num_ranks):
    """Draw a box with the symbols of the ranks whose images contribute; grey if none do."""
    from matplotlib.patches import Rectangle

    colour = pale(COLOURS[ranks[0] % 7]) if len(ranks) == 1 else "0.92" if not ranks else "white"
    axes.add_patch(Rectangle((x - 0.4, y - 0.32), 0.8, 0.64, facecolor=colour, edgecolor="0.5", linewidth=0.8))
    for i, rank in enumerate(ranks):
        shift = 0.8 * ((i + 0.5) / num_ranks - 0.5) if len(ranks) > 1 else 0
        axes.plot(x + shift, y, MARKERS[rank % 7], color=COLOURS[rank % 7], markersize=5.5, markeredgewidth=0)


def schedule(layers, buckets, waits=False, latency=3.0):
    """Return when a backward pass over `layers` computes and sends, as (computing, sending), in units of the drawing.

    `layers` is {name: (time of its backward pass, time of its gradient on the link)}, in the order of the backward
    pass. `buckets` lists the names sent together, in the order of sending. A message takes `latency` longer than its
    gradients. It starts when its last gradient is ready and the link is free; with `waits`, after the whole backward
    pass. Both results are lists of (begin, end, name).
    """
    computing, now = [], 0.0
    for name, (work, _) in layers.items():
        computing.append((now, now + work, name))
        now += work
    ready = {name: now if waits else end for _, end, name in computing}
    sending, free = [], 0.0
    for bucket in buckets:
        begin = max(free, *(ready[name] for name in bucket))
        free = begin + latency + sum(layers[name][1] for name in bucket)
        sending.append((begin, free, "+".join(bucket)))
    return computing, sending


# A network of four layers, and four ways to send its gradients: (buckets, whether they wait for the backward pass).
_LAYERS = {"fc2": (1, 0.5), "fc1": (2, 3), "conv2": (5, 1), "conv1": (4, 0.5)}
_WAYS = {
    "one message each, at the end": ([[name] for name in _LAYERS], True),
    "one bucket, at the end": ([list(_LAYERS)], True),
    "one message each, when ready": ([[name] for name in _LAYERS], False),
    "two buckets, when ready": ([["fc2", "fc1"], ["conv2", "conv1"]], False),
}


def ways_to_send(alt, latency=3.0):
    """Draw the `schedule` of four ways to send gradients, each with its messages below its backward pass."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.9 + 0.62 * len(_WAYS)), layout="constrained")
        ends = []
        for i, (buckets, waits) in enumerate(_WAYS.values()):
            computing, sending = schedule(_LAYERS, buckets, waits, latency)
            for j, (begin, end, text) in [(0, span) for span in computing] + [(1, span) for span in sending]:
                y, wait = 2.5 * i + j, latency if j else 0
                look = {"color": pale(COLOURS[j]), "hatch": HATCHES[j], "edgecolor": "white", "linewidth": 0.8}
                axes.barh(y, end - begin - wait, 0.86, begin + wait, **look)
                if wait:
                    axes.barh(y, wait, 0.86, begin, color="white", edgecolor=COLOURS[1], linewidth=0.8)
                axes.text(
                    (begin + end) / 2,
                    y + 0.66 * j,
                    text,
                    ha="center",
                    va="center",
                    fontsize=6 if end - begin < 1.5 else 7,
                )
            ends.append(sending[-1][1])
            axes.text(ends[-1] + 0.25, 2.5 * i + 1, f"{ends[-1]:g}", va="center", fontsize=8, color="0.3")
        handles = keys(["backward pass of a layer", "message: its bytes"], pale)
        handles.append(Patch(facecolor="white", edgecolor=COLOURS[1], label="message: its latency"))
        figure.legend(handles=handles, loc="outside lower left", ncols=3)
        axes.set_yticks([2.5 * i + 0.5 for i in range(len(_WAYS))], list(_WAYS))
        axes.set_ylim(2.5 * len(_WAYS) - 0.4, -0.7)
        axes.set_xlim(0, 1.06 * max(ends))
        axes.set_xlabel("time, in a sketch; the number is when the last message has arrived")
        axes.set_xticks([])
        axes.grid(visible=False)
        show(figure, alt)


def what_is_hidden(three):
    """Return in words how many of the all-reduces of three buckets hide behind computing; `three`: spans of two ranks.

    With some versions of NCCL's groups a backward pass waits for each of them, and none does.
    """
    during = [overlap.num_hidden(spans) for spans in three]
    if during == [2, 2]:
        return "Two of three all-reduces run beside computing; the last can leave only with the last gradient."
    return f"Of three all-reduces, {during[0]} on rank 0 and {during[1]} on rank 1 hide behind computing."


def backward_passes(passes, alt, title="", *, placement):
    """Draw {way: spans of each rank}, from `measure.overlap.backward_spans`, in two rows per rank.

    The all-reduces of a rank are numbered, so that those of two ranks can be compared where their bars touch.
    """
    rows = {}
    for way, ranks in passes.items():
        for rank, spans in enumerate(ranks):
            sent = [span for span in sorted(spans) if span[2] == "all-reduce"]
            rows[f"{way}, rank {rank}: computing"] = [span for span in spans if span[2] == "computing"]
            rows[f"{way}, rank {rank}: all-reduces"] = [
                (begin, end, f"all-reduce {number}") for number, (begin, end, _) in enumerate(sent, 1)
            ]
    timeline(rows, alt, title, placement=placement)
