"""Standing decisions: what people decided about a group also holds for what is escalated later, while they say so.

People make them by a plain ``INSERT`` into ``standing_decisions`` and revoke them by an ``UPDATE``. Here they are
written into the review rows of newly escalated messages, in sets; from there on they go as if the person had decided
each of them: the same refusals, the same second person, the same canary, and a name in the audit trail.

No loop comes of it: a message is released by a standing decision at most once, and a canary that fails after the
decision was made suspends it, until people make another one. It answers a failure, and no other question: whether to
send what may have been sent already is asked of people, message by message.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive import audit_actions
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import listed
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import Decision, Question

#: SQL over ``escalated_messages``: a person took back what was decided about the message.
_TAKEN_BACK = (
    "exists (select 1 from audit_events told where told.message_id = escalated_messages.message_id and told.action in"
    f" {listed(audit_actions.of('withdraw', decision) for decision in Decision)})"
)


class Standing(NamedTuple):
    """A standing decision that holds now."""

    standing_id: int
    route: str | None  # None: every route
    group_id: int
    decision: str
    decided_by: str
    approved_by: str | None
    note: str
    created_at: Any  # as the database has it


def in_force(connection: Connection, route: str, *, approvals: int, now: datetime, lock: str = "") -> list[Standing]:
    """The route's standing decisions that hold at ``now``, one per group: its own before those for every route, of
    several the newest. With ``approvals: 2`` only those that a second person approved. ``lock``: the suffix of a query
    that keeps them as they are until the transaction ends."""
    rows = connection.execute(
        sql(
            "select standing_id, route, group_id, decision, decided_by, approved_by, note, created_at"
            " from standing_decisions where (route = :route or route is null) and revoked_at is null"
            " and until_at > :now"
            + (" and lower(trim(approved_by)) not in ('', lower(trim(decided_by)))" if approvals > 1 else "")
            + " order by case when route is null then 0 else 1 end, standing_id"
            + lock
        ),
        {"route": route, "now": now},
    )
    return list(_last_of_each({row.group_id: Standing(*row)} for row in rows))


def _last_of_each(found: Iterable[dict[int, Standing]]) -> Iterable[Standing]:
    last: dict[int, Standing] = {}
    for one in found:
        last |= one
    return last.values()


def apply(ledger: Ledger, lease: RouteLease, *, approvals: int, now: datetime) -> int:
    """Decide what was escalated since as the standing decisions say; returns how many messages."""
    with ledger.read() as connection:
        if not in_force(connection, lease.route, approvals=approvals, now=now):
            return 0
    total = 0
    with ledger.under(lease, now) as tx:
        # Whoever revokes one waits until what it decides is written, and nothing is decided by it afterwards.
        for one in in_force(tx.connection, lease.route, approvals=approvals, now=now, lock=tx.dialect.for_share):
            sends = one.decision == "redeliver"
            count = tx.execute(
                sql(
                    "update escalated_messages set decision = :decision, decided_by = :by, approved_by = :approved,"
                    " decided_at = :now, note = :note where escalation_id in (select escalation_id"
                    " from escalated_messages where route = :route and group_id = :group_id"
                    " and status = 'open' and escalated_at >= :since and exists (select 1 from messages"
                    " where messages.message_id = escalated_messages.message_id and messages.state = 'escalated'"
                    + (
                        f" and messages.releases = 0) and question = '{Question.FAILURE}'"
                        " and not exists (select 1 from breakers gate"
                        " where gate.route = :route and gate.group_id = :group_id and gate.stage = 'failed'"
                        " and gate.stage_at >= :since)"
                        if sends
                        else ")"
                    )
                    # Nor what somebody is deciding at this moment: that waits for the next time, not we for them.
                    + f" and not {_TAKEN_BACK} {tx.dialect.locked})"
                ),
                {
                    "decision": one.decision,
                    "by": one.decided_by,
                    "approved": one.approved_by,
                    "note": f"standing decision {one.standing_id}: {one.note}",
                    "group_id": one.group_id,
                    "since": one.created_at,
                },
            ).rowcount
            if count:
                record_event(
                    tx,
                    action=audit_actions.of("apply_standing", one.decision),
                    count=count,
                    selection={"standing_id": one.standing_id, "group_id": one.group_id},
                    reason=one.note,
                )
            total += count
    return total


def make(
    ledger: Ledger,
    *,
    route: str | None,
    group_id: int,
    decision: str,
    until: datetime,
    note: str,
    by: str,
    now: datetime,
) -> int:
    """Make one, as a person does by an ``INSERT``: on ``route``, or on every one. Its id; a trigger tells of it."""
    with ledger.by(by, now, route=route) as tx:
        return int(
            tx.execute(
                sql(
                    "insert into standing_decisions (route, group_id, decision, decided_by, note, created_at, until_at)"
                    " values (:route, :group_id, :decision, :actor, :note, :now, :until_at) returning standing_id"
                ),
                {"group_id": group_id, "decision": decision, "note": note, "until_at": until},
            ).scalar_one()
        )


def end(ledger: Ledger, standing_id: int, *, by: str, now: datetime) -> bool:
    """Revoke it; False where somebody did already."""
    with ledger.by(by, now) as tx:
        return bool(
            tx.execute(
                sql(
                    "update standing_decisions set revoked_by = :actor, revoked_at = :now"
                    " where revoked_at is null and standing_id = :id"
                ),
                {"id": standing_id},
            ).rowcount
        )


def approve(ledger: Ledger, standing_id: int, *, by: str, now: datetime) -> bool:
    """Agree as the second person, never with oneself; False where it is revoked, over or approved already."""
    with ledger.by(by, now) as tx:
        return bool(
            tx.execute(
                sql(
                    "update standing_decisions set approved_by = :actor where revoked_at is null and standing_id = :id"
                    " and approved_by is null and until_at > :now and lower(trim(decided_by)) <> lower(trim(:actor))"
                ),
                {"id": standing_id},
            ).rowcount
        )


def route_of(connection: Connection, standing_id: int) -> tuple[str | None] | None:
    """The route of this one, None within for every route; None where there is none of that id."""
    row = connection.execute(
        sql("select route from standing_decisions where standing_id = :id"), {"id": standing_id}
    ).first()
    return (row.route,) if row else None
