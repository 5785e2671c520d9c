"""Train what chapter 11 reads from its record, or run the hyperparameter search before it.

    python -m tools.record.large_batches [--search]

The network, recipes and training come from the notebook. Every seed's test error goes to
data/recorded/<machine>/large_batches.json, or large_batches_search.json. The grid takes about a quarter of an hour on
two cores, the search five minutes.

The search looked for settings in which each rung of the ladder is visible. It uses other seeds than the grid, so that
the grid does not report lucky choices.
"""

import argparse

from tools import notebooks
from tools.record import keeping

NOTEBOOK = notebooks.NOTEBOOKS / "11_large_batches.ipynb"
SEEDS = tuple(range(20))
RUNGS = ("fixed rate", "linear rule", "warm-up")
DECAYS = ("warm-up, steps", "warm-up, no decay")
GRID = {  # {base rate: {batch size: recipes}}
    "CAUTIOUS": {16: RUNGS[:1], 128: RUNGS} | dict.fromkeys((256, 384, 512, 1024), RUNGS + DECAYS),
    "BOLD": {16: RUNGS[:1]} | dict.fromkeys((128, 256, 384), RUNGS),
}
SEARCHED = {
    "num_layers": (6, 8),
    "base": (0.0025, 0.005, 0.0075, 0.01, 0.02),
    "batch_size": (256, 512),
}
SEARCH_SEEDS = (1000, 1001, 1002)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Train what chapter 11 reads from its record.")
    parser.add_argument("--search", action="store_true", help="the search for settings, in place of the grid")
    searching = parser.parse_args(argv).search
    names = definitions()
    values = search(names) if searching else train_grid(names)
    name, option = ("large_batches_search", " --search") if searching else ("large_batches", "")
    path = keeping.save(name, {"settings": settings(names), **values}, f"python -m tools.record.large_batches{option}")
    print("kept in", path.relative_to(keeping.ROOT))


def definitions():
    """What the notebook defines: network, recipes, data, training."""
    return notebooks.definitions(NOTEBOOK, assigned=("digits", "test", "RECIPES"))


def settings(names):
    return {key: names[key] for key in ("BASE_BATCH", "CAUTIOUS", "BOLD", "NUM_EPOCHS", "WARMUP_EPOCHS")}


def train_grid(names):
    """Train the grid: {"seeds": …, "errors": {base rate: {batch size: {recipe: [test error of each seed, in %]}}}}."""
    cases = {
        (base, size, recipe): (size, names["rates_of"](names[base], size, recipe))
        for base, sizes in GRID.items()
        for size, recipes in sizes.items()
        for recipe in recipes
    }
    errors = {}
    for (base, size, recipe), found in names["train_all"](cases, SEEDS, timeout=4 * 3600).items():
        errors.setdefault(base, {}).setdefault(str(size), {})[recipe] = found
    return {"seeds": list(SEEDS), "errors": errors}


def search(names):
    """Run the search: {"seeds": …, "found": [settings, each with "errors": {recipe: [% test error of each seed]}]}."""
    found = [
        {"num_layers": num_layers, "base": base, "batch_size": size, "errors": {}}
        for num_layers in SEARCHED["num_layers"]
        for base in SEARCHED["base"]
        for size in SEARCHED["batch_size"]
    ]
    cases = {
        (i, recipe): (one["batch_size"], names["rates_of"](one["base"], one["batch_size"], recipe), one["num_layers"])
        for i, one in enumerate(found)
        for recipe in RUNGS
    }
    for (i, recipe), errors in names["train_all"](cases, SEARCH_SEEDS, timeout=4 * 3600).items():
        found[i]["errors"][recipe] = errors
    return {"seeds": list(SEARCH_SEEDS), "found": found}


if __name__ == "__main__":
    main()
