"""Claims, windows and marks: what the ledger knows of a delivery, so that a crash leaves at most one window unknown.

A slice of due messages is claimed by inserting their attempts. It is sent in windows, in message id order. Before a
window is handed to the broker its end is committed as the slice's *high-water mark*; when the broker has
answered, the window is marked. After a crash everything above the mark certainly was not sent and waits again;
what lies between the last marked window and the mark is ``unknown``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.errors import LeaseLost
from redrive.ledger.delivery import aiming, breakers, ordering, outcomes
from redrive.ledger.delivery.outcomes import OF_THIS_STAGE
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import move, tell
from redrive.ledger.predicates import TO_RESEND, due, listed
from redrive.ledger.review import escalations
from redrive.ledger.selecting import Selection, want
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Plan, State
from redrive.message import body_hash, index_key
from redrive.policy import backoff
from redrive.policy.aims import Aims

RETRY_AFTER = timedelta(seconds=30)
#: SQL: the plans of which attempts count as requeues.
_AT_ONCE = listed((Plan.REQUEUE, Plan.CANARY))


class Claimed(NamedTuple):
    """One message that this slice may send."""

    message_id: int
    redrive_id: str
    attempt: int
    mode: str
    message_key: str | None
    dead_lettered_at: datetime | str | None
    claimed_at: datetime | str | None
    due_at: datetime | str | None = None  # sent early: the broker keeps it until then


@dataclass(frozen=True, slots=True)
class Ahead:
    """How far ahead messages that wait out a delay may be sent, because the broker keeps the rest of it."""

    until: datetime  # due by then
    settled: datetime  # dead-lettered before: a processed check can be believed now and not only when they are due


@dataclass(frozen=True, slots=True)
class Slice:
    """Messages claimed together, in message id order, all for one destination."""

    slice_id: int
    destination: str
    deadline: datetime
    messages: Sequence[Claimed]
    repeat_until: datetime | None = None  # nothing of it is sent later: the broker may have forgotten the first try


class Lane(NamedTuple):
    """What is due for one destination; ``cause`` for a cause that is claimed apart, None for all others."""

    destination: str
    cause: str | None
    due: int


class NoRoom(Exception):
    """The destination is full, with what other tasks of the run have claimed for it; raised by claims."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a destination had room for when its depth was read, and what could not be seen in that depth.

    The slices after ``newest``, and those that were ``open`` then with how much of them was ``sent``, take of it what
    was claimed for them and not sent before.
    """

    free: int
    least: int  # a claim for less is not worth asking the broker for a depth
    newest: int
    sent: Mapping[int, int]  # by slice


class Mark(NamedTuple):
    """How one message of a window ended; ``status`` as in :class:`redrive.brokers.base.Publication`."""

    message_id: int
    attempt: int
    status: str
    broker_message_id: str | None = None
    detail: str = ""
    tracked: bool = True
    body_hash: bytes | None = None  # of an edited body
    delay_seconds: float = 0.0  # the broker keeps it for so long, from now


def lanes(
    connection: Connection,
    route: str,
    now: datetime,
    apart: Sequence[str] = (),
    selection: Selection = Selection(),  # noqa: B008 - frozen
    ahead: Ahead | None = None,
    aims: Aims | None = None,
) -> list[Lane]:
    """Destinations with due messages, fullest first, with the causes ``apart`` in lanes of their own; with ``ahead``
    also those that a broker may be given early. With ``aims`` as they will be once the messages are aimed anew.

    A message without a destination is not among them.
    """
    where, values = selection.where()
    values |= _ahead(ahead)
    to = "destination"
    if aims is not None:
        to, more = aiming.target(aims)
        values |= more
    rows = connection.execute(
        sql(
            f"select destination, cause, count(*) as due from (select {to} as destination, cause from messages"
            f" where route = :route and {due(_by(ahead))} and {where}) aimed"
            " where destination is not null group by destination, cause"
        ),
        {"route": route, "now": now, **values},
    )
    found: dict[tuple[str, str | None], int] = {}
    for row in rows:
        lane = (row.destination, row.cause if row.cause in apart else None)
        found[lane] = found.get(lane, 0) + row.due
    return [Lane(*lane, count) for lane, count in sorted(found.items(), key=lambda item: (-item[1], str(item[0])))]


def _by(ahead: Ahead | None) -> str:
    """SQL for the moment by which a message has to be due to be sent now."""
    if ahead is None:
        return ":now"
    return (
        "case when plan = 'delay' and coalesce(dead_lettered_at, received_at, :now) <= :settled_at"
        " then :ahead_at else :now end"
    )


def _ahead(ahead: Ahead | None) -> dict[str, datetime]:
    return {} if ahead is None else {"ahead_at": ahead.until, "settled_at": ahead.settled}


def kept_by_broker(connection: Connection, route: str, destination: str, now: datetime) -> int:
    """How many of the route's sends the broker still keeps from ``destination`` because they are not due."""
    return int(
        connection.execute(
            sql(
                "select count(*) from delivery_slices inner join redelivery_attempts attempts"
                " on attempts.slice_id = delivery_slices.slice_id where delivery_slices.route = :route"
                " and delivery_slices.closed_at is not null and delivery_slices.last_sent_at > :now"
                " and delivery_slices.destination = :destination and attempts.due_at > :now"
                " and attempts.sent_at is not null"
            ),
            {"route": route, "destination": destination, "now": now},
        ).scalar_one()
    )


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


