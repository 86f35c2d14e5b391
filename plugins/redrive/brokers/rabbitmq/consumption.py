"""What comes of a queue ahead of who asks for it, and that nothing more comes than was asked for."""

from redrive.brokers.rabbitmq.errors import channel_error, connection_error
from redrive.brokers.rabbitmq.frames import Arrivals, Delivery
from redrive.brokers.rabbitmq.link import Channel


class Consumption:
    """What comes of a queue, also while nobody waits for it: by one consumer after the other, each for its share.

    A consumer's prefetch is its share, so that nothing more comes than was asked for. For what is acked the broker
    would send more: so :meth:`before_ack` has to be called first.
    """

    def __init__(self, channel: Channel, queue: str) -> None:
        self._channel = channel
        self._queue = queue
        self._arrivals = Arrivals()
        self._came = self._arrivals.kept  # and was not taken yet
        self._asked = self._taken = 0  # of all consumers
        self._before = 0  # so many were asked for before the consumer that there is
        self._ended = False  # nothing comes any more
        self._tag: str | None = None

    @property
    def is_spent(self) -> bool:
        """Nothing is to be taken any more."""
        return self._ended and not self.waiting

    @property
    def waiting(self) -> int:
        """So many came and were not taken yet."""
        return len(self._came) + len(self._arrivals.spilled)

    @property
    def has_spilled(self) -> bool:
        """More came than could be kept; see :meth:`drop_spilled`."""
        return bool(self._arrivals.spilled)

    @property
    def may_ask(self) -> bool:
        """All that was asked for came, and more may be asked for."""
        return self._is_complete and not self._stopped()

    @property
    def _is_complete(self) -> bool:
        return self._asked == self._taken + self.waiting

    def ask(self, count: int) -> None:
        """Let ``count`` more come; only where :attr:`may_ask`."""
        self._leave()
        self._before = self._asked
        self._asked += count
        self._tag = self._channel.subscribe(self._queue, count, self._arrivals)

    def take(self, limit: int, *, first: float, idle: float) -> list[Delivery]:
        """Up to ``limit`` deliveries, unacked.

        Ends when they are here, or all that were asked for; when none came for ``idle`` seconds after one did, when
        more came than could be kept, or when the first did not come within ``first`` seconds: then nothing more comes.
        """
        link, came, enough = self._channel.link, self._came, min(limit, self._asked - self._taken)
        link.wait(lambda: self.waiting > 0 or self._stopped(), first)
        while came and len(came) < enough and not self._stopped():
            before = self.waiting
            if not link.wait(lambda before=before: self.waiting > before or self._stopped(), idle):  # type: ignore[misc]
                break
            if self.has_spilled:
                break
        if len(came) < enough:
            self.cancel()
        if not link.is_open:
            raise connection_error(link.error, f"basic.consume on queue {self._queue}")
        if self._channel.reason is not None:
            raise channel_error(self._channel.reason, "basic.consume", self._queue)
        taken = came[:limit]
        del came[:limit]
        self._taken += len(taken)
        return taken

    def end_if_spent(self) -> None:
        """Where all that was asked for was taken, nothing more comes."""
        if self._is_complete and not self.waiting:
            self.cancel()

    def before_ack(self) -> None:
        """Let nothing come for what is acked next: the consumer ends unless nothing of it was taken."""
        if self._is_complete:
            self._leave()
        elif self._taken > self._before:
            self.cancel()

    def cancel(self) -> None:
        """Let nothing more come."""
        if self._is_complete:
            self._leave()
        elif not self._stopped():
            self._channel.unsubscribe(self._queue, self._tag)
        self._ended = True

    def drop(self) -> list[int]:
        """Forget what came and was not taken; returns its tags."""
        tags = [delivery.tag for delivery in self._came]
        self._came.clear()
        return tags + self.drop_spilled()

    def drop_spilled(self) -> list[int]:
        """Forget what came and was not kept; returns its tags."""
        tags = self._arrivals.spilled[:]
        self._arrivals.spilled.clear()
        self._taken += len(tags)
        return tags

    def _leave(self) -> None:
        if self._tag is not None and not self._stopped():
            self._channel.leave(self._tag)
        self._tag = None

    def _stopped(self) -> bool:
        return self._ended or not self._channel.is_open or self._tag in self._channel.cancelled
