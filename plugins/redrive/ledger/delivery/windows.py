"""Windows and marks: what is known of a slice that is being sent, so that a crash leaves at most one window unknown.

A slice is sent in windows, in message id order. Before a window is handed to the broker its end is committed as the
slice's *high-water mark*; when the broker has answered, the window is marked. On that rests what
:mod:`redrive.ledger.delivery.recovery` makes of a slice that was left open.

Both may go alongside other transactions of the route: beside the claim of the next slice, say. Each changes the slice's
row first, and finds it closed where a recovery was there before; a recovery that comes later locks that row and waits.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from redrive.audit_actions import Action
from redrive.errors import LeaseLost
from redrive.ledger.delivery import counting, outcomes
from redrive.ledger.delivery.claims import AT_ONCE
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move
from redrive.ledger.review import escalations
from redrive.ledger.tables import redelivery_attempts
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Plan, State
from redrive.message import index_keys
from redrive.policy import backoff

RETRY_AFTER = timedelta(seconds=30)


class Mark(NamedTuple):
    """How one message of a window ended; ``status`` as in :class:`redrive.brokers.base.Publication`."""

    message_id: int
    attempt: int
    status: str
    broker_message_id: str | None = None
    detail: str = ""
    tracked: bool = True
    body_hash: bytes | None = None  # of an edited body
    due_at: datetime | None = None  # the broker keeps it until then at least


def raise_mark(
    ledger: Ledger, lease: RouteLease, slice_id: int, last_message_id: int, now: datetime, *, alongside: bool = False
) -> None:
    """Announce that everything up to ``last_message_id`` may now be handed to the broker.

    Raises :class:`LeaseLost` when the run was replaced or the claim's deadline has passed.
    """
    with ledger.under(lease, now, alongside=alongside) as tx:
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


def _hold(tx: RunTransaction, slice_id: int) -> None:
    """Raises :class:`LeaseLost` when the slice was closed: its messages may be anybody's by now.

    A task that is taken for dead is tried again by the same run; the new try closes what the old one left, which may
    still live. Transactions of one route's runs wait for each other, so who holds the slice holds it to the end.
    """
    if not tx.execute(
        sql("select count(*) from delivery_slices where slice_id = :slice_id and fence = :fence and closed_at is null"),
        {"slice_id": slice_id},
    ).scalar_one():
        raise _taken_over(tx, slice_id)


def _taken_over(tx: RunTransaction, slice_id: int) -> LeaseLost:
    return LeaseLost(f"route {tx.route}: another try of this task has taken over slice {slice_id}")


def give_back(ledger: Ledger, lease: RouteLease, slice_id: int, message_ids: Sequence[int], now: datetime) -> int:
    """Messages of the slice that certainly were not sent wait again, as if never claimed.

    Raises :class:`LeaseLost`, as all that follows, when the slice was closed meanwhile.
    """
    with ledger.under(lease, now) as tx:
        _hold(tx, slice_id)
        return put_back(tx, slice_id, message_ids, "not sent")


def set_aside(
    ledger: Ledger, lease: RouteLease, slice_id: int, message_ids: Sequence[int], reason: str, now: datetime
) -> int:
    """Messages of the slice that certainly were not sent, and can't be, are given back, and people are to be asked."""
    with ledger.under(lease, now) as tx:
        _hold(tx, slice_id)
        put_back(tx, slice_id, message_ids, "It can't be read.")
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
                action=Action.PUT_TO_REVIEW,
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
        _hold(tx, slice_id)
        put_back(tx, slice_id, message_ids, escalations.PROCESSED)
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
        escalations.close_released(tx, "suppressed", f"{escalations.PROCESSED} It was not sent.")
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
            values={"why": escalations.PROCESSED},
            set_="reason = :why, next_attempt_at = null",
            action=Action.SUPPRESS,
            reason=escalations.PROCESSED,
        )


