"""One AMQP connection, driven by the thread that calls: every call waits for its answer or a deadline.

It stands on pika's non-blocking connection, as pika's own BlockingConnection does. That one confirms message by
message (430 to 1,900 messages a second here; in windows of 200 it is 3,600 and more), and both would lose header types,
so frames with content headers are handed on undecoded (:mod:`~redrive.brokers.rabbitmq.frames`).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import pika
import pika.exceptions as amqp
from pika import spec
from pika.adapters.select_connection import IOLoop

from redrive.brokers.rabbitmq.errors import channel_error, connection_error
from redrive.brokers.rabbitmq.frames import TOGETHER, Arrivals, Connection, Delivery, Taker, published
from redrive.errors import BrokerUnavailable

# Every lost connection is raised here as an error of ours; pika would log it as well, with its own stack.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)

#: Seconds. A node waits 0.25 s for the leader of a quorum queue to count, and then tells 0 messages and 0 consumers.
LEADER_PATIENCE = 0.2
#: So much longer than other answers such a one takes at least, which are not always equally quick.
MORE_THAN_THE_WAY = 0.15
#: So often such a count is asked for before nobody knows: a busy node may be slow once.
COUNTS = 3


class Link:
    """An open connection. ``timeout`` (seconds) bounds every answer that is waited for.

    A method that raises :class:`~redrive.errors.BrokerUnavailable` leaves the link closed.
    """

    def __init__(self, parameters: pika.ConnectionParameters, *, timeout: float, subject: str) -> None:
        self.timeout = timeout
        self.blocked = False  # the broker reads nothing more from us until its alarm is over
        self.error: BaseException | None = None
        self._loop = IOLoop()
        self._loop.activate_poller()
        opened: list[bool] = []
        self.connection = Connection(  # for its channels; others ask the link
            parameters,
            on_open_callback=lambda _: opened.append(True),
            on_open_error_callback=lambda _, error: self._closed(error),
            on_close_callback=lambda _, error: self._closed(error),
            custom_ioloop=self._loop,
        )
        self.connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        self.connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))
        if not self.wait(lambda: bool(opened), timeout + 5):
            error = self.error
            self.abort()
            raise connection_error(error, subject)
        self.connection.read_together()

    def _closed(self, error: BaseException) -> None:
        self.error = error

    def _set_blocked(self, blocked: bool) -> None:
        self.blocked = blocked

    @property
    def is_open(self) -> bool:
        """Nothing says that it is not."""
        return self.error is None and bool(self.connection.is_open)

    @property
    def frame_max(self) -> int:
        """Bytes per frame, as negotiated; a content header has to fit into one."""
        return int(self.connection.params.frame_max)

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Serve the connection until ``until()`` holds (True), or for ``seconds``, or until it is closed (False)."""
        if until():
            return True
        expired: list[bool] = []
        timer = self._loop.call_later(max(seconds, 0), lambda: expired.append(True))
        try:
            while not expired and self.error is None:
                self._loop.poll()
                self._loop.process_timeouts()
                if until():
                    return True
        finally:
            self._loop.remove_timeout(timer)
        return until()

    def serve(self) -> None:
        """Take in what has come: heartbeats, a close, an alarm."""
        self.wait(lambda: False, 0)

    def channel(self) -> "Channel":
        """Open a channel."""
        return Channel(self)

    def close(self) -> None:
        """Close in order: the broker has requeued what was unacked when this returns."""
        if self.is_open:
            with contextlib.suppress(amqp.AMQPError):
                self.connection.close()
                self.wait(lambda: self.error is not None, self.timeout)
        self.abort()

    def abort(self) -> None:
        """Drop the connection at once, as a killed process does."""
        if self.error is None:
            self.error = amqp.StreamLostError("dropped")
        with contextlib.suppress(Exception):  # whatever pika finds odd about being dropped no longer matters
            if self.connection.drop(self.error):
                for _ in range(3):
                    self._loop.process_timeouts()
        with contextlib.suppress(Exception):
            self._loop.deactivate_poller()
            self._loop.close()


