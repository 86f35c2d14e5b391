"""Staging batches: ids that are given once, whatever becomes of the counter."""

import pytest
from alembic import command
from sqlalchemy.exc import IntegrityError

from redrive.ledger import schema
from redrive.ledger.drain import batches
from redrive.ledger.engine import Ledger, sql
from tests.ledger.planting import NOW, Plant


def open_batch(plant: Plant, beyond: int = 0, adopted_from: str | None = None) -> int:
    batch_id, _ = batches.open_batch(
        plant.ledger, plant.lease, source="orders-dlq", kind="dead_letter", shard=0, path_of=lambda *_: "p",
        now=plant.now, beyond=beyond, adopted_from=adopted_from,
    )  # fmt: skip
    return batch_id


def test_a_batch_id_is_greater_than_any_that_staging_knows_of(plant: Plant) -> None:
    assert open_batch(plant, beyond=7) == 8, "also the first of all"
    assert open_batch(plant, beyond=5) == 9
    assert open_batch(plant) == 10
    assert open_batch(plant, beyond=10) == 11
    assert open_batch(plant, beyond=5_000) == 5_001


def test_a_file_is_taken_in_by_one_batch_unless_that_is_abandoned(plant: Plant) -> None:
    first = open_batch(plant, adopted_from="a.parquet")
    with pytest.raises(IntegrityError, match="adopted_from"):
        open_batch(plant, adopted_from="a.parquet")
    assert batches.abandon_one(plant.ledger, first)
    open_batch(plant, adopted_from="a.parquet")


def test_an_upgrade_that_makes_the_table_anew_counts_on(ledger_url: str) -> None:
    """Also where retention has removed the newest batches, and no row tells any more which ids were given."""
    ledger = Ledger(ledger_url)
    config = schema._config()
    with ledger.write() as connection:
        if not ledger.is_sqlite:
            connection.exec_driver_sql("create schema redrive")
        config.attributes["connection"] = connection
        command.upgrade(config, "0014")
        for _ in range(3):
            connection.execute(
                sql(
                    "insert into staging_batches (route, source, kind, shard, run_id, fence, state, uri, opened_at)"
                    " values ('orders', 'q', 'delay', 0, 'r', 1, 'open', 'p', :now)"
                ),
                {"now": NOW},
            )
        connection.execute(sql("delete from staging_batches where batch_id > 1"))
    schema.upgrade(ledger, NOW)
    assert open_batch(Plant(ledger)) == 4
    ledger.close()
