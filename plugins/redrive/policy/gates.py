"""The gate of a failure group: canary, ramp, open; failed or tripped when too much comes back. And the breaker of a
destination: open, tripped, half-open.

Pure decisions: what the ledger counted goes in, the next stage comes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Counts:
    """What was seen of a group since its stage began.

    ``sent`` also counts returns of what was sent before, so that as many outcomes as sends are all of its own.
    """

    stage: str
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

    stage: str
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
        case "canary" | "ramp":
            needed = rules.pass_share if rules.canary else 1 - rules.return_rate
            # As soon as too many have come back for this stage to pass, it is decided; of a ramp, which a group that
            # gets few messages stays at for long, not by the first of a handful.
            size = max(counts.sent, 1)
            if counts.stage == "ramp":
                size = max(size, min(counts.allowed, rules.min_samples))
            if counts.returned and (size - counts.returned) / size < needed:
                return _stop(counts, rules, passing, now)
            if counts.sent and observed >= counts.sent and not counts.waiting and counts.stayed / observed >= needed:
                return _grow(counts, rules, observed)
        case "open":
            if observed >= rules.min_samples and counts.returned / observed > rules.return_rate:
                return _stop(counts, rules, passing, now)
        case "tripped":
            if counts.cool_down_until is not None and counts.cool_down_until <= now:
                if rules.canary:
                    return Step("canary", rules.first, "half-open after its cool-down", counts.trips)
                return Step("ramp", rules.min_samples, "half-open after its cool-down", counts.trips)
    return None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What was seen of one group's sends to a destination since the stage of its breaker began."""

    sent: int
    stayed: int
    returned: int


def step_destination(
    stage: str,
    outcomes: Sequence[Outcomes],
    rules: Rules,
    *,
    allowed: int,
    trips: int,
    cool_down_until: datetime | None,
    now: datetime,
) -> Step | None:
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
        case "open":
            worst = max(outcomes, key=lambda one: one.returned, default=Outcomes(0, 0, 0))
            rest_returned = returned - worst.returned
            rest = observed - worst.stayed - worst.returned
            enough = observed >= rules.min_samples and 2 * rest >= rules.min_samples and rest > 0
            if enough and returned / observed > rules.return_rate and rest_returned / rest > rules.return_rate:
                return Step("tripped", 0, f"{reason}, of several groups", trips + 1, cooled(rules, trips, now))
        case "tripped":
            if cool_down_until is not None and cool_down_until <= now:
                return Step("half_open", rules.min_samples, "half-open after its cool-down", trips)
        case "half_open":
            if returned > rules.return_rate * max(sent, allowed):
                return Step("tripped", 0, reason, trips + 1, cooled(rules, trips, now))
            if sent > 0 and observed >= sent:
                if returned / observed > rules.return_rate:
                    return Step("tripped", 0, reason, trips + 1, cooled(rules, trips, now))
                return Step("open", 0, f"{stayed} of {observed} stayed away", 0)
    return None


def cooled(rules: Rules, trips: int, now: datetime) -> datetime:
    """Until when a breaker stays open that has tripped ``trips`` times before: longer each time."""
    return now + rules.cool_down * float(2 ** min(trips, 10))


def quota(counts: Counts) -> int | None:
    """How many held messages may go on now; None: all of them."""
    if counts.stage == "open":
        return None
    if counts.stage in ("canary", "ramp"):
        return max(0, counts.allowed - counts.sent - counts.waiting)
    return 0


def _grow(counts: Counts, rules: Rules, observed: int) -> Step | None:
    """The next stage of one that has passed. It never lets through more than ``grow`` times what has proved itself: a
    group that ran empty, or that a person emptied, has its ramp still before it."""
    share = f"{counts.stayed} of {observed} stayed away"
    if not rules.canary:
        return Step("open", 0, share, counts.trips)
    if counts.sent >= counts.allowed:
        allowed = max(counts.allowed + 1, int(counts.allowed * rules.grow))
    elif counts.held == 0:
        allowed = int(counts.sent * rules.grow)
        if allowed <= counts.allowed:
            return None
    else:  # these can't go before others of their key: nothing is proved yet
        return None
    return Step("open", 0, share, counts.trips) if allowed >= WIDE_OPEN else Step("ramp", allowed, share, counts.trips)


def _stop(counts: Counts, rules: Rules, passing: bool, now: datetime) -> Step:
    reason = f"{counts.returned} of {counts.sent} came back"
    if not passing:
        return Step("failed", 0, reason, counts.trips + 1)
    return Step("tripped", 0, reason, counts.trips + 1, cooled(rules, counts.trips, now))
