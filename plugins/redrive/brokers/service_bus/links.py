"""Links to Service Bus: what the SDK does in its way, and what it has but does not offer.

Four things need the SDK's inner parts, which is why its version is pinned and tests hold each of them:

* It completes one message per round trip. On the wire nothing asks for that, so many completions are sent before the
  first answer is awaited; each is still confirmed by the service's own word.
* After a short receive it leaves credit with the service, which then locks messages to us that nobody asked for. The
  credit is taken back.
* A thread of its own reads from the same socket, and closing waits a second for it. It is not started: a link belongs
  to one thread.
* It reads and writes values without their types, and breaks at a .NET ``decimal`` or ``char``, and at some values that
  are legal; one such message would end each receive, and each peek, that it is part of. Values are read from
  the frames themselves (see :mod:`redrive.brokers.service_bus.amqp_values`), and bodies that are AMQP values go out
  as they came.

Where an inner part of the first kind is not as expected, the public way is taken, only slower.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender
from azure.servicebus._pyamqp import _decode, _encode
from azure.servicebus._pyamqp import receiver as _receiver
from azure.servicebus._pyamqp.constants import LinkState
from azure.servicebus._pyamqp.error import AMQPException, MessageException
from azure.servicebus._pyamqp.outcomes import Accepted, Modified
from azure.servicebus._pyamqp.receiver import check_disposition_outcome
from azure.servicebus._transport import _pyamqp_transport as _transport
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError, ServiceBusError

from redrive.brokers.base import RECEIVE_BYTES
from redrive.brokers.service_bus.amqp_values import Encoded, decimal128, sections
from redrive.brokers.service_bus.errors import SDK_ERRORS

#: Completions under way at once.
WINDOW = 200
#: Locks renewed per request.
RENEW_AT_ONCE = 100
#: Messages that a receive asks for at once.
AT_ONCE = 100
#: The shortest wait for messages, in seconds: a link needs a moment.
SHORTEST_WAIT = 0.3
#: How long the end of a link may follow the answer to a request that came after its attach, in seconds.
REFUSED_WITHIN = 0.2
#: How long the outcomes of one window may take, in seconds.
OUTCOME_TIMEOUT = 30.0

_LOG = logging.getLogger(__name__)

# A decimal or a char of a .NET producer would end the connection of whoever receives it, and so block the queue.
_decode._DECODE_BY_CONSTRUCTOR[0x73] = lambda buffer, *_: (buffer[4:], int.from_bytes(buffer[:4], "big"))
_decode._DECODE_BY_CONSTRUCTOR[0x74] = lambda buffer, *_: (buffer[4:], bytes(buffer[:4]))
_decode._DECODE_BY_CONSTRUCTOR[0x84] = lambda buffer, *_: (buffer[8:], bytes(buffer[:8]))
_decode._DECODE_BY_CONSTRUCTOR[0x94] = lambda buffer, *_: (buffer[16:], decimal128(bytes(buffer[:16])))


class Undecoded(bytes):
    """What the SDK could make nothing of: a section of a message, and all after it."""


def _decode_what_can_be(payload: memoryview) -> Any:
    """The SDK's reading of a message. Where it breaks at a section (a map whose key is a list, more than it reads of
    nested lists or of one array), the message has those before it, and the rest as an :class:`Undecoded` value: else
    the whole receive or peek would fail, each time, and with it all that came beside this one."""
    try:
        return _decode.decode_payload(payload)
    except Exception:  # it raises whatever its functions meet
        for size in _beginnings(payload):
            with suppress(Exception):  # then fewer sections
                return _decode.decode_payload(payload[:size])._replace(value=Undecoded(payload[size:]))
        raise


def _beginnings(payload: memoryview) -> list[int]:
    """Where sections of a message begin, as far as they can be told; the last first."""
    starts = [0]
    with suppress(TypeError, ValueError):  # Unreadable, or what is no section of ours
        for one in sections(payload):
            if one.value is not None:
                starts.append(one.end)  # noqa: PERF401 - what came before an error counts
    return starts[::-1]


vars(_receiver)["decode_payload"] = _decode_what_can_be
vars(_transport)["decode_payload"] = _decode_what_can_be  # of what is peeked at


def _encode_unknown(output: bytearray, value: Any, **options: Any) -> None:
    """The SDK's encoder of values without a type; one that is encoded already goes out as it is."""
    if isinstance(value, Encoded):
        output.extend(value.raw)
    else:
        _encode.encode_unknown(output, value, **options)


_encode._ENCODE_MAP[None] = _encode_unknown


