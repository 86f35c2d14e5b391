"""Suspected copies: what may be a second staging of a message, or a message of its own, is for people to say.

A suspected copy is no message, and nothing sends it. It gets a review row; the first decision on it makes it a message
of its own, with the copy that it resembles as its parent, and from there on it goes as with any other: ``redeliver``
sends it, ``discard`` says that it was a second copy.
"""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.drain import keys
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move, record_event
from redrive.ledger.review.escalations import Candidate, Review, insert_reviews, reopen, within
from redrive.ledger.schema import ledger_id
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import Question, State
from redrive.message import batch_and_row, body_hash, redrive_id_of

#: State of a candidate that is not a message.
SUSPECTED = "suspected"
#: Why a decision on a copy of which nobody knows the body is refused.
UNKNOWN_BODY = (
    "its staging file is damaged or missing, so nobody knows what it is: bring the file back (`redrive audit` names it)"
    " and decide again, or discard it"
)


def candidates(connection: Connection, route: str, *, after: int, limit: int, max_bytes: int) -> list[Candidate]:
    """Suspected copies without a review row after copy id ``after``; what their likely first copy was found to be. At
    most ``limit``, and so many that their first copies have ``max_bytes`` (at least one)."""
    rows = connection.execute(
        sql(
            "select r.copy_id, r.source, r.message_id as first_id, r.enqueued_at, r.broker_message_id,"
            " m.destination, m.cause, m.group_id, m.message_key, m.body_bytes, m.redrive_id from repeat_copies r"
            " left join messages m on m.message_id = r.message_id where r.route = :route and r.kind = 'suspected'"
            " and r.copy_id > :after and not exists (select 1 from escalated_messages e where e.message_id = r.copy_id)"
            " order by r.copy_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit},
    )
    found = [
        Candidate(
            row.copy_id, SUSPECTED, row.copy_id, row.source, row.destination, row.cause, row.group_id,
            f"It may be a second copy of message {row.redrive_id or row.first_id}: then discard it. The broker gives no"
            " proof either way.",
            0, row.enqueued_at, row.broker_message_id, row.message_key, row.body_bytes or 0,
            question=Question.SECOND_COPY,
        )
        for row in rows
    ]  # fmt: skip
    return found[: within(max_bytes, (one.body_bytes for one in found))]


def write_reviews(ledger: Ledger, lease: RouteLease, reviews: Sequence[Review], now: datetime) -> int:
    """One review row per suspected copy that has none yet; how many were asked for."""
    if not reviews:
        return 0
    with ledger.under(lease, now) as tx:
        insert_reviews(
            tx,
            reviews,
            " where exists (select 1 from repeat_copies r where r.copy_id = ? and r.kind = 'suspected')"
            " and not exists (select 1 from escalated_messages earlier where earlier.message_id = ?)",
        )
        record_event(
            tx,
            action=Action.ASK_ABOUT_SUSPECTED,
            count=len(reviews),
            selection={"copies": [reviews[0].candidate.copy_id, reviews[-1].candidate.copy_id]},
        )
    return len(reviews)


class DecidedCopy(NamedTuple):
    """A suspected copy on which somebody decided."""

    escalation_id: int
    copy_id: int
    has_body: bool  # False: its file could not be read when people were asked
    size_bytes: int  # of the body


def decided(connection: Connection, route: str, *, after: int, limit: int, max_bytes: int) -> list[DecidedCopy]:
    """Suspected copies on which somebody decided, by their review rows after ``after``; at most ``limit``, and so many
    that their bodies have ``max_bytes`` (at least one)."""
    rows = connection.execute(
        sql(
            "select e.escalation_id, r.copy_id, e.payload is not null or e.payload_bytes is not null as has_body,"
            " e.size_bytes from escalated_messages e"
            " inner join repeat_copies r on r.copy_id = e.message_id and r.kind = 'suspected'"
            " where e.route = :route and e.status = 'decided' and e.escalation_id > :after"
            " order by e.escalation_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit},
    )
    found = [DecidedCopy(row.escalation_id, row.copy_id, bool(row.has_body), row.size_bytes) for row in rows]
    return found[: within(max_bytes, (one.size_bytes for one in found))]


def adopt(
    ledger: Ledger,
    lease: RouteLease,
    copy_ids: Sequence[int],
    now: datetime,
    bodies: Mapping[int, bytes] = MappingProxyType({}),
) -> int:
    """Of these suspected copies those on which somebody decided become messages under review; the decision is applied
    after this. How many.

    ``bodies``: of those whose review rows have none, as far as their files can be read by now. Of the others nobody
    knows what they are, so the decision is refused; but for a discard, which says that it is what its first copy is.
    """
    with ledger.under(lease, now) as tx:
        prefix = ledger_id(tx.connection)
        tx.temporary("chosen", "copy_id bigint primary key")
        tx.bulk("chosen", ("copy_id",), [(copy_id,) for copy_id in copy_ids])
        rows = tx.execute(
            sql(
                "select r.copy_id, r.message_id as first_id, r.source, r.broker_message_id, r.enqueued_at,"
                " coalesce(m.origin, e.destination) as origin, e.destination, e.cause, e.group_id,"
                " case when m.message_id is null then e.message_key else m.message_key end as message_key,"
                " e.size_bytes, e.payload, e.payload_bytes, e.decision, m.body_hash as first_hash, b.kind,"
                " b.recorded_at, e.reason, m.order_key, m.dead_lettered_at from repeat_copies r"
                " inner join escalated_messages e on e.message_id = r.copy_id"
                " inner join staging_batches b on b.batch_id = r.copy_id / 1048576"
                " left join messages m on m.message_id = r.message_id"
                f" where {tx.dialect.few('r.copy_id', 'select copy_id from chosen')} and r.route = :route"
                f" and r.kind = 'suspected' and {tx.dialect.in_row('e.status')} = 'decided' order by r.copy_id"
            )
        ).all()
        adopted = 0
        for row in rows:
            body = row.payload.encode() if row.payload is not None else row.payload_bytes
            body = bodies.get(row.copy_id) if body is None else bytes(body)
            if body is not None:
                known, size = body_hash(body), len(body)
            elif row.decision == "discard" and row.first_hash is not None:
                known, size = bytes(row.first_hash), row.size_bytes
            else:
                of_copy = {"id": row.copy_id, "why": UNKNOWN_BODY}
                reopen(tx, of="select cast(:id as bigint)", why=":why", values=of_copy, refused=True)
                continue
            adopted += 1
            own = redrive_id_of(prefix, row.copy_id)
            taken = sql("select 1 from messages where redrive_id = :own")
            if tx.execute(taken, {"own": own}).first() is not None:  # an earlier release kept forged ids
                own = f"{own}-{secrets.token_hex(4)}"
            tx.execute(
                sql(
                    "insert into messages (message_id, redrive_id, parent_id, route, source, kind, origin, destination,"
                    " broker_message_id, body_hash, body_bytes, copy_id, state, cause, group_id, first_enqueued_at,"
                    " dead_lettered_at, received_at, changed_at, message_key, order_key, reason)"
                    " values (:id, :redrive_id, :parent, :route, :source, :kind, :origin, :destination, :broker_id,"
                    " :hash, :size, :id, 'classified', :cause, :group_id, :enqueued, :dead, :received, :now,"
                    " :message_key, :order_key, :reason)"
                ),
                {
                    "id": row.copy_id, "redrive_id": own, "parent": row.first_id,
                    "source": row.source, "kind": row.kind, "origin": row.origin,
                    "destination": row.destination,
                    "broker_id": row.broker_message_id, "hash": known, "size": size,
                    "cause": row.cause, "group_id": row.group_id, "enqueued": row.enqueued_at,
                    "dead": row.dead_lettered_at, "received": row.recorded_at,
                    "message_key": row.message_key, "order_key": row.order_key, "reason": row.reason,
                },
            )  # fmt: skip
            tx.execute(sql("delete from repeat_copies where copy_id = :id"), {"id": row.copy_id})
            tx.execute(
                sql(
                    "update staging_batches set suspected_copies = suspected_copies - 1, new_copies = new_copies + 1"
                    " where batch_id = :batch_id"
                ),
                {"batch_id": batch_and_row(row.copy_id)[0]},
            )
            keys.take_over(tx, batch_and_row(row.copy_id)[0], row.first_id)
            move(
                tx,
                State.CLASSIFIED,
                State.ESCALATED,
                where="message_id = :id",
                values={"id": row.copy_id},
                action=Action.TAKE_IN_SUSPECTED,
                reason="Somebody decided about it.",
            )
        return adopted
