"""Restore: the way out. Every unfinished message goes back into the queue it was drained from, as it was.

The order is the same as in a delivery: claimed, then sent, then confirmed, then marked. A message that can't be put
back (a body that an edit or another broker made unsendable, a queue that is gone, or whose other readers would get it
too) is left where it is and told. Once an answer was lost nothing more is handed over: so an outage brings no more than
a page into doubt.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

from sqlalchemy.engine import Connection

from redrive.brokers.base import WayBack
from redrive.errors import BrokerError, NothingSent, PermissionRefused, QueueMissing, StagingError
from redrive.ledger.account import balance
from redrive.ledger.drain import batches
from redrive.ledger.engine import Ledger
from redrive.ledger.review import restoring
from redrive.ledger.review.restoring import Unfinished
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Outgoing, batch_and_row, restore_id
from redrive.stages import classify, escalate, fan_out
from redrive.stages.context import Context, micros

PAGE = 200


class WouldRestore(NamedTuple):
    """What :func:`restore` would do: messages that it would put back at most, copies that are not loaded yet (it would
    have to load them first, if it :func:`takes_all`), and what it would leave as ``unknown`` and ``suspected``."""

    messages: int
    staged: int
    unknown: int
    suspected: int


def would_restore(
    ledger: Ledger, connection: Connection, route: str, selection: Selection, *, leased_for: timedelta
) -> WouldRestore:
    """What a restore with this selection would do now; ``leased_for``: how long drains of the route lease."""
    groups = selection.groups
    not_taken = restoring.not_taken(ledger, connection, route, leased_for=leased_for, groups=groups)
    count = restoring.count(connection, route, groups) - not_taken.still_there - not_taken.in_doubt
    return WouldRestore(
        count if selection.limit is None else min(count, selection.limit),
        balance.of_route(connection, route).get("staged", 0),
        restoring.sent_in_doubt(connection, route, groups) + not_taken.in_doubt,
        restoring.suspected(connection, route, groups),
    )


def takes_all(selection: Selection) -> bool:
    """Whether a restore with this selection puts back everything: only then also what was staged and never loaded.

    A part is of what is known; what is loaded without being classified, and then not put back, would be lost to the
    next run, which could have classified it.
    """
    return not selection.groups and selection.limit is None


def restore(context: Context) -> dict[str, Any]:
    """Put every unfinished message back into its source; says how many, and what could not be put back and why.

    The run's selection narrows it: to groups, which are then what all numbers but ``staged`` are about, and to so many
    messages (``limit``). Then what is not loaded yet stays as it is, for the next run to classify. What is loaded here
    and not put back goes to people at the next plan.

    ``restored``; ``not_restored``, with the first twenty reasons in ``problems``; ``still_there``, whose copy the
    broker refused to settle, so that its queue has it; ``unknown``, which an earlier restore or a delivery may have
    sent (also what is under review for that), or whose queue may have it because only a part of its batch was settled,
    or no answer came whether any was: a second copy would be a guess. ``suspected`` copies, too: they may be second
    stagings of messages, and stay under review until somebody decides. ``not_tried``: how many more there are at most,
    where an answer was lost and it ended with that. ``staged``: copies that are not loaded: a part was asked for, or
    they can't be read.
    """
    restored, tried, failed, doubted = 0, 0, {}, False
    closed: dict[str, str] = {}  # sources where nothing can be put, and why
    if takes_all(context.run.selection):
        classify.load_unclassified(context)
    with context.ledger.read() as connection:
        groups, leased_for = context.run.selection.groups, context.route.drain.lease
        total = restoring.count(connection, context.name, groups)
        uncertain = restoring.sent_in_doubt(connection, context.name, groups)
        not_taken = restoring.not_taken(context.ledger, connection, context.name, leased_for=leased_for, groups=groups)
        uncertain += not_taken.in_doubt
        suspected = restoring.suspected(connection, context.name, groups)
        staged = balance.of_route(connection, context.name).get("staged", 0)
    after, chosen = -1, context.run.selection
    left = chosen.limit
    most = total if left is None else min(total, left)
    while not doubted:
        with context.ledger.read() as connection:
            page = restoring.unfinished(
                context.ledger,
                connection,
                context.name,
                leased_for=leased_for,
                after=after,
                limit=PAGE if left is None else min(PAGE, left),
                groups=chosen.groups,
            )
        if not page:
            break
        after = page[-1].message_id
        if left is not None:
            left -= len(page)
        for source in sorted({one.source for one in page}):
            some = [one for one in page if one.source == source]
            ended = _put_back(context, source, some) if source not in closed else _all_left(some, closed[source])
            if ended.closed:
                closed[source] = ended.closed
            tried += len(some)
            restored += ended.restored
            failed.update(ended.problems)
            if doubted := ended.doubted:
                break
        context.progress("restoring", restored, total)
    escalate.ask_again(context)
    return {
        "restored": restored,
        "not_restored": len(failed),
        "still_there": not_taken.still_there,
        "unknown": uncertain,
        "suspected": suspected,
        "not_tried": max(0, most - tried) if doubted else 0,
        "staged": staged,
        "problems": dict(sorted(failed.items())[:20]),
    }


class _Ended(NamedTuple):
    """What became of some messages."""

    restored: int
    problems: dict[int, str]
    doubted: bool  # of some of them nobody knows whether their queue has them
    closed: str = ""  # why none gets into their queue


def _all_left(some: Sequence[Unfinished], why: str, closed: str = "") -> _Ended:
    """None of these was put back."""
    return _Ended(0, {one.message_id: why for one in some}, doubted=False, closed=closed)


def _put_back(context: Context, source: str, some: Sequence[Unfinished]) -> _Ended:
    """Hand these to their queue. Raises, with all of them as they were, where the broker is not there and certainly
    nothing was sent."""
    problems: dict[int, str] = {}
    messages: list[Outgoing] = []
    try:
        to = _way_back(context, source)
        # Where nobody can send at all (Service Bus), the broker's own words about it are better.
        objection = fan_out.objection(context, to) if context.broker.capabilities_for(source).takes_back else None
    except (QueueMissing, PermissionRefused) as error:
        return _all_left(some, str(error), closed=str(error))
    if objection:
        return _all_left(some, objection)
    with context.ledger.read() as connection:
        paths = batches.paths(connection, {batch_and_row(one.message_id)[0] for one in some})
    for one in some:
        batch_id, row = batch_and_row(one.message_id)
        try:
            [letter] = next(context.staging.letters(paths[batch_id], [row]))
        except (StagingError, KeyError, StopIteration) as error:
            problems[one.message_id] = f"its payload can't be read: {error or 'the row is missing'}"
            continue
        messages.append(_as_it_was(context, one, letter))
    if not messages:
        return _Ended(0, problems, doubted=False)
    # A crash from here on leaves these in a state of their own, which nothing sends: the next run asks people.
    claimed = set(restoring.begin(context.ledger, context.lease, [m.message_id for m in messages], context.now()))
    messages = [m for m in messages if m.message_id in claimed]
    as_before = {one.message_id: one for one in some}
    try:
        results = context.broker.publish(to, messages)
    except (QueueMissing, PermissionRefused, NothingSent) as error:
        back = [as_before[m.message_id] for m in messages]
        restoring.undo(context.ledger, context.lease, back, str(error), context.now())
        if isinstance(error, NothingSent):
            raise
        return _Ended(0, problems | {m.message_id: str(error) for m in messages}, doubted=False, closed=str(error))
    except BrokerError as error:
        restoring.doubt(context.ledger, context.lease, context.now())
        return _Ended(0, problems | {m.message_id: f"unknown: {error}" for m in messages}, doubted=True)
    sent, not_sent = [], []
    for message, result in zip(messages, results, strict=True):
        if result.status == "sent":
            sent.append(message.message_id)
            continue
        problems[message.message_id] = f"{result.status}: {result.detail}"
        if result.status != "unknown":
            not_sent.append(as_before[message.message_id])
    restoring.finish(context.ledger, context.lease, sent, source, context.now())
    why = next((f"{one.status}: {one.detail}" for one in results if one.status not in ("sent", "unknown")), "")
    restoring.undo(context.ledger, context.lease, not_sent, why, context.now())
    doubted = restoring.doubt(context.ledger, context.lease, context.now())
    return _Ended(len(sent), problems, doubted=doubted > 0)


def _way_back(context: Context, source: str) -> str:
    """Where to publish what is to get into ``source``; raises what :class:`WayBack` does."""
    broker = context.broker
    return cast("WayBack", broker).way_back(source) if broker.capabilities_for(source).way_back else source


def _as_it_was(context: Context, one: Unfinished, letter: DeadLetter) -> Outgoing:
    return Outgoing(
        message_id=one.message_id,
        redrive_id=one.redrive_id,
        attempt=one.attempts,
        body=letter.body,
        headers=letter.headers,
        properties=letter.properties,
        ordering_key=letter.ordering_key,
        content_type=letter.content_type,
        dedup_id=restore_id(one.redrive_id, context.lease.fence, micros(context.now())),
    )
