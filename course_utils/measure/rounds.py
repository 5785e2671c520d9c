"""Times that are to be compared with one another: taken in rounds over all cases, so that a slow
moment hits all alike.
"""

from dataclasses import dataclass

from .throughput import block_length, time_block


@dataclass(frozen=True)
class Rounds:
    """`seconds` is {case: [the seconds of a step, one for each round]}."""

    seconds: dict

    @property
    def ms(self):
        """{case: milliseconds} of the quickest round: whatever interferes only adds time."""
        return {case: 1e3 * min(found) for case, found in self.seconds.items()}

    def ratios(self, pairs):
        """How many times as long the first case of each pair took: (ratios of `ms`, (least, most) over the rounds)."""
        found = []
        for first, second in pairs:
            middle = self.ms[first] / self.ms[second]
            by_round = [a / b for a, b in zip(self.seconds[first], self.seconds[second])]
            found.append((middle, min(middle, *by_round), max(middle, *by_round)))
        middles, lows, highs = map(list, zip(*found))
        return middles, (lows, highs)


def measure(steps, num_rounds=7, block_s=0.02):
    """Time {case: step}, and return Rounds.

    In a round each case runs once, as a block of as many steps as fill `block_s`, at least one, with one wait for the
    GPUs at its end. A round that does not count comes before, and tells how many steps a block has.
    """
    lengths = {case: block_length(step, block_s) for case, step in steps.items()}
    seconds = {case: [] for case in steps}
    for _ in range(num_rounds):
        for case, step in steps.items():
            seconds[case].append(time_block(step, lengths[case]))
    return Rounds(seconds)
