"""What a rank is doing, as the text and numbers of one table row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import cells
from ..forkserver.protocol import Phase
from ..watch.agreement import in_words, of_group
from ..watch.explain import how_it_failed, in_one_line, lines_about, place_of
from ..watch.outcome import is_in_torch_distributed
from .history import NO_VALUES

if TYPE_CHECKING:
    from ..forkserver.protocol import Logged
    from ..watch.common import Watch
    from .history import History
    from .silence import Silence

_BAR = re.compile(r"\|\s*(\d+)/(\d+)\s+\[")  # as tqdm writes it:  45%|####5     | 45/100 [00:04<00:05,  9.94it/s]
_LINE_CHARS = 80
_VALUES = 3


@dataclass(frozen=True)
class Status:
    """The status of one rank.

    `kind` is "starting", "running", "waiting", "returned", "quit" or "failed". Other texts are "" if there is nothing
    to show. `done` and `total` count steps, and are None if the total is not known; `step` is then the last one logged.
    `memory_bytes` is None if not known. `collective` is the last one that the rank has called, if it has been asked.
    """

    rank: int
    kind: str
    state: str
    step: str = ""
    values: str = ""
    rate: str = ""
    memory_bytes: int | None = None
    done: int | None = None
    total: int | None = None
    line: str = ""
    collective: str = ""


def statuses(watch: Watch, history: History, silences: Sequence[Silence] = ()) -> list[Status]:
    """Return a Status for each rank of a Watch; `silences` may know where running ranks are."""
    rates = history.latest_rates()
    return [
        _status(watch, history, rank, rates[rank] if rates else 0.0, silences[rank] if silences else None)
        for rank in range(watch.world_size)
    ]


def _status(watch, history, rank, rate, silence):
    outcome, logged = watch.outcomes[rank], watch.rows.latest[rank]
    kind, state = _state(watch, outcome, silence)
    line = watch.output.latest_line(rank)
    done, total = _progress(line, logged, watch.rows.totals[rank])
    held = (moment.gpu_bytes[rank] or moment.host_bytes[rank] for moment in reversed(history.moments[-2:]))
    memory = next(filter(None, held), None)
    return Status(
        rank=rank,
        kind=kind,
        state=state,
        step="" if logged is None or done is not None else in_short(logged.step),
        values="" if logged is None else latest_values(logged),
        rate=f"{in_short(float(rate))} {history.unit}/s" if rate and kind == "running" else "",
        memory_bytes=memory,
        done=done,
        total=total,
        line="" if done is not None and _BAR.search(line) else _cut(line, _LINE_CHARS),
        collective="" if outcome.returned or outcome.collective is None else _last(outcome.collective),
    )


def _last(collective):
    group = of_group(collective.group)
    return f"{collective.number}{group}: {in_words(collective)}"


def latest_values(logged: Logged) -> str:
    """Return the first values of a Logged, as `loss 0.31, accuracy 0.9`, with `…` if there are others."""
    values = [(name, value) for name, value in logged.values.items() if name not in NO_VALUES]
    shown = [f"{name} {in_short(value)}" for name, value in values[:_VALUES]]
    return ", ".join(shown + ["…"] * (len(values) > _VALUES))


def _state(watch, outcome, silence):
    if outcome.has_quit:
        return "quit", "quit at the prompt"
    if outcome.has_failed:
        place = cells.own_line(outcome.frames)
        return "failed", f"failed: {in_one_line(how_it_failed(outcome))}" + (f", at {place}" if place else "")
    if outcome.returned:
        return "returned", "returned"
    if outcome.frames:
        if outcome.phase is Phase.RUNS and is_in_torch_distributed(outcome.frames):
            return "waiting", f"waiting {place_of(outcome.frames)}"
        return "running", lines_about([outcome])[0].removeprefix(f"rank {outcome.rank} ")
    if silence is not None and silence.frames:
        place = place_of(silence.frames)
        if silence.waits:
            return "waiting", f"waiting {place}"
        if outcome.is_in_collective:  # which C++ may have called, as for DDP; known only of a rank that stays there
            return "waiting", f"running {place}, and its last collective has not finished"
        return "running", place if place == "running" else f"running {place}"
    return ("running", "running") if outcome.rank in watch.begun else ("starting", "starting")


def _progress(line, logged, total):
    bar = _BAR.search(line)
    of_bar = (int(bar[1]), int(bar[2])) if bar else (None, None)
    is_logged = logged is not None and isinstance(total, int) and isinstance(logged.step, int) and total > 0
    if is_logged and (bar is None or of_bar[0] == of_bar[1]):  # a full bar may be an old one
        return min(logged.step + 1, total), total
    return of_bar


def in_short(value: object) -> str:
    """Format a logged number or text in few characters."""
    if isinstance(value, int) and abs(value) >= 1e15:
        return f"an integer of {value.bit_length():,} bits"
    return f"{value:.4g}" if isinstance(value, float) else _cut(str(value), 20)


def _cut(text, most):
    """Return `text` in at most `most` characters, cut between two words if one ends in its second half."""
    if len(text) <= most:
        return text
    head = text[: most - 1]
    words = head if text[most - 1].isspace() else head.rpartition(" ")[0]
    return (words if len(words) > most // 2 else head).rstrip() + "…"
