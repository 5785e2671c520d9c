"""Train what chapter 11 reads from its records.

    python -m tools.record.large_batches [grid | search | updates | adam]

The network, recipes and training come from the notebook. Every seed's test error goes to
data/recorded/<machine>/large_batches.json, or large_batches_<part>.json. On two cores the grid takes about a quarter
of an hour; the search, the equal updates and Adam five minutes each.

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
SIZES = (16, 128, 256, 384, 512, 1024)
EQUAL_SIZES = tuple(size for size in SIZES if size != 512)  # the grid has batch 512 with as many updates
SEARCHED = {
    "num_layers": (6, 8),
    "base": (0.0025, 0.005, 0.0075, 0.01, 0.02),
    "batch_size": (256, 512),
}
SEARCH_SEEDS = (1000, 1001, 1002)
ADAM_SEEDS = SEEDS[:10]
LONGEST_S = 4 * 3600


def main(argv=None):
    parser = argparse.ArgumentParser(description="Train what chapter 11 reads from its records.")
    parser.add_argument("part", nargs="?", choices=PARTS, default="grid")
    part = parser.parse_args(argv).part
    names = definitions()
    name, option = ("large_batches", "") if part == "grid" else (f"large_batches_{part}", f" {part}")
    values = {"settings": settings(names), **PARTS[part](names)}
    path = keeping.save(name, values, f"python -m tools.record.large_batches{option}")
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
    for (base, size, recipe), found in names["train_all"](cases, SEEDS, timeout=LONGEST_S).items():
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
    for (i, recipe), errors in names["train_all"](cases, SEARCH_SEEDS, timeout=LONGEST_S).items():
        found[i]["errors"][recipe] = errors
    return {"seeds": list(SEARCH_SEEDS), "found": found}


def train_updates(names):
    """Train with the updates that batch 512 has in the grid, from CAUTIOUS: {"seeds", "num_updates", "errors"}."""
    num_updates = len(names["rates_of"](names["CAUTIOUS"], 512, RUNGS[0]))
    cases = {
        (size, recipe): (size, names["rates_of"](names["CAUTIOUS"], size, recipe, num_updates))
        for size in EQUAL_SIZES
        for recipe in (RUNGS if size > names["BASE_BATCH"] else RUNGS[:1])
    }
    return {"seeds": list(SEEDS), "num_updates": num_updates, "errors": train_cases(names, cases, SEEDS)}


def train_adam(names):
    """Train with Adam under its three rules: {"seeds", "rate", "errors": {batch size: {rule: [test errors in %]}}}."""
    import torch

    cases = {
        (size, rule): (size, names["adam_rates"](size, rule))
        for size in SIZES
        for rule in list(names["POWERS"])[: None if size > names["BASE_BATCH"] else 1]
    }
    errors = train_cases(names, cases, ADAM_SEEDS, make_optimizer=torch.optim.Adam)
    return {"seeds": list(ADAM_SEEDS), "rate": names["ADAM_RATE"], "errors": errors}


def train_cases(names, cases, seeds, **options):
    """Train {(batch size, rule): case} with each seed: {batch size: {rule: [test error of each seed, in %]}}."""
    errors = {}
    for (size, rule), found in names["train_all"](cases, seeds, timeout=LONGEST_S, **options).items():
        errors.setdefault(str(size), {})[rule] = found
    return errors


PARTS = {"grid": train_grid, "search": search, "updates": train_updates, "adam": train_adam}

if __name__ == "__main__":
    main()
