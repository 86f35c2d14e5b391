"""A count that a broker doesn't tell is unknown: as zero it would say that a destination has worked past a send."""

from types import SimpleNamespace
from typing import Any

import pytest

from redrive.brokers.pulsar.looking import backlog
from redrive.brokers.service_bus.adapter import AzureServiceBus
from redrive.brokers.service_bus.facts import AtomApi, _most


def test_a_backlog_that_pulsar_does_not_tell_is_unknown() -> None:
    assert backlog({"msgBacklog": 0}).total == 0
    assert backlog({"unackedMessages": 0, "consumers": []}).total is None


class Rules(SimpleNamespace):
    """A description in which nothing is set but what a test says."""

    def __getattr__(self, _name: str) -> None:
        return None


@pytest.mark.parametrize(
    ("queue", "counts", "total"),
    [
        ("orders", {"active_message_count": 0, "scheduled_message_count": 0}, 0),
        ("orders", {"scheduled_message_count": 0}, None),
        ("orders", {"active_message_count": 0}, None),
        ("orders/$DeadLetterQueue", {"dead_letter_message_count": 3}, 3),
        ("orders/$DeadLetterQueue", {"active_message_count": 0}, None),
    ],
)
def test_counts_that_service_bus_does_not_tell_are_unknown(
    queue: str, counts: dict[str, int], total: int | None
) -> None:
    client: Any = SimpleNamespace(
        get_queue=lambda _: Rules(), get_queue_runtime_properties=lambda _: Rules(**counts), close=lambda: None
    )
    broker = AzureServiceBus(SimpleNamespace(close=lambda: None), AtomApi(client, lambda: 0.0))  # type: ignore[arg-type]
    assert broker.depth(queue).total == total
    broker.close()


def test_the_slowest_of_several_subscribers_is_unknown_where_one_is() -> None:
    assert [_most(counts) for counts in ([], [2, 5], [2, None])] == [0, 5, None]
