"""A poison message that is requeued blocks its queue; then the error decides: at once, later, or a person."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from redrive.dev.demo.play import Play, Story

ORDERS, DEAD = "orders", "orders-dlq"
THREADS = 2
#: So often in a row each of them fails, when Redrive has it.
ONCE, TWICE, ALWAYS = 1, 2, 99


class Failure(NamedTuple):
    """What a shop's consumer runs into."""

    text: str
    times: int
    done: str  # what is to be done each time


FAILURES = {
    "reset": Failure("java.net.SocketException: Connection reset by peer", ONCE, "requeue"),
    "lock": Failure(
        "MySQL 1205 (HY000): ロック待ちがタイムアウトしました。トランザクションを再試行してください。", ONCE, "requeue"
    ),
    "deadlock": Failure("org.postgresql.util.PSQLException: ERROR: デッドロックを検出しました", TWICE, "requeue"),
    "lag": Failure("OrderNotVisible: レプリカの遅延により注文がまだ見えません", TWICE, "delay"),
    "stale": Failure("StaleObjectStateException: Row was updated or deleted by another transaction", TWICE, "delay"),
    "field": Failure("ValidationError: 必須フィールド customer_id がありません", ALWAYS, "person"),
}
POISON = {f"{name}-{number}": one.times for name, one in FAILURES.items() for number in range(THREADS)}


class Consumer:
    """A consumer with so many threads as teams have, each with a connection of its own."""

    def __init__(self, connection: dict[str, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.left = dict(POISON)
        self.done: list[str] = []
        self.seen: Counter[str] = Counter()

    def connect(self) -> Any:
        import pika  # noqa: PLC0415 - only this story needs it

        to = self._connection
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                to["host"],
                to["port"],
                to.get("schema") or "/",
                pika.PlainCredentials(to["login"], to["password"]),
                heartbeat=0,
            )
        )

    def prepare(self) -> None:
        """The two queues."""
        with self.connect() as connection:
            channel = connection.channel()
            for queue in (DEAD, ORDERS):
                channel.queue_declare(queue, durable=True)

    def buy(self, *orders: str) -> None:
        """The shop publishes orders."""
        import pika  # noqa: PLC0415

        with self.connect() as connection:
            channel = connection.channel()
            for order in orders:
                properties = pika.BasicProperties(message_id=order, delivery_mode=2)
                channel.basic_publish("", ORDERS, order.encode(), properties)

    def depth(self, queue: str) -> int:
        with self.connect() as connection:
            return int(connection.channel().queue_declare(queue, passive=True).method.message_count)

    def requeue(self, seconds: float) -> None:
        """Work for so long as they did: what fails is given back, ``basic.nack(requeue=true)``."""
        until = time.monotonic() + seconds
        self._in_threads(lambda channel: self._requeue(channel, until))

    def _requeue(self, channel: Any, until: float) -> None:
        while time.monotonic() < until:
            method, _, body = channel.basic_get(ORDERS)
            if method is None:
                time.sleep(0.01)
            elif (order := body.decode()) in POISON:
                with self._lock:
                    self.seen[order] += 1
                time.sleep(0.002)
                channel.basic_nack(method.delivery_tag, requeue=True)
            else:
                self._finish(order)
                channel.basic_ack(method.delivery_tag)

    def work(self) -> None:
        """Until nothing is ready: what fails is published to the dead-letter queue, with its error in a header."""
        self._in_threads(self._work)

    def _work(self, channel: Any) -> None:
        channel.confirm_delivery()
        while (got := channel.basic_get(ORDERS))[0] is not None:
            method, properties, body = got
            order = body.decode()
            with self._lock:
                fails = self.left.get(order, 0) > 0
                if fails:
                    self.left[order] -= 1
            if fails:
                error = FAILURES[order.partition("-")[0]].text
                properties.headers = {**(properties.headers or {}), "error": error}
                channel.basic_publish("", DEAD, body, properties)
            else:
                self._finish(order)
            channel.basic_ack(method.delivery_tag)

    def _finish(self, order: str) -> None:
        with self._lock:
            self.done.append(order)

    def _in_threads(self, work: Any) -> None:
        def one() -> None:
            with self.connect() as connection:
                work(connection.channel())

        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(one) for _ in range(THREADS)]:
                done.result()


def tell(play: Play) -> bool:
    """Blocked, then decided by the error."""
    consumer = Consumer(play.served.connection)
    consumer.prepare()

    play.act(f"What the team saw: {len(POISON)} messages that fail, {THREADS} threads, basic.nack(requeue=true)")
    consumer.buy(*POISON, *(f"good-{number}" for number in range(5)))
    consumer.requeue(2)
    given, messages = consumer.seen.total(), len(consumer.seen)
    play.say(f"{given} deliveries in two seconds, all of the same {messages} messages; redelivered=true")
    well = play.check(not consumer.done, f"the queue stands still: depth {consumer.depth(ORDERS)}, nothing done")

    play.act("Now what fails goes to a dead-letter queue, its error in a header")
    for name, one in FAILURES.items():
        play.say(f"{name}: {one.text}")
    consumer.work()
    well &= play.check(len(consumer.done) == 5, f"the good messages are done; {consumer.depth(DEAD)} are dead letters")
    well &= play.redrive("doctor", "orders") == 0

    for turn in range(1, 13):
        play.act(f"Run {turn}")
        well &= play.redrive("run", "orders", brief=turn > 1) == 0
        consumer.buy(f"later-{turn}")
        consumer.work()
        well &= play.check(f"later-{turn}" in consumer.done, "a good message that came meanwhile is done")
        if not consumer.depth(DEAD) and not play.states().get("waiting"):
            break
        play.wait_until_due()

    play.act("What became of them")
    rows = [_life(play, consumer, order) for order in POISON]
    play.table("The error decided", ("message", "cause", "sent again", "now"), rows)
    expected = {}
    for order in POISON:
        one = FAILURES[order.partition("-")[0]]
        expected[order] = "a person decides" if one.done == "person" else ", ".join([one.done] * one.times)
    other = [order for order, _, sent, _ in rows if sent != expected[order]]
    well &= play.check(not other, "each as its error asks for" + "".join(f"; not {order}" for order in other))
    well &= play.check(set(POISON) - set(consumer.done) == {"field-0", "field-1"}, "all but those two are processed")
    play.act("The life of one of them")
    return bool(well & (play.redrive("trace", "deadlock-0") == 0))


def _life(play: Play, consumer: Consumer, order: str) -> tuple[str, str, str, str]:
    [(cause, state)] = play.rows("select cause, state from messages where broker_message_id = :order", order=order)
    modes = play.rows(
        "select a.mode from redelivery_attempts a inner join messages m on m.message_id = a.message_id"
        " where m.broker_message_id = :order order by a.attempt",
        order=order,
    )
    now = "processed" if order in consumer.done else state
    return order, cause, ", ".join(mode for (mode,) in modes) or "a person decides", now


STORY = Story(
    page="rabbitmq",
    tell=tell,
    shorter={"backoff": {"least": "1s", "first": "2s", "factor": 1, "max": "2s"}, "drain": {"wait": "0s"}},
)
