"""Standing decisions: what people decided about a group also holds for what is escalated later, while they say so.

People make them by a plain ``INSERT`` into ``standing_decisions`` and revoke them by an ``UPDATE``. Here they are
written into the review rows of newly escalated messages, in sets; from there on they go as if the person had decided
each of them: the same refusals, the same second person, the same canary, and a name in the audit trail.

No loop comes of it: a message is released by a standing decision at most once, and a group that fails after the
decision was made, or trips with what people released, suspends it until people make another one. It answers a failure,
and no other question: whether to send what may have been sent already, or to let it be, is asked of people, message by
message.
"""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive import audit_actions
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import APPROVED, listed
from redrive.ledger.review.issues import TWICE
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Decision, Question

#: SQL over ``escalated_messages``: a person took back what was decided about the message.
_TAKEN_BACK = (
    "exists (select 1 from audit_events told where told.message_id = escalated_messages.message_id and told.action in"
    f" {listed(audit_actions.of('withdraw', decision) for decision in Decision)})"
)

#: SQL over ``standing_decisions`` and ``breakers gate``: that gate suspends it on its route.
SUSPENDED = (
    f"standing_decisions.decision = '{Decision.REDELIVER}' and gate.group_id = standing_decisions.group_id"
    " and (gate.route = standing_decisions.route or standing_decisions.route is null)"
    " and gate.failed_at >= standing_decisions.created_at"
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
    suspended: bool  # on the route that was asked about: it decides nothing there any more


def in_force(connection: Connection, route: str, *, approvals: int, now: datetime) -> list[Standing]:
    """The route's standing decisions that hold at ``now``, one per group: its own before those for every route, of
    several the newest. With ``approvals: 2`` only those that a second person approved."""
    rows = connection.execute(
        sql(
            "select standing_id, route, group_id, decision, decided_by, approved_by, note, created_at,"
            f" exists (select 1 from breakers gate where gate.route = :route and {SUSPENDED}) as suspended"
            f" from standing_decisions where {_holds(approvals)}"
            " order by case when route is null then 0 else 1 end, standing_id"
        ),
        {"route": route, "now": now},
    )
    last = {row.group_id: Standing(*row) for row in rows}
    return list(last.values())


def _holds(approvals: int) -> str:
    """SQL over ``standing_decisions``: it holds on ``:route`` at ``:now``."""
    approved = f" and {APPROVED}" if approvals > 1 else ""
    return f"(route = :route or route is null) and revoked_at is null and until_at > :now{approved}"


def _kept(tx: RunTransaction, route: str, *, approvals: int) -> list[Standing]:
    """Those in force; until the transaction ends nobody revokes one. One that somebody is changing at this moment says
    nothing this time, and neither does an older one in its place."""
    found = in_force(tx.connection, route, approvals=approvals, now=tx.now)
    ids = ", ".join(str(int(one.standing_id)) for one in found)
    kept = set(
        tx.execute(
            sql(
                f"select standing_id from standing_decisions where standing_id in ({ids}) and {_holds(approvals)}"
                f" order by standing_id {tx.dialect.locked_shared}"
            )
        ).scalars()
        if found
        else ()
    )
    return [one for one in found if one.standing_id in kept]


def apply(ledger: Ledger, lease: RouteLease, *, approvals: int, now: datetime) -> int:
    """Decide what was escalated since as the standing decisions say; returns how many messages."""
    with ledger.read() as connection:
        if all(one.suspended for one in in_force(connection, lease.route, approvals=approvals, now=now)):
            return 0
    total = 0
    with ledger.under(lease, now) as tx:
        # Whoever revokes one waits until what it decides is written, and nothing is decided by it afterwards.
        for one in _kept(tx, lease.route, approvals=approvals):
            if one.suspended:
                continue
            sends = one.decision == "redeliver"
            count = tx.execute(
                sql(
                    "update escalated_messages set decision = :decision, decided_by = :by, approved_by = :approved,"
                    " decided_at = :now, note = :note where escalation_id in (select escalation_id"
                    " from escalated_messages where route = :route and group_id = :group_id"
                    f" and status = 'open' and question = '{Question.FAILURE}' and escalated_at >= :since"
                    " and exists (select 1 from messages"
                    " where messages.message_id = escalated_messages.message_id and messages.state = 'escalated'"
                    + (" and messages.releases = 0)" if sends else ")")
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
    """Make one, as a person does by an ``INSERT``: on ``route``, or on every one. Its id; a trigger tells of it.

    Whoever says the very same once more a moment later, because the answer was lost or by a second click, has the first
    one, where no other was made since: whatever else was decided about the group, and whatever a canary found, comes
    before what is said now.
    """
    values = {"group_id": group_id, "decision": decision, "note": note, "until_at": until}
    with ledger.by(by, now, route=route) as tx:
        tx.one_after_the_other()
        stands = tx.execute(
            sql(
                "select standing_id from standing_decisions where standing_id = (select max(standing_id)"
                " from standing_decisions where coalesce(route, '') = :of_route and group_id = :group_id)"
                " and decision = :decision and decided_by = :actor and note = :note and until_at = :until_at"
                " and revoked_at is null and created_at > :lately"
                f" and not exists (select 1 from breakers gate where {SUSPENDED})"
            ),
            {**values, "of_route": route or "", "lately": tx.now - TWICE},
        ).scalar()
        return int(
            stands
            or tx.execute(
                sql(
                    "insert into standing_decisions (route, group_id, decision, decided_by, note, created_at, until_at)"
                    " values (:route, :group_id, :decision, :actor, :note, :now, :until_at) returning standing_id"
                ),
                values,
            ).scalar_one()
        )


def end_all(tx: RunTransaction, *, by: str, made_before: datetime) -> int:
    """Revoke all that hold on the route and were made before that moment, those for every route with them; how many."""
    return tx.execute(
        sql(
            "update standing_decisions set revoked_at = :now, revoked_by = :by where (route = :route or route is null)"
            " and until_at > :now and revoked_at is null and created_at <= :made_at"
        ),
        {"by": by, "made_at": made_before},
    ).rowcount


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
