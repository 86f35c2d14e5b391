"""What pages read of decisions that were taken: how many messages each was about, and what became of them."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy.engine import Connection

from redrive.ledger.dialects import dialect_of
from redrive.ledger.predicates import IN_REVIEW
from redrive_ui.bulk_decisions import NOT_TAKEN_UP
from redrive_ui.group_templates import Mask, templates
from redrive_ui.rows import Row, routes_in, rows_of

#: What became of a decision is told of so many of its newest messages, in so many failures at most.
NEWEST, MOST = 20_000, 100
#: SQL: what ``who`` decided at one moment.
TOGETHER = "decided_at = :then_at and decided_by = :who"
#: How far what was decided has come.
STEPS = ("decided", "refused", "waiting", "held", "sent", "stayed", "back", "discarded")


def results(
    connection: Connection, readable: Collection[str], mask: Mask, condition: str, values: Mapping[str, Any]
) -> list[Row]:
    """What was decided, newest first, and what became of it: one row per decision and failure.

    Of the newest :data:`NEWEST` rows of ``escalated_messages`` (as ``asked``) of which ``condition`` is true, and of at
    most :data:`MOST` of those failures.
    """
    where, routes_named = routes_in(readable, dialect_of(connection).off_index("asked.route"))
    step = (
        # A question is 'decided' until its message is sent: the message says how far it has come by then.
        f"case when asked.status = 'decided' and {IN_REVIEW} then 'decided'"
        " when asked.status in ('refused', 'reopened') then 'refused'"
        " when exists (select 1 from escalated_messages later where later.message_id = asked.message_id"
        " and later.escalation_id > asked.escalation_id) then 'back'"
        # What a restore is about to put back goes on waiting where it can't.
        " when messages.state = 'waiting' or (asked.status = 'decided' and messages.state = 'restoring') then 'waiting'"
        " when messages.state = 'held' then 'held'"
        " when messages.state in ('sending', 'sent', 'unknown') then 'sent'"
        " when messages.state in ('presumed', 'confirmed', 'suppressed') then 'stayed'"
        " when messages.state = 'discarded' then 'discarded' else 'back' end"
    )
    counts = ", ".join(f"sum(case when step = '{one}' then 1 else 0 end) as {one}" for one in STEPS)
    rows = rows_of(
        connection,
        f"select placed.*, group_state.stage, group_state.sent as canary_sent, group_state.allowed from (select route,"
        f" group_id, decision, decided_by, decided_at, note, max(approved_by) as approved_by, count(*) as n, {counts}"
        f" from (select asked.*, {step} as step from (select escalation_id, message_id, route, group_id, decision,"
        " decided_by, decided_at, approved_by, note, status from escalated_messages asked where decision is not null"
        f" and {condition} and {where} order by escalation_id desc limit {NEWEST}) as asked left join messages on"
        " messages.message_id = asked.message_id) as steps group by route, group_id, decision, decided_by, decided_at,"
        f" note order by decided_at desc nulls last, count(*) desc limit {MOST}) as placed left join group_state on"
        " group_state.route = placed.route and group_state.group_id = placed.group_id"
        " order by decided_at desc nulls last, n desc",
        **values,
        **routes_named,
    )
    said = templates(connection, readable, mask, [(row["route"], row["group_id"]) for row in rows])
    return [{**row, "template": said.get((row["route"], row["group_id"]))} for row in rows]


def totals(connection: Connection, readable: Collection[str], values: Mapping[str, Any]) -> list[Row]:
    """All that was decided :data:`TOGETHER`, by route: how many messages (``n``), and of how many the decision was not
    taken up yet (``undecided``)."""
    where, routes_named = routes_in(readable, dialect_of(connection).off_index("route"))
    return rows_of(
        connection,
        f"select route, count(*) as n, sum(case when {NOT_TAKEN_UP} then 1 else 0 end) as undecided from"
        f" escalated_messages where decision is not null and {TOGETHER} and {where} group by route order by route",
        **values,
        **routes_named,
    )
