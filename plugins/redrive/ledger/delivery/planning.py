"""Which cases are to be decided, and each decision applied to the whole set of its messages; the too old expire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.classification.causes import Cause
from redrive.ledger.delivery import breakers
from redrive.ledger.dialects import Dialect
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import TO_PLAN, listed, too_old
from redrive.ledger.selecting import Selection, stage_selection
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import SENDS, Plan, State
from redrive.policy import backoff
from redrive.policy.gates import OF_GROUPS, Stage
from redrive.policy.next_step import Case, Consumers, Decision, Discard, Escalate, Hold, Send

#: What is given up once it is too old, and why.
EXPIRES = (State.CLASSIFIED, State.WAITING, State.HELD)
TOO_OLD = "It is older than the route's give_up_after."
_NOBODY_TELLS: Mapping[str, Consumers] = MappingProxyType({})


def _consumers(known: Mapping[str, Consumers]) -> tuple[str, dict[str, str]]:
    """SQL for how the consumers of a message's destination are, and its parameters; null where nobody tells."""
    values = {f"consumed_{place}": queue for place, queue in enumerate(sorted(known))}
    cases = "".join(f" when messages.destination = :{name} then '{known[queue]}'" for name, queue in values.items())
    return f"case{cases} end" if cases else "cast(null as text)", values


@dataclass(frozen=True, slots=True)
class CaseCount:
    """A distinct case among the messages to plan, and how many there are."""

    case: Case
    group_id: int | None
    source: str
    messages: int


#: SQL: the source of a message's newest copy, as far as it matters: a delay source says how long it waits.
_SOURCE = """
case
    when messages.kind <> 'delay' then messages.source
    else coalesce(
        (select newest.source from repeat_copies newest where newest.copy_id = messages.copy_id), messages.source
    )
end
"""
#: SQL: when the newest copy was put into its delay source. What came back after a redelivery was put there since then,
#: whatever a header says; where no time of since then is told, it counts from when it was drained.
_PUT_THERE = """
coalesce(
    (
        select
            case
                when messages.dead_lettered_at > sent.claimed_at then messages.dead_lettered_at
                when newest.enqueued_at > sent.claimed_at then newest.enqueued_at
                else messages.received_at
            end
        from repeat_copies newest
        inner join redelivery_attempts sent
            on sent.message_id = newest.message_id and sent.attempt = newest.attempt
        where newest.copy_id = messages.copy_id
    ),
    messages.dead_lettered_at, messages.first_enqueued_at, messages.changed_at
)
"""
#: The distinct cases of what the plan decides about, and how many messages each has.
_CASES = f"""
select kind, cause, group_id, source, requeues, delays, attempts, released, consumers, count(*) as n
from (
    select
        kind, cause, group_id, {_SOURCE} as source, requeues, delays, attempts, releases > 0 as released,
        {{consumers}} as consumers
    from messages
    where route = :route and {TO_PLAN} and {{selected}}
) undecided
group by kind, cause, group_id, source, requeues, delays, attempts, released, consumers
"""


def cases(
    connection: Connection, route: str, selection: Selection, consumers: Mapping[str, Consumers] = _NOBODY_TELLS
) -> list[CaseCount]:
    """The distinct cases among the route's messages that are to be decided: those that are classified, and those that
    are held until the ``consumers`` (of each destination) are well."""
    where, values = selection.where()
    how, more = _consumers(consumers)
    statement = _CASES.format(selected=where, consumers=how)
    rows = connection.execute(sql(statement), {"route": route, **values, **more}).all()
    return [
        CaseCount(
            Case(
                kind=row.kind,
                cause=Cause(row.cause) if row.cause is not None and row.kind != "delay" else None,
                requeues=row.requeues,
                delays=row.delays,
                attempts=row.attempts,
                released=bool(row.released),
                consumers=row.consumers,
            ),
            row.group_id,
            row.source,
            row.n,
        )
        for row in rows
    ]


