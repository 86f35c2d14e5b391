"""What people decided about messages is carried out, each decision exactly once.

``redeliver`` and ``edit`` let the message wait for delivery, and the review row becomes ``applied`` only when the
broker has it; ``discard`` is applied at once. What can't be done is refused with the reason in the row.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.corrections import Correction
from redrive.ledger.delivery import breakers
from redrive.ledger.dialects import dialect_of
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move, move_each
from redrive.ledger.predicates import APPROVED, ASKED
from redrive.ledger.review import escalations
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.lifecycle import Plan, Question, State
from redrive.message import LARGEST_ID


class Decided(NamedTuple):
    """One decision to apply."""

    escalation_id: int
    message_id: int
    route: str
    decision: str
    decided_by: str
    approved_by: str | None
    note: str | None
    content_type: str | None
    corrected_body: str | None
    state: str | None  # of the message; None when it is gone
    original: str | None = None  # of an edit: the body, where it is text …
    is_binary: bool = False  # … and whether it is not
    source: str = ""  # the queue that the message was drained from
    corrected_headers: str | None = None  # JSON: see redrive.corrections
    original_headers: str | None = None  # of an edit, as original
    size_bytes: int = 0


_WAITING = (
    " from escalated_messages reviews"
    " left join messages on messages.message_id = reviews.message_id"
    " where status = 'decided' and decision is not null and applied_at is null"
    # a released message that waits for delivery was applied as far as it can be
    f" and (messages.state is null or messages.{ASKED})"
)


def decided(
    connection: Connection, route: str | None, *, approvals: int, after: int, limit: int, max_bytes: int = LARGEST_ID
) -> list[Decided]:
    """Decisions that wait to be applied, oldest first; those that lack the second person are left out. At most
    ``limit``, and of edits so many that their originals have ``max_bytes`` (at least one).

    One about a suspected copy waits until it is a message (:func:`redrive.ledger.drain.suspects.adopt`).
    """
    which = (
        f"{_WAITING} and escalation_id > :after"
        " and (messages.message_id is not null or not exists (select 1 from repeat_copies copies"
        " where copies.copy_id = reviews.message_id and copies.kind = 'suspected'))"
        + (" and reviews.route = :route" if route else "")
        + (f" and {APPROVED}" if approvals > 1 else "")
    )
    values = {"after": after, "limit": limit} | ({"route": route} if route else {})
    sizes = connection.execute(
        sql(
            f"select escalation_id, case when decision = 'edit' then size_bytes else 0 end as size_bytes{which}"
            " order by escalation_id limit :limit"
        ),
        values,
    ).all()
    page = sizes[: escalations.within(max_bytes, (row.size_bytes for row in sizes))]
    if not page:
        return []
    rows = connection.execute(
        sql(
            "select escalation_id, reviews.message_id, reviews.route, decision, decided_by, approved_by, note,"
            " content_type, corrected_body, messages.state, case when decision = 'edit' then payload end as original,"
            " payload_bytes is not null as is_binary, reviews.source, corrected_headers,"
            f" case when decision = 'edit' then headers end as original_headers, size_bytes{which}"
            " and escalation_id <= :until order by escalation_id limit :limit"
        ),
        {**values, "until": page[-1].escalation_id},
    )
    return [Decided(*row) for row in rows]


class Left(NamedTuple):
    """What of a route's decisions waits to be applied."""

    decisions: int
    not_approved: int  # of them, those of one person alone


def left(connection: Connection, route: str) -> Left:
    """The decisions of a route that wait to be applied."""
    row = connection.execute(
        sql(
            f"select count(*) as n, coalesce(sum(case when {APPROVED} then 0 else 1 end), 0) as not_approved{_WAITING}"
            " and reviews.route = :route"
        ),
        {"route": route},
    ).one()
    return Left(int(row.n), int(row.not_approved))


class Unapproved(NamedTuple):
    """Decisions about one group that wait for a second person."""

    group_id: int | None
    cause: str | None
    decisions: int
    decision: str | None  # None: not the same for all
    decided_by: str | None  # likewise


def not_approved(connection: Connection, route: str) -> list[Unapproved]:
    """The decisions of a route that one person alone has made, by group: they wait where the route asks for two."""
    rows = connection.execute(
        sql(
            "select alone.group_id, failure_groups.cause, n, case when first_word = last_word then first_word end as"
            " decision, case when first_name = last_name then first_name end as decided_by from (select"
            " reviews.group_id, count(*) as n, min(decision) as first_word, max(decision) as last_word,"
            f" min(decided_by) as first_name, max(decided_by) as last_name{_WAITING} and reviews.route = :route"
            f" and case when {APPROVED} then 0 else 1 end = 1 group by reviews.group_id) alone"
            " left join failure_groups on failure_groups.group_id = alone.group_id order by alone.group_id"
        ),
        {"route": route},
    )
    return [Unapproved(*row) for row in rows]


