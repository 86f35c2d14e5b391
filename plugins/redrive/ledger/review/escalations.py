"""The review table: about which messages people are asked, and how a question ends or is asked again.

A message is escalated in the transaction that writes its review row with the payload. What people decide is carried
out by :mod:`redrive.ledger.review.applying`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.dialects import Dialect, dialect_of
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import (
    ASKED_STATES,
    IN_DOUBT,
    PERHAPS_SENT,
    TO_ASK,
    listed,
    nobody_is_asked,
)
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import UNDECIDED, Question, State

#: Why a message that the consumer's records know is neither sent nor asked about.
PROCESSED = "The processed_check says that it was processed."


class Candidate(NamedTuple):
    """A message that is to be escalated."""

    message_id: int
    state: str
    copy_id: int
    source: str
    destination: str | None
    cause: str | None
    group_id: int | None
    reason: str | None
    attempts: int
    first_enqueued_at: Any
    broker_message_id: str
    message_key: str | None
    body_bytes: int
    perhaps_sent: bool = False  # nobody knows whether its last send was made
    is_asked: bool = False  # a question about it is before people
    question: str = Question.FAILURE


class Review(NamedTuple):
    """What a reviewer needs to see of it."""

    candidate: Candidate
    body: bytes | None  # None: it can't be read, and the candidate's reason says so
    content_type: str | None
    headers: Sequence[tuple[str, str, str]]
    error_text: str | None
    suggested: str


_SPECIAL = {
    "question": f"case when state = '{State.RESTORE_UNKNOWN}' then '{Question.RESTORED}'"
    f" when {IN_DOUBT} then '{Question.SENT}' else '{Question.FAILURE}' end",
    "perhaps_sent": PERHAPS_SENT,
}


def _columns(dialect: Dialect) -> str:
    """SQL: what a :class:`Candidate` is read from."""
    # By the message, as in nobody_is_asked: uncounted, all that waits for people would be looked through for each.
    is_asked = (
        "exists (select 1 from escalated_messages asked where asked.message_id = messages.message_id"
        f" and {dialect.in_row('asked.status')} in {listed(UNDECIDED)})"
    )
    return ", ".join((_SPECIAL | {"is_asked": is_asked}).get(name, name) for name in Candidate._fields)


def candidates(connection: Connection, route: str, *, after: int, limit: int, max_bytes: int) -> list[Candidate]:
    """Messages to escalate after message id ``after``, at most ``limit`` and ``max_bytes`` of bodies (at least one)."""
    rows = connection.execute(
        sql(
            f"select {_columns(dialect_of(connection))} from messages where route = :route and {TO_ASK}"
            " and message_id > :after order by message_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit},
    )
    return _up_to(max_bytes, rows)


def _up_to(max_bytes: int, rows: Iterable[Any]) -> list[Candidate]:
    found = [Candidate(*row) for row in rows]
    return found[: within(max_bytes, (one.body_bytes for one in found))]


def within(max_bytes: int, sizes: Iterable[int]) -> int:
    """How many of the first ones have at most so many bytes together; at least one."""
    return max(1, sum(total <= max_bytes for total in accumulate(sizes)))


def _unasked(dialect: Dialect, states: Iterable[State] = ASKED_STATES) -> str:
    """SQL: waits for a person, or may be in two places (in ``states``, of these), and nobody is asked."""
    return f"messages.state in {listed(states)} and {nobody_is_asked(dialect, 'messages.message_id')}"


def unasked(connection: Connection, route: str, *, after: int, limit: int, max_bytes: int) -> list[Candidate]:
    """Messages about which a person has to decide and is not asked: a restore lost sight of them, or their review row
    was removed by hand. Pages as :func:`candidates`."""
    dialect = dialect_of(connection)
    # State by state, as an index has them in the order of their ids: of both together all are sorted for each page, or
    # all that is finished is gone through.
    chosen = " union all ".join(
        "select message_id from (select messages.message_id from messages where messages.route = :route"
        f" and {_unasked(dialect, [state])} and messages.message_id > :after order by messages.message_id"
        f" limit :limit) as {state}_ones"
        for state in ASKED_STATES
    )
    rows = connection.execute(
        sql(
            f"select {_columns(dialect)} from messages where {dialect.few('message_id', chosen)}"
            " order by message_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit},
    )
    return _up_to(max_bytes, rows)


def nobody_asked(connection: Connection, route: str) -> int:
    """How many messages are :func:`unasked`."""
    found = connection.execute(
        sql(f"select count(*) from messages where route = :route and {_unasked(dialect_of(connection))}"),
        {"route": route},
    )
    return int(found.scalar_one())


def ask_again(ledger: Ledger, lease: RouteLease, reviews: Sequence[Review], now: datetime) -> int:
    """A review row for each of these that is still :func:`unasked`; their states stay. How many were asked for."""
    if not reviews:
        return 0
    with ledger.under(lease, now) as tx:
        insert_reviews(
            tx,
            reviews,
            f" where exists (select 1 from messages where messages.message_id = ? and {_unasked(tx.dialect)})"
            " and not exists (select 1 from escalated_messages earlier where earlier.message_id = ?"
            " and earlier.status <> 'applied')",
        )
        ids = [(review.candidate.message_id, review.candidate.reason or review.candidate.state) for review in reviews]
        tx.temporary("chosen", "message_id bigint primary key, why text")
        tx.bulk("chosen", ("message_id", "why"), ids)
        tx.execute(
            sql(
                "insert into audit_events (at, route, run_id, actor, action, message_id, reason) select :now, :route,"
                " :run_id, :actor, :action, message_id, why from chosen order by message_id"
            ),
            {"action": Action.ASK},
        )
    return len(reviews)


def escalate(ledger: Ledger, lease: RouteLease, reviews: Sequence[Review], now: datetime) -> int:
    """Write review rows and move the messages, in one transaction; those that moved meanwhile are left alone, and so
    are those that somebody decides on at this moment. A question that is there already asks about the message as it is
    now."""
    if not reviews:
        return 0
    with ledger.under(lease, now) as tx:
        tx.temporary("chosen", "message_id bigint primary key, state text")
        tx.bulk(
            "chosen",
            ("message_id", "state"),
            [(r.candidate.message_id, r.candidate.state) for r in reviews],
        )
        # What somebody is deciding at this moment is about the question as it was: it stays one until they have ended,
        # and is opened again by whoever comes next.
        leave_those_at_it(tx, "chosen")
        # A message that a person had released and that could not be sent for sure keeps its row: the decision was
        # for one attempt, so it is asked again, and never carried out a second time by itself.
        reopen(
            tx,
            # From what was chosen, which is little: SQLite would begin with the messages, all of them.
            of="select message_id from chosen where state = (select messages.state from messages"
            " where messages.message_id = chosen.message_id)",
            why="(select coalesce(messages.reason, messages.state) from messages"
            " where messages.message_id = escalated_messages.message_id)",
            ours=True,
        )
        _rewrite(tx, reviews)
        insert_reviews(
            tx,
            reviews,
            " where exists (select 1 from messages inner join chosen on chosen.message_id = messages.message_id"
            " and chosen.state = messages.state where messages.message_id = ?)"
            " and not exists (select 1 from escalated_messages earlier where earlier.message_id = ?"
            " and earlier.status <> 'applied')",
        )
        return sum(
            move(
                tx,
                State(state),
                State.ESCALATED,
                where="message_id in (select message_id from chosen where state = :from_state)",
                values={"from_state": state},
                set_="next_attempt_at = null",
                action=Action.ESCALATE,
            )
            for state in sorted({r.candidate.state for r in reviews})
        )


def leave_those_at_it(tx: RunTransaction, table: str) -> None:
    """Leave out of this ``table`` of messages those whose question somebody is writing to at this moment, who may have
    gone to lunch over it. The questions of the others nobody changes until the transaction ends."""
    if not tx.dialect.for_update:  # there is one writer
        return
    of_these = tx.dialect.few("message_id", f"select message_id from {table}")
    asked = f"from escalated_messages where {of_these} and {tx.dialect.in_row('status')} <> 'applied'"
    tx.execute(
        sql(
            f"with ours as (select escalation_id {asked} order by escalation_id {tx.dialect.locked})"
            f" delete from {table} where message_id in (select message_id {asked}"
            " and escalation_id not in (select escalation_id from ours))"
        )
    )


def _rewrite(tx: RunTransaction, reviews: Sequence[Review]) -> None:
    """The questions about messages of table ``chosen`` that are not closed say what these messages are now."""
    there = set(
        tx.execute(
            sql(
                "select message_id from escalated_messages where status <> 'applied' and message_id in (select"
                " message_id from chosen where state = (select messages.state from messages"
                " where messages.message_id = chosen.message_id))"
            )
        ).scalars()
    )
    stored = tx.dialect.stored(tx.now)
    tx.many(
        "update escalated_messages set group_id = ?, cause = ?, reason = ?, error_text = ?, headers = ?,"
        " destination = ?, message_key = ?, attempts = ?, suggested_decision = ?, question = ?, escalated_at = ?"
        " where message_id = ? and status <> 'applied'",
        [
            (
                one.group_id, one.cause, one.reason or one.state, _storable(review.error_text),
                json.dumps(review.headers), one.destination, one.message_key, one.attempts, review.suggested,
                one.question, stored, one.message_id,
            )
            for review in reviews
            if (one := review.candidate).message_id in there
        ],
    )  # fmt: skip


def reopen(
    tx: RunTransaction,
    *,
    of: str,
    why: str,
    values: Mapping[str, Any] | None = None,
    refused: bool = False,
    ours: bool = False,
) -> None:
    """What people decided about these messages (``of``: SQL that selects their ids) was not carried out: the rows say
    ``why`` (SQL) and ask again, and the trail of each message tells it. Within a transaction.

    ``refused``: it can't be carried out, so the decision stays to be seen. Those that somebody is writing to at this
    moment are left to :func:`escalate`, before which all of these come; ``ours``: :func:`leave_those_at_it` was asked
    about them in this transaction.
    """
    # Each of them is looked up: else all that is decided would be gone through, for one of them or for each.
    tx.temporary("reopening", "message_id bigint primary key")
    tx.execute(sql(f"insert into reopening select distinct * from ({of}) chosen_to_reopen"), values or {})
    if not ours:
        leave_those_at_it(tx, "reopening")
    which = decided_about(tx, "select message_id from reopening")
    told = {
        **(values or {}),
        "action": Action.REFUSE_DECISION if refused else Action.REOPEN,
    }
    tx.execute(
        sql(
            "insert into audit_events (at, route, run_id, actor, action, message_id, reason) select :now, :route,"
            f" :run_id, :actor, :action, message_id, {why} from escalated_messages where {which} order by message_id"
        ),
        told,
    )
    status = "'refused'" if refused else "'reopened', decision = null, decided_at = null, approved_by = null"
    tx.execute(sql(f"update escalated_messages set status = {status}, refusal = {why} where {which}"), values or {})


def decided_about(tx: RunTransaction, messages: str) -> str:
    """SQL over ``escalated_messages``: what is decided about these ``messages`` (SQL that selects their ids), and not
    taken up yet. A year's decisions are many, so each message is looked up."""
    return f"{tx.dialect.few('message_id', messages)} and {tx.dialect.in_row('status')} = 'decided'"


