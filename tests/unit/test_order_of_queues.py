"""Which queues give what came first first: only of these a later message says anything of an earlier one."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.brokers.pubsub import kind as pubsub
from redrive.brokers.pulsar import kind as pulsar
from redrive.brokers.rabbitmq.adapter import RabbitMQ
from redrive.brokers.rabbitmq.management import Management
from redrive.brokers.rabbitmq.session import Hosts
from redrive.brokers.service_bus.adapter import AzureServiceBus
from redrive.brokers.service_bus.facts import Facts
from redrive.brokers.service_bus.message import Address
from redrive.brokers.sqs.kind import FIFO, STANDARD
from redrive.errors import BrokerUnavailable


class Told(Management):
    """A management API that tells of one queue."""

    def __init__(self, version: str = "3.10.8", **queue: Any) -> None:
        super().__init__("http://127.0.0.1:1", "/", "guest", "guest", context=None, timeout=1)
        self.version, self.told, self.asked = version, queue, 0

    def _get(self, path: str, queue: str, what: str = "") -> Any:
        self.asked += 1
        if self.version == "away":
            raise BrokerUnavailable("management API")
        return {"rabbitmq_version": self.version} if path.startswith("overview") else {"name": queue, **self.told}


@pytest.mark.parametrize(
    ("management", "keeps"),
    [
        (Told(), True),
        (Told(type="classic", arguments={"x-max-priority": 10}), False),
        (Told(type="quorum"), True),
        (Told("4.0.2", type="quorum"), False),  # they have two priorities from then on
        (Told(type="stream"), False),
        (Told("away"), False),
        (None, False),
    ],
)
def test_rabbitmq_keeps_order_where_its_management_api_says_so(management: Told | None, keeps: bool) -> None:
    broker = RabbitMQ(Hosts([]), management=management)
    for _ in range(2):
        assert broker.capabilities_for("orders").in_order is keeps
    assert management is None or management.asked <= 2, "asked once"


@pytest.mark.parametrize(
    ("facts", "keeps"),
    [
        (Facts(), True),
        (Facts(requires_session=True), False),
        (Facts(partitioned=True), False),
        (Facts(subscribers=1), False),
        (Facts(forwards=True), False),
        (None, False),
    ],
)
def test_service_bus_keeps_order_in_a_plain_queue(facts: Facts | None, keeps: bool) -> None:
    class Administration:
        def facts(self, address: Address) -> Facts | None:
            return facts

        def close(self) -> None: ...

    broker = AzureServiceBus(MagicMock(), Administration())
    assert broker.capabilities_for("orders").in_order is keeps


def test_where_keys_have_an_order_of_their_own_others_go_past() -> None:
    world = MemoryWorld()
    world.create("plain")
    world.create("keyed", ordered=True)
    broker = MemoryBroker(world)
    assert [broker.capabilities_for(queue).in_order for queue in ("plain", "keyed")] == [True, False]
    assert not any(able.in_order for able in (STANDARD, FIFO, pubsub.KIND.capabilities, pulsar.KIND.capabilities))
