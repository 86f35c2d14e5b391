"""No stage reads every message that there ever was: a year of finished ones slows nothing that comes today. Nor does
anything look at all that is open again and again."""

import re
from pathlib import Path

from redrive.ledger.account import inspecting
from redrive.ledger.delivery import breakers
from redrive.ledger.drain import keys
from redrive.ledger.review import applying, escalations
from tests import query_plans
from tests.probe import numbers
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
_ONCE = re.compile(r"update (delivery_slices|staging_batches) set system|as settled\s+from staging_batches")


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


def test_what_people_released_is_sent_without_a_look_at_what_else_was_ever_decided(tmp_path: Path) -> None:
    """Of each slice, and of each window of it, while decisions of years are kept."""
    shop = Workshop(tmp_path)
    shop.die("a", "b", "c", error=KEY_ERROR)
    shop.cycle()
    with query_plans.told() as steps:
        shop.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
        shop.review()
        assert shop.cycle()["redelivered"] == 3
        shop.consume(lambda _: KEY_ERROR)
        shop.advance(minutes=30)
        assert shop.cycle()["escalated"] == 3
    all_of_a_status = re.compile(r"SEARCH \w+ USING INDEX ix_escalated_messages_status_group_id \(status=\?\)$")
    found = {step.statement for step in steps if all_of_a_status.search(step.text)}
    assert not [one for one in found if "repeat_copies" not in one]  # asked once in a run, of what is not taken up


