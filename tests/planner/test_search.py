"""The search tries what fits, in the order of speed, and says why nothing does."""

import pytest

from course_utils.planner import Cluster, Method, plan, presets, transformer
from course_utils.planner.search import FREE, best

EIGHT = presets.NETWORKS["llama-3-8b"]()


def test_the_fastest_come_first_and_leave_memory_free():
    cluster = presets.cluster("64xA100-80")
    found = best(EIGHT, cluster, 1024)
    steps = [each.plan.step.value for each in found]
    assert len(found) == 10 and steps == sorted(steps)
    assert all(each.plan.peak.value <= (1 - FREE) * cluster.gpu.memory for each in found)
    assert all(each.plan.method.world_size == 64 for each in found)
    assert len({each.plan.method for each in found}) == 10


def test_no_method_of_a_few_tried_by_hand_is_faster():
    cluster = presets.cluster("64xA100-80")
    fastest = best(EIGHT, cluster, 1024)[0].plan.step.value
    for method in (
        Method(64, shard="full", micro_batch=1), Method(64, shard="full", checkpointing="full", micro_batch=4),
        Method(8, 8, sequence_parallel=True, shard="optimizer", micro_batch=4), Method(16, 2, 2, shard="optimizer"),
    ):  # fmt: skip
        said = plan(EIGHT, cluster, method, 1024)
        assert said.step.value >= fastest or said.peak.value > (1 - FREE) * cluster.gpu.memory


def test_what_limits_a_plan_is_its_largest_share():
    slow = Cluster("A100-80", 8, between=1e9, nodes=8)
    found = best(transformer(2048, 24, 16, 2048, 51200), slow, 64)
    assert max(found, key=lambda each: each.share).limit == "messages" and all(0 < each.share < 1 for each in found)


def test_long_sequences_are_shared_by_ranks():
    long = presets.NETWORKS["llama-3-8b"](sequence=262144)
    found = best(long, presets.cluster("32xH100"), 4)
    assert found[0].plan.method.context > 1
    assert all(each.plan.method.context == 1 for each in best(EIGHT, presets.cluster("8xH100"), 64))


def test_a_thousand_gpus_have_more_than_one_way():
    methods = [each.plan.method for each in best(presets.NETWORKS["gpt-175b"](), presets.cluster("1024xA100-80"), 1536)]
    assert len({(method.tensor, method.pipeline) for method in methods}) > 2


@pytest.mark.parametrize("batch, words", [(8, "take more GPUs"), (7, "with a batch of 7")])
def test_nothing_that_fits_is_refused_with_what_is_needed(batch, words):
    with pytest.raises(ValueError, match=words):
        best(presets.NETWORKS["llama-3-405b"](), presets.cluster("8xH100"), batch)