def sent_to(connection: Connection, route: str) -> list[str]:
    """Where messages of the route were ever sent."""
    rows = connection.execute(
        sql("select distinct destination from delivery_slices where route = :route"), {"route": route}
    )
    return [row.destination for row in rows]


def resend_lanes(connection: Connection, route: str) -> list[Lane]:
    """Destinations for which unknown sends wait to be repeated."""
    rows = connection.execute(
        sql(
            f"select destination, count(*) as due from messages where route = :route and {TO_RESEND}"
            " and destination is not null group by destination"
        ),
        {"route": route},
    )
    return [Lane(row.destination, None, row.due) for row in rows]


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


def claim(
    ledger: Ledger,
    lease: RouteLease,
    *,
    destination: str,
    limit: int,
    shard: int,
    selection: Selection,
    causes: Sequence[str] | None,
    except_causes: Sequence[str],
    in_order: bool,
    drained_to: datetime | None = None,
    now: datetime,
    lasts: timedelta,
    after: int = -1,
    ahead: Ahead | None = None,
    room: Room | None = None,
) -> Slice | None:
    """Claim up to ``limit`` due messages for ``destination`` with ids above ``after``; None when there are none, or
    when the run's tasks have sent and claimed together what the ``selection`` limits them to.
    With ``ahead`` also those that the broker can keep until they are due. Raises :class:`NoRoom` where tasks that share
    the ``room`` have filled it meanwhile.

    ``causes`` limits the claim to these causes, ``except_causes`` leaves some out: each cause with a rate of its
    own is claimed apart. With ``in_order``, a message with an order key goes only when it is the first one of
    that key that is not finished, and died before ``drained_to`` (:mod:`redrive.ledger.delivery.ordering`).
    """
    where, values = selection.where("due")
    values |= _ahead(ahead)
    for prefix, names, verb in (("only", causes or (), "in"), ("not", except_causes, "not in")):
        if names:
            marks = [f"{prefix}_{i}" for i in range(len(names))]
            where += f" and coalesce(due.cause, '') {verb} ({', '.join(':' + mark for mark in marks)})"
            values.update(zip(marks, names, strict=True))
    if in_order:
        where += f" and {ordering.may_go('due')}"
        values |= ordering.values(drained_to)
    with ledger.under(lease, now) as tx:
        limit = _within_quota(tx, destination, limit)
        limit = _within_limit(tx, selection.limit, limit)
        limit = _within_room(tx, destination, room, limit)
        if not limit:
            return None
        want(ledger, tx.connection, selection)
        slice_id = tx.execute(
            sql(
                "insert into delivery_slices (route, run_id, fence, shard, destination, claimed_at, deadline_at,"
                " system) values (:route, :run_id, :fence, :shard, :destination, :now, :deadline_at,"
                " (select system from route_state where route = :route)) returning slice_id"
            ),
            {
                "shard": shard,
                "destination": destination,
                "deadline_at": now + lasts,
            },
        ).scalar_one()
        claimed = tx.execute(
            sql(
                # WITH comes second: sqlite3 counts the rows only of what begins with INSERT.
                "insert into redelivery_attempts"
                " (message_id, attempt, route, group_id, slice_id, mode, destination, claimed_at, due_at)"
                " with due as (select message_id, attempts, group_id, plan, next_attempt_at from messages due"
                f" where route = :route and {due(_by(ahead), in_id_order=True)}"
                f" and message_id > :after and destination = :destination and {where}"
                f" order by message_id limit :limit {ledger.locked})"
                " select message_id, attempts + 1, :route, group_id, :slice_id, plan, :destination, :now,"
                f" {'null' if ahead is None else 'case when next_attempt_at > :now then next_attempt_at end'} from due"
                " where true on conflict (message_id, attempt) do nothing"
            ),
            {
                "destination": destination,
                "limit": limit,
                "after": after,
                "slice_id": slice_id,
                **values,
            },
        ).rowcount
        if not claimed:
            tx.execute(sql("delete from delivery_slices where slice_id = :s"), {"s": slice_id})
            return None
        move(
            tx,
            State.WAITING,
            State.SENDING,
            where="message_id in (select message_id from redelivery_attempts where slice_id = :slice_id)",
            values={"slice_id": slice_id},
            set_=(
                f"attempts = attempts + 1, requeues = requeues + case when plan in {_AT_ONCE} then 1 else 0 end,"
                " delays = delays + case when plan = 'delay' then 1 else 0 end"
            ),
            action=Action.CLAIM,
        )
        messages = _claimed(tx, slice_id)
        tx.execute(sql("update delivery_slices set claimed = :n where slice_id = :s"), {"n": claimed, "s": slice_id})
    return Slice(slice_id, destination, now + lasts, messages)


