"""No page reads every message that there ever was: what it asks of the ledger is found by an index, or is recent."""

import re
from collections.abc import Callable

import pytest

from tests import query_plans
from tests.ui import seeding
from tests.ui.conftest import Site

PAGES = (
    *("/", "/routes/orders", "/plan/orders", "/groups", "/groups?tab=done", "/groups/orders/1"),
    *("/messages", "/messages?status=all", "/messages?text=nothing", "/standing", "/audit", "/audit?machine=1"),
    "/results?decided_by=ana&decided_at=2026-01-01T00:00:00",
    *("/find", "/find?state=finished", "/find?state=confirmed", "/find?past=hour", "/find?route=orders&queue=orders"),
    *("/find?word=nothing", "/find?word=order-1", "/find?key=order-1", "/find?header=tenant%3Dblue", "/find?text=gone"),
)
#: All of a table, or all of a route.
_ALL = re.compile(r"SCAN (messages|redelivery_attempts)\b|SEARCH \w+ USING .*ix_messages_route_state \(route=\?\)$")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_does_not_go_through_all_messages(make_site: Callable[..., Site], path: str) -> None:
    site = make_site()
    seeding.seed(site.ledger, per_day=3)
    with query_plans.told() as steps:
        site.page(path)
    assert steps
    assert not [step for step in steps if _ALL.search(step.text)]
