"""The outcome of a launch, in the notebook."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .watch import agreement
from .watch.explain import explain

if TYPE_CHECKING:
    import pandas as pd

    from .watch.errors import LauncherError, WorkerError


class Run:
    """The outcome of a launch.

    `results` holds one value per rank (`run[2]` is rank 2's). `logs` holds what each rank printed, one string per rank
    (of a very long one the beginning and end). `seconds` is how long the launch took, `placement` where it ran, and
    `how` is "running", "finished", "failed", "interrupted" or "quit".
    `failures` is {rank: WorkerError} for ranks that failed while the others went on (`keep_going`); their results are
    None. `history` records the speed and memory of the ranks, and `show_history()` draws it.
    """

    def __init__(self, call, on, placement, supervisor, started):
        self.name, self.placement, self.world_size = call.name, placement, supervisor.world_size
        self._supervisor, self._call, self._on = supervisor, call, on
        self.started, self.seconds, self.how = started, None, "running"
        self.history = None

    def export(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write three files into `folder` that run this without a notebook, and return their paths.

        NAME.py, for torchrun, holds the source of the worker function and of all that it uses. NAME.arguments holds its
        arguments and what has no source. NAME.sbatch is a batch file for Slurm. Raises NotSendable if something cannot
        be written.
        """
        from .beyond.export import export  # late, or `python -m course_utils.slurm` would warn

        shape: tuple[int, int, int] = self._on.shape(self.world_size, self.placement)
        return export(folder, self._call, *shape, joins=self.placement.backend is not None)

    @property
    def results(self) -> list[Any]:
        return self._supervisor.results

    @property
    def failures(self) -> dict[int, WorkerError | LauncherError]:
        return {outcome.rank: explain([outcome]) for outcome in self._supervisor.outcomes if outcome.has_failed}

    @property
    def logs(self) -> list[str]:
        return [self._supervisor.output.log(rank) for rank in range(self.world_size)]

    @property
    def metrics(self) -> pd.DataFrame:
        """What workers have logged so far, as a DataFrame: rank, step, seconds since the launch, values."""
        import pandas as pd

        rows = [
            {"rank": rank, "step": logged.step, "seconds": logged.time - self.started} | logged.values
            for rank, logged in self._supervisor.rows
        ]
        return pd.DataFrame(rows, columns=None if rows else ["rank", "step", "seconds"])

    @property
    def doubts(self) -> list[str]:
        """Sentences on what was logged as nan, and on collectives in which ranks did not agree without an error."""
        return self._supervisor.rows.doubts + agreement.doubts(self._supervisor.outcomes)

    def stragglers(self, column: str, factor: float = 1.5) -> list[int]:
        """Return the ranks whose median of what they logged as `column` is more than `factor` times the ranks' median.

        Log the seconds that a step computes, `log(compute_s=…)`, without those in collectives, in which all ranks wait
        for the slowest. Raises KeyError if none has logged `column`.
        """
        medians = self.metrics.groupby("rank")[column].median()
        return [int(rank) for rank, median in medians.items() if median > factor * medians.median()]

    def show_history(self) -> None:
        """Show steps or samples per second, and memory, of each rank over time."""
        from .display.over_time import over_time  # late: it needs matplotlib

        over_time(self)

    def __getitem__(self, rank):
        return self.results[rank]

    def __len__(self):
        return self.world_size

    def __iter__(self):
        return iter(self.results)

    def __repr__(self):
        took = "running" if self.seconds is None else f"{self.seconds:.2f} s"
        if self.how not in ("running", "finished"):  # "failed", "interrupted" or "quit"
            took = f"{self.how} after {took}"
        return f"<Run of {self.name}: {self.world_size} rank{'s' * (self.world_size > 1)}, {took}>"
