"""What is due, by destination: of what claims are made, and what none can be made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.delivery import aiming, ordering
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import IS_STOPPED, TO_RESEND, WATCHED, due
from redrive.ledger.selecting import Selection
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import State
from redrive.message import as_tuples
from redrive.policy.aims import Aims


@dataclass(frozen=True, slots=True)
class NativeDelay:
    """How far ahead messages that wait out a delay may be sent, because the broker keeps the rest of it."""

    until: datetime  # due by then
    settled: datetime  # dead-lettered before: a processed check can be believed now and not only when they are due


class Lane(NamedTuple):
    """What is due for one destination; ``cause`` for a cause that is claimed apart, None for all others."""

    destination: str
    cause: str | None
    due: int


def of_due(
    connection: Connection,
    route: str,
    now: datetime,
    apart: Sequence[str] = (),
    selection: Selection = Selection(),  # noqa: B008 - frozen
    native_delay: NativeDelay | None = None,
    aims: Aims | None = None,
) -> list[Lane]:
    """Destinations with due messages, fullest first, with the causes ``apart`` in lanes of their own; with
    ``native_delay`` also those that a broker may be given early. With ``aims`` as they will be once they
    are aimed anew.

    A message without a destination is not among them.
    """
    where, values = selection.where()
    values |= native_delay_values(native_delay)
    to = "destination"
    if aims is not None:
        to, more = aiming.target(aims)
        values |= more
    named = {f"apart_{i}": cause for i, cause in enumerate(apart)}
    # Of none that is apart it isn't read: all that waits is gone through here.
    of = f"case when cause in ({', '.join(':' + name for name in named)}) then cause end" if named else "null"
    rows = connection.execute(
        sql(
            "select destination, cause, count(*) as due from"
            f" (select {to} as destination, cast({of} as text) as cause from messages"
            f" where route = :route and {due(due_by(native_delay))} and {where}) aimed"
            " where destination is not null group by destination, cause"
        ),
        {"route": route, "now": now, **values, **named},
    )
    found = [Lane(row.destination, row.cause, row.due) for row in rows]
    return sorted(found, key=lambda lane: (-lane.due, lane.destination, str(lane.cause)))


def of_resends(connection: Connection, route: str) -> list[Lane]:
    """Destinations for which unknown sends wait to be repeated."""
    rows = connection.execute(
        sql(
            f"select destination, count(*) as due from messages where route = :route and {TO_RESEND}"
            f" and destination is not null and not ({IS_STOPPED}) group by destination"
        ),
        {"route": route},
    )
    return [Lane(row.destination, None, row.due) for row in rows]


class Due(NamedTuple):
    """A message that may be claimed."""

    message_id: int
    destination: str | None
    body_bytes: int


def next_due(
    connection: Connection,
    route: str,
    now: datetime,
    after: int,
    most: int,
    selection: Selection = Selection(),  # noqa: B008 - frozen
    native_delay: NativeDelay | None = None,
) -> list[Due]:
    """The next ``most`` due messages with ids above ``after``, in the order of their ids, whatever their lane."""
    where, values = selection.where()
    rows = connection.execute(
        sql(
            "select message_id, destination, body_bytes from messages"
            f" where route = :route and {due(due_by(native_delay), in_id_order=True)}"
            f" and message_id > :after and {where} order by message_id limit :most"
        ),
        {"route": route, "now": now, "after": after, "most": most, **native_delay_values(native_delay), **values},
    )
    return list(as_tuples(Due, rows))


def due_by(native_delay: NativeDelay | None) -> str:
    """SQL for the moment by which a message has to be due to be sent now."""
    if native_delay is None:
        return ":now"
    return (
        "case when plan = 'delay' and coalesce(dead_lettered_at, received_at, :now) <= :settled_at"
        " then :ahead_at else :now end"
    )


def native_delay_values(native_delay: NativeDelay | None) -> dict[str, datetime]:
    """The parameters of :func:`due_by`, but for ``:now``."""
    return {} if native_delay is None else {"ahead_at": native_delay.until, "settled_at": native_delay.settled}


def not_drained_past(connection: Connection, route: str, drained_to: datetime | None, now: datetime) -> int:
    """How many due messages with an order key wait for the sources to be drained past them."""
    return int(
        connection.execute(
            sql(
                f"select count(*) from messages where route = :route and {due()}"
                f" and order_key is not null and not {ordering.staged('messages')}"
            ),
            {"route": route, "now": now, **ordering.values(drained_to)},
        ).scalar_one()
    )


def kept_by_broker(connection: Connection, route: str, destination: str, now: datetime) -> int:
    """How many of the route's sends the broker still keeps from ``destination`` because they are not due."""
    return int(
        connection.execute(
            sql(
                "select count(*) from delivery_slices inner join redelivery_attempts attempts"
                " on attempts.slice_id = delivery_slices.slice_id where delivery_slices.route = :route"
                f" and {WATCHED} and delivery_slices.last_sent_at > :now"
                " and delivery_slices.destination = :destination and attempts.due_at > :now"
                " and attempts.sent_at is not null"
            ),
            {"route": route, "destination": destination, "now": now},
        ).scalar_one()
    )


def sent_to(connection: Connection, route: str) -> list[str]:
    """Where messages of the route were ever sent."""
    rows = connection.execute(
        sql("select distinct destination from delivery_slices where route = :route"), {"route": route}
    )
    return [row.destination for row in rows]


def refuse_destination(ledger: Ledger, lease: RouteLease, destination: str, reason: str, now: datetime) -> int:
    """People are to be asked about due messages and due resends for a destination that can't be sent to."""
    with ledger.under(lease, now) as tx:
        return sum(
            move(
                tx,
                state,
                State.TO_REVIEW,
                where=f"route = :route and destination = :destination and {which}",
                values={"destination": destination, "why": reason},
                set_="reason = :why, next_attempt_at = null",
                action=Action.REFUSE_DESTINATION,
                reason=reason,
            )
            for state, which in ((State.WAITING, due()), (State.UNKNOWN, TO_RESEND))
        )
