"""What became of past sends: which wait to be observed, which were proved, and how long returns take.

Absence is looked at by :mod:`redrive.ledger.delivery.presuming`, sends of unknown fate by
:mod:`redrive.ledger.delivery.unknown_sends`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.delivery import counting
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import HERE, NOT_OBSERVED, WATCHED
from redrive.ledger.review import escalations
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import State


class Keyed(NamedTuple):
    """A message and the key under which a processed check knows it."""

    message_id: int
    message_key: str


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


#: The slices of runs up to a fence that are watched, as far as ``{{only}}`` goes.
_WATCHED_UNTIL = (
    f"select slice_id from delivery_slices where route = :route and fence <= :until_fence and {WATCHED} and {{only}}"
)
#: Messages whose last send nobody will see come back stay sent, and say why.
_SAY_THAT_SIGHT_IS_LOST = """
update messages set reason = :reason
where
    route = :route and state = 'sent'
    and exists (
        select 1 from redelivery_attempts attempts
        where
            attempts.message_id = messages.message_id and attempts.attempt = messages.attempts
            and attempts.slice_id in ({slices})
            and attempts.sent_at is not null and attempts.outcome is null
    )
"""


def lose_sight(
    tx: RunTransaction,
    *,
    until_fence: int,
    reason: str,
    only: str = "1 = 1",
    values: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Nobody will see whether the watched sends of runs up to ``until_fence`` came back: they stay sent, with this
    ``reason``, until they are seen after all or proved to be processed; how many they are. Gates and breakers count
    them as if they had not been sent, and send others. ``only`` is SQL over ``delivery_slices``, with ``values``. In
    the caller's transaction."""
    slices = _WATCHED_UNTIL.format(only=only)
    values = {**values, "until_fence": until_fence, "reason": reason}
    counting.forget_sends(tx, f"slice_id in ({slices}) and sent_at is not null and outcome is null", values)
    count = tx.execute(sql(_SAY_THAT_SIGHT_IS_LOST.format(slices=slices)), values).rowcount
    tx.execute(sql(f"update delivery_slices set observed_at = :now where slice_id in ({slices})"), values)
    return int(count)


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


def under_observation(
    connection: Connection,
    route: str,
    after: int,
    limit: int,
    *,
    sent_within: Sequence[tuple[datetime, datetime]] | None = None,
) -> list[Keyed]:
    """Messages whose last send has no outcome yet and that have a key, in id order after ``after``; of those that are
    known to be sent only those of these spans of time, each after its begin and up to its end. None: all of them."""
    values: dict[str, Any] = {"route": route, "after": after, "limit": limit}
    spans = []
    for place, (begin, end) in enumerate(sent_within or ()):
        values |= {f"begin_{place}_at": begin, f"end_{place}_at": end}
        spans.append(f"changed_at > :begin_{place}_at and changed_at <= :end_{place}_at")
    asked = "1 = 1" if sent_within is None else f"(state = 'unknown' or {' or '.join(spans) or '1 = 0'})"
    rows = connection.execute(
        sql(
            "select message_id, message_key from messages where route = :route and state in ('sent', 'unknown')"
            f" and message_key is not null and message_id > :after and {asked} order by message_id limit :limit"
        ),
        values,
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


#: The route's newest returns of what went by its present broker: from when it was with the consumer, until when. What
#: the consumer asked for later is left out, and not the rest taken: of all attempts few came back, so PostgreSQL would
#: take failed returns to be rare among the returns, and sort all that there ever were.
_RETURNS = f"""
select coalesce(due_at, sent_at) as sent_at, outcome_at
from redelivery_attempts
where
    route = :route and outcome = 'returned' and coalesce(return_kind, '') <> 'delay' and sent_at is not null
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
