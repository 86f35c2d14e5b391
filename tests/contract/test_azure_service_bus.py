"""The Service Bus adapter: the contract on a stand-in that Microsoft's own client talks to, and what only it does."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import _servicebus_receiver, _servicebus_sender

from redrive.brokers.azure_service_bus import AzureServiceBus
from redrive.message import Header
from tests.contract.broker_contract import LEASE, BrokerContract, outgoing
from tests.servers import free_port
from tests.stand_ins.service_bus import ServiceBusStandIn

LOCK = 30.0


def connection(schema: str, **extra: object) -> str:
    return json.dumps({"conn_type": "azure_service_bus", "schema": schema, "extra": extra})


def adapter(bus: ServiceBusStandIn, *, key: str = "root", administered: bool = True, **options: Any) -> AzureServiceBus:
    """The adapter on the stand-in; it does not really sleep between tries unless told to."""
    extra = {"admin_endpoint": bus.admin_url} if administered else {}
    options.setdefault("sleep", lambda seconds: None)
    value = connection(bus.connection_string(key), **extra)
    return AzureServiceBus.open("bus_test", env={"AIRFLOW_CONN_BUS_TEST": value}, **options)


class _Impatient:
    """``time`` for the SDK's link opening, which looks every 50 ms whether the link is there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, 0.001))


@pytest.fixture(autouse=True)
def _quick_links(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_servicebus_receiver, _servicebus_sender):
        monkeypatch.setattr(module, "time", _Impatient())


@pytest.fixture
def bus() -> Iterator[ServiceBusStandIn]:
    with ServiceBusStandIn() as bus:
        yield bus


@pytest.fixture
def broker(bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
    broker = adapter(bus)
    yield broker
    broker.close()


@pytest.mark.server
class TestAzureServiceBus(BrokerContract):
    """On the stand-in, because tests can't reach Azure."""

    keeps_header_types = False  # other brokers' names for them; its own are tested below
    max_body = 200_000
    short_lease = timedelta(seconds=LOCK)  # the entity's lock duration, whatever is asked for

    @pytest.fixture
    def broker(self, bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
        broker = adapter(bus)
        yield broker
        broker.close()

    @pytest.fixture
    def another_broker(self, bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
        broker = adapter(bus)
        yield broker
        broker.close()

    @pytest.fixture
    def make_queue(self, bus: ServiceBusStandIn) -> Callable[..., str]:
        names = (f"queue-{number}" for number in itertools.count(1))

        def make_queue(
            *, ordered: bool = False, dead_letter_queue: str | None = None, max_deliveries: int | None = None
        ) -> str:
            name = next(names)
            bus.queue(
                name,
                lock_duration=LOCK,
                requires_session=ordered,
                forward_dead_letters_to=dead_letter_queue,
                max_delivery_count=max_deliveries or 10,
            )
            return name

        return make_queue

    @pytest.fixture
    def let_pass(self, bus: ServiceBusStandIn) -> Callable[[timedelta], None]:
        return lambda duration: bus.let_pass(duration.total_seconds())

    @pytest.fixture
    def refused_broker(self, bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
        bus.queue("orders-dlq")
        bus.keys["nothing"] = ("c2VjcmV0", frozenset())
        broker = adapter(bus, key="nothing")
        yield broker
        broker.close()

    @pytest.fixture
    def unreachable_broker(self, bus: ServiceBusStandIn) -> Iterator[AzureServiceBus]:
        bus.port, bus.admin_port = free_port(), free_port()
        broker = adapter(bus)
        yield broker
        broker.close()

    def test_an_extended_lease_keeps_a_message_away(
        self, broker: AzureServiceBus, queue: str, let_pass: Callable[[timedelta], None]
    ) -> None:
        """A lock is renewed for the entity's lock duration, no longer: so it has to be done again in time."""
        self.send(broker, queue, outgoing(b"kept", 1), outgoing(b"let go", 2))
        kept = next(r for r in self.take(broker, queue, 2) if r.letter.body == b"kept")
        for _ in range(3):
            let_pass(self.short_lease * 0.6)
            broker.extend(queue, [kept.receipt], LEASE)

        assert [r.letter.body for r in self.take(broker, queue, 2)] == [b"let go"]
        assert broker.settle(queue, [kept.receipt]).count == 1
