"""Checks of chapter 00."""

from .wrong import Wrong, expect, run_answer


def check_0_1(whoami):
    """`whoami()` runs in a worker and returns (rank, world_size)."""
    for world_size in (2, 3):
        answers = run_answer(_call, whoami, world_size=world_size)
        if any(answer is None for answer in answers):
            raise Wrong("a worker returned None: what a worker prints is shown, but only what it returns comes back")
        for rank, answer in enumerate(answers):
            expect(
                isinstance(answer, (tuple, list)) and len(answer) == 2,
                f"rank {rank} returned {answer!r}, not a pair (rank, world_size)",
            )
            expect(
                all(type(number) is int for number in answer),
                f"rank {rank} returned {answer!r}: the environment holds texts, and the answer must be two whole numbers",
            )
        ranks, sizes = zip(*answers)
        if len(set(ranks)) == 1 and ranks[0] == world_size:
            raise Wrong(f"{world_size} workers returned {answers}: which of the two numbers comes first?")
        expect(
            set(sizes) == {world_size},
            f"{world_size} workers ran, but the second numbers are {list(sizes)}: ask, do not assume how many there are",
        )
        expect(
            len(set(ranks)) == world_size,
            f"the ranks that came back are {list(ranks)}: each worker must tell its own",
        )
        expect(list(ranks) == list(range(world_size)), f"the ranks that came back are {list(ranks)}: ranks count from 0")
    return "2 workers and then 3 each told their own rank and how many they are."


def _call(whoami):
    return whoami()
