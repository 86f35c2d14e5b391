"""Breakers: what a group of failures, and what a destination, may be sent. The breaker of a group is called its gate.

A breaker is at one stage at a time. A *limited* stage (canary, ramp, half-open) lets through so many, and what becomes
of them decides; an open one lets all go, and stops when too much comes back; a stopped one lets nothing go.

What fails is back at once; that something stays away is known when its window is over, runs later. So of what an open
breaker let go the returns that are known say little beside those that stayed: they are compared with all that was sent
in the same slices, also with what is still awaited (:func:`_too_many_of`).

Pure decisions: what the ledger counted goes in, the next stage comes out.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum


class Stage(StrEnum):
    """Where a breaker stands."""

    CANARY = "canary"  # the first few
    RAMP = "ramp"  # more each time they stay away
    HALF_OPEN = "half_open"  # a few, and what becomes of them decides
    OPEN = "open"  # all
    FAILED = "failed"  # the canary came back: a person must release it
    TRIPPED = "tripped"  # nothing until the cool-down is over, then a few


#: The stages of the gate of a group, and of the breaker of a destination.
OF_GROUPS = (Stage.CANARY, Stage.RAMP, Stage.OPEN, Stage.FAILED, Stage.TRIPPED)
OF_DESTINATIONS = (Stage.OPEN, Stage.TRIPPED, Stage.HALF_OPEN)
#: The stages that let through only as many as they allow.
LIMITED = (Stage.CANARY, Stage.RAMP, Stage.HALF_OPEN)


@dataclass(frozen=True, slots=True)
class Counts:
    """A breaker at its stage, and the attempts that count for that stage.

    An attempt whose return became known late counts as sent too, so that as many outcomes as sends are all there are.
    """

    stage: Stage
    allowed: int
    sent: int
    stayed: int
    returned: int
    trips: int
    cool_down_until: datetime | None
    waiting: int  # messages that are on their way: they take places of a limited stage
    held: int  # messages that it holds back

    @property
    def observed(self) -> int:
        """How many attempts have a known outcome."""
        return self.stayed + self.returned


@dataclass(frozen=True, slots=True)
class Rules:
    """How a route's canary and breaker are set."""

    canary: bool
    first: int
    grow: float
    pass_share: float
    return_rate: float
    min_samples: int
    cool_down: timedelta


