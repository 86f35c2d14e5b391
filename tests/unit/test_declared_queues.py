"""How often RabbitMQ's management API is asked how queues were declared."""

import pytest

from redrive.brokers.base import NAMES_ASKED
from redrive.brokers.rabbitmq.declared import Declared
from redrive.brokers.rabbitmq.management import Management, QueueFacts
from redrive.errors import BrokerUnavailable, QueueMissing


class Asked(Management):
    """A management API that knows one queue of each kind, and counts."""

    def __init__(self, trouble: Exception) -> None:
        self.trouble, self.asked = trouble, 0

    def queue(self, name: str) -> QueueFacts:
        self.asked += 1
        if name not in ("work", "log"):
            raise self.trouble
        return QueueFacts(name, "stream" if name == "log" else "quorum", None, None, 3, None, None, False)

    def keeps_order(self, facts: QueueFacts) -> bool:
        return True


@pytest.mark.parametrize("trouble", [QueueMissing("gone"), BrokerUnavailable("not now")])
def test_queues_that_anyone_named_cost_so_many_questions_and_no_more(trouble: Exception) -> None:
    management = Asked(trouble)
    declared = Declared(management)
    assert declared.delivery_limit("work") == 3
    for number in range(3 * NAMES_ASKED):
        assert declared.delivery_limit(f"forged-{number % (2 * NAMES_ASKED)}") is None

    assert management.asked == len(declared._facts) == NAMES_ASKED
    assert declared.delivery_limit("work") == 3
    assert declared.not_drained("log"), "who drains it named it, so it is asked about all the same"
    assert declared.keeps_order("work")
