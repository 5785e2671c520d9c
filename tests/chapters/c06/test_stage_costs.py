"""What the stages of a network cost, held against one device, and against what can be counted by hand."""

import pytest
import torch
from torch import nn

from course_utils.chapters.c06_splitting_a_model_by_layers import stage_costs
from course_utils.parallel import pipeline


def make_stages():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 3)]


def make_batch():
    return torch.ones(8, 4), torch.zeros(8, dtype=torch.long)


def test_two_devices_hold_the_cut_twice():
    stages, cpu = make_stages(), torch.device("cpu")
    halves = stage_costs.held_bytes(stages, [cpu, cpu], *make_batch())
    alone = stage_costs.held_bytes([nn.Sequential(*make_stages())], [cpu], *make_batch())["device 0"]
    assert list(halves) == ["device 0", "device 1"] and halves["device 0"]["weights"] == 4 * (4 * 6 + 6)
    for part, num_bytes in alone.items():
        more = 8 * 6 * 4 if part == "activations" else 0
        assert sum(half[part] for half in halves.values()) == num_bytes + more


def test_the_table_adds_up_its_rows():
    text = stage_costs.table({"here": {"one": 1000, "two": 2}}, "bytes")
    assert [line.split()[-1] for line in text.splitlines()] == ["here", "1,000", "2", "1,002"]


def test_what_crosses_is_seen_both_ways():
    first, second = make_stages()
    x, _ = make_batch()
    crossed = stage_costs.crossings(first, lambda: second(first(x)).sum().backward())
    assert crossed == [("forward", (8, 6), 192), ("backward", (8, 6), 192)]
    assert not first._forward_hooks


def test_every_stage_and_size_is_timed():
    found = stage_costs.measure(make_stages(), *make_batch(), sizes=[8, 2], rounds=3)
    assert list(found) == [8, 2]
    for costs in found.values():
        assert list(costs) == ["forward_s", "backward_s", "input_s", "weight_s"]
        assert all(len(each) == 2 and min(each) > 0 for each in costs.values())
        pipeline.place(pipeline.zb_h1(2, 4), **costs)


def test_both_parts_of_the_backward_pass_are_the_whole():
    stages, (x, y) = [*make_stages(), nn.Flatten()], make_batch()
    stage_costs.time_passes(stages, x, y)
    whole = [p.grad.clone() for stage in stages for p in stage.parameters()]
    stage_costs.time_split(stages, x, y)
    twice = [p.grad for stage in stages for p in stage.parameters()]
    torch.testing.assert_close(twice, [2 * gradient for gradient in whole])


def test_an_account_adds_up_over_the_stages():
    costs = {2: {"forward_s": [1.0, 2.0], "backward_s": [3.0, 0.5], "input_s": [9.0, 9.0], "weight_s": [9.0, 9.0]}}
    found = stage_costs.account(costs)["2 samples"]
    assert found == {"forward": 3000, "backward": 3500}
    model = nn.Sequential(*make_stages())
    assert stage_costs.adding_ms(model, repeats=3) > 0 and all(p.grad is None for p in model.parameters())


def test_a_call_has_returned_when_its_work_is_done():
    returned, done = stage_costs.call_ms(lambda: torch.ones(10).sum(), repeats=3)
    assert 0 < returned <= done


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [(4, 8), (4, 2), (1, 3), (3, 3), (5, 1)])
def test_phases_are_the_schedule_in_three_parts(num_stages, num_micro_batches):
    schedule = pipeline.one_forward_one_backward(num_stages, num_micro_batches)
    for stage, (warm_up, steady, cool_down) in enumerate(pipeline.phases_1f1b(schedule)):
        assert [*warm_up, *steady, *cool_down] == [task for task in schedule if task.stage == stage]
        assert {task.phase for task in warm_up} <= {"forward"} and {task.phase for task in cool_down} <= {"backward"}
        assert [task.phase for task in steady] == ["forward", "backward"] * (len(steady) // 2)
        assert len(warm_up) == len(cool_down) == min(num_stages - 1 - stage, num_micro_batches)


def test_schedules_in_words():
    schedule = pipeline.one_forward_one_backward(4, 8)
    assert pipeline.summary(schedule) == "33 units, 27% idle, held [4, 3, 2, 1]"
    assert pipeline.words(pipeline.gpipe(1, 2)) == "F0 F1 B1 B0"
    assert pipeline.words([]) == "–"
