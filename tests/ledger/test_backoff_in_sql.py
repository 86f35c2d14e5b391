"""The plan draws its jitter in SQL; it must be the number that Python computes."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.policy import backoff
from tests.ledger.planting import NOW, Plant

ids = st.one_of(st.integers(0, 2**40), st.integers(0, 2**62))
attempts = st.integers(0, 1_000_000)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(ids, attempts), min_size=1, max_size=50))
def test_sql_throws_the_same_dice(ledger: Ledger, throws: list[tuple[int, int]]) -> None:
    with ledger.read() as connection:
        for message_id, attempt in throws:
            expression = backoff.dice_sql(str(message_id), str(attempt))
            assert connection.execute(sql(f"select {expression}")).scalar_one() == backoff.dice(message_id, attempt)


@pytest.mark.parametrize("seconds", [0, 0.001, 59.9996, 60, 86400 * 400])
def test_later_is_later_by_so_much(ledger: Ledger, seconds: float) -> None:
    with ledger.read() as connection:
        found = connection.execute(
            sql(f"select {ledger.dialect.later(':now', str(seconds))}"), {"now": NOW}
        ).scalar_one()
    assert abs(parse_instant(found) - NOW - timedelta(seconds=seconds)) <= timedelta(milliseconds=1)  # type: ignore[operator]


def test_due_times_of_100_000_messages_are_spread_evenly_by_the_plan(plant: Plant) -> None:
    bucket = f"round(({backoff.dice_sql('n', '1')}) * 100 - 0.5)"
    rows = plant.rows(
        "with recursive ids(n) as (select 5 * 1048576 union all select n + 1 from ids where n < 5 * 1048576 + 99999)"
        f" select {bucket} as bucket, count(*) from ids group by {bucket}"
    )
    counts = [count for bucket, count in rows if bucket >= 0]
    assert sum(counts) >= 99_999  # a dice of exactly 0 rounds below
    assert len(counts) == 100
    assert max(counts) - min(counts) < 100
