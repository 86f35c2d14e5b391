"""One AMQP connection, driven by the thread that calls: every call waits for its answer or a deadline.

It stands on pika's non-blocking connection, as pika's own BlockingConnection does. That one confirms message by
message (430 to 1,900 messages a second here; in windows of 200 it is 3,600 and more), and both would lose header types,
so frames with content headers are handed on undecoded. Deliveries, of which there are many, are read here as well.
"""

import contextlib
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pika
import pika.exceptions as amqp
from pika import frame, spec
from pika.adapters.select_connection import IOLoop, SelectConnection

from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

# Every lost connection is raised here as an error of ours; pika would log it as well, with its own stack.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)

#: Frames: type, channel and size; of a content header also its class, weight and the size of the body.
_FRAME, _HEADER, _END, _BASIC = struct.Struct(">BHL"), struct.Struct(">BHLHHQ"), bytes([spec.FRAME_END]), 60
#: Of a delivery: what its payload begins with, up to the length of the consumer's tag; and tag and flags behind that.
_DELIVER, _TAG = spec.Basic.Deliver.INDEX.to_bytes(4, "big"), struct.Struct(">QB")
#: Bytes of messages that are written, and read, at once.
_TOGETHER = 128 * 1024

NOT_FOUND, ACCESS_REFUSED, RESOURCE_LOCKED, PRECONDITION_FAILED, NOT_ALLOWED = 404, 403, 405, 406, 530


class RawProperties(pika.BasicProperties):  # type: ignore[misc]
    """A content header as it is on the wire, from its flags on."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw

    def encode(self) -> list[bytes]:
        """What pika puts into the frame behind class and body size."""
        return [self.raw]


class Delivery(NamedTuple):
    """One message as the broker delivered it."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    raw: bytes
    body: bytes


class _Taker:
    """Who takes the deliveries to one consumer; pika gets those that come in more than one body frame."""

    def __init__(self, tag: str, found: list[Delivery]) -> None:
        self.consumer = _DELIVER + bytes([len(tag)]) + tag.encode()
        self._found = found
        self._place = b""
        self._names = ("", "")

    def take(self, method: bytes, raw: bytes, body: bytes) -> bool:
        """Take a delivery: the payload of its method, its content header from the flags on, and its body; not where
        the names of exchange and routing key can't be read."""
        at = len(self.consumer)
        tag, redelivered = _TAG.unpack_from(method, at)
        place = method[at + _TAG.size :]
        if place != self._place:  # most often all messages of a queue came by the same way
            split = 1 + place[0]
            exchange, routing_key = place[1:split], place[split + 1 : split + 1 + place[split]]
            try:
                self._place, self._names = place, (exchange.decode(), routing_key.decode())
            except UnicodeDecodeError:
                return False
        self._found.append(Delivery(tag, bool(redelivered & 1), *self._names, raw, body))
        return True