#: SQL: the row of ``decisions`` that decides about a message: that of its case.
_DECIDED_BY = f"""
messages.route = :route and {{selected}}
and decisions.consumers = coalesce({{consumers}}, '')
and decisions.kind = messages.kind
and decisions.cause = case when messages.kind = 'delay' then '' else coalesce(messages.cause, '') end
and decisions.group_id = coalesce(messages.group_id, 0)
and decisions.source = {_SOURCE}
and decisions.requeues = messages.requeues
and decisions.delays = messages.delays
and decisions.attempts = messages.attempts
and decisions.released = case when messages.releases > 0 then 1 else 0 end
"""
#: SQL: the gate of the message's group doesn't let all go.
_IS_GATED = """
messages.kind <> 'delay' and exists (
    select 1 from breakers gate
    where gate.route = messages.route and gate.group_id = messages.group_id and gate.stage <> 'open'
)
"""
#: SQL for a SET: nothing is sent, for the reason of the decision.
_BECAUSE = "reason = decisions.reason, next_attempt_at = null"
#: SQL for a SET: what is sent, and when: after its own delay, or after its backoff and when a processed check can be
#: believed, whichever is later.
_PLANNED = """
plan = decisions.what,
reason = decisions.reason,
next_attempt_at = case
    when decisions.own_delay is not null then {own_delay_over}
    when decisions.within is null then null
    else {due}
end
"""


def _planned(dialect: Dialect, settle_after: timedelta) -> str:
    jitter = backoff.dice_sql("messages.message_id", "(messages.attempts + 1)")
    due = dialect.later(":now", f"decisions.least + (decisions.within - decisions.least) * {jitter}")
    if settle_after:
        died = "coalesce(messages.dead_lettered_at, messages.received_at, :now)"
        due = dialect.latest(due, dialect.later(died, str(settle_after.total_seconds())))
    # Not after it was drained, however far ahead the clock is that told: it would wait for that.
    put_there = dialect.earliest(_PUT_THERE, "coalesce(messages.received_at, :now)")
    return _PLANNED.format(own_delay_over=dialect.later(put_there, "decisions.own_delay"), due=due)