def any_decided(tx: RunTransaction) -> bool:
    """Whether anything of the route is decided, and not taken up yet."""
    found = sql("select exists (select 1 from escalated_messages where status = 'decided' and route = :route)")
    return bool(tx.execute(found).scalar_one())


def insert_reviews(tx: RunTransaction, reviews: Sequence[Review], where: str) -> None:
    """Write review rows within a transaction; ``where`` asks twice for the message id whether a row may be written."""
    stored = tx.dialect.stored(tx.now)
    rows = []
    for review in reviews:
        one = review.candidate
        text = None if review.body is None else _as_text(review.body)
        rows.append(
            (
                one.message_id, tx.route, one.group_id, one.cause, one.reason or one.state,
                _storable(review.error_text), text, None if text is not None else review.body,
                one.body_bytes if review.body is None else len(review.body),
                _storable(review.content_type), json.dumps(review.headers), one.source, one.destination,
                one.broker_message_id, one.message_key, one.attempts, one.first_enqueued_at, stored,
                review.suggested, one.question,
            )
        )  # fmt: skip
    columns = {
        "message_id": "bigint", "route": "text", "group_id": "bigint", "cause": "text", "reason": "text",
        "error_text": "text", "payload": "text", "payload_bytes": "bytea", "size_bytes": "int", "content_type": "text",
        "headers": "text", "source": "text", "destination": "text", "broker_message_id": "text", "message_key": "text",
        "attempts": "int", "first_enqueued_at": "timestamptz", "escalated_at": "timestamptz",
        "suggested_decision": "text", "question": "text",
    }  # fmt: skip
    tx.many(
        f"insert into escalated_messages ({', '.join(columns)}) select {tx.dialect.marks(list(columns.values()))}"
        + where,
        [(*row, row[0], row[0]) for row in rows],
    )


