"""What became of past sends: confirmed, presumed, or to be sent again; never "gone, so it worked".

A send is *presumed* good only when a return could have been seen: the destination was seen to have worked past the
slice (:mod:`redrive.policy.worked_past`), the observation window has passed since then, and every source of the route
was drained and loaded beyond the window's end.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.delivery import counting
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import HERE, NOT_OBSERVED, WATCHED
from redrive.ledger.review import escalations
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Plan, State
from redrive.policy.worked_past import Consumption, Look, Sends, worked_past

_UNKNOWN = Consumption()


class Keyed(NamedTuple):
    """A message and the key under which a processed check knows it."""

    message_id: int
    message_key: str


#: A source was empty of what had died before a moment; what was staged of it may not be loaded yet.
_DRAINED = """
insert into source_state (route, source, pending_to)
values (:route, :source, :since_at)
on conflict (route, source) do update set pending_to = excluded.pending_to
"""
#: What was drained is known, once nothing that is staged of the route remains to be loaded.
_LOADED = """
update source_state set drained_to = pending_to, pending_to = null
where
    route = :route and pending_to is not null
    and not exists (
        select 1 from staging_batches
        where route = :route and state in ('recorded', 'settled') and loaded_at is null
    )
"""


def sources_drained(ledger: Ledger, lease: RouteLease, sources: Sequence[str], since: datetime, now: datetime) -> None:
    """These sources were empty of anything that lay in them at ``since``; it counts once their batches are loaded."""
    with ledger.under(lease, now) as tx:
        for source in sources:
            tx.execute(sql(_DRAINED), {"source": source, "since_at": since})


def forget_pending(ledger: Ledger, lease: RouteLease, now: datetime) -> None:
    """A run that died may have drained some shards only: what it thought to have drained does not count."""
    with ledger.under(lease, now) as tx:
        tx.execute(sql("update source_state set pending_to = null where route = :route"))


def sources_loaded(ledger: Ledger, lease: RouteLease, now: datetime) -> None:
    """All recorded batches of the route are loaded: what was drained is now also known."""
    with ledger.under(lease, now) as tx:
        tx.execute(sql(_LOADED))


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


def awaited(connection: Connection, route: str, before: datetime) -> bool:
    """Whether sends that were claimed before ``before`` wait to be observed: drains decide what becomes of them."""
    found = connection.execute(
        sql(
            f"select 1 from delivery_slices where route = :route and claimed_at < :before_at and {NOT_OBSERVED} limit 1"
        ),
        {"route": route, "before_at": before},
    )
    return found.first() is not None


#: Sends of the route without an outcome that may have come back in a batch; without a batch, in any.
_OUTSTANDING = """
select count(*)
from redelivery_attempts attempts
inner join delivery_slices slices on slices.slice_id = attempts.slice_id
where
    slices.route = :route and slices.observed_at is null and attempts.sent_at is not null and attempts.outcome is null
    and (
        cast(:batch_id as bigint) is null
        or slices.fence <= (select fence from staging_batches where batch_id = :batch_id)
    )
"""


def outstanding(connection: Connection, route: str, batch_id: int | None = None) -> int:
    """How many sends of the route wait to be observed: each may have come back in a batch that is not loaded. With
    ``batch_id`` those that may have in this one: what later runs sent had not come back when it was drained."""
    return int(connection.execute(sql(_OUTSTANDING), {"route": route, "batch_id": batch_id}).scalar_one())


#: The slices of runs up to a fence that are watched.
_WATCHED_UNTIL = f"select slice_id from delivery_slices where route = :route and fence <= :until_fence and {WATCHED}"
#: Messages whose last send nobody will see come back stay sent, and say why.
_SAY_THAT_SIGHT_IS_LOST = f"""
update messages set reason = :reason
where
    route = :route and state = 'sent'
    and exists (
        select 1 from redelivery_attempts attempts
        where
            attempts.message_id = messages.message_id and attempts.attempt = messages.attempts
            and attempts.slice_id in ({_WATCHED_UNTIL})
            and attempts.sent_at is not null and attempts.outcome is null
    )
"""


def lose_sight(tx: RunTransaction, *, until_fence: int, reason: str) -> int:
    """Nobody will see whether the watched sends of runs up to ``until_fence`` came back: they stay sent, with this
    ``reason``, until they are seen after all or proved to be processed; how many they are. Gates and breakers count
    them as if they had not been sent, and send others. In the caller's transaction."""
    values = {"until_fence": until_fence, "reason": reason}
    counting.forget_sends(tx, f"slice_id in ({_WATCHED_UNTIL}) and sent_at is not null and outcome is null", values)
    count = tx.execute(sql(_SAY_THAT_SIGHT_IS_LOST), values).rowcount
    tx.execute(sql(f"update delivery_slices set observed_at = :now where slice_id in ({_WATCHED_UNTIL})"), values)
    return int(count)


