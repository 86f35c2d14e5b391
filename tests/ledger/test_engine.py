"""The ledger's database in trouble: a clear error of ours, and no value of a row in any text that may be logged."""

import itertools
import random
import string
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from redrive.errors import LedgerRefused, LedgerUnavailable
from redrive.ledger.engine import Ledger, instant_text, sql
from redrive.ledger.tables import escalated_messages, redelivery_attempts
from tests.ledger.planting import NOW

SECRET = "Kim's card is 4111"
COLUMNS = (
    "message_id", "route", "reason", "size_bytes", "source", "attempts", "escalated_at", "status", "corrected_body",
)  # fmt: skip


def a_review(ledger: Ledger, status: str = "open") -> tuple[Any, ...]:
    at = instant_text(NOW) if ledger.dialect.name == "sqlite" else NOW
    return (1, "orders", "x", 1, "orders-dlq", 0, at, status, SECRET)


def break_it(ledger: Ledger, connection: Connection) -> None:
    """The database goes away, or its disk gets full, within a transaction."""
    if ledger.dialect.name == "sqlite":
        pages = connection.exec_driver_sql("pragma page_count").scalar_one()
        connection.exec_driver_sql(f"pragma max_page_count = {pages}")
        return
    pid = connection.exec_driver_sql("select pg_backend_pid()").scalar_one()
    other = Ledger(ledger.url.render_as_string(hide_password=False))
    with other.write() as killing:
        killing.execute(sql("select pg_terminate_backend(:pid, 60000)"), {"pid": pid})
    other.close()


def bulk(ledger: Ledger, connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
    ledger.dialect.bulk(connection, "escalated_messages", COLUMNS, rows)


def many(ledger: Ledger, connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
    statement = f"insert into escalated_messages ({', '.join(COLUMNS)}) values ({', '.join('?' * len(COLUMNS))})"
    ledger.dialect.many(connection, statement, list(rows))


def tuples(ledger: Ledger, connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
    statement = f"insert into escalated_messages ({', '.join(COLUMNS)}) values ({', '.join('?' * len(COLUMNS))})"
    for row in rows:
        ledger.dialect.tuples(connection, f"{statement} returning message_id", row)


def update_each(ledger: Ledger, connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
    given = list(rows)
    bulk(ledger, connection, [(*row[:7], "open", None) for row in given])
    keys = connection.exec_driver_sql("select escalation_id from escalated_messages order by 1").scalars()
    each = [(*row[7:], key) for row, key in zip(given, keys, strict=True)]
    ledger.dialect.update_each(connection, escalated_messages, ("status", "note"), each)


def in_trouble(ledger: Ledger, way: Callable[..., None]) -> None:
    with ledger.write() as connection:
        break_it(ledger, connection)
        way(ledger, connection, itertools.repeat(a_review(ledger), 5_000))


def refused(ledger: Ledger, way: Callable[..., None]) -> None:
    with ledger.write() as connection:
        way(ledger, connection, [a_review(ledger, status="bad")])


@pytest.mark.parametrize("way", [bulk, many, tuples])
def test_a_database_that_goes_away_is_said_to_be_away_and_is_used_again(
    ledger: Ledger, way: Callable[..., None]
) -> None:
    with pytest.raises(LedgerUnavailable):
        in_trouble(ledger, way)
    with ledger.write() as connection:
        if ledger.dialect.name == "sqlite":
            connection.exec_driver_sql("pragma max_page_count = 1000000")
        way(ledger, connection, [a_review(ledger)])
    with ledger.read() as connection:
        assert connection.exec_driver_sql("select count(*) from escalated_messages").scalar() == 1


def statement(ledger: Ledger, connection: Connection, rows: Iterable[Sequence[Any]]) -> None:
    connection.execute(
        sql(
            "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at,"
            " status, corrected_body) values (1, 'orders', 'x', 1, 's', 0, :now, 'bad', :body)"
        ),
        {"now": NOW, "body": SECRET},
    )


@pytest.mark.parametrize("way", [statement, bulk, many, tuples, update_each])
def test_no_value_is_in_what_the_database_refuses(ledger: Ledger, way: Callable[..., None]) -> None:
    with pytest.raises(IntegrityError, match="status") as caught:
        refused(ledger, way)
    said = "".join(traceback.format_exception(caught.value))
    assert "4111" not in said
    assert "[SQL: " in said, "which statement it was is no secret"


def test_a_value_that_is_too_large_for_an_index_is_no_outage(ledger: Ledger) -> None:
    big = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=6_000))  # no compression helps
    if ledger.dialect.name == "sqlite":  # whose indexes take what a row takes
        _a_run(ledger, big)
        return
    with pytest.raises(LedgerRefused, match=r"for table runs was refused: index row size .* exceeds .*runs"):
        _a_run(ledger, big)


def test_a_text_that_is_none_is_no_outage(ledger: Ledger) -> None:
    text = "\ud800" if ledger.dialect.name == "sqlite" else "a\0b"
    with pytest.raises(LedgerRefused, match="for table runs was refused"), ledger.write() as connection:
        ledger.dialect.bulk(connection, "runs", ("run_id",), [(text,)])


def test_a_number_that_no_column_holds_is_no_outage(ledger: Ledger) -> None:
    with pytest.raises(LedgerRefused, match="for table runs was refused"), ledger.write() as connection:
        ledger.dialect.many(connection, "update runs set fence = ?", [(1 << 80,)])
    with pytest.raises(LedgerRefused, match="for table redelivery_attempts was refused"), ledger.write() as connection:
        ledger.dialect.update_each(connection, redelivery_attempts, ("slice_id",), [(1 << 80, 1, 1)])


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 1, 10, None, 1, True), (1, 2, 20, b"\0\xff", None, False), (2, 1, None, b"", 1, True)],
        [(1, 1, 10, None, 1, True), (2, 1, 20, None, 1, True)],
        [(1, 1, None, b"\xff", 0, False), (2, 1, None, b"\xff", 0, False)],
        [(2, 2, 10, None, 1, True)],
    ],
    ids=["each different", "some the same in all", "all the same", "one row"],
)
def test_each_row_gets_its_own_values_and_no_other_row_any(
    ledger: Ledger, rows: list[tuple[int, int, int | None, bytes | None, int | None, bool]]
) -> None:
    columns = ("message_id", "attempt", "route", "slice_id", "mode", "destination", "claimed_at")
    at, later = (ledger.dialect.stored(when) for when in (NOW, NOW + timedelta(microseconds=1)))
    given = [(*row[:4], {0: at, 1: later, None: None}[row[4]], row[5]) for row in rows]
    with ledger.write() as connection:
        ledger.dialect.bulk(
            connection, "redelivery_attempts", columns,
            [(message, attempt, "orders", 7, "requeue", "q", at) for message in (1, 2, 3) for attempt in (1, 2)],
        )  # fmt: skip
        ledger.dialect.update_each(
            connection,
            redelivery_attempts,
            ("group_id", "body_hash", "sent_at", "tracked"),
            [(*row[2:], *row[:2]) for row in given],
        )
        ledger.dialect.update_each(connection, redelivery_attempts, ("group_id",), [(40, 4, 1), (50, 5, 1)])
        ledger.dialect.update_each(connection, redelivery_attempts, ("outcome",), [])
        found = connection.execute(
            sql(
                "select message_id, attempt, group_id, body_hash, sent_at, tracked from redelivery_attempts"
                " order by 1, 2"
            )
        ).all()
    all_keys = [(message, attempt) for message in (1, 2, 3) for attempt in (1, 2)]
    untouched = [(*key, None, None, None, True) for key in all_keys if key not in {row[:2] for row in given}]
    assert [tuple(row) for row in found] == sorted([*given, *untouched], key=lambda row: row[:2])