def any_held(connection: Connection, route: str) -> bool:
    """Whether anything that people released is held: it may go as far as its gate lets it."""
    found = sql(
        f"select exists (select 1 from messages where route = :route and state = 'held' and plan = '{Plan.RELEASE}')"
    )
    return bool(connection.execute(found, {"route": route}).scalar_one())


def to_send(connection: Connection, now: datetime) -> list[str]:
    """The routes of which something is due that people released; not what is paused, nor what goes to a destination
    that is stopped for longer."""
    rows = connection.execute(
        sql(
            "select distinct reviews.route from escalated_messages reviews"
            " inner join messages on messages.message_id = reviews.message_id"
            " inner join route_state on route_state.route = reviews.route and paused_at is null"
            f" where status = 'decided' and messages.state = 'waiting' and plan = '{Plan.RELEASE}'"
            " and next_attempt_at <= :now and not exists (select 1 from breakers where breakers.route = reviews.route"
            " and breakers.destination = messages.destination and stage = 'tripped' and cool_down_until > :now)"
            " order by reviews.route"
        ),
        {"now": now},
    )
    return list(rows.scalars())


def of_routes_not_configured(connection: Connection, configured: Collection[str]) -> dict[str, int]:
    """How many decisions wait that nobody applies, by the route that is not ``configured``."""
    names = connection.execute(sql("select route from route_state order by route")).scalars()
    found = {name: left(connection, name).decisions for name in names if name not in configured}
    return {name: count for name, count in found.items() if count}


def why_nobody_applies(route: str, count: int) -> str:
    """The same as a sentence."""
    return f"{count:,} decisions wait: route {route} is not in the configuration, or wrong there"


def apply(
    ledger: Ledger,
    lease: RouteLease,
    *,
    redeliver: Sequence[Decided],
    discard: Sequence[Decided],
    refuse: Sequence[tuple[Decided, str]],
    first: int | None,
    now: datetime,
    not_there: Sequence[Decided] = (),
) -> dict[str, int]:
    """Apply decisions of the lease's route in one transaction. Rows that changed since they were read are left for the
    next time, and so are those that somebody is changing; whoever comes later waits for us. A group of which something
    is released is tried with its ``first`` few; None: with no canary."""
    chosen = (
        [(one, "redeliver", None) for one in redeliver]
        + [(one, "discard", None) for one in discard]
        + [(one, "not_there", None) for one in not_there]
        + [(one, "refuse", why) for one, why in refuse]
    )
    with ledger.under(lease, now) as tx:
        tx.temporary(
            "taken",
            "escalation_id bigint primary key, message_id bigint, decision text, decided_by text, approved_by text,"
            " corrected_body text, corrected_headers text, what text, why text",
        )
        columns = (
            "escalation_id", "message_id", "decision", "decided_by", "approved_by", "corrected_body",
            "corrected_headers", "what", "why",
        )  # fmt: skip
        tx.bulk("taken",
            columns,
            [
                (
                    one.escalation_id, one.message_id, one.decision, one.decided_by, one.approved_by,
                    one.corrected_body, one.corrected_headers, what, why,
                )
                for one, what, why in chosen
            ],
        )  # fmt: skip
        _leave_changed(tx)
        of_people = (
            "select taken.message_id, reviews.decided_by as actor, 'apply_' || taken.decision as action,"
            " reviews.note as reason"
            " from taken inner join escalated_messages reviews on reviews.escalation_id = taken.escalation_id"
            " where taken.what = '{what}'"
        )
        released = move_each(
            tx,
            State.ESCALATED,
            State.WAITING,
            decided=of_people.format(what="redeliver"),
            set_=f"plan = '{Plan.RELEASE}', releases = releases + 1, send_failures = 0, next_attempt_at = :now,"
            " doubted = false, reason = null",
        )
        if released:
            # In the same transaction: a review that dies here, or whose clock is behind, leaves no gate open.
            of_these = (
                "select messages.message_id from taken inner join messages on messages.message_id = taken.message_id"
                f" where taken.what = 'redeliver' and messages.state = 'waiting' and plan = '{Plan.RELEASE}'"
            )
            breakers.regate(tx, of_these, first=first)
            _hold_behind_gates(tx, of_these)
            if tx.dialect.for_update:
                # Whose transaction began before this one ends sees the message under review for as long as it lasts,
                # and what was locked and not changed it may change: with this its change fails.
                tx.execute(
                    sql(
                        "update escalated_messages set applied_at = applied_at where escalation_id in"
                        " (select escalation_id from taken where what = 'redeliver')"
                    )
                )
        discarded = sum(
            move_each(
                tx,
                state,
                State.DISCARDED,
                decided=of_people.format(what="discard"),
                set_="reason = 'A reviewer discarded it.'",
            )
            for state in (State.ESCALATED, State.RESTORE_UNKNOWN)
        )
        _not_there(tx, of_people.format(what="not_there"))
        tx.execute(
            sql(
                "update escalated_messages set status = 'applied', applied_at = :now where escalation_id in"
                " (select escalation_id from taken where what = 'discard')"
            )
        )
        refused = tx.execute(
            sql(
                "update escalated_messages set status = 'refused', refusal = (select why from taken"
                " where taken.escalation_id = escalated_messages.escalation_id) where escalation_id in"
                " (select escalation_id from taken where what = 'refuse')"
            )
        ).rowcount
        tx.execute(
            sql(
                "insert into audit_events (at, route, run_id, actor, action, message_id, reason) select :now, :route,"
                " :run_id, :actor, :action, message_id, why from taken where what = 'refuse'"
                " order by message_id"
            ),
            {
                "action": Action.REFUSE_DECISION,
            },
        )
    return {"released": released, "discarded": discarded, "refused": int(refused)}