def put_back(
    tx: RunTransaction,
    slice_id: int,
    message_ids: Sequence[int],
    reason: str,
) -> int:
    """As :func:`give_back`, within a transaction; the audit trail says the ``reason``.

    Only what still is this slice's: what was given back before may have been claimed anew.
    """
    if not message_ids:
        return 0
    tx.temporary("back", "message_id bigint primary key")
    tx.bulk("back", ("message_id",), [(i,) for i in message_ids])
    tx.execute(
        sql(
            "delete from back where not exists (select 1 from redelivery_attempts attempts"
            " where attempts.message_id = back.message_id and attempts.slice_id = :slice_id)"
        ),
        {"slice_id": slice_id},
    )
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
            f"attempts = attempts - 1, requeues = requeues - case when plan in {AT_ONCE} then 1 else 0 end,"
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
    following: tuple[int, int] | None = None,
    last_window: bool = False,
    first_sends: bool = False,
    alongside: bool = False,
) -> bool:
    """Record how a window ended, in one transaction; with ``following`` (slice, last message) also announce the next
    window, of this slice or the next one; after the ``last_window`` also close the slice. What was sent is recorded in
    the attempts; the messages follow when the slice is closed, or recovered. Of ``first_sends``, which are no resends,
    nothing was recorded before, so what an attempt is taken for need not be written again. ``marks`` are of all
    messages of the slice from the first of them to the last, but for those that were given back. ``alongside`` other
    transactions of the route where nothing but this slice is concerned: all of it was sent, and more is to come.

    Says whether the next window was announced: not when the claim's deadline has passed. A message that was not sent
    for a reason of its own is tried ``tries`` times, then goes to people: one that is refused at once, one that is to
    be tried again where it was the only one of its window that was not sent. Any other time waits for the broker, and
    ends with the age at which the route gives up. An attempt whose fate is still unknown when it was sent again
    ``tries`` times goes to people too. Raises :class:`LeaseLost` and records nothing when the slice was
    closed meanwhile: what was on the wire counts as unknown then, and may have been claimed anew.
    """
    if not marks:
        return False
    arrived = [m for m in marks if m.status == "sent"]
    alone = first_sends and not last_window and len(arrived) == len(marks)
    with ledger.under(lease, now, alongside=alongside and alone) as tx:
        # One update of the slice where it stays the same one: each is an answer to wait for.
        next_slice, next_last = following or (slice_id, None)
        stays = next_slice == slice_id
        announced = _confirm(tx, slice_id, marks[-1].message_id, arrived, next_last if stays else None)
        stored = ledger.dialect.stored(now)
        _mark_not_sent(tx, slice_id, marks, tries)
        unknown = [(stored, m.tracked, m.body_hash, m.message_id, m.attempt) for m in marks if m.status == "unknown"]
        if not first_sends:
            _forget_resends(tx, arrived)
        if unknown:
            tx.temporary("lost", "message_id bigint primary key")
            tx.bulk("lost", ("message_id",), [(row[3],) for row in unknown])
            if not first_sends:
                count_resends(tx, slice_id)
            tx.update_each(redelivery_attempts, ("unknown_at", "tracked", "body_hash"), unknown)
            move(
                tx,
                State.SENDING,
                State.UNKNOWN,
                where="message_id in (select message_id from lost)",
                action=Action.LOSE_SIGHT,
                reason=next(m.detail for m in marks if m.status == "unknown"),
            )
            if not first_sends:
                end_resends(tx, tries)
        keys = index_keys([m.broker_message_id for m in arrived])
        kept = [
            (ledger.dialect.stored(m.due_at), m.message_id, m.attempt)
            for m in marks
            if m.due_at is not None and m.status in ("sent", "unknown")
        ]
        tx.update_each(redelivery_attempts, ("due_at",), kept)
        plain = first_sends and all(m.tracked and m.body_hash is None for m in arrived)
        if plain and len(arrived) == len(marks) and not any(keys):
            # As nearly all windows are where the broker gives no ids: one statement for all of them.
            done = tx.execute(
                sql(
                    "update redelivery_attempts set sent_at = :now"
                    " where slice_id = :slice_id and message_id between :first and :last"
                ),
                {"slice_id": slice_id, "first": marks[0].message_id, "last": marks[-1].message_id},
            ).rowcount
            # Else one of which nobody said how it ended would count as sent, and every sum would agree.
            assert done == len(marks), f"{len(marks)} marks, {done} attempts in their range"  # noqa: S101
        elif plain:
            rows = [(stored, key, m.message_id, m.attempt) for m, key in zip(arrived, keys, strict=True)]
            tx.update_each(redelivery_attempts, ("sent_at", "broker_message_id"), rows)
        else:
            sent = [
                (stored, key, m.tracked, m.body_hash, m.message_id, m.attempt)
                for m, key in zip(arrived, keys, strict=True)
            ]
            tx.update_each(redelivery_attempts, ("sent_at", "broker_message_id", "tracked", "body_hash"), sent)
        if last_window:
            close_slice(tx, slice_id)
        return announced if stays or following is None else _announce(tx, *following)


