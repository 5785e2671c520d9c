"""Replicas die at any point of a step, and others come: all that are there agree, bit for bit, and lose nothing else.

All deaths of a module are in one training, of 4 replicas; whoever dies is replaced.
"""

import json
import random

import pytest
import torch

from course_utils.parallel.membership import Coordinator, Member
from course_utils.processes.starter import Starter
from tests.helpers import dying_replica
from tests.helpers.kernel import LIMIT_S, wait_until

IN_MID_STEP = ["compute", "bucket 0", "bucket 1", "bucket 1 later", "bucket 2", "bucket 2 later", "before the vote"]
POINTS = [
    *IN_MID_STEP,
    *IN_MID_STEP,
    "after the vote",
    "after the vote",
    "after the vote",
    "outcome",
    "outcome",
    "outcome",
]
TOGETHER = [
    ["compute", "compute"],
    ["bucket 0", "bucket 2"],
    ["bucket 1", "after the vote"],
    ["before the vote", "group"],  # the second dies while those left make their group
    ["compute", "published"],
    ["bucket 1", "made"],
    ["compute", "state"],  # … while it hands the parameters to the one that replaces the first
    ["outcome", "state sent"],
    ["compute", "compute", "bucket 0"],  # one is left
]
ARRIVING = ["arriving group", "arriving published", "arriving state", "arriving state sent"]


def make_plan():
    """A list of deaths that come together, {number: point}; and how many replicas it takes."""
    choice, alive, following, plan = random.Random(0), [0, 1, 2, 3], 4, []
    singly = [[point] for point in POINTS] + TOGETHER
    choice.shuffle(singly)
    for at, points in enumerate(singly):
        # Sometimes the first member, which hands on the parameters; or else whoever.
        victims = alive[: len(points)] if at % 3 == 0 else choice.sample(alive, len(points))
        if "state" in " ".join(points):
            victims = [alive[-1], alive[0]]
        plan.append(dict(zip(map(str, victims), points, strict=True)))
        alive = [each for each in alive if each not in victims]
        if at % 5 == 0 and ARRIVING[at // 5 :]:
            plan.append({str(following): ARRIVING[at // 5]})
            following += 1
        alive += range(following, following + len(victims))
        following += len(victims)
    return plan, following


def told(lines):
    return [json.loads(line) for line in lines if line.startswith('{"died"')]  # gloo prints lines of its own


class Training:
    """What came of the training with all those deaths."""

    def __init__(self, folder):
        self.plan, total = make_plan()
        with Coordinator(4) as coordinator, Starter(dying_replica.__file__) as starter:

            def start(number):
                file = str(folder / f"{number}.pt")
                starter.start(number, coordinator.address, str(number), file, json.dumps(self.plan))

            for number in range(4):
                start(number)
            started = 4
            while starter.running:
                for number, code in starter.wait(LIMIT_S) or [(None, "nobody has died")]:
                    if code not in (0, -9):
                        raise AssertionError(
                            f"replica {number}, {code}:\n{starter.last_lines()}\n{coordinator.events[-9:]}"
                        )
                    if code and started < total:
                        start(started)
                        started += 1
            wait_until(lambda: coordinator.members == [], "the coordinator has seen them leave")
            self.deaths = {each["died"]: (each["step"], each["time_s"]) for each in told(starter.lines())}
            self.events = coordinator.events
        survivors = set(range(total)) - {int(number) for deaths in self.plan for number in deaths}
        self.last = [torch.load(folder / f"{number}.pt") for number in sorted(survivors)]
        decided = [event for event in self.events if event["what"] == "decided" and event["stage"] == "step"]
        self.votes = {}  # of each step: (members, whether it counts) of each vote
        for event in decided:
            self.votes.setdefault(event["step"], []).append((event["members"], event["ok"]))


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return Training(tmp_path_factory.mktemp("deaths"))


def test_each_replica_dies_where_the_plan_says(training):
    assert training.deaths.keys() == {int(number) for deaths in training.plan for number in deaths}
    assert len(training.deaths) >= 40


def test_all_that_are_left_have_the_same_parameters_and_momentum_and_step_bit_for_bit(training):
    first, *others = training.last
    assert len(others) == 3
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


def test_they_are_those_of_one_process_without_the_samples_of_the_dead(training):
    x, (model, optimizer) = dying_replica.samples(), dying_replica.make_model()
    for step, votes in sorted(training.votes.items()):
        (divided, _), (counted, _) = votes[0], votes[-1]
        shares = dying_replica.batch_of(step).tensor_split(len(divided))
        used = torch.cat([shares[divided.index(member)] for member in counted])
        dying_replica.apply(model, optimizer, dying_replica.gradient(model, x[used]))
    step, *last = training.last[0]
    momentum = [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
    expected = [*(parameter.detach() for parameter in model.parameters()), *({"momentum_buffer": m} for m in momentum)]
    torch.testing.assert_close(last, expected, rtol=1e-9, atol=1e-12)
    assert step == len(training.votes)


def test_every_step_counts_once_and_misses_only_who_died_in_it(training):
    assert sorted(training.votes) == list(range(len(training.votes)))
    for step, votes in training.votes.items():
        assert [ok for _, ok in votes] == [False] * (len(votes) - 1) + [True]
        for (before, _), (after, _) in zip(votes, votes[1:], strict=False):
            gone = set(before) - set(after)
            assert gone and gone <= training.deaths.keys() and set(after) < set(before), (step, votes)


def test_a_death_before_the_vote_leaves_its_samples_out_and_one_after_the_outcome_does_not(training):
    for deaths in training.plan:
        for number, point in deaths.items():
            step, _ = training.deaths[int(number)]
            tried, counted = ([int(number) in members for members, _ in training.votes[step]][at] for at in (0, -1))
            if point in IN_MID_STEP:
                assert tried and not counted, (number, point)
            elif point == "outcome":
                assert counted, (number, point)


@pytest.mark.alone
def test_the_others_next_step_ends_within_a_second(training):
    steps = [each["time_s"] for each in training.events if (each["what"], each.get("stage")) == ("decided", "step")]
    for number, (_, died_s) in training.deaths.items():
        if any(number in members for votes in training.votes.values() for members, _ in votes):  # it had arrived
            assert min(time_s for time_s in steps if time_s > died_s) - died_s < 1, number


def test_what_a_member_is_told():
    """All in this process: members of groups of one."""
    with Coordinator(1) as coordinator:
        with Member(coordinator.address, 0) as member:
            with pytest.raises(ValueError, match="there is a member 0 already"):
                Member(coordinator.address, 0)
            assert member.meet(5) == 5 and (member.members, member.rank, member.world_size) == ([0], 0, 1)
            total = torch.ones(3)
            assert member.all_reduce([total]) and member.commit(True) and total.tolist() == [1, 1, 1]
            # It fails though nobody dies: that is no death, and trying again is no help.
            assert not member.commit(False) and member.meet(5) == 5 and not member.commit(False)
            member.meet(5)
            with pytest.raises(RuntimeError, match="fail again and again"):
                member.commit(False)
        wait_until(lambda: not coordinator.members, "it has left")
        with Member(coordinator.address, 1) as late, pytest.raises(RuntimeError, match="from a checkpoint"):
            late.meet(0)
    with Coordinator(1) as coordinator:
        orphan = Member(coordinator.address, 0)
        orphan.meet(0)
    with pytest.raises(ConnectionError):
        orphan.commit(True)