class _Connection(SelectConnection):  # type: ignore[misc]
    """pika's connection, but content headers stay bytes, and whole deliveries go to who takes them."""

    _frame_buffer: bytes  # what came, and is not read yet

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.takers: dict[int, _Taker] = {}  # by channel
        super().__init__(*arguments, **named)

    def _on_data_available(self, data_in: bytes) -> None:
        """As pika does it, but without a copy of all the rest for each frame; a delivery is read at once."""
        data = self._frame_buffer + data_in if self._frame_buffer else data_in
        at = 0
        while at < len(data):
            end = self._take(data, at) if self.takers else at
            if end == at:
                end = _frame_end(data, at)
                if not end:
                    break
                self._frame_buffer = data[at:end]
                self._process_frame(self._read_frame()[1])
            elif end < 0:
                break
            self.bytes_received += end - at
            at = end
        self._frame_buffer = data[at:]

    def _take(self, data: bytes, at: int) -> int:
        """Where the delivery that begins at ``at`` ends, when it was taken; ``at`` where none begins that could be;
        -1: more of it has to come."""
        if len(data) - at < _FRAME.size:
            return -1
        kind, channel, size = _FRAME.unpack_from(data, at)
        end: int
        taker = self.takers.get(channel) if kind == spec.FRAME_METHOD else None
        method = at + _FRAME.size
        if taker is None or not data.startswith(taker.consumer, method):
            return at if taker is None or len(data) >= method + size else -1
        header = method + size + 1
        if len(data) < header + _HEADER.size:
            return -1
        kind, same, header_size, _, _, body_size = _HEADER.unpack_from(data, header)
        if kind != spec.FRAME_HEADER or same != channel or body_size >= _TOGETHER:
            return at  # somebody else's frame came between, or the body is worth pika's way
        raw, body = header + _HEADER.size, header + _FRAME.size + header_size + 1
        end = body
        if body_size:
            if len(data) < body + _FRAME.size:
                return -1
            kind, same, size_here = _FRAME.unpack_from(data, body)
            if kind != spec.FRAME_BODY or same != channel or size_here != body_size:
                return at
            end = body + _FRAME.size + body_size + 1
        if len(data) < end:
            return -1
        if not data[header - 1] == data[body - 1] == data[end - 1] == spec.FRAME_END:
            return at  # pika says what is wrong
        if not taker.take(data[method : header - 1], data[raw : body - 1], data[body + _FRAME.size : end - 1]):
            return at
        self.frames_received += 3 if body_size else 2
        return end

    def _read_frame(self) -> tuple[int, Any]:
        data = self._frame_buffer
        if len(data) < 7 or data[0] != spec.FRAME_HEADER:
            return frame.decode_frame(data)  # type: ignore[no-any-return]
        channel, size = struct.unpack_from(">HL", data, 1)
        end = spec.FRAME_HEADER_SIZE + size + spec.FRAME_END_SIZE
        if end > len(data):
            return 0, None
        if data[end - 1] != spec.FRAME_END:
            raise amqp.InvalidFrameError("Invalid FRAME_END marker")
        (body_size,) = struct.unpack_from(">Q", data, spec.FRAME_HEADER_SIZE + 4)
        raw = bytes(data[spec.FRAME_HEADER_SIZE + 12 : end - 1])
        return end, frame.Header(channel, body_size, RawProperties(raw))