def _a_run(ledger: Ledger, run_id: str) -> None:
    with ledger.write() as connection:
        connection.execute(
            sql(
                "insert into runs (run_id, route, trigger, holder, fence, status, started_at)"
                " values (:run_id, 'orders', 'test', 'test', 1, 'running', :now)"
            ),
            {"run_id": run_id, "now": NOW},
        )


@pytest.mark.server
def test_postgresql_neither_compiles_nor_parts_a_statement_that_looks_expensive(postgres_database: str) -> None:
    ledger = Ledger(postgres_database)
    with ledger.read() as connection:
        told = {
            name: connection.exec_driver_sql(f"show {name}").scalar_one()
            for name in ("jit", "max_parallel_workers_per_gather")
        }
    ledger.close()
    assert told == {"jit": "off", "max_parallel_workers_per_gather": "0"}


def test_many_who_open_a_new_file_at_once_are_all_let_in(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def open_it(path: Path, together: threading.Barrier) -> None:
        ledger = Ledger(f"sqlite:///{path}")
        try:
            together.wait()
            ledger.make()
            with ledger.write() as connection:
                connection.exec_driver_sql("select 1")
        except BaseException as error:
            errors.append(error)
        finally:
            ledger.close()

    for number in range(100):  # one in seventy failed
        path, together = tmp_path / f"{number}.db", threading.Barrier(8)
        threads = [threading.Thread(target=open_it, args=(path, together)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.server
def test_a_connection_that_the_server_ended_while_it_was_idle_is_replaced(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, other = Ledger(postgres_database), Ledger(postgres_database)

    def ended() -> None:
        with other.write() as connection:
            connection.exec_driver_sql(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )

    def ask() -> int:
        with ledger.read() as connection:
            return int(connection.exec_driver_sql("select 1").scalar_one())

    assert ask() == 1
    ended()
    with pytest.raises(LedgerUnavailable):
        ask()  # it was used a moment ago, and is not asked
    assert ask() == 1
    monkeypatch.setattr("redrive.ledger.dialects.postgresql.IDLE", 0.0)
    ended()
    assert ask() == 1
    ledger.close()
    other.close()