def watched(connection: Connection, route: str) -> list[str]:
    """The destinations, at the route's present broker, that are not known to have worked past all of its sends."""
    rows = connection.execute(
        sql(
            f"select distinct destination from delivery_slices where route = :route and {WATCHED}"
            f" and observed_from is null and system = {HERE}"
        ),
        {"route": route},
    )
    return sorted(row.destination for row in rows)


#: The slices whose window is over, with every source drained beyond it. What went by another broker came back to
#: sources that the route doesn't drain any more.
_CLOSABLE = f"""
select slice_id from delivery_slices
where route = :route and observed_at is null and window_ends_at <= :horizon_at and system = {HERE}
"""
#: What has not come back of them is presumed, and counts for its breakers as having stayed.
_PRESUME = f"""
update redelivery_attempts set outcome = 'presumed', outcome_at = :now, {counting.STAYED}
where slice_id in ({_CLOSABLE}) and sent_at is not null and outcome is null
"""
#: Over ``messages``: their last send was presumed with one of these slices.
_IS_PRESUMED = f"""
route = :route and exists (
    select 1 from redelivery_attempts attempts
    where
        attempts.message_id = messages.message_id and attempts.attempt = messages.attempts
        and attempts.outcome = 'presumed' and attempts.slice_id in ({_CLOSABLE})
)
"""


def presume(
    ledger: Ledger,
    lease: RouteLease,
    destinations: Mapping[str, Consumption],
    *,
    window: timedelta,
    sources: Sequence[str],
    now: datetime,
) -> int:
    """Close the observation of every slice whose window could have shown a return; returns the presumed messages.

    ``destinations``: what is known of those that are :func:`watched`.
    """
    with ledger.under(lease, now) as tx:
        _note_worked_past(tx, destinations, window)
        horizon = drained_to(tx.connection, lease.route, sources)
        if horizon is None:
            return 0
        values = {"horizon_at": horizon}
        tx.execute(sql(_PRESUME), values)
        presumed = move(
            tx,
            State.SENT,
            State.PRESUMED,
            where=_IS_PRESUMED,
            values=values,
            action=Action.PRESUME,
            reason=f"It did not come back within {window} after its destination had worked past it.",
        )
        tx.execute(sql(f"update delivery_slices set observed_at = :now where slice_id in ({_CLOSABLE})"), values)
    return presumed


#: The route's slices whose destination is not known to have worked past them, and when the first outcome of each was.
#: What was made again after an unknown send lies where the first try does if the broker dropped the second: it adds
#: nothing to a depth, and says nothing of what was sent since that first try.
_NOT_WORKED_PAST = f"""
select
    slice_id, system, system = {HERE} as here, destination, claimed_at, last_sent_at, fence,
    (
        select count(*) from redelivery_attempts made
        where made.slice_id = delivery_slices.slice_id and made.sent_at is not null and made.unknown_at is null
    ) as sent,
    (
        select min(outcome_at) from redelivery_attempts made
        where
            made.slice_id = delivery_slices.slice_id
            and made.unknown_at is null
            and outcome in ('returned', 'confirmed')
    ) as first_outcome_at
from delivery_slices
where route = :route and {WATCHED} and observed_from is null
"""
#: Looks at a destination that say how much it holds, and the fences of those that runs of the route took.
_LOOKS = """
select
    observed_at, visible + in_flight + delayed as depth, visible + delayed as waiting, lag_seconds,
    zeros_apart_seconds, exact,
    (select fence from runs where runs.run_id = queue_observations.run_id and runs.route = :route) as fence
from queue_observations
where
    queue = :queue and system = :system and role = 'destination' and observed_at > :since_at
    and visible + in_flight + delayed is not null
order by observed_at
"""