def _frame_end(data: bytes, at: int) -> int:
    """Where the frame that begins at ``at`` ends; 0: more of it has to come."""
    if data.startswith(b"AMQP", at):
        return at + 8 if len(data) >= at + 8 else 0
    if len(data) - at < _FRAME.size:
        return 0
    end = at + _FRAME.size + int(_FRAME.unpack_from(data, at)[2]) + 1
    return end if end <= len(data) else 0


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
        self._connection = _Connection(
            parameters,
            on_open_callback=lambda _: opened.append(True),
            on_open_error_callback=lambda _, error: self._closed(error),
            on_close_callback=lambda _, error: self._closed(error),
            custom_ioloop=self._loop,
        )
        self._connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        self._connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))
        if not self.wait(lambda: bool(opened), timeout + 5):
            error = self.error
            self.abort()
            raise connection_error(error, subject)
        if self._connection._transport is not None:  # pika takes 4 KiB at once, three messages of 1 KiB
            self._connection._transport._MAX_RECV_BYTES = _TOGETHER

    def _closed(self, error: BaseException) -> None:
        self.error = error

    def _set_blocked(self, blocked: bool) -> None:
        self.blocked = blocked

    @property
    def is_open(self) -> bool:
        """Nothing says that it is not."""
        return self.error is None and bool(self._connection.is_open)

    @property
    def frame_max(self) -> int:
        """Bytes per frame, as negotiated; a content header has to fit into one."""
        return int(self._connection.params.frame_max)

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
                self._connection.close()
                self.wait(lambda: self.error is not None, self.timeout)
        self.abort()

    def abort(self) -> None:
        """Drop the connection at once, as a killed process does."""
        if self.error is None:
            self.error = amqp.StreamLostError("dropped")
        with contextlib.suppress(Exception):  # whatever pika finds odd about being dropped no longer matters
            if self._connection._transport is not None:
                self._connection._terminate_stream(self.error)
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
        self._channel = self._quietly(lambda: link._connection.channel(on_open_callback=lambda _: opened.append(True)))
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

    def declare(self, queue: str, arguments: dict[str, object]) -> None:
        """Make a durable queue with these arguments; harmless where it is there with the same ones."""
        self._ask(
            lambda done: self._channel.queue_declare(queue, durable=True, arguments=arguments, callback=done),
            "queue.declare",
            queue,
        )

    def subscribe(self, queue: str, prefetch: int, came: list[Delivery]) -> str | None:
        """Let deliveries be added to ``came``, of which ``prefetch`` may be unacked; returns the consumer's tag.

        Its answer is not waited for: a broker that is busy with acks takes a while to give it.
        """

        def deliver(_: object, method: Any, properties: Any, body: bytes) -> None:  # by pika's own way
            name, key = method.exchange, method.routing_key
            came.append(Delivery(method.delivery_tag, method.redelivered, name, key, properties.raw, body))

        if prefetch != self._prefetch:  # it counts for the consumers that begin after it
            self._ask(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done), "basic.qos", queue)
            self._prefetch = prefetch
        tag: str | None = self._quietly(lambda: self._channel.basic_consume(queue, deliver))
        if tag is not None:
            self.link._connection.takers[self._channel.channel_number] = _Taker(tag, came)
            self.link.serve()  # pika writes when it is served
        return tag

    def unsubscribe(self, queue: str, tag: str | None) -> None:
        """Cancel the consumer; what was under way to it still comes, in its order."""

        def cancel(done: Callable[[Any], None]) -> None:
            self._channel.basic_cancel(tag, callback=done)
            self._channel._cancelled.discard(tag)  # what comes by pika's own way pika would give back

        self._ask(cancel, "basic.cancel", queue)
        self.link._connection.takers.pop(self._channel.channel_number, None)

    def leave(self, tag: str | None) -> None:
        """Cancel a consumer to which all came that may, before any of it is acked: nobody waits for the answer."""
        self._quietly(lambda: self._channel.basic_cancel(tag))
        self.link._connection.takers.pop(self._channel.channel_number, None)

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

        The frames are made here, and many go out together: pika writes each of the three frames of a message by itself,
        which takes half of the time of publishing. What is written goes to the broker while more is made.
        """
        self.published += len(messages)
        number, most = self._channel.channel_number, self.link.frame_max - spec.FRAME_HEADER_SIZE - spec.FRAME_END_SIZE
        methods: dict[str, bytes] = {}
        frames: list[bytes] = []
        size = 0
        for queue, raw, body in messages:
            method = methods.get(queue)
            if method is None:
                publish = spec.Basic.Publish(exchange="", routing_key=queue, mandatory=True)
                method = methods[queue] = frame.Method(number, publish).marshal()
            frames += method, _HEADER.pack(spec.FRAME_HEADER, number, len(raw) + 12, _BASIC, 0, len(body)), raw, _END
            for start in range(0, len(body), most):
                part = body if len(body) <= most else body[start : start + most]
                frames += _FRAME.pack(spec.FRAME_BODY, number, len(part)), part, _END
            size += len(method) + len(raw) + len(body)
            if size >= _TOGETHER:
                self._write(b"".join(frames))
                self.link.serve()
                frames, size = [], 0
        if frames:
            self._write(b"".join(frames))

    def _write(self, frames: bytes) -> None:
        self._quietly(lambda: self.link._connection._output_marshaled_frames([frames]))

    def close(self) -> None:
        """Close it; what is unacked goes back."""
        if self.is_open:
            with contextlib.suppress(amqp.AMQPError):
                self._channel.close()
                self.link.wait(lambda: self.reason is not None, self.link.timeout)

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


class Consumption:
    """What comes of a queue, also while nobody waits for it: by one consumer after the other, each for its share.

    A consumer's prefetch is its share, so that nothing more comes than was asked for. For what is acked the broker
    would send more: so :meth:`before_ack` has to be called first.
    """

    def __init__(self, channel: Channel, queue: str) -> None:
        self._channel = channel
        self._queue = queue
        self._came: list[Delivery] = []  # and was not taken yet
        self._asked = self._taken = 0  # of all consumers
        self._before = 0  # so many were asked for before the consumer that there is
        self._ended = False  # nothing comes any more
        self._tag: str | None = None

    @property
    def is_spent(self) -> bool:
        """Nothing is to be taken any more."""
        return self._ended and not self._came

    @property
    def waiting(self) -> int:
        """So many came and were not taken yet."""
        return len(self._came)

    @property
    def may_ask(self) -> bool:
        """All that was asked for came, and more may be asked for."""
        return self._is_complete and not self._stopped()

    @property
    def _is_complete(self) -> bool:
        return self._asked == self._taken + len(self._came)

    def ask(self, count: int) -> None:
        """Let ``count`` more come; only where :attr:`may_ask`."""
        self._leave()
        self._before = self._asked
        self._asked += count
        self._tag = self._channel.subscribe(self._queue, count, self._came)

    def take(self, limit: int, *, first: float, idle: float) -> list[Delivery]:
        """Up to ``limit`` deliveries, unacked.

        Ends when they are here, or all that were asked for; when none came for ``idle`` seconds after one did, or when
        the first did not come within ``first`` seconds: then nothing more comes.
        """
        link, came, enough = self._channel.link, self._came, min(limit, self._asked - self._taken)
        link.wait(lambda: bool(came) or self._stopped(), first)
        while came and len(came) < enough and not self._stopped():
            before = len(came)
            if not link.wait(lambda before=before: len(came) > before or self._stopped(), idle):  # type: ignore[misc]
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
        if self._is_complete and not self._came:
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
        return tags

    def _leave(self) -> None:
        if self._tag is not None and not self._stopped():
            self._channel.leave(self._tag)
        self._tag = None

    def _stopped(self) -> bool:
        return self._ended or not self._channel.is_open or self._tag in self._channel.cancelled


def connection_error(error: BaseException | None, subject: str) -> BrokerError:
    """The broker's or the network's words on a connection, as one of our errors."""
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, amqp.AuthenticationError | amqp.ProbableAuthenticationError):
            return PermissionRefused(f"{subject}: RabbitMQ refuses user and password")
        if isinstance(cause, amqp.ProbableAccessDeniedError):
            return PermissionRefused(f"{subject}: RabbitMQ refuses the virtual host: {cause}")
        if isinstance(cause, amqp.ConnectionClosedByBroker):
            words = f"{subject}: {cause.reply_code} {cause.reply_text}"
            if cause.reply_code in (ACCESS_REFUSED, NOT_ALLOWED):
                return PermissionRefused(words)
            return BrokerUnavailable(words)
    told = dict.fromkeys(words for cause in causes if (words := _words(cause)))
    words = "; ".join(told) or "no connection in time"
    return BrokerUnavailable(f"{subject}: {words}")


def channel_error(error: BaseException, action: str, queue: str) -> BrokerError:
    """Why the broker closed a channel, as one of our errors."""
    subject = f"{action} on queue {queue}" if queue else action
    if isinstance(error, amqp.ChannelClosedByBroker):
        words = f"{subject}: {error.reply_code} {error.reply_text}"
        if error.reply_code == NOT_FOUND:
            return QueueMissing(words)
        if error.reply_code in (ACCESS_REFUSED, RESOURCE_LOCKED):
            return PermissionRefused(words)
        if error.reply_code == PRECONDITION_FAILED and "timeout" in error.reply_text:
            return BrokerUnavailable(f"{words} (consumer_timeout: unacked for too long)")
        return BrokerError(words)
    return BrokerUnavailable(f"{subject}: {_words(error)}")


def _chain(error: BaseException | None) -> Sequence[BaseException]:
    """The error with what pika wrapped in it."""
    found: list[BaseException] = []
    todo = [error] if error is not None else []
    while todo and len(found) < 20:
        one = todo.pop(0)
        found.append(one)
        inner = [*getattr(one, "exceptions", ()), getattr(one, "exception", None), one.__cause__, *one.args]
        todo += [each for each in inner if isinstance(each, BaseException)]
    return found


def _words(error: BaseException) -> str:
    """The error in words, or "" where it only wraps another."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return f"{type(error).__name__}: {text}" if text and not getattr(error, "exceptions", None) else ""
