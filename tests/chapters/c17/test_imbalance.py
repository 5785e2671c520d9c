"""Uneven steps: the busiest rank's visits follow the share, and the bytes that each rank sends in a step do not."""

import pytest
import torch

from course_utils import launch
from course_utils.chapters.c17_experts import imbalance
from course_utils.chapters.c17_experts.sent import Sent
from course_utils.parallel import experts

SHARES = (0.5, 0.75, 1.0)


def visit(share):
    x = torch.ones(8, 3, requires_grad=True)
    routing = imbalance.routing_of(share, 8)
    with Sent() as sent:
        rows, journey = experts.dispatch(x, routing)
        experts.combine(rows, routing, journey).sum().backward()
    return len(rows), sum(sent.all_to_alls)


def visit_and_time():
    timed, alone = imbalance.time_shares(SHARES, rounds=2)
    assert list(alone) == [SHARES[0], SHARES[-1]]
    return [visit(share) for share in SHARES], {share: len(timing.seconds) for share, timing in timed.items()}


def test_only_the_division_of_the_visits_changes():
    (first, timed), (second, _) = launch(visit_and_time, world_size=2, backend="gloo")
    assert [rows for rows, _ in first] == [8, 12, 16] and [rows for rows, _ in second] == [8, 4, 0]
    assert len({sent for _, sent in first + second}) == 1
    assert timed == dict.fromkeys(SHARES, 2)


@pytest.mark.parametrize("share, visits", [(0.5, [4, 4]), (0.875, [7, 1]), (1.0, [8, 0])])
def test_a_share_of_the_tokens_visits_expert_0(share, visits):
    routing = imbalance.routing_of(share, 8)
    assert torch.bincount(routing.experts.flatten(), minlength=2).tolist() == visits and routing.kept.all()