@dataclass(frozen=True, slots=True)
class Step:
    """The next stage of a breaker."""

    stage: Stage
    allowed: int
    reason: str  # a whole sentence
    trips: int
    cool_down_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of the attempts that count for the stage of a breaker, some: those of one group, or of one slice."""

    sent: int
    stayed: int
    returned: int

    def __add__(self, other: "Outcomes") -> "Outcomes":
        return Outcomes(self.sent + other.sent, self.stayed + other.stayed, self.returned + other.returned)

    @property
    def observed(self) -> int:
        """How many have a known outcome."""
        return self.stayed + self.returned

    @property
    def came_back(self) -> str:
        """What was counted, in words."""
        awaited = self.sent - self.observed
        return f"{self.returned} of {self.sent} came back{f', and {awaited} are awaited' if awaited else ''}"


#: What an open breaker let go, one slice after the other as they were claimed, each by group.
Slices = Sequence[Mapping[Hashable, Outcomes]]
NOTHING = Outcomes(0, 0, 0)


#: An open breaker keeps in mind up to so many times the samples that it needs: what is new has to show.
REMEMBERED = 10
#: From this many allowed sends on a passed ramp opens.
WIDE_OPEN = 10_000


def in_question(counts: Counts, rules: Rules) -> bool:
    """Whether a breaker is open, and too many of its known outcomes are returns: its slices are worth counting."""
    enough = counts.stage == Stage.OPEN and counts.observed >= rules.min_samples
    return enough and counts.returned / counts.observed > rules.return_rate


def step(counts: Counts, rules: Rules, *, passing: bool, now: datetime, slices: Slices | None = None) -> Step | None:
    """The step that a group's gate takes now, or None when it stays.

    ``passing`` groups (failures that go away by themselves) trip and try again after a cool-down that doubles;
    the others fail, and a person must release them. ``slices`` are needed of a gate that is :func:`in_question`;
    without them nothing is awaited.
    """
    match counts.stage:
        case Stage.CANARY | Stage.RAMP:
            needed = rules.pass_share if rules.canary else 1 - rules.return_rate
            # As soon as too many have come back for this stage to pass, it is decided; of a ramp, which a group that
            # gets few messages stays at for long, not by the first of a handful.
            size = max(counts.sent, 1)
            if counts.stage == Stage.RAMP:
                size = max(size, min(counts.allowed, rules.min_samples))
            if counts.returned and (size - counts.returned) / size < needed:
                return _stop(counts, rules, passing, now, f"{counts.returned} of {counts.sent} came back.")
            if _all_known(counts) and not counts.waiting and counts.stayed / counts.observed >= needed:
                return _grow(counts, rules)
        case Stage.OPEN:
            if in_question(counts, rules):
                known = [{None: Outcomes(counts.observed, counts.stayed, counts.returned)}]
                one_by_one = [sum(one.values(), NOTHING) for one in (known if slices is None else slices)]
                if (found := _too_many_of(one_by_one, rules)) is not None:
                    return _stop(counts, rules, passing, now, f"{found.came_back}.")
        case Stage.TRIPPED if _has_cooled(counts, now):
            first = (Stage.CANARY, rules.first) if rules.canary else (Stage.RAMP, rules.min_samples)
            return Step(*first, "Its cool-down is over, so a few may go.", counts.trips)
    return None


def step_destination(
    counts: Counts, groups: Sequence[Outcomes], rules: Rules, *, now: datetime, slices: Slices | None = None
) -> Step | None:
    """The step that a destination's breaker takes now, or None when it stays; ``counts`` is the sum of the ``groups``.

    It trips when too much comes back and no single group is to blame: also without the group that came back most
    there are outcomes enough to tell, and too many of them are returns. After the cool-down, which doubles with each
    trip, a few may go, whatever their group, and what becomes of them decides. ``slices`` as in :func:`step`.
    """
    came_back = f"{counts.returned} of {counts.observed} came back"
    match counts.stage:
        case Stage.OPEN if in_question(counts, rules):
            by_group = [dict[Hashable, Outcomes](enumerate(groups))] if slices is None else slices
            returned = Counter[Hashable]()
            for one in by_group:
                returned.update({group: seen.returned for group, seen in one.items()})
            worst = max(returned, key=lambda group: returned[group], default=None)
            found = _too_many_of([sum(one.values(), NOTHING) for one in by_group], rules)
            others = [sum((seen for group, seen in one.items() if group != worst), NOTHING) for one in by_group]
            fewer = replace(rules, min_samples=max(1, (rules.min_samples + 1) // 2))
            if found is not None and _too_many_of(others, fewer) is not None:
                return _trip(counts, rules, f"{found.came_back}, of several groups.", now)
        case Stage.TRIPPED if _has_cooled(counts, now):
            return Step(Stage.HALF_OPEN, rules.min_samples, "Its cool-down is over, so a few may go.", counts.trips)
        case Stage.HALF_OPEN:
            if counts.returned > rules.return_rate * max(counts.sent, counts.allowed):
                return _trip(counts, rules, f"{came_back}.", now)
            # One that had few so far, and is to have more, has not shown enough for all of them.
            if _all_known(counts) and (counts.sent >= counts.allowed or not counts.waiting):
                if counts.returned / counts.observed > rules.return_rate:
                    return _trip(counts, rules, f"{came_back}.", now)
                trips = 0 if counts.observed >= rules.min_samples else counts.trips
                return Step(Stage.OPEN, 0, f"{counts.stayed} of {counts.observed} stayed away.", trips)
    return None


def _too_many_of(slices: Sequence[Outcomes], rules: Rules) -> Outcomes | None:
    """Of what was sent in some slices, one after the other, of which more came back than may; None if there are none.

    What is awaited of them may stay away, so it counts against the returns. For that nobody waits until the last of
    what was sent later is known: these are slices of a hundred or so together (half of what is remembered), or of all,
    or fewer of which everything is known.
    """
    enough = min(sum(one.sent for one in slices), REMEMBERED * rules.min_samples // 2)
    for first in range(len(slices)):
        together = NOTHING
        for one in slices[first:]:
            together += one
            decided = together.sent >= enough or together.observed == together.sent
            too_many = together.returned > rules.return_rate * together.sent
            if too_many and decided and together.observed >= rules.min_samples:
                return together
            if together.sent >= 2 * enough:
                break
    return None


def quota(counts: Counts) -> int | None:
    """How many more may go on now; None: all of them."""
    if counts.stage == Stage.OPEN:
        return None
    if counts.stage in LIMITED:
        return max(0, counts.allowed - counts.sent - counts.waiting)
    return 0


def cool_down_until(rules: Rules, trips: int, now: datetime) -> datetime:
    """Until when a breaker stays tripped that has tripped ``trips`` times before: longer each time."""
    return now + rules.cool_down * float(2 ** min(trips, 10))


def _has_cooled(counts: Counts, now: datetime) -> bool:
    return counts.cool_down_until is not None and counts.cool_down_until <= now


def _all_known(counts: Counts) -> bool:
    return counts.sent > 0 and counts.observed >= counts.sent


def _grow(counts: Counts, rules: Rules) -> Step | None:
    """The next stage of one that has passed. It never lets through more than ``grow`` times what has proved itself: a
    group that ran empty, or that a person emptied, has its ramp still before it."""
    share = f"{counts.stayed} of {counts.observed} stayed away."
    # A ramp is more than the first few: what is well so far has got over what it tripped for.
    trips = 0 if counts.stage == Stage.RAMP and counts.observed >= rules.min_samples else counts.trips
    if counts.sent < counts.allowed and counts.held:
        # What is held can't go now, before others of its key or beside what was chosen: nothing is proved yet.
        return None
    if not rules.canary:
        return Step(Stage.OPEN, 0, share, trips)
    if counts.sent >= counts.allowed:
        allowed = max(counts.allowed + 1, int(counts.allowed * rules.grow))
    else:
        allowed = int(counts.sent * rules.grow)
        if allowed <= counts.allowed:
            return None
    if allowed >= WIDE_OPEN:
        return Step(Stage.OPEN, 0, share, trips)
    return Step(Stage.RAMP, allowed, share, trips)


def _stop(counts: Counts, rules: Rules, passing: bool, now: datetime, reason: str) -> Step:
    return _trip(counts, rules, reason, now) if passing else Step(Stage.FAILED, 0, reason, counts.trips + 1)


def _trip(counts: Counts, rules: Rules, reason: str, now: datetime) -> Step:
    return Step(Stage.TRIPPED, 0, reason, counts.trips + 1, cool_down_until(rules, counts.trips, now))
