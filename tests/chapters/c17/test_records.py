"""Chapter 17's record is of its own networks, and carries what the chapter says about longer training."""

import statistics

import torch

from course_utils import recorded
from course_utils.chapters.c17_experts.ranking import rank_test
from course_utils.parallel import experts
from tools.record import experts as recording

NAMES, VALUES = recording.definitions(), recorded.latest("experts").values
DENSE, PLAIN, BALANCED = NAMES["WAYS"]


def losses(way, update):
    return [tested[str(update)] for tested in VALUES["test_losses"][way]]


def test_every_way_has_all_seeds_and_the_updates_that_the_chapter_draws():
    for way in NAMES["WAYS"]:
        assert len(VALUES["test_losses"][way]) == recording.NUM_SEEDS
        assert all(sorted(map(int, each)) == list(range(50, 1201, 50)) for each in VALUES["test_losses"][way])
    assert VALUES["num_updates"] == recording.NUM_UPDATES == 1200


def test_experts_end_below_the_dense_network_and_begin_like_it():
    for way in (PLAIN, BALANCED):
        assert statistics.median(losses(way, 1200)) < statistics.median(losses(DENSE, 1200))
        assert rank_test(losses(way, 1200), losses(DENSE, 1200)) < 0.01
        assert rank_test(losses(way, 150), losses(DENSE, 150)) > 0.1


def test_the_balance_loss_evens_out_the_visits_and_its_effect_on_the_test_loss_is_unclear():
    assert rank_test(VALUES["busiest"][BALANCED], VALUES["busiest"][PLAIN]) < 0.01
    assert max(VALUES["busiest"][BALANCED]) < min(VALUES["busiest"][PLAIN])
    assert rank_test(losses(BALANCED, 1150), losses(PLAIN, 1150)) > 0.01


def test_a_token_does_the_same_work_but_for_the_router(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 1)
    dense, sparse = (NAMES["make_model"](way, 0, None) for way in (DENSE, PLAIN))
    (layer,) = experts.expert_layers(sparse)
    of_mlp = sum(p.numel() for p in dense.blocks[0].mlp.parameters())
    assert [sum(p.numel() for p in each.parameters()) for each in layer.experts.values()] == 8 * [of_mlp]
    assert layer.k == 1 and round(100 * layer.router.weight.numel() / (2 * 32 * 128)) == 3
