"""Slices that a dead run left open: what was certainly not sent waits again, what may have been is unknown.

After a crash everything above a slice's high-water mark certainly was not sent and waits again; what lies between the
last marked window and the mark is ``unknown``.
"""

from datetime import datetime

from redrive.audit_actions import Action
from redrive.ledger.delivery.windows import close_slice, count_resends, end_resends, put_back
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move, record_event
from redrive.ledger.review import applying
from redrive.ledger.tables import redelivery_attempts
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import State
from redrive.message import body_hash


def recover(
    ledger: Ledger,
    lease: RouteLease,
    now: datetime,
    *,
    shard: int | None = None,
    task_try: str | None = None,
    tries: int | None = None,
) -> dict[str, int]:
    """Close slices that were left open; returns how many messages wait again and how many are unknown.

    Messages above the high-water mark wait again; those below it of which the broker's word was not written down are
    unknown. Recovered are slices of earlier runs, with ``shard`` also those that an earlier try of this run's task
    left; with ``task_try`` just what that try has claimed. Because a slice is closed, its old owner, should it still
    live, sends no more of it, and marks and gives back nothing (:class:`~redrive.errors.LeaseLost`). An attempt whose
    fate is still unknown when it was sent again ``tries`` times goes to people: its run may end each time because of
    it.
    """
    back = unknown = 0
    with ledger.under(lease, now) as tx:
        mine, values = "fence < :fence", dict[str, int | str]()
        if task_try is not None:
            mine, values = "fence = :fence and task_try = :task_try", {"task_try": task_try}
        elif shard is not None:
            mine, values = "(fence < :fence or (fence = :fence and shard = :shard))", {"shard": shard}
        left_open = tx.execute(
            sql(
                # Who still marks a window of one ends before this, or finds it closed.
                "select slice_id, high_water from delivery_slices"
                f" where route = :route and closed_at is null and {mine} order by slice_id{tx.dialect.for_update}"
            ),
            values,
        ).all()
        for one in left_open:
            rows = tx.execute(
                sql(
                    "select message_id from redelivery_attempts where slice_id = :slice_id and message_id > :mark"
                    " and sent_at is null"
                ),
                {"slice_id": one.slice_id, "mark": one.high_water},
            ).all()
            back += put_back(tx, one.slice_id, [r.message_id for r in rows], "Its run ended before the send.")
            within = "slice_id = :slice_id and message_id <= :mark and sent_at is null"
            at_mark = {"slice_id": one.slice_id, "mark": one.high_water}
            tx.temporary("lost", "message_id bigint primary key")
            tx.execute(
                sql(
                    "insert into lost select attempts.message_id from redelivery_attempts attempts inner join messages"
                    " on messages.message_id = attempts.message_id where state = 'sending' and attempts.slice_id ="
                    " :slice_id and attempts.message_id <= :mark and sent_at is null"
                ),
                at_mark,
            )
            count_resends(tx, one.slice_id)
            lost = move(
                tx,
                State.SENDING,
                State.UNKNOWN,
                where="message_id in (select message_id from lost)",
                action=Action.LOSE_SIGHT,
                reason="Its run ended between the send and the confirmation.",
            )
            tx.execute(
                sql(f"update redelivery_attempts set unknown_at = coalesce(unknown_at, :now) where {within}"),
                at_mark,
            )
            if tries is not None:
                end_resends(tx, tries)
            _keep_edits(tx, within, at_mark)
            close_slice(tx, one.slice_id)
            unknown += lost
            if lost:
                record_event(
                    tx,
                    action=Action.RECOVER_SLICE,
                    count=lost,
                    selection={"slice_id": one.slice_id},
                    reason="A run ended in the middle of a delivery: at most one confirm window is unknown.",
                )
    return {"given_back": back, "unknown": unknown}


def _keep_edits(tx: RunTransaction, within: str, values: dict[str, int]) -> None:
    """What tells a body that a person edited, should it return: the run that sent it ended before it could say."""
    rows = tx.execute(
        sql(f"select message_id, attempt from redelivery_attempts where {within} and mode = 'release'"), values
    ).all()
    edits = applying.corrected(tx.connection, [row.message_id for row in rows])
    tx.update_each(
        redelivery_attempts,
        ("body_hash",),
        [
            (body_hash(edit.body.encode()), row.message_id, row.attempt)
            for row in rows
            if (edit := edits.get(row.message_id)) is not None and edit.body is not None
        ],
    )
