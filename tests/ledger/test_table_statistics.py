"""What the database knows of its tables when the next statement is planned."""

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
