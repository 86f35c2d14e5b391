"""Where the messages that a run would take are already: the counts of a dry run, beside what is to be decided."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.delivery import aiming, ordering, planning
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.engine import parse_instant, sql
from redrive.ledger.predicates import IS_SEND, TO_ASK, listed, too_old
from redrive.ledger.selecting import Condition, Selection
from redrive.lifecycle import Plan
from redrive.policy.aims import Aims


class RefusedCount(NamedTuple):
    """Messages of a group that the next plan gives up before it looks at their gate, and why."""

    group_id: int | None
    cause: str | None
    why: str
    messages: int


def refused(enqueued_before: datetime, aims: Aims) -> Condition:
    """What the next plan gives up: messages first enqueued before ``enqueued_before``, and messages that are to be sent
    and for which ``aims`` know no destination."""
    to, values = aiming.target(aims)
    lost = f"messages.state <> 'classified' and {IS_SEND} and {to} is null"
    return Condition(
        f"(messages.state in {listed(planning.EXPIRES)} and ({too_old()} or {lost}))",
        {**values, "enqueued_at": enqueued_before},
    )


def by_aim(refused: Condition, aims: Aims) -> dict[bool, Condition]:
    """What to leave out beside what is ``refused``, for the messages of which ``aims`` know where to, and for those
    of which they don't."""
    to, values = aiming.target(aims)
    return {
        aimed: Condition(f"({refused.sql} or {to} is {other})", {**refused.values, **values})
        for aimed, other in ((True, "null"), (False, "not null"))
    }


def refused_counts(
    connection: Connection, route: str, selection: Selection, condition: Condition
) -> list[RefusedCount]:
    """The selected messages that :func:`refused` is true of."""
    where, values = selection.where()
    rows = connection.execute(
        sql(
            f"select group_id, cause, case when {too_old()} then cast(:old as text) else cast(:lost as text) end"
            f" as why, count(*) as n from messages where route = :route and {condition.sql} and {where}"
            " group by 1, 2, 3"
        ),
        {"route": route, "old": planning.TOO_OLD, "lost": aiming.LOST, **condition.values, **values},
    )
    return [RefusedCount(row.group_id, row.cause, row.why, row.n) for row in rows]


class HeldCount(NamedTuple):
    """Messages behind the gate of a group."""

    messages: int = 0
    may_go: int = 0  # of these, as far as their order allows
    released: int = 0  # of these, the ones that a person released


def held(connection: Connection, route: str, selection: Selection, in_order: InOrder | None) -> dict[int, HeldCount]:
    """How many selected messages are held behind the gate of each group, and not by stuck consumers."""
    where, values = selection.where()
    may_go = "1"
    if in_order:
        may_go = f"case when {ordering.may_go('messages')} then 1 else 0 end"
        values |= ordering.values(in_order.drained_to)
    rows = connection.execute(
        sql(
            f"select group_id, count(*) as n, sum({may_go}) as may_go,"
            f" sum(case when plan = '{Plan.RELEASE}' then 1 else 0 end) as released from messages where route = :route"
            f" and state = 'held' and kind <> 'delay' and plan <> 'hold' and group_id is not null and {where}"
            " group by group_id"
        ),
        {"route": route, **values},
    )
    return {row.group_id: HeldCount(row.n, row.may_go, row.released) for row in rows}


class ReviewCount(NamedTuple):
    """Messages of a group about which people are going to be asked."""

    group_id: int | None
    cause: str | None
    messages: int


def to_review(connection: Connection, route: str, selection: Selection) -> list[ReviewCount]:
    """The selected messages about which people are going to be asked."""
    where, values = selection.where()
    rows = connection.execute(
        sql(
            f"select group_id, cause, count(*) as n from messages where route = :route and {TO_ASK} and {where}"
            " group by group_id, cause"
        ),
        {"route": route, **values},
    )
    return [ReviewCount(row.group_id, row.cause, row.n) for row in rows]


class WaitingCount(NamedTuple):
    """Messages of a group that wait with the same plan to be sent; when the first and the last of them are due."""

    group_id: int | None
    cause: str | None
    plan: str
    gated: bool  # the gate of their group holds for them: they are not of a delay queue
    messages: int
    first_at: datetime
    last_at: datetime


def waiting(connection: Connection, route: str, selection: Selection, now: datetime) -> list[WaitingCount]:
    """The selected messages that wait to be sent; those that are due already are counted as due ``now``."""
    where, values = selection.where()
    rows = connection.execute(
        sql(
            "select group_id, cause, plan, kind <> 'delay' as gated, count(*) as n, min(next_attempt_at) as first_at,"
            " max(next_attempt_at) as last_at from messages where route = :route and state = 'waiting'"
            f" and {where} group by group_id, cause, plan, kind <> 'delay'"
        ),
        {"route": route, **values},
    )
    return [
        WaitingCount(
            row.group_id,
            row.cause,
            row.plan,
            bool(row.gated),
            row.n,
            max(now, parse_instant(row.first_at) or now),
            max(now, parse_instant(row.last_at) or now),
        )
        for row in rows
    ]


def templates(connection: Connection, route: str) -> dict[int, str]:
    """The templates of the groups that have open messages on the route."""
    rows = connection.execute(
        sql(
            "select group_id, template from failure_groups where group_id in (select distinct group_id from messages"
            " where route = :route and state in ('classified', 'waiting', 'held', 'to_review', 'expired', 'unknown'))"
        ),
        {"route": route},
    )
    return {row.group_id: row.template for row in rows}