def test_a_page_of_what_nobody_is_asked_about_is_read_without_a_look_at_all_of_it(tmp_path: Path) -> None:
    """After a restore that may be all that waits: each page would sort all of it, or go through what is finished."""
    took = []
    for count in (2_000, 20_000):
        shop = Workshop(tmp_path / str(count))
        waits = "case when n % 3 then 'escalated' else 'restore_unknown' end"
        open_messages(shop, count, state=f"case when n <= {count // 2} then 'confirmed' else {waits} end", plan="null")
        with query_plans.counted() as work, shop.ledger.read() as connection:
            page = escalations.unasked(connection, "orders", after=-1, limit=200, max_bytes=2_000)
        assert [one.message_id for one in page] == list(range(count // 2 + 1, count // 2 + 201))
        took.append(work.hundreds)
    assert took[1] < 1.5 * took[0], took


def test_what_is_left_to_do_does_not_go_through_all_batches(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.die("a")
    shop.cycle()
    with query_plans.told() as steps, shop.ledger.read() as connection:
        inspecting.to_do(connection, "orders", shop.now())
    assert any("ix_staging_batches_to_load" in step.text for step in steps)
    assert not [step for step in steps if _OVER.search(step.text)]


def open_messages(
    shop: Workshop,
    count: int,
    *,
    state: str = "'waiting'",
    plan: str = "'requeue'",
    destination: str = "'orders'",
    group: str = "null",
) -> None:
    """So many messages of the route; the others are SQL, of the number ``n`` of each."""
    shop.change(
        "insert into messages (message_id, redrive_id, route, source, kind, broker_message_id, body_hash, body_bytes,"
        f" copy_id, state, plan, next_attempt_at, changed_at, destination, group_id) {numbers(count)} select n, n,"
        f" 'orders', 'orders-dlq', 'dead_letter', n, zeroblob(16), 9, n, {state}, {plan}, '2026-01-01',"
        f" '2025-10-01', {destination}, {group} from n"
    )


def test_status_does_not_look_at_all_that_waits_for_every_destination(tmp_path: Path) -> None:
    took = []
    for destinations in (4, 40):
        shop = Workshop(tmp_path / str(destinations))
        shop.change("insert into route_state (route) values ('orders') on conflict do nothing")
        shop.change(
            f"insert into breakers (route, destination, stage, stage_at, began_at) {numbers(destinations)}"
            " select 'orders', 'to-' || n, 'half_open', '2025-10-01', '2025-10-01' from n"
        )
        open_messages(shop, 2_000, destination=f"'to-' || (1 + n % {destinations})")
        with query_plans.counted() as work, shop.ledger.read() as connection:
            told = inspecting.status(connection, "orders", shop.now())
        assert sum(one["waiting"] for one in told["destinations"]) == 2_000
        took.append(work.hundreds)
    assert took[1] < 2 * took[0], took


def test_a_look_at_a_route_goes_through_what_its_gates_hold_once(tmp_path: Path) -> None:
    """With millions of them each time takes a second, and somebody waits for it."""
    shop = Workshop(tmp_path)
    shop.change("insert into route_state (route) values ('orders') on conflict do nothing")
    shop.change(
        "insert into failure_groups (group_id, fingerprint, cause, template, example, messages, first_seen_at,"
        f" last_seen_at, first_route) {numbers(5)} select n, n, 'transient_network', 'x', 'x', 1, '2025-10-01',"
        " '2025-10-01', 'orders' from n"
    )
    shop.change(
        f"insert into breakers (route, group_id, stage, allowed, stage_at, began_at) {numbers(5)}"
        " select 'orders', n, 'canary', 10, '2025-10-01', '2025-10-01' from n"
    )
    open_messages(shop, 4_000, state="case when n % 4 then 'held' else 'waiting' end", group="1 + n % 5")
    with query_plans.counted() as once, shop.ledger.read() as connection:
        assert sum(gate.held for gate in breakers.of_groups(connection, "orders")) == 3_000
    for look in (inspecting.status, inspecting.to_do):
        with query_plans.counted() as work, shop.ledger.read() as connection:
            look(connection, "orders", shop.now())
        assert work.hundreds < 1.6 * once.hundreds, (look.__name__, work.hundreds, once.hundreds)


def test_a_page_of_what_is_decided_is_read_without_a_look_at_all_of_it(tmp_path: Path) -> None:
    """What people released stays decided until it is sent: each page would go through hundreds of thousands."""
    took = []
    for count in (2_000, 20_000):
        shop = Workshop(tmp_path / str(count))
        open_messages(shop, count, state="'escalated'", plan="null")
        shop.change(
            "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at,"
            f" status, decision, decided_by, decided_at) {numbers(count)} select n, 'orders', 'x', 9, 'orders-dlq', 0,"
            " '2025-10-01', 'decided', 'redeliver', 'ana', '2025-10-01' from n"
        )
        with query_plans.counted() as work, shop.ledger.read() as connection:
            page = applying.decided(connection, "orders", approvals=1, after=count // 2, limit=200)
        assert [one.message_id for one in page] == list(range(count // 2 + 1, count // 2 + 201))
        took.append(work.hundreds)
    assert took[1] < 1.5 * took[0], took


def test_after_an_edit_of_keys_no_run_looks_at_all_that_is_not_finished(tmp_path: Path) -> None:
    """Batches whose messages were finished before keep the keys that they had, for as long as they are kept."""
    shop = Workshop(tmp_path)
    shop.die("a", "b", error=KEY_ERROR)
    shop.cycle()
    shop.change("update escalated_messages set decision = 'discard', decided_by = 'ana'")
    shop.cycle()
    now = keys.Selectors("attribute:order")
    with query_plans.counted() as few, shop.ledger.read() as connection:
        assert keys.to_renew(connection, "orders", now) == []
    open_messages(shop, 20_000)
    shop.change("update messages set message_id = message_id + (1 << 30) where state = 'waiting'")
    with query_plans.counted() as many, shop.ledger.read() as connection:
        assert keys.to_renew(connection, "orders", now) == []
    assert many.hundreds <= few.hundreds + 5
    shop.change("update messages set state = 'to_review' where state = 'discarded' and message_id & 1")
    with shop.ledger.read() as connection:
        assert [one.batch_id for one in keys.to_renew(connection, "orders", now)] == [1]
    shop.ledger.close()
