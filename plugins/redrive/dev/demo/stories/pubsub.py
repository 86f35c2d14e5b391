"""Processed messages end in the dead-letter topic: more were fetched than could be worked off within their lease."""

import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from redrive.dev.demo.play import Play, Story

PROJECT = "shop"
#: What the team had, a thousand times smaller: fetched at once, seconds of work each, seconds that a lease is kept.
FETCHED, WORK, LEASE = 16, 8.0, 3.0
ATTEMPTS = 5  # Pub/Sub takes no fewer
#: After so long without a message the subscriber has nothing to do; and longer than this nobody waits.
QUIET, LONGEST = 3.0, 300.0


def topic(name: str) -> str:
    return f"projects/{PROJECT}/topics/{name}"


def subscription(name: str) -> str:
    return f"projects/{PROJECT}/subscriptions/{name}"


class Shop:
    """The topics, and a subscriber of Google's own library that writes down what it has done."""

    def __init__(self, endpoint: str, record: Path) -> None:
        import grpc  # noqa: PLC0415 - only this story needs them
        from google.cloud import pubsub_v1  # noqa: PLC0415
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport  # noqa: PLC0415
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport  # noqa: PLC0415

        self.publisher = pubsub_v1.PublisherClient(
            transport=PublisherGrpcTransport(channel=grpc.insecure_channel(endpoint))
        )

        def subscriber() -> Any:
            return pubsub_v1.SubscriberClient(
                transport=SubscriberGrpcTransport(channel=grpc.insecure_channel(endpoint))
            )

        self._new_subscriber: Callable[[], Any] = subscriber
        self._record, self._lock = record, threading.Lock()
        self._last = 0.0
        self.done: Counter[str] = Counter()  # how often each was processed
        self.dead: set[str] = set()
        with closing(sqlite3.connect(record)) as database:
            database.execute("create table if not exists processed (message_id text primary key)")

    def prepare(self) -> None:
        """A topic with its worker, and a dead-letter topic with a subscription."""
        for name in ("orders", "dead"):
            self.publisher.create_topic(name=topic(name))
        with self._new_subscriber() as subscriber:
            for name in ("orders-dlq", "alerts"):
                subscriber.create_subscription(name=subscription(name), topic=topic("dead"))
            policy = {"dead_letter_topic": topic("dead"), "max_delivery_attempts": ATTEMPTS}
            subscriber.create_subscription(
                request={
                    "name": subscription("orders-worker"),
                    "topic": topic("orders"),
                    "ack_deadline_seconds": 10,
                    "dead_letter_policy": policy,
                }
            )

    def buy(self, *orders: str) -> None:
        """The shop publishes orders."""
        for one in [self.publisher.publish(topic("orders"), order.encode(), order=order) for order in orders]:
            one.result(30)

    def work(self, *, fetched: int, lease: float, until: Callable[[], bool] = lambda: False) -> None:
        """One thread with a slow callback, ``until`` then or until nothing has come for a while."""
        from google.cloud.pubsub_v1.subscriber.scheduler import ThreadScheduler  # noqa: PLC0415
        from google.cloud.pubsub_v1.types import FlowControl  # noqa: PLC0415

        began = self._last = time.monotonic()
        with self._new_subscriber() as subscriber:
            alerted = subscriber.subscribe(subscription("alerts"), self._alert)
            working = subscriber.subscribe(
                subscription("orders-worker"),
                self._handle,
                flow_control=FlowControl(max_messages=fetched, max_lease_duration=lease),
                scheduler=ThreadScheduler(ThreadPoolExecutor(1)),
            )
            while not until() and time.monotonic() - self._last < QUIET and time.monotonic() - began < LONGEST:
                time.sleep(0.1)
            for one in (working, alerted):
                one.cancel()
                one.result(30)

    def _handle(self, message: Any) -> None:
        until = time.monotonic() + WORK
        while (now := time.monotonic()) < until:
            self._last = now
            time.sleep(0.1)
        order = message.attributes["order"]
        with self._lock, closing(sqlite3.connect(self._record)) as database:
            database.execute("insert or ignore into processed values (?)", (order,))
            database.commit()
            self.done[order] += 1
        message.ack()

    def _alert(self, message: Any) -> None:
        self.dead.add(message.attributes["order"])
        message.ack()


class Heard(logging.Handler):
    """What the client library says when it gives up leases: the only sign."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._logger = logging.getLogger("google.cloud.pubsub_v1.subscriber._protocol.leaser")

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> "Heard":
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)


def tell(play: Play) -> bool:
    """Dead although processed; then asked, suppressed, and the rest sent again."""
    shop = Shop(play.served.connection["extra"]["endpoint"], play.folder / "orders.db")
    shop.prepare()
    orders = {f"order-{number:02}" for number in range(FETCHED)}

    play.act(f"What the team saw: max_messages={FETCHED}, {WORK:g} s of work each, max_lease_duration={LEASE:g} s")
    play.say(f"this takes a minute: {ATTEMPTS} leases of ten seconds have to run out")
    shop.buy(*sorted(orders))
    with Heard() as heard:
        shop.work(fetched=FETCHED, lease=LEASE, until=lambda: len(shop.dead) > FETCHED // 2)
    line = next(iter(heard.lines), "")
    well = play.check(line, f"the subscriber's log: {line or 'nothing'}")
    before = set(shop.done)
    well &= play.check(shop.dead & before, f"{len(shop.dead & before)} of {len(shop.dead)} dead letters were processed")
    well &= play.redrive("explain", given=json.dumps({"text": line})) == 0

    play.act("Redrive asks the consumer's record before it sends anything")
    play.redrive("doctor", "orders")
    for _ in range(3):
        well &= play.redrive("run", "orders") == 0
        suppressed = {key for (key,) in play.rows("select message_key from messages where state = 'suppressed'")}
        if suppressed:
            break
        play.wait_until_due()  # it is asked right before a send, and none was due yet
    well &= play.check(suppressed and suppressed <= set(shop.done), f"{len(suppressed)} are suppressed, and not sent")

    play.act("The advice is taken, max_messages=1, and what was not done is worked off")
    done_before = dict(shop.done)
    for _ in range(10):
        shop.work(fetched=1, lease=60.0)
        well &= play.redrive("run", "orders", brief=True) == 0
        if set(shop.done) == orders and set(play.states()) <= {"suppressed", "confirmed"}:
            break
        play.wait_until_due()
    play.table("Where they are", ("state", "messages"), sorted(play.states().items()))
    well &= play.check(set(shop.done) == orders, "every order is processed")
    again = [order for order in suppressed if shop.done[order] > done_before[order]]
    well &= play.check(not again, "nothing that was suppressed was processed again")
    return bool(well & play.check(set(play.states()) <= {"suppressed", "confirmed"}, "and every outcome is proved"))


STORY = Story(
    page="google_pubsub",
    tell=tell,
    shorter={
        "sources": [{"queue": "orders-dlq", "lease": f"{LEASE:g}s"}],
        "processed_check": {"settle_after": "1s"},
        "drain": {"wait": "0s"},
    },
    more=lambda folder: {"orders_db": {"conn_type": "sqlite", "host": str(folder / "orders.db")}},
)
