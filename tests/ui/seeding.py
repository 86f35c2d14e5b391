"""A ledger with a history to look at: two routes, a few kinds of failures, sends with outcomes, decisions.

Written as rows, not through the stages: what the page shows depends on nothing else.
"""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.ledger import moves, tables
from redrive.ledger.engine import Ledger, sql
from redrive.settings import Settings, parse
from tests import blank

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)

CONFIG = """
database: {database}
staging: {folder}/staging
routes:
  orders:
    title: Orders of the shop
    broker: amazon_sqs
    connection: sqs
    sources: [{{queue: orders-dlq}}, {{queue: orders-delay, kind: delay, delay: 5m, destination: orders}}]
    destination: {{queue: orders}}
  payments:
    broker: rabbitmq
    connection: rabbit
    approvals: 2
    canary: off
    sources: [{{queue: payments.dead}}]
    destination: {{queue: payments}}
"""

#: Texts that want to be more than text.
HOSTILE = {
    "script": "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "svg": '<svg xmlns="http://www.w3.org/2000/svg" onload="document.title=\'owned\'"/><a>',
    "template": "{{ 7 * 7 }} ${7*7} {% raw %} </pre></textarea></script>",
    "bidi": "invoice \u202egnp.exe\u2066 \u200bhidden",
    "terminal": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J",
    "formula": '=HYPERLINK("http://example.invalid","click")',
}

#: fingerprint, cause, template, share, suggested
GROUPS: Sequence[tuple[str, str, str, str]] = (
    ("a1", "missing_data", "LookupError: SKU <*> not in catalogue", "LookupError: SKU A-{n} not in catalogue"),
    ("a2", "application_bug", "KeyError: 'sku' at shop.orders.handle", "Traceback (most recent call last):\n"
     "  File \"/app/shop/orders.py\", line 71, in handle\n    sku = order['sku']\nKeyError: 'sku'  # order {n}"),
    ("a3", "malformed_payload", "JSONDecodeError: Expecting value: line <*>", "json.decoder.JSONDecodeError: Expecting"
     " value: line {n} column 1 (char 0)"),
    ("a4", "auth_failure", "403 Forbidden from billing: token expired", "HTTP 403 Forbidden from billing: token expired"
     " {n} s ago"),
    ("a5", "dependency_unavailable", "503 Service Unavailable: inventory", "503 Service Unavailable: inventory ({n})"),
    ("a6", "transient_network", "ConnectException: Connection refused: <*>", "java.net.ConnectException: Connection"
     " refused: inventory:{n}"),
    ("a7", "throttled", "429 Too Many Requests", "429 Too Many Requests, retry after {n}"),
)  # fmt: skip
_WEIGHTS = (34, 22, 9, 12, 14, 22, 9)
_STATES = {
    "missing_data": ("escalated",),
    "application_bug": ("escalated", "escalated", "escalated", "discarded"),
    "malformed_payload": ("escalated",),
    "auth_failure": ("escalated", "held", "sent"),
    "dependency_unavailable": ("confirmed", "confirmed", "waiting", "presumed", "escalated"),
    "transient_network": ("confirmed", "confirmed", "confirmed", "presumed"),
    "throttled": ("presumed", "waiting"),
}


def settings(folder: Any, database: str | None = None) -> Settings:
    """Routes ``orders`` and ``payments``, with the ledger in ``folder``."""
    text = CONFIG.format(folder=folder, database=database or f"sqlite:///{folder}/redrive.db")
    return parse(text, env={}, root=folder)


