"""RabbitMQ, over AMQP 0-9-1; what AMQP doesn't tell is asked of the management API where the connection names one.

RabbitMQ has no leases and no message ids. A message is ours until we ack it or our channel is gone, and a batch is
acked by one ``multiple`` ack: all of it or nothing. Acks have no answer, so a passive declare follows on the same
channel, and only its answer makes a batch settled.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, Self

import pika

from redrive.brokers.base import (
    Capabilities,
    ConsumerStats,
    Depth,
    Publication,
    QueueInfo,
    Settled,
    published_at_once,
)
from redrive.brokers.rabbitmq.confirms import WINDOW_BYTES, Sender, Window, packs
from redrive.brokers.rabbitmq.connection import arguments
from redrive.brokers.rabbitmq.consumption import Consumption
from redrive.brokers.rabbitmq.content_header import NotEncodable
from redrive.brokers.rabbitmq.errors import ACCESS_REFUSED, PRECONDITION_FAILED, channel_error, connection_error
from redrive.brokers.rabbitmq.frames import Delivery
from redrive.brokers.rabbitmq.kind import CAPABILITIES, CONSUMER_TIMEOUT, DELAYS, MAX_BYTES, WITH_MANAGEMENT
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.management import Management, QueueFacts
from redrive.brokers.rabbitmq.message import DELAY_PREFIX, delay_queue, encode, letter_of
from redrive.connections import lookup
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing
from redrive.message import Micros, Outgoing, Received

#: Bytes that a receive may have under way, and messages while their size is not known yet.
PREFETCH_BYTES, FIRST_PREFETCH = 16 * 1024 * 1024, 100
#: And messages at most.
MOST_PREFETCH = 5_000
#: The management API measures queues every five seconds (collect_statistics_interval).
STATISTICS_LAG = 6.0
LONGEST_NAME = 255


class Receipt(NamedTuple):
    """A delivery tag and the channel that it counts on; a channel that is opened anew has another number."""

    channel: int
    tag: int


class _Others(NamedTuple):
    """What others than we held of a queue, as the node measured it."""

    held: int
    ready: int | None  # what was ready at the same moment; None: not measured yet
    as_of: Micros


class _Known(NamedTuple):
    """What does not change while a queue exists."""

    delivery_limit: int | None = None
    keeps_order: bool = False


class _Holder:
    """The channel on which one queue is received, and what it holds unacked."""

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.held: dict[int, None] = {}  # unacked tags in rising order
        self.released: set[int] = set()
        self.last = 0
        self.coming: Consumption | None = None  # what comes while what was returned is worked on
        self.expected = 0  # so many of those that were counted have not come yet


def _held_of(receipts: Sequence[object], holder: _Holder) -> tuple[set[int], list[tuple[object, str]]]:
    """The tags of receipts that are held, and those that never can be again, with why."""
    tags: set[int] = set()
    failures: list[tuple[object, str]] = []
    for receipt in receipts:
        if not isinstance(receipt, Receipt) or not 0 < receipt.tag <= holder.last or receipt.channel != holder.number:
            failures.append((receipt, "its channel was lost, so the message went back to its queue"))
        elif receipt.tag in holder.released:
            failures.append((receipt, "it was given back"))
        elif receipt.tag in holder.held:
            tags.add(receipt.tag)
    return tags, failures


class RabbitMQ:
    """One virtual host as a connection reaches it; fills :class:`~redrive.brokers.base.Broker`, with the management
    API :class:`~redrive.brokers.base.ClosesConnections` too.

    ``confirm_timeout`` (seconds) is how long a confirmation may take; while the broker blocks us because of its memory
    or disk alarm the time stands still, for at most ``blocked_timeout``.
    """

    def __init__(
        self,
        hosts: Sequence[pika.ConnectionParameters],
        *,
        subject: str = "connection",
        management: Management | None = None,
        timeout: float = 30,
        confirm_timeout: float = 60,
        blocked_timeout: float = 120,
        keep_expiration: bool = False,
        max_message_bytes: int = MAX_BYTES,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hosts = hosts
        self._subject = subject
        self._management = management
        self._timeout = timeout
        self._confirm_timeout = confirm_timeout
        self._blocked_timeout = blocked_timeout
        self._keep_expiration = keep_expiration
        self._sleep = sleep
        self._monotonic = monotonic
        self.capabilities = replace(
            WITH_MANAGEMENT if management else CAPABILITIES, max_message_bytes=max_message_bytes
        )
        self._link: Link | None = None
        self._ever_connected = False
        self._probe: Channel | None = None
        self._sender: Sender | None = None
        self._holders: dict[str, _Holder] = {}
        self._numbers = 0
        self._mean_bytes: dict[str, float] = {}  # of what came
        self._backlog_bytes: dict[str, float | None] = {}  # and of all that lay there when the node measured it last
        self._touched: dict[str, float] = {}  # when a queue's unacked messages last changed through us
        self._others: dict[str, _Others] = {}  # what they held when it was last known apart from what we hold
        self._facts: dict[str, _Known] = {}  # see _known
        self._delay_queues: dict[str, set[str]] = {}  # by destination: where we made messages wait for it

    @classmethod
    def open(cls, connection_id: str, *, env: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """The virtual host that Airflow connection ``connection_id`` names; nothing is asked of it yet."""
        return cls(**(arguments(lookup.get(connection_id, env)) | options))

    def capabilities_for(self, queue: str) -> Capabilities:
        """See :class:`~redrive.brokers.base.Broker`; that a queue keeps order only the management API can tell."""
        able = replace(self.capabilities, in_order=self._known(queue).keeps_order)
        # A message that waits loses its own time to live, and the name of the queue where it waits has to fit.
        if self._keep_expiration or len(delay_queue(queue, DELAYS[-1]).encode()) > LONGEST_NAME:
            return replace(able, native_delay=None, native_delays=())
        return able

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`; there is no lease, messages are ours while the channel lives.

        A receive is a consumer with a prefetch of what it may return, so the broker never sends more than is wanted.
        Fewer than ``limit`` come where messages are large.
        """
        return self.receive_ahead(queue, limit=limit, ahead=0, wait=wait, lease=lease)

    def receive_ahead(
        self,
        queue: str,
        *,
        limit: int,
        ahead: int,
        wait: timedelta,
        lease: timedelta,  # noqa: ARG002
    ) -> list[Received]:
        """See :class:`~redrive.brokers.base.ReadsAhead`: another consumer is there at once, for as many again."""
        if limit < 1:
            return []
        lost = self._holders.get(queue)
        if lost is not None and lost.held and not lost.channel.is_open:
            # What is staged of it can't be settled any more, and would be staged again behind it.
            del self._holders[queue]
            raise BrokerUnavailable(
                f"basic.consume on queue {queue}: the channel was lost with {len(lost.held)} messages held;"
                " they went back to the queue"
            )
        holder = self._holder(queue, f"basic.consume on queue {queue}")
        patience, ready = wait.total_seconds(), 1
        coming = holder.coming
        if coming is None or coming.is_spent:
            ready, _ = self._on(queue, lambda: holder.channel.count(queue, "queue.declare"))
            if ready == 0 and patience <= 0:
                return []
            if queue not in self._others:  # while we hold some, nobody can tell what others do
                self._measured(queue)
            holder.expected = max(ready, 1)
            coming = holder.coming = Consumption(holder.channel, queue)
        self._ask(holder, coming, queue, limit, ahead)
        # What is ready comes at once, unless another consumer was quicker.
        first = max(patience, 0.5 if ready else 0)
        deliveries = self._on(queue, lambda: coming.take(limit, first=first, idle=0.25))
        if not deliveries:
            return []
        self._touched[queue] = self._monotonic()
        for delivery in deliveries:
            holder.held[delivery.tag] = None
        holder.last = max(holder.last, deliveries[-1].tag)
        holder.expected -= len(deliveries)
        size = sum(len(delivery.body) + len(delivery.raw) for delivery in deliveries) / len(deliveries)
        self._mean_bytes[queue] = max(size, (self._mean_bytes.get(queue) or 0) / 2)
        if ahead > 0:
            self._ask(holder, coming, queue, min(limit, ahead), max(ahead - limit, 0))
        self._on(queue, coming.end_if_spent)
        return [Received(self._letter(queue, one), Receipt(holder.number, one.tag)) for one in deliveries]

    def _ask(self, holder: _Holder, coming: Consumption, queue: str, limit: int, ahead: int) -> None:
        """Let some of ``limit`` and ``ahead`` come, of those that are expected to be there; fewer where they are large.

        What is under way has to be read before anything else is heard. So more than ``limit`` come only where the node
        tells how large all of them are: those behind may be larger than those that came. Then they come in two shares:
        while one is worked on, the other is under way.
        """
        if not coming.may_ask:
            return
        mean, whole = self._mean_bytes.get(queue), self._backlog_bytes.get(queue)
        affordable = FIRST_PREFETCH if mean is None else max(1, int(PREFETCH_BYTES / max(mean, whole or 0, 1)))
        most = min(affordable, limit if whole is None else max(limit, MOST_PREFETCH))
        # A power of two, so that a mean that moves a little doesn't make each share another size.
        share = most if most < 2 * limit else 1 << ((most // 2).bit_length() - 1)
        wanted = min(limit + ahead, holder.expected) - coming.waiting
        count = wanted if wanted <= most - coming.waiting else share
        if 0 < count <= most - coming.waiting:
            self._on(queue, lambda: coming.ask(count))

    def _letter(self, queue: str, delivery: Delivery) -> Any:
        return letter_of(
            delivery.raw,
            delivery.body,
            queue=queue,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            redelivered=delivery.redelivered,
            delivery_limit=lambda name: self._known(name).delivery_limit,
        )

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`.

        All receipts that are the oldest held of their queue go with one ``multiple`` ack, all or none. Raises
        :class:`~redrive.errors.BrokerUnavailable` where the connection is lost before the broker has answered: then
        nobody knows. Receipts of a channel that was lost before are failures: those messages went back.
        """
        return self._finish(
            queue, receipts, "basic.ack", lambda channel, tag, multiple: channel.ack(tag, multiple=multiple)
        )

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; they return to where they were, and count as redelivered."""
        self._finish(
            queue, receipts, "basic.nack", lambda channel, tag, multiple: channel.requeue(tag, multiple=multiple)
        )
        self._give_back(queue)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:  # noqa: ARG002
        """Nothing to extend: asks whether the channel lives.

        Raises :class:`~redrive.errors.BrokerUnavailable` when it is gone, and with it what was held.
        """
        if not receipts:
            return
        holder = self._holder(queue, f"basic.ack on queue {queue}")
        self._on(queue, lambda: holder.channel.count(queue, "queue.declare"))

    def reject(self, queue: str, receipts: Sequence[object]) -> None:
        """Let the broker dead-letter these messages, as a consumer does that gives up."""
        self._finish(queue, receipts, "basic.reject", lambda channel, tag, _: channel.reject(tag), one_by_one=True)

    def _finish(
        self,
        queue: str,
        receipts: Sequence[object],
        action: str,
        send: Callable[[Channel, int, bool], None],
        *,
        one_by_one: bool = False,
    ) -> Settled:
        if not receipts:
            return Settled(0)
        holder = self._holder(queue, f"{action} on queue {queue}")
        tags, failures = _held_of(receipts, holder)
        if holder.coming is not None:  # what is given back must not come again
            self._on(queue, holder.coming.before_ack if action == "basic.ack" else holder.coming.cancel)
        # As many as possible of the oldest in one: that is all of them, when a batch is settled as a whole.
        oldest = 0
        for tag in holder.held if not one_by_one else ():
            if tag not in tags:
                break
            oldest = tag
        if oldest:
            send(holder.channel, oldest, True)
        for tag in sorted(tag for tag in tags if tag > oldest):
            send(holder.channel, tag, False)
        self._touched[queue] = self._monotonic()
        self._on(queue, lambda: holder.channel.count(queue, action))
        for tag in tags:
            del holder.held[tag]
        if action != "basic.ack":
            holder.released |= tags
        return Settled(len(receipts) - len(failures), tuple(failures))

    def _holder(self, queue: str, subject: str) -> _Holder:
        link = self._connected(subject)
        holder = self._holders.get(queue)
        if holder is None or not holder.channel.is_open:
            self._numbers += 1
            holder = self._holders[queue] = _Holder(self._numbers, link.channel())
        return holder

    def _give_back(self, queue: str) -> None:
        """Let nothing more come from ``queue``, and give back what came and was not returned."""
        holder = self._holders.get(queue)
        if holder is None or holder.coming is None:
            return
        self._on(queue, holder.coming.cancel)
        tags = holder.coming.drop()
        holder.coming = None
        for tag in tags:
            holder.channel.requeue(tag, multiple=False)
        if tags and holder.channel.is_open:
            self._on(queue, lambda: holder.channel.count(queue, "basic.nack"))

    def _on(self, queue: str, call: Callable[[], Any]) -> Any:
        """``call``; when it fails, the queue's channel is not used again."""
        try:
            return call()
        except BrokerError:
            self._holders.pop(queue, None)
            raise

    # --- sending --------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        Through the default exchange, so only ``queue`` gets it; mandatory, because RabbitMQ confirms what it can't
        route and drops it; in confirm mode, in windows. A queue that isn't there or may not be written to is raised
        where nothing of the call was sent; otherwise what is left is ``retry``. After a connection that once worked
        is lost, what had not been written to it is ``retry`` too.

        A message with a delay goes to a queue with a time to live, from which the broker dead-letters it to ``queue``;
        the time to live is the next longer one of :data:`DELAYS`.
        """
        if not messages:
            return []
        results: list[Publication | None] = [None] * len(messages)
        try:
            link = self._connected(f"basic.publish on queue {queue}")
        except BrokerUnavailable as error:
            if not self._ever_connected:
                raise
            return [Publication("retry", detail=str(error))] * len(messages)
        encoded: list[bytes | None] = []
        for index, message in enumerate(messages):
            raw, objection = self._encoded(queue, message, link)
            encoded.append(raw)
            if raw is None:
                results[index] = Publication("refused", detail=objection)
        if not any(raw is not None for raw in encoded):
            self._probed(queue, "basic.publish")  # a missing queue is told before a message's own fault
        places = [queue] * len(messages)
        if any(message.delay_seconds > 0 for message in messages):
            self._probed(queue, "basic.publish")  # the queue where it waits is there, so nobody else would tell
            for index, message in enumerate(messages):
                if encoded[index] is not None and message.delay_seconds > 0:
                    places[index] = self._delay_queue(queue, message.delay_seconds)
        errors = self._send_all(queue, messages, encoded, results, places)
        done = [result or Publication("unknown", detail="RabbitMQ said nothing about it") for result in results]
        if errors and not any(result.status in ("sent", "unknown") for result in done):
            raise errors[0]
        return done

    def begin(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], list[Publication]]:
        """See :class:`~redrive.brokers.base.Pipelines`.

        What needs the broker's word before anything follows is published here: the first window of a channel, messages
        with a key or a delay, large ones, and any that RabbitMQ will never take.
        """
        finish = self._begun(queue, messages)
        return finish or published_at_once(lambda: self.publish(queue, messages))

    def _begun(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], list[Publication]] | None:
        link, sender = self._link, self._sender
        if link is None or sender is None or not messages:
            return None
        link.serve()
        if link.blocked or not sender.worked or not sender.channel.is_open:
            return None
        if any(one.ordering_key is not None or one.delay_seconds > 0 for one in messages):
            return None
        encoded = [self._encoded(queue, one, link)[0] for one in messages]
        if not all(encoded) or len(packs(messages, encoded)) > 1:
            return None
        if len(messages[0].body) > WINDOW_BYTES // 4:  # goes alone, so it is the only one
            return None
        pack = [(queue, raw or b"", one.body) for raw, one in zip(encoded, messages, strict=True)]
        window = sender.send(pack)

        def finish() -> list[Publication]:
            results, error = self._finished(queue, link, sender, window, pack, fresh=False)
            if error is not None and not any(one.status in ("sent", "unknown") for one in results):
                raise error
            return results

        return finish

    def _send_all(
        self,
        queue: str,
        messages: Sequence[Outgoing],
        encoded: Sequence[bytes | None],
        results: list[Publication | None],
        places: Sequence[str],
    ) -> list[BrokerError]:
        """Window after window; after an error that concerns the queue, nothing more is sent."""
        errors: list[BrokerError] = []
        blocked: set[str] = set()  # keys of which a message was not sent
        for together in packs(messages, encoded):
            going = []
            for index in together:
                if encoded[index] is None:
                    continue
                if errors:
                    results[index] = Publication("retry", detail=str(errors[0]))
                elif messages[index].ordering_key in blocked:
                    results[index] = Publication("retry", detail="an earlier message of its key was not sent")
                else:
                    going.append(index)
            if going:
                pack = [(places[i], encoded[i] or b"", messages[i].body) for i in going]
                outcome, problem = self._send(queue, pack)
                for index, result in zip(going, outcome, strict=True):
                    results[index] = result
                errors += [problem] if problem else []
            for index in together:
                key, said = messages[index].ordering_key, results[index]
                if key is not None and said is not None and said.status != "sent":
                    blocked.add(key)
        return errors

    def _encoded(self, queue: str, message: Outgoing, link: Link) -> tuple[bytes | None, str]:
        """The message's content header, or why RabbitMQ will never take it."""
        try:
            user = self._hosts[0].credentials.username
            raw = encode(message, queue=queue, user=user, keep_expiration=self._keep_expiration)
        except NotEncodable as error:
            return None, str(error)
        if message.delay_seconds > 0 and message.delay_seconds > self._longest_delay(queue):
            return None, f"a delay of {message.delay_seconds:g} s is longer than a queue keeps it here"
        bound = self.capabilities.max_message_bytes
        if bound is not None and len(message.body) > bound:
            return None, f"{len(message.body)} bytes; RabbitMQ takes at most {bound}"
        if len(raw) + 32 > link.frame_max:
            return None, f"{len(raw)} bytes of headers; they have to fit into one frame of {link.frame_max}"
        return raw, ""

    def _longest_delay(self, queue: str) -> float:
        longest = self.capabilities_for(queue).native_delay
        return longest.total_seconds() if longest else 0

    def _delay_queue(self, queue: str, seconds: float) -> str:
        """The queue where messages wait so long for ``queue``, made where it isn't there.

        A quorum queue that dead-letters at least once: should ``queue`` be away or full then, they wait on. It stays
        when it is empty, because nobody could say that it will be so when it is deleted.
        """
        kept = next(one for one in DELAYS if one >= seconds)
        name, known = delay_queue(queue, kept), self._delay_queues.setdefault(queue, set())
        if name not in known:
            channel = self._connected(f"queue.declare on queue {name}").channel()
            try:
                channel.declare(
                    name,
                    {
                        "x-queue-type": "quorum",
                        "x-message-ttl": kept * 1000,
                        "x-dead-letter-exchange": "",
                        "x-dead-letter-routing-key": queue,
                        "x-dead-letter-strategy": "at-least-once",
                        "x-overflow": "reject-publish",
                    },
                )
            finally:
                channel.close()
            known.add(name)
        return name

    def _send(
        self, queue: str, pack: Sequence[tuple[str, bytes, bytes]]
    ) -> tuple[list[Publication], BrokerError | None]:
        """Send one window and wait for what the broker says of each; the error where it concerns all."""
        try:
            link = self._connected(f"basic.publish on queue {queue}")
            if not self._unblocked(link):
                detail = "RabbitMQ blocks publishers (memory or disk alarm)"
                return [Publication("retry", detail=detail)] * len(pack), BrokerUnavailable(f"{queue}: {detail}")
            if self._sender is None or not self._sender.channel.is_open:
                self._sender = Sender(link.channel())
        except BrokerError as error:  # of this window nothing was sent; of an earlier one something may have been
            return [Publication("retry", detail=str(error))] * len(pack), error
        sender = self._sender
        for other in sender.unanswered():  # should it close the channel, that says nothing of what was begun before
            self._await(link, sender, other)
        fresh = not sender.worked
        return self._finished(queue, link, sender, sender.send(pack), pack, fresh=fresh)

    def _finished(
        self,
        queue: str,
        link: Link,
        sender: Sender,
        window: Window,
        pack: Sequence[tuple[str, bytes, bytes]],
        *,
        fresh: bool,
    ) -> tuple[list[Publication], BrokerError | None]:
        """Wait for what the broker says of each message of a window; the error where it concerns all."""
        self._await(link, sender, window)
        if window.pending and sender.channel.is_open:
            # A late word would be taken for one on a later message, so nothing more is heard on this connection.
            link.abort()
            detail = f"RabbitMQ did not confirm within {self._confirm_timeout:g} s"
            return window.results(lambda _: Publication("unknown", detail=detail)), None
        if window.pending:
            return self._after_close(queue, link, sender, window, fresh=fresh)
        sender.worked = True
        window.classify_nacks([self._rejects_when_full(place) for place, _, _ in pack] if window.nacked else [])
        results = window.results(lambda _: Publication("unknown"))
        if window.returned or window.unmatched:
            self._delay_queues.pop(queue, None)  # somebody may have deleted one
        if (window.returned or window.unmatched) and not self._exists(queue):
            return results, QueueMissing(f"basic.publish on queue {queue}: {window.words or 'no such queue'}")
        return results, None

    def _unblocked(self, link: Link) -> bool:
        """Wait while the broker blocks us; whether it has stopped."""
        link.serve()
        return link.wait(lambda: not link.blocked, self._blocked_timeout if link.blocked else 0)

    def _await(self, link: Link, sender: Sender, window: Window) -> None:
        """Wait for the confirmations; while the broker blocks us their clock stands still."""
        asked = self._monotonic()
        blocked = 0.0
        while window.pending and sender.channel.is_open:
            left = self._confirm_timeout - (self._monotonic() - asked - blocked)
            if left <= 0 or blocked > self._blocked_timeout:
                return
            before, was_blocked = self._monotonic(), link.blocked
            link.wait(lambda: not window.pending or not sender.channel.is_open, min(left, 0.5))
            if was_blocked or link.blocked:
                blocked += self._monotonic() - before

    def _after_close(
        self, queue: str, link: Link, sender: Sender, window: Window, *, fresh: bool
    ) -> tuple[list[Publication], BrokerError | None]:
        """The broker closed the channel or the connection is gone: what that says of the messages without a word."""
        if self._sender is sender:
            self._sender = None
        if not link.is_open:
            lost = connection_error(link.error, f"basic.publish on queue {queue}")
            return window.results(lambda _: Publication("unknown", detail=str(lost))), None
        reason = sender.channel.reason
        error = channel_error(reason or ConnectionError("closed"), "basic.publish", queue)
        code = getattr(reason, "reply_code", 0)
        if code == ACCESS_REFUSED and fresh:  # the first message of the channel was refused, so nothing was taken
            return window.results(lambda _: Publication("retry", detail=str(error))), error
        if code == PRECONDITION_FAILED and window.size == 1 and not window.shared:
            return [Publication("refused", detail=str(error))], None
        return window.results(lambda _: Publication("unknown", detail=str(error))), None

    def _rejects_when_full(self, queue: str) -> bool:
        """A nack of ``queue`` says that it is full, as far as may be known."""
        if queue.startswith(DELAY_PREFIX):
            return True
        if self._management is None:
            return False
        try:
            return self._management.queue(queue).rejects_when_full
        except BrokerError:
            return False

    def _exists(self, queue: str) -> bool:
        try:
            self._probed(queue, "queue.declare")
        except QueueMissing:
            return False
        except BrokerError:
            return True
        return True

    # --- looking --------------------------------------------------------------------------------------

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; by the default exchange only this queue gets it."""
        return queue == origin

    def origins(self, queue: str) -> frozenset[str] | None:
        """See :class:`~redrive.brokers.base.Broker`: those whose dead letters get there, at once or through others;
        None without the management API, which alone tells."""
        if self._management is None:
            return None
        feeding = {one.name: self._management.targets(one) for one in self._dead_lettering()}
        found: set[str] = set()
        reached = [queue]
        while reached:
            target = reached.pop()
            new = [name for name, targets in feeding.items() if target in targets and name not in found]
            found.update(new)
            reached += new
        return frozenset(found - {queue})

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`.

        Ready messages are counted now, with those that came ahead. What consumers hold is exact for ourselves; for
        others it comes from the management API, seconds late, and without one it is not known. The depth is as old as
        its oldest part. Where others receive, the two don't belong together: what they took since would be in neither.
        Then both are those that the node measured at one moment. What waits in a delay queue is ready there; delayed is
        what waits where this instance made messages wait.
        """
        came = self._came(queue)
        ready, consumers = self._probed(queue, "queue.declare")
        delayed = self._delayed(queue)
        if self._management is None:
            return Depth(came + ready, None, delayed, consumers)
        ours, others = self._held(queue), self._measured(queue)
        if others is None:
            return Depth(came + ready, None, delayed, consumers)
        if others.ready is not None and not self._just_touched(queue) and (consumers or ready < others.ready):
            ready = others.ready
        return Depth(came + ready, ours + others.held, delayed, consumers, others.as_of)

    def _came(self, queue: str) -> int:
        """What came and was not returned yet; nothing more comes."""
        holder = self._holders.get(queue)
        if holder is None or holder.coming is None:
            return 0
        self._on(queue, holder.coming.cancel)
        return holder.coming.waiting

    def _held(self, queue: str) -> int:
        holder = self._holders.get(queue)
        return len(holder.held) if holder is not None and holder.channel.is_open else 0

    def _just_touched(self, queue: str) -> bool:
        """The node's numbers may be from before we received or settled there, or from after."""
        touched = self._touched.get(queue)
        return touched is not None and self._monotonic() - touched <= STATISTICS_LAG

    def _measured(self, queue: str) -> _Others | None:
        """What others hold, as it was measured last; None where it never was, or is not told any more."""
        if self._management is None:
            return None
        if not self._just_touched(queue):
            self._others.pop(queue, None)
            try:
                facts = self._management.queue(queue)
            except (BrokerUnavailable, PermissionRefused):
                return None
            self._backlog_bytes[queue] = facts.mean_bytes
            if not facts.statistics:
                return None
            as_of = round((time.time() - STATISTICS_LAG) * 1_000_000)
            held = max((facts.unacked or 0) - self._held(queue), 0)  # None: nothing was ever delivered
            self._others[queue] = _Others(held, facts.ready, as_of)
        return self._others.get(queue)

    def _delayed(self, queue: str) -> int:
        waiting = 0
        for name in sorted(self._delay_queues.get(queue, ())):
            try:
                waiting += self._probed(name, "queue.declare")[0]
            except QueueMissing:
                self._delay_queues[queue].discard(name)
        return waiting

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; most of it only with the management API."""
        self._probed(queue, "queue.declare")
        if self._management is None:
            return QueueInfo(lease=CONSUMER_TIMEOUT)
        facts = self._management.queue(queue)
        targets = self._management.targets(facts)
        limits = [one.delivery_limit for one in self._feeding(queue) if one.delivery_limit is not None]
        own = facts.delivery_limit
        return QueueInfo(
            retention=timedelta(milliseconds=facts.ttl_ms) if facts.ttl_ms is not None else None,
            lease=CONSUMER_TIMEOUT,
            max_deliveries=min(limits) + 1 if limits else own + 1 if own is not None else None,
            ordered=facts.single_active_consumer,  # only then does a second consumer not overtake the first
            dead_letter_queue=targets[0] if targets else None,
            warnings=_warnings(facts),
        )

    def consumers(self, queue: str) -> list[ConsumerStats]:
        """See :class:`~redrive.brokers.base.TellsOfConsumers`; [] without the management API.

        Measured per channel, seconds ago: who shares a channel shares its numbers. A consumer of which the user may
        not see the channel holds nothing, as far as this tells.
        """
        if self._management is None:
            return []
        there = self._management.consumers(queue)
        if not there:
            return []
        channels = {channel.name: channel for channel in self._management.channels(queue)}
        ours = {one.channel for one in there}
        elsewhere = {
            channel.connection
            for channel in channels.values()
            if channel.name not in ours and (channel.consumers or channel.unacked)
        }
        found = []
        for one in there:
            name, shared = f"{one.tag} on {one.channel}", one.connection in elsewhere
            channel = channels.get(one.channel)
            if channel is None or not one.acks:
                found.append(ConsumerStats(name, 0, 0, one.connection, shared))
                continue
            # RabbitMQ counts acks, not rejections; but what was delivered and is not held was answered, in one way or
            # the other. The two are not measured at the same moment, so that is used only where deliveries end by
            # themselves, and can't outweigh an ack.
            answered = channel.acked << 20
            if one.prefetch or channel.prefetch:
                answered += channel.delivered - channel.unacked
            found.append(ConsumerStats(name, channel.unacked, answered, one.connection, shared))
        return found

    def close_connection(self, queue: str, connection: str, reason: str) -> bool:
        """See :class:`~redrive.brokers.base.ClosesConnections`; needs the management API, and an administrator there
        or the consumer's own user."""
        if self._management is None:
            raise PermissionRefused(f"closing a connection of a consumer of queue {queue} needs the management API")
        return self._management.close_connection(connection, reason, queue)

    def _feeding(self, queue: str) -> list[QueueFacts]:
        """The queues that dead-letter into ``queue``."""
        assert self._management is not None  # noqa: S101 - the caller looked
        return [one for one in self._dead_lettering() if queue in self._management.targets(one)]

    def _dead_lettering(self) -> list[QueueFacts]:
        assert self._management is not None  # noqa: S101 - the caller looked
        return [one for one in self._management.queues() if one.dead_letter_exchange is not None]

    def _known(self, queue: str) -> _Known:
        """What the management API says of a queue, as far as may be known; asked once."""
        if queue not in self._facts:
            self._facts[queue] = _Known()
            if self._management is not None:
                try:
                    facts = self._management.queue(queue)
                    self._facts[queue] = _Known(facts.delivery_limit)
                    self._facts[queue] = _Known(facts.delivery_limit, self._management.keeps_order(facts))
                except BrokerError:
                    pass  # a queue that is gone, or no right to look: then it stays unknown
        return self._facts[queue]

    def _probed(self, queue: str, action: str) -> tuple[int, int]:
        link = self._connected(f"{action} on queue {queue}")
        if self._probe is None or not self._probe.is_open:
            self._probe = link.channel()
        return self._probe.count(queue, action)

    # --- the connection -------------------------------------------------------------------------------

    def _connected(self, subject: str) -> Link:
        """The link, opened anew where it was lost. Every host is tried, the whole list three times."""
        if self._link is not None and self._link.is_open:
            self._link.serve()
        if self._link is not None and self._link.is_open:
            return self._link
        self._forget_link()
        problem: BrokerError = BrokerUnavailable(f"{subject}: no host")
        for attempt in range(3):
            if attempt:
                self._sleep(0.3 * attempt)
            for parameters in self._hosts:
                where = f"{self._subject} at {parameters.host}:{parameters.port}"
                try:
                    self._link = Link(parameters, timeout=self._timeout, subject=f"{where}, {subject}")
                    self._ever_connected = True
                    return self._link
                except BrokerUnavailable as error:
                    problem = error
        raise problem

    def _forget_link(self) -> None:
        if self._link is not None:
            self._link.abort()
        self._link = self._probe = self._sender = None
        self._holders.clear()

    def close(self) -> None:
        """Close the connection; what is held goes back to its queue at once."""
        if self._link is not None:
            self._link.close()
        self._forget_link()


def _warnings(facts: QueueFacts) -> tuple[str, ...]:
    found = []
    if facts.delivery_limit is not None:
        then = "dead-letters" if facts.dead_letter_exchange is not None else "DELETES"
        found.append(
            f"has a delivery limit of its own ({facts.delivery_limit}): after so many returns (a lost connection, a"
            f" look through the management page) the broker {then} a message; lift it (delivery-limit -1, or none)"
        )
    if facts.single_active_consumer:
        found.append("has a single active consumer: while another holds it, a drain gets nothing")
    if facts.type == "stream":
        found.append("is a stream: its messages can't be taken out, so it can't be drained")
    return tuple(found)
