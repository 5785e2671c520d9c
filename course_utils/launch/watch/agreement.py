"""Compares what ranks have called in torch.distributed: which is behind, and which called something else.

Only what is certain is said. Ranks are asked one after another, and do not call a collective at the same moment anyway:
one that still runs is behind only if others called the next collective half a second before it was asked.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..worker.calls import Collective, Group, Message
from .outcome import Outcome, names_of

_LATE_S = 0.5
_ALL_MEET = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "barrier")  # finish once all have called them
_MOST_SENTENCES = 3


class Tense(NamedTuple):
    """The verbs of sentences about ranks that still run, or that have been stopped."""

    is_: str
    are: str
    has: str
    have: str


NOW, THEN = Tense("is", "are", "has", "have"), Tense("was", "were", "had", "had")


class Way(enum.Enum):
    """What a rank does instead of calling the collective that others have called."""

    RUNS = "runs, or waits for what is not known"
    WAITS = "waits in another collective"
    RETURNED = "returned"
    LEFT = "left by sys.exit()"
    FAILED = "failed"


@dataclass(frozen=True)
class Differ:
    """Ranks called different collectives in the same place: `calls` is {rank: its collective `number` of `group`}."""

    group: Group
    number: int
    calls: dict[int, Collective]

    def sentence(self, tense: Tense = THEN) -> str:
        told = _by_words({rank: in_words(each) for rank, each in self.calls.items()})
        parts = [f"{words} on {names_of(ranks)}" for words, ranks in told.items()]
        return f"Collective {self.number}{of_group(self.group)} was {' and '.join(parts)}."


@dataclass(frozen=True)
class Unmatched:
    """`rank` has begun a message, and its peer only `count` messages of the other kind: fewer than would match it."""

    rank: int
    message: Message
    count: int

    def sentence(self, tense: Tense = THEN) -> str:
        message, peer = self.message, f"rank {self.message.peer}"
        tag = f" with tag {message.tag}" if message.tag else ""
        within = of_group(message.group, "in")
        begun, other = ("send to", "recv") if message.kind == "send" else ("recv from", "send")
        matching = f"only {_many(self.count, f'matching {other}')}" if self.count else f"no matching {other}"
        what = f"message {message.number}{tag}{within}, {_of(message.shape, message.dtype)}"
        return f"Rank {self.rank} {tense.has} called {begun} {peer} ({what}), and {peer} {tense.has} called {matching}."


@dataclass(frozen=True)
class Behind:
    """`ranks` have called only `count` collectives of `group`; `ahead` is {other rank: a later one, not finished}.

    `last` is the last collective that `ranks` have called, in any group, or None.
    """

    group: Group
    ranks: tuple[int, ...]
    count: int
    ahead: dict[int, Collective]
    way: Way
    last: Collective | None

    def sentence(self, tense: Tense = THEN) -> str:
        names, others, later = names_of(self.ranks), names_of(list(self.ahead)), next(iter(self.ahead.values()))
        is_, has, it = (tense.is_, tense.has, "it") if len(self.ranks) == 1 else (tense.are, tense.have, "they")
        are_in = f"{_upper(others)} {tense.is_ if len(self.ahead) == 1 else tense.are} in {_named(later)}"
        within = "" if self.group.is_default else " of that group"
        if self.group.is_default and self.last is not None and not self.last.group.is_default:
            within = " of the default group"
        if self.way is Way.RUNS:
            count = f"{_many(self.count, 'collective') if self.count else 'none'}{within}"
            last = "" if self.last is None else f", most recently {_named(self.last, self.group)}"
            return f"{are_in}, and {names} {is_} behind: {it} {has} called {count}{last}."
        why = f"after {_many(self.count, 'collective')}" if self.count else "without calling any"
        why = f"{self.way.value} {why}{within}"
        if self.way is Way.WAITS:
            why = f"{is_} in {_named(self.last)}"
        return f"{are_in}, which {names} {has} not called: {it} {why}."


Finding = Differ | Unmatched | Behind


def findings(outcomes: Sequence[Outcome]) -> tuple[Finding, ...]:
    """Return what ranks disagree on, most telling first; () if nothing is certain."""
    known = {outcome.rank: outcome for outcome in outcomes if outcome.calls is not None and outcome.calls.epoch}
    if len({outcome.calls.epoch for outcome in known.values() if outcome.calls is not None}) > 1:
        return ()  # some have left the groups of which the others speak
    groups, unmatched = _groups(known), _unmatched(known)
    differ = {group.key: each for group in groups if (each := _differ(group, known)) is not None}
    waiting = {each.rank for each in unmatched}
    behind = [
        each
        for group in groups
        for each in _behind(group, known, waiting, differ[group.key].number if group.key in differ else math.inf)
    ]
    return (*differ.values(), *unmatched, *behind)


def sentences(found: Sequence[Finding], tense: Tense = THEN) -> list[str]:
    """Return the first findings as sentences."""
    return [each.sentence(tense) for each in found[:_MOST_SENTENCES]]


def doubts(outcomes: Sequence[Outcome]) -> list[str]:
    """Return sentences about collectives in which ranks did not agree, although all of them have returned."""
    if not all(outcome.returned for outcome in outcomes):
        return []
    differ = [each for each in findings(outcomes) if isinstance(each, Differ)]
    return [f"{each.sentence()} No rank noticed, and what it gave is not to be trusted." for each in differ[:1]]


def last_calls(outcomes: Iterable[Outcome]) -> list[str]:
    """Return sentences that say what the ranks had called last that have not returned."""
    words = {}
    for outcome in outcomes:
        if not outcome.returned and outcome.collective is not None:
            has_ended = "had" if outcome.collective.is_done and not outcome.has_lost_connection else "had not"
            words[outcome.rank] = f"{_named(outcome.collective)}, which {has_ended} finished"
    told = [f"The last that {names_of(ranks)} called was {last}." for last, ranks in _by_words(words).items()]
    return told[:_MOST_SENTENCES]


def _groups(known):
    """Return the Groups of all ranks, with all members; not those whose members the ranks do not agree on."""
    members = {}
    for outcome in known.values():
        for name, ranks in outcome.calls.members.items():
            members.setdefault(name, set()).add(ranks)
    groups = {each.group.key: each.group for outcome in known.values() for each in outcome.calls.collectives}
    return [
        dataclasses.replace(group, ranks=next(iter(members[group.name])))
        for _, group in sorted(groups.items())
        if len(members.get(group.name, ())) == 1
    ]


def _differ(group, known):
    """Return the first Differ of a group, or None."""
    histories = {rank: known[rank].calls.of(group) for rank in group.ranks if rank in known}
    for number in sorted({number for history in histories.values() for number in history}):
        calls = {rank: history[number] for rank, history in histories.items() if number in history}
        kinds = {(each.ran, each.dtype, _size(each)) for each in calls.values()}
        roots = {each.root for each in calls.values()} - {None}
        if len(kinds) > 1:
            return Differ(group, number, calls)
        if len(roots) > 1:
            return Differ(group, number, {rank: each for rank, each in calls.items() if each.root is not None})
    return None


def _size(collective):
    """Return the number of elements if it must be the same on all ranks, else None."""
    is_free = collective.ran == "all_to_all" or collective.ran == "all_gather" and collective.group.backend == "nccl"
    return None if is_free else sum(map(math.prod, collective.shapes))


def _behind(group, known, waiting, before):
    """Return each Behind for a group's first collective, of a number less than `before`, that some did not call.

    The ranks `waiting` are left out: what they wait for is told.
    """
    members = sorted(set(group.ranks) & known.keys())
    unfinished = {rank: each for rank in members if (each := _first_unfinished(known[rank], group)) is not None}
    for number in sorted({each.number for each in unfinished.values() if each.number < before}):
        ahead = {rank: each for rank, each in unfinished.items() if each.number == number}
        since, late = min(each.began for each in ahead.values()), {}
        for rank in members:
            count, last = known[rank].calls.count(group), known[rank].collective
            if count is None or count >= number or rank in waiting or _asked_at(known[rank]) - since < _LATE_S:
                continue
            late.setdefault((count, _way(known[rank]), "" if last is None else _named(last)), []).append(rank)
        if late:
            return [
                Behind(group, tuple(ranks), count, ahead, way, known[ranks[0]].collective)
                for (count, way, _), ranks in late.items()
            ]
    return []


def _first_unfinished(outcome, group):
    """Return the first Collective of a group in which a rank is, or was when it lost its connection; or None."""
    latest = [each for _, each in sorted(outcome.calls.of(group).items())]
    if outcome.has_lost_connection:  # its last one failed, and is recorded as finished
        return next((each for each in latest if each == outcome.collective and each.ran in _ALL_MEET), None)
    if outcome.returned or outcome.report is not None:
        return None  # it is in none; the recorder notes only a moment later that one has finished
    return next((each for each in latest if not each.is_done), None)


def _way(outcome):
    if outcome.returned:
        return Way.RETURNED if outcome.left is None else Way.LEFT
    if outcome.report is not None:
        return Way.FAILED
    last = outcome.collective
    return Way.RUNS if last is None or last.is_done else Way.WAITS


def _asked_at(outcome):
    """Return when a rank was asked, in seconds since the epoch; one that has ended calls nothing any more."""
    return math.inf if outcome.returned or outcome.report is not None else outcome.calls.at


def _unmatched(known):
    """Return an Unmatched for each rank and peer: the first message of one to which the other has no counterpart."""
    found = {}
    for rank, outcome in known.items():
        for message in outcome.calls.messages:
            other = known.get(message.peer)
            if other is None or _asked_at(other) - message.began < _LATE_S:
                continue
            kind, counts = "recv" if message.kind == "send" else "send", other.calls.counts
            if kind == "recv" and counts.get((kind, None, message.group.name, message.tag)):
                continue  # it receives from any rank
            count = counts.get((kind, rank, message.group.name, message.tag), 0)
            if count < message.number:
                found.setdefault((rank, message.peer, message.kind), Unmatched(rank, message, count))
    return list(found.values())


def in_words(collective: Collective) -> str:
    """Return `all_reduce of (3,) float32`, or `broadcast of (3,) float32 from rank 0`."""
    root = "" if collective.root is None else f" {_TOWARDS.get(collective.ran, 'from')} rank {collective.root}"
    what = f" {_of(collective.shape, collective.dtype)}" if collective.shapes else ""
    return f"{collective.kind}{what}{root}"


_TOWARDS = {"reduce": "to", "gather": "to"}


def name_of(group: Group) -> str:
    """Return `the default group`, or `the group of ranks 0 and 2`."""
    if group.is_default:
        return "the default group"
    return f"the group of {names_of(group.ranks)}" if group.ranks else f"group {group.name}"


def of_group(group: Group, word: str = "of") -> str:
    """Return ` of the group of ranks 0 and 2`; nothing for all ranks' group, often the only one."""
    return "" if group.is_default else f" {word} {name_of(group)}"


def _named(collective, within=None):
    """Return `collective 4, all_reduce of (3,) float32`, with its group if that is not all ranks'.

    In a text on the group `within`, only what follows the comma.
    """
    if within is not None and within.key == collective.group.key:
        return in_words(collective)
    return f"collective {collective.number}{of_group(collective.group)}, {in_words(collective)}"


def _of(shape, dtype):
    return f"of {shape} {dtype}"


def _many(count, what):
    return f"{count} {what}{'s' * (count != 1)}"


def _upper(names):
    return names[0].upper() + names[1:]


def _by_words(words):
    """Return {text: ranks} of {rank: text}."""
    ranks = {}
    for rank, text in sorted(words.items()):
        ranks.setdefault(text, []).append(rank)
    return ranks
