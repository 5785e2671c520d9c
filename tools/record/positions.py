"""Train what chapter 16 reads from its record: `python -m tools.record.positions`.

The model, the mesh of 2 × 2 ranks and the mistakes in positions are the notebook's own, with more steps than it has
time for. Losses of training and of a test in one process, which holds whole sequences, go to
data/recorded/<machine>/positions.json. It takes about a minute on two quiet cores.
"""

import torch
import torch.nn.functional as F

from course_utils import launch
from course_utils.data import load_text
from tools import notebooks
from tools.record import keeping

NOTEBOOK = notebooks.NOTEBOOKS / "16_long_sequences.ipynb"
NUM_STEPS, NUM_TESTED = 500, 256


def main():
    """Train with each mistake and without one; save every step's loss and the test losses."""
    names = definitions()
    batches = names["make_batches"](NUM_STEPS)
    values = {"num_steps": NUM_STEPS, "losses": {}, "tested": {}}
    for name, mistake in names["mistakes"].items():
        trained = launch(names["train_on_mesh"], batches, torch.float32, **mistake, world_size=4, timeout=1200)
        losses, weights = trained[0]
        values["losses"][name] = [round(loss, 4) for loss in losses.tolist()]
        values["tested"][name] = test(names, weights)
    path = keeping.save("positions", values, "python -m tools.record.positions")
    print("kept in", path.relative_to(keeping.ROOT))


def test(names, weights):
    """The mean loss of the notebook's model with `weights`, in one process, on text it was not trained on."""
    model, _ = names["make_model"](torch.float32)
    model.load_state_dict(weights)
    x, y = load_text(train=False).windows(NUM_TESTED, names["LENGTH"])
    with torch.no_grad():
        return round(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item(), 4)


def definitions():
    """Return what the notebook defines: the model, the training, the mistakes."""
    return notebooks.definitions(NOTEBOOK, assigned=("text", "local", "mistakes"))


if __name__ == "__main__":
    main()
