"""The gate of a failure group: canary, ramp, open; failed or tripped when too much comes back. And the breaker of a
destination: open, tripped, half-open.

Pure decisions: what the ledger counted goes in, the next stage comes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Stage(StrEnum):
    """The gate of a group."""

    CANARY = "canary"  # the first few
    RAMP = "ramp"  # more each time they stay away
    OPEN = "open"  # all
    FAILED = "failed"  # the canary came back: a person must release it
    TRIPPED = "tripped"  # nothing until the cool-down is over, then the canary again


class BreakerStage(StrEnum):
    """The breaker of a destination."""

    OPEN = "open"  # as much as the budget allows; also without a row
    TRIPPED = "tripped"  # nothing until the cool-down is over
    HALF_OPEN = "half_open"  # a few, and what becomes of them decides


@dataclass(frozen=True, slots=True)
class Counts:
    """What was seen of a group since its stage began.

    ``sent`` also counts returns of what was sent before, so that as many outcomes as sends are all of its own.
    """

    stage: Stage
    allowed: int
    sent: int
    stayed: int
    returned: int
    trips: int
    cool_down_until: datetime | None
    waiting: int
    held: int


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
    """The next stage of a gate."""

    stage: Stage
    allowed: int
    reason: str
    trips: int
    cool_down_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class BreakerStep:
    """The next stage of a breaker."""

    stage: BreakerStage
    allowed: int
    reason: str
    trips: int
    cool_down_until: datetime | None = None


#: An open gate or breaker keeps in mind so many times the samples that it needs: what is new has to show.
REMEMBERED = 10
#: From this many allowed sends on a passed ramp opens.
WIDE_OPEN = 10_000


def step(counts: Counts, rules: Rules, *, passing: bool, now: datetime) -> Step | None:
    """The step that a gate takes now, or None when it stays.

    ``passing`` groups (failures that go away by themselves) trip and try again after a cool-down that doubles;
    the others fail, and a person must release them.
    """
    observed = counts.stayed + counts.returned
    match counts.stage:
        case Stage.CANARY | Stage.RAMP:
            needed = rules.pass_share if rules.canary else 1 - rules.return_rate
            # As soon as too many have come back for this stage to pass, it is decided; of a ramp, which a group that
            # gets few messages stays at for long, not by the first of a handful.
            size = max(counts.sent, 1)
            if counts.stage == Stage.RAMP:
                size = max(size, min(counts.allowed, rules.min_samples))
            if counts.returned and (size - counts.returned) / size < needed:
                return _stop(counts, rules, passing, now)
            if counts.sent and observed >= counts.sent and not counts.waiting and counts.stayed / observed >= needed:
                return _grow(counts, rules, observed)
        case Stage.OPEN:
            if observed >= rules.min_samples and counts.returned / observed > rules.return_rate:
                return _stop(counts, rules, passing, now)
        case Stage.TRIPPED:
            if counts.cool_down_until is not None and counts.cool_down_until <= now:
                if rules.canary:
                    return Step(Stage.CANARY, rules.first, "half-open after its cool-down", counts.trips)
                return Step(Stage.RAMP, rules.min_samples, "half-open after its cool-down", counts.trips)
    return None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What was seen of one group's sends to a destination since the stage of its breaker began."""

    sent: int
    stayed: int
    returned: int


def step_destination(
    stage: BreakerStage,
    outcomes: Sequence[Outcomes],
    rules: Rules,
    *,
    allowed: int,
    trips: int,
    cool_down_until: datetime | None,
    now: datetime,
) -> BreakerStep | None:
    """The step that a destination's breaker takes now, or None when it stays.

    It trips when too much comes back and no single group is to blame: also without the group that came back most
    there are outcomes enough to tell, and too many of them are returns. After the cool-down, which doubles with each
    trip, a few may go, whatever their group, and what becomes of them decides.
    """
    sent, stayed, returned = (
        (sum(of) for of in zip(*((o.sent, o.stayed, o.returned) for o in outcomes), strict=True))
        if outcomes
        else (0, 0, 0)
    )
    observed = stayed + returned
    reason = f"{returned} of {observed} came back"
    match stage:
        case BreakerStage.OPEN:
            worst = max(outcomes, key=lambda one: one.returned, default=Outcomes(0, 0, 0))
            rest_returned = returned - worst.returned
            rest = observed - worst.stayed - worst.returned
            enough = observed >= rules.min_samples and 2 * rest >= rules.min_samples and rest > 0
            if enough and returned / observed > rules.return_rate and rest_returned / rest > rules.return_rate:
                return BreakerStep(
                    BreakerStage.TRIPPED, 0, f"{reason}, of several groups", trips + 1, cooled(rules, trips, now)
                )
        case BreakerStage.TRIPPED:
            if cool_down_until is not None and cool_down_until <= now:
                return BreakerStep(BreakerStage.HALF_OPEN, rules.min_samples, "half-open after its cool-down", trips)
        case BreakerStage.HALF_OPEN:
            if returned > rules.return_rate * max(sent, allowed):
                return BreakerStep(BreakerStage.TRIPPED, 0, reason, trips + 1, cooled(rules, trips, now))
            if sent > 0 and observed >= sent:
                if returned / observed > rules.return_rate:
                    return BreakerStep(BreakerStage.TRIPPED, 0, reason, trips + 1, cooled(rules, trips, now))
                return BreakerStep(BreakerStage.OPEN, 0, f"{stayed} of {observed} stayed away", 0)
    return None


def cooled(rules: Rules, trips: int, now: datetime) -> datetime:
    """Until when a breaker stays open that has tripped ``trips`` times before: longer each time."""
    return now + rules.cool_down * float(2 ** min(trips, 10))


def quota(counts: Counts) -> int | None:
    """How many held messages may go on now; None: all of them."""
    if counts.stage == Stage.OPEN:
        return None
    if counts.stage in (Stage.CANARY, Stage.RAMP):
        return max(0, counts.allowed - counts.sent - counts.waiting)
    return 0


def _grow(counts: Counts, rules: Rules, observed: int) -> Step | None:
    """The next stage of one that has passed. It never lets through more than ``grow`` times what has proved itself: a
    group that ran empty, or that a person emptied, has its ramp still before it."""
    share = f"{counts.stayed} of {observed} stayed away"
    if not rules.canary:
        return Step(Stage.OPEN, 0, share, counts.trips)
    if counts.sent >= counts.allowed:
        allowed = max(counts.allowed + 1, int(counts.allowed * rules.grow))
    elif counts.held == 0:
        allowed = int(counts.sent * rules.grow)
        if allowed <= counts.allowed:
            return None
    else:  # these can't go before others of their key: nothing is proved yet
        return None
    return (
        Step(Stage.OPEN, 0, share, counts.trips)
        if allowed >= WIDE_OPEN
        else Step(Stage.RAMP, allowed, share, counts.trips)
    )


def _stop(counts: Counts, rules: Rules, passing: bool, now: datetime) -> Step:
    reason = f"{counts.returned} of {counts.sent} came back"
    if not passing:
        return Step(Stage.FAILED, 0, reason, counts.trips + 1)
    return Step(Stage.TRIPPED, 0, reason, counts.trips + 1, cooled(rules, counts.trips, now))
