"""What is known of the consumers of a route's destinations: who holds messages and gets nowhere."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, cast

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger import moves
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.transactions import MACHINE, RouteLease, Transaction

#: How long a consumer that left is remembered; where names are not given but drawn, each restart leaves some behind.
REMEMBERED = timedelta(days=7)
#: What was seen longer ago says nothing of how consumers are now.
RECENT = timedelta(hours=1)
_EVER = datetime(1970, 1, 1, tzinfo=UTC)


class Health(NamedTuple):
    """One consumer as it was assessed last."""

    consumer: str
    unacked: int
    progress: int
    last_progress_at: datetime  # when it last acked or held nothing, as far as we saw
    status: str  # healthy | stuck | isolated | gone
    isolated_at: datetime | None = None
    closed_at: datetime | None = None  # when the broker was asked to close its connection


def of_queue(connection: Connection, route: str, queue: str, *, since: datetime = _EVER) -> list[Health]:
    """What was written down last about the consumers of one queue, those that left included; only after ``since``."""
    rows = connection.execute(
        sql(
            "select consumer, unacked, progress, last_progress_at, observed_at, status, isolated_at,"
            " closed_at from consumer_health where route = :route and queue = :queue and observed_at > :since_at"
            " order by consumer"
        ),
        {"route": route, "queue": queue, "since_at": since},
    )
    return [
        Health(
            row.consumer,
            row.unacked or 0,
            row.progress or 0,
            cast("datetime", parse_instant(row.last_progress_at or row.observed_at)),
            row.status,
            parse_instant(row.isolated_at),
            parse_instant(row.closed_at),
        )
        for row in rows
    ]


def states(connection: Connection, route: str, *, now: datetime) -> dict[str, Literal["well", "stuck"]]:
    """How the consumers of each of the route's queues are, where that was seen within :data:`RECENT`.

    ``stuck`` where one of those that are there is, isolated or not; a queue that nobody consumes any more is ``well``.
    """
    rows = connection.execute(
        sql(
            "select queue, sum(case when status in ('stuck', 'isolated') then 1 else 0 end) as stuck"
            " from consumer_health where route = :route and observed_at > :since_at group by queue"
        ),
        {"route": route, "since_at": now - RECENT},
    )
    return {row.queue: "stuck" if row.stuck else "well" for row in rows}


def last_closing(connection: Connection, route: str, queue: str, *, since: datetime) -> datetime | None:
    """When, after ``since``, connections of the queue's consumers were closed last; None too where they stayed."""
    rows = connection.execute(
        sql(
            "select at, action, selection from audit_events where route = :route and at > :since_at"
            " and action in ('close_connection', 'connection_stayed') order by event_id desc"
        ),
        {"route": route, "since_at": since},
    )
    for row in rows:
        if json.loads(row.selection)["queue"] == queue:
            return parse_instant(row.at) if row.action == Action.CLOSE_CONNECTION else None
    return None


def write(ledger: Ledger, lease: RouteLease, queue: str, assessed: Sequence[Health], now: datetime) -> None:
    """Write down what was ``assessed``; each consumer that is isolated or freed is told of.

    When a connection was to be closed stays as it is there, but for consumers that are well: somebody who watches may
    have looked before. Who left more than :data:`REMEMBERED` ago is forgotten.
    """
    with ledger.under(lease, now) as tx:
        _write(tx, queue, assessed)


def write_unheld(ledger: Ledger, route: str, queue: str, assessed: Sequence[Health], now: datetime) -> None:
    """As :func:`write`, of somebody who only watches and holds no route."""
    with ledger.by(MACHINE, now, route=route) as tx:
        _write(tx, queue, assessed)


def _write(tx: Transaction, queue: str, assessed: Sequence[Health]) -> None:
    before = _known(tx, queue)
    tx.execute(
        sql(
            "delete from consumer_health where route = :route and queue = :queue and status = 'gone'"
            " and observed_at < :forget_before"
        ),
        {"queue": queue, "forget_before": tx.now - REMEMBERED},
    )
    for one in sorted(assessed):
        was = before.get(one.consumer)
        tx.execute(
            sql(
                "insert into consumer_health (route, queue, consumer, observed_at, last_progress_at, unacked,"
                " progress, status, isolated_at) values (:route, :queue, :consumer, :now,"
                " :last_progress_at, :unacked, :progress, :status, :isolated_at)"
                " on conflict (route, queue, consumer) do update set"
                " observed_at = excluded.observed_at, last_progress_at = excluded.last_progress_at,"
                " unacked = excluded.unacked, progress = excluded.progress, status = excluded.status,"
                " isolated_at = excluded.isolated_at, closed_at = case when excluded.status <> 'healthy'"
                " then consumer_health.closed_at end"
            ),
            {"queue": queue, **one._asdict()},
        )
        if was != one.status and "isolated" in (was, one.status):
            moves.record_event(
                tx,
                action=Action.ISOLATE_CONSUMER if one.status == "isolated" else Action.FREE_CONSUMER,
                source=was,
                target=one.status,
                selection={"queue": queue, "consumer": one.consumer},
                reason=f"It holds {one.unacked} messages and acked nothing since {one.last_progress_at.isoformat()}."
                if one.status == "isolated"
                else None,
            )


def _known(tx: Transaction, queue: str) -> dict[str, str]:
    """The status of each consumer of the queue, which nobody else changes until the transaction ends. Whoever writes
    here begins so, in one order: a run and somebody who watches would wait for each other."""
    rows = tx.execute(
        sql(
            "select consumer, status from consumer_health where route = :route and queue = :queue order by consumer"
            + tx.dialect.for_update
        ),
        {"queue": queue},
    )
    return {row.consumer: row.status for row in rows}


def close_connection(
    ledger: Ledger, lease: RouteLease, queue: str, connection: str, consumers: Sequence[str], reason: str, now: datetime
) -> None:
    """Note that the broker is about to be asked to close the connection of these ``consumers``.

    Written before it is asked, so that a run that was replaced asks nothing, and one that dies has left word.
    """
    _note(ledger, lease, queue, connection, consumers, reason, now, closed_at=now, action=Action.CLOSE_CONNECTION)


def connection_stayed(
    ledger: Ledger, lease: RouteLease, queue: str, connection: str, consumers: Sequence[str], reason: str, now: datetime
) -> None:
    """Note that it did not; ``reason`` says why. The next run may ask again."""
    _note(ledger, lease, queue, connection, consumers, reason, now, closed_at=None, action=Action.CONNECTION_STAYED)


def _note(
    ledger: Ledger,
    lease: RouteLease,
    queue: str,
    connection: str,
    consumers: Sequence[str],
    reason: str,
    now: datetime,
    *,
    closed_at: datetime | None,
    action: Action,
) -> None:
    with ledger.under(lease, now) as tx:
        _known(tx, queue)
        for consumer in consumers:
            tx.execute(
                sql(
                    "update consumer_health set closed_at = :closed_at"
                    " where route = :route and queue = :queue and consumer = :consumer"
                ),
                {"queue": queue, "consumer": consumer, "closed_at": closed_at},
            )
        moves.record_event(
            tx,
            action=action,
            count=len(consumers),
            selection={"queue": queue, "connection": connection, "consumers": list(consumers)},
            reason=reason,
        )
