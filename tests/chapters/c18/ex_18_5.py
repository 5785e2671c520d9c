# %% wrong (nan alone): an inf is not finite either
# not math.isfinite(row[4]) → math.isnan(row[4])
# %% wrong (inf alone): a nan is not finite either
# not math.isfinite(row[4]) → math.isinf(row[4])
# %% wrong (the order of the rows): in which step is the first value not finite
# first = min(bad, key=place) → first = bad[0]
# %% wrong (the last one): in which step is the first value not finite
# first = min(bad, key=place) → first = max(bad, key=place)
# %% wrong (stages by the alphabet): in which order does a step compute its stages
# stages.index(stage), layer → stage, layer
# %% wrong (backward before the loss): in which order does a step compute its stages
# stages = ("forward", "loss", "backward", "averaged") → stages = ("forward", "backward", "loss", "averaged")
# %% wrong (layers from the first on): in which order do the forward and the backward pass visit the layers
# layer = -layer if stage == "backward" else layer or 0 → layer = layer or 0
# %% wrong (layers from the last on): in which order do the forward and the backward pass visit the layers
# layer = -layer if stage == "backward" else layer or 0 → layer = -(layer or 0)
# %% wrong (one rank): more than one rank begins at this place
# sorted(row[0] for row in bad if place(row) == place(first)) → [min(row[0] for row in bad if place(row) == place(first))]
# %% wrong (a rank, not a list): not a list or tuple
# sorted(row[0] for row in bad if place(row) == place(first)) → first[0]
# %% wrong (all that follow): those are all that were ever not finite
# sorted(row[0] for row in bad if place(row) == place(first)) → sorted({row[0] for row in bad})
# %% wrong (backwards): are they sorted
# sorted(row[0] for row in bad if place(row) == place(first)) → sorted((row[0] for row in bad if place(row) == place(first)), reverse=True)
# %% wrong (the first rank by number): in which step is the first value not finite
# first = min(bad, key=place) → first = min(bad, key=lambda row: row[0])
# %% wrong (large is bad): in which step is the first value not finite
# not math.isfinite(row[4]) → not row[4] < 5000
# %% wrong (words for None): 'nothing' was returned
# return None → return "nothing"
# %% wrong (never): there are values that are not finite
# if not bad: → if bad:
# %% wrong (throws rows away): the list of rows was changed
# -     if not bad:
# +     rows[:] = bad
# +     if not bad:
# %% wrong (the stage's number): give a stage's name
# return *first[1:4], sorted → return first[1], stages.index(first[2]), first[3], sorted
# %% wrong (all other ranks): on which ranks is it not finite at this very place
# sorted(row[0] for row in bad if place(row) == place(first)) → [99]
# %% right (pandas)
def where_it_began(rows):
    import numpy as np
    import pandas as pd
    table = pd.DataFrame(rows, columns=["rank", "step", "stage", "layer", "norm"])
    bad = table[~np.isfinite(table["norm"])].copy()
    if bad.empty:
        return None
    bad["at"] = bad["stage"].map({"forward": 0, "loss": 1, "backward": 2, "averaged": 3})
    bad["order"] = bad["layer"].fillna(0) * bad["at"].map({0: 1, 1: 0, 2: -1, 3: 0})
    bad = bad.sort_values(["step", "at", "order"])
    top = bad.iloc[0]
    same = bad[(bad["step"] == top["step"]) & (bad["at"] == top["at"]) & (bad["order"] == top["order"])]
    layer = None if top["stage"] in ("loss", "averaged") else int(top["layer"])
    return int(top["step"]), top["stage"], layer, sorted(int(rank) for rank in same["rank"])
# %% right (narrows it down)
def where_it_began(rows):
    bad = [row for row in rows if row[4] != row[4] or abs(row[4]) == float("inf")]
    if len(bad) == 0:
        return
    step = min(row[1] for row in bad)
    bad = [row for row in bad if row[1] == step]
    stage = next(s for s in ["forward", "loss", "backward", "averaged"] if s in {row[2] for row in bad})
    bad = [row for row in bad if row[2] == stage]
    layers = [row[3] for row in bad]
    layer = min(layers) if stage == "forward" else max(layers) if stage == "backward" else None
    return [step, stage, layer, sorted({row[0] for row in bad if row[3] == layer})]
# %% right (walks through all places)
def where_it_began(rows):
    table = {(step, stage, layer, rank): norm for rank, step, stage, layer, norm in rows}
    depth = 1 + max(row[3] for row in rows if row[3] is not None)
    places = [("forward", i) for i in range(depth)] + [("loss", None)]
    places += [("backward", i) for i in range(depth)][::-1] + [("averaged", None)]
    ranks = sorted({row[0] for row in rows})
    for step in range(1 + max(row[1] for row in rows)):
        for stage, layer in places:
            found = [r for r in ranks if not math.isfinite(table.get((step, stage, layer, r), 0.0))]
            if found:
                return step, stage, layer, found
    return None
