"""The sending half: which messages can go, where they wait, and in what order their windows are sent."""

from collections.abc import Callable, Sequence

from redrive.brokers.base import Publication, as_nothing_sent, before_the_send, published_at_once
from redrive.brokers.rabbitmq.confirms import WINDOW_BYTES, Confirms, packs
from redrive.brokers.rabbitmq.content_header import NotEncodable
from redrive.brokers.rabbitmq.delays import DelayQueues
from redrive.brokers.rabbitmq.link import Link
from redrive.brokers.rabbitmq.message import encode
from redrive.brokers.rabbitmq.session import Session
from redrive.errors import BrokerError, BrokerUnavailable
from redrive.message import Outgoing


class Publishing:
    """Messages on their way to queues, as ``user``; how that is confirmed is left to ``confirms``.

    With ``keep_expiration`` a message keeps its own time to live wherever it goes; see
    :func:`~redrive.brokers.rabbitmq.message.encode`.
    """

    def __init__(
        self,
        session: Session,
        confirms: Confirms,
        delays: DelayQueues,
        *,
        user: str | None,
        keep_expiration: bool,
        max_message_bytes: int,
    ) -> None:
        self.confirms = confirms
        self._session = session
        self._delays = delays
        self._user = user
        self._keep_expiration = keep_expiration
        self._max_message_bytes = max_message_bytes

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        Through the default exchange, so only ``queue`` gets it; mandatory, because RabbitMQ confirms what it can't
        route and drops it; in confirm mode, in windows. A queue that isn't there or may not be written to is raised
        where nothing of the call was sent; otherwise what is left is ``retry``. After a connection that once worked
        is lost, what had not been written to it is ``retry`` too.

        A message with a delay goes to a queue with a time to live, from which the broker dead-letters it to ``queue``;
        the time to live is the next longer one of
        :data:`~redrive.brokers.rabbitmq.kind.DELAYS`.
        """
        if not messages:
            return []
        results: list[Publication | None] = [None] * len(messages)
        try:
            link = self._session.connected(f"basic.publish on queue {queue}")
        except BrokerUnavailable as error:
            if not self._session.ever_connected:
                raise as_nothing_sent(error) from error.__cause__
            return [Publication("retry", detail=str(error))] * len(messages)
        encoded: list[bytes | None] = []
        for index, message in enumerate(messages):
            raw, objection = self._encoded(queue, message)
            if raw is not None and (objection := _objection(raw, link)):
                raw = None
            encoded.append(raw)
            if raw is None:
                results[index] = Publication("refused", detail=objection)
        with before_the_send():
            places = self._places(queue, messages, encoded)
        errors = self._send_all(queue, messages, encoded, results, places)
        done = [result or Publication("unknown", detail="RabbitMQ said nothing about it") for result in results]
        if errors and not any(result.status in ("sent", "unknown") for result in done):
            raise as_nothing_sent(errors[0])
        return done

    def ready(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], Callable[[], list[Publication]]]:
        """See :class:`~redrive.brokers.base.Pipelines`.

        What needs the broker's word before anything follows is published when it is begun: the first window of a
        channel, messages with a key or a delay, large ones, and any that RabbitMQ will never take.
        """
        pack = self._pack(queue, messages)

        def begin() -> Callable[[], list[Publication]]:
            finish = self._begun(queue, pack) if pack else None
            return finish or published_at_once(lambda: self.publish(queue, messages))

        return begin

    def _pack(self, queue: str, messages: Sequence[Outgoing]) -> list[tuple[str, bytes, bytes]] | None:
        """The messages (queue, content header, body) as one window that may follow another on the wire; None: not."""
        if any(one.ordering_key is not None or one.delay_seconds > 0 for one in messages):
            return None
        encoded = [self._encoded(queue, one)[0] for one in messages]
        if not all(encoded) or len(packs(messages, encoded)) != 1:
            return None
        if len(messages[0].body) > WINDOW_BYTES // 4:  # goes alone, so it is the only one
            return None
        return [(queue, raw or b"", one.body) for raw, one in zip(encoded, messages, strict=True)]

    def _begun(self, queue: str, pack: Sequence[tuple[str, bytes, bytes]]) -> Callable[[], list[Publication]] | None:
        ready = self.confirms.ready()
        if ready is None:
            return None
        link, sender = ready
        if any(_objection(raw, link) for _, raw, _ in pack):
            return None
        window = sender.send(pack)

        def finish() -> list[Publication]:
            results, error = self.confirms.finish(queue, link, sender, window, pack, fresh=False)
            if error is not None and not any(one.status in ("sent", "unknown") for one in results):
                raise as_nothing_sent(error)
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
                outcome, problem = self.confirms.send(queue, pack)
                for index, result in zip(going, outcome, strict=True):
                    results[index] = result
                errors += [problem] if problem else []
            for index in together:
                key, said = messages[index].ordering_key, results[index]
                if key is not None and said is not None and said.status != "sent":
                    blocked.add(key)
        return errors

    def _places(self, queue: str, messages: Sequence[Outgoing], encoded: Sequence[bytes | None]) -> list[str]:
        """The queue to which each message goes first. Raises where ``queue`` is missing and the send would not tell."""
        if not any(raw is not None for raw in encoded):
            self._session.probed(queue, "basic.publish")  # a missing queue is told before a message's own fault
        places = [queue] * len(messages)
        if any(message.delay_seconds > 0 for message in messages):
            self._session.probed(queue, "basic.publish")  # the queue where it waits is there, so nobody else would tell
            for index, message in enumerate(messages):
                if encoded[index] is not None and message.delay_seconds > 0:
                    places[index] = self._delays.place(queue, message.delay_seconds)
        return places

    def _encoded(self, queue: str, message: Outgoing) -> tuple[bytes | None, str]:
        """The message's content header, or why RabbitMQ will never take it."""
        try:
            raw = encode(message, queue=queue, user=self._user, keep_expiration=self._keep_expiration)
        except NotEncodable as error:
            return None, str(error)
        if message.delay_seconds > 0 and message.delay_seconds > self._delays.longest(queue):
            return None, f"a delay of {message.delay_seconds:g} s is longer than a queue keeps it here"
        if len(message.body) > self._max_message_bytes:
            return None, f"{len(message.body)} bytes; RabbitMQ takes at most {self._max_message_bytes}"
        return raw, ""


def _objection(raw: bytes, link: Link) -> str:
    """Why a content header can't go over the link; "" where it can."""
    if len(raw) + 32 > link.frame_max:
        return f"{len(raw)} bytes of headers; they have to fit into one frame of {link.frame_max}"
    return ""