def apply(
    ledger: Ledger,
    lease: RouteLease,
    decisions: Sequence[tuple[CaseCount, Decision]],
    *,
    selection: Selection,
    delays: Mapping[str, timedelta],
    settle_after: timedelta,
    now: datetime,
    consumers: Mapping[str, Consumers] = _NOBODY_TELLS,
) -> dict[str, int]:
    """Move every classified message to where its decision puts it: those that will be sent behind their gate, with
    their plan and time.

    ``delays`` gives each delay source its own delay, counted from when the copy was put there. Nothing goes out
    before ``settle_after`` has passed since the copy was dead-lettered (or drained, where the broker doesn't
    tell): a processed check could not be believed before; zero where there is none. What was held can be discarded
    only by a person. The decisions may be about more messages than the selection takes. ``consumers`` are what
    :func:`cases` was told.
    """
    if not decisions:
        return {"planned": 0, "waiting": 0, "held": 0, "to_review": 0, "discarded": 0}
    where, values = selection.where()
    with ledger.under(lease, now) as tx:
        stage_selection(ledger, tx.connection, selection)
        tx.temporary(
            "decisions",
            "kind text, cause text, group_id bigint, source text, requeues int, delays int, attempts int,"
            " released int, consumers text, what text, reason text, least double precision, within double precision,"
            " own_delay double precision,"
            # SQLite would look at every message for every decision
            " unique (group_id, cause, kind, source, requeues, delays, attempts, released, consumers)",
        )
        tx.bulk("decisions",
            ("kind", "cause", "group_id", "source", "requeues", "delays", "attempts", "released", "consumers",
             "what", "reason", "least", "within", "own_delay"),
            list({row[:9]: row for row in (_decision_row(*one, delays) for one in decisions)}.values()),
        )  # fmt: skip
        how, more = _consumers(consumers)
        mine = _DECIDED_BY.format(selected=where, consumers=how)
        planned = _planned(ledger.dialect, settle_after)
        values = {**values, **more}
        decided = {_what(decision) for _, decision in decisions}

        def to(source: State, target: State, *what: str, that: str = "1 = 1", **options: Any) -> int:
            """Move what was decided so; no statement for what no case was decided to."""
            if not decided.intersection(what):
                return 0
            return move(
                tx,
                source,
                target,
                from_="decisions",
                where=f"{mine} and decisions.what in {listed(what)} and {that}",
                values=values,
                action=Action.PLAN,
                **options,
            )

        # What is held until the consumers are well comes first: else it would be what is held now.
        was_held = "messages.plan = 'hold'"
        to_review = to(State.HELD, State.TO_REVIEW, "escalate", "discard", that=was_held, set_=_BECAUSE)
        # It goes on with those that its group's gate lets through; here what has no group.
        waiting = to(
            State.HELD, State.WAITING, *SENDS, that=f"{was_held} and messages.group_id is null", set_=planned,
            reason="The consumers of its destination are well.",
        )  # fmt: skip
        replanned = tx.execute(
            sql(
                f"update messages set {planned} from decisions where messages.state = 'held' and {was_held} and {mine}"
                f" and decisions.what in {listed(SENDS)}"
            ),
            values,
        ).rowcount
        to_review += to(State.CLASSIFIED, State.TO_REVIEW, "escalate", set_=_BECAUSE)
        held = 0
        if breakers.has_gates_at(tx.connection, tx.route, *(stage for stage in OF_GROUPS if stage != Stage.OPEN)):
            held += to(
                State.CLASSIFIED,
                State.HELD,
                *SENDS,
                that=_IS_GATED,
                set_=planned,
                reason="The gate of its group is not open.",
            )
        held += to(
            State.CLASSIFIED, State.HELD, Plan.HOLD, set_=planned, reason="Consumers of its destination are stuck."
        )
        waiting += to(State.CLASSIFIED, State.WAITING, *SENDS, set_=planned)
        discarded = to(State.CLASSIFIED, State.DISCARDED, "discard", set_=_BECAUSE)
    return {
        "planned": to_review + waiting + held + discarded + replanned,
        "waiting": waiting,
        "held": held,
        "to_review": to_review,
        "discarded": discarded,
    }


def _what(decision: Decision) -> str:
    """A decision as a word: the plan, or that there is none."""
    match decision:
        case Send(mode=mode):
            return mode
        case Hold():
            return Plan.HOLD
        case Escalate():
            return "escalate"
        case Discard():
            return "discard"


def _decision_row(count: CaseCount, decision: Decision, delays: Mapping[str, timedelta]) -> tuple[Any, ...]:
    case = count.case
    reason, least, within, own = None, None, None, None
    match decision:
        case Send(within=limit, least=shortest):
            least, within = shortest.total_seconds(), limit.total_seconds()
            if case.kind == "delay":
                own = delays[count.source].total_seconds() if count.source in delays else 0.0
        case Hold(reason=why) | Escalate(reason=why) | Discard(reason=why):
            reason = why
    return (
        case.kind,
        "" if case.cause is None else case.cause.value,
        count.group_id or 0,
        count.source,
        case.requeues,
        case.delays,
        case.attempts,
        int(case.released),
        case.consumers or "",
        _what(decision),
        reason,
        least,
        within,
        own,
    )


def expire(ledger: Ledger, lease: RouteLease, *, enqueued_before: datetime, now: datetime) -> int:
    """Messages first enqueued before ``enqueued_before`` are given up and go to review; releases are spared. Where the
    broker doesn't tell when that was, or tells of a time that was still to come, it counts when they were drained."""
    total = 0
    with ledger.under(lease, now) as tx:
        for state in EXPIRES:
            total += move(
                tx,
                state,
                State.EXPIRED,
                where=f"route = :route and {too_old()}",
                values={"enqueued_at": enqueued_before, "why": TOO_OLD},
                set_="reason = :why, next_attempt_at = null",
                action=Action.EXPIRE,
                reason=TOO_OLD,
            )
    return total