def claim_resends(
    ledger: Ledger,
    lease: RouteLease,
    *,
    destination: str,
    limit: int,
    shard: int,
    selection: Selection,
    in_order: bool,
    now: datetime,
    lasts: timedelta,
    dedupes_for: timedelta | None = None,
    room: Room | None = None,
) -> Slice | None:
    """Claim selected unknown sends that are to be repeated: the same attempt, so that native dedupe works for us. What
    the ``selection`` limits the run to holds for these and for :func:`claim` together; ``in_order`` and ``room`` as
    there.

    Those that are repeated only because the broker dedupes are claimed for no longer than ``dedupes_for`` after their
    first claim; None: not at all.
    """
    where, values = selection.where()
    if in_order:
        where += f" and {ordering.first('messages')}"
    with ledger.under(lease, now) as tx:
        limit = _within_quota(tx, destination, limit)
        limit = _within_limit(tx, selection.limit, limit)
        limit = _within_room(tx, destination, room, limit)
        want(ledger, tx.connection, selection)
        rows = tx.execute(
            sql(
                "select message_id, attempts, case when plan = 'repeat' then (select claimed_at"
                " from redelivery_attempts first where first.message_id = messages.message_id"
                " and first.attempt = messages.attempts) end as first_at from messages"
                " where route = :route and state = 'unknown' and destination = :destination and (plan = 'resend'"
                " or plan = 'repeat' and exists (select 1 from redelivery_attempts first"
                " where first.message_id = messages.message_id and first.attempt = messages.attempts"
                f" and first.claimed_at > :after_at)) and {where} order by message_id limit :limit {ledger.locked}"
            ),
            {
                "destination": destination,
                "limit": limit,
                "after_at": now if dedupes_for is None else now - dedupes_for,
                **values,
            },
        ).all()
        if not rows:
            return None
        slice_id = tx.execute(
            sql(
                "insert into delivery_slices (route, run_id, fence, shard, destination, claimed_at, deadline_at,"
                " claimed, system) values (:route, :run_id, :fence, :shard, :destination, :now, :deadline_at, :claimed,"
                " (select system from route_state where route = :route)) returning slice_id"
            ),
            {
                "shard": shard,
                "destination": destination,
                "deadline_at": now + lasts,
                "claimed": len(rows),
            },
        ).scalar_one()
        tx.many(
            "update redelivery_attempts set slice_id = ? where message_id = ? and attempt = ?",
            [(slice_id, row.message_id, row.attempts) for row in rows],
        )
        move(
            tx,
            State.UNKNOWN,
            State.SENDING,
            where="message_id in (select message_id from redelivery_attempts where slice_id = :slice_id)",
            values={"slice_id": slice_id},
            action=Action.CLAIM_RESEND,
            reason="the broker dedupes, or a check says that it was not processed",
        )
        messages = _claimed(tx, slice_id)
    firsts = [at for at in (parse_instant(row.first_at) for row in rows) if at is not None]
    until = min(firsts) + dedupes_for if firsts and dedupes_for is not None else None
    return Slice(slice_id, destination, now + lasts, messages, until)


