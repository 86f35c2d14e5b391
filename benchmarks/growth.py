"""What a year of finished messages costs those that come today: each stage, page and ``status``, before and after.

``python -m benchmarks.growth [--messages 500000] [--database sqlite|postgresql]`` fills a ledger with as many finished
messages from hourly runs (5,000,000 are a year's), by SQL in sets, and does a day's work on it: two runs of 20,000 new
messages, every page, ``status``, then audit and retention. The same is done on a ledger of the last two weeks alone,
of which pages tell trends. A ratio is computing time
after to before; of PostgreSQL that of the server is counted too. The goal is 1.3; audit and retention, which look at
everything, are told in seconds and peak memory.
"""

import argparse
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import throughput
from benchmarks.processes import in_a_process
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger import moves, schema
from redrive.ledger.account import inspecting
from redrive.ledger.engine import Ledger, sql
from redrive.settings import Settings
from redrive.stages import pipeline
from redrive.stages.context import utc_now
from redrive.staging import file_schemas

GOAL = 1.3
#: A run of each hour of a year, together five million messages; and those of two weeks.
OF_A_RUN = 570
TWO_WEEKS = 14 * 24 * OF_A_RUN
#: New messages of one run.
NEW = 20_000
GROUPS = 300
#: Below so many seconds of computing a ratio says nothing of the ledger.
NOISE = 0.01


def main(arguments: list[str] | None = None) -> int:
    """Measure both ledgers and print a table; 1 when a ratio is above the goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=(__doc__ or "").replace("``", ""))
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--folder", help="where the ledgers are made, and removed again")
    parser.add_argument("--json", help="a file for the figures")
    for hidden in ("--child", "--whole", "--url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.whole:
        began = time.process_time()
        _WHOLE[asked.whole](throughput._settings(Path(asked.child), asked.url))
        print(json.dumps([time.process_time() - began, _peak()]))
        return 0
    if asked.child:
        print(json.dumps(_child(Path(asked.child), asked.messages, asked.database)))
        return 0
    found = [_measured(asked, messages) for messages in (TWO_WEEKS, asked.messages)]
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))
    before, after = found
    table = Table("what", "two weeks, s", f"{asked.messages:,} messages, s", "ratio", box=box.SIMPLE_HEAD)
    worst = 0.0
    for name, seconds in after["seconds"].items():
        least = max(before["seconds"][name], NOISE)
        ratio = max(seconds, NOISE) / least
        worst = max(worst, ratio)
        table.add_row(name, f"{before['seconds'][name]:.3f}", f"{seconds:.3f}", f"{ratio:.2f}")
    Console().print(table)
    whole = Table("what", "messages", "seconds", "peak MiB", box=box.SIMPLE_HEAD)
    for one in found:
        for name, (seconds, peak) in one["whole"].items():
            whole.add_row(name, f"{one['messages']:,}", f"{seconds:.1f}", f"{peak:.0f}")
    Console().print(whole)
    return int(worst > GOAL)


def _measured(asked: argparse.Namespace, messages: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=asked.folder or os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        return in_a_process(  # type: ignore[no-any-return]
            *("-m", "benchmarks.growth", "--child", folder),
            *("--messages", str(messages), "--database", asked.database),
        )


# --- in the measured process --------------------------------------------------------------------------------


def _child(folder: Path, messages: int, database: str) -> dict[str, Any]:
    with _database(folder, database) as (url, server):
        settings = throughput._settings(folder, url)
        clock = _Clock(server)
        ledger = Ledger(settings.database)
        schema.upgrade(ledger, utc_now())
        started = time.perf_counter()
        _fill(ledger, folder, messages)
        print(f"{messages:,} messages filled in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        _work(settings, clock)
        _look(settings, ledger, clock)
        ledger.close()
        whole = {name: _whole(folder, url, name, server) for name in _WHOLE}
    return {"messages": messages, "seconds": clock.seconds, "whole": whole}


def _whole(folder: Path, url: str, name: str, server: int | None) -> tuple[float, float]:
    """Seconds and peak memory of what looks at everything, in a process of its own: this one is large by now."""
    before = _computed(server) if server else 0.0
    seconds, peak = in_a_process(*("-m", "benchmarks.growth", "--child", str(folder), "--whole", name, "--url", url))
    return seconds + ((_computed(server) if server else 0.0) - before), peak


@contextmanager
def _database(folder: Path, name: str) -> Iterator[tuple[str, int | None]]:
    """The ledger's URL, and the process of its server."""
    if name == "sqlite":
        yield f"sqlite:///{folder}/redrive.db", None
        return
    from tests.servers import Postgres  # noqa: PLC0415

    place = folder / "postgres"
    folder.chmod(0o755)
    place.mkdir()
    with Postgres(place) as server:
        yield server.create_database(), server.process.pid


class _Clock:
    """Seconds that this process computed, and the database's server with it, by what they were for."""

    def __init__(self, server: int | None) -> None:
        self.seconds: dict[str, float] = {}
        self._server = server

    def now(self) -> float:
        return time.process_time() + (_computed(self._server) if self._server else 0.0)

    def time(self, name: str, work: Callable[[], Any], *, times: int = 1) -> Any:
        """Do the work so often; the least of what it took counts."""
        took, done = [], None
        for _ in range(times):
            before = self.now()
            done = work()
            took.append(self.now() - before)
        self.seconds[name] = min(took)
        return done


