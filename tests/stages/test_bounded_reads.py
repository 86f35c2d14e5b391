"""No stage reads every message that there ever was: a year of finished ones slows nothing that comes today."""

import re
from pathlib import Path

from tests import query_plans
from tests.workshop import KEY_ERROR, Workshop

#: All of a table, or all of a route.
_ALL = re.compile(
    r"SCAN (messages|redelivery_attempts|escalated_messages|repeat_copies)\b|SEARCH \w+ USING .*"
    r"(ix_messages_route_state|COVERING INDEX ix_escalated_messages_review) \(route=\?\)$"
)

#: All slices or all batches of a route: thousands after a year.
_OVER = re.compile(
    r"SCAN (\w*slices|\w*batches)\b|SEARCH \w+ USING .*(ix_staging_batches_route_state \(route=\?\)"
    r"|ix_delivery_slices_route_closed_at \(route=\?( AND closed_at>\?)?\))$"
)
#: What looks at all of them, and is asked once in a run.
_ONCE = re.compile(r"update delivery_slices set system|as settled\s+from staging_batches")


def test_a_run_does_not_go_through_all_messages(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.die("a", "b", "c")
    shop.die("d", error=KEY_ERROR)
    with query_plans.told() as steps:
        for _ in range(3):
            shop.cycle()
            shop.consume()
            shop.advance(minutes=30)
        shop.review()
    assert len({step.statement for step in steps}) > 100
    assert not [step for step in steps if _ALL.search(step.text)]
    assert not [step for step in steps if _OVER.search(step.text) and not _ONCE.search(step.statement)]
