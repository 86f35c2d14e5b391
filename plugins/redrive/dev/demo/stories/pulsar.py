"""A consumer that hangs keeps what the broker pushed to it: found, told of, and freed by unloading the topic."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

from redrive.dev.demo.play import Play, Story
from redrive.dev.demo.pulsar_admin import administer

ORDERS, DEAD, WORKER = "orders", "orders-worker-DLQ", "worker"
#: What the consumers' library fetches ahead of them, and how long one may hold messages and ack none (seconds).
QUEUE, TIMEOUT = 20, 3
#: How long anything of this may take.
LONGEST = 60.0


class Shop:
    """Topics, a producer and consumers on Pulsar's own library."""

    def __init__(self, connection: dict[str, Any], leaving: ExitStack) -> None:
        import pulsar  # noqa: PLC0415 - only this story needs it

        self._pulsar = pulsar
        self._token, self._admin = connection["password"], connection["extra"]["admin_url"]
        self._place = connection.get("schema") or "public/default"
        self._leaving = leaving
        self._service = f"pulsar://{connection['host']}:{connection['port']}"
        self.done: list[str] = []
        self.refused = 0

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API."""
        return administer(self._admin, self._token, method, f"persistent/{self._place}/{path}", body)

    def prepare(self) -> None:
        """Two topics with their subscriptions, from the first message on."""
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        for topic, subscription in ((ORDERS, WORKER), (DEAD, "redrive")):
            self.ask("PUT", topic)
            self.ask("PUT", f"{topic}/subscription/{quote(subscription)}", earliest)

    def consumer(self, name: str, **options: Any) -> Any:
        """Another consumer, in a client of its own as another process has."""
        client = self._client()
        return client.subscribe(
            f"persistent://{self._place}/{ORDERS}",
            WORKER,
            consumer_type=self._pulsar.ConsumerType.Shared,
            consumer_name=name,
            receiver_queue_size=QUEUE,
            negative_ack_redelivery_delay_ms=100,
            **options,
        )

    def _client(self) -> Any:
        quiet = self._pulsar.ConsoleLogger(self._pulsar.LoggerLevel.Error)
        client = self._pulsar.Client(self._service, self._pulsar.AuthenticationToken(self._token), logger=quiet)
        self._leaving.callback(client.close)
        return client

    def buy(self, *orders: str) -> None:
        """The shop publishes orders."""
        client = self._client()
        producer = client.create_producer(f"persistent://{self._place}/{ORDERS}")
        for order in orders:
            producer.send(order.encode(), properties={"order": order})
        producer.close()

    def work(self, consumer: Any, *, until: Callable[[], bool], fails: Callable[[str], bool] = lambda _: False) -> bool:
        """Let a consumer work, what fails is refused; whether it came so far in time."""
        deadline = time.monotonic() + LONGEST
        while not until() and time.monotonic() < deadline:
            try:
                message = consumer.receive(200)
            except self._pulsar.Timeout:
                continue
            if fails(order := message.data().decode()):
                consumer.negative_acknowledge(message)
                self.refused += 1
            else:
                consumer.acknowledge(message)
                self.done.append(order)
        return until()

    def consumers(self) -> dict[str, int]:
        """What each holds, by the broker's word."""
        told = self.ask("GET", f"{ORDERS}/stats")["subscriptions"][WORKER]
        return {one["consumerName"]: one["unackedMessages"] for one in told["consumers"]}

    def backlog(self, topic: str, subscription: str) -> int:
        return int(
            self.ask("GET", f"{topic}/stats?getPreciseBacklog=true")["subscriptions"][subscription]["msgBacklog"]
        )


def _soon(question: Callable[[], bool]) -> bool:
    """Whether it comes to be so; acks travel grouped."""
    deadline = time.monotonic() + LONGEST
    while not (answer := question()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return answer


def tell(play: Play) -> bool:
    """Stuck, found, freed; and the dead letters go back meanwhile."""
    with ExitStack() as leaving:
        return _tell(play, Shop(play.served.connection, leaving))


def _tell(play: Play, shop: Shop) -> bool:
    shop.prepare()
    dead = [f"dead-{number}" for number in range(3)]
    orders = [f"order-{number:02}" for number in range(QUEUE + 10)]

    play.act("Some orders fail, and the client library dead-letters them")
    dies = shop.consumer("dies", dead_letter_policy=shop._pulsar.ConsumerDeadLetterPolicy(1))
    shop.buy(*dead)
    well = play.check(
        shop.work(
            dies,
            # The library crashes when such a consumer is closed before what it dead-letters is answered and acked.
            until=lambda: shop.backlog(DEAD, "redrive") == len(dead) and not shop.backlog(ORDERS, WORKER),
            fails=lambda _: True,
        ),
        f"{len(dead)} lie in {DEAD}",
    )
    dies.close()

    play.act("What the team saw: one consumer holds messages and acks none")
    hung = shop.consumer("hung")
    shop.buy(*orders)
    hung.receive(30_000)
    ok = shop.consumer("well")
    well &= play.check(
        shop.work(ok, until=lambda: len(shop.done) == len(orders) - QUEUE),
        f"{len(shop.done)} of {len(orders)} are done, by the other one, which has nothing to do now",
    )
    well &= _soon(lambda: shop.consumers()["well"] == 0)
    play.table("By the broker's word", ("consumer", "unacked messages"), sorted(shop.consumers().items()))
    well &= play.check(shop.consumers()["hung"] == QUEUE, f"{QUEUE} wait with the one that hangs")
    well &= play.redrive("doctor", "orders") == 0

    play.act(f"Redrive looks twice; ack_timeout is {TIMEOUT} s here")
    well &= play.redrive("observe", "orders") == 0
    time.sleep(TIMEOUT + 0.5)
    shop.buy("one-more")
    well &= play.check(shop.work(ok, until=lambda: "one-more" in shop.done), "the other works on")
    well &= play.check(_soon(lambda: shop.consumers()["well"] == 0), "and the broker knows of its acks")
    well &= play.redrive("observe", "orders") == 0
    well &= play.redrive("status", "orders") == 0
    events = play.rows("select action from audit_events where action in ('isolate_consumer', 'close_connection')")
    well &= play.check(
        {action for (action,) in events} == {"isolate_consumer", "close_connection"},
        "it was isolated, and the topic unloaded: what it held is given out again",
    )
    hung.close()  # as whoever is told of it would
    well &= play.check(
        shop.work(ok, until=lambda: set(shop.done) >= set(orders)), f"all {len(orders)} orders are done by the other"
    )

    play.act("And what had died goes back")
    well &= play.redrive("run", "orders") == 0
    well &= play.check(shop.work(ok, until=lambda: set(shop.done) >= set(dead)), "the dead letters are done too")
    ok.close()
    return bool(well)


STORY = Story(
    page="apache_pulsar", tell=tell, shorter={"isolation": {"ack_timeout": f"{TIMEOUT}s"}, "drain": {"wait": "1s"}}
)
