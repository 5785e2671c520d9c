"""Tune and compare what chapter 14 reads from its record: `python -m tools.record.asynchrony`.

Network, servers, workers and paces are the notebook's own. Each way of training is first tuned for itself: rate and
momentum are searched with seeds that the comparison does not use. Every seed's test loss after RUN_S seconds of
training goes to data/recorded/<machine>/asynchrony.json. It takes seven minutes on two quiet cores, and needs them:
the loss depends on how many steps fit into that time.
"""

from itertools import product
from statistics import mean

from course_utils.parallel import parameter_server as ps
from tools import notebooks
from tools.record import keeping

NOTEBOOK = notebooks.NOTEBOOKS / "14_parameter_servers.ipynb"
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of a step in the end: the rate divided by 1 − momentum
MOMENTA = (0.0, 0.9)
SEARCH_SEEDS, SEEDS = (1000, 1001), tuple(range(8))
DIVERGED = 100.0  # stands for every larger loss
WAYS = {  # {pace: {way: (rule, number of workers)}}; with "one_always", worker 4 is the slow one, and 3 leave it out
    "one_always": {
        "one worker": (ps.Asynchronous(), 1),
        "synchronous": (ps.Synchronous(), 4),
        "synchronous, 3 workers": (ps.Synchronous(), 3),
        "bounded delay 1": (ps.BoundedDelay(1), 4),
        "bounded delay 4": (ps.BoundedDelay(4), 4),
        "bounded delay 16": (ps.BoundedDelay(16), 4),
        "asynchronous": (ps.Asynchronous(), 4),
        "asynchronous, 3 workers": (ps.Asynchronous(), 3),
        "asynchronous, scaled": (ps.Scaled(), 4),
    },
    "nobody": {"synchronous": (ps.Synchronous(), 4), "asynchronous": (ps.Asynchronous(), 4)},
}


def main():
    """Search, compare, and save both."""
    names = notebooks.definitions(NOTEBOOK, assigned=("digits", "test"))
    values = {key: names[key] for key in ("RUN_S", "FAST_S", "SLOW_S")}
    values |= {"search_seeds": list(SEARCH_SEEDS), "seeds": list(SEEDS), "found": {}}
    for pace, ways in WAYS.items():
        searched = search(names, pace, ways)
        values["found"][pace] = compare(names, pace, ways, searched)
    path = keeping.save("asynchrony", values, "python -m tools.record.asynchrony")
    print("kept in", path.relative_to(keeping.ROOT))


def search(names, pace, ways):
    """Return {way: [[rate, momentum, test losses of the search's seeds]]}."""
    searched = {way: [] for way in ways}
    for momentum, length in product(MOMENTA, LENGTHS):
        lr = round(length * (1 - momentum), 6)
        for way, (rule, num_workers) in ways.items():
            losses, _ = train(names, pace, rule, num_workers, SEARCH_SEEDS, lr, momentum)
            searched[way].append([lr, momentum, losses])
    return searched


def compare(names, pace, ways, searched):
    """Train each way at the setting with the lowest mean loss of its search, with other seeds, in rounds over ways."""
    best = {way: min(settings, key=lambda one: mean(one[2]))[:2] for way, settings in searched.items()}
    found = {
        way: {"lr": lr, "momentum": momentum, "losses": [], "steps_per_s": [], "searched": searched[way]}
        for way, (lr, momentum) in best.items()
    }
    for seed in SEEDS:
        for way, (rule, num_workers) in ways.items():
            losses, rates = train(names, pace, rule, num_workers, [seed], *best[way])
            found[way]["losses"] += losses
            found[way]["steps_per_s"] += rates
    return found


def train(names, pace, rule, num_workers, seeds, lr, momentum):
    """Return lists of the test loss after RUN_S, and of the gradients used per second, one for each seed."""
    runs = names["race_all"](names[pace], {"": rule}, seeds, num_workers, lr=lr, momentum=momentum)[""]
    losses = [round(loss, 4) if loss < DIVERGED else DIVERGED for loss in names["final_losses"](runs)]  # also nan
    return losses, [round(rate, 1) for rate in names["rates"](runs)]


if __name__ == "__main__":
    main()
