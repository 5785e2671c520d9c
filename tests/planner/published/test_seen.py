"""A plan is compared with published jobs that are like it, and what none of them has is said."""

from dataclasses import replace

import pytest

from course_utils.planner import Cluster, Method, plan, transformer
from course_utils.planner.methods import CHECKPOINTING
from course_utils.planner.presets import NETWORKS
from course_utils.planner.published import seen

SEVEN = NETWORKS["mpt-7b"]()


def test_a_plan_like_many_rows_has_their_errors():
    found = seen(plan(SEVEN, Cluster("A100-80"), Method(8, shard="full", micro_batch=4), 64))
    assert (
        len(found.rows) >= 4 and not found.unlike and {row.source for row in found.rows} == {"llm-foundry", "fms-fsdp"}
    )
    assert all(row.plan.cluster.gpu.name == "A100-80" and row.plan.method.divides("full") for row in found.rows)
    assert f"On {len(found.rows)} published rows like this plan (llm-foundry, fms-fsdp)" in str(found)


def test_what_no_row_has_is_named():
    found = seen(plan(SEVEN, Cluster("A100-40"), Method(8, tensor=8, micro_batch=4), 64))
    assert found.rows and "has tensor parallelism" in found.unlike and "tensor parallelism" in str(found)


def test_an_unknown_gpu_and_a_counted_network_have_no_error():
    gpu = replace(Cluster("A100-80").gpu, name="A999")
    strange = seen(plan(SEVEN, Cluster(gpu), Method(8), 8))
    counted = seen(plan(replace(SEVEN, heads=None), Cluster("A100-80"), Method(8), 8))
    for found, words in ((strange, "A999"), (counted, "counted from its module")):
        assert not found.rows and found.summary is None and words in str(found) and "not known" in str(found)


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_every_way_to_recompute_has_words(checkpointing):
    method = Method(8, shard="full", checkpointing=checkpointing, tensor=8, sequence_parallel=True)
    said = str(seen(plan(SEVEN, Cluster("A100-40"), method, 64)))
    assert said.startswith("On ") and ("recomput" in said) == (checkpointing in ("selective", "operations"))


def test_experts_are_said():
    method = Method(8, shard="optimizer", expert=8)
    found = seen(plan(NETWORKS["mixtral-8x7b"](), Cluster("A100-80"), method, 64))
    assert "has experts" in found.unlike


def test_a_network_of_another_size_is_not_alike():
    tiny = transformer(64, 6, 4, 32, 100)
    assert any("billion parameters" in each for each in seen(plan(tiny, Cluster("A100-80"), Method(8), 8)).unlike)