def _hold_behind_gates(tx: RunTransaction, released: str) -> None:
    """A claim asks no group's gate: what is released behind one that is not open is held until a plan lets it through,
    or whoever comes after a review that dies here would send all of it."""
    gate = "from breakers where breakers.route = :route and breakers.group_id = messages.group_id and stage <> 'open'"
    move(
        tx,
        State.WAITING,
        State.HELD,
        few=f"select message_id from messages where {tx.dialect.few('message_id', released)} and kind <> 'delay'"
        f" and exists (select 1 {gate})",
        set_=f"reason = (select reason {gate})",
        action=Action.HOLD_BACK,
        reason="Its group is tried with a few first.",
    )


def _not_there(tx: RunTransaction, decided: str) -> None:
    """Somebody looked into the queue into which a restore may have put these: they are with us alone. What becomes of
    them is asked anew."""
    move_each(
        tx,
        State.RESTORE_UNKNOWN,
        State.ESCALATED,
        decided=decided,
        set_="reason = 'A restore was interrupted. Somebody looked, and it is not in its queue.'",
    )
    tx.execute(
        sql(
            "update escalated_messages set status = 'reopened', suggested_decision = null,"
            f" question = (select case when messages.doubted then '{Question.SENT}' else '{Question.FAILURE}' end"
            " from messages where messages.message_id = escalated_messages.message_id),"
            " refusal = decided_by || ' looked into ' || source || ', and it is not there. Decide what becomes of it.',"
            " decision = null, decided_at = null, approved_by = null"
            " where escalation_id in (select escalation_id from taken where what = 'not_there')"
        )
    )


def _leave_changed(tx: RunTransaction) -> None:
    """Leave out of ``taken`` what no longer is as it was read, or is being changed at this moment by somebody who may
    have gone to lunch over it; lock the rest, so that late changes wait for us."""
    tx.execute(
        sql(
            "with ours as (select escalation_id from escalated_messages"
            " where escalation_id in (select escalation_id from taken)"
            f" order by escalation_id {tx.dialect.locked})"
            " delete from taken where escalation_id not in (select escalation_id from ours)"
        )
    )
    same = " and ".join(
        f"coalesce(reviews.{column}, '') = coalesce(taken.{column}, '')"
        for column in ("decision", "decided_by", "approved_by", "corrected_body", "corrected_headers")
    )
    tx.execute(
        sql(
            "delete from taken where not exists (select 1 from escalated_messages reviews where"
            f" reviews.escalation_id = taken.escalation_id and reviews.status = 'decided' and {same})"
        )
    )


def corrected(connection: Connection, message_ids: Sequence[int]) -> dict[int, Correction]:
    """What people corrected, for messages of this list whose newest decision is an edit."""
    found: dict[int, Correction] = {}
    status = dialect_of(connection).in_row("reviews.status")  # of a year's decisions only theirs are read
    for start in range(0, len(message_ids), 500):
        part = ",".join(str(int(i)) for i in message_ids[start : start + 500])
        rows = connection.execute(
            sql(
                "select message_id, corrected_body, corrected_headers from escalated_messages reviews"
                f" where decision = 'edit' and {status} in ('decided', 'applied') and message_id in ({part})"
                " and escalation_id = (select max(newest.escalation_id) from escalated_messages newest"
                " where newest.message_id = reviews.message_id)"
            )
        )
        found.update({row.message_id: Correction(row.corrected_body, row.corrected_headers) for row in rows})
    return found
