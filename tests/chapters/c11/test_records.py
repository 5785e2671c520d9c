"""Chapter 11's records are those of its own network and recipes, and carry the ladder that the chapter rests on."""

import statistics

import numpy as np
import pytest

from course_utils import recorded
from tools.record import large_batches

NAMES = large_batches.definitions()
FIXED, LINEAR, WARM = large_batches.RUNGS


def record(name):
    (path,) = recorded.FOLDER.glob(f"*/{name}.json")
    return recorded.read(path).values


GRID, SEARCH = record("large_batches"), record("large_batches_search")


def errors(base, size, recipe):
    return GRID["errors"][base][str(size)][recipe]


def beats(ours, theirs):
    return statistics.median(ours) < statistics.median(theirs) and NAMES["rank_test"](ours, theirs) < 0.01


def test_every_rung_of_the_ladder_is_better_than_the_last_at_batch_512():
    fixed, linear, warm = (errors("CAUTIOUS", 512, recipe) for recipe in large_batches.RUNGS)
    assert beats(linear, fixed) and beats(warm, linear)


def test_warm_up_decides_from_the_bold_rate():
    fixed, linear, warm = (errors("BOLD", 256, recipe) for recipe in large_batches.RUNGS)
    assert beats(warm, linear) and beats(fixed, warm)


def test_at_1024_everything_breaks():
    assert min(statistics.median(found) for found in GRID["errors"]["CAUTIOUS"]["1024"].values()) > 20


def test_the_grid_has_the_settings_the_seeds_and_the_cases_of_the_tool():
    assert GRID["settings"] == SEARCH["settings"] == large_batches.settings(NAMES)
    cases = {base: {int(size): tuple(found) for size, found in sizes.items()} for base, sizes in GRID["errors"].items()}
    assert cases == large_batches.GRID
    assert set(large_batches.RUNGS + large_batches.DECAYS) == set(NAMES["RECIPES"])
    found = [seeds for sizes in GRID["errors"].values() for recipes in sizes.values() for seeds in recipes.values()]
    assert {len(seeds) for seeds in found} == {len(GRID["seeds"])} == {20}
    images = np.array(found) * len(NAMES["test"]) / 100
    assert np.abs(images - images.round()).max() < 0.01, "an error that no number of the test images gives"


def test_the_search_used_other_seeds_than_the_grid():
    assert not set(SEARCH["seeds"]) & set(GRID["seeds"])
    assert len(SEARCH["found"]) == np.prod([len(values) for values in large_batches.SEARCHED.values()])
    assert all(len(found) == len(SEARCH["seeds"]) for one in SEARCH["found"] for found in one["errors"].values())


def test_runs_of_the_record_are_what_the_notebook_trains():
    cases = {recipe: (512, NAMES["rates_of"](NAMES["CAUTIOUS"], 512, recipe)) for recipe in (FIXED, WARM)}
    for recipe, (error,) in NAMES["train_all"](cases, seeds=[0], timeout=60).items():
        # Another machine adds up in another order, and training makes more of that; another recipe is far off.
        assert abs(error - errors("CAUTIOUS", 512, recipe)[0]) < 5


def test_equal_runs_are_no_finding_and_distant_ones_are():
    assert NAMES["rank_test"]([1.0] * 10, [1.0] * 10) == 1
    assert NAMES["rank_test"](list(range(10)), list(range(10, 20))) < 0.001
    # Of 3 and 3 runs, 2 of the 20 ways to draw lie as far apart as 1, 2, 3 and 4, 5, 6.
    assert NAMES["rank_test"]([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("batch_size", [1438, 5000, 0, -1])
@pytest.mark.parametrize("recipe", NAMES["RECIPES"])
def test_rates_refuse_a_batch_that_the_data_do_not_hold(recipe, batch_size):
    with pytest.raises(ValueError, match=f"1437 images make no batch of {batch_size}: choose 1 to 1437"):
        NAMES["rates_of"](0.01, batch_size, recipe)


def test_the_largest_batch_is_allowed():
    assert len(NAMES["rates_of"](0.01, 1437, LINEAR)) == NAMES["NUM_EPOCHS"]
