"""Publisher confirms: windows of messages on a channel in confirm mode, and what the broker said of each message.

:class:`Window` and :class:`Sender` hear the broker's words; :class:`Confirms` waits for them, and says what it means
when they don't come.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

from redrive.brokers.base import Publication
from redrive.brokers.rabbitmq.declared import Declared
from redrive.brokers.rabbitmq.delays import DelayQueues
from redrive.brokers.rabbitmq.errors import ACCESS_REFUSED, PRECONDITION_FAILED, channel_error, connection_error
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.message import DELAY_PREFIX
from redrive.brokers.rabbitmq.session import Session
from redrive.errors import BrokerError, BrokerUnavailable, QueueMissing
from redrive.message import Outgoing

#: Messages and bytes of one confirm window; a message of more than a quarter of that goes alone, because RabbitMQ
#: closes the channel for one that is over its own bound, and then says nothing of the others.
WINDOW, WINDOW_BYTES = 1_000, 4 * 1024 * 1024


class Window:
    """Messages that were sent together, and what the broker said of each."""

    def __init__(self, first: int, pack: Sequence[tuple[str, bytes, bytes]]) -> None:
        self.first = first
        self.size = size = len(pack)
        self.pending = set(range(first, first + size))
        self.answered = first  # the broker has said something of every tag below
        self.said: dict[int, Publication] = {}
        self.returned: set[int] = set()
        self.nacked: set[int] = set()
        self.unmatched = 0  # came back, and nobody knows which of them
        self.shared = False  # another window was on the wire together with it
        self.words = ""
        self._pack = pack

    @cached_property
    def places(self) -> dict[tuple[bytes, bytes], list[int]]:
        """Tags by content header and body: made when the first message comes back, which of most windows none does."""
        places: dict[tuple[bytes, bytes], list[int]] = {}
        for tag, (_, raw, body) in enumerate(self._pack, self.first):
            places.setdefault((raw, body), []).append(tag)
        return places

    def classify_nacks(self, full: Sequence[bool]) -> None:
        """``full``: of each message, whether a nack of its queue says that it has no room.

        Any other nack tells of a fault within the queue, which may have delivered the message before.
        """
        for tag in self.nacked:
            detail = "RabbitMQ did not take it (nack): the queue is full"
            if not full[tag - self.first]:
                detail = "RabbitMQ answers for nothing (nack): a fault in the queue, or it is full"
            self.said[tag] = Publication("retry" if full[tag - self.first] else "unknown", detail=detail)

    def results(self, otherwise: Callable[[int], Publication]) -> list[Publication]:
        """One result per message; ``otherwise`` of what the broker said nothing about."""
        if self.unmatched:
            sent = [tag for tag, said in self.said.items() if said.status == "sent"]
            every = self.unmatched >= len(sent) and not self.shared
            detail = self.words if every else f"a message of its window came back ({self.words}), maybe this one"
            self.said |= dict.fromkeys(sent, Publication("retry" if every else "unknown", detail=detail))
        return [self.said.get(tag) or otherwise(tag) for tag in range(self.first, self.first + self.size)]


class Sender:
    """A channel in confirm mode."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.worked = False  # something was confirmed on it
        self._windows: list[Window] = []  # of which some messages have no word yet, oldest first
        channel.confirm(self._word, self._return)

    def unanswered(self) -> list[Window]:
        """The windows on the wire."""
        return list(self._windows)

    def send(self, pack: Sequence[tuple[str, bytes, bytes]]) -> Window:
        """Hand the pack (queue, content header, body) to the connection."""
        window = Window(self.channel.published + 1, pack)
        self._windows.append(window)
        if len(self._windows) > 1:
            for one in self._windows:
                one.shared = True
        self.channel.publish(pack)
        return window

    def _word(self, tag: int, multiple: bool, taken: bool) -> None:
        for window in list(self._windows):
            if tag < window.first:
                break
            last = min(tag, window.first + window.size - 1)
            first = window.answered if multiple else tag
            if multiple:
                window.answered = last + 1
            for one in range(first, last + 1):
                if one not in window.pending:
                    continue
                window.pending.discard(one)
                if one in window.returned:
                    window.said[one] = Publication("retry", detail=window.words)
                elif taken:
                    window.said[one] = Publication("sent")
                else:
                    window.nacked.add(one)
                    window.said[one] = Publication("unknown", detail="RabbitMQ answers for nothing (nack)")
            if not window.pending:
                self._windows.remove(window)

    def _return(self, code: int, text: str, raw: bytes, body: bytes) -> None:
        """An unroutable message comes back before it is confirmed, and without its tag: it is found by its content."""
        for window in self._windows:
            places = window.places.get((raw, body), ())
            found = next((tag for tag in places if tag in window.pending and tag not in window.returned), None)
            if found is not None:
                window.words = f"{code} {text}"
                window.returned.add(found)
                return
        for window in self._windows:  # a plugin of the broker's changed its headers on the way
            window.words = f"{code} {text}"
            window.unmatched += 1


