"""How old the oldest message of a live queue really is.

Brokers that tell an age tell it wrongly just when it matters. AWS writes that a message that was received three times
without being deleted goes to the back of the queue and that the metric then tells the age of the next one; a team that
measured it saw the age of a poison message fall after three receives and again after six, a sawtooth, with a redrive
policy and without. And it starts anew when a message is moved or sent again. What the messages themselves say does not:
each carries when it was sent, and of those that we redelivered the ledger knows when they were *first* sent.

Where the route asks for it (``ages.sample``), each observation receives a few messages of a destination and releases
them at once. That costs each a delivery. So where the queue dead-letters, looks are rationed: over its life a message
is looked at so rarely that consumers keep more than half of its deliveries. A look costs nothing to what it did not
see: a poison message that is in a consumer's hands whenever somebody looks doesn't end the looks.

A poison message is in a consumer's hands most of the time, and a look can't see it then. One that was seen after it had
failed :data:`POISON` times is therefore remembered until it is known to be gone. So is whatever was seen last in a
queue of which nobody takes anything: while its depth never falls and nothing is in flight, nothing has left.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from redrive.brokers.base import Depth
from redrive.errors import BrokerError
from redrive.ledger.delivery import observations
from redrive.ledger.delivery.observations import Oldest
from redrive.message import DeadLetter, Micros, read_tracking
from redrive.stages.context import Context, instant, micros
from redrive.staging.odd_copies import as_far_as_possible

#: Received so often, a message is remembered while it can't be seen; from here on SQS's metric doesn't tell its age.
POISON = 3
#: A look has messages under lease for a moment; should we die in it, they come back after this.
HOLD = timedelta(seconds=10)
#: How long a poison message that nobody has seen again is remembered, at least.
REMEMBERED = timedelta(hours=1)
#: Where nobody tells: SQS's own defaults and longest retention.
LEASE, DELIVERIES, RETENTION = timedelta(seconds=30), 10, timedelta(days=14)


class Ages(NamedTuple):
    """Ages of one queue, as an :class:`~redrive.ledger.delivery.observations.Observation` has them."""

    oldest_age_seconds: float | None = None
    oldest_age_method: str = "unknown"
    oldest_visible_age_seconds: float | None = None
    oldest_visible_age_method: str = "unknown"
    coverage: float | None = None
    oldest_enqueued_at: datetime | None = None
    oldest_seen_at: datetime | None = None
    oldest_deliveries: int | None = None
    looked_from_at: datetime | None = None
    looked_to_at: datetime | None = None


UNKNOWN = Ages()
#: Nothing is in the queue, says the broker, so nothing has an age.
EMPTY = Ages(oldest_age_method="broker", oldest_visible_age_method="broker", coverage=1.0)


def look(context: Context, queue: str, depth: Depth) -> Ages:
    """The ages of destination ``queue``, whose ``depth`` was just asked; unknown unless the route asks for a sample.

    Write the outcome down before doing anything else that can fail: looks are rationed by what is written.
    Raises :class:`PermissionRefused` where we may not receive from ``queue``.
    """
    wanted, broker = context.route.ages.sample, context.broker
    if not wanted or broker.capabilities_for(queue).oldest_age != "sample":
        return UNKNOWN
    if depth.total == 0:
        return EMPTY
    info, now, untouched = broker.describe(queue), context.now(), False
    with context.ledger.read() as connection:
        known = observations.last_oldest(connection, context.name, queue)
        if known is not None and observations.drained_since(connection, context.name, known.enqueued_at, known.seen_at):
            known = None
        if known is not None and depth.total is not None and depth.in_flight == 0:
            untouched = observations.nothing_left(connection, context.name, queue, depth.total, known.seen_at)
        since = observations.nothing_older_than(connection, context.name, queue, now - (info.retention or RETENTION))
        had = observations.most_looks(connection, context.name, queue, since)
    seen = _sample(context, queue, wanted) if may_look(had, info.own_max_deliveries) else None
    keep = max(REMEMBERED, (info.own_max_deliveries or DELIVERIES) * (info.lease or LEASE))
    oldest = None if seen is None else [one for one, _ in seen]
    found = ages_of(depth, oldest, known, keep=keep, now=context.now(), untouched=untouched)
    if not seen:
        return found
    sent = [moment for _, moment in seen]
    return found._replace(looked_from_at=min(sent), looked_to_at=max(sent))


def may_look(had: int, max_deliveries: int | None) -> bool:
    """Whether messages that may have been looked at ``had`` times can bear another look.

    More than half of ``max_deliveries`` is left to consumers; None: the queue dead-letters nothing.
    """
    return max_deliveries is None or had < (max_deliveries - 1) // 2


def ages_of(
    depth: Depth,
    seen: Sequence[Oldest] | None,
    known: Oldest | None,
    *,
    keep: timedelta,
    now: datetime,
    untouched: bool = False,
) -> Ages:
    """What is true of the ages, after ``seen`` (None: nobody looked) and with what was ``known`` before; ``untouched``:
    nothing has left the queue since."""
    coverage = None
    if seen is not None and depth.total:
        coverage = min(1.0, len(seen) / depth.total)
    likely = known is not None and not untouched and (known.deliveries < POISON or now - known.seen_at > keep)
    gone = coverage == 1.0 or likely
    visible = min(seen or (), default=None)
    oldest, method = visible, "sample"
    if known is not None and not gone and (visible is None or known.enqueued_at < visible.enqueued_at):
        oldest, method = known, "ledger"
    if oldest is None:
        return UNKNOWN._replace(coverage=coverage)
    return Ages(
        _age(oldest, now),
        method,
        None if visible is None else _age(visible, now),
        "unknown" if visible is None else "sample",
        coverage,
        oldest.enqueued_at,
        oldest.seen_at,
        oldest.deliveries,
    )


def _age(oldest: Oldest, now: datetime) -> float:
    return max(0.0, (now - oldest.enqueued_at).total_seconds())


def _sample(context: Context, queue: str, wanted: int) -> list[tuple[Oldest, datetime]]:
    """Up to ``wanted`` visible messages, each received once and given back; and when the broker got each."""
    broker = context.broker
    received = broker.receive(queue, limit=wanted, wait=context.route.drain.wait, lease=HOLD)
    now = context.now()
    try:
        broker.release(queue, [one.receipt for one in received])
    except BrokerError:
        pass  # their lease ends by itself, soon
    letters = [one.letter for one in received]
    ids = [tracking.redrive_id if (tracking := read_tracking(letter.headers)) else "" for letter in letters]
    found = []
    with context.ledger.read() as connection:
        firsts = observations.originals(connection, [one for one in ids if one])
        for letter, redrive_id in zip(letters, ids, strict=True):
            if letter.enqueued_at is None:
                continue
            sent = instant(letter.enqueued_at)
            ours = observations.looks(connection, context.name, queue, sent) + 1
            one = Oldest(min(sent, firsts.get(redrive_id, sent)), now, max(0, letter.deliveries - ours))
            found.append((one, sent))
    return found


def first_enqueued(context: Context, letters: Sequence[DeadLetter]) -> Micros | None:
    """When the oldest of ``letters`` was first enqueued: one that we redelivered is as old as it was before that."""
    moments = [letter.enqueued_at for letter in letters if letter.enqueued_at is not None]
    try:
        ids = _own_ids(letters)
    except (TypeError, ValueError, AttributeError):  # headers that are none, of one of thousands
        ids = _own_ids([as_far_as_possible(letter) for letter in letters])
    if ids:
        with context.ledger.read() as connection:
            moments += [micros(first) for first in observations.originals(connection, ids).values()]
    return min(moments, default=None)


def _own_ids(letters: Sequence[DeadLetter]) -> list[str]:
    return [tracking.redrive_id for letter in letters if (tracking := read_tracking(letter.headers))]
