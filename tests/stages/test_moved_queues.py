"""A queue moves to another route, or its route is renamed: what the ledger knows of it goes for whoever has it now."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from redrive.brokers.memory.kind import MEMORY_CAPABILITIES
from redrive.ledger.drain import repeats
from redrive.settings import parse
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests.workshop import ROUTE, Workshop

DLQ, DELAY = ROUTE["sources"]


class Moving(Workshop):
    """Whose routes are edited between runs."""

    def __init__(self, folder: Path, database: str | None = None) -> None:
        super().__init__(folder, database)
        self.route = "orders"
        self.world.create("other-dlq")

    def write(self, **routes: dict[str, Any]) -> None:
        """The file has these routes from now on, each with what differs from the usual one."""
        text = yaml.safe_dump(
            {
                "database": self.settings.database,
                "staging": str(self.folder / "staging"),
                "routes": {name: ROUTE | route for name, route in routes.items()},
            }
        )
        self.settings = parse(text, env={}, root=self.folder)

    def begin(self, **options: Any) -> Run:
        return pipeline.begin(self.settings, self.route, trigger="test", holder="test", clock=self.now, **options)

    def go(self, route: str) -> dict[str, Any]:
        """One whole run of a route; its report."""
        self.route = route
        return self.cycle()

    def dies(self, monkeypatch: pytest.MonkeyPatch, where: str, *, first: bool) -> None:
        """A run of the route dies at this call of the broker, before it or after it."""
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(self.broker, where, _dying(getattr(self.broker, where), first=first))
            self.cycle()
        self.advance(minutes=20)


def _dying(call: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
    def die(*given: Any, **named: Any) -> Any:
        if not first:
            call(*given, **named)
        raise KeyboardInterrupt

    return die


class WithoutIds(Moving):
    capabilities = replace(MEMORY_CAPABILITIES, stable_identity=False)


@pytest.fixture
def shop(tmp_path: Path, ledger_url: str) -> Iterator[Moving]:
    shop = Moving(tmp_path, ledger_url)
    yield shop
    shop.ledger.close()


@pytest.fixture
def nameless(tmp_path: Path, ledger_url: str) -> Iterator[WithoutIds]:
    shop = WithoutIds(tmp_path, ledger_url)
    yield shop
    shop.ledger.close()


MOVED = {"orders": {"sources": [DELAY]}, "payments": {"sources": [DLQ]}}


@pytest.mark.parametrize("first", ["orders", "payments"])
def test_what_was_recorded_and_not_settled_is_sent_once_whichever_route_has_the_queue(
    shop: Moving, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    shop.die("pay 1", "pay 2")
    shop.dies(monkeypatch, "settle", first=True)
    shop.write(**MOVED)
    found = [shop.go(route) for route in (first, *({"orders", "payments"} - {first}))]

    assert [(one["new"], one["duplicates"], one["redelivered"]) for one in found] == [(2, 0, 2), (0, 2, 0)]
    assert shop.bodies("orders") == [b"pay 1", b"pay 2"]
    assert shop.audit() == []


def test_a_name_that_is_written_again_after_a_rename_sends_nothing_twice(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.die("pay 1", "pay 2")
    shop.dies(monkeypatch, "settle", first=True)
    shop.write(payments={})
    assert shop.go("payments")["redelivered"] == 2
    shop.write(**MOVED)
    assert shop.go("orders")["duplicates"] == 2
    assert shop.bodies("orders") == [b"pay 1", b"pay 2"]


def test_a_queue_of_the_same_name_on_another_broker_is_another_one(
    shop: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.die("pay 1")
    shop.dies(monkeypatch, "settle", first=True)
    shop.write(orders={"sources": [DELAY]}, payments={"sources": [DLQ], "connection": "elsewhere"})
    assert [shop.go(route)["new"] for route in ("orders", "payments")] == [1, 1]


@pytest.mark.parametrize("first", ["orders", "payments"])
def test_without_identities_people_say_whether_another_routes_batch_came_again(
    nameless: WithoutIds, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    nameless.die("pay 1", "pay 2")
    nameless.dies(monkeypatch, "settle", first=True)
    nameless.write(**MOVED)
    found = {route: nameless.go(route) for route in (first, *({"orders", "payments"} - {first}))}

    assert (found["orders"]["new"], found["orders"]["redelivered"]) == (2, 2)
    assert (found["payments"]["new"], found["payments"]["suspected"], found["payments"]["redelivered"]) == (0, 2, 0)
    assert nameless.query("select count(*) from escalated_messages where route = 'payments'") == [(2,)]
    assert nameless.bodies("orders") == [b"pay 1", b"pay 2"]
    assert nameless.audit() == []


def test_the_doubt_about_another_routes_batch_ends_with_a_drain_to_the_end(
    nameless: WithoutIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless.die("pay 1")
    nameless.dies(monkeypatch, "settle", first=True)
    nameless.write(payments={})
    assert nameless.go("payments")["suspected"] == 1
    nameless.advance(hours=1)
    nameless.go("payments")
    with nameless.ledger.read() as connection:
        leased_for = nameless.settings.route("payments").drain.lease
        assert repeats.doubtful(nameless.ledger, connection, "payments", DLQ["queue"], leased_for=leased_for) == {}
