"""PostgreSQL plans a statement by what it counted, and what many messages do at once it has not counted: statements
that rest on it go through all messages for each of them, which is nothing for ten and takes an hour for a hundred
thousand."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from redrive.ledger import table_statistics
from redrive.ledger.account import balance
from redrive.ledger.drain import copy_roles
from redrive.ledger.engine import sql
from redrive.ledger.review import escalations
from redrive.ledger.transactions import RunTransaction
from tests.workshop import KEY_ERROR, Workshop

pytestmark = pytest.mark.server

MANY = 4_000
STRANGE = "the flux capacitor said hm"  # nothing is known of it: a canary first


@pytest.fixture
def workshop(tmp_path: Path, postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """Whose database counts nothing, and gives up on a statement after three seconds."""
    monkeypatch.setattr(table_statistics, "MANY", 10 * MANY)
    # Two are let through; then one of two coming back is too many.
    workshop = Workshop(
        tmp_path,
        postgres_database,
        canary={"first": 2, "grow": 2, "pass": 0.95},
    )
    with workshop.ledger.write() as connection:
        for table in ("messages", "escalated_messages", "redelivery_attempts", "delivery_slices"):
            connection.exec_driver_sql(f"alter table {table} set (autovacuum_enabled = false)")
        name = postgres_database.rpartition("/")[2]
        connection.exec_driver_sql(f"alter database {name} set statement_timeout = '3s'")  # of connections from now on
    yield workshop
    workshop.ledger.close()


@contextmanager
def explained(beginning: str) -> Iterator[list[str]]:
    """How PostgreSQL is about to run each statement that begins so."""
    plans: list[str] = []

    def look(_connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith(beginning):
            with cursor.connection.cursor() as another:
                plans.append("\n".join(row[0] for row in another.execute(f"explain {statement}", values)))

    event.listen(Engine, "before_cursor_execute", look)
    try:
        yield plans
    finally:
        event.remove(Engine, "before_cursor_execute", look)


def test_a_canary_is_chosen_from_many_that_are_held(workshop: Workshop) -> None:
    workshop.die(*(f"{number}" for number in range(2 * MANY)), error=STRANGE)
    report = workshop.cycle()
    assert (report["redelivered"], report["held"]) == (2, 2 * MANY - 2)


def test_many_are_asked_about_again_when_their_canary_fails(workshop: Workshop) -> None:
    workshop.die(*(f"{number}" for number in range(MANY)), error=KEY_ERROR)
    workshop.cycle()
    with workshop.ledger.write() as connection:
        connection.execute(sql("update escalated_messages set decision = 'redeliver', decided_by = 'ann'"))
    assert workshop.review()["released"] == MANY
    assert workshop.cycle()["redelivered"] == 2
    workshop.consume(lambda _: KEY_ERROR)
    workshop.advance(minutes=1)
    with explained("update escalated_messages set status") as plans:
        workshop.cycle()
    assert plans
    assert not [plan for plan in plans if "Nested Loop" in plan]  # how long it takes depends on the machine
    assert workshop.query("select status, count(*) from escalated_messages group by status order by status") == [
        ("applied", 2),
        ("open", 2),
        ("reopened", MANY - 2),
    ]


def test_what_is_loaded_was_counted_before_it_is_compared(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody but the transaction itself ever counts its temporary tables."""
    counted: list[float] = []
    plainly = copy_roles.find_duplicates

    def looking(tx: RunTransaction) -> None:
        rows = sql("select reltuples from pg_class where oid = to_regclass('incoming')")
        counted.append(tx.execute(rows).scalar_one())
        plainly(tx)

    monkeypatch.setattr(copy_roles, "find_duplicates", looking)
    workshop.die("a", "b", "c", error=KEY_ERROR)
    workshop.cycle()
    assert counted == [3.0]


def test_whom_nobody_asks_about_is_looked_for_by_message_not_among_all_that_is_open(workshop: Workshop) -> None:
    many = 20_000
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql(
            "insert into messages (message_id, redrive_id, route, source, kind, broker_message_id, body_hash,"
            " body_bytes, copy_id, state, changed_at) select n, n, 'orders', 'orders-dlq', 'dead_letter', n, '', 9, n,"
            f" case when mod(n, 9) = 0 then 'confirmed' else 'escalated' end, '2026-01-01'"
            f" from generate_series(1, {many}) n"
        )
        connection.exec_driver_sql(
            "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at)"
            " select message_id, route, 'x', 9, source, 0, '2026-01-01' from messages where state = 'escalated'"
            " and message_id > 9"
        )
        connection.exec_driver_sql("analyze messages")
    with explained("select count(*) from messages") as counts, workshop.ledger.read() as connection:
        assert escalations.nobody_asked(connection, "orders") == 8
        assert [one for one in balance.problems(connection) if "8 escalated messages without" in one]
    assert len(counts) > 2
    with explained("select message_id") as pages, workshop.ledger.read() as connection:
        for after, found in ((-1, [1, 2, 3]), (6, [7, 8])):
            page = escalations.unasked(connection, "orders", after=after, limit=3, max_bytes=1_000)
            assert [one.message_id for one in page] == found
    asked = [plan for plan in counts + pages if "escalated_messages" in plan]
    assert len(asked) >= 4
    for plan in asked:  # how long it takes depends on the machine
        assert "ix_escalated_messages_status" not in plan
        assert "Materialize" not in plan
        assert "Join" not in plan
        assert "ix_escalated_messages_message_id" in plan
    # State by state in the order of their ids: neither is all that waits sorted, nor what is finished gone through.
    assert [plan.count("ix_messages_route_state") for plan in pages] == [2, 2]
    assert "Sort Key: messages_" not in "".join(pages)
