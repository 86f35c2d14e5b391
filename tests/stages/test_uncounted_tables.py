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
from redrive.ledger.drain import copy_roles
from redrive.ledger.engine import sql
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