def seen(connection: Connection, route: str, as_of: datetime | None = None) -> tuple[int, dict[int, int]]:
    """What a depth shows that is read after this call: (newest slice, of each open one how much was sent). Of a depth
    that the broker told late, with ``as_of`` when it was so: (the last slice before any that ended later, nothing)."""
    if as_of is not None:
        newest = connection.execute(
            sql(
                "select coalesce((select min(slice_id) - 1 from delivery_slices where route = :route"
                " and (closed_at is null or closed_at > :as_of_at)),"
                " (select max(slice_id) from delivery_slices), 0)"
            ),
            {"route": route, "as_of_at": as_of},
        ).scalar_one()
        return int(newest), {}
    newest = connection.execute(sql("select coalesce(max(slice_id), 0) from delivery_slices")).scalar_one()
    rows = connection.execute(
        sql("select slice_id, sent from delivery_slices where route = :route and closed_at is null"), {"route": route}
    )
    return int(newest), {row.slice_id: row.sent for row in rows}


def _within_room(tx: RunTransaction, destination: str, room: Room | None, limit: int) -> int:
    """``limit``, or what the destination has room for; raises :class:`NoRoom` where that isn't worth a claim. The
    guard before it made this route's claims wait for each other, so two tasks don't fill the same room."""
    if room is None or not limit:
        return limit
    opened = {f"slice_{number}": slice_id for number, slice_id in enumerate(room.sent)}
    among = f" or slices.slice_id in ({', '.join(':' + name for name in opened)})" if opened else ""
    rows = tx.execute(
        sql(
            # Of an open slice whose time is over nothing more is sent. What was given back has no attempt any more.
            "select slices.slice_id, count(*) as n from delivery_slices slices inner join redelivery_attempts attempts"
            " on attempts.slice_id = slices.slice_id where slices.route = :route and slices.destination = :destination"
            f" and (slices.slice_id > :newest{among}) and (closed_at is not null or deadline_at > :now)"
            " group by slices.slice_id"
        ),
        {"destination": destination, "newest": room.newest, **opened},
    )
    free = room.free - sum(max(0, int(row.n) - room.sent.get(row.slice_id, 0)) for row in rows)
    if free < min(limit, room.least):
        raise NoRoom
    return min(limit, free)


def left(connection: Connection, lease: RouteLease, limit: int | None) -> int | None:
    """How many more the run may send of a ``limit`` that all its tasks share; None: any number.

    What is claimed counts until its slice is closed; then what was sent does, and what may have been.
    """
    if limit is None:
        return None
    used = connection.execute(
        sql(
            "select coalesce(sum(case when closed_at is null then claimed when sent >= claimed then sent"
            " else sent + (select count(*) from redelivery_attempts attempts"
            " where attempts.slice_id = delivery_slices.slice_id and attempts.sent_at is null) end), 0)"
            " from delivery_slices where route = :route and fence = :fence"
        ),
        {"route": lease.route, "fence": lease.fence},
    ).scalar_one()
    return max(0, limit - int(used))


