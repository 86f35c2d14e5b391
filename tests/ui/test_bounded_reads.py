"""No page reads every message that there ever was: what it asks of the ledger is found by an index, or is recent."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection

from redrive.ledger.dialects.sqlite import Sqlite
from redrive.lifecycle import ReviewStatus
from redrive_ui import failure_queries
from tests import blank, query_plans
from tests.probe import numbers
from tests.ui import seeding
from tests.ui.conftest import Site

PAGES = (
    *("/", "/routes/orders", "/plan/orders", "/groups", "/groups?tab=done", "/groups/orders/1"),
    *("/messages", "/messages?status=all", "/messages?text=nothing", "/standing", "/audit", "/audit?machine=1"),
    "/results?decided_by=ana&decided_at=2026-01-01T00:00:00",
    *("/find", "/find?state=finished", "/find?state=confirmed", "/find?past=hour", "/find?route=orders&queue=orders"),
    *("/find?word=nothing", "/find?word=order-1", "/find?key=order-1", "/find?header=tenant%3Dblue", "/find?text=gone"),
    *("/find?key=order-1&header=tenant%3Dblue&text=gone", "/find?word=order-1&field=attribute:tenant%3Dblue&text=gone"),
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


@pytest.mark.parametrize("path", PAGES)
def test_whatever_a_page_asks_the_ledger_is_given_up_in_the_end(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    site = make_site()
    seeding.seed(site.ledger, per_day=3)
    begun: list[Connection] = []
    limited: list[Connection] = []
    monkeypatch.setattr(Sqlite, "begin_reading", lambda _, connection: begun.append(connection))
    monkeypatch.setattr(Sqlite, "no_longer_than", lambda _, connection, __: limited.append(connection))
    site.page(path)
    assert begun
    assert limited == begun


def test_a_page_does_not_look_at_every_message_for_every_gate(make_site: Callable[..., Site], tmp_path: Path) -> None:
    """Three hundred gates that each looked through a million held messages took forty seconds."""
    took = {path: [] for path in PAGES}
    for number, gates in enumerate((4, 40)):
        site = make_site(f"sqlite:///{tmp_path}/{number}.db")
        _hold(site, gates, 2_000)
        for path in PAGES:
            with query_plans.counted() as work:
                site.page(path)
            took[path].append(work.hundreds)
    assert max(took["/routes/orders"]) > 200, "all that is held is counted once"
    assert not {path: few_many for path, few_many in took.items() if few_many[1] > 2 * few_many[0] + 500}


def _hold(site: Site, gates: int, held: int) -> None:
    blank.upgrade(site.ledger, seeding.NOW)
    site.change("insert into route_state (route) values ('orders')")
    site.change(
        "insert into failure_groups (group_id, fingerprint, cause, template, example, messages, first_seen_at,"
        f" last_seen_at, first_route) {numbers(gates)} select n, n, 'throttled', 'failure ' || n, '', 1, '2026-11-01',"
        " '2026-11-01', 'orders' from n"
    )
    site.change(
        "insert into breakers (route, group_id, stage, allowed, stage_at, began_at)"
        f" {numbers(gates)} select 'orders', n, 'canary', 20, '2026-11-01', '2026-11-01' from n"
    )
    site.change(
        "insert into messages (message_id, redrive_id, route, source, kind, broker_message_id, body_hash, body_bytes,"
        " copy_id, state, plan, cause, group_id, changed_at)"
        f" {numbers(held)} select n, n, 'orders', 'orders-dlq', 'dead_letter', n, zeroblob(16), 9, n, 'held', 'canary',"
        f" 'throttled', 1 + n % {gates}, '2026-11-01' from n"
    )


def _ask(site: Site, asked: int, decided: int) -> None:
    """So many questions about group 1, and so many answers about group 2."""
    n = "select n from generate_series(1, {many}) n" if site.ledger.dialect.name == "postgresql" else "{numbers}"
    for group, status, decision, many in ((1, "open", "null", asked), (2, "applied", "'discard'", decided)):
        rows = n.format(many=many, numbers=f"{numbers(many)} select n from n")
        site.change(
            "insert into escalated_messages (message_id, route, group_id, reason, size_bytes, source, attempts,"
            f" escalated_at, status, decision, decided_by) select n, 'orders', {group}, 'x', 9, 'orders-dlq', 0,"
            f" '2026-11-01', '{status}', {decision}, 'ana' from ({rows}) as these"
        )


def test_a_failure_tells_of_every_decision_wherever_its_question_stands(
    make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    _hold(site, 2, 10)
    answered = [ReviewStatus.DECIDED, ReviewStatus.APPLIED, ReviewStatus.REFUSED]
    unanswered = [ReviewStatus.OPEN, ReviewStatus.REOPENED, *[ReviewStatus.REFUSED] * 4]
    assert {*answered, *unanswered} == set(ReviewStatus)
    # The newest of all, and about none of them has anybody decided.
    for number, status in enumerate([*answered, *unanswered]):
        decision = f"'discard', '{status}'" if number < len(answered) else "null, null"
        site.change(
            "insert into escalated_messages (message_id, route, group_id, reason, size_bytes, source, attempts,"
            f" escalated_at, status, decision, decided_by) select {100 + number}, 'orders', 1, 'x', 9, 'orders-dlq', 0,"
            f" '2026-11-01', '{status}', {decision}"
        )
    monkeypatch.setattr(failure_queries, "NEWEST", 3)
    with site.ledger.read() as connection:
        found = failure_queries.group(connection, "orders", 1, ["orders"], lambda _, text: text, seeding.NOW)
    assert found
    assert {one["decided_by"] for one in found["decided"]} == set(answered)


@pytest.mark.server
def test_of_a_failure_nobody_has_decided_about_not_all_is_read_that_was_ever_decided(
    make_site: Callable[..., Site], postgres_database: str
) -> None:
    site = make_site(postgres_database)
    blank.upgrade(site.ledger, seeding.NOW)
    site.change("insert into route_state (route) values ('orders')")
    _ask(site, 7_000, 3_000)
    with site.ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("vacuum analyze escalated_messages")
    told: list[str] = []

    def note(connection: Any, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if "group_state" in statement and "escalation_id desc" in statement:
            with connection.connection.driver_connection.cursor() as cursor:
                told.extend(
                    line for (line,) in cursor.execute(f"explain (analyze, costs off, timing off) {statement}", values)
                )

    event.listen(Engine, "before_cursor_execute", note)
    try:
        site.page("/groups/orders/1")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert told
    assert "Rows Removed by Filter" not in "".join(told), told
