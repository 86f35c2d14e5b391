"""What became of past sends: confirmed, presumed, or to be sent again; never "gone, so it worked".

A send is *presumed* good only when a return could have been seen: the destination was seen to have worked past the
slice (its depth was zero at some moment after the last send, and after the broker had let go of what it delayed), the
observation window has passed since then, and every source of the route was drained and loaded beyond the window's end.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.leases import RouteLease
from redrive.ledger.moves import move
from redrive.lifecycle import State


class Keyed(NamedTuple):
    """A message and the key under which a processed check knows it."""

    message_id: int
    message_key: str


def sources_drained(ledger: Ledger, lease: RouteLease, sources: Sequence[str], since: datetime, now: datetime) -> None:
    """These sources were empty of anything that lay in them at ``since``; it counts once their batches are loaded."""
    with ledger.write() as connection:
        lease.guard(connection, now)
        for source in sources:
            connection.execute(
                sql(
                    "insert into source_state (route, source, pending_to) values (:route, :source, :since_at)"
                    " on conflict (route, source) do update set pending_to = excluded.pending_to"
                ),
                {"route": lease.route, "source": source, "since_at": since},
            )


def forget_pending(ledger: Ledger, lease: RouteLease, now: datetime) -> None:
    """A run that died may have drained some shards only: what it thought to have drained does not count."""
    with ledger.write() as connection:
        lease.guard(connection, now)
        connection.execute(
            sql("update source_state set pending_to = null where route = :route"), {"route": lease.route}
        )


def sources_loaded(ledger: Ledger, lease: RouteLease, now: datetime) -> None:
    """All recorded batches of the route are loaded: what was drained is now also known."""
    with ledger.write() as connection:
        lease.guard(connection, now)
        connection.execute(
            sql(
                "update source_state set drained_to = pending_to, pending_to = null where route = :route"
                " and pending_to is not null and not exists (select 1 from staging_batches where route = :route"
                " and state in ('recorded', 'settled') and loaded_at is null)"
            ),
            {"route": lease.route},
        )


def drained_to(connection: Connection, route: str, sources: Sequence[str]) -> datetime | None:
    """The moment up to which nothing in any of these sources is hidden from us; None when one was never drained."""
    moments = {
        row.source: parse_instant(row.drained_to)
        for row in connection.execute(
            sql("select source, drained_to from source_state where route = :route"), {"route": route}
        )
    }
    known = [moments.get(source) for source in sources]
    return None if not known or None in known else min(m for m in known if m is not None)


def presume(ledger: Ledger, lease: RouteLease, *, window: timedelta, sources: Sequence[str], now: datetime) -> int:
    """Close the observation of every slice whose window could have shown a return; returns the presumed messages."""
    with ledger.write() as connection:
        lease.guard(connection, now)
        connection.execute(
            sql(
                "update delivery_slices set observed_from = (select min(seen.observed_at) from queue_observations seen"
                " where seen.queue = delivery_slices.destination and seen.role = 'destination'"
                " and seen.visible + seen.in_flight + seen.delayed = 0"
                " and seen.observed_at > delivery_slices.last_sent_at)"
                " where route = :route and closed_at is not null and observed_at is null and observed_from is null"
                " and sent > 0"
            ),
            {"route": lease.route},
        )
        horizon = drained_to(connection, lease.route, sources)
        if horizon is None:
            return 0
        closable = (
            "select slice_id from delivery_slices where route = :route and observed_at is null"
            f" and observed_from is not null and {ledger.later('observed_from', str(window.total_seconds()))}"
            " <= :horizon_at"
        )
        values = {"route": lease.route, "horizon_at": horizon}
        connection.execute(
            sql(
                "update group_state set stayed = group_state.stayed + seen.n from (select group_id, count(*) as n"
                f" from redelivery_attempts where slice_id in ({closable}) and sent_at is not null"
                " and outcome is null group by group_id) seen"
                " where group_state.route = :route and group_state.group_id = seen.group_id"
            ),
            values,
        )
        connection.execute(
            sql(
                "update redelivery_attempts set outcome = 'presumed', outcome_at = :now"
                f" where slice_id in ({closable}) and sent_at is not null and outcome is null"
            ),
            {**values, "now": now},
        )
        presumed = move(
            connection,
            State.SENT,
            State.PRESUMED,
            now=now,
            where=(
                "route = :route and exists (select 1 from redelivery_attempts attempts"
                " where attempts.message_id = messages.message_id and attempts.attempt = messages.attempts"
                f" and attempts.outcome = 'presumed' and attempts.slice_id in ({closable}))"
            ),
            values=values,
            route=lease.route,
            run_id=lease.run_id,
            action="presume",
            reason=f"did not come back within {window} after the destination had worked past it",
        )
        connection.execute(
            sql(f"update delivery_slices set observed_at = :now where slice_id in ({closable})"),
            {**values, "now": now},
        )
    return presumed


def under_observation(connection: Connection, route: str, after: int, limit: int) -> list[Keyed]:
    """Messages whose last send has no outcome yet and that have a key, in id order after ``after``."""
    rows = connection.execute(
        sql(
            "select message_id, message_key from messages where route = :route and state in ('sent', 'unknown')"
            " and message_key is not null and message_id > :after order by message_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit},
    )
    return [Keyed(row.message_id, row.message_key) for row in rows]


def confirm(ledger: Ledger, lease: RouteLease, message_ids: Sequence[int], now: datetime) -> int:
    """A processed check found these: their last send succeeded."""
    if not message_ids:
        return 0
    with ledger.write() as connection:
        lease.guard(connection, now)
        ledger.temporary(connection, "proved", "message_id bigint primary key")
        ledger.bulk(connection, "proved", ("message_id",), [(i,) for i in message_ids])
        last = (
            "redelivery_attempts.message_id in (select message_id from proved) and redelivery_attempts.attempt ="
            " (select attempts from messages where messages.message_id = redelivery_attempts.message_id)"
        )
        connection.execute(
            sql(
                "update group_state set stayed = group_state.stayed + seen.n from (select group_id, count(*) as n"
                f" from redelivery_attempts where {last} and outcome is null group by group_id) seen"
                " where group_state.route = :route and group_state.group_id = seen.group_id"
            ),
            {"route": lease.route},
        )
        connection.execute(
            sql(
                "update redelivery_attempts set outcome = 'confirmed', outcome_at = :now"
                f" where {last} and coalesce(outcome, 'presumed') = 'presumed'"
            ),
            {"now": now},
        )
        return sum(
            move(
                connection,
                state,
                State.CONFIRMED,
                now=now,
                where="message_id in (select message_id from proved)",
                route=lease.route,
                run_id=lease.run_id,
                action="confirm",
                reason="processed_check found it",
            )
            for state in (State.SENT, State.UNKNOWN)
        )


def unknown_destinations(connection: Connection, route: str) -> list[str]:
    """Queues to which the route has sends of unknown fate."""
    rows = connection.execute(
        sql("select distinct destination from messages where route = :route and state = 'unknown'"), {"route": route}
    )
    return sorted(row.destination for row in rows)


def decide_unknown(
    ledger: Ledger, lease: RouteLease, *, destination: str, resend: bool, unknown_before: datetime, now: datetime
) -> int:
    """Sends to ``destination`` that are unknown, and were due, since before ``unknown_before`` are repeated, or go to
    people."""
    with ledger.write() as connection:
        lease.guard(connection, now)
        return int(
            connection.execute(
                sql(
                    "update messages set verdict = :verdict, reason = :reason where route = :route"
                    " and state = 'unknown' and destination = :destination"
                    " and coalesce(verdict, '') <> :verdict and exists (select 1 from"
                    " redelivery_attempts attempts where attempts.message_id = messages.message_id"
                    " and attempts.attempt = messages.attempts and attempts.unknown_at <= :before_at"
                    " and coalesce(attempts.due_at, attempts.unknown_at) <= :before_at)"
                ),
                {
                    "verdict": "resend" if resend else "escalate",
                    "reason": None if resend else "a delivery ended between send and confirmation: it may be there",
                    "route": lease.route,
                    "destination": destination,
                    "before_at": unknown_before,
                },
            ).rowcount
        )


def return_times(connection: Connection, route: str, quantile: float = 0.99, least: int = 20) -> float | None:
    """Seconds from send (or from when the broker let go of what it delayed) to return that ``quantile`` of the
    route's newest 10,000 returns stayed below; None while there are fewer than ``least``."""
    rows = connection.execute(
        sql(
            "select coalesce(due_at, sent_at) as sent_at, outcome_at from redelivery_attempts"
            " where route = :route and outcome = 'returned'"
            " and return_kind = 'dead_letter' and sent_at is not null order by message_id desc limit 10000"
        ),
        {"route": route},
    ).all()
    seconds = sorted(
        (end - start).total_seconds()
        for start, end in ((parse_instant(r.sent_at), parse_instant(r.outcome_at)) for r in rows)
        if start is not None and end is not None
    )
    if len(seconds) < least:
        return None
    return seconds[min(len(seconds) - 1, int(quantile * len(seconds)))]
