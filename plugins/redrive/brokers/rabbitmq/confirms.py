"""Publisher confirms: windows of messages on a channel in confirm mode, and what the broker said of each message."""

from collections.abc import Callable, Sequence

from redrive.brokers.base import Publication
from redrive.brokers.rabbitmq.link import Channel
from redrive.message import Outgoing

#: Messages and bytes of one confirm window; a message of more than a quarter of that goes alone, because RabbitMQ
#: closes the channel for one that is over its own bound, and then says nothing of the others.
WINDOW, WINDOW_BYTES = 1_000, 4 * 1024 * 1024


class Window:
    """Messages that were sent together, and what the broker said of each."""

    def __init__(self, first: int, size: int) -> None:
        self.first = first
        self.size = size
        self.pending = set(range(first, first + size))
        self.answered = first  # the broker has said something of every tag below
        self.said: dict[int, Publication] = {}
        self.returned: set[int] = set()
        self.nacked: set[int] = set()
        self.unmatched = 0  # came back, and nobody knows which of them
        self.shared = False  # another window was on the wire together with it
        self.words = ""
        self.places: dict[tuple[bytes, bytes], list[int]] = {}  # tags by content header and body

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
        window = Window(self.channel.published + 1, len(pack))
        for tag, (_, raw, body) in enumerate(pack, window.first):
            window.places.setdefault((raw, body), []).append(tag)
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
