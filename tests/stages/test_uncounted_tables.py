"""PostgreSQL plans a statement by what it counted, and what many messages do at once it has not counted: statements
that rest on it go through all messages for each of them, which is nothing for ten and an hour for a hundred thousand.

What does so takes more than ten seconds here, and what does not a fifth of one.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.ledger import table_statistics
from redrive.ledger.drain import copy_roles
from redrive.ledger.engine import sql
from redrive.ledger.transactions import RunTransaction
from redrive.stages import pipeline
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
    workshop.cycle()
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
    run = workshop.begin()
    for _ in workshop.stages(run):
        pass
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert counted == [3.0]
