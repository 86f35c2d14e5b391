"""A write has an author: a run that holds its route, or somebody by name; the few others are listed here."""

import ast
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.audit_actions import Action
from redrive.errors import IllegalMove, LeaseLost
from redrive.ledger.engine import sql
from redrive.ledger.moves import move, record_event
from redrive.lifecycle import State
from tests.ledger.planting import Plant, unchanged

PLUGINS = Path(__file__).parents[2] / "plugins"

#: Functions that write in nobody's name, and why no run and no person has to be known for it.
NOBODYS = {
    "redrive/ledger/engine.py: under": "makes the transaction of a run",
    "redrive/ledger/engine.py: by": "makes the transaction of somebody",
    "redrive/ledger/schema.py: upgrade": "makes the tables",
    "redrive/ledger/leases.py: acquire": "makes the lease",
    "redrive/ledger/leases.py: release": "ends the lease, by compare-and-set on its fence",
    "redrive/ledger/configurations.py: forget": "texts of no route, with which nothing runs",
    "redrive/ledger/drain/repeats.py: known": "only reads, with the help of a temporary table",
    "redrive/ledger/drain/batches.py: settled": "what the broker has settled is settled, whoever holds the route now",
    "redrive/ledger/drain/batches.py: abandon_one": "a writer gives up its own batch, also when its lease is lost",
    "redrive/ledger/drain/batches.py: removed": "the file is gone, whoever holds the route",
    "redrive/ledger/account/retention.py: drop": "the file is gone, whoever holds the route",
    "redrive/ledger/account/notifications.py: reconcile": "notifications follow what the ledger says, whoever looks",
    "redrive/ledger/account/notifications.py: claim": "by compare-and-set, among processes of all kinds",
    "redrive/ledger/account/notifications.py: sent": "what was told was told",
    "redrive/ledger/account/notifications.py: failed": "what could not be told could not",
    "redrive/ledger/account/notifications.py: needs_airflow": "what could not be told from here could not",
    "redrive/ledger/review/decisions.py: decide": "the UPDATE that reviewers write; triggers keep who and when",
    "redrive/ledger/review/rulings.py: make": "the INSERT that reviewers write; triggers keep who and when",
    "redrive/ledger/review/rulings.py: revoke": "the UPDATE that reviewers write; triggers keep who and when",
    "redrive_ui/bulk_decisions.py: decide": "the UPDATE that reviewers write; triggers keep who and when",
    "redrive/dev/demo/run.py: _decide": "the UPDATE that reviewers write; triggers keep who and when",
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a file, with the function that it is in."""

    def within(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield function, child
            yield from within(child, child.name if isinstance(child, ast.FunctionDef) else function)

    yield from within(ast.parse(path.read_text()), "")


def called(path: Path, *names: str) -> set[str]:
    """``file: function`` for each function of the file that calls one of ``names`` without arguments."""
    return {
        f"{path.relative_to(PLUGINS).as_posix()}: {function}"
        for function, call in calls(path)
        if isinstance(call.func, ast.Attribute) and call.func.attr in names and not call.args and not call.keywords
    }


def test_nobody_else_writes_in_nobodys_name() -> None:
    found = {place for path in PLUGINS.rglob("*.py") for place in called(path, "write")}
    assert found == set(NOBODYS)


def test_transactions_are_begun_only_where_the_ledger_is() -> None:
    found = {place for path in PLUGINS.rglob("*.py") for place in called(path, "begin", "connect")}
    assert {place.partition(":")[0] for place in found if "/ledger/" in place} <= {"redrive/ledger/engine.py"}


def test_a_fenced_transaction_is_made_only_with_its_guard() -> None:
    made = {
        path.relative_to(PLUGINS).as_posix()
        for path in PLUGINS.rglob("*.py")
        for _, call in calls(path)
        if isinstance(call.func, ast.Name) and call.func.id in ("RunTransaction", "ActorTransaction")
    }
    assert made == {"redrive/ledger/engine.py", "redrive/ledger/leases.py"}


def test_a_run_that_was_replaced_gets_no_transaction(plant: Plant) -> None:
    zombie = plant.lease
    plant.begin()
    with (
        unchanged(plant),
        pytest.raises(LeaseLost, match="orders: run orders-1"),
        plant.ledger.under(zombie, plant.now),
    ):
        pytest.fail("it has one")


def test_a_transaction_that_fails_leaves_nothing_not_even_the_renewal(plant: Plant) -> None:
    later = plant.now + timedelta(hours=1)
    with unchanged(plant), pytest.raises(IllegalMove), plant.ledger.under(plant.lease, later) as tx:
        move(tx, State.PRESUMED, State.WAITING, action=Action.NOTE, where="1 = 1")


def test_statements_know_who_on_which_route_and_when(plant: Plant) -> None:
    names = ":route as route, :run_id as run, :actor as actor"
    with plant.ledger.under(plant.lease, plant.now) as tx:
        assert tx.execute(sql(f"select {names}, :fence as fence")).one() == ("orders", "orders-1", "redrive", 1)
        assert (tx.route, tx.run_id, tx.actor, tx.now) == ("orders", "orders-1", "redrive", plant.now)
    with plant.ledger.by("ana", plant.now, route="billing") as by:
        assert by.execute(sql(f"select {names}, :what as what"), {"what": 1}).one() == ("billing", None, "ana", 1)


def test_no_value_replaces_what_the_transaction_knows(plant: Plant) -> None:
    with plant.ledger.under(plant.lease, plant.now) as tx, pytest.raises(TypeError, match="fence, route"):
        tx.execute(sql("select :route, :fence"), {"route": "billing", "fence": 7, "other": 1})


def test_events_carry_the_author_of_their_transaction(plant: Plant) -> None:
    with plant.ledger.under(plant.lease, plant.now, actor="ana") as tx:
        record_event(tx, Action.NOTE)
    with plant.ledger.by("ben", plant.now, route="billing") as by:
        record_event(by, Action.NOTE)
    with plant.ledger.by("cy", plant.now) as by:
        record_event(by, Action.NOTE)
    assert plant.rows("select actor, route, run_id from audit_events order by event_id") == [
        ("ana", "orders", "orders-1"),
        ("ben", "billing", None),
        ("cy", None, None),
    ]
