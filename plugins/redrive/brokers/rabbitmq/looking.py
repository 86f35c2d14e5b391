"""What only reads: how much there is in a queue, what it is like, who consumes it, and whose dead letters it gets."""

from datetime import timedelta

from redrive.brokers.base import ConsumerStats, Depth, Origin, QueueInfo
from redrive.brokers.rabbitmq.delays import DelayQueues
from redrive.brokers.rabbitmq.kind import CONSUMER_TIMEOUT
from redrive.brokers.rabbitmq.management import Management, QueueFacts
from redrive.brokers.rabbitmq.measured import Measured
from redrive.brokers.rabbitmq.receiving import Receiving
from redrive.brokers.rabbitmq.session import Session


class Looking:
    """Queues as AMQP and, where there is one, the management API tell of them.

    Its methods raise what those of :class:`~redrive.brokers.base.Broker` do.
    """

    def __init__(
        self,
        session: Session,
        management: Management | None,
        measured: Measured,
        receiving: Receiving,
        delays: DelayQueues,
    ) -> None:
        self._session = session
        self._management = management
        self._measured = measured
        self._receiving = receiving
        self._delays = delays

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
        what waits for this one where Redrive made it wait.

        Where the queue's leader hangs, or the management API says that there is none, nothing but that is known.
        """
        came = self._receiving.came(queue)
        counted = self._session.counted(queue)
        delayed = self._delays.waiting(queue)
        ours, others = self._receiving.held(queue), self._measured.others(queue, self._receiving.held)
        if counted is None or (not any(counted) and self._measured.lacks_leader(queue)):
            return Depth(None, None, delayed)
        ready, consumers = counted
        if others is None:
            return Depth(came + ready, None, delayed, consumers)
        if others.ready is not None and not self._measured.just_touched(queue) and (consumers or ready < others.ready):
            ready = others.ready
        return Depth(came + ready, ours + others.held, delayed, consumers, others.as_of)

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`; most of it only with the management API."""
        self._session.probed(queue, "queue.declare")
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
            warnings=_warnings(facts) + _losses(facts),
            losses=_losses(facts),
            origins=tuple(Origin(None, limit + 1) for limit in limits),
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

    def _feeding(self, queue: str) -> list[QueueFacts]:
        """The queues that dead-letter into ``queue``."""
        assert self._management is not None  # noqa: S101 - the caller looked
        return [one for one in self._dead_lettering() if queue in self._management.targets(one)]

    def _dead_lettering(self) -> list[QueueFacts]:
        assert self._management is not None  # noqa: S101 - the caller looked
        return [one for one in self._management.queues() if one.dead_letter_exchange is not None]


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
    if facts.auto_delete:
        found.append(
            "is auto-delete: when its last consumer leaves, and a drain is one, the broker DELETES it with all that is"
            " in it, so it is not drained; declare it without that, and move its messages (shovel)"
        )
    if facts.type == "stream":
        found.append("is a stream: its messages can't be taken out, so it can't be drained")
    return tuple(found)


def _losses(facts: QueueFacts) -> tuple[str, ...]:
    if not facts.most or facts.dead_letter_exchange is not None:
        return ()
    return (
        f"holds at most {facts.most}, and for each one more DELETES the oldest, though it was confirmed: lift that"
        " bound, or let it tell the publisher (overflow: reject-publish)",
    )
