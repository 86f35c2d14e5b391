"""The views that people read in SQL: none looks at all messages, or at all groups, for every group."""

from pathlib import Path

from redrive.ledger.engine import Ledger
from tests import blank, query_plans
from tests.ledger.planting import NOW, Plant
from tests.probe import numbers

VIEWS = (
    *("review_groups", "group_state", "destination_state", "issue_state"),
    *("message_balance", "cause_trend", "group_trend", "route_summary"),
)
#: Questions, and as many sends.
MANY = 3_000


def test_no_view_takes_longer_the_more_groups_the_same_messages_are_of(tmp_path: Path) -> None:
    """Ten thousand groups took five seconds, a thousand failures that were resolved another one."""
    few, many = (_work(tmp_path / f"{groups}.db", groups) for groups in (10, 300))
    assert few["review_groups"] > 500
    assert not {view: (few[view], many[view]) for view in VIEWS if many[view] > 3 * few[view] + 300}


def _work(path: Path, groups: int) -> dict[str, int]:
    """By view, what SQLite computes for all of it."""
    ledger = Ledger(f"sqlite:///{path}")
    blank.upgrade(ledger, NOW)
    plant = Plant(ledger)
    each, group = numbers(MANY), f"1 + n % {groups}"
    plant.change(
        "insert into failure_groups (group_id, fingerprint, cause, template, example, messages, first_seen_at,"
        f" last_seen_at, first_route) {numbers(groups)} select n, n, 'throttled', '', '', 1, '2025-09-01',"
        " '2025-09-01', 'orders' from n"
    )
    plant.change(
        "insert into breakers (route, group_id, stage, allowed, stage_at, began_at)"
        f" {numbers(groups)} select 'orders', n, 'canary', 20, '2025-09-01', '2025-09-01' from n"
    )
    plant.change(
        "insert into failure_issues (route, group_id, status, status_at, written_by, written_at)"
        f" {numbers(groups)} select 'orders', n, 'resolved', '2025-09-01 00:00:00.000000', 'ana', '2025-09-01' from n"
    )
    plant.change(
        "insert into messages (message_id, redrive_id, route, source, kind, broker_message_id, body_hash, body_bytes,"
        f" copy_id, state, cause, group_id, attempts, received_at, changed_at) {each} select n, n, 'orders',"
        f" 'orders-dlq', 'dead_letter', n, zeroblob(16), 9, n, 'escalated', 'throttled', {group}, 1, '2025-08-01',"
        " '2025-09-02' from n"
    )
    plant.change(
        "insert into redelivery_attempts (message_id, attempt, route, group_id, slice_id, mode, destination,"
        f" claimed_at, sent_at, outcome) {each} select n, 1, 'orders', {group}, 1, 'requeue', 'orders', '2025-08-01',"
        " '2025-08-01', 'returned' from n"
    )
    plant.change(
        "insert into escalated_messages (message_id, route, group_id, cause, reason, payload, size_bytes, content_type,"
        f" source, broker_message_id, attempts, escalated_at, status) {each} select n, 'orders', {group}, 'throttled',"
        " '', '{}', 2, 'application/json', 'orders-dlq', n, 1, '2025-09-02 00:00:00.000000', 'open' from n"
    )
    found = {}
    for view in VIEWS:
        with query_plans.counted() as work:
            plant.rows(f"select * from {view}")
        found[view] = work.hundreds
    ledger.close()
    return found
