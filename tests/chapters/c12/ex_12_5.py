# %% wrong (averages columns over all): row 'columns': rank 0 then differs from one process
# "columns": ("", "mean", "") → "columns": ("", "mean", "mean")
# %% wrong (sums over the replicas): 2 times what one process has: each replica's loss is the mean
# "columns": ("", "mean", "") → "columns": ("", "sum", "")
# %% wrong (averages nothing): row 'columns': rank 0 then differs from one process
# "columns": ("", "mean", "") → "columns": ("", "", "")
# %% wrong (sums the row bias): which gradient reaches it on each rank of tp
# "row bias": ("", "mean", "") → "row bias": ("", "mean", "sum")
# %% wrong (averages the LayerNorm over all): a call in it changes nothing: which gradient has the copy
# "LayerNorm": ("", "mean", "") → "LayerNorm": ("", "mean", "mean")
# %% wrong (forgets the other tokens): which tokens has a rank's gradient seen
# "LayerNorm, own tokens": ("", "mean", "sum") → "LayerNorm, own tokens": ("", "mean", "")
# %% wrong (averages over tokens): rank 4 then has 0.5 times what one process has: which tokens
# "LayerNorm, own tokens": ("", "mean", "sum") → "LayerNorm, own tokens": ("", "mean", "mean")
# %% wrong (lets the copies go their ways): which of the two uses is in this
# "embedding": ("sum", "mean", "") → "embedding": ("", "mean", "")
# %% wrong (leaves the loss on the last stage): what do the first stage's ranks have before
# "loss": ("sum", "mean", "") → "loss": ("", "mean", "")
# %% wrong (averages the loss over the stages): 0.5 times what one process has
# "loss": ("sum", "mean", "") → "loss": ("mean", "mean", "")
# %% wrong (forgets the other shards): are the other rank's shards in a rank's number
# "norm, split": ("sum", "", "sum") → "norm, split": ("sum", "", "")
# %% wrong (sums the norm over the replicas): what do the replicas hold
# "norm, split": ("sum", "", "sum") → "norm, split": ("sum", "sum", "sum")
# %% wrong (counts LayerNorms twice): 2 times what one process has: how often is a LayerNorm counted
# "norm, whole": ("sum", "", "") → "norm, whole": ("sum", "", "sum")
# %% wrong (adds the other stage's parameters): which other stage holds this parameter
# "LayerNorm": ("", "mean", "") → "LayerNorm": ("sum", "mean", "")
# %% wrong (forgets a row): the table has no row 'loss'
# "loss": ("sum", "mean", ""), → **{},
# %% wrong (names a row otherwise): a row 'rows', which is not among those asked for
# "row bias" → "rows"
# %% wrong (has other words): "sum", "mean" or "" are the words
# "loss": ("sum", "mean", "") → "loss": ("add", "mean", "")
# %% wrong (leaves out an axis): row 'loss' holds 2 items, not 3
# "loss": ("sum", "mean", "") → "loss": ("sum", "mean")
# %% wrong (fills in nothing): row 'columns': rank 0 then differs from one process
def fill_table():
    names = "columns, row bias, LayerNorm, LayerNorm own tokens, embedding, loss, norm split, norm whole".split(", ")
    names = [name.replace("m own", "m, own").replace("m s", "m, s").replace("m w", "m, w") for name in names]
    return {name: ("", "", "") for name in names}


# %% wrong (returns rows without names): a dict is asked
def fill_table():
    return [("", "mean", "")] * 8


# %% right (lists, made from what each group's ranks hold)
def fill_table():
    def row(pp="the same or nothing", dp="other samples", tp="the same or other columns"):
        words = {"summands": "sum", "other samples": "mean"}
        return [words.get(holds, "") for holds in (pp, dp, tp)]

    table = {name: row() for name in ("columns", "row bias", "LayerNorm")}
    table["LayerNorm, own tokens"] = row(tp="summands")
    table["embedding"] = table["loss"] = row(pp="summands")
    table["norm, split"] = row(pp="summands", dp="the same", tp="summands")
    table["norm, whole"] = row(pp="summands", dp="the same")
    return table


# %% right (read from a text)
def fill_table():
    text = """
        columns               | -    | mean | -
        row bias              | -    | mean | -
        LayerNorm             | -    | mean | -
        LayerNorm, own tokens | -    | mean | sum
        embedding             | sum  | mean | -
        loss                  | sum  | mean | -
        norm, split           | sum  | -    | sum
        norm, whole           | sum  | -    | -
    """
    rows = [[word.strip() for word in line.split("|")] for line in text.strip().splitlines()]
    return {name: tuple("" if word == "-" else word for word in words) for name, *words in rows}


# %% right (a default, and exceptions)
from collections import OrderedDict


def fill_table():
    summed = {"pp": ["embedding", "loss", "norm, split", "norm, whole"], "tp": ["LayerNorm, own tokens", "norm, split"]}
    rows = ["columns", "row bias", "LayerNorm", "LayerNorm, own tokens", "embedding", "loss", "norm, split"]
    return OrderedDict(
        (name, tuple("mean" if axis == "dp" and "norm, " not in name else
                     "sum" if name in summed.get(axis, ()) else "" for axis in ("pp", "dp", "tp")))
        for name in [*rows, "norm, whole"]
    )


# %% right (found by asking which axes a number depends on)
def fill_table():
    def ask(name):
        is_norm = name.startswith("norm, ")
        parts_differ = {"pp": is_norm or name in ("embedding", "loss"), "tp": name.endswith(("own tokens", "split"))}
        yield "sum" if parts_differ["pp"] else ""
        yield "" if is_norm else "mean"
        yield "sum" if parts_differ["tp"] else ""

    names = ["loss", "embedding", "columns", "row bias", "norm, whole", "norm, split", "LayerNorm"]
    return dict((name, list(ask(name))) for name in [*names, "LayerNorm, own tokens"])
