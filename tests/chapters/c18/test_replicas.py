"""Replicas of going_on.py of which some are killed and one comes later: what is told of it, and what came of it."""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F

from course_utils.chapters.c18_a_long_run.replicas import run_replicas
from course_utils.data import load_images
from tools import notebooks

NUM_STEPS, BATCH_SIZE = 60, 240  # of the program


@pytest.fixture(scope="module")
def run():
    return run_replicas(notebooks.NOTEBOOKS / "programs/going_on.py", kills={0: 5, 2: 9}, joins={4: 12}, timeout=200)


def alone(shares):
    """The program's parameters after the same steps in one process, each with the samples that count."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            *(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
            *(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
            *(torch.nn.Flatten(), torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)),
        )
    finally:
        torch.set_default_dtype(usual)
    optimizer, digits = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), load_images("digits")
    for step, (divided, counted) in enumerate(shares):
        parts = (torch.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE) % len(digits)).tensor_split(len(divided))
        used = torch.cat([parts[divided.index(replica)] for replica in counted])
        optimizer.zero_grad()
        F.cross_entropy(model(digits.images[used].double()), digits.labels[used]).backward()
        optimizer.step()
    return dict(model.state_dict())


def test_the_survivors_agree_bit_for_bit_and_with_one_process(run):
    shares = run.timeline.shares()
    assert len(shares) == NUM_STEPS and shares[0] == ((0, 1, 2, 3),) * 2 and shares[-1] == ((1, 3, 4),) * 2
    assert run.weights.keys() == {1, 3, 4}
    for weights in run.weights.values():
        torch.testing.assert_close(dict(weights), dict(run.weights[1]), rtol=0, atol=0)
    torch.testing.assert_close(dict(run.weights[1]), alone(shares), rtol=1e-9, atol=1e-12)


def test_every_step_of_every_replica_is_told(run):
    steps = [each for each in run.timeline.tries if each.stage == "step"]
    for replica in range(5):
        own = [each for each in run.timeline.tries if each.replica == replica]
        for earlier, later in itertools.pairwise(own):
            assert earlier.end_s == later.begin_s, (earlier, later)
        for each in own:
            assert each.begin_s <= (each.voted_s or each.end_s) <= each.end_s and replica in each.members
    for replica in (1, 3):  # those who stay
        counting = [each.step for each in steps if each.replica == replica and each.committed]
        printed = [line for line in run.lines if line.startswith(f"replica {replica}, step ")]
        assert counting == list(range(NUM_STEPS)) == [int(re.findall(r"step (\d+):", line)[0]) for line in printed]
    (group, state) = [each for each in run.timeline.tries if each.replica == 4 and each.stage != "step"]
    assert (group.stage, state.stage) == ("group", "state") and run.timeline.joined_s[4] < group.begin_s
    assert state.members == (1, 3, 4)


def test_a_death_is_told_with_what_came_after(run):
    for death, replica, step in zip(run.timeline.deaths, (0, 2), (5, 9), strict=True):
        assert death.replica == replica and death.next_step >= step
        assert death.killed_s < death.noticed_s < death.next_step_s
        (last,) = [each for each in run.timeline.tries if each.replica == replica][-1:]
        assert last.step >= step - 1 and last.end_s <= death.noticed_s
        after = [each for each in run.timeline.tries if each.begin_s > death.noticed_s]
        assert after and not any(replica in each.members for each in after)


def test_what_fails_is_told_with_what_was_printed_last(tmp_path):
    (program := tmp_path / "program.py").write_text("raise OSError('on purpose')")
    with pytest.raises(RuntimeError, match="(?s)ended with exit code 1:.*OSError: on purpose"):
        run_replicas(program)
    with pytest.raises(ValueError, match="replicas .7., which"):
        run_replicas(program, kills={7: 1, 4: 2}, joins={4: 1})
    with pytest.raises(TimeoutError, match="still run after 0 s"):
        run_replicas(program, timeout=0)
