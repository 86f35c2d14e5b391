"""Sends a window of messages, and says what became of each.

Service Bus takes all of a batch or nothing. A batch that is rejected is halved until the message that is to blame is
found; a batch whose answer is lost is ``unknown`` for all its messages and is not sent again.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from azure.servicebus import exceptions as sdk

from redrive.brokers.base import Publication, as_nothing_sent, before_the_send
from redrive.brokers.service_bus.entities import Entities
from redrive.brokers.service_bus.errors import SDK_ERRORS, fate
from redrive.brokers.service_bus.facts import Facts
from redrive.brokers.service_bus.kind import CAPABILITIES
from redrive.brokers.service_bus.links import Sender
from redrive.brokers.service_bus.message import Address, Entry, entry
from redrive.brokers.service_bus.namespace import Namespace
from redrive.errors import BrokerError, QueueMissing
from redrive.message import Outgoing

#: How long the service may take to answer a send, in seconds.
SEND_TIMEOUT = 60.0

_ARRIVED = frozenset({"sent", "unknown"})
_BEHIND = Publication("retry", detail="an earlier message of its key was not sent")


class Publishing:
    """Sends to the entities of one namespace; ``timeout`` is in seconds, and ``now`` tells the time for delays."""

    def __init__(
        self, namespace: Namespace, entities: Entities, *, now: Callable[[], datetime], timeout: float
    ) -> None:
        self._namespace = namespace
        self._entities = entities
        self._now = now
        self._timeout = timeout

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """One result per message, in the same order; raises where nothing of the call was sent."""
        if not messages:
            return []
        address = Address.parse(queue)
        if address.sub_queue:
            text = f"Service Bus lets nobody send to a dead-letter queue; send to {address.origin} instead"
            return [Publication("refused", detail=text)] * len(messages)
        target = address._replace(subscription=None)
        sender = self._namespace.sender(target)
        with before_the_send():
            self._namespace.again("publish", queue, sender.open)
            try:
                facts = self._entities.known(target)
            except QueueMissing as error:
                raise QueueMissing(f"publish on queue {queue}: {error.detail}") from None
        sending = _Sending(self._namespace, sender, queue, messages, facts, self._timeout)
        sending.run(sending.entries(self._now()))
        return sending.results()


class _Sending:
    """One publish call."""

    def __init__(
        self,
        namespace: Namespace,
        sender: Sender,
        queue: str,
        messages: Sequence[Outgoing],
        facts: Facts | None,
        timeout: float,
    ) -> None:
        self._namespace = namespace
        self._sender = sender
        self._queue = queue
        self._messages = messages
        self._facts = facts
        self._timeout = timeout
        self._results: list[Publication | None] = [None] * len(messages)
        self._blocked: dict[str, int] = {}
        self._error: BrokerError | None = None

    def entries(self, now: datetime) -> list[Entry]:
        """What can be sent at all; the rest is refused."""
        facts, found = self._facts, []
        # Where nobody may ask, and behind a forward, duplicates may be detected.
        detects = facts is None or facts.duplicate_window is not None or facts.forwards
        for place, message in enumerate(self._messages):
            made = entry(place, message, detects=detects, sessions=facts.requires_session if facts else None, now=now)
            if isinstance(made, str):
                self._note(place, Publication("refused", detail=made))
            else:
                found.append(made)
        return found

    def run(self, entries: Sequence[Entry]) -> None:
        """Send all, batch after batch."""
        waiting = list(entries)
        while waiting := [one for one in waiting if not self._is_behind(one)]:
            if self._error is None:
                try:
                    self._namespace.again("publish", self._queue, self._sender.open)  # nothing is sent by this
                    batch, taken = self._batch(waiting)
                except BrokerError as error:
                    self._error = error
            if self._error is not None:
                for one in waiting:
                    self._note(one.place, Publication("retry", detail=self._error.detail))
                return
            waiting = waiting[len(taken) :]
            if batch is not None:
                self._send(taken, batch)

    def results(self) -> list[Publication]:
        """What became of each message; an error that concerns the entity is raised where nothing was sent."""
        if self._error is not None and not any(r is not None and r.status in _ARRIVED for r in self._results):
            raise as_nothing_sent(self._error) from self._error.__cause__
        return [result or _BEHIND for result in self._results]

    def _batch(self, waiting: Sequence[Entry]) -> tuple[Any, list[Entry]]:
        """As many of the next messages as fit into one request; no request where the first can't be sent."""
        batch = self._sender.open().create_message_batch()
        partitioned = self._facts is not None and self._facts.partitioned
        taken: list[Entry] = []
        for one in waiting[: CAPABILITIES.publish_batch]:
            if partitioned and taken and one.key != taken[0].key:
                break
            try:
                batch.add_message(one.message)
            except sdk.MessageSizeExceededError:
                if taken:
                    break
                if _size(one) <= self._sender.max_bytes():
                    return one.message, [one]  # larger than a batch may be, but not than a message
                self._note(one.place, Publication("refused", detail=self._with_size(one, "")))
                return None, [one]
            except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
                if taken:
                    break
                self._note(one.place, Publication("refused", detail=f"the SDK can't encode it: {error}"))
                return None, [one]
            taken.append(one)
        return batch, taken

    def _send(self, going: Sequence[Entry], batch: Any) -> None:
        result, concerns_queue = self._once(batch)
        if result.status == "refused" and len(going) > 1:
            self._halve(going)
            return
        if concerns_queue is not None:
            self._error = concerns_queue
        for one in going:
            told = result
            if result.status == "sent":
                told = Publication("sent", one.message_id)
            elif result.status == "refused":
                told = Publication("refused", detail=self._with_size(one, result.detail))
            self._note(one.place, told)

    def _once(self, batch: Any) -> tuple[Publication, BrokerError | None]:
        """One request, repeated only while Service Bus says that it took nothing because it is busy."""
        for tries in range(5):
            try:
                self._sender.send(batch, self._timeout)
            except (*SDK_ERRORS, ValueError) as error:
                result, concerns_queue = fate(self._queue, error, self._namespace.service, used=self._sender.used)
                if result.status != "retry" or not isinstance(error, sdk.ServiceBusServerBusyError):
                    return result, concerns_queue
                self._namespace.sleep(min(0.25 * 2**tries, 4))
            else:
                return Publication("sent"), None
        return result, concerns_queue

    def _halve(self, going: Sequence[Entry]) -> None:
        """Service Bus took nothing of a batch; find the message that is to blame."""
        for half in (going[: len(going) // 2], going[len(going) // 2 :]):
            self.run(half)

    def _is_behind(self, one: Entry) -> bool:
        """An earlier message of its key was not sent."""
        if one.key is None or self._blocked.get(one.key, one.place) >= one.place:
            return False
        if self._results[one.place] is None:
            self._results[one.place] = _BEHIND
        return True

    def _note(self, place: int, result: Publication) -> None:
        self._results[place] = result
        key = self._messages[place].ordering_key
        if key is not None and result.status != "sent":
            self._blocked[key] = min(place, self._blocked.get(key, place))

    def _with_size(self, one: Entry, detail: str) -> str:
        try:
            bound = self._sender.max_bytes()
        except SDK_ERRORS:
            return detail
        size = _size(one)
        if size <= bound:
            return detail
        return f"a body of {size} bytes; {self._queue} takes at most {bound} with properties {detail}".rstrip()


def _size(one: Entry) -> int:
    body = one.message.body
    try:
        return sum(len(part) for part in body)
    except TypeError:
        return len(str(body))
