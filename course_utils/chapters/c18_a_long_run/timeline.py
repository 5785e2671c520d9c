"""What happened in a training with a coordinator: who did what when, read from the coordinator's events."""

from typing import NamedTuple


class Try(NamedTuple):
    """A member's part in one vote; times are seconds since all were there.

    `stage` is "step", "group" (one is made) or "state" (new members get it). It begins when the member heard the
    outcome before. `voted_s` is None if the member died before it voted. The end is the outcome, or the member's death.
    """

    replica: int
    stage: str
    step: int
    begin_s: float
    voted_s: float | None
    end_s: float
    members: tuple[int, ...]
    committed: bool


class Death(NamedTuple):
    """A replica that was killed at `killed_s`, which the coordinator noticed at `noticed_s`.

    `next_step` is the first step that counts after that, and `next_step_s` its end; None if there is none.
    """

    replica: int
    killed_s: float
    noticed_s: float
    next_step: int | None
    next_step_s: float | None


class Timeline(NamedTuple):
    """All `tries` in the order of their outcomes, `deaths`, and when each replica asked to be let in, by number."""

    tries: list[Try]
    deaths: list[Death]
    joined_s: dict[int, float]

    def shares(self):
        """Return for each step (the members that divided its samples, those whose samples count), as tuples."""
        steps = {}
        for each in self.tries:
            if each.stage == "step":
                divided, _ = steps.get(each.step, (each.members, ()))
                steps[each.step] = divided, each.members if each.committed else ()
        return [steps[step] for step in sorted(steps)]


def current_step(events):
    """The number of the step that all are in; -1 if they have not begun."""
    has_begun = any(event["what"] == "generation" for event in events)
    decided = [event for event in events if event["what"] == "decided" and event["stage"] == "step" and event["ok"]]
    return decided[-1]["step"] + 1 if decided else has_begun - 1


def num_connected(events):
    """The number of replicas whose connections are open."""
    return sum({"joined": 1, "left": -1, "died": -1}.get(event["what"], 0) for event in events)


def read(events, killed_s):
    """Return the Timeline of `Coordinator.events`; `killed_s` says when replicas were killed, as `time.time()`."""
    origin = next((event["time_s"] for event in events if event["what"] == "generation"), 0.0)
    heard, voted, gone, joined, tries = {}, {}, {}, {}, []
    for event in events:
        now, what, member = event["time_s"] - origin, event["what"], event.get("member")
        if what == "joined":
            joined[member] = now
            heard.pop(member, None)  # of an earlier one of this number
        elif what == "voted":
            voted[member] = now
        elif what in ("died", "left"):
            gone[member] = now
        elif what == "decided":
            tries += [
                Try(
                    each, event["stage"], event["step"], heard[each], voted.pop(each, None), gone.get(each, now),
                    tuple(event["members"]), event["ok"],
                )
                for each in event["members"]
            ]  # fmt: skip
            heard |= dict.fromkeys(event["members"], now)
        elif what == "generation":
            heard = dict.fromkeys(event["members"], now) | heard  # now of those who are new
    deaths = []
    for replica, killed in killed_s.items():
        later = [each for each in tries if each.stage == "step" and each.committed and each.end_s > gone[replica]]
        step, end_s = (later[0].step, later[0].end_s) if later else (None, None)
        deaths.append(Death(replica, killed - origin, gone[replica], step, end_s))
    return Timeline(tries, deaths, joined)