def _within_limit(tx: RunTransaction, most: int | None, limit: int) -> int:
    """``limit``, or what is left of what the run may send; the guard before it made its claims wait for each other."""
    rest = left(tx.connection, tx.lease, most)
    return limit if rest is None else min(limit, rest)


def _within_quota(tx: RunTransaction, destination: str, limit: int) -> int:
    """``limit``, or what the destination's breaker leaves of it. The guard before it made this route's claims wait
    for each other, so two tasks don't take the same room."""
    quota = breakers.quota(tx.connection, tx.route, destination)
    return limit if quota is None else min(limit, quota)


def _claimed(tx: RunTransaction, slice_id: int) -> list[Claimed]:
    rows = tx.tuples(
        "select messages.message_id, redrive_id, attempt, mode, message_key, dead_lettered_at, claimed_at, due_at"
        " from redelivery_attempts inner join messages on messages.message_id = redelivery_attempts.message_id"
        " where slice_id = ? order by messages.message_id",
        (slice_id,),
    )
    return list(map(Claimed._make, rows))


def raise_mark(ledger: Ledger, lease: RouteLease, slice_id: int, last_message_id: int, now: datetime) -> None:
    """Announce that everything up to ``last_message_id`` may now be handed to the broker.

    Raises :class:`LeaseLost` when the run was replaced or the claim's deadline has passed.
    """
    with ledger.under(lease, now) as tx:
        if not _announce(tx, slice_id, last_message_id):
            raise LeaseLost(f"route {tx.route}: the claim of slice {slice_id} has run out; nothing more of it is sent")


def _announce(tx: RunTransaction, slice_id: int, last_message_id: int) -> bool:
    return bool(
        tx.execute(
            sql(
                "update delivery_slices set high_water = :mark where slice_id = :slice_id and fence = :fence"
                " and closed_at is null and deadline_at > :now"
            ),
            {"mark": last_message_id, "slice_id": slice_id},
        ).rowcount
    )


def give_back(ledger: Ledger, lease: RouteLease, slice_id: int, message_ids: Sequence[int], now: datetime) -> int:
    """Messages of the slice that certainly were not sent wait again, as if never claimed."""
    with ledger.under(lease, now) as tx:
        return _give_back(tx, slice_id, message_ids, "not sent")


def set_aside(
    ledger: Ledger, lease: RouteLease, slice_id: int, message_ids: Sequence[int], reason: str, now: datetime
) -> int:
    """Messages of the slice that certainly were not sent, and can't be, are given back, and people are to be asked."""
    with ledger.under(lease, now) as tx:
        _give_back(tx, slice_id, message_ids, "can't be read")
        tx.temporary("aside", "message_id bigint primary key")
        tx.bulk("aside", ("message_id",), [(i,) for i in message_ids])
        return sum(
            move(
                tx,
                state,
                State.TO_REVIEW,
                where="message_id in (select message_id from aside)",
                values={"why": reason},
                set_="reason = :why, next_attempt_at = null",
                action=Action.GIVE_TO_PEOPLE,
                reason=reason,
            )
            for state in (State.WAITING, State.UNKNOWN)
        )


def suppress(ledger: Ledger, lease: RouteLease, slice_id: int, message_ids: Sequence[int], now: datetime) -> int:
    """Claimed messages that were processed already are not sent; how many. Of a resend it is proved that its first
    send succeeded: it is confirmed."""
    if not message_ids:
        return 0
    with ledger.under(lease, now) as tx:
        _give_back(tx, slice_id, message_ids, "processed already")
        tx.temporary("chosen", "message_id bigint primary key")
        tx.bulk("chosen", ("message_id",), [(i,) for i in message_ids])
        # The review rows of resends are closed where they are confirmed.
        tx.temporary("suppressed", "message_id bigint primary key")
        tx.execute(
            sql(
                "insert into suppressed select messages.message_id from messages inner join chosen"
                " on chosen.message_id = messages.message_id where state = 'waiting'"
            )
        )
        escalations.close_released(tx, "suppressed", "processed already: it was not sent")
        resends = tx.execute(
            sql(
                "select message_id from messages where state = 'unknown' and message_id in"
                " (select message_id from chosen)"
            )
        ).scalars()
        confirmed = outcomes.prove(tx, list(resends))
        return confirmed + move(
            tx,
            State.WAITING,
            State.SUPPRESSED,
            where="message_id in (select message_id from chosen)",
            set_="reason = 'processed already', next_attempt_at = null",
            action=Action.SUPPRESS,
            reason="processed_check says that it was processed",
        )