class Confirms:
    """Windows over the session: sent, waited for, and what a channel or connection that is closed says of them.

    ``timeout`` (seconds) is how long a confirmation may take; while the broker blocks us because of its memory or disk
    alarm the time stands still, for at most ``blocked_timeout``.
    """

    def __init__(
        self,
        session: Session,
        declared: Declared,
        delays: DelayQueues,
        *,
        timeout: float,
        blocked_timeout: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.sender: Sender | None = None
        self._session = session
        self._declared = declared
        self._delays = delays
        self._timeout = timeout
        self._blocked_timeout = blocked_timeout
        self._monotonic = monotonic
        session.on_loss(self._forget_sender)
        session.is_busy = lambda: self.sender is not None and bool(self.sender.unanswered())

    def ready(self) -> tuple[Link, Sender] | None:
        """Where a window may be sent at once, before there is a word on those before it; None: nowhere.

        Nothing is opened for it, and the channel must have confirmed something before.
        """
        link, sender = self._session.link, self.sender
        if link is None or sender is None:
            return None
        link.serve()
        if link.blocked or not sender.worked or not sender.channel.is_open:
            return None
        return link, sender

    def send(
        self, queue: str, pack: Sequence[tuple[str, bytes, bytes]]
    ) -> tuple[list[Publication], BrokerError | None]:
        """Send one window and wait for what the broker says of each; the error where it concerns all."""
        try:
            link = self._session.connected(f"basic.publish on queue {queue}")
            if not self._unblocked(link):
                detail = "RabbitMQ blocks publishers (memory or disk alarm)"
                return [Publication("retry", detail=detail)] * len(pack), BrokerUnavailable(f"{queue}: {detail}")
            if self.sender is None or not self.sender.channel.is_open:
                self.sender = Sender(link.channel())
        except BrokerError as error:  # of this window nothing was sent; of an earlier one something may have been
            return [Publication("retry", detail=str(error))] * len(pack), error
        sender = self.sender
        for other in sender.unanswered():  # should it close the channel, that says nothing of what was begun before
            self.wait(link, sender, other)
        fresh = not sender.worked
        return self.finish(queue, link, sender, sender.send(pack), pack, fresh=fresh)

    def finish(
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
        self.wait(link, sender, window)
        if window.pending and sender.channel.is_open:
            # A late word would be taken for one on a later message, so nothing more is heard on this connection.
            link.abort()
            detail = f"RabbitMQ did not confirm within {self._timeout:g} s"
            return window.results(lambda _: Publication("unknown", detail=detail)), None
        if window.pending:
            return self._after_close(queue, link, sender, window, fresh=fresh)
        sender.worked = True
        if window.nacked:
            full = {place: self._rejects_when_full(place) for place in {place for place, _, _ in pack}}
            window.classify_nacks([full[place] for place, _, _ in pack])
        results = window.results(lambda _: Publication("unknown"))
        if window.returned or window.unmatched:
            self._delays.forget(queue)
        if (window.returned or window.unmatched) and not self._exists(queue):
            return results, QueueMissing(f"basic.publish on queue {queue}: {window.words or 'no such queue'}")
        return results, None

    def wait(self, link: Link, sender: Sender, window: Window) -> None:
        """Wait for the confirmations; while the broker blocks us their clock stands still."""
        asked = self._monotonic()
        blocked = 0.0
        while window.pending and sender.channel.is_open:
            left = self._timeout - (self._monotonic() - asked - blocked)
            if left <= 0 or blocked > self._blocked_timeout:
                return
            before, was_blocked = self._monotonic(), link.blocked
            link.wait(lambda: not window.pending or not sender.channel.is_open, min(left, 0.5))
            if was_blocked or link.blocked:
                blocked += self._monotonic() - before

    def _forget_sender(self) -> None:
        self.sender = None

    def _unblocked(self, link: Link) -> bool:
        """Wait while the broker blocks us; whether it has stopped."""
        link.serve()
        return link.wait(lambda: not link.blocked, self._blocked_timeout if link.blocked else 0)

    def _after_close(
        self, queue: str, link: Link, sender: Sender, window: Window, *, fresh: bool
    ) -> tuple[list[Publication], BrokerError | None]:
        """The broker closed the channel or the connection is gone: what that says of the messages without a word."""
        if self.sender is sender:
            self.sender = None
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
        return queue.startswith(DELAY_PREFIX) or self._declared.rejects_when_full(queue)

    def _exists(self, queue: str) -> bool:
        try:
            self._session.probed(queue, "queue.declare")
        except QueueMissing:
            return False
        except BrokerError:
            return True
        return True


def packs(messages: Sequence[Outgoing], encoded: Sequence[bytes | None]) -> list[list[int]]:
    """Places of the messages window by window; no window holds two messages of one ordering key."""
    packs: list[list[int]] = []
    pack: list[int] = []
    size, keys = 0, set[str]()
    for index, message in enumerate(messages):
        raw = encoded[index]
        own = len(message.body) + len(raw) if raw is not None else 0
        key = message.ordering_key
        if pack and (
            len(pack) >= WINDOW
            or size + own > WINDOW_BYTES
            or own > WINDOW_BYTES // 4
            or (key is not None and key in keys)
        ):
            packs.append(pack)
            pack, size, keys = [], 0, set()
        pack.append(index)
        size += own if own <= WINDOW_BYTES // 4 else WINDOW_BYTES
        if key is not None:
            keys.add(key)
    return [*packs, pack] if pack else packs
