"""Dry run: what the next run would do with what is staged and loaded already; nothing is changed anywhere."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.brokers import open_broker
from redrive.brokers.base import Broker
from redrive.connections import storage
from redrive.ledger import leases, schema
from redrive.ledger.delivery import breakers, consumers, dry_run, lanes, planning, unknown_sends
from redrive.ledger.delivery.aiming import LOST
from redrive.ledger.delivery.breakers import GroupGate
from redrive.ledger.delivery.dry_run import HeldCount, WaitingCount
from redrive.ledger.delivery.planning import CaseCount
from redrive.ledger.delivery.unknown_sends import Rule
from redrive.ledger.drain import batches
from redrive.ledger.drain.keys import to_renew
from redrive.ledger.engine import Ledger, parse_instant
from redrive.ledger.review import applying
from redrive.ledger.selecting import Selection, refuse_unknown_groups, stage_selection
from redrive.lifecycle import RESENDS, Plan
from redrive.policy import gates, next_step
from redrive.policy.aims import Aims
from redrive.policy.gates import Stage, Step
from redrive.policy.next_step import Discard, Escalate, Hold, Send
from redrive.redaction import Redactor, redactor, said_by
from redrive.settings import Route, Settings
from redrive.stages import aiming, attributes, keys, plan, resolve, source_expansion

#: What a run still decides about.
OPEN = "state in ('classified', 'waiting', 'held', 'to_review', 'expired', 'unknown')"
#: What is said of sends of which nobody knows whether they were made, by what becomes of them.
_OF_UNKNOWN = {
    Plan.RESEND: "Nobody knows whether it was sent, and it did not come back: it is sent again.",
    Plan.REPEAT: "Nobody knows whether it was sent: it is sent again, and the broker drops the second of two.",
    "review": "Nobody knows whether it was sent, and nothing would notice a double: a person is asked.",
    "wait": "Nobody knows whether it was sent: it may still come back, or prove processed.",
}


def preview(
    settings: Settings,
    route: str,
    selection: Selection,
    *,
    now: datetime,
    broker: Broker | None = None,
    ledger: Ledger | None = None,
) -> dict[str, Any]:
    """The plan per group (verdict, count, why, when; of what waits already, when the first and ``until`` the last are
    due), the sentences of what ``bounds`` the next run beside it, and what a dry run can't see. Reads the ledger, and
    for a selection by attributes staged headers.

    The broker isn't asked for messages: receiving counts a delivery and hides messages from others, so peeking would
    change it. Where sends of unknown fate are to be decided about, it is asked what it does with a second one.

    A ``broker`` or a ``ledger`` that is given stays open; without one, that of the settings is opened and closed.
    """
    if ledger is None:
        own = Ledger(settings.database)
        try:
            return preview(settings, route, selection, now=now, broker=broker, ledger=own)
        finally:
            own.close()
    known = settings.route(route)
    source_expansion.refuse_unknown_sources(selection, known)
    limits, rules = plan.policy_limits(known), plan.gate_rules(known)
    schema.check(ledger)
    refuse_unknown_groups(ledger, selection)
    known, selection = source_expansion.of_ledger(ledger, route, known, selection)
    seen = _Seen(known, aiming.configured(known), _rules(ledger, route, known, broker, now), now)
    if selection.attributes:
        staging = storage.staging(settings)
        try:
            for part in attributes.parts(ledger, staging, route, selection, where=OPEN):
                seen.look(ledger, route, part, now)
        finally:
            staging.close()
    else:
        seen.look(ledger, route, selection, now)
    with ledger.read() as connection:
        current = [_begun(gate, rules) for gate in breakers.of_groups(connection, route)]
        behind = {
            gate.group_id: _Gate(gate, plan.step_of(connection, route, gate, rules, limits.verdicts, now))
            for gate in current
        }
        staged = batches.unloaded(connection, route)
        mask = redactor(known)
        templates = {group: mask(text) for group, text in dry_run.templates(connection, route).items()}
        bounds = _bounds(connection, route, selection, now, mask, approvals=known.approvals)
        if by_former_keys := to_renew(connection, route, keys.selectors(known)):
            bounds.append(
                f"keys are taken anew first, as the configuration names others (batches: {len(by_former_keys):,}):"
                " what is said here of order, and of sends of which nobody knows whether they were made, may differ"
            )
        is_part = replace(selection, limit=None) != Selection()
        if is_part and (beside := seen.given_up_beside(connection, route, behind, now)):
            bounds.append(f"{beside:,} messages beside these expire or are put to people, as in every run")
    rows = [*_of_cases(seen, behind, known, rules, now), *_of_planned(seen, behind, known, now)]
    return {
        "route": route,
        "plan": [
            {
                "group": one.group,
                "cause": one.cause,
                "template": templates.get(one.group or 0),
                "messages": one.messages,
                "verdict": one.verdict,
                "why": one.why,
                "when": one.when,
                **({"until": one.until} if one.until is not None else {}),
            }
            for one in sorted(rows, key=lambda one: (-one.messages, str(one.group)))
        ],
        "due_now": [{"destination": queue, "messages": due} for queue, due in seen.due.most_common()],
        "bounds": bounds,
        "not_seen": {
            "staged_but_not_classified": sum(batch.copies for batch in staged),
            "in_the_sources": "not looked at: receiving would count a delivery and hide messages from others",
        },
    }


class _Row(NamedTuple):
    """What becomes of some messages of a group."""

    group: int | None
    cause: str | None
    messages: int
    verdict: str
    why: str
    when: str | datetime | None
    until: datetime | None = None  # of several that are due one after the other, when the last is


def _of_cases(
    seen: "_Seen", behind: Mapping[int, "_Gate"], route: Route, rules: gates.Rules, now: datetime
) -> Iterator[_Row]:
    """What is decided about for the first time, or again: as far as its group's gate lets it go beside what it holds
    already. A group that has none yet gets one."""
    limits = plan.policy_limits(route)
    delays = {source.queue: source.delay or timedelta(0) for source in route.sources if source.kind == "delay"}
    rooms = {group: gate.room(seen.held.get(group, HeldCount())) for group, gate in behind.items()}
    for one, is_aimed in seen.cases():
        decision = next_step.decide(one.case, limits)
        verdict, why, when = _words(decision, one.case.kind, delays.get(one.source), now)
        if isinstance(decision, Send) and not is_aimed:
            decision, verdict, why, when = Escalate(LOST), "escalate", LOST, now
        cause = one.case.cause.value if one.case.cause else None
        gated = isinstance(decision, Send) and one.case.kind != "delay" and one.group_id is not None
        room = rooms.setdefault(one.group_id or 0, rules.first if rules.canary else None) if gated else None
        if room is None:
            yield _Row(one.group_id, cause, one.messages, verdict, why, when)
            continue
        gate, through = behind.get(one.group_id or 0), min(one.messages, room)
        rooms[one.group_id or 0] = room - through
        if through:
            lets = f"Its group's gate is at {gate.stage if gate else Stage.CANARY}, and lets {room:,} more go."
            yield _Row(one.group_id, cause, through, verdict, f"{why} {lets}", when)
        if through < one.messages:
            awaited = gate.awaited() if gate else _awaited(Stage.CANARY, rules.first)
            yield _Row(one.group_id, cause, one.messages - through, "hold", *awaited)


def _of_planned(seen: "_Seen", behind: Mapping[int, "_Gate"], route: Route, now: datetime) -> Iterator[_Row]:
    """What was decided about before: what waits, is held, is put to people, or was perhaps sent."""
    for waits in seen.waiting():
        gate = behind.get(waits.group_id or 0)
        stopped = gate.stopped(now, released=waits.plan == Plan.RELEASE) if gate and waits.gated else None
        if stopped:
            verdict, why, at = stopped
            yield _Row(waits.group_id, waits.cause, waits.messages, verdict, why, at)
        else:
            why = "It is planned already." if waits.last_at <= now else "It is planned already, and not due yet."
            yield _Row(waits.group_id, waits.cause, waits.messages, waits.plan, why, waits.first_at, waits.last_at)
    for asked, count in seen.to_review.items():
        yield _Row(*asked, count, "escalate", "It is planned already.", now)
    for (group, cause, why), count in seen.refused.items():
        yield _Row(group, cause, count, "escalate", why, now)
    checked = " Unless the processed check knows it." if route.processed_check else ""
    for (group, cause, fate), count in seen.unknown.items():
        verdict = "escalate" if fate == "review" else fate
        when = "once it is due and its observation window is over" if fate == "wait" else now
        yield _Row(group, cause, count, verdict, f"{_OF_UNKNOWN[fate]}{checked}", when)
    for group, gate in behind.items():
        for verdict, count, why, at in gate.of_held(seen.held.get(group, HeldCount()), now):
            if count:
                yield _Row(group, gate.now.cause, count, verdict, why, at)


class _Gate:
    """The gate of a group as it is now, and as the next plan leaves it by what is known."""

    def __init__(self, gate: GroupGate, step: Step | None) -> None:
        self.now = gate
        self._after: GroupGate = gate
        if step is not None:
            self._after = replace(gate, **asdict(step), sent=0, stayed=0, returned=0)

    @property
    def stage(self) -> Stage:
        return self._after.stage

    def room(self, held: HeldCount) -> int | None:
        """How many go of what comes to it, beside what it holds; None: all."""
        places = gates.quota(self._after)
        return None if places is None else max(0, places - held.may_go)

    def awaited(self) -> tuple[str, str | datetime | None]:
        """Why and until when it lets no more go."""
        gate = self._after
        if gate.stage == Stage.FAILED:
            return f"The canary of its group failed, so people are asked the next time: {gate.reason}", None
        if gate.stage == Stage.TRIPPED:
            return gate.reason or "Its group's gate is at tripped.", gate.cool_down_until
        return _awaited(gate.stage, gate.allowed)

    def stopped(self, now: datetime, *, released: bool) -> tuple[str, str, str | datetime | None] | None:
        """Verdict, why and when for all that is behind a gate that lets nothing go, as people ``released`` it or not;
        None for any other gate."""
        gate = self._after
        if gate.stage == Stage.FAILED:
            return "escalate", f"The canary of its group failed: {gate.reason}", now
        if gate.stage != Stage.TRIPPED:
            return None
        return (
            ("escalate", f"Its group keeps coming back: {gate.reason}", now) if released else ("hold", *self.awaited())
        )

    def of_held(self, held: HeldCount, now: datetime) -> list[tuple[str, int, str, str | datetime | None]]:
        """Verdict, how many, why and when for what it holds."""
        counts = {True: held.released, False: held.messages - held.released}
        if stopped := [
            (verdict, counts[released], why, when)
            for released in counts
            for verdict, why, when in filter(None, [self.stopped(now, released=released)])
        ]:
            return stopped
        gate, places = self._after, gates.quota(self._after)
        if places is None:
            return [("admit", held.messages, "Its group's gate is open.", now)]
        through = min(held.may_go, places)
        lets = f"Its group's gate is at {gate.stage}, and lets {places:,} more go."
        why, when = self.awaited()
        return [
            ("admit", through, lets, now),
            ("hold", held.may_go - through, why, when),
            ("hold", held.messages - held.may_go, "It waits for an earlier message of its key.", None),
        ]


def _begun(gate: GroupGate, rules: gates.Rules) -> GroupGate:
    """As :func:`breakers.open_gates` leaves a canary that is allowed nothing yet."""
    if gate.stage != Stage.CANARY or gate.allowed:
        return gate
    return replace(gate, allowed=rules.first) if rules.canary else replace(gate, stage=Stage.OPEN)


def _awaited(stage: Stage, allowed: int) -> tuple[str, None]:
    return f"Its group's gate is at {stage}: what becomes of {allowed:,} comes first.", None


def _bounds(
    connection: Connection, route: str, selection: Selection, now: datetime, mask: Redactor, *, approvals: int
) -> list[str]:
    """Why the next run does less than all of it, or more: a pause, decisions, a limit, stopped destinations."""
    said = []
    if paused := leases.pause_of(connection, route):
        said.append(f"the route is {said_by(mask, paused)}; no run begins until `redrive resume {route}`")
    decided = applying.left(connection, route)
    if ready := decided.decisions - (decided.not_approved if approvals > 1 else 0):
        said.append(f"{ready:,} decisions are carried out first; what they release, and its gates, is not told here")
    if selection.limit is not None:
        said.append(f"of what is due at most {selection.limit:,} are sent, as --limit says")
    for one in breakers.of_destinations(connection, route):
        until = parse_instant(one.cool_down_until)
        if one.stage == "tripped" and until is not None and until > now:
            said.append(f"nothing goes to {one.destination} until {until:%Y-%m-%d %H:%M:%S} UTC: {one.reason}")
        elif one.stage != "open":
            said.append(f"{one.destination} was stopped and is tried with a few: {one.reason}")
    return said


class _Seen:
    """What the selection takes, added up over its parts."""

    def __init__(self, route: Route, aims: Aims, rules: Mapping[str, Sequence[Rule]], now: datetime) -> None:
        self._route = route
        self._refused = dry_run.refused(now - route.give_up_after, aims)
        self._aims = aims
        self._rules = rules  # by destination
        self._cases: dict[tuple[next_step.Case, int | None, str, bool], int] = {}
        self.refused: Counter[tuple[int | None, str | None, str]] = Counter()  # by group, cause and why
        self.held: dict[int, HeldCount] = {}  # by group
        self.due: Counter[str] = Counter()  # by destination
        self.to_review: Counter[tuple[int | None, str | None]] = Counter()  # by group and cause
        self.unknown: Counter[tuple[int | None, str | None, str]] = Counter()  # by group, cause and fate
        self._waiting: dict[tuple[int | None, str | None, str, bool], WaitingCount] = {}

    def look(self, ledger: Ledger, route: str, selection: Selection, now: datetime) -> None:
        """Add what one part takes."""
        with ledger.read() as connection:
            stage_selection(ledger, connection, selection)
            for given_up in dry_run.refused_counts(connection, route, selection, self._refused):
                self.refused[given_up[:3]] += given_up.messages
            rest = replace(selection, apart=self._refused)
            consumed = consumers.states(connection, route, now=now)
            for is_aimed, apart in dry_run.by_aim(self._refused, self._aims).items():
                for one in planning.cases(connection, route, replace(selection, apart=apart), consumed):
                    key = (one.case, one.group_id, one.source, is_aimed)
                    self._cases[key] = self._cases.get(key, 0) + one.messages
            in_order = plan.in_order(connection, route, self._route)
            for group, behind in dry_run.held(connection, route, rest, in_order).items():
                before_it = self.held.get(group, HeldCount())
                self.held[group] = HeldCount(*(one + more for one, more in zip(before_it, behind, strict=True)))
            for asked in dry_run.to_review(connection, route, selection):
                self.to_review[asked[:2]] += asked.messages
            for waits in dry_run.waiting(connection, route, rest, now):
                before = self._waiting.get(waits[:4], waits._replace(messages=0))
                self._waiting[waits[:4]] = waits._replace(
                    messages=before.messages + waits.messages,
                    first_at=min(before.first_at, waits.first_at),
                    last_at=max(before.last_at, waits.last_at),
                )
            for lane in lanes.of_due(connection, route, now, selection=rest, aims=self._aims):
                self.due[lane.destination] += lane.due
            for destination, rules in self._rules.items():
                for sends in unknown_sends.fates(connection, route, destination, rules, selection):
                    self.unknown[sends[:3]] += sends.messages
                    if sends.fate in RESENDS:
                        self.due[destination] += sends.messages

    def given_up_beside(self, connection: Connection, route: str, behind: Mapping[int, "_Gate"], now: datetime) -> int:
        """How many messages that were not looked at expire, or are put to people, among them those ``behind`` gates
        that have failed, and what people released behind those that have tripped: a run does that whatever it is
        limited to."""
        everything = Selection()
        found = sum(one.messages for one in dry_run.refused_counts(connection, route, everything, self._refused))
        found += sum(one.messages for one in dry_run.to_review(connection, route, everything))
        found -= self.refused.total() + self.to_review.total()
        stopped = [group for group, gate in behind.items() if gate.stage in (Stage.FAILED, Stage.TRIPPED)]
        if not stopped:
            return found

        def asked(held: Mapping[int, HeldCount], waiting: Iterable[WaitingCount]) -> int:
            """How many of these are put to people."""
            failed = {group for group in stopped if behind[group].stage == Stage.FAILED}
            of_held = sum(held[group].messages if group in failed else held[group].released for group in held)
            return of_held + sum(
                one.messages for one in waiting if one.gated and (one.group_id in failed or one.plan == Plan.RELEASE)
            )

        of_stopped = Selection(groups=stopped, apart=self._refused)
        found += asked(
            dry_run.held(connection, route, of_stopped, None), dry_run.waiting(connection, route, of_stopped, now)
        )
        return found - asked(
            {group: held for group, held in self.held.items() if group in stopped},
            [one for one in self.waiting() if one.group_id in stopped],
        )

    def waiting(self) -> list[WaitingCount]:
        """What waits to be sent, by group, cause and verdict."""
        return list(self._waiting.values())

    def cases(self) -> Iterator[tuple[CaseCount, bool]]:
        """The distinct cases with their counts, apart where it is known where the messages would go."""
        for (case, group, source, is_aimed), count in self._cases.items():
            yield CaseCount(case, group, source, count), is_aimed


def _rules(ledger: Ledger, name: str, route: Route, broker: Broker | None, now: datetime) -> dict[str, list[Rule]]:
    """What the next run's ``resolve`` does with sends of unknown fate, by destination. Nothing is asked of the broker
    where there are none; raises :class:`~redrive.errors.BrokerError` where it has to be asked, and does not answer."""
    with ledger.read() as connection:
        destinations = unknown_sends.destinations(connection, name)
    if not destinations:
        return {}
    opened = broker or open_broker(route.broker, route.connection or "")
    try:
        window = resolve.observation_window(
            ledger, name, route, lambda: resolve.redrive_at_origins(opened, route).longest
        )
        return {queue: resolve.rules_of_unknown(route, opened, queue, window, now) for queue in destinations}
    finally:
        if broker is None:
            opened.close()


def _words(
    decision: next_step.Decision, kind: str, own_delay: timedelta | None, now: datetime
) -> tuple[str, str, str | datetime]:
    match decision:
        case Send(mode=mode, within=within, least=least):
            if kind == "delay":
                return mode, "Its consumer asked for later.", f"{own_delay} after it was put there"
            if within:
                return mode, "It backs off, with full jitter.", f"after {least} to {within}"
            return mode, "Its failure passes." if mode is Plan.REQUEUE else "A few are tried first.", now
        case Hold(reason=reason):
            return "hold", reason, "once they are well"
        case Escalate(reason=reason):
            return "escalate", reason, now
        case Discard(reason=reason):
            return "discard", reason, now