def suppress(ledger: Ledger, lease: RouteLease, message_ids: Sequence[int], now: datetime) -> int:
    """Messages on their way to people turn out to be processed already."""
    if not message_ids:
        return 0
    with ledger.under(lease, now) as tx:
        tx.temporary("chosen", "message_id bigint primary key")
        tx.bulk("chosen", ("message_id",), [(i,) for i in message_ids])
        close_released(tx, "chosen", f"{PROCESSED} It was not sent.")
        return move(
            tx,
            State.TO_REVIEW,
            State.SUPPRESSED,
            where=f"message_id in (select message_id from chosen) and not {PERHAPS_SENT}",
            values={"why": PROCESSED},
            set_="reason = :why",
            action=Action.SUPPRESS,
            reason=PROCESSED,
        )


def close_released(tx: RunTransaction, table: str, why: str) -> None:
    """Messages in this ``table`` need no person any more although what a person decided was not sent, or not for sure:
    their review rows are closed, and say ``why``. Within a transaction."""
    tx.execute(
        sql(
            "update escalated_messages set status = 'applied', applied_at = :now, refusal = :why"
            f" where {decided_about(tx, f'select message_id from {table}')}"
        ),
        {"why": why},
    )


def _as_text(body: bytes) -> str | None:
    """The body as text where it is text that a database can hold; None where it is not."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _storable(text: str | None) -> str | None:
    return None if text is None else text.replace("\0", "\\0").encode("utf-8", "replace").decode()
