"""Replay what happened under another policy: what would have been redelivered, returned, escalated.

Pure: the ledger's history goes in as counts of messages that went the same way, numbers come out. Only what was tried
is known. Where the other policy goes on after the last try, the outcome is not known, and is counted as that and not
guessed. A gate is replayed with the share of first sends of its group that returned, as if returns were spread evenly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from redrive.classification.causes import Cause
from redrive.lifecycle import Plan
from redrive.policy import gates, next_step
from redrive.policy.next_step import Case, Discard, Escalate, Limits

Fate = Literal["none", "returned", "stayed", "open"]
#: A replay needs no clock: gates only compare with it.
_NOW = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class History:
    """Messages that went the same way, as far as the machine decided it."""

    kind: str  # dead_letter | delay | import
    cause: Cause | None
    group_id: int | None
    carried: int  # attempts that another ledger had made before
    sends: int  # redeliveries by the machine; all but the last one returned
    fate: Fate  # of the last one; open: not known, or not known yet
    state: Literal["suppressed", "discarded", "held", "other"]  # suppressed: a processed check knew it
    escalated: bool  # it was put before a person
    messages: int


@dataclass(frozen=True, slots=True)
class Tally:
    """How many messages (``sends`` and ``returns``: redeliveries) ended how. The ends add up to ``messages``."""

    messages: int = 0
    redelivered: int = 0  # at least once
    sends: int = 0
    returns: int = 0
    stayed: int = 0  # end: a redelivery did not come back
    escalated: int = 0  # end: put before a person
    given_up: int = 0  # of those escalated: a later redelivery did stay away in truth
    held: int = 0  # end: behind a gate that a cool-down opens again
    suppressed: int = 0  # end: processed already
    discarded: int = 0  # end: the route discards these
    not_known: int = 0  # end: sent, or still to be sent, and nobody knows what became of it
    longest_wait: timedelta = timedelta(0)  # all backoff of one message together, at its longest

    def __add__(self, other: "Tally") -> "Tally":
        mine, theirs = ({f.name: getattr(one, f.name) for f in fields(Tally)} for one in (self, other))
        longest = max(mine.pop("longest_wait"), theirs.pop("longest_wait"))
        return Tally(**{name: mine[name] + theirs[name] for name in mine}, longest_wait=longest)


@dataclass(frozen=True, slots=True)
class Row:
    """One cause and group: what was, and what would have been."""

    cause: Cause | None
    group_id: int | None
    was: Tally
    would: Tally
    gate: str | None = None  # how the group's canary would have ended, where that matters


@dataclass(slots=True)
class _Passage:
    """How many of a group's messages get through its gate, and what becomes of the others."""

    through: int
    rest: Literal["escalated", "held", "not_known"] = "not_known"
    stops: bool = False  # the gate stopped: what returns goes the way of the rest
    words: str | None = None


def replay(histories: Iterable[History], limits: Limits, rules: gates.Rules) -> list[Row]:
    """What was and what would have been, per cause and group, largest first."""
    groups: dict[tuple[Cause | None, int | None], list[History]] = {}
    for one in histories:
        groups.setdefault((one.cause, one.group_id), []).append(one)
    rows = []
    for (cause, group_id), some in groups.items():
        was = sum((_was(one) for one in some), Tally())
        would, words = _would(some, limits, rules)
        rows.append(Row(cause, group_id, was, would, words))
    return sorted(rows, key=lambda row: (-row.was.messages, str(row.cause), row.group_id or 0))


def _was(one: History) -> Tally:
    """What the ledger says became of them."""
    count = one.messages
    returns = one.sends - (one.fate in ("stayed", "open") and one.sends > 0)
    if one.fate == "stayed":
        end = "stayed"
    elif one.escalated:
        end = "escalated"
    else:
        end = "not_known" if one.state == "other" else one.state
    return _ended(Tally(count, count if one.sends else 0, count * one.sends, count * returns), end)


def _ended(tally: Tally, end: str) -> Tally:
    """The tally with all of its messages ended one way."""
    named: dict[str, Any] = {end: tally.messages}
    return replace(tally, **named)


