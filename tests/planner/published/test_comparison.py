"""The planner against whole published tables: what its documents say of its errors is so, for every kind of row."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from course_utils.planner import State, published
from course_utils.planner.footprint import in_flight, kept_bytes
from course_utils.planner.published import BOUND, INPUT, PREDICTION, SIBLING, Row, language_models, megatron, summary

ROOT = Path(__file__).resolve().parents[3]
TABLES = Path(published.__file__).parent


@pytest.fixture(scope="module")
def rows():
    return list(published.rows())


def of(rows, *kinds):
    return [row for row in rows if row.kind in kinds]


def test_predictions_are_as_near_as_the_guide_says(rows):
    found = summary(of(rows, PREDICTION))
    assert found.number >= 350 and found.median <= 0.08 and found.within_25 >= 0.92, found
    said = " ".join((ROOT / "docs" / "clusters.md").read_text(encoding="utf-8").split())
    assert f"{found.number} published speeds" in said
    assert f"median error is {100 * found.median:.0f} %, {100 * found.within_25:.0f} % of them lie within 25 %" in said
    assert f"the worst is off by {100 * abs(found.worst):.0f} %" in said
    others = summary(row for row in of(rows, PREDICTION) if "ZeRO-3" not in row.source)
    assert found.number - others.number == 6 and f"the worst is off by {100 * abs(others.worst):.0f} %" in said


def test_on_gpus_that_nothing_was_fitted_to_the_planner_is_as_near_as_the_guide_says(rows):
    said = " ".join((ROOT / "docs" / "clusters.md").read_text(encoding="utf-8").split())
    for names in ("B200 and GB200", "GB300"):
        of_gpu = [row for row in rows if row.plan and row.plan.cluster.gpu.name in names.split(" and ")]
        assert {row.kind for row in of_gpu} == {PREDICTION}
        found = summary(of_gpu)
        median, worst = 100 * found.median, 100 * abs(found.worst)
        assert f"on the {found.number} of {names} the median error is {median:.0f} %, the worst {worst:.0f} %" in said


def test_mixtures_of_experts_are_as_near_as_the_guide_says(rows):
    said = " ".join((ROOT / "docs" / "clusters.md").read_text(encoding="utf-8").split())
    found = [row for row in rows if row.plan and row.plan.network.experts]
    worst = 100 * max(abs(row.error) for row in found)
    assert f"on {len(found)} rows, to which nothing was fitted either, it is off by at most {worst:.0f} %" in said
    assert {row.kind for row in found} == {PREDICTION}


def test_small_models_on_one_node_are_predicted(rows):
    found = [row for row in rows if row.source == "vTrain, one node" and row.kind == PREDICTION]
    assert summary(found).median <= 0.15 and sum(abs(row.error) <= 0.3 for row in found) >= 0.8 * len(found)


def test_a_row_is_an_input_if_its_table_says_what_was_fitted_to_it(rows):
    kinds = Counter(row.kind for row in rows)
    assert kinds[INPUT] <= 20 and kinds[BOUND] == 4 and kinds[SIBLING] > 0
    for name, source in (
        ("llm_foundry.csv", "llm-foundry"), ("bigscience.csv", "BigScience, 176 B prequel"), ("nemo.csv", "NeMo"),
        ("narayanan.csv", "Narayanan"),
    ):  # fmt: skip
        marked = [row for row in csv.DictReader(open_table(name)) if row["input"]]
        assert len(marked) == sum(row.source.startswith(source) for row in of(rows, INPUT)) > 0
    assert max(abs(row.error) for row in of(rows, INPUT)) <= 0.15


def open_table(name):
    return [line for line in (TABLES / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("name, source", [("llm_foundry.csv", {"llm-foundry"}), (
    "bigscience.csv", {"BigScience, 176 B prequel"}), ("vtrain.csv", {"vTrain, one node", "vTrain, several nodes"}),
    ("nemo.csv", {f"NeMo, {gpu}" for gpu in ("H100", "B200", "GB200", "GB300")}),
    ("narayanan.csv", {"Narayanan and others, 2021", "Narayanan and others, ZeRO-3"}),
])  # fmt: skip
def test_every_line_of_a_table_is_a_row(rows, name, source):
    lines = [line for line in csv.DictReader(open_table(name)) if line.get("gigabytes") != "OOM"]
    assert len(lines) == sum(row.source in source for row in rows)


def test_siblings_share_network_and_gpu_with_an_input(rows):
    def alike_by(row):  # NeMo's tables are one source
        source = "NeMo" if row.source.startswith("NeMo") else row.source
        return source, row.plan.network, row.plan.cluster.gpu.name

    fitted = {alike_by(row) for row in of(rows, INPUT)}
    alike = [row for row in of(rows, PREDICTION, SIBLING) if row.plan and row.source not in ("vTrain, one node",)]
    for row in alike:
        assert (alike_by(row) in fitted) == (row.kind == SIBLING), row.what


def test_an_error_is_of_speed_whatever_the_unit():
    assert Row("", "", "s a step", 2.0, 1.0).error == Row("", "", "tokens/s a GPU", 1.0, 2.0).error == 1.0
    assert Row("", "", "GiB", 10.0, 8.0).error == pytest.approx(-0.2)


def test_a_summary_counts_by_size_and_keeps_the_worst_sign():
    found = summary(Row("", "", "GiB", 100.0, 100.0 + off) for off in (1, -2, 3, -4, -50))
    assert (found.number, found.median, found.worst) == (5, pytest.approx(0.03), -0.5) and found.within_25 == 0.8
    with pytest.raises(ValueError, match="no rows"):
        summary([])


def test_memory_is_predicted():
    held = list(published.memories())
    reserved, seen = (summary(row for row in held if row.source == source) for source in ("torchtitan", "BigScience"))
    assert reserved.number == 10 and reserved.median <= 0.06 and abs(reserved.worst) <= 0.15, reserved
    assert seen.number == 70 and seen.median <= 0.1 and seen.nine_tenths <= 0.2, seen
    said = " ".join((ROOT / "docs" / "clusters.md").read_text(encoding="utf-8").split())
    assert f"The memory of {seen.number} jobs, as nvidia-smi showed it, was off by {100 * seen.median:.0f} %" in said


def test_what_ran_out_of_memory_is_planned_not_to_fit():
    plans = list(published.out_of_memory())
    assert len(plans) == 6 and not any(plan.fits for plan in plans)


# Korthikanti and others (2022), figures 1 (GiB) and 7 (%), as calculon's llm/validation.py has them: activations of B
# parameters without recomputation, and what dividing the sequence, selective recomputation, both, or full recomputation
# leaves of them.
ACTIVATIONS = (
    (22, 59.25, (66.84, 49.42, 16.18, 7.64)), (175, 66.84375, (62.04, 56.53, 18.49, 8.71)),
    (530, 114.0234375, (58.31, 62.04, 20.27, 9.42)), (1000, 131.25, (58.31, 62.04, 20.27, 9.42)),
)  # fmt: skip
WAYS = (("none", True), ("selective", False), ("selective", True), ("full", False))


def activations(plan):
    """GiB of a first stage's activations, without those of the embedding."""
    blocks = [layer for layer in plan.network.layers if layer.is_block]
    at_once = in_flight(0, plan.method, plan.batch // plan.method.micro_batch)
    each = len(blocks) / plan.method.pipeline * plan.method.micro_batch * kept_bytes(blocks[0], plan.method)
    return at_once * each / 2**30


@pytest.mark.parametrize("job, found", list(zip(megatron.KORTHIKANTI, ACTIVATIONS)), ids=["22B", "175B", "530B", "1T"])
def test_activations_are_those_of_korthikantis_figures(job, found):
    billions, gib, percents = found
    assert job[0] == billions
    whole = activations(megatron.of_korthikanti(job, "none", False))
    assert whole == pytest.approx(gib, rel=1e-6)
    for (checkpointing, is_divided), percent in zip(WAYS, percents):
        left = activations(megatron.of_korthikanti(job, checkpointing, is_divided))
        assert 100 * left / whole == pytest.approx(percent, abs=0.15)


@pytest.mark.parametrize("job", megatron.KORTHIKANTI, ids=["22B", "175B", "530B", "1T"])
def test_an_a100_holds_the_models_only_with_both_of_korthikantis_methods_or_full_recomputation(job):
    for checkpointing, is_divided in (("none", False), *WAYS):
        plan = megatron.of_korthikanti(job, checkpointing, is_divided, state=State(2, 4, 12, 2))  # 18 B, as in figure 1
        is_enough = (checkpointing, is_divided) in WAYS[2:]
        assert (plan.memory.value <= plan.cluster.gpu.memory) == is_enough


def test_what_ran_is_planned_to_fit(rows):
    ran = [row.plan for row in rows if row.source in ("llm-foundry", "fms-fsdp")]
    assert len(ran) > 200 and all(plan.reserved <= plan.cluster.gpu.memory for plan in ran)
    assert sum(plan.fits for plan in ran) > 0.95 * len(ran)


def test_rows_that_are_missed_say_why():
    assert all(row.reason for row in published.misses())


def test_a_fitted_constant_matters(monkeypatch, rows):
    """With products as fast as before any was fitted, the predictions are no longer what they are."""
    monkeypatch.setattr("course_utils.planner.collective_costs.INTERFERENCE", 0.0)
    changed = [row for row in language_models.llm_foundry() if row.kind != BOUND]
    before = {row.what: row.error for row in rows if row.source == "llm-foundry"}
    assert sum(abs(row.error - before[row.what]) > 0.02 for row in changed) > 20
