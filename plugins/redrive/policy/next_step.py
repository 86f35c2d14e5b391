"""What happens to a message: pure decisions over (cause, history), values in and values out.

A decision is taken once per distinct case, not per message; the ledger applies it to the whole set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from redrive.classification.causes import PROFILES, Cause, Verdict
from redrive.lifecycle import Plan
from redrive.policy import backoff
from redrive.policy.worked_past import CLOCKS

Mode = Literal[Plan.REQUEUE, Plan.DELAY, Plan.CANARY]
#: ``stuck``: at least one of them holds messages and gets nowhere.
Consumers = Literal["well", "stuck"]

#: What is kept clear of the end of a broker's duplicate window: who claimed and who repeats may be two processes, whose
#: clocks differ, and requests take time.
LEAST_MARGIN = CLOCKS + timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Case:
    """What messages have in common that are decided together."""

    kind: str  # dead_letter | delay | import
    cause: Cause | None  # None for a delay source: nothing failed; elsewhere nobody looked
    requeues: int  # attempts made at once so far
    delays: int  # attempts made after a delay so far
    attempts: int  # all attempts, a person's releases included
    released: bool  # a person released it before
    consumers: Consumers | None = None  # those of its destination; None: nobody tells how they are


@dataclass(frozen=True, slots=True)
class Limits:
    """What a route allows."""

    requeue_attempts: int
    delay_attempts: int
    first: timedelta
    factor: float
    longest: timedelta
    verdicts: Mapping[Cause, Verdict]  # overrides
    least: timedelta = timedelta(0)  # no delay is shorter
    checked: bool = False  # a processed check is asked before a person is


@dataclass(frozen=True, slots=True)
class Send:
    """Redeliver; not before a jittered delay between ``least`` and ``within`` (zero: at once)."""

    mode: Mode
    within: timedelta = timedelta(0)
    least: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Hold:
    """Not now; decided again by the next plan."""

    reason: str


@dataclass(frozen=True, slots=True)
class Escalate:
    """A person decides."""

    reason: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Not needed, the route says so."""

    reason: str


Decision = Send | Hold | Escalate | Discard


def decide(case: Case, limits: Limits) -> Decision:
    """The verdict for a case.

    Unexpected, passing errors go straight back at most ``requeue_attempts`` times, then after a delay at most
    ``delay_attempts`` times; then a person. What a person released and came back goes to a person again, and so does
    what nobody classified: its cause, group, order and key are not known.
    """
    if case.released:
        return Escalate("It came back after a person had released it.")
    if case.cause is None:
        return _without_cause(case, limits)
    verdict = limits.verdicts.get(case.cause, PROFILES[case.cause].verdict)
    tried = f"{case.cause}: {_came_back(case)}"
    # Attempts that are neither requeues nor delays of ours were made by a ledger that is lost, or by another route.
    if case.attempts > case.requeues + case.delays and case.attempts >= limits.requeue_attempts + limits.delay_attempts:
        return Escalate(tried)
    match verdict:
        case Verdict.ESCALATE:
            return Escalate(_why(case))
        case Verdict.SUPPRESS_OR_ESCALATE:
            known = (
                "The processed_check does not know it."
                if limits.checked
                else "No processed_check tells whether it was."
            )
            return Escalate(f"{_why(case)} {known}")
        case Verdict.DISCARD:
            return Discard(f"{case.cause}: The route discards these.")
        case Verdict.CANARY if case.cause is Cause.UNCLASSIFIED:
            return Send(Plan.CANARY) if case.attempts == 0 else Escalate(tried)
        case Verdict.HOLD if case.consumers == "stuck":
            return Hold(f"{case.cause}: Consumers of its destination are stuck.")
        case Verdict.HOLD if case.consumers is None:  # without word from the consumers, holding means waiting
            return _later(case, limits, tried)
        case Verdict.DELAY:
            return _later(case, limits, tried)
        case Verdict.REQUEUE | Verdict.SUPPRESS_OR_REQUEUE | Verdict.CANARY | Verdict.HOLD:
            if case.requeues < limits.requeue_attempts:
                return Send(Plan.CANARY if verdict is Verdict.CANARY else Plan.REQUEUE)
            return _later(case, limits, tried)
    raise AssertionError(verdict)  # mypy proves that all verdicts are handled; this is for the reader


def trusted(window: timedelta | None) -> timedelta | None:
    """How long after a claim a broker with this duplicate ``window`` surely drops a repeat of its send; None: never.

    Shorter than the window, because its clock isn't ours, and a request that was made in time may arrive late.
    """
    if window is None or window <= LEAST_MARGIN:
        return None
    return window - max(LEAST_MARGIN, window / 5)


def is_automatic(cause: Cause | None, overrides: Mapping[Cause, Verdict]) -> bool:
    """Whether messages of this cause go again by themselves on this route, so that a held group may try again later."""
    return cause is None or overrides.get(cause, PROFILES[cause].verdict).automatic


def _without_cause(case: Case, limits: Limits) -> Decision:
    if case.kind == "delay":
        return _later(case, limits, f"Its consumer asked for later {_times(case.delays, 'time')}.")
    return Escalate("It was taken in without being classified, for a restore that did not put it back.")


def _later(case: Case, limits: Limits, exhausted: str) -> Decision:
    if case.delays >= limits.delay_attempts:
        return Escalate(exhausted)
    longest = backoff.cap(case.delays + 1, first=limits.first, factor=limits.factor, longest=limits.longest)
    return Send(Plan.DELAY, longest, min(limits.least, longest))


def _why(case: Case) -> str:
    assert case.cause is not None  # noqa: S101 - the caller handled it
    after = f" {_came_back(case)}" if case.attempts else ""
    return f"{case.cause}: {PROFILES[case.cause].meaning}{after}"


def _came_back(case: Case) -> str:
    if not case.attempts:
        return "The route allows no redelivery of it."
    return f"It came back after {_times(case.attempts, 'redelivery', 'redeliveries')}."


def _times(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
