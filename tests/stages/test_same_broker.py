"""Two connections to one broker make two of a queue, and somebody is told."""

from pathlib import Path
from typing import Any

import pytest

from redrive.connections.lookup import Connection
from redrive.errors import ConnectionMissing
from redrive.settings import Settings
from redrive.stages import doctor, same_broker
from tests.workshop import Workshop

BILLING = {"broker": "rabbitmq", "connection": "of_billing", "sources": [{"queue": "orders-dlq"}]}
HERE: dict[str, Any] = {"conn_type": "amqp", "host": "rabbit.internal", "port": 5672, "schema": "/"}


def settings(**billing: Any) -> Settings:
    orders = {"broker": "rabbitmq", "connection": "of_orders", "sources": [{"queue": "orders-dlq"}]}
    routes = {
        name: route | {"destination": {"queue": f"{name}-in"}, "schedule": None}
        for name, route in {"orders": orders, "billing": BILLING | billing}.items()
    }
    return Settings.model_validate({"database": "sqlite:////ledger.db", "staging": "/staging", "routes": routes})


def named_twice(given: Settings, **connections: dict[str, Any]) -> list[same_broker.Twice]:
    def connection(name: str) -> Connection:
        if name not in connections:
            raise ConnectionMissing(name)
        return Connection(name, **connections[name])

    return list(same_broker.named_twice(given, connection))


def test_a_queue_over_two_connections_to_one_broker_is_told_with_both() -> None:
    [found] = named_twice(settings(), of_orders=HERE, of_billing=HERE | {"login": "billing", "password": "secret"})
    assert found == ("billing", "orders-dlq", "of_billing", "orders", "of_orders")
    assert "Give both routes one connection" in str(found)
    assert "secret" not in str(found)


def test_what_one_drains_and_the_other_sends_to_is_one_queue_too() -> None:
    [found] = named_twice(settings(sources=[{"queue": "orders-in"}]), of_orders=HERE, of_billing=HERE)
    assert found.queue == "orders-in"


@pytest.mark.parametrize(
    "other",
    [
        {"host": "other.internal"},
        {"port": 5673},
        {"schema": "billing"},
        {"host": None},
        {"extra": {"vhost": "billing"}},
        {"host": 5},
    ],
)
def test_another_host_port_or_virtual_host_is_another_broker(other: dict[str, Any]) -> None:
    assert not named_twice(settings(), of_orders=HERE, of_billing=HERE | other)


@pytest.mark.parametrize("same", [{"host": "RABBIT.internal."}, {"login": "billing"}, {"password": "other"}])
def test_what_is_written_otherwise_is_the_same_broker_all_the_same(same: dict[str, Any]) -> None:
    assert named_twice(settings(), of_orders=HERE, of_billing=HERE | same)


def test_other_queues_and_connections_that_nobody_knows_are_nothing_to_tell() -> None:
    assert not named_twice(settings(sources=[{"queue": "billing-dlq"}]), of_orders=HERE, of_billing=HERE)
    assert not named_twice(settings(connection="of_orders", sources=[{"queue": "billing-dlq"}]), of_orders=HERE)
    assert not named_twice(settings(), of_orders=HERE)


def test_of_many_routes_one_is_named_for_each_two_connections() -> None:
    one = settings().routes
    many = {f"{name}-{number}": route for number in range(200) for name, route in one.items()}
    given = settings().model_copy(update={"routes": many})
    assert [(found.route, found.other_route) for found in named_twice(given, of_orders=HERE, of_billing=HERE)] == [
        ("billing-0", "orders-0")
    ]


def test_a_backend_that_fails_hides_nothing_else(tmp_path: Path) -> None:
    def fails(_: str) -> Connection:
        raise TimeoutError("the secrets backend")

    assert list(same_broker.named_twice(settings(), fails)) == []


def test_without_a_host_only_connections_that_say_the_same_lead_to_one_broker() -> None:
    account = {"login": "key", "password": "secret", "extra": {"region_name": "eu-central-1"}}
    one, same = Connection("one", **account), Connection("same", **account)
    assert same_broker.lead_to_one(one, same)
    assert not same_broker.lead_to_one(one, Connection("other", **account | {"login": "another key"}))
    assert not same_broker.lead_to_one(one, Connection("far", **account | {"extra": {"region_name": "us-east-1"}}))


def test_the_doctor_warns_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path, sources=[{"queue": "orders-dlq"}])
    one = same_broker.Twice("orders", "orders-dlq", "here", "billing", "there")
    monkeypatch.setattr(same_broker, "named_twice", lambda _: [one])
    monkeypatch.setattr(doctor, "open_broker", lambda *_: workshop.broker)
    found = doctor.examine(workshop.settings, ["orders"])
    assert doctor.Finding("warning", "route orders", str(one)) in found
