"""Train the whole grid of chapter 11, which its notebook trains a part of: `python -m tools.large_batches`.

Networks, recipes and the training itself are the notebook's own. It took 38 minutes on two cores that others used as
well; the accuracies of all seeds go to data/recorded/<machine>/large_batches.json.
"""

from tools import notebooks, recorded

NOTEBOOK = notebooks.NOTEBOOKS / "11_large_batches.ipynb"
NUM_SEEDS = 10
ALL_RECIPES = (32, 64, 128, 256, 384, 512, 1024)
SMALL = {"plain": (2, 4, 16), "normalised": (16,)}  # below the base batch there is nothing to warm up


def main():
    names = definitions()
    cases = wanted(names)
    by_rates = {}  # at the base batch several recipes are one: train it once
    for name, batch_size, recipe in cases:
        rates = tuple(names["rates_of"](name, batch_size, recipe))
        by_rates.setdefault((name, batch_size, rates), []).append((name, batch_size, recipe))
    runs = [(*same[0], seed) for same in by_rates.values() for seed in range(NUM_SEEDS)]
    print(f"{len(runs)} runs for {len(cases)} cases", flush=True)
    found = names["train_all"](runs, timeout=4 * 3600)
    accuracy = {}
    for same in by_rates.values():
        for name, batch_size, recipe in same:
            of_recipe = accuracy.setdefault(name, {}).setdefault(recipe, {})
            of_recipe[str(batch_size)] = found[same[0]]
    settings = {key: names[key] for key in ("BASE_BATCH", "BASE_RATE", "NUM_EPOCHS", "WARMUP_EPOCHS")}
    values = {"settings": settings, "accuracy": accuracy}
    print("kept in", recorded.save("large_batches", values, "python -m tools.large_batches").relative_to(recorded.ROOT))


def definitions():
    """What the notebook defines: networks, recipes, data, training."""
    return notebooks.definitions(NOTEBOOK, assigned=("digits", "test", "RECIPES"))


def wanted(names):
    """Every (network, batch size, recipe) of the grid."""
    return [(name, batch_size, recipe) for name in names["BASE_RATE"] for batch_size in (*SMALL[name], *ALL_RECIPES)
            for recipe in names["RECIPES"]
            if batch_size >= names["BASE_BATCH"] or recipe in ("fixed rate", "linear rule")]


if __name__ == "__main__":
    main()
