"""What Pulsar's topics are called, and by which subscription they are read: asked of an administration API made up
here."""

from typing import Any

import pytest

from redrive.brokers.pulsar.connection import Place
from redrive.brokers.pulsar.looking import Inspector
from redrive.brokers.pulsar.topics import Topics
from redrive.errors import BrokerUnavailable, PermissionRefused, QueueMissing

PREFIX = "persistent://public/default/"


class Admin:
    """Topics with partitions and subscriptions, or what is raised instead."""

    def __init__(self, partitions: dict[str, int] | None = None, backlogs: dict[str, int] | None = None) -> None:
        self.counts = partitions or {}
        self.backlogs = backlogs or {}
        self.trouble: Exception | None = None

    def partitions(self, topic: str) -> int:
        if self.trouble is not None:
            raise self.trouble
        if topic not in self.counts:
            raise QueueMissing(topic)
        return self.counts[topic]

    def stats(self, topic: str, partitions: int) -> dict[str, Any]:
        return {"subscriptions": {name: {"msgBacklog": count} for name, count in self.backlogs.items()}}


def place(admin: Admin, **subscriptions: str) -> Place:
    return Place("here", lambda: None, admin, "public/default", "redrive", subscriptions, False, 1.0)  # type: ignore[arg-type]


def test_a_name_that_could_not_be_asked_about_is_asked_about_again() -> None:
    admin = Admin({PREFIX + "orders-partition-7": 0})
    topics = Topics(place(admin))
    admin.trouble = BrokerUnavailable("not now")

    assert topics.origin(PREFIX + "orders-partition-7") == "orders", "what it most likely is"
    admin.trouble = None
    assert topics.origin(PREFIX + "orders-partition-7") == "orders-partition-7", "no topic orders has partitions"


def test_who_may_not_ask_is_refused_once() -> None:
    admin = Admin()
    topics = Topics(place(admin))
    admin.trouble = PermissionRefused("never")
    assert topics.origin(PREFIX + "orders-partition-7") == "orders"
    admin.trouble = AssertionError("asked again")
    assert topics.origin(PREFIX + "orders-partition-7") == "orders"


@pytest.mark.parametrize(
    ("queue", "given", "read"),
    [
        ("orders-DLQ", {}, "redrive"),
        ("orders-DLQ", {"orders-DLQ": "parked"}, "parked"),
        ("orders-DLQ", {PREFIX + "orders-DLQ": "parked"}, "parked"),
        ("orders-parked-RETRY", {}, "parked"),
        ("orders-parked-RETRY", {"orders-parked-RETRY": "other"}, "other"),
    ],
)
def test_a_depth_is_that_of_the_subscription_that_is_drained(queue: str, given: dict[str, str], read: str) -> None:
    backlogs = {"redrive": 1, "parked": 2, "other": 4}
    admin = Admin({PREFIX + queue: 0}, backlogs)
    where = place(admin, **given)
    topics = Topics(where)

    assert topics.subscription(queue, topics.full(queue)) == read
    assert Inspector(where, topics).depth(queue).visible == backlogs[read]
