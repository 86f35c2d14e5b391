"""The newest batches and slices of some routes: whether they are near or far back, and no more than is asked for."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from redrive.ledger.engine import Ledger, sql
from redrive.ledger.tables import staging_batches
from redrive_ui import message_queries, recent
from tests import blank, query_plans
from tests.probe import numbers
from tests.ui import seeding

#: Of a hundred batches of ten messages the first thirty are of a quiet route, of the others every third.
_BATCHES = (
    f"{numbers(100)} insert into staging_batches (batch_id, route, source, kind, shard, run_id, fence, state, uri,"
    " copies, new_copies, opened_at, loaded_at) select n, case when n <= 30 then 'quiet' when n % 3 = 0 then 'billing'"
    " else 'orders' end, 'dlq', 'dead_letter', 0, 'run', 1, 'settled', 'of ' || n, 10, 10,"
    " '2026-11-01 00:00:00.000000', '2026-11-01 00:00:00.000000' from n"
)


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "NEAR", 40)


@contextmanager
def _filled(url: str) -> Iterator[Ledger]:
    with closing(Ledger(url)) as ledger:
        blank.upgrade(ledger, seeding.NOW)
        with ledger.by("tests", seeding.NOW) as tx:
            tx.connection.execute(sql(_BATCHES))
        yield ledger


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with _filled(ledger_url) as ledger:
        yield ledger


def _newest(ledger: Ledger, routes: set[str], limit: int, last: int | None = None) -> list[int]:
    with ledger.read() as connection:
        rows = recent.newest(connection, staging_batches, "new_copies", routes, limit, last=last)
        return [row.batch_id for row in rows]


@pytest.mark.parametrize(
    ("routes", "limit", "last", "found"),
    [
        pytest.param({"orders"}, 3, None, [100, 98, 97], id="near"),
        pytest.param({"quiet"}, 3, None, [30, 29, 28], id="far back alone"),
        pytest.param({"billing", "quiet"}, 100, None, [*range(99, 30, -3), *range(30, 0, -1)], id="near and far back"),
        pytest.param({"billing"}, 15, None, list(range(99, 54, -3)), id="some far back"),
        pytest.param({"orders", "quiet"}, 2, 31, [31, 30], id="up to one"),
        pytest.param({"orders"}, 2, 20, [], id="none before it"),
        pytest.param(set(), 2, None, [], id="no route may be read"),
    ],
)
def test_the_newest_of_some_routes(
    ledger: Ledger, routes: set[str], limit: int, last: int | None, found: list[int]
) -> None:
    assert _newest(ledger, routes, limit, last) == found


@pytest.mark.parametrize(("routes", "floor"), [({"orders"}, 94), ({"quiet"}, 26), ({"billing", "quiet"}, 87)])
def test_the_newest_messages_begin_with_a_whole_batch(ledger: Ledger, routes: set[str], floor: int) -> None:
    with ledger.read() as connection:
        first, since = message_queries.floor_of(connection, routes, 45)
    assert first == floor << 20
    assert since is not None


def test_what_is_near_is_not_sorted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/redrive.db"
    with _filled(url) as ledger, query_plans.told() as steps, ledger.read() as connection:
        rows = recent.newest(connection, staging_batches, "new_copies", {"orders"}, 3)
        assert next(rows).batch_id == 100
        del rows
    near = [step for step in steps if "order by batch_id desc" in step.statement]
    assert len({step.statement for step in near}) == 1, "nothing further back was asked for"
    assert not [step for step in near if "B-TREE" in step.text]
