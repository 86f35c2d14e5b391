"""SIGKILL at every point at which rulings of people are carried out: each is done once, now or by whoever is next."""

import signal
from pathlib import Path
from typing import Any

import pytest

from redrive.stages import pipeline
from tests.faults.crash import Points, ServedBroker, run_child, telling
from tests.ledger.test_escalations import person, rows
from tests.workshop import KEY_ERROR, Template, Workshop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OTHER = "ZeroDivisionError: division by zero"
ROUTE: dict[str, Any] = {"canary": {"first": 1, "observe": "1m"}}


def a_shop_with_rulings(folder: Path) -> Workshop:
    """Two groups that people say are one, a third that they split off, and a decision about all of them."""
    shop = Workshop(folder, **ROUTE)
    shop.die("k0", "k1", error=KEY_ERROR)
    shop.die("z0", "z1", error=OTHER)
    shop.cycle()
    shop.advance(minutes=1)
    person(
        shop,
        "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note)"
        " values ('merge', 2, 1, 'ana', 'one fix')",
    )
    person(
        shop,
        "insert into group_rulings (ruling, group_id, words, decided_by, note)"
        " values ('split', 1, 'by zero', 'ana', 'two')",
    )
    return shop


def work(broker: ServedBroker, points: Points, shop: Workshop) -> None:
    shop.broker = broker  # type: ignore[assignment]
    run = shop.begin(even_if_paused=True)
    points.stage = "review"
    pipeline.review(shop.settings, run, clock=shop.now)
    points.stage = "finish"
    pipeline.finish(shop.settings, run, "succeeded", shop.now)


def test_a_kill_at_any_point_carries_each_ruling_out_once(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    template = Template(a_shop_with_rulings(tmp_path / "template"), **ROUTE)
    whole = template.start(tmp_path / "whole")
    points = run_child(whole.world, lambda broker, points: work(broker, points, whole)).points
    whole.ledger.close()
    assert len(telling(points)) > 3
    for fatal in [*telling(points), len(points)]:
        shop = template.start(tmp_path / str(fatal))
        death = run_child(shop.world, lambda broker, points, shop=shop: work(broker, points, shop), fatal=fatal)
        assert not death.error, death.error
        shop.advance(minutes=10)
        shop.die("z2", error=OTHER)
        shop.cycle()
        at = f"killed at {death.last}"
        assert sorted(rows(shop, "payload, group_id")) == [
            ("k0", 1), ("k1", 1), ("z0", 1), ("z1", 1), ("z2", 3)
        ], at  # fmt: skip
        assert shop.query("select group_id, merged_into, ruling_id from group_aliases") == [(2, 1, 1)], at
        assert shop.query("select ruling_id, other_group_id, refusal from group_rulings order by 1") == [
            (1, 1, None), (2, 3, None)
        ], at  # fmt: skip
        told = shop.query(
            "select action, count(*) from audit_events where action in ('merge_groups', 'split_groups')"
            " group by action order by action"
        )
        assert told == [("merge_groups", 1), ("split_groups", 1)], at
        person(shop, "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where group_id = 1")
        shop.review()
        shop.cycle()
        assert len(shop.bodies("orders")) == 1, f"{at}: four messages, one canary"
        assert shop.audit() == []
        shop.ledger.close()
        assert death.signal == (signal.SIGKILL if fatal < len(points) else 0), at
