"""SIGKILL at every point of retention: what a killed one leaves is known, adds up, and is removed by the next."""

import signal
from pathlib import Path
from typing import Any

import pytest

from redrive.stages import pipeline
from tests.faults.crash import Points, ServedBroker, run_child
from tests.workshop import REFUSED, Template, Workshop

BATCHES = 2
ROUTE: dict[str, Any] = {"drain": {"wait": "0s", "flush_messages": 1}}


def a_shop_with_old_batches(folder: Path) -> Workshop:
    """Everything in it is presumed and past the route's retention."""
    shop = Workshop(folder, **ROUTE)
    shop.die(*[f"m{number}" for number in range(BATCHES)], error=REFUSED)
    shop.cycle()
    shop.consume()
    shop.advance(seconds=1)
    shop.cycle()
    shop.advance(hours=1)
    shop.cycle()
    assert shop.states() == {"presumed": BATCHES}
    shop.advance(days=31)
    return shop


def files(shop: Workshop) -> set[str]:
    staging = Path(shop.settings.staging)
    return {str(path.relative_to(staging)) for path in staging.rglob("*.parquet")}


@pytest.mark.slow
def test_a_killed_retention_leaves_no_file_that_nobody_knows_of(tmp_path: Path) -> None:
    template = Template(a_shop_with_old_batches(tmp_path / "template"), **ROUTE)
    fatal = 0
    while True:
        shop = template.start(tmp_path / str(fatal))

        def forget(_broker: ServedBroker, points: Points, shop: Workshop = shop) -> dict[str, Any]:
            points.stage = "retention"
            return pipeline.retention(shop.settings, shop.now())

        death = run_child(shop.world, forget, fatal=fatal)
        assert not death.error, death.error
        named = {row[0] for row in shop.query("select uri from staging_batches where removed_at is null")}
        assert files(shop) <= named, f"killed at {death.last}"
        if fatal % 2:  # a run comes first
            shop.advance(minutes=10)
            shop.cycle()
            kept = {row[0] for row in shop.query("select uri from staging_batches where state = 'settled'")}
            assert files(shop) == kept, f"killed at {death.last}"
        pipeline.retention(shop.settings, shop.now())
        assert (files(shop), shop.query("select * from staging_batches")) == (set(), []), f"killed at {death.last}"
        assert shop.states() == {}
        assert shop.audit() == []
        shop.ledger.close()
        if not death.signal:
            break
        assert death.signal == signal.SIGKILL
        fatal += 1
    assert fatal >= 4 * BATCHES, "each batch has a commit and a removal"
