"""What Pulsar's topics are called, and by which subscription they are read: asked of an administration API made up
here."""

from typing import Any

import pytest

from redrive.brokers.base import NAMES_ASKED
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
        self.asked = 0

    def partitions(self, topic: str) -> int:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        if topic not in self.counts:
            raise QueueMissing(topic)
        return self.counts[topic]

    def stats(self, topic: str, partitions: int) -> dict[str, Any]:
        return {"subscriptions": {name: {"msgBacklog": count} for name, count in self.backlogs.items()}}


def place(admin: Admin, **subscriptions: str) -> Place:
    return Place("here", lambda: None, admin, "public/default", "redrive", subscriptions, False, 1.0)  # type: ignore[arg-type]


def test_a_name_that_could_not_be_asked_about_is_asked_about_again_in_a_minute() -> None:
    admin, now = Admin({PREFIX + "orders-partition-7": 0}), [0.0]
    topics = Topics(place(admin), lambda: now[0])
    admin.trouble = BrokerUnavailable("not now")

    for now[0] in (0.0, 30.0, 59.0):
        assert topics.origin(PREFIX + "orders-partition-7") == "orders", "what it most likely is"
    assert admin.asked == 1, "each question may take seconds, and this name may be in every message"
    admin.trouble, now[0] = None, 60.0
    assert topics.origin(PREFIX + "orders-partition-7") == "orders-partition-7", "no topic orders has partitions"


def test_partitions_of_one_topic_cost_one_question() -> None:
    admin = Admin({PREFIX + "orders": 100})
    topics = Topics(place(admin))

    assert {topics.origin(f"{PREFIX}orders-partition-{number}") for number in range(100)} == {"orders"}
    assert admin.asked == 1


@pytest.mark.parametrize("trouble", [None, BrokerUnavailable("not now")])
def test_names_that_anyone_wrote_cost_so_many_questions_and_no_more(trouble: Exception | None) -> None:
    admin, now = Admin({PREFIX + "orders": 4}), [0.0]
    topics = Topics(place(admin), lambda: now[0])
    assert topics.origin(PREFIX + "orders-partition-1") == "orders"
    admin.trouble = trouble
    for number in range(3 * NAMES_ASKED):
        now[0] += 1
        topics.origin(f"{PREFIX}forged-{number % (2 * NAMES_ASKED)}-partition-1")
        topics.origin(f"{PREFIX}forged-{number}")

    assert admin.asked == len(topics._partitioned) == NAMES_ASKED
    assert topics.origin(PREFIX + "orders-partition-1") == "orders"
    assert topics.origin(PREFIX + "later-partition-1") == "later", "what it most likely is"


def test_a_name_that_is_too_long_for_any_request_is_neither_asked_about_nor_kept() -> None:
    admin = Admin()
    topics = Topics(place(admin))

    assert topics.origin(f"{PREFIX}{'x' * 100_000}-partition-1") == "x" * 100_000
    assert (admin.asked, len(topics._partitioned)) == (0, 0)


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
