"""A ledger as it is after months: finished messages of hourly runs, by SQL in sets, with their staging files."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from redrive.ledger import moves
from redrive.ledger.engine import Ledger
from redrive.stages.context import utc_now
from redrive.staging import file_schemas

#: Messages of a run. A run of each hour of a year has five million together.
OF_A_RUN = 570
GROUPS = 300


def fill(ledger: Ledger, folder: Path, messages: int) -> None:
    """A year of finished messages, or a part of it, in hourly runs of ``orders``."""
    runs, size = -(-messages // OF_A_RUN), OF_A_RUN
    now = utc_now().replace(microsecond=0)
    hours = [now - timedelta(hours=2 + runs - number) for number in range(runs)]
    with ledger.write() as connection:
        if ledger.dialect.name == "sqlite":
            connection.exec_driver_sql("pragma cache_size = -1000000")
        indexes = _indexes(ledger, connection)
        for name, _ in indexes:
            connection.exec_driver_sql(f"drop index {name}")
        ledger.dialect.temporary(connection, "hours", "number bigint primary key, at instant, later instant")
        ledger.dialect.bulk(
            connection,
            "hours",
            ("number", "at", "later"),
            [
                (number + 1, *(ledger.dialect.stored(moment) for moment in (at, at + timedelta(minutes=20))))
                for number, at in enumerate(hours)
            ],
        )
        for statement in _statements(ledger, size):
            ledger.dialect.as_it_is(connection, statement)  # PostgreSQL's driver takes "%" for a parameter
        for table, column in (("staging_batches", "batch_id"), ("delivery_slices", "slice_id")):
            ledger.dialect.count_on(connection, table, column, runs)
        ledger.dialect.count_on(connection, "failure_groups", "group_id", GROUPS)
        for _, statement in indexes:
            connection.exec_driver_sql(statement)
        moves.count_anew(connection)
    _settle_down(ledger)
    _write_files(folder / "staging", runs, size)


def _indexes(ledger: Ledger, connection: Any) -> list[tuple[str, str]]:
    """Those of large tables that can be built after the rows are there, with the statement that builds each."""
    tables = "('messages', 'redelivery_attempts', 'escalated_messages', 'repeat_copies', 'message_fields')"
    if ledger.dialect.name == "sqlite":
        found = f"select name, sql from sqlite_master where type = 'index' and sql is not null and tbl_name in {tables}"
    else:
        found = (
            "select 'redrive.' || indexname, indexdef from pg_indexes where schemaname = 'redrive'"
            f" and tablename in {tables} and indexname like 'ix_%%'"
        )
    return [(row[0], row[1]) for row in connection.exec_driver_sql(found)]


def _settle_down(ledger: Ledger) -> None:
    """As the database would have done in that year."""
    if ledger.dialect.name == "sqlite":
        ledger.close()
        with closing(sqlite3.connect(ledger.url.database or "")) as raw:
            raw.execute("pragma wal_checkpoint(truncate)")
        return
    with ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("vacuum analyze")


def _statements(ledger: Ledger, size: int) -> Iterable[str]:
    """Of twenty messages twelve are presumed, five confirmed (one after a return), two discarded, one suppressed."""
    lite = ledger.dialect.name == "sqlite"
    rows = (
        f"(with recursive r(n) as (select 0 union all select n + 1 from r where n < {size - 1}) select n from r)"
        if lite
        else f"(select n from generate_series(0, {size - 1}) n)"
    )
    message = "(h.number * 1048576 + r.n)"
    blob, no, hashed = (
        ("zeroblob(16)", "0", f"printf('%08x%010x', {message} * 40503 % 4294967291, {message})")
        if lite
        else ("decode(repeat('00', 16), 'hex')", "false", f"md5({message}::text)")
    )
    stages = "cast(16777216 as bigint)"
    kind, group = "r.n % 20", f"1 + (h.number + r.n) % {GROUPS}"
    each = f"from hours h cross join {rows} r"
    yield "insert into route_state (route) values ('orders') on conflict do nothing"
    yield (
        'insert into runs (run_id, route, "trigger", holder, fence, status, started_at, finished_at, counts)'
        " select 'run-' || number, 'orders', 'schedule', 'worker', 1, 'succeeded', at, later,"
        ' \'{"deliver": {"redelivered": 500}}\' from hours'
    )
    yield (
        f"with recursive g(n) as (select 1 union all select n + 1 from g where n < {GROUPS}) insert into failure_groups"
        " (group_id, fingerprint, cause, template, example, messages, first_seen_at, last_seen_at, first_route)"
        " select n, 'old-' || n, 'transient_network', 'old failure ' || n, 'old failure ' || n, 1000,"
        " (select min(at) from hours), (select max(at) from hours), 'orders' from g"
    )
    yield (
        f"with recursive g(n) as (select 1 union all select n + 1 from g where n < {GROUPS}) insert into breakers"
        " (route, group_id, stage, period, stage_at, began_at) select 'orders', n, 'open', 100,"
        " (select max(at) from hours), (select min(at) from hours) from g"
    )
    yield (
        "insert into staging_batches (batch_id, route, source, kind, shard, run_id, fence, state, uri, copies, bytes,"
        " settled_copies, new_copies, returned_copies, opened_at, recorded_at, settled_at, loaded_at)"
        " select number, 'orders', 'orders-dlq', 'dead_letter', 0, 'run-' || number, 1, 'settled',"
        f" 'old/' || number || '.parquet', {size} + {size // 20}, 1000, {size} + {size // 20}, {size}, {size // 20},"
        " at, at, at, at from hours"
    )
    yield (
        "insert into messages (message_id, redrive_id, route, source, kind, origin, destination, broker_message_id,"
        " body_hash, body_bytes, copy_id, state, cause, group_id, reason, attempts, releases, deliveries,"
        " first_enqueued_at, dead_lettered_at, received_at, changed_at, message_key)"
        f" select {message}, 'old-' || {message}, 'orders', 'orders-dlq', 'dead_letter', 'orders', 'orders', {hashed},"
        f" {blob}, 1024, {message}, case when {kind} < 12 then 'presumed' when {kind} in (12, 13) then 'discarded'"
        f" when {kind} = 14 then 'suppressed' else 'confirmed' end, 'transient_network', {group},"
        f" case when {kind} in (12, 13) then 'not needed' end, case when {kind} in (12, 13, 14) then 0"
        f" when {kind} = 19 then 2 else 1 end, 0, 3, h.at, h.at, h.at, h.later, 'order-' || {message} {each}"
    )
    # In the order of their claims, as deliveries write them: PostgreSQL keeps rows where they were put.
    returned = f"({kind} = 19 and tries.attempt = 1)"
    yield (
        "insert into redelivery_attempts (message_id, attempt, route, group_id, slice_id, mode, destination,"
        " broker_message_id, claimed_at, sent_at, outcome, outcome_at, return_copy, return_kind, group_stage,"
        f" destination_stage) select {message}, tries.attempt, 'orders', {group}, h.number, 'requeue', 'orders',"
        f" {hashed} || '-' || tries.attempt, h.at, h.at, case when {kind} < 12 then 'presumed' when {returned} then"
        f" 'returned' else 'confirmed' end, h.later, case when {returned} then {message} + {size} end,"
        f" case when {returned} then 'dead_letter' end, ({group}) * {stages} + h.number / 100,"
        f" 999 * {stages} + h.number / 100 {each} cross join (select 1 as attempt union all select 2) tries"
        f" where {kind} not in (12, 13, 14) and (tries.attempt = 1 or {kind} = 19)"
        f" order by h.number, tries.attempt, r.n"
    )
    yield (
        "insert into repeat_copies (copy_id, message_id, route, kind, attempt, source, broker_message_id, enqueued_at,"
        f" seen_at) select h.number * 1048576 + {size} + r.n / 20, {message}, 'orders', 'returned', 1, 'orders-dlq',"
        f" {hashed} || '-back', h.at, h.later {each} where {kind} = 19 and r.n / 20 < {size // 20}"
    )
    yield (
        "insert into delivery_slices (slice_id, route, run_id, fence, shard, destination, claimed, sent, claimed_at,"
        " deadline_at, high_water, confirmed_to, closed_at, last_sent_at, observed_from, observed_at, system)"
        f" select number, 'orders', 'run-' || number, 1, 0, 'orders', {size * 17 // 20}, {size * 17 // 20}, at, later,"
        f" number * 1048576 + {size}, number * 1048576 + {size}, later, later, later, later, 'memory:bench' from hours"
    )
    yield (
        "insert into escalated_messages (message_id, route, group_id, cause, reason, error_text, payload, size_bytes,"
        " content_type, source, destination, broker_message_id, message_key, attempts, first_enqueued_at, escalated_at,"
        " suggested_decision, status, decision, decided_by, decided_at, note, applied_at)"
        f" select {message}, 'orders', {group}, 'transient_network', 'a person decides', 'old failure', '{'x' * 300}',"
        f" 300, 'application/json', 'orders-dlq', 'orders', {hashed}, 'order-' || {message}, 0, h.at, h.at, 'discard',"
        f" 'applied', 'discard', 'ana', h.later, 'not needed', h.later {each} where {kind} in (12, 13)"
    )
    yield (
        "insert into message_fields (message_id, field, value)"
        f" select {message}, 'attribute:tenant', 'tenant-' || r.n % 500 {each} where r.n % 5 = 0"
    )
    for source, target, n in (
        ("null", "'classified'", size),
        ("'classified'", "'waiting'", size),
        ("'waiting'", "'sending'", size),
        ("'sending'", "'sent'", size),
        ("'sent'", "'presumed'", size // 2),
        ("'sent'", "'confirmed'", size // 3),
        ("'to_review'", "'escalated'", size // 10),
        ("'escalated'", "'discarded'", size // 10),
    ):
        yield (
            "insert into audit_events (at, route, run_id, actor, action, from_state, to_state, count) select at,"
            f" 'orders', 'run-' || number, 'redrive', 'plan', {source}, {target}, {n} from hours order by number"
        )
    # Never empty, and what lies there is old: the alerts have something to tell each time.
    for queue, role in (("orders-dlq", "source"), ("orders", "destination")):
        yield (
            "insert into queue_observations (route, run_id, queue, role, observed_at, visible, in_flight, delayed,"
            " oldest_age_seconds, oldest_age_method, oldest_visible_age_method, exact, system) select 'orders',"
            f" 'run-' || number, '{queue}', '{role}', at, 900, 0, 0, 7200, 'broker', 'unknown', not {no},"
            " 'memory:bench' from hours order by number"
        )


def _write_files(staging: Path, runs: int, size: int) -> None:
    """The staging files of that, each with what the audit asks of it."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    (staging / "old").mkdir(parents=True)
    copies = size + size // 20
    made = {
        "row": pa.array(range(copies), pa.int32()),
        "body_hash": pa.array([b"\0" * 16] * copies, pa.binary()),
    }
    for number in range(1, runs + 1):
        made["batch_id"] = pa.array([number] * copies, pa.int64())
        columns = [made.get(field.name, pa.nulls(copies, field.type)) for field in file_schemas.STAGED]
        pq.write_table(pa.table(columns, schema=file_schemas.STAGED), staging / "old" / f"{number}.parquet")
