"""Claims: the messages that one delivery may send, and nobody else meanwhile.

A slice of due messages is claimed by inserting their attempts, in the transaction that sees to it that no limit is
passed: of the run, of the destination's breaker, of the room that the destination had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger import leases
from redrive.ledger.delivery import breakers, ordering
from redrive.ledger.delivery.lanes import NativeDelay, due_by, native_delay_values
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import HERE, IS_STOPPED, NEWEST_OF_ROUTE, due, listed
from redrive.ledger.selecting import Selection, stage_selection
from redrive.ledger.tables import redelivery_attempts
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Plan, State
from redrive.message import as_tuples

#: SQL: the plans of which attempts count as requeues.
AT_ONCE = listed((Plan.REQUEUE, Plan.CANARY))
#: SQL: joined to ``attempts``, only those of ``:cause``.
OF_CAUSE = " inner join failure_groups on failure_groups.group_id = attempts.group_id and failure_groups.cause = :cause"


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
class Slice:
    """Messages claimed together, in message id order, all for one destination."""

    slice_id: int
    destination: str
    deadline: datetime
    messages: Sequence[Claimed]
    repeat_until: datetime | None = None  # nothing of it is sent later: the broker may have forgotten the first try
    resends: bool = False  # its attempts stood in the ledger before, with what they say of their first send


@dataclass(frozen=True, slots=True)
class ClaimFilter:
    """Which messages a claim is for: selected ones for one destination with ids above ``after``, up to ``until``.

    ``causes`` limits it to these causes, ``except_causes`` leaves some out: each cause with a rate of its own is
    claimed apart. With ``native_delay`` also those that the broker can keep until they are due. With ``in_order`` a
    message with an order key goes only when it is the first one of that key that is not finished, and died before
    everything was staged (:mod:`redrive.ledger.delivery.ordering`).
    """

    destination: str
    selection: Selection = field(default_factory=Selection)
    causes: Sequence[str] = ()
    except_causes: Sequence[str] = ()
    after: int = -1
    until: int | None = None
    native_delay: NativeDelay | None = None
    in_order: InOrder | None = None


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """How many messages a claim may take, how long it lasts, which task's and which try's of it it is, and what rooms
    there were for it."""

    limit: int
    lasts: timedelta
    shard: int = 0
    rooms: "Sequence[Room]" = ()
    task_try: str = ""


class NoRoom(Exception):
    """The destination is full, with what other tasks of the run have claimed for it; raised by claims."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a destination had room for when its depth was read, and what could not be seen in that depth.

    The slices after ``newest``, and those that were ``open`` then with how much of them was ``sent``, take of it what
    was claimed for them and not sent before. Of a depth that the broker told late they are those of all routes that
    send there, and did not end before ``as_of``. Claims of different routes don't wait for each other, so each of them
    may take one slice more than there is room for.
    """

    free: int
    least: int  # a claim for less is not worth asking the broker for a depth
    newest: int
    sent: Mapping[int, int]  # by slice
    cause: str | None = None  # only what is claimed of this cause takes of it
    as_of: datetime | None = None  # the depth was so then at the earliest, by whichever clock; None: when it was read


def claim(ledger: Ledger, lease: RouteLease, asked: ClaimFilter, terms: ClaimTerms, now: datetime) -> Slice | None:
    """Claim due messages; None when there are none, or when the run's tasks have sent and claimed together what the
    selection limits them to. Raises :class:`NoRoom` where tasks that share the room have filled it meanwhile.
    """
    where, values = asked.selection.where("due")
    values |= native_delay_values(asked.native_delay)
    for prefix, names, verb in (("only", asked.causes, "in"), ("not", asked.except_causes, "not in")):
        if names:
            marks = [f"{prefix}_{i}" for i in range(len(names))]
            where += f" and coalesce(due.cause, '') {verb} ({', '.join(':' + mark for mark in marks)})"
            values.update(zip(marks, names, strict=True))
    if asked.until is not None:
        where += " and message_id <= :last_id"
        values["last_id"] = asked.until
    if asked.in_order:
        where += f" and {ordering.may_go('due')}"
        values |= ordering.values(asked.in_order.drained_to)
    early = "null" if asked.native_delay is None else "case when next_attempt_at > :now then next_attempt_at end"
    with ledger.under(lease, now) as tx:
        limit = _within_all(tx, asked, terms)
        if not limit:
            return None
        stage_selection(ledger, tx.connection, asked.selection)
        slice_id = _open(tx, asked, terms)
        claimed = tx.execute(
            sql(
                # WITH comes second: sqlite3 counts the rows only of what begins with INSERT.
                "insert into redelivery_attempts"
                " (message_id, attempt, route, group_id, slice_id, mode, destination, claimed_at, due_at)"
                " with due as (select message_id, attempts, group_id, plan, next_attempt_at from messages due"
                f" where route = :route and {due(due_by(asked.native_delay), in_id_order=True)}"
                f" and message_id > :after and destination = :destination and {where}"
                f" order by message_id limit :limit {ledger.dialect.locked})"
                " select message_id, attempts + 1, :route, group_id, :slice_id, plan, :destination, :now,"
                f" {early} from due"
                " where true on conflict (message_id, attempt) do nothing"
            ),
            {
                "destination": asked.destination,
                "limit": limit,
                "after": asked.after,
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
            few="select message_id from redelivery_attempts where slice_id = :slice_id",
            values={"slice_id": slice_id},
            set_=(
                f"attempts = attempts + 1, requeues = requeues + case when plan in {AT_ONCE} then 1 else 0 end,"
                " delays = delays + case when plan = 'delay' then 1 else 0 end"
            ),
            action=Action.CLAIM,
        )
        messages = _claimed(tx, slice_id)
        tx.execute(sql("update delivery_slices set claimed = :n where slice_id = :s"), {"n": claimed, "s": slice_id})
    return Slice(slice_id, asked.destination, now + terms.lasts, messages)


def all_fit(ledger: Ledger, lease: RouteLease, destination: str, rooms: Sequence[Room], now: datetime) -> bool:
    """Whether all that is claimed for a destination, and not sent yet, still fits into each of its ``rooms``."""
    with ledger.under(lease, now) as tx:
        return all(room.free >= _unseen(tx, destination, room, counted=False) for room in rooms)


def claim_resends(
    ledger: Ledger,
    lease: RouteLease,
    asked: ClaimFilter,
    terms: ClaimTerms,
    now: datetime,
    *,
    dedupes_for: timedelta | None = None,
) -> Slice | None:
    """Claim selected unknown sends that are to be repeated: the same attempt, so that native dedupe works for us. What
    the selection limits the run to holds for these and for :func:`claim` together; all causes go, whatever their ids.

    None goes behind a gate that lets nothing go. Those that are repeated only because the broker dedupes are claimed
    for no longer than ``dedupes_for`` after their first claim; None: not at all.
    """
    where, values = asked.selection.where()
    if asked.in_order:
        where += f" and {ordering.first('messages')}"
    with ledger.under(lease, now) as tx:
        limit = _within_all(tx, asked, terms)
        if not limit:
            return None
        stage_selection(ledger, tx.connection, asked.selection)
        rows = tx.execute(
            sql(
                "select message_id, attempts, case when plan = 'repeat' then (select claimed_at"
                " from redelivery_attempts first where first.message_id = messages.message_id"
                " and first.attempt = messages.attempts) end as first_at from messages"
                " where route = :route and state = 'unknown' and destination = :destination and (plan = 'resend'"
                " or plan = 'repeat' and exists (select 1 from redelivery_attempts first"
                " where first.message_id = messages.message_id and first.attempt = messages.attempts"
                f" and first.claimed_at > :after_at)) and not ({IS_STOPPED}) and {where}"
                f" order by message_id limit :limit {ledger.dialect.locked}"
            ),
            {
                "destination": asked.destination,
                "limit": limit,
                "after_at": now if dedupes_for is None else now - dedupes_for,
                **values,
            },
        ).all()
        if not rows:
            return None
        slice_id = _open(tx, asked, terms)
        tx.execute(sql("update delivery_slices set claimed = :n where slice_id = :s"), {"n": len(rows), "s": slice_id})
        tx.update_each(redelivery_attempts, ("slice_id",), [(slice_id, row.message_id, row.attempts) for row in rows])
        move(
            tx,
            State.UNKNOWN,
            State.SENDING,
            few="select message_id from redelivery_attempts where slice_id = :slice_id",
            values={"slice_id": slice_id},
            action=Action.CLAIM_RESEND,
            reason="The broker drops a repeat, or the processed_check does not know the message.",
        )
        messages = _claimed(tx, slice_id)
    firsts = [at for at in (parse_instant(row.first_at) for row in rows) if at is not None]
    until = min(firsts) + dedupes_for if firsts and dedupes_for is not None else None
    return Slice(slice_id, asked.destination, now + terms.lasts, messages, until, resends=True)


def _open(tx: RunTransaction, asked: ClaimFilter, terms: ClaimTerms) -> int:
    breakers.add_destination(tx, asked.destination)
    return int(
        tx.execute(
            sql(
                "insert into delivery_slices (route, run_id, fence, shard, task_try, destination, claimed_at,"
                " deadline_at, system) values (:route, :run_id, :fence, :shard, :task_try, :destination, :now,"
                f" :deadline_at, {HERE}) returning slice_id"
            ),
            {
                "shard": terms.shard,
                "task_try": terms.task_try,
                "destination": asked.destination,
                "deadline_at": tx.now + terms.lasts,
            },
        ).scalar_one()
    )


def seen(connection: Connection, route: str) -> tuple[int, dict[int, int]]:
    """What a depth shows that is read after this call: (the route's newest slice, of each open one how much was
    sent)."""
    newest = connection.execute(sql(f"select {NEWEST_OF_ROUTE}"), {"route": route}).scalar_one()
    rows = connection.execute(
        sql("select slice_id, sent from delivery_slices where route = :route and closed_at is null"), {"route": route}
    )
    return int(newest), {row.slice_id: row.sent for row in rows}


def last_sent(
    connection: Connection, route: str, shard: int, since: datetime, cause: str | None = None
) -> datetime | None:
    """When the task of ``shard`` last ended a slice of ``route`` after ``since``, of ``cause`` or of any."""
    of_cause, values = "", {"route": route, "shard": shard, "since_at": since}
    if cause is not None:
        of_cause = (
            " and exists (select 1 from redelivery_attempts attempts"
            f"{OF_CAUSE} where attempts.slice_id = slices.slice_id)"
        )
        values["cause"] = cause
    found = connection.execute(
        sql(
            "select max(closed_at) from delivery_slices slices where route = :route and closed_at > :since_at"
            f" and shard = :shard and sent > 0{of_cause}"
        ),
        values,
    ).scalar()
    return parse_instant(found)


def left(connection: Connection, lease: RouteLease, limit: int | None) -> int | None:
    """How many more the run may send of a ``limit`` that all its tasks share; None: any number.

    What is claimed counts until its slice is closed; then what was sent does, and what may have been. A run that is
    begun anew (its tasks were cleared) has another fence, and is the same run: it sends what is left.
    """
    if limit is None:
        return None
    used = connection.execute(
        sql(
            "select coalesce(sum(case when closed_at is null then claimed when sent >= claimed then sent"
            " else sent + (select count(*) from redelivery_attempts attempts"
            " where attempts.slice_id = delivery_slices.slice_id and attempts.sent_at is null) end), 0)"
            " from delivery_slices where run_id = :run_id"
        ),
        {"run_id": lease.run_id},
    ).scalar_one()
    return max(0, limit - int(used))


def _within_all(tx: RunTransaction, asked: ClaimFilter, terms: ClaimTerms) -> int:
    """How many may be claimed: none on a paused route. The guard before it made this route's claims, and who pauses it,
    wait for each other, so two tasks don't take the same room."""
    if leases.pause_of(tx.connection, tx.route) is not None:
        return 0
    limit = _within_quota(tx, asked.destination, terms.limit)
    limit = _within_limit(tx, asked.selection.limit, limit)
    for room in terms.rooms:
        limit = _within_room(tx, asked.destination, room, limit)
    return limit


