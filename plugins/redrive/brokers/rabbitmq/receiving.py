"""The receiving half: who holds which messages, what comes ahead, and what becomes of messages that are held.

RabbitMQ has no leases and no message ids. A message is ours until we ack it or our channel is gone, and a batch is
acked by one ``multiple`` ack: all of it or nothing. Acks have no answer, so a passive declare follows on the same
channel, and only its answer makes a batch settled.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from redrive.brokers.base import RECEIVE_BYTES, Settled
from redrive.brokers.rabbitmq.consumption import Consumption
from redrive.brokers.rabbitmq.declared import Declared
from redrive.brokers.rabbitmq.frames import HARMLESS, Delivery
from redrive.brokers.rabbitmq.link import Channel
from redrive.brokers.rabbitmq.measured import Measured
from redrive.brokers.rabbitmq.message import letter_of
from redrive.brokers.rabbitmq.session import Session
from redrive.errors import BrokerError, BrokerUnavailable
from redrive.message import DeadLetter, Received

#: Messages that a receive may have under way at most; in bytes, by what is known of their size, RECEIVE_BYTES.
MOST_PREFETCH = 8_192
#: How long a queue that has messages may take to give out the first.
SLOWEST = timedelta(seconds=5)


class Receipt(NamedTuple):
    """A delivery tag and the channel that it counts on; a channel that is opened anew has another number."""

    channel: int
    tag: int


class Holder:
    """The channel on which one queue is received, and what it holds unacked."""

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.held: dict[int, None] = {}  # unacked tags in rising order
        self.released: set[int] = set()
        self.last = 0
        self.coming: Consumption | None = None  # what comes while what was returned is worked on
        self.expected = 0  # so many of those that were counted have not come yet


class Receiving:
    """What one instance receives of each queue, on a channel of its own for each.

    Its methods raise what those of :class:`~redrive.brokers.base.Broker` do. After an error the queue's channel is not
    used again.
    """

    def __init__(self, session: Session, measured: Measured, declared: Declared) -> None:
        self.holders: dict[str, Holder] = {}  # by queue
        self._session = session
        self._measured = measured
        self._declared = declared
        self._numbers = 0
        self._mean_bytes: dict[str, float] = {}  # of what came
        self._uneven: set[str] = set()  # queues where far larger ones came than those before
        self._lost: dict[str, int] = {}  # by queue: so many were held where its channel was lost, and nobody was told
        session.on_loss(self._lose_all)

    def receive(self, queue: str, *, limit: int, ahead: int, wait: timedelta) -> list[Received]:
        """Up to ``limit`` messages, and ``ahead`` more under way; see :class:`~redrive.brokers.base.ReadsAhead`.

        A receive is a consumer with a prefetch of what it may return, so the broker never sends more than is wanted.
        Fewer than ``limit`` come where messages are large. Raises :class:`~redrive.errors.BrokerUnavailable`, once,
        where the channel was lost with messages held: they would come again, and be staged behind their first copies;
        and where messages are ready and none is given out, or nobody knows whether some are: that is no empty queue.
        """
        if limit < 1:
            return []
        if queue not in self.holders and (objection := self._declared.not_drained(queue)):
            raise BrokerError(f"basic.consume on queue {queue}: {objection}")
        holder = self._holding(queue, f"basic.consume on queue {queue}")
        patience, ready = wait.total_seconds(), 1
        self._give_back_spilled(queue, holder)
        coming = holder.coming
        if coming is None or coming.is_spent:
            # Where none is, a consumer that RabbitMQ answers says so too: without a leader a count is 0.
            ready = self._ready(queue)
            if not self._measured.is_known(queue):  # while we hold some, nobody can tell what others do
                self._measured.others(queue, self.held)
            holder.expected = max(ready, 1)
            coming = holder.coming = Consumption(holder.channel, queue)
        self._ask(holder, coming, queue, limit, ahead)
        # What is ready comes at once, unless another consumer was quicker.
        first = max(patience, 0.5 if ready else 0)
        deliveries = self._on(queue, lambda: coming.take(limit, first=first, idle=0.25))
        if not deliveries and coming.has_spilled:
            return self.receive(queue, limit=limit, ahead=ahead, wait=wait)
        if not deliveries:
            if ready == 0 or self._ready(queue) == 0:
                return []
            if wait < SLOWEST:
                return self.receive(queue, limit=limit, ahead=ahead, wait=SLOWEST)
            raise BrokerUnavailable(
                f"basic.consume on queue {queue}: messages are ready and none is given out; another consumer may be its"
                " single active one, or have a higher priority, or it is a stream"
            )
        self._measured.touch(queue)
        for delivery in deliveries:
            holder.held[delivery.tag] = None
        holder.last = max(holder.last, deliveries[-1].tag)
        holder.expected -= len(deliveries)
        size = sum(len(delivery.body) + len(delivery.raw) for delivery in deliveries) / len(deliveries)
        self._mean_bytes[queue] = max(size, (self._mean_bytes.get(queue) or 0) / 2)
        self._give_back_spilled(queue, holder)
        if ahead > 0:
            self._ask(holder, coming, queue, min(limit, ahead), max(ahead - limit, 0))
        self._on(queue, coming.end_if_spent)
        return [Received(self._letter(queue, one), Receipt(holder.number, one.tag)) for one in deliveries]

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

    def extend(self, queue: str, receipts: Sequence[object]) -> None:
        """Nothing to extend: asks whether the channel lives.

        Raises :class:`~redrive.errors.BrokerUnavailable` when it is gone, and with it what was held.
        """
        if not receipts:
            return
        holder = self._holding(queue, f"basic.ack on queue {queue}")
        self._on(queue, lambda: holder.channel.count(queue, "queue.declare"))

    def reject(self, queue: str, receipts: Sequence[object]) -> None:
        """Let the broker dead-letter these messages, as a consumer does that gives up."""
        self._finish(queue, receipts, "basic.reject", lambda channel, tag, _: channel.reject(tag), one_by_one=True)

    def held(self, queue: str) -> int:
        """So many messages were returned and are not settled."""
        holder = self.holders.get(queue)
        return len(holder.held) if holder is not None and holder.channel.is_open else 0

    def came(self, queue: str) -> int:
        """So many messages came and were not returned yet; nothing more comes."""
        holder = self.holders.get(queue)
        if holder is None or holder.coming is None:
            return 0
        holder.coming.cancel()  # who asks may go on after an error: so the loss stays to be told by a receive
        return holder.coming.waiting

    def let_go(self) -> None:
        """What is held goes back with the connection, which is closed next: that is no loss."""
        self.holders.clear()
        self._lost.clear()

    def _ready(self, queue: str) -> int:
        """So many messages are ready. Asked apart from what is held, which stays so where nobody knows: a queue's
        channel waits for its leader with all that it was sent."""
        counted = self._session.counted(queue)
        if counted is None:
            raise BrokerUnavailable(
                f"basic.consume on queue {queue}: its leader doesn't answer, so nobody knows whether messages are there"
            )
        return counted[0]

    def _ask(self, holder: Holder, coming: Consumption, queue: str, limit: int, ahead: int) -> None:
        """Let some of ``limit`` and ``ahead`` come, of those that are expected to be there; fewer where they are large.

        What is under way has to be read before anything else is heard. So more than ``limit`` come only where the node
        tells how large all of them are: those behind may be larger than those that came. Then they come in two shares:
        while one is worked on, the other is under way.
        """
        if not coming.may_ask:
            return
        mean, whole = self._mean_bytes.get(queue), self._measured.backlog_bytes.get(queue)
        affordable = HARMLESS if mean is None else max(1, int(RECEIVE_BYTES / max(mean, whole or 0, 1)))
        if queue in self._uneven:
            affordable = min(affordable, HARMLESS)
        most = min(affordable, limit if whole is None else max(limit, MOST_PREFETCH))
        # A power of two, so that a mean that moves a little doesn't make each share another size.
        share = most if most < 2 * limit else 1 << ((most // 2).bit_length() - 1)
        wanted = min(limit + ahead, holder.expected) - coming.waiting
        count = wanted if wanted <= most - coming.waiting else share
        if 0 < count <= most - coming.waiting:
            self._on(queue, lambda: coming.ask(count))

    def _letter(self, queue: str, delivery: Delivery) -> DeadLetter:
        return letter_of(
            delivery.raw,
            delivery.body,
            queue=queue,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            redelivered=delivery.redelivered,
            delivery_limit=self._declared.delivery_limit,
        )

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
        holder, _ = self._holder(queue, f"{action} on queue {queue}")  # a loss is told by the failures
        tags, failures = _held_of(receipts, holder)
        self._give_back_spilled(queue, holder)
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
        self._measured.touch(queue)
        self._on(queue, lambda: holder.channel.count(queue, action))
        for tag in tags:
            del holder.held[tag]
        if action != "basic.ack":
            holder.released |= tags
        return Settled(len(receipts) - len(failures), tuple(failures))

    def _holding(self, queue: str, subject: str) -> Holder:
        """As :meth:`_holder`; raises :class:`~redrive.errors.BrokerUnavailable` where messages were lost."""
        holder, lost = self._holder(queue, subject)
        if lost:
            raise BrokerUnavailable(
                f"{subject}: the channel was lost with {lost} messages held; they went back to the queue"
            )
        return holder

    def _holder(self, queue: str, subject: str) -> tuple[Holder, int]:
        """The queue's holder, opened anew where it was lost; and how many it held then, where nobody was told yet.

        What has come is taken in first: a close that was not read yet is a loss too.
        """
        try:
            link = self._session.connected(subject)
            holder = self.holders.get(queue)
            if holder is not None and not holder.channel.is_open:
                self._lose(queue)
        finally:
            lost = self._lost.pop(queue, 0)  # an error tells of it as well
        if queue not in self.holders:
            self._numbers += 1
            self.holders[queue] = Holder(self._numbers, link.channel())
        return self.holders[queue], lost

    def _lose(self, queue: str) -> None:
        """The queue's channel is gone; remember how many it held."""
        if held := len(self.holders.pop(queue).held):
            self._lost[queue] = held

    def _lose_all(self) -> None:
        for queue in list(self.holders):
            self._lose(queue)

    def _give_back(self, queue: str) -> None:
        """Let nothing more come from ``queue``, and give back what came and was not returned."""
        holder = self.holders.get(queue)
        if holder is None or holder.coming is None:
            return
        self._on(queue, holder.coming.cancel)
        tags = holder.coming.drop()
        holder.coming = None
        self._requeue(queue, holder, tags)

    def _give_back_spilled(self, queue: str, holder: Holder) -> None:
        """Give back what was too much to keep, let no more come by this consumption, and ever after ask for fewer."""
        coming = holder.coming
        if coming is not None and coming.has_spilled:
            self._uneven.add(queue)
            self._on(queue, coming.cancel)
            self._requeue(queue, holder, coming.drop_spilled())

    def _requeue(self, queue: str, holder: Holder, tags: Sequence[int]) -> None:
        for tag in tags:
            holder.channel.requeue(tag, multiple=False)
        if tags and holder.channel.is_open:
            self._on(queue, lambda: holder.channel.count(queue, "basic.nack"))

    def _on(self, queue: str, call: Callable[[], Any]) -> Any:
        """``call``; when it fails, the queue's channel is not used again."""
        try:
            return call()
        except BrokerError:
            self.holders.pop(queue, None)
            raise


def _held_of(receipts: Sequence[object], holder: Holder) -> tuple[set[int], list[tuple[object, str]]]:
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
