"""Sends of which nobody knows whether they were made: made again, or for people to say."""

from datetime import datetime
from typing import Any, Literal

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import Plan, State


def destinations(connection: Connection, route: str) -> list[str]:
    """Queues to which the route has sends of unknown fate."""
    rows = connection.execute(
        sql("select distinct destination from messages where route = :route and state = 'unknown'"), {"route": route}
    )
    return sorted(row.destination for row in rows)


def decide(
    ledger: Ledger,
    lease: RouteLease,
    *,
    destination: str,
    plan: Literal[Plan.REPEAT, Plan.RESEND] | None,
    unknown_before: datetime,
    now: datetime,
    claimed_after: datetime | None = None,
    claimed_until: datetime | None = None,
    keyed: bool | None = None,
) -> int:
    """Sends to ``destination`` that are unknown, and were due, since before ``unknown_before`` get this ``plan``; with
    None people are to be asked. ``claimed_after`` and ``claimed_until`` limit it to sends that were claimed then, and
    ``keyed`` to messages that have a key, or none, by which a processed check could know them.
    """
    which = ""
    values: dict[str, Any] = {"destination": destination, "before_at": unknown_before}
    if claimed_after is not None:
        which += " and attempts.claimed_at > :after_at"
        values["after_at"] = claimed_after
    if claimed_until is not None:
        which += " and attempts.claimed_at <= :until_at"
        values["until_at"] = claimed_until
    if keyed is not None:
        which += f" and messages.message_key is {'not null' if keyed else 'null'}"
    where = (
        "route = :route and destination = :destination and exists (select 1 from redelivery_attempts attempts"
        " where attempts.message_id = messages.message_id and attempts.attempt = messages.attempts"
        " and attempts.unknown_at <= :before_at"
        f" and coalesce(attempts.due_at, attempts.unknown_at) <= :before_at{which})"
    )
    with ledger.under(lease, now) as tx:
        if plan is None:
            return move(
                tx,
                State.UNKNOWN,
                State.TO_REVIEW,
                where=where,
                values={
                    **values,
                    "why": "Nobody knows whether it was sent: a delivery ended between send and confirmation.",
                },
                set_="reason = :why, next_attempt_at = null",
                action=Action.PUT_TO_REVIEW,
                reason="Nobody knows whether it was sent.",
            )
        return int(
            tx.execute(
                sql(
                    "update messages set plan = :plan, reason = null where state = 'unknown'"
                    f" and coalesce(plan, '') <> :plan and {where}"
                ),
                {**values, "plan": plan},
            ).rowcount
        )
