"""Train what chapter 17 reads from its record: `python -m tools.record.experts`.

The networks and the training are the notebook's own, with more updates than it has time for. Every seed's test losses
go to data/recorded/<machine>/experts.json. It takes three minutes on two quiet cores.
"""

from tools import notebooks
from tools.record import keeping

NOTEBOOK = notebooks.NOTEBOOKS / "17_experts.ipynb"
NUM_SEEDS, NUM_UPDATES = 10, 1200


def main():
    """Train all ways with all seeds and save each seed's {update: test loss}."""
    names = definitions()
    trained, _ = names["train_all"](NUM_SEEDS, NUM_UPDATES, timeout=2 * 3600)
    values = {
        "num_updates": NUM_UPDATES,
        "test_losses": {way: [tested for tested, _ in found] for way, found in trained.items()},
        "busiest": {
            way: [sum(visits[0] for visits in shares[-20:]) / 2000 for _, shares in found]
            for way, found in trained.items()
            if way != "dense"
        },
    }
    path = keeping.save("experts", values, "python -m tools.record.experts")
    print("kept in", path.relative_to(keeping.ROOT))


def definitions():
    """Return what the notebook defines: networks, data, training."""
    return notebooks.definitions(NOTEBOOK, assigned=("TRAIN", "TEST"))


if __name__ == "__main__":
    main()
