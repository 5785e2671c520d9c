"""What is known about one rank, as plain data: its exception, how it died, or its stack when asked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ... import cells
from ..forkserver.protocol import Frame, Phase, Report
from ..worker import recorder
from ..worker.calls import Calls, Collective
from ..worker.consequence import Consequence
from ..worker.recorder import Record

# Python 3.14's "Current thread's C stack trace", which follows the Python stack, does not match.
_STACK_HEAD = re.compile(r"^(?:Current thread|Thread|Stack)(?!.*C stack).*\(most recent call first\).*$", re.MULTILINE)


@dataclass
class Outcome:
    """What is known about one rank."""

    rank: int
    returned: bool = False
    left: tuple[Frame, ...] | None = None  # where sys.exit() ended it without an error; it then counts as returned
    report: Report | None = None  # its exception
    died: int | None = None  # exit code, or minus the signal's number, if it ended without a message
    time: float = 0.0  # time.monotonic() of its return, exception or death
    dumped: tuple[Frame, ...] = ()  # its stack when asked, from faulthandler
    described: tuple[Frame, ...] = ()  # its stack with variables, from the rank itself
    phase: Phase = Phase.RUNS
    told: Calls | Record | None = None  # what it had called in torch.distributed, by when it was asked or ended

    @property
    def calls(self) -> Calls | None:
        """What it had called in torch.distributed, None if not known."""
        if isinstance(self.told, Record):
            self.told = recorder.read(self.told)
        return self.told

    @property
    def collective(self) -> Collective | None:
        """The last collective that it has called, in any group; None if there is none, or none is known."""
        return self.calls.collectives[-1] if self.calls is not None and self.calls.collectives else None

    @property
    def is_in_collective(self) -> bool:
        """Whether the last collective that it has called had not finished when it was asked."""
        return self.collective is not None and not self.collective.is_done

    @property
    def has_failed(self) -> bool:
        return self.report is not None or self.died is not None

    @property
    def has_quit(self) -> bool:
        """Whether the student has quit its debugger."""
        return self.report is not None and self.report.has_quit

    @property
    def has_lost_connection(self) -> bool:
        """Whether its exception only says that the connection to another rank was lost."""
        return self.report is not None and self.report.consequence is Consequence.LOST_CONNECTION

    @property
    def blames_another(self) -> bool:
        """Whether it failed because another rank had ended."""
        return self.report is not None and self.report.consequence is not None

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The stack where it failed, or was when asked: Frames, outermost first; () if not known."""
        return self.report.frames if self.report is not None else self.described or self.dumped


def frames_of_dump(text: str) -> tuple[Frame, ...]:
    """Return the Frames in a stack written by faulthandler."""
    stack = _STACK_HEAD.split(text)[-1]
    found = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', stack.split("\n\n")[0], flags=re.MULTILINE)
    return tuple(Frame(name, int(line), function) for name, line, function in reversed(found))


def is_in_torch_distributed(frames: Sequence[Frame]) -> bool:
    """Return whether a rank with this stack waits for others: the innermost own frame calls into torch.distributed.

    Frames further out do not count: FSDP, for one, calls the student's own forward().
    """
    own = cells.innermost(frames)
    below = frames if own is None else frames[own + 1 :]
    return any("/torch/distributed/" in name for name, _, _ in below)


def names_of(ranks: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 0 and 2`, `ranks 1–3` or `ranks 0, 1 and 3–7`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [part for run in runs for part in ([f"{run[0]}–{run[-1]}"] if len(run) > 2 else map(str, run))]
    return f"ranks {' and '.join(filter(None, [', '.join(parts[:-1]), parts[-1]]))}"