def _computed(server: int) -> float:
    """Of a PostgreSQL server and all of its processes, those that are gone too."""
    ticks = sum(_stat(server)[:4])
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        try:
            ticks += sum(_stat(int(child))[:2])
        except FileNotFoundError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak() -> float:
    """MiB that this process had at most."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _stat(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]]


# --- what was there before ----------------------------------------------------------------------------------


def _fill(ledger: Ledger, folder: Path, messages: int) -> None:
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
    for attempt, among, outcome in (
        (1, f"{kind} < 12", "'presumed'"),
        (1, f"{kind} between 15 and 18", "'confirmed'"),
        (1, f"{kind} = 19", "'returned'"),
        (2, f"{kind} = 19", "'confirmed'"),
    ):
        yield (
            "insert into redelivery_attempts (message_id, attempt, route, group_id, slice_id, mode, destination,"
            " broker_message_id, claimed_at, sent_at, outcome, outcome_at, return_copy, return_kind, group_stage,"
            f" destination_stage) select {message}, {attempt}, 'orders', {group}, h.number, 'requeue', 'orders',"
            f" {hashed} || '-{attempt}', h.at, h.at, {outcome}, h.later,"
            + (f" {message} + {size}, 'dead_letter'," if outcome == "'returned'" else " null, null,")
            + f" ({group}) * {stages} + h.number / 100, 999 * {stages} + h.number / 100 {each} where {among}"
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
    for queue, role in (("orders-dlq", "source"), ("orders", "destination")):
        yield (
            "insert into queue_observations (route, run_id, queue, role, observed_at, visible, in_flight, delayed,"
            " oldest_age_seconds, oldest_age_method, oldest_visible_age_method, exact, system) select 'orders',"
            f" 'run-' || number, '{queue}', '{role}', at, 0, 0, 0, null, 'unknown', 'unknown', not {no},"
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


# --- what comes today ---------------------------------------------------------------------------------------


def _work(settings: Settings, clock: _Clock) -> None:
    """Two runs: what the first one sends the second one judges. One message in five goes to people."""
    world = MemoryWorld(patience=timedelta(0))
    world.create("orders-dlq", lease=timedelta(minutes=10))
    world.create("orders", sink=True)
    for number in (1, 2):
        throughput._letters(world, NEW, start=(number - 1) * NEW)
        _run(settings, MemoryBroker(world), clock, number)


def _run(settings: Settings, broker: MemoryBroker, clock: _Clock, number: int) -> None:
    def now() -> datetime:
        return utc_now() + timedelta(hours=number - 1)

    run = pipeline.begin(settings, "orders", trigger="bench", holder="bench", lease=timedelta(hours=2), clock=now)

    def stage(name: str) -> dict[str, Any]:
        work = getattr(pipeline, name)
        done: dict[str, Any] = clock.time(
            f"{name}, run {number}", lambda: work(settings, run, broker=broker, clock=now)
        )
        return done

    stage("observe")
    counts = stage("drain")
    assert counts["settled"] == NEW, counts
    throughput._classified(settings, broker, run, for_people=throughput.GROUPS // 5)
    counts = stage("load")
    assert counts["new"] == NEW, counts
    stage("resolve")
    stage("plan")
    counts = stage("deliver")
    assert counts["redelivered"] == NEW * 4 // 5, counts
    for name in ("escalate", "review", "report"):
        stage(name)
    pipeline.finish(settings, run, "succeeded", clock=now)


def _look(settings: Settings, ledger: Ledger, clock: _Clock) -> None:
    """``status`` and every page."""
    from fastapi.testclient import TestClient  # noqa: PLC0415
    from tests.ui.conftest import Doors  # noqa: PLC0415

    from redrive_ui.app import create_app  # noqa: PLC0415

    def status() -> None:
        with ledger.read() as connection:
            inspecting.status(connection, "orders", utc_now())
            inspecting.causes(connection, "orders")

    def left_to_do() -> None:
        with ledger.read() as connection:
            inspecting.to_do(connection, "orders", utc_now())

    clock.time("status", status, times=3)
    clock.time("what is left to do", left_to_do, times=3)
    client = TestClient(create_app(Doors(), load=lambda: settings), base_url="http://airflow.test")
    with ledger.read() as connection:
        message, group = connection.execute(
            sql("select message_id, group_id from escalated_messages order by escalation_id desc limit 1")
        ).one()
    for path in (
        *("/", "/routes/orders", "/plan/orders", "/groups", "/groups?tab=done", f"/groups/orders/{group}"),
        *("/messages", "/messages?status=all", "/messages?text=nothing", f"/messages/{message}"),
        *("/find", "/find?word=order-17", "/find?word=old-1048576", "/find?word=tenant-7", "/find?state=finished"),
        *("/find?word=nothing", "/decide?route=orders&action=discard", "/audit", "/audit?machine=1", "/standing"),
        f"/standing/new?route=orders&group={group}",
        "/results?decided_by=ana&decided_at=2026-01-01T00:00:00",
    ):
        answer = clock.time(
            path.replace(f"/{message}", "/N").replace(f"{group}", "N"), lambda at=path: client.get(at), times=3
        )
        assert answer.status_code in (200, 404), (path, answer.text)


def _audited(settings: Settings) -> None:
    problems = pipeline.audit(settings)["problems"]
    assert not problems, problems[:3]


#: What looks at everything.
_WHOLE: Mapping[str, Callable[[Settings], object]] = {"audit": _audited, "retention": pipeline.retention}


if __name__ == "__main__":
    sys.exit(main())
