"""Changes of state: the only place that writes ``messages.state``, always along a legal edge, always told."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from redrive import lifecycle
from redrive.audit_actions import Action
from redrive.ledger.predicates import listed
from redrive.ledger.statements import sql
from redrive.ledger.transactions import RunTransaction, Transaction
from redrive.lifecycle import FINISHED, UNPLANNED, State


def record_event(
    tx: Transaction,
    action: Action,
    *,
    source: str | None = None,
    target: str | None = None,
    count: int = 1,
    message_id: int | None = None,
    selection: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> None:
    """Write one ``audit_events`` row: what the transaction's actor changed, and why."""
    tx.execute(
        sql(
            "insert into audit_events (at, route, run_id, actor, action, from_state, to_state, count, message_id,"
            " selection, reason) values (:now, :route, :run_id, :actor, :action, :source, :target, :count,"
            " :message_id, :selection, :reason)"
        ),
        {
            "action": action.value,
            "source": source,
            "target": target,
            "count": count,
            "message_id": message_id,
            "selection": json.dumps(selection, default=str, sort_keys=True) if selection else None,
            "reason": reason,
        },
    )


def move(
    tx: RunTransaction,
    source: State,
    target: State,
    *,
    action: Action,
    where: str = "",
    few: str = "",
    values: Mapping[str, Any] | None = None,
    set_: str = "",
    from_: str = "",
    reason: str | None = None,
) -> int:
    """Move every message that is in ``source`` and matches ``where`` to ``target``; returns how many.

    Instead of ``where``, ``few`` is SQL that selects the ids of messages that are few beside all, a slice's: each of
    them is looked up, whatever the database believes of the table. ``where`` and ``set_`` are SQL over table
    ``messages``, and over the one that ``from_`` names, with parameters from ``values`` and the transaction's own. A
    plan ends where the target has none. One audit event is written for the set, none when it is empty. Raises
    :class:`~redrive.errors.IllegalMove` before touching anything when the lifecycle has no such edge.
    """
    lifecycle.check(source, target)
    assert bool(where) != bool(few), "messages are chosen in one way"  # noqa: S101 - else all would be moved
    where = where or tx.dialect.few("message_id", few)
    state = tx.dialect.in_row("messages.state") if few else "messages.state"
    parameters = dict(values or {})
    result = tx.execute(
        sql(
            "update messages set state = :target_state, changed_at = :now"
            f"{_unplanned(target)}{', ' + set_ if set_ else ''}{' from ' + from_ if from_ else ''}"
            f" where {state} = :source_state and ({where})"
        ),
        parameters | {"target_state": target.value, "source_state": source.value},
    )
    count = int(result.rowcount)
    if count:
        _count(tx, source, target, count)
        shown = {k: v for k, v in parameters.items() if not isinstance(v, bytes)}
        record_event(
            tx,
            action,
            source=source.value,
            target=target.value,
            count=count,
            selection={"where": " ".join(where.split()), **shown},
            reason=reason,
        )
    return count


def move_each(
    tx: RunTransaction,
    source: State,
    target: State,
    *,
    decided: str,
    set_: str,
    values: Mapping[str, Any] | None = None,
) -> int:
    """Move messages of each of which its own life has to tell, with an audit event for every one; returns how many.

    ``decided`` is SQL that selects ``message_id, actor, action, reason``, one row per message at most. Otherwise as
    :func:`move`.
    """
    lifecycle.check(source, target)
    states = {**(values or {}), "source_state": source.value, "target_state": target.value}
    told = tx.execute(
        sql(
            "insert into audit_events (at, route, run_id, actor, action, from_state, to_state, message_id, reason)"
            " select :now, :route, :run_id, decided.actor, decided.action, :source_state, :target_state,"
            f" decided.message_id, decided.reason from ({decided}) decided inner join messages"
            " on messages.message_id = decided.message_id and messages.state = :source_state"
            " order by decided.message_id"
        ),
        states,
    ).rowcount
    moved = tx.execute(
        sql(
            f"update messages set state = :target_state, changed_at = :now{_unplanned(target)}, {set_}"
            " where state = :source_state"
            f" and message_id in (select message_id from ({decided}) decided)"
        ),
        states,
    ).rowcount
    assert told == moved, f"{told} moves were told of, {moved} made"  # noqa: S101 - nobody else moves them
    if moved:
        _count(tx, source, target, moved)
    return int(moved)


def _count(tx: RunTransaction, source: State, target: State, count: int) -> None:
    for state, by in ((source, -count), (target, count)):
        if state in FINISHED:
            count_finished(tx, state, by)


def count_finished(tx: Transaction, state: str, by: int) -> None:
    """So many messages of the transaction's route more, or fewer, are in this state, which ends them."""
    tx.execute(
        sql(
            "insert into finished_counts (route, state, messages) values (:route, :state, :by)"
            " on conflict (route, state) do update set messages = finished_counts.messages + excluded.messages"
        ),
        {"state": state, "by": by},
    )


#: SQL: what ``finished_counts`` should hold.
FINISHED_NOW = (
    f"select route, state, count(*) as messages from messages where state in {listed(sorted(FINISHED))}"
    " group by route, state"
)


def count_anew(connection: Connection) -> None:
    """Count what is finished, whatever was counted before; until then no run moves anything."""
    connection.execute(sql("update route_state set fence = fence"))
    connection.execute(sql("delete from finished_counts"))
    connection.execute(sql(f"insert into finished_counts (route, state, messages) {FINISHED_NOW}"))


def _unplanned(target: State) -> str:
    return ", plan = null" if target in UNPLANNED else ""