def _confirm(tx: RunTransaction, slice_id: int, last: int, arrived: Sequence[Mark], following: int | None) -> bool:
    """The slice is confirmed up to the ``last`` message, and announced up to the ``following`` one, if there is one and
    the claim has not run out: which is returned. Raises :class:`LeaseLost` as :func:`_hold`."""
    # Where the broker keeps some of them, nothing can be seen of those before they are due.
    until = max([tx.now, *(m.due_at for m in arrived if m.due_at is not None)])
    held = tx.execute(
        sql(
            "update delivery_slices set confirmed_to = :last, sent = sent + :n, last_sent_at ="
            " case when last_sent_at > :until_at then last_sent_at else :until_at end, high_water ="
            " case when deadline_at > :now then coalesce(cast(:following as bigint), high_water) else high_water end"
            " where slice_id = :slice_id and fence = :fence and closed_at is null returning high_water"
        ),
        {"slice_id": slice_id, "last": last, "n": len(arrived), "until_at": until, "following": following},
    ).one_or_none()
    if held is None:
        raise _taken_over(tx, slice_id)
    return following is not None and bool(held.high_water == following)


def count_resends(tx: RunTransaction, slice_id: int) -> None:
    """Of the messages in the table ``lost``, whose send has no answer, those that had none before were sent again."""
    tx.execute(
        sql(
            "update messages set send_failures = send_failures + 1 where message_id in (select lost.message_id"
            " from lost inner join redelivery_attempts attempts on attempts.message_id = lost.message_id"
            " where attempts.slice_id = :slice_id and attempts.unknown_at is not null)"
        ),
        {"slice_id": slice_id},
    )


def end_resends(tx: RunTransaction, tries: int) -> int:
    """Messages in the table ``lost`` that were sent again ``tries`` times, never with an answer, go to people: each may
    have arrived every time. How many they are."""
    why = f"Nobody knows whether it was sent: it was sent again {tries} times, and no answer came."
    return move(
        tx,
        State.UNKNOWN,
        State.TO_REVIEW,
        where="message_id in (select message_id from lost) and send_failures >= :tries",
        values={"tries": tries, "why": why},
        set_="reason = :why, next_attempt_at = null",
        action=Action.PUT_TO_REVIEW,
        reason=why,
    )


def _forget_resends(tx: RunTransaction, arrived: Sequence[Mark]) -> None:
    """What was counted of an attempt is over when it has arrived: the next one has its own tries."""
    tx.temporary("there", "message_id bigint primary key")
    tx.bulk("there", ("message_id",), [(m.message_id,) for m in arrived])
    tx.execute(
        sql(
            "update messages set send_failures = 0 where send_failures > 0"
            " and message_id in (select message_id from there)"
        )
    )


def _mark_not_sent(
    tx: RunTransaction,
    slice_id: int,
    marks: Sequence[Mark],
    tries: int,
) -> None:
    failed = [m for m in marks if m.status in ("retry", "refused")]
    if not failed:
        return
    # What the broker does not take now is its trouble, and behind whom a message waits is not its fault. Only of the
    # one message of a window that stayed, where it took all others, is it likely that the reason lies in itself.
    alone = len(marks) > 1 and sum(m.status == "sent" for m in marks) == len(marks) - 1
    put_back(tx, slice_id, [m.message_id for m in failed], failed[0].detail)
    jitter = backoff.dice_sql("message_id", "(attempts + send_failures + 1)")
    again = tx.dialect.later(":now", f"{RETRY_AFTER.total_seconds()} * {jitter}")
    tx.execute(
        sql(
            # What was to be sent early is not due before it was.
            f"update messages set next_attempt_at = case when next_attempt_at > {again} then next_attempt_at"
            f" else {again} end where message_id in (select message_id from back) and state = 'waiting'"
        )
    )
    for one in failed if alone else [m for m in failed if m.status == "refused"]:
        row = tx.execute(
            sql(
                "update messages set send_failures = send_failures + :by where message_id = :message_id"
                " returning send_failures, plan, state"
            ),
            {"by": tries if one.status == "refused" else 1, "message_id": one.message_id},
        ).one()
        if row.send_failures < tries:
            continue
        why = f"It could not be sent: {one.detail}"
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
                action=Action.PUT_TO_REVIEW,
                reason=why,
            )


def close(ledger: Ledger, lease: RouteLease, slice_id: int, now: datetime) -> None:
    """The slice is done: every message of it was marked or given back."""
    with ledger.under(lease, now) as tx:
        close_slice(tx, slice_id)


def close_slice(tx: RunTransaction, slice_id: int) -> None:
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
        few="select message_id from redelivery_attempts where slice_id = :slice_id and sent_at is not null",
        values=of_slice,
        action=Action.SEND,
    )
    if not sent:
        return
    counting.take_places(tx, slice_id)
    if not escalations.any_decided(tx):  # most often; else which of the slice's attempts are releases is looked up
        return
    tx.execute(
        sql(
            "update escalated_messages set status = 'applied', applied_at = :now where "
            + escalations.decided_about(
                tx,
                "select message_id from redelivery_attempts where slice_id = :slice_id and mode = 'release'"
                " and sent_at is not null",
            )
        ),
        of_slice,
    )
