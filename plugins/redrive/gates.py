"""The gate of a failure group: canary, ramp, open; failed or tripped when too much comes back.

Pure decisions: what the ledger counted goes in, the next stage comes out.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Counts:
    """What was seen of a group since its stage began."""

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
            # As soon as too many have come back for this stage to pass, it is decided.
            size = max(counts.sent, 1)
            if counts.returned and (counts.sent - counts.returned) / size < rules.pass_share:
                return _stop(counts, rules, passing, now)
            if counts.sent and observed >= counts.sent and not counts.waiting:
                allowed = max(counts.allowed + 1, int(counts.allowed * rules.grow))
                share = f"{counts.stayed} of {observed} stayed away"
                if allowed >= WIDE_OPEN or counts.held == 0:
                    return Step("open", 0, share, counts.trips)
                return Step("ramp", allowed, share, counts.trips)
        case "open":
            if observed >= rules.min_samples and counts.returned / observed > rules.return_rate:
                return _stop(counts, rules, passing, now)
        case "tripped":
            if counts.cool_down_until is not None and counts.cool_down_until <= now:
                if rules.canary:
                    return Step("canary", rules.first, "half-open after its cool-down", counts.trips)
                return Step("ramp", rules.min_samples, "half-open after its cool-down", counts.trips)
    return None


def quota(counts: Counts) -> int | None:
    """How many held messages may go on now; None: all of them."""
    if counts.stage == "open":
        return None
    if counts.stage in ("canary", "ramp"):
        return max(0, counts.allowed - counts.sent - counts.waiting)
    return 0


def _stop(counts: Counts, rules: Rules, passing: bool, now: datetime) -> Step:
    reason = f"{counts.returned} of {counts.sent} came back"
    if not passing:
        return Step("failed", 0, reason, counts.trips + 1)
    return Step("tripped", 0, reason, counts.trips + 1, now + rules.cool_down * 2 ** min(counts.trips, 10))