class Channel:
    """A channel; the broker closes it when it refuses something, and then it is of no more use."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.reason: BaseException | None = None
        self.published = 0  # tags of the messages that were sent in confirm mode count from 1
        self.cancelled: set[str] = set()  # consumers that the broker cancelled
        self._prefetch: int | None = None  # of the next consumer
        opened: list[bool] = []
        self._channel = self._quietly(lambda: link.connection.channel(on_open_callback=lambda _: opened.append(True)))
        self._channel.add_on_close_callback(lambda _, reason: self._closed(reason))
        self._channel.add_on_cancel_callback(lambda answer: self.cancelled.add(answer.method.consumer_tag))
        self._answer(lambda: bool(opened), "channel.open", "")

    def _closed(self, reason: BaseException) -> None:
        self.reason = reason

    @property
    def is_open(self) -> bool:
        """Both the channel and its connection are."""
        return self.reason is None and self.link.is_open

    def count(self, queue: str, action: str) -> tuple[int, int]:
        """(ready messages, consumers) of ``queue``, asked passively.

        The channel handles what it was sent before first, so after acks this answer says that they were handled.
        """
        method = self._ask(lambda done: self._channel.queue_declare(queue, passive=True, callback=done), action, queue)
        return int(method.message_count), int(method.consumer_count)

    def known_count(self, queue: str, action: str) -> tuple[int, int] | None:
        """As :meth:`count`; None where the leader of a quorum queue hangs, so that nobody knows.

        A node that has waited for the leader in vain tells 0 and 0. So a slow zero is asked for again, and stays one
        only where an answer that needs no leader comes much sooner: what the network takes, or a busy node, is not the
        leader's. Where there is no leader at all, the zeros are quick, and can't be told apart here.
        """
        for _ in range(COUNTS):
            asked = time.monotonic()
            counted = self.count(queue, action)
            answered = time.monotonic()
            if any(counted) or answered - asked < LEADER_PATIENCE:
                return counted
            if answered - asked - self._way(queue) < MORE_THAN_THE_WAY:
                return counted
        return None

    def _way(self, queue: str) -> float:
        """Seconds that an answer takes which needs no leader: the least of a few, for one may be slow by itself."""
        took = []
        for _ in range(COUNTS):
            asked = time.monotonic()
            self._set_prefetch(self._prefetch or 0, queue)
            took.append(time.monotonic() - asked)
        return min(took)

    def declare(self, queue: str, arguments: dict[str, object]) -> None:
        """Make a durable queue with these arguments; harmless where it is there with the same ones."""
        self._ask(
            lambda done: self._channel.queue_declare(queue, durable=True, arguments=arguments, callback=done),
            "queue.declare",
            queue,
        )

    def subscribe(self, queue: str, prefetch: int, arrivals: Arrivals) -> str | None:
        """Let deliveries be added to ``arrivals``, of which ``prefetch`` may be unacked; returns the consumer's tag.

        Its answer is not waited for: a broker that is busy with acks takes a while to give it.
        """

        def deliver(_: object, method: Any, properties: Any, body: bytes) -> None:  # by pika's own way
            name, key = method.exchange, method.routing_key
            taker.add(Delivery(method.delivery_tag, method.redelivered, name, key, properties.raw, body))

        if prefetch != self._prefetch:  # it counts for the consumers that begin after it
            self._set_prefetch(prefetch, queue)
            self._prefetch = prefetch
        tag: str | None = self._quietly(lambda: self._channel.basic_consume(queue, deliver))
        if tag is not None:
            taker = self.link.connection.takers[self._channel.channel_number] = Taker(tag, arrivals)
            self.link.serve()  # pika writes when it is served
        return tag

    def unsubscribe(self, queue: str, tag: str | None) -> None:
        """Cancel the consumer; what was under way to it still comes, in its order."""

        def cancel(done: Callable[[Any], None]) -> None:
            self._channel.basic_cancel(tag, callback=done)
            self._channel._cancelled.discard(tag)  # what comes by pika's own way pika would give back

        self._ask(cancel, "basic.cancel", queue)
        self.link.connection.takers.pop(self._channel.channel_number, None)

    def leave(self, tag: str | None) -> None:
        """Cancel a consumer to which all came that may, before any of it is acked: nobody waits for the answer."""
        self._quietly(lambda: self._channel.basic_cancel(tag))
        self.link.connection.takers.pop(self._channel.channel_number, None)

    def ack(self, tag: int, *, multiple: bool) -> None:
        """Ack; there is no answer: ask for the :meth:`count` afterwards."""
        self._quietly(lambda: self._channel.basic_ack(tag, multiple))

    def requeue(self, tag: int, *, multiple: bool) -> None:
        """Give back to the queue, to where it was; there is no answer."""
        self._quietly(lambda: self._channel.basic_nack(tag, multiple, requeue=True))

    def reject(self, tag: int) -> None:
        """Let the broker dead-letter it, as a consumer does that gives up; there is no answer."""
        self._quietly(lambda: self._channel.basic_reject(tag, requeue=False))

    def confirm(
        self, on_word: Callable[[int, bool, bool], None], on_return: Callable[[int, str, bytes, bytes], None]
    ) -> None:
        """Enter confirm mode: ``on_word(tag, multiple, taken)``, ``on_return(code, text, raw, body)``."""

        def word(answer: Any) -> None:
            method = answer.method
            on_word(method.delivery_tag, method.multiple, isinstance(method, spec.Basic.Ack))

        self._channel.add_on_return_callback(
            lambda _, method, properties, body: on_return(method.reply_code, method.reply_text, properties.raw, body)
        )
        self._ask(lambda done: self._channel.confirm_delivery(word, callback=done), "confirm.select", "")

    def publish(self, messages: Sequence[tuple[str, bytes, bytes]]) -> None:
        """Send each (queue, content header, body) through the default exchange to its queue alone, mandatory; they will
        be confirmed under the next tags.

        Many frames go out together: pika writes each of the three frames of a message by itself, which takes half of
        the time of publishing. What is written goes to the broker while more is made.
        """
        self.published += len(messages)
        for frames in published(self._channel.channel_number, messages, self.link.frame_max):
            self._write(frames)
            if len(frames) >= TOGETHER:
                self.link.serve()

    def _write(self, frames: bytes) -> None:
        self._quietly(lambda: self.link.connection.write(frames))

    def close(self) -> None:
        """Close it; what is unacked goes back."""
        if self.is_open:
            with contextlib.suppress(amqp.AMQPError):
                self._channel.close()
                self.link.wait(lambda: self.reason is not None, self.link.timeout)

    def _set_prefetch(self, prefetch: int, queue: str) -> None:
        self._ask(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done), "basic.qos", queue)

    def _ask(self, call: Callable[[Callable[[Any], None]], object], action: str, queue: str) -> Any:
        answers: list[Any] = []
        self._quietly(lambda: call(answers.append))
        self._answer(lambda: bool(answers), action, queue)
        return answers[0].method

    def _answer(self, arrived: Callable[[], bool], action: str, queue: str) -> None:
        if self.link.wait(lambda: arrived() or self.reason is not None, self.link.timeout) and arrived():
            return
        subject = f"{action} on queue {queue}" if queue else action
        if not self.link.is_open:
            raise connection_error(self.link.error, subject)
        if self.reason is not None:
            raise channel_error(self.reason, action, queue)
        self.link.abort()
        raise BrokerUnavailable(f"{subject}: no answer within {self.link.timeout:g} s")

    def _quietly(self, call: Callable[[], Any]) -> Any:
        """``call``; a channel or connection that is closed already is noticed by whoever waits for the answer."""
        if not self.is_open:
            return None
        try:
            return call()
        except (amqp.ChannelWrongStateError, amqp.ConnectionWrongStateError) as error:
            if self.reason is None:
                self.reason = error
            return None
