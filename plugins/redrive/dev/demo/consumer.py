"""The demo's consumer: it takes orders from the queue, and sees to those whose handler failed.

A handler (:mod:`redrive.dev.demo.handlers`) returns when the work is done and raises when it isn't. What happens then:

* most failures: the consumer sends a copy to the dead-letter queue with the traceback in the attribute
  ``error`` and deletes the original;
* "try later": the consumer sends a copy to the delay queue;
* "not mine": it gives the message back at once, and after a few rounds the queue's own redrive policy
  dead-letters it, without a word about why;
* too slow: the work is finished and recorded, but the visibility timeout has run out in between, and the
  queue has dead-lettered a message that was processed.
"""

import json
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redrive.dev.demo.handlers import HANDLERS, NotMine, Order, TryLater, now
from redrive.dev.demo.orders import Attributes, text_attribute
from redrive.dev.demo.services import Shop
from redrive.dev.demo.world import DEAD, DELAY, ORDERS, Queues

ERROR_ATTRIBUTE = "error"
MAX_ATTRIBUTES = 10
MAX_ERROR_CHARACTERS = 3000
#: Dropped first when the error text needs the room; everything else is business, or somebody's tracking.
EXPENDABLE = ("trace", "sent-by")


class NoHandler(LookupError):
    """Nobody here knows this type of order."""


class Consumer:
    """Takes messages from ``orders`` with a pool of threads until the queue is empty."""

    def __init__(self, queues: Queues, shop: Shop, *, workers: int = 64) -> None:
        self.queues = queues
        self.shop = shop
        #: What became of deliveries: processed, dead_lettered, delayed, given_back, abandoned.
        self.tally: Counter[str] = Counter()
        self._workers = workers
        self._free = threading.Semaphore(workers)
        self._busy = 0
        self._lock = threading.Lock()
        self._killed = threading.Event()

    def work_off(self, *, patience: float, limit: float) -> Counter[str]:
        """Consume until ``orders`` is empty, wait ``patience`` seconds for stragglers, then stop.

        Gives up after ``limit`` seconds in any case. Returns the tally.
        """
        deadline = time.monotonic() + limit
        self._consume(
            lambda taken: time.monotonic() < deadline and bool(taken or self.queues.counts(ORDERS).total),
            lambda: min(deadline, time.monotonic() + patience),
        )
        return self.tally

    def run(self, stop: threading.Event) -> None:
        """Consume until ``stop`` is set."""
        self._consume(lambda _taken: not stop.is_set(), time.monotonic)

    def _consume(self, goes_on: Callable[[int], bool], until: Callable[[], float]) -> None:
        """Take messages while ``goes_on(how many came last)``, then wait for stragglers ``until`` a moment.

        Whoever still works then is killed in the middle, as a deployment does it: neither deleted nor
        dead-lettered.
        """
        with ThreadPoolExecutor(self._workers, thread_name_prefix="order-consumer") as pool:
            try:
                while goes_on(self._take_some(pool)):
                    pass
                deadline = until()
                while self._busy and time.monotonic() < deadline:
                    time.sleep(0.05)
            finally:
                self._killed.set()
                self.tally["abandoned"] += self._busy
                if self._busy:
                    # Nothing but closing their connections wakes threads that wait without a timeout.
                    self.shop.hang_up()

    def _take_some(self, pool: ThreadPoolExecutor) -> int:
        """Receive as many messages as there are idle workers, so none waits here under its lease."""
        self._free.acquire()
        slots = 1
        while slots < 10 and self._free.acquire(blocking=False):
            slots += 1
        messages = self.queues.client.receive_message(
            QueueUrl=self.queues.url(ORDERS),
            MaxNumberOfMessages=slots,
            WaitTimeSeconds=1,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        ).get("Messages", [])
        for _ in range(slots - len(messages)):
            self._free.release()
        for message in messages:
            with self._lock:
                self._busy += 1
            pool.submit(self._handle, message)
        return len(messages)

    def _handle(self, message: dict[str, Any]) -> None:
        try:
            outcome = self._outcome(message)
            with self._lock:
                self.tally[outcome] += 1
        finally:
            with self._lock:
                self._busy -= 1
            self._free.release()

    def _outcome(self, message: dict[str, Any]) -> str:
        client, url = self.queues.client, self.queues.url(ORDERS)
        receipt = message["ReceiptHandle"]
        attributes: Attributes = message.get("MessageAttributes", {})
        try:
            order = json.loads(message["Body"])
            handler = HANDLERS.get(order.get("type"))
            if handler is None:
                raise NoHandler(f"no handler registered for order type '{order.get('type')}'")
            handler(order, self.shop)
            self._record(order, attributes)
        except NotMine:
            client.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
            return "given_back"
        except TryLater:
            self._forward(DELAY, message, attributes)
            return "delayed"
        except Exception as error:  # whatever it was: say so, and keep the queue moving
            if self._killed.is_set():
                return "killed"
            self._forward(DEAD, message, with_error(attributes, error))
            return "dead_lettered"
        # Too late for a message whose visibility ran out: the receipt is no longer good, and the queue
        # answers as if it were.
        client.delete_message(QueueUrl=url, ReceiptHandle=receipt)
        return "processed"

    def _record(self, order: Order, attributes: Attributes) -> None:
        with self.shop.orders() as database:
            message_id, at = attributes["message_id"]["StringValue"], now()
            database.execute("insert into work_log values (?, ?)", (message_id, at))
            database.execute(
                "insert or ignore into processed values (?, ?, ?, ?)",
                (message_id, order["order_id"], order["type"], at),
            )

    def _forward(self, queue: str, message: dict[str, Any], attributes: Attributes) -> None:
        """Send a copy, and only then delete the original."""
        trace = message.get("Attributes", {}).get("AWSTraceHeader")
        system = {"AWSTraceHeader": text_attribute(trace)} if trace else {}
        self.queues.client.send_message(
            QueueUrl=self.queues.url(queue),
            MessageBody=message["Body"],
            MessageAttributes=attributes,
            MessageSystemAttributes=system,
        )
        self.queues.client.delete_message(QueueUrl=self.queues.url(ORDERS), ReceiptHandle=message["ReceiptHandle"])


def with_error(attributes: Attributes, error: BaseException) -> Attributes:
    """``attributes`` and the error's traceback, in the ten that SQS allows.

    The message id and whatever somebody tracks the message by (``x-…``) stay; ``trace`` and ``sent-by`` go
    first where there is no room. With no room even so, the error text is left out.
    """
    kept = {name: value for name, value in attributes.items() if name != ERROR_ATTRIBUTE}
    for name in EXPENDABLE:
        if len(kept) >= MAX_ATTRIBUTES:
            kept.pop(name, None)
    if len(kept) < MAX_ATTRIBUTES:
        kept[ERROR_ATTRIBUTE] = text_attribute(error_text(error))
    return kept


def error_text(error: BaseException) -> str:
    """The traceback, cut in the middle if it is long, without characters that SQS refuses."""
    text = "".join(traceback.format_exception(error)).strip()
    if len(text) > MAX_ERROR_CHARACTERS:
        head = MAX_ERROR_CHARACTERS // 3
        text = f"{text[:head]}\n  ... cut ...\n{text[head - MAX_ERROR_CHARACTERS :]}"
    return "".join(c if c >= " " or c in "\t\n\r" else "\N{REPLACEMENT CHARACTER}" for c in text)