def _would(some: Sequence[History], limits: Limits, rules: gates.Rules) -> tuple[Tally, str | None]:
    """What the policy would have made of one group."""
    gated, total = [], Tally()
    for one in some:
        if rules.canary and one.kind != "delay" and _is_sent(one, limits):
            gated.append(one)
        else:
            total += _chain(one, limits, None)
    if not gated:
        return total, None
    passage = _passage(gated, limits, rules)
    for one, through in zip(gated, _shares(passage.through, [one.messages for one in gated]), strict=True):
        if through:
            total += _chain(replace(one, messages=through), limits, passage)
        if stopped := one.messages - through:
            given_up = stopped if passage.rest == "escalated" and one.fate == "stayed" else 0
            total += _ended(Tally(stopped, given_up=given_up), passage.rest)
    return total, passage.words


def _is_sent(one: History, limits: Limits) -> bool:
    return isinstance(next_step.decide(_case(one, 0, 0), limits), next_step.Send) and not (
        one.state == "suppressed" and not one.sends
    )


def _case(one: History, requeues: int, delays: int) -> Case:
    return Case(one.kind, one.cause, requeues, delays, one.carried + requeues + delays, released=False)


def _chain(one: History, limits: Limits, passage: _Passage | None) -> Tally:
    """One way, decision by decision, for as long as it is known what came of it."""
    count, requeues, delays, returns, waited = one.messages, 0, 0, 0, timedelta(0)
    end, given_up = "not_known", 0
    while True:
        sends = requeues + delays
        decision = next_step.decide(_case(one, requeues, delays), limits)
        if isinstance(decision, Discard):
            end = "discarded"
            break
        if isinstance(decision, Escalate):
            end = "escalated"
            # A suppressed one was known as processed: it would have been found before it met a person, too.
            if one.state == "suppressed" and sends == one.sends:
                end = "suppressed"
            elif one.fate == "stayed":
                given_up = count
            break
        # Nothing is held here: how consumers were then isn't known.
        if not isinstance(decision, next_step.Send) or (one.state == "suppressed" and sends == one.sends):
            end = "suppressed"
            break
        if decision.mode is Plan.DELAY:
            delays += 1
        else:
            requeues += 1
        waited += decision.within
        sends += 1
        if sends > one.sends:
            break  # nobody ever tried that
        if sends < one.sends or one.fate == "returned":
            returns += 1
            if passage is not None and passage.stops:
                end = passage.rest
                given_up = count if end == "escalated" and one.fate == "stayed" else 0
                break
            continue
        if one.fate == "stayed":
            end = "stayed"
        break
    sends = requeues + delays
    redelivered = count if sends else 0
    return _ended(
        Tally(count, redelivered, count * sends, count * returns, given_up=given_up, longest_wait=waited), end
    )


def _passage(gated: Sequence[History], limits: Limits, rules: gates.Rules) -> _Passage:
    """Let the group's messages meet its gate, stage by stage."""
    total = sum(one.messages for one in gated)
    returned = sum(one.messages for one in gated if one.sends > 1 or (one.sends and one.fate == "returned"))
    known = returned + sum(one.messages for one in gated if one.sends == 1 and one.fate == "stayed")
    if not known:
        words = "nobody knows how its canary ends: none of it was ever sent and seen"
        return _Passage(min(rules.first, total), words=words if total > rules.first else None)
    share, cause = returned / known, gated[0].cause
    passing = next_step.is_automatic(cause, limits.verdicts)
    stage, allowed, through, trips = gates.Stage.CANARY, rules.first, 0, 0
    while through < total:
        size = min(allowed, total - through)
        back = round(size * share)
        through += size
        seen = gates.Counts(stage, allowed, size, size - back, back, trips, None, 0, total - through)
        taken = gates.step(seen, rules, passing=passing, now=_NOW)
        if taken is None or taken.stage == "open":
            break
        if taken.stage in ("failed", "tripped"):
            words = f"{stage} of {size}: {taken.stage}, about {share:.0%} come back"
            return _Passage(through, "escalated" if taken.stage == "failed" else "held", stops=True, words=words)
        stage, allowed, trips = taken.stage, taken.allowed, taken.trips
    return _Passage(total, words="passed")


def _shares(whole: int, parts: Sequence[int]) -> list[int]:
    """``whole`` dealt out to parts in proportion to them, in whole numbers: the largest remainders get the rest."""
    total = sum(parts)
    if whole >= total:
        return list(parts)
    dealt = [whole * part // total for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: (-(whole * parts[i] % total), i))
    for i in by_remainder[: whole - sum(dealt)]:
        dealt[i] += 1
    return dealt


def total(rows: Iterable[Row]) -> Mapping[str, Tally]:
    """All rows together: ``was`` and ``would``."""
    listed = list(rows)
    return {
        "was": sum((row.was for row in listed), Tally()),
        "would": sum((row.would for row in listed), Tally()),
    }
