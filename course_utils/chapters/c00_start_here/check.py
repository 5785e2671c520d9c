"""Checks of chapter 00."""

from ...checks.expect import case, expect, expect_row, expect_whole, short
from ...checks.judge import run


def check_0_1(whoami):
    """`whoami()` runs in a worker and returns (rank, world_size)."""
    for world_size in (2, 3):
        with case(f"with {world_size} workers"):
            _judge_pairs(run(_call, whoami, world_size=world_size), world_size)
    return "2 workers and then 3 each told their own rank and how many they are."


def _call(whoami):
    return whoami()


def _judge_pairs(answers, world_size):
    expect(
        None not in answers,
        "a worker returned None: what a worker prints is shown, but only what it returns comes back",
    )
    for rank, answer in enumerate(answers):
        expect_row(answer, 2, f"what rank {rank} returned", of="rank and world_size")
        expect(
            not any(isinstance(number, str) for number in answer),
            f"rank {rank} returned {short(answer)}, with a text in it: the answer must be two whole numbers",
        )
    ranks, sizes = zip(*[[expect_whole(number, "a number that came back") for number in answer] for answer in answers])
    expect(set(ranks) != {world_size}, f"{answers} came back: which of the two numbers comes first?")
    expect(set(sizes) == {world_size}, f"the second numbers are {list(sizes)}: ask, do not assume how many there are")
    expect(len(set(ranks)) == world_size, f"the ranks that came back are {list(ranks)}: each worker must tell its own")
    expect(list(ranks) == list(range(world_size)), f"the ranks that came back are {list(ranks)}: ranks count from 0")
