"""What runs began with: kept once, for as long as a run may ask for it."""

import threading
from datetime import timedelta

from redrive.ledger import configurations, leases
from redrive.ledger.engine import Ledger, parse_instant, sql
from tests.ledger.planting import MINUTE, NOW

DAY = timedelta(days=1)


def begin(ledger: Ledger, run_id: str, name: str, at: timedelta = timedelta(0), route: str = "orders") -> None:
    leases.acquire(
        ledger,
        route,
        run_id,
        holder="h",
        trigger="t",
        ttl=MINUTE,
        now=NOW + at,
        configuration=(name, f"text of {name}"),
    )


def kept(ledger: Ledger) -> list[str]:
    with ledger.read() as connection:
        return [row.hash for row in connection.execute(sql("select hash from configurations order by hash"))]


def test_a_text_is_kept_once_with_its_first_and_its_last_use(ledger: Ledger) -> None:
    begin(ledger, "one", "a")
    begin(ledger, "two", "a", DAY)
    begin(ledger, "three", "a", DAY, route="billing")
    with ledger.read() as connection:
        [row] = connection.execute(sql("select * from configurations"))
        assert (parse_instant(row.first_used_at), parse_instant(row.last_used_at)) == (NOW, NOW + DAY)
        assert configurations.text_of(connection, "a") == "text of a"
        assert configurations.text_of(connection, "b") is None
        assert configurations.before(connection, "orders") == "a"
        assert configurations.before(connection, "refunds") is None


def test_what_runs_began_with_lately_or_still_run_with_is_not_forgotten(ledger: Ledger) -> None:
    begin(ledger, "one", "old")
    begin(ledger, "two", "new", DAY)
    begin(ledger, "long", "of a long run", route="billing")
    assert configurations.forget(ledger, before=NOW + DAY) == 1, "the first run was replaced"
    assert kept(ledger) == ["new", "of a long run"]


def test_a_run_that_begins_with_what_is_being_forgotten_finds_it(ledger: Ledger) -> None:
    """Whichever comes first: a text that goes is written again, and one that is written again doesn't go."""
    begin(ledger, "one", "a")
    begin(ledger, "two", "b", DAY)
    gone: list[int] = []
    forgetting = threading.Thread(
        target=lambda: gone.append(configurations.forget(ledger, before=NOW + DAY)), daemon=True
    )
    with ledger.write() as connection:
        configurations.keep(connection, "a", "text of a", NOW + 2 * DAY)
        forgetting.start()
        forgetting.join(0.2)  # it waits for us, or hasn't begun: both are right
        assert not gone
    forgetting.join(300)
    assert gone == [0]
    assert kept(ledger) == ["a", "b"]