def _note_worked_past(tx: RunTransaction, destinations: Mapping[str, Consumption], window: timedelta) -> None:
    """Give every slice of the route the moment from which its destination is known to have worked past it, and the end
    of its observation ``window``."""
    rows = tx.execute(sql(_NOT_WORKED_PAST)).all()
    slices: dict[tuple[str, str, Consumption], list[Sends]] = defaultdict(list)
    for row in rows:
        claimed, last, outcome = map(parse_instant, (row.claimed_at, row.last_sent_at, row.first_outcome_at))
        if claimed is not None and last is not None:
            how = destinations.get(row.destination, _UNKNOWN) if row.here else _UNKNOWN
            slices[row.system, row.destination, how].append(
                Sends(row.slice_id, claimed, last, row.sent, outcome, row.fence)
            )
    for (system, destination, how), sends in slices.items():
        looks = tx.execute(
            sql(_LOOKS),
            {"queue": destination, "system": system, "since_at": min(one.last_sent_at for one in sends)},
        )
        seen = [
            Look(
                at,
                row.depth,
                timedelta(seconds=row.lag_seconds),
                bool(row.exact),
                row.fence,
                row.waiting,
                timedelta(seconds=row.zeros_apart_seconds),
            )
            for row in looks
            if (at := parse_instant(row.observed_at)) is not None
        ]
        tx.many(
            "update delivery_slices set observed_from = ? where slice_id = ?",
            [(tx.dialect.stored(at), slice_id) for slice_id, at in worked_past(sends, seen, how, tx.now).items()],
        )
    end = tx.dialect.later("observed_from", str(window.total_seconds()))
    tx.execute(
        sql(
            f"update delivery_slices set window_ends_at = {end}"
            " where route = :route and observed_at is null and observed_from is not null"
        )
    )


def any_under_observation(connection: Connection, route: str) -> bool:
    """Whether the route has sends whose outcome isn't known."""
    return (
        connection.execute(
            sql(
                "select 1 where exists (select 1 from messages where route = :route and state in ('sent', 'unknown'))"
                f" or exists (select 1 from delivery_slices where route = :route and {NOT_OBSERVED})"
            ),
            {"route": route},
        ).first()
        is not None
    )


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
    with ledger.under(lease, now) as tx:
        return prove(tx, message_ids)


#: The last sends of these messages succeeded, whatever was presumed of them; they count as having stayed.
_PROVE = f"""
update redelivery_attempts set outcome = 'confirmed', outcome_at = :now, {counting.STAYED}
where
    message_id in (select message_id from proved) and coalesce(outcome, 'presumed') = 'presumed'
    and attempt = (select attempts from messages where messages.message_id = redelivery_attempts.message_id)
"""


def prove(tx: RunTransaction, message_ids: Sequence[int]) -> int:
    """As :func:`confirm`, in the caller's transaction."""
    tx.temporary("proved", "message_id bigint primary key")
    tx.bulk("proved", ("message_id",), [(i,) for i in message_ids])
    tx.execute(sql(_PROVE))
    escalations.close_released(tx, "proved", f"Nobody knew whether it was sent. {escalations.PROCESSED}")
    return sum(
        move(
            tx,
            state,
            State.CONFIRMED,
            where="message_id in (select message_id from proved)",
            action=Action.CONFIRM,
            reason=escalations.PROCESSED,
        )
        for state in (State.SENT, State.UNKNOWN, State.TO_REVIEW)
    )


def unknown_destinations(connection: Connection, route: str) -> list[str]:
    """Queues to which the route has sends of unknown fate."""
    rows = connection.execute(
        sql("select distinct destination from messages where route = :route and state = 'unknown'"), {"route": route}
    )
    return sorted(row.destination for row in rows)


def decide_unknown(
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


#: The route's newest returns of what went by its present broker: from when it was with the consumer, until when.
_RETURNS = f"""
select coalesce(due_at, sent_at) as sent_at, outcome_at
from redelivery_attempts
where
    route = :route and outcome = 'returned' and return_kind = 'dead_letter' and sent_at is not null
    and exists (
        select 1 from delivery_slices went
        where went.slice_id = redelivery_attempts.slice_id and went.system = {HERE}
    )
order by message_id desc
limit 10000
"""


def return_times(connection: Connection, route: str, quantile: float = 0.99, least: int = 20) -> float | None:
    """Seconds from send (or from when the broker let go of what it delayed) to return that ``quantile`` of the
    route's newest 10,000 returns, of what went by its present broker, stayed below; None while there are fewer than
    ``least``."""
    rows = connection.execute(sql(_RETURNS), {"route": route}).all()
    seconds = sorted(
        (end - start).total_seconds()
        for start, end in ((parse_instant(r.sent_at), parse_instant(r.outcome_at)) for r in rows)
        if start is not None and end is not None
    )
    if len(seconds) < least:
        return None
    return seconds[min(len(seconds) - 1, int(quantile * len(seconds)))]