def _within_room(tx: RunTransaction, destination: str, room: Room, limit: int) -> int:
    """``limit``, or what the destination has room for; raises :class:`NoRoom` where that isn't worth a claim."""
    if not limit:
        return limit
    free = room.free - _unseen(tx, destination, room, counted=False)
    if free < limit:  # else there is enough even if nothing of what was claimed was given back
        free = room.free - _unseen(tx, destination, room, counted=True)
    if free < min(limit, room.least):
        raise NoRoom
    return min(limit, free)


#: The slices that a late depth may not show: two parts, as no index finds both together.
_OF_ALL_ROUTES = f"""
(
    select slice_id, claimed from delivery_slices
    where destination = :destination and observed_at is null and closed_at is null
        and deadline_at > :now and system = {HERE}
    union all
    select slice_id, claimed from delivery_slices
    where destination = :destination and observed_at is null and closed_at > :as_of_at and system = {HERE}
)
"""


def _unseen(tx: RunTransaction, destination: str, room: Room, *, counted: bool) -> int:
    """What slices take of the room beyond what its depth showed; not ``counted``, what they take of it at most."""
    values: dict[str, Any] = {"destination": destination}
    sent: Mapping[int, int] = {} if room.as_of is not None else room.sent
    attempts, of_slice = "", "max(slices.claimed)"
    if counted:  # what was given back has no attempt any more
        attempts = " inner join redelivery_attempts attempts on attempts.slice_id = slices.slice_id"
        of_slice = "count(*)"
        if room.cause:
            attempts += OF_CAUSE
            values["cause"] = room.cause
    if room.as_of is not None:
        slices, where = _OF_ALL_ROUTES, ""
        values["as_of_at"] = room.as_of
    else:
        opened = {f"slice_{number}": slice_id for number, slice_id in enumerate(sent)}
        among = f" or slices.slice_id in ({', '.join(':' + name for name in opened)})" if opened else ""
        slices = "delivery_slices"
        where = (
            f" where {tx.dialect.off_index('slices.route')} = :route and slices.destination = :destination"
            f" and slices.slice_id >= :least and (slices.slice_id > :newest{among})"
            " and (closed_at is not null or deadline_at > :now)"  # of an open one whose time is over nothing more goes
        )
        values |= {"newest": room.newest, **opened}
        values["least"] = min([room.newest, *sent])  # so that older slices, of a year perhaps, are not looked at
    rows = tx.execute(
        sql(f"select slices.slice_id, {of_slice} as n from {slices} slices{attempts}{where} group by slices.slice_id"),
        values,
    )
    return sum(max(0, int(row.n) - sent.get(row.slice_id, 0)) for row in rows)


def _within_limit(tx: RunTransaction, most: int | None, limit: int) -> int:
    """``limit``, or what is left of what the run may send."""
    rest = left(tx.connection, tx.lease, most)
    return limit if rest is None else min(limit, rest)


def _within_quota(tx: RunTransaction, destination: str, limit: int) -> int:
    """``limit``, or what the destination's breaker leaves of it."""
    quota = breakers.quota(tx.connection, tx.route, destination)
    return limit if quota is None else min(limit, quota)


def _claimed(tx: RunTransaction, slice_id: int) -> list[Claimed]:
    rows = tx.tuples(
        "select messages.message_id, redrive_id, attempt, mode, message_key, dead_lettered_at, claimed_at, due_at"
        " from redelivery_attempts inner join messages on messages.message_id = redelivery_attempts.message_id"
        " where slice_id = ? order by messages.message_id",
        (slice_id,),
    )
    return list(as_tuples(Claimed, rows))