def _give_back(
    tx: RunTransaction,
    slice_id: int,
    message_ids: Sequence[int],
    reason: str,
) -> int:
    if not message_ids:
        return 0
    tx.temporary("back", "message_id bigint primary key")
    tx.bulk("back", ("message_id",), [(i,) for i in message_ids])
    # A resend that was not made leaves the first try as unknown as it was.
    again = move(
        tx,
        State.SENDING,
        State.UNKNOWN,
        where=(
            "message_id in (select back.message_id from back inner join redelivery_attempts attempts on"
            " attempts.message_id = back.message_id and attempts.slice_id = :slice_id"
            " and attempts.unknown_at is not null)"
        ),
        values={"slice_id": slice_id},
        action=Action.GIVE_BACK,
        reason=reason,
    )
    waiting = move(
        tx,
        State.SENDING,
        State.WAITING,
        where="message_id in (select message_id from back)",
        set_=(
            f"attempts = attempts - 1, requeues = requeues - case when plan in {_AT_ONCE} then 1 else 0 end,"
            " delays = delays - case when plan = 'delay' then 1 else 0 end"
        ),
        action=Action.GIVE_BACK,
        reason=reason,
    )
    tx.execute(
        sql(
            "delete from redelivery_attempts where slice_id = :slice_id and sent_at is null and unknown_at is null"
            " and message_id in (select message_id from back)"
        ),
        {"slice_id": slice_id},
    )
    return again + waiting


def mark(
    ledger: Ledger,
    lease: RouteLease,
    slice_id: int,
    marks: Sequence[Mark],
    *,
    tries: int,
    now: datetime,
    next_mark: int | None = None,
    last_window: bool = False,
) -> bool:
    """Record how a window ended, in one transaction; with ``next_mark`` also announce the next window, after the
    ``last_window`` also close the slice. What was sent is recorded in the attempts; the messages follow when the slice
    is closed, or recovered.

    Says whether the next window was announced: not when the claim's deadline has passed. A message that was not sent
    for a reason of its own is tried ``tries`` times, then goes to people.
    """
    if not marks:
        return False
    with ledger.under(lease, now) as tx:
        stored = ledger.stored(now)
        _mark_not_sent(tx, slice_id, marks, tries)
        unknown = [(stored, m.tracked, m.body_hash, m.message_id, m.attempt) for m in marks if m.status == "unknown"]
        if unknown:
            tx.many(
                "update redelivery_attempts set unknown_at = ?, tracked = ?, body_hash = ?"
                " where message_id = ? and attempt = ?",
                unknown,
            )
            tx.temporary("lost", "message_id bigint primary key")
            tx.bulk("lost", ("message_id",), [(row[3],) for row in unknown])
            move(
                tx,
                State.SENDING,
                State.UNKNOWN,
                where="message_id in (select message_id from lost)",
                action=Action.LOSE_SIGHT,
                reason=next(m.detail for m in marks if m.status == "unknown"),
            )
        sent = [
            (
                stored,
                m.broker_message_id and index_key(m.broker_message_id),
                m.tracked,
                m.body_hash,
                m.message_id,
                m.attempt,
            )
            for m in marks
            if m.status == "sent"
        ]
        kept = [
            (ledger.stored(now + timedelta(seconds=m.delay_seconds)), m.message_id, m.attempt)
            for m in marks
            if m.delay_seconds and m.status in ("sent", "unknown")
        ]
        tx.many("update redelivery_attempts set due_at = ? where message_id = ? and attempt = ?", kept)
        tx.many(
            "update redelivery_attempts set sent_at = ?, broker_message_id = ?, tracked = ?, body_hash = ?"
            " where message_id = ? and attempt = ?",
            sent,
        )
        tx.execute(
            sql(
                "update delivery_slices set confirmed_to = :last, sent = sent + :n, last_sent_at = :now"
                " where slice_id = :slice_id"
            ),
            {"slice_id": slice_id, "last": marks[-1].message_id, "n": len(sent)},
        )
        if last_window:
            _close(tx, slice_id)
        return next_mark is not None and _announce(tx, slice_id, next_mark)


