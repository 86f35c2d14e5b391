"""Where the messages that a run would take are already: the counts of a dry run, beside what is to be decided."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.engine import parse_instant, sql
from redrive.ledger.predicates import TO_ASK
from redrive.ledger.selecting import Selection


def held(connection: Connection, route: str, selection: Selection) -> dict[int, int]:
    """How many selected messages are held behind the gate of each group, and not by stuck consumers."""
    where, values = selection.where()
    rows = connection.execute(
        sql(
            "select group_id, count(*) as n from messages where route = :route and state = 'held' and kind <> 'delay'"
            f" and plan <> 'hold' and group_id is not null and {where} group by group_id"
        ),
        {"route": route, **values},
    )
    return {row.group_id: row.n for row in rows}


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