class Receiver:
    """One receiving link, and what came over it."""

    def __init__(self, sdk: ServiceBusReceiver) -> None:
        self._sdk = sdk
        self._payloads: dict[bytes, bytes] = {}
        _without_thread(sdk, self._capture)

    def open(self) -> None:
        """Attach now, so that what is wrong with the entity is told now."""
        self._sdk.__enter__()

    def probe(self) -> None:
        """Ask the entity something: attaching alone succeeds for a moment even where there is none."""
        self._sdk.peek_messages(1)

    def can_receive(self) -> bool:
        """Ask the entity something, and whether the link is still there then; raises why it is not, where that is told.

        A topic lets everybody look who may listen, and answers like an empty queue, but it ends a link that receives.
        Nothing is asked to be sent over the link, so nothing is locked.
        """
        self.probe()
        handler: Any = getattr(self._sdk, "_handler", None)
        if getattr(handler, "_link", None) is None:
            return False
        handler._connection.listen(wait=REFUSED_WITHIN)
        _see_refusal(self._sdk)
        return bool(handler._link.state == LinkState.ATTACHED)

    def peek(self, count: int, start: int) -> list[ServiceBusReceivedMessage]:
        """Messages from sequence number ``start`` on, as they are, without touching them."""
        return self._sdk.peek_messages(count, sequence_number=start)

    def receive(self, limit: int, wait: float) -> tuple[list[tuple[ServiceBusReceivedMessage, bytes]], bool]:
        """At most ``limit`` messages with their first frames, none after ``wait`` seconds without any; and whether
        nothing more is there.

        What is asked for comes, however large it is: so only some are asked for at once, and no more once they are
        large enough together. An error after some have come is kept back: the next call will meet it again.
        """
        self.open()
        found, size = list[tuple[ServiceBusReceivedMessage, bytes]](), 0
        while len(found) < limit and size < RECEIVE_BYTES:
            ask = min(limit - len(found), AT_ONCE)
            try:
                messages = self._sdk.receive_messages(ask, max_wait_time=SHORTEST_WAIT if found else wait)
            except SDK_ERRORS:
                if not found:
                    raise
                break
            payloads, self._payloads = self._payloads, {}
            found += [(message, payloads.get(_tag(message), b"")) for message in messages]
            size += sum(map(len, payloads.values()))
            if len(messages) < ask:
                self._take_credit_back()
                return found, True
        return found, False

    def complete(self, messages: Sequence[ServiceBusReceivedMessage]) -> Iterator[Exception | None]:
        """Settle all for good: for each, in order, None or why not."""
        return self._settle(messages, Accepted(), "accepted", self._sdk.complete_message)

    def abandon(self, messages: Sequence[ServiceBusReceivedMessage]) -> Iterator[Exception | None]:
        """Give all back at once, counted as delivered: for each, in order, None or why not."""
        back = Modified(delivery_failed=True, undeliverable_here=False, message_annotations=None)
        return self._settle(messages, back, "modified", self._sdk.abandon_message)

    def renew(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Lock all for another lock duration; those whose lock is lost already are left alone."""
        if self._sdk.session is not None:
            self._sdk.session.renew_lock()
            return
        for start in range(0, len(messages), RENEW_AT_ONCE):
            some = messages[start : start + RENEW_AT_ONCE]
            try:
                self._sdk._renew_locks(*[message.lock_token for message in some])
            except (ServiceBusError, AttributeError):
                for message in some:  # the service renews all or none
                    try:
                        self._sdk.renew_message_lock(message)
                    except (MessageLockLostError, MessageAlreadySettled, ValueError):
                        continue
            else:
                for message in some:
                    message._expiry = None  # the service says whether a lock is lost, not the time that it once told
                    (message.raw_amqp_message.annotations or {}).pop(b"x-opt-locked-until", None)

    def close(self) -> None:
        """Detach; message locks last until they run out, a session is free at once."""
        try:
            self._sdk.close()
        except (ServiceBusError, AMQPException, OSError, ValueError):
            pass  # it was broken already

    # --- inner parts ------------------------------------------------------------------------------------

    def _capture(self, frame: Any) -> None:
        self._payloads[bytes(frame[2])] = bytes(frame[11])

    def _link(self) -> Any:
        link = getattr(getattr(self._sdk, "_handler", None), "_link", None)
        return None if link is None or link._is_closed else link

    def _take_credit_back(self) -> None:
        link = self._link()
        if link is not None:
            link.flow(link_credit=0)

    def _settle(
        self,
        messages: Sequence[ServiceBusReceivedMessage],
        outcome: Any,
        expected: str,
        singly: Callable[[ServiceBusReceivedMessage], None],
    ) -> Iterator[Exception | None]:
        for start in range(0, len(messages), WINDOW):
            some = messages[start : start + WINDOW]
            told = self._settle_together(some, outcome, expected)
            for place, message in enumerate(some):
                if place in told:
                    yield told[place]
                else:
                    yield self._attempt(singly, message)

    def _attempt(
        self, singly: Callable[[ServiceBusReceivedMessage], None], message: ServiceBusReceivedMessage
    ) -> Exception | None:
        """One message in the SDK's own way, over a new link if need be: the lock is known by its token."""
        try:
            if self._sdk.session is None:  # a new link would get another session
                self.open()
            singly(message)
        except MessageAlreadySettled:
            return None
        except (ServiceBusError, ValueError) as error:
            return error
        return None

    def _settle_together(
        self, messages: Sequence[ServiceBusReceivedMessage], outcome: Any, expected: str
    ) -> dict[int, Exception | None]:
        """What the service said to each; nothing of those that it said nothing to, or that came over another link."""
        link = self._link()
        told: dict[int, Exception | None] = {}
        waiting: dict[int, int] = {}
        if link is None:
            return told
        try:
            for place, message in enumerate(messages):
                tag, number = message._delivery_tag, message._delivery_id
                if message._settled or tag not in link._received_delivery_tags:
                    continue
                link._pending_dispositions[number] = {"settled": False, "outcome": None}
                waiting[place] = number
                link._outgoing_disposition(number, number, tag, False, outcome, True)
            deadline = time.monotonic() + OUTCOME_TIMEOUT
            while not all(link._pending_dispositions[number]["settled"] for number in waiting.values()):
                if link.state in (LinkState.DETACHED, LinkState.ERROR) or time.monotonic() > deadline:
                    break
                link._session._connection.listen(wait=False, batch=len(waiting))
        except (AMQPException, OSError, ValueError, AttributeError):
            pass  # what is not told yet is asked singly
        finally:
            for place, number in waiting.items():
                pending = link._pending_dispositions.pop(number, None)
                if pending and pending["settled"]:
                    try:
                        check_disposition_outcome(number, pending["outcome"], expected)
                    except MessageException as error:
                        told[place] = PyamqpTransport.create_servicebus_exception(_LOG, error)
                    else:
                        messages[place]._settled = True
                        told[place] = None
        return told


class Sender:
    """One sending link. ``idle`` seconds unused it is opened anew: the service may have cut it in silence."""

    def __init__(self, make: Callable[[], ServiceBusSender], *, idle: float = 60) -> None:
        self._make = make
        self._idle = idle
        self._sdk: ServiceBusSender | None = None
        self._used_at = 0.0
        #: Something may have been sent over the link as it is now; before, an error says that nothing was taken.
        self.used = False

    def open(self) -> ServiceBusSender:
        """The SDK's sender, attached; an error here means that nothing was sent."""
        if self._sdk is not None and time.monotonic() - self._used_at > self._idle:
            self.close()
        if self._sdk is None or not self._sdk._running:
            self.close()
            self.used = False
            self._sdk = self._make()
            _without_thread(self._sdk, None)
            self._sdk.__enter__()
            _see_refusal(self._sdk)
        self._used_at = time.monotonic()
        return self._sdk

    def max_bytes(self) -> int:
        """The most that the link takes in one message."""
        sdk = self.open()
        told = getattr(sdk, "_max_message_size_on_link", 0)
        return int(told or sdk.create_message_batch().max_size_in_bytes)

    def send(self, messages: Any, timeout: float) -> None:
        """Send a message or a batch, once."""
        sdk = self.open()
        self.used = True  # from here on something may have left, whatever becomes of the link
        sdk.send_messages(messages, timeout=timeout)
        self._used_at = time.monotonic()

    def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            try:
                sdk.close()
            except (ServiceBusError, AMQPException, OSError, ValueError):
                pass  # it was broken already


def _without_thread(sdk: ServiceBusReceiver | ServiceBusSender, capture: Callable[[Any], None] | None) -> None:
    """Let the links of ``sdk`` be without a keep-alive thread, and see the frames that come."""
    create = sdk._create_handler

    def create_quietly(auth: Any) -> None:
        create(auth)
        handler: Any = sdk._handler
        handler._keep_alive_interval = 0
        if capture is not None:
            inner = handler._message_received

            def received(frame: Any, message: Any) -> None:
                capture(frame)
                inner(frame, message)

            handler._message_received = received

    sdk._create_handler = create_quietly  # type: ignore[method-assign]


def _see_refusal(sdk: Any) -> None:
    """Read what follows the attach: credit, or the link's end with the reason, as for a missing entity."""
    try:
        sdk._handler._connection.listen(wait=False)
        sdk._handler._link.get_state()
    except AMQPException as error:
        raise sdk._handle_exception(error) from error


def _tag(message: ServiceBusReceivedMessage) -> bytes:
    return bytes(message._delivery_tag or b"")
