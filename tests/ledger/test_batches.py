"""Staging batches: ids that are given once, whatever becomes of the counter."""

import pytest
from sqlalchemy.exc import IntegrityError

from redrive.ledger.drain import batches
from tests.ledger.planting import Plant


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