def seed(
    ledger: Ledger, *, per_day: int = 120, days: int = 12, route: str = "orders", seed: int = 7, now: datetime = NOW
) -> None:
    """``days`` of failures of ``route`` until ``now``, ``per_day`` each; escalated is what its state says so of."""
    dice = random.Random(seed)
    blank.upgrade(ledger, now)
    batch_first = {"orders": 1, "payments": 500}[route]
    rows: dict[Any, list[dict[str, Any]]] = {
        table: []
        for table in (
            tables.runs, tables.staging_batches, tables.messages, tables.delivery_slices, tables.redelivery_attempts,
            tables.escalated_messages, tables.audit_events, tables.queue_observations,
        )
    }  # fmt: skip
    groups = _groups(ledger, now)
    for day in range(days):
        at = now - DAY * (days - day) + 6 * HOUR
        _one_day(rows, dice, route, batch_first + day, at, per_day + dice.randrange(-per_day // 3, per_day), groups)
    run_id = f"{route}.scheduled__{now - HOUR:%Y-%m-%dT%H}"
    for queue, role, visible, age in (
        ("orders-dlq" if route == "orders" else "payments.dead", "source", 412, 93_000.0),
        (route, "destination", 37, 95.0),
    ):
        rows[tables.queue_observations].append(
            {
                "route": route, "run_id": run_id, "queue": queue, "role": role, "observed_at": now - HOUR / 4,
                "visible": visible, "in_flight": 3, "delayed": 0, "consumers": 4, "oldest_age_seconds": age,
                "oldest_age_method": "ledger", "oldest_visible_age_method": "unknown",
            }
        )  # fmt: skip
    with ledger.write() as connection:
        for table, values in rows.items():
            if values:
                connection.execute(table.insert(), values)
        connection.execute(tables.route_state.insert(), {"route": route, "fence": 3})
        stages = {"auth_failure": "failed", "dependency_unavailable": "canary", "throttled": "tripped"}
        for cause, stage in stages.items():
            group = next(g for (_, c, _, _), g in zip(GROUPS, groups, strict=True) if c == cause)
            connection.execute(
                tables.breakers.insert(),
                {"route": route, "group_id": group, "stage": stage, "allowed": 20, "began_at": now - 2 * HOUR,
                 "stage_at": now - 2 * HOUR, "cool_down_until": now + HOUR,
                 "reason": "8 of 14 came back"},
            )  # fmt: skip

    with ledger.write() as connection:
        moves.count_anew(connection)


def escalate(ledger: Ledger, message_id: int, error: str, payload: str | bytes, *, route: str = "orders",
             group_id: int | None = None, headers: Sequence[Sequence[str]] = (), **fields: Any) -> None:  # fmt: skip
    """One more escalated message with a text of its own."""
    blank.upgrade(ledger, NOW)
    with ledger.write() as connection:
        connection.execute(
            tables.messages.insert(), _message(message_id, route, "escalated", None, group_id, NOW - HOUR)
        )
        connection.execute(
            tables.escalated_messages.insert(),
            _escalation(message_id, route, None, group_id, error, NOW - HOUR)
            | {
                "payload": payload if isinstance(payload, str) else None,
                "payload_bytes": payload if isinstance(payload, bytes) else None,
                "headers": json.dumps(list(headers)),
                **fields,
            },
        )
        connection.execute(
            sql("insert into route_state (route) values (:route) on conflict do nothing"), {"route": route}
        )


def _groups(ledger: Ledger, now: datetime) -> list[int]:
    with ledger.write() as connection:
        known = {row[0]: row[1] for row in connection.execute(sql("select fingerprint, group_id from failure_groups"))}
        found = []
        for position, (fingerprint, cause, template, example) in enumerate(GROUPS, start=1):
            if fingerprint not in known:
                connection.execute(
                    tables.failure_groups.insert(),
                    {"group_id": position, "fingerprint": fingerprint, "cause": cause, "template": template,
                     "example": example.format(n=17), "messages": 400 * position, "first_seen_at": now - 12 * DAY,
                     "last_seen_at": now - HOUR, "first_route": "orders"},
                )  # fmt: skip
            found.append(known.get(fingerprint, position))
    return found


def _one_day(
    rows: Any, dice: random.Random, route: str, batch: int, at: datetime, count: int, groups: list[int]
) -> None:
    run_id, slice_id = f"{route}.scheduled__{at:%Y-%m-%dT%H}", batch
    rows[tables.runs].append(
        {"run_id": run_id, "route": route, "trigger": "scheduled", "holder": "worker-1", "fence": 1,
         "status": "succeeded", "started_at": at, "finished_at": at + HOUR / 10,
         "airflow_run_id": run_id.removeprefix(f"{route}."), "configuration": "5e3d0f1a" * 8},
    )  # fmt: skip
    rows[tables.staging_batches].append(
        {"batch_id": batch, "route": route, "source": f"{route}-dlq", "kind": "dead_letter", "shard": 0,
         "run_id": run_id, "fence": 1, "state": "settled", "uri": f"{batch}.parquet", "copies": count, "bytes": 1000,
         "settled_copies": count, "new_copies": count, "opened_at": at, "recorded_at": at, "settled_at": at,
         "loaded_at": at}
    )  # fmt: skip
    moved: dict[tuple[str | None, str], int] = {(None, "classified"): count}
    for row in range(count):
        message_id = batch << 20 | row
        kind = dice.choices(range(len(GROUPS)), weights=_WEIGHTS)[0]
        _, cause, _, example = GROUPS[kind]
        died = at - timedelta(minutes=dice.randrange(5, 600))
        state = dice.choice(_STATES[cause])
        rows[tables.messages].append(_message(message_id, route, state, cause, groups[kind], died))
        sent = state in ("confirmed", "presumed", "sent")
        if sent:
            outcome = None if state == "sent" else state
            rows[tables.redelivery_attempts].append(
                {"message_id": message_id, "attempt": 1, "route": route, "group_id": groups[kind],
                 "slice_id": slice_id, "mode": "requeue", "destination": route, "broker_message_id": f"s-{message_id}",
                 "claimed_at": at, "sent_at": at + timedelta(seconds=3), "outcome": outcome,
                 "outcome_at": at + HOUR if outcome else None}
            )  # fmt: skip
            moved["sending", "sent"] = moved.get(("sending", "sent"), 0) + 1
        if state in ("presumed", "confirmed"):
            moved["sent", state] = moved.get(("sent", state), 0) + 1
        elif state == "escalated":
            moved["classified", "escalated"] = moved.get(("classified", "escalated"), 0) + 1
            error = example.format(n=dice.randrange(10, 9000))
            rows[tables.escalated_messages].append(
                _escalation(message_id, route, cause, groups[kind], error, died)
                | {"payload": json.dumps({"order": row, "customer": {"name": "Kim"}, "lines": [{"sku": f"A-{row}"}]})}
            )
        elif state == "discarded":
            moved["escalated", "discarded"] = moved.get(("escalated", "discarded"), 0) + 1
    back = count // 25
    moved["sent", "returned"] = back
    rows[tables.delivery_slices].append(
        {"slice_id": slice_id, "route": route, "run_id": run_id, "fence": 1, "shard": 0, "destination": route,
         "claimed": count, "sent": moved.get(("sending", "sent"), 0), "claimed_at": at, "deadline_at": at + HOUR,
         "closed_at": at}
    )  # fmt: skip
    rows[tables.audit_events] += [
        {"at": at, "route": route, "run_id": run_id, "actor": "redrive", "action": "plan", "from_state": source,
         "to_state": target, "count": n}
        for (source, target), n in moved.items()
    ]  # fmt: skip


def _message(message_id: int, route: str, state: str, cause: str | None, group: int | None, died: datetime) -> Any:
    return {
        "message_id": message_id, "redrive_id": f"k3v9q2-{message_id:014x}", "route": route, "source": f"{route}-dlq",
        "kind": "dead_letter", "destination": route, "broker_message_id": f"b-{message_id}", "body_hash": b"0" * 16,
        "body_bytes": 70, "copy_id": message_id, "state": state, "cause": cause, "group_id": group, "attempts": 1,
        "first_enqueued_at": died - HOUR, "dead_lettered_at": died, "received_at": died + HOUR,
        "changed_at": died + HOUR, "message_key": f"order-{message_id & 0xFFFFF}",
        "plan": "requeue" if state in ("waiting", "held") else None,
        "next_attempt_at": died + HOUR if state in ("waiting", "held") else None,
    }  # fmt: skip


def _escalation(message_id: int, route: str, cause: str | None, group: int | None, error: str, died: datetime) -> Any:
    return {
        "message_id": message_id, "route": route, "group_id": group, "cause": cause,
        "reason": f"{cause or 'unclassified'}: a person decides", "error_text": error, "payload": "{}",
        "size_bytes": 70, "content_type": "application/json",
        "headers": json.dumps([["tenant", "String", "blue" if message_id % 2 else "green"]]),
        "source": f"{route}-dlq", "destination": route, "broker_message_id": f"b-{message_id}",
        "message_key": f"order-{message_id & 0xFFFFF}", "attempts": 1, "first_enqueued_at": died - HOUR,
        "escalated_at": died + HOUR, "suggested_decision": "redeliver" if cause == "auth_failure" else "discard",
    }  # fmt: skip


def crowd(ledger: Ledger, count: int, *, groups: int = 40) -> None:
    """``count`` escalated messages of route ``orders`` more, a KiB each, in ``groups`` failures; made by SQL alone."""
    blank.upgrade(ledger, NOW)
    numbers = f"with recursive n(i) as (select cast(0 as bigint) union all select i + 1 from n where i < {count - 1})"
    first = 100_000
    at, no_bytes = "strftime('%Y-%m-%d %H:%M:%f', '2026-11-20 06:00:00', '-' || (i % 9) || ' days') || '000'", "x'00'"
    on_postgresql = ledger.engine.dialect.name == "postgresql"
    if on_postgresql:
        at, no_bytes = "timestamptz '2026-11-20 06:00:00Z' - (i % 9) * interval '1 day'", "'\\x00'"
    headers = """'[["tenant", "String", "' || case when i % 2 = 0 then 'green' else 'red' end || '"]]'"""
    message = f"(({first} + i / 50000) * 1048576 + i % 50000)"
    with ledger.write() as connection:
        for statement in (
            "insert into route_state (route) values ('orders') on conflict do nothing",
            f"with recursive n(i) as (select 0 union all select i + 1 from n where i < {groups - 1}) insert into"
            " failure_groups (group_id, fingerprint, cause, template, first_route, first_seen_at, last_seen_at) select"
            f" 1000 + i, 'crowd' || i, 'missing_data', 'LookupError: thing ' || i, 'orders', {at}, {at} from n",
            f"{numbers} insert into staging_batches (batch_id, route, source, kind, shard, run_id, fence, state, uri,"
            f" copies, new_copies, opened_at, loaded_at) select {first} + i, 'orders', 'orders-dlq', 'dead_letter', 0,"
            f" 'crowd', 1, 'settled', 'x', 50000, 50000, {at}, {at} from n where i <= {(count - 1) // 50000}",
            f"{numbers} insert into messages (message_id, redrive_id, route, source, kind, broker_message_id,"
            f" body_hash, body_bytes, copy_id, state, cause, group_id, first_enqueued_at, dead_lettered_at, changed_at)"
            f" select {message}, 'crowd-' || i, 'orders', 'orders-dlq', 'dead_letter', 'c' || i, {no_bytes}, 1000,"
            f" {message}, 'escalated', 'missing_data', 1000 + (i * i) % {groups}, {at}, {at}, {at} from n",
            f"{numbers} insert into escalated_messages (message_id, route, group_id, cause, reason, error_text,"
            f" payload, size_bytes, headers, source, attempts, first_enqueued_at, escalated_at) select {message},"
            f" 'orders', 1000 + (i * i) % {groups}, 'missing_data', 'needs a person', 'LookupError: thing ' || i ||"
            f" ' is gone', '{'x' * 1000}', 1000, {headers}, 'orders-dlq', 1, {at}, {at} from n",
        ):
            connection.exec_driver_sql(statement.replace("%", "%%") if on_postgresql else statement)
    with ledger.write() as connection:  # as the stage does that asks so many
        for table in ("messages", "escalated_messages"):
            ledger.dialect.look_again(connection, table, count)
