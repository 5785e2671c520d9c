"""Times to be compared with one another, measured in rounds over all cases so that interference hits all alike."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .throughput import block_length, time_block


@dataclass(frozen=True)
class Rounds:
    """Measured times: `seconds` is {case: [seconds of a step, one per round]}."""

    seconds: dict[Any, list[float]]

    @property
    def ms(self) -> dict[Any, float]:
        """The milliseconds of the fastest round, {case: ms}: interference only adds time."""
        return {case: 1e3 * min(found) for case, found in self.seconds.items()}

    def ratios(self, pairs: Iterable[tuple[Any, Any]]) -> tuple[list[float], tuple[list[float], list[float]]]:
        """The ratio of times for each pair, first case over second: (ratios of `ms`, (least, most) over the rounds)."""
        found = []
        for first, second in pairs:
            middle = self.ms[first] / self.ms[second]
            by_round = [a / b for a, b in zip(self.seconds[first], self.seconds[second])]
            found.append((middle, min(middle, *by_round), max(middle, *by_round)))
        middles, lows, highs = map(list, zip(*found))
        return middles, (lows, highs)


def measure(steps: Mapping[Any, Callable[[], object]], num_rounds: int = 7, block_s: float = 0.02) -> Rounds:
    """Time {case: step} and return Rounds.

    In a round each case runs once, as a block of enough steps to fill `block_s`, at least one, with one GPU
    synchronisation at its end. An untimed round first finds the number of steps per block.
    """
    lengths = {case: block_length(step, block_s) for case, step in steps.items()}
    seconds: dict[Any, list[float]] = {case: [] for case in steps}
    for _ in range(num_rounds):
        for case, step in steps.items():
            seconds[case].append(time_block(step, lengths[case]))
    return Rounds(seconds)