def _mark_not_sent(
    tx: RunTransaction,
    slice_id: int,
    marks: Sequence[Mark],
    tries: int,
) -> None:
    failed = [m for m in marks if m.status in ("retry", "refused")]
    if not failed:
        return
    whole_window = len(failed) == len(marks) and all(m.status == "retry" for m in failed)
    _give_back(tx, slice_id, [m.message_id for m in failed], failed[0].detail)
    jitter = backoff.dice_sql("message_id", "(attempts + send_failures + 1)")
    again = tx.ledger.later(":now", f"{RETRY_AFTER.total_seconds()} * {jitter}")
    tx.execute(
        sql(
            # What was to be sent early is not due before it was.
            f"update messages set next_attempt_at = case when next_attempt_at > {again} then next_attempt_at"
            f" else {again} end where message_id in (select message_id from back) and state = 'waiting'"
        )
    )
    if whole_window:  # the broker's trouble, not the messages'
        return
    for one in failed:
        row = tx.execute(
            sql(
                "update messages set send_failures = send_failures + :by where message_id = :message_id"
                " returning send_failures, plan, state"
            ),
            {"by": tries if one.status == "refused" else 1, "message_id": one.message_id},
        ).one()
        if row.send_failures < tries:
            continue
        why = f"could not be sent: {one.detail}"
        if row.state == State.WAITING and row.plan == Plan.RELEASE:
            move(
                tx,
                State.WAITING,
                State.ESCALATED,
                where="message_id = :message_id",
                values={"message_id": one.message_id, "why": why},
                set_="reason = :why, next_attempt_at = null",
                action=Action.REFUSE_SEND,
                reason=why,
            )
            escalations.reopen(
                tx,
                of="select cast(:message_id as bigint)",
                why=":why",
                values={"why": why, "message_id": one.message_id},
                refused=True,
            )
        else:  # also a resend, which would be tried for ever: its first send stays unknown until a person looks
            move(
                tx,
                State(row.state),
                State.TO_REVIEW,
                where="message_id = :message_id",
                values={"message_id": one.message_id, "why": why},
                set_="reason = :why, next_attempt_at = null",
                action=Action.GIVE_TO_PEOPLE,
                reason=why,
            )


def close(ledger: Ledger, lease: RouteLease, slice_id: int, now: datetime) -> None:
    """The slice is done: every message of it was marked or given back."""
    with ledger.under(lease, now) as tx:
        _close(tx, slice_id)


