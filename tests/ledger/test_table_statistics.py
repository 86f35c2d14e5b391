"""What the database knows of its tables when the next statement is planned, and what it leaves lying in them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.ledger import table_statistics
from tests.ledger.test_escalations import escalate_two
from tests.workshop import Workshop

pytestmark = pytest.mark.server


@pytest.fixture
def workshop(tmp_path: Path, postgres_database: str) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, postgres_database)
    yield workshop
    workshop.ledger.close()


@pytest.mark.parametrize(("many", "known"), [(3, False), (2, True)])
def test_many_questions_at_once_are_known_to_the_planner_of_pages(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, many: int, known: bool
) -> None:
    monkeypatch.setattr(table_statistics, "MANY", many)
    escalate_two(workshop)
    looked = {table for (table,) in workshop.query("select relname from pg_class where reltuples = 2")}
    assert ({"messages", "escalated_messages"} <= looked) == known


@pytest.mark.parametrize(("many", "known"), [(5, "classified"), (4, "waiting")])
def test_that_much_waits_is_known_when_it_is_claimed(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, many: int, known: str
) -> None:
    monkeypatch.setattr(table_statistics, "MANY", many)
    workshop.die("a", "b", "c", "d")
    for stage, _ in workshop.stages(workshop.begin()):
        if stage == "load":
            with workshop.ledger.write() as connection:
                connection.exec_driver_sql("analyze messages")  # as the database does by itself
        if stage == "plan":
            break
    assert workshop.states() == {"waiting": 4}
    counted = "select most_common_vals::text from pg_stats where tablename = 'messages' and attname = 'state'"
    assert workshop.query(counted) == [(f"{{{known}}}",)]


#: Attempts of one slice.
SENT = 2_000


def test_versions_of_attempts_that_are_gone_are_not_read_again_and_again(workshop: Workshop) -> None:
    """A large table's PostgreSQL leaves in its indexes, a year's for days."""
    workshop.change(
        "insert into redelivery_attempts (message_id, attempt, route, slice_id, mode, destination, claimed_at)"
        f" select n, 1, 'orders', 1, 'requeue', 'orders', '2025-10-01' from generate_series(1, {SENT}) n"
    )
    for column in ("sent_at", "due_at", "unknown_at"):
        workshop.change(f"update redelivery_attempts set {column} = '2025-10-01'")
    with workshop.ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("vacuum (index_cleanup off) redelivery_attempts")
    first, second = (_read(workshop) for _ in range(2))
    assert second < SENT / 10 < first, (first, second)


def _read(workshop: Workshop) -> int:
    """How many pages are read to count what is awaited of the slice."""
    with workshop.ledger.read() as connection:
        connection.exec_driver_sql("set local enable_seqscan = off")
        connection.exec_driver_sql("set local enable_bitmapscan = off")
        told = connection.exec_driver_sql(
            "explain (analyze, buffers, format json) select count(*) from redelivery_attempts"
            " where slice_id = 1 and outcome is null"
        ).scalar_one()
    (plan,) = told if isinstance(told, list) else json.loads(told)
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])
