"""What a rank has called in torch.distributed, as plain data: collectives, and messages between two ranks."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Group:
    """A process group on one of its backends: its name in torch, and the ranks of its members, () if not known."""

    name: str
    backend: str
    ranks: tuple[int, ...] = ()
    is_default: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the group on all ranks: each of its backends counts collectives of its own."""
        return self.name, self.backend


@dataclass(frozen=True)
class Collective:
    """A collective that a rank has called; `number` counts those of its group, from 1.

    `kind` is the name of the function called if the rank is still in it, else the name of what the backend ran, `ran`:
    gloo's reduce_scatter runs an all_reduce. `shapes` and `dtype` are those of the tensors that the rank gave (for a
    scatter: gets), () and "" if there are none. `root` is the rank that broadcasts, gathers, …, None if not known.
    `began` is in seconds since the epoch. `is_done` says whether it has finished on this rank, or
    failed; torch notes that a moment later.
    """

    kind: str
    group: Group
    number: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    is_done: bool
    began: float
    ran: str
    root: int | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of its only or first tensor, None if there is none."""
        return self.shapes[0] if self.shapes else None


@dataclass(frozen=True)
class Message:
    """A message that is not done; `kind` is "send" or "recv", `began` in seconds since the epoch.

    `peer` is the other rank, None for any. `number` counts the messages of the same kind, peer, group and tag, from 1.
    """

    kind: str
    peer: int | None
    group: Group
    tag: int
    number: int
    shape: tuple[int, ...]
    dtype: str
    began: float


@dataclass(frozen=True)
class Calls:
    """What a rank had called by `at`, in seconds since the epoch.

    `epoch` is of the default group: names and numbers of another epoch are of other groups; None if nothing is known.
    `collectives` are the latest, in order. `members` is {name: ranks} of the groups that this rank is in. `is_whole`
    says whether the recorder still has all, so that a group without an entry has had none. `messages` are those not
    done; `counts` is {(kind, peer, name of the group, tag): number of messages}. `was_refused` says whether torch's
    debug mode refused the last collective, since another rank called a different one.
    """

    at: float
    epoch: tuple[str, int] | None = None
    collectives: tuple[Collective, ...] = ()
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_whole: bool = False
    messages: tuple[Message, ...] = ()
    counts: dict[tuple[str, int | None, str, int], int] = field(default_factory=dict)
    was_refused: bool = False

    def of(self, group: Group) -> dict[int, Collective]:
        """Return {number: Collective} of the latest collectives of a group."""
        return {each.number: each for each in self.collectives if each.group.key == group.key}

    def count(self, group: Group) -> int | None:
        """Return how many collectives the rank has called in a group, None if that is not known."""
        return max(self.of(group), default=0 if self.is_whole else None)