def _close(tx: RunTransaction, slice_id: int) -> None:
    """Close the slice, and let messages, groups and releases follow what its attempts say; once per slice."""
    of_slice = {"slice_id": slice_id}
    closed = tx.execute(
        sql("update delivery_slices set closed_at = :now where slice_id = :slice_id and closed_at is null"),
        of_slice,
    ).rowcount
    if not closed:
        return
    sent = move(
        tx,
        State.SENDING,
        State.SENT,
        where=(
            "message_id in (select message_id from redelivery_attempts where slice_id = :slice_id"
            " and sent_at is not null)"
        ),
        values=of_slice,
        action=Action.SEND,
    )
    if not sent:
        return
    # Where the broker keeps some of them, nothing can be seen of those before they are due.
    tx.execute(
        sql(
            "update delivery_slices set last_sent_at = kept.due_at from (select max(due_at) as due_at"
            " from redelivery_attempts where slice_id = :slice_id and sent_at is not null) kept"
            " where delivery_slices.slice_id = :slice_id and kept.due_at > delivery_slices.last_sent_at"
        ),
        of_slice,
    )
    tx.execute(
        sql(
            "update group_state set sent = group_state.sent + seen.n from (select attempts.group_id, count(*) as n"
            " from redelivery_attempts attempts inner join group_state on group_state.route = attempts.route"
            f" and group_state.group_id = attempts.group_id where slice_id = :slice_id and {OF_THIS_STAGE}"
            " group by attempts.group_id) seen"
            " where group_state.route = :route and group_state.group_id = seen.group_id"
        ),
        of_slice,
    )
    breakers.count_sent(tx, slice_id)
    tx.execute(
        sql(
            "update escalated_messages set status = 'applied', applied_at = :now where status = 'decided'"
            " and message_id in (select message_id from redelivery_attempts where slice_id = :slice_id"
            " and mode = 'release' and sent_at is not null)"
        ),
        of_slice,
    )


def recover(
    ledger: Ledger, lease: RouteLease, now: datetime, *, shard: int | None = None, slice_id: int | None = None
) -> dict[str, int]:
    """Settle slices that were left open: above the mark, wait again; between mark and word, unknown.

    Those of earlier runs, and with ``shard`` also those that an earlier try of this run's task left; or just
    ``slice_id``. A slice that is recovered is closed, so its old owner, should it still live, sends no more.
    """
    back = unknown = 0
    with ledger.under(lease, now) as tx:
        mine = "fence < :fence"
        if slice_id is not None:
            mine = "slice_id = :slice_id"
        elif shard is not None:
            mine = "(fence < :fence or (fence = :fence and shard = :shard))"
        values = {"shard": shard, "slice_id": slice_id}
        slices = tx.execute(
            sql(
                "select slice_id, high_water from delivery_slices"
                f" where route = :route and closed_at is null and {mine}"
            ),
            {name: value for name, value in values.items() if value is not None},
        ).all()
        for one in slices:
            rows = tx.execute(
                sql(
                    "select message_id from redelivery_attempts where slice_id = :slice_id and message_id > :mark"
                    " and sent_at is null"
                ),
                {"slice_id": one.slice_id, "mark": one.high_water},
            ).all()
            back += _give_back(tx, one.slice_id, [r.message_id for r in rows], "its run ended before the send")
            within = "slice_id = :slice_id and message_id <= :mark and sent_at is null"
            at_mark = {"slice_id": one.slice_id, "mark": one.high_water}
            lost = move(
                tx,
                State.SENDING,
                State.UNKNOWN,
                where=f"message_id in (select message_id from redelivery_attempts where {within})",
                values=at_mark,
                action=Action.LOSE_SIGHT,
                reason="the run ended between send and confirmation",
            )
            tx.execute(
                sql(f"update redelivery_attempts set unknown_at = coalesce(unknown_at, :now) where {within}"),
                at_mark,
            )
            _keep_edits(tx, within, at_mark)
            _close(tx, one.slice_id)
            unknown += lost
            if lost:
                tell(
                    tx,
                    action=Action.RECOVER_SLICE,
                    count=lost,
                    selection={"slice_id": one.slice_id},
                    reason="at most one confirm window is unknown",
                )
    return {"given_back": back, "unknown": unknown}


def _keep_edits(tx: RunTransaction, within: str, values: dict[str, int]) -> None:
    """What tells a body that a person edited, should it return: the run that sent it ended before it could say."""
    rows = tx.execute(
        sql(f"select message_id, attempt from redelivery_attempts where {within} and mode = 'release'"), values
    ).all()
    edits = escalations.corrected(tx.connection, [row.message_id for row in rows])
    tx.many(
        "update redelivery_attempts set body_hash = ? where message_id = ? and attempt = ?",
        [
            (body_hash(edits[row.message_id].encode()), row.message_id, row.attempt)
            for row in rows
            if row.message_id in edits
        ],
    )
