"""One client's AMQP connection: handshake, sessions, links, transfers and their outcomes.

The client opens everything; the stand-in answers. Errors always carry condition, description and info, because the
SDK looks at all three.
"""

import asyncio
import itertools
import struct
import uuid
from typing import TYPE_CHECKING, Any

from tests.stand_ins.service_bus import codec, management
from tests.stand_ins.service_bus.broker import Entity, Message, Refused, Topic
from tests.stand_ins.service_bus.codec import Described, Frame, Long, Symbol, UByte, UInt, ULong

if TYPE_CHECKING:
    from tests.stand_ins.service_bus.server import ServiceBusStandIn

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
MAX_FRAME = 65_536
BATCH_FORMAT = 0x80013700
CREDIT = 500
EPOCH_TICKS = 621_355_968_000_000_000  # .NET counts from the year 1
SESSION_FILTER = "com.microsoft:session-filter"
SENDER, RECEIVER = False, True  # AMQP's roles
SETTLED = 1  # snd-settle-mode of receive-and-delete


def error(condition: str, text: str) -> Described:
    return Described(ULong(codec.ERROR), [Symbol(condition), text, {Symbol("tracking-id"): str(uuid.uuid4())}])


def outcome(code: int, fields: list[Any] | None = None) -> Described:
    return Described(ULong(code), fields or [])


def path_of(address: str | None) -> str:
    """The entity's path; addresses come as ``amqps://host:port/path`` or bare."""
    text = address or ""
    if "://" in text:
        text = text.split("://", 1)[1].partition("/")[2]
    return text.strip("/")


class Link:
    """One link as the client attached it."""

    def __init__(self, session: "Session", attach: Frame) -> None:
        self.session = session
        self.name: str = attach.field(0)
        self.handle: int = attach.field(1)
        self.client_receives: bool = attach.field(2) == RECEIVER
        self.presettled = attach.field(3) == SETTLED
        terminus: Described = attach.field(5 if self.client_receives else 6)
        self.path = path_of(terminus.value[0])
        self.entity: Entity | None = None  # that we send from
        self.session_id: str | None = None  # of Service Bus, not of AMQP
        self.delivery_count = 0
        self.credit = 0
        self.pending: tuple[Frame, bytearray] | None = None  # a delivery that comes in several frames
        self.received = 0


class Session:
    """An AMQP session: links by handle, deliveries by id."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.links: dict[int, Link] = {}
        self.next_delivery = itertools.count(0)
        self.next_transfer = 0
        self.next_incoming = 0
        self.unsettled: dict[int, tuple[Link, uuid.UUID]] = {}


class Connection:
    """Reads frames until the client leaves."""

    def __init__(self, server: "ServiceBusStandIn", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.world = server.world
        self._reader = reader
        self._writer = writer
        self.sessions: dict[int, Session] = {}
        self.claims: dict[str, frozenset[str]] = {}  # rights by audience, from put-token
        self.open = True

    async def run(self) -> None:
        try:
            await self._handshake()
            while self.open:
                self._handle(await self._frame())
                await self._writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client is gone, or the server stops
        finally:
            self._gone()
            self._writer.close()

    def abort(self) -> None:
        """Drop the client without a word, as a server does that dies."""
        self.open = False
        self._writer.transport.abort()

    # --- frames --------------------------------------------------------------------------------------------

    async def _handshake(self) -> None:
        header = await self._reader.readexactly(8)
        if header == SASL_HEADER:
            self._writer.write(SASL_HEADER)
            mechanisms = codec.Array([Symbol("ANONYMOUS"), Symbol("EXTERNAL")])
            self._writer.write(codec.make_frame(codec.SASL_MECHANISMS, [mechanisms], kind=codec.SASL_FRAME))
            await self._frame()
            self._writer.write(codec.make_frame(codec.SASL_OUTCOME, [UByte(0)], kind=codec.SASL_FRAME))
            header = await self._reader.readexactly(8)
        if header != AMQP_HEADER:
            raise ConnectionError(f"not AMQP 1.0: {header!r}")
        self._writer.write(AMQP_HEADER)

    async def _frame(self) -> Frame:
        [size] = struct.unpack(">I", await self._reader.readexactly(4))
        return codec.parse_frame(await self._reader.readexactly(size - 4))

    def _send(self, performative: int, fields: list[Any], channel: int = 0, payload: bytes = b"") -> None:
        self._writer.write(codec.make_frame(performative, fields, channel=channel, payload=payload))

    def _handle(self, frame: Frame) -> None:
        session = self.sessions.get(frame.channel)
        if frame.performative == codec.OPEN:
            self._send(codec.OPEN, ["service-bus-stand-in", None, UInt(MAX_FRAME), codec.UShort(255), UInt(240_000)])
        elif frame.performative == codec.BEGIN:
            session = self.sessions[frame.channel] = Session(frame.channel)
            session.next_incoming = frame.field(1)
            window = UInt(2**31 - 1)
            begin = [codec.UShort(frame.channel), UInt(0), window, window, UInt(255)]
            self._send(codec.BEGIN, begin, frame.channel)
        elif frame.performative == codec.CLOSE:
            self._send(codec.CLOSE, [])
            self.open = False
        elif session is not None:
            self._handle_in(session, frame)

    def _handle_in(self, session: Session, frame: Frame) -> None:
        match frame.performative:
            case codec.ATTACH:
                self._attach(session, frame)
            case codec.FLOW:
                self._flow(session, frame)
            case codec.TRANSFER:
                self._transfer(session, frame)
            case codec.DISPOSITION:
                self._disposition(session, frame)
            case codec.DETACH:
                link = session.links.pop(frame.field(0), None)
                if link is not None:
                    self._send(codec.DETACH, [UInt(link.handle), True], session.channel)
                    self._leave(link)
            case codec.END:
                del self.sessions[session.channel]
                for link in session.links.values():
                    self._leave(link)
                self._send(codec.END, [], session.channel)

    # --- links ---------------------------------------------------------------------------------------------

    def _attach(self, session: Session, frame: Frame) -> None:
        link = Link(session, frame)
        source, target, properties = frame.field(5), frame.field(6), None
        try:
            if link.path != "$cbs" and not link.path.lower().endswith("/$management"):
                source, properties = self._resolve(link, source)
        except Refused as refused:
            self._answer(link, frame, source, target, None)
            detach = [UInt(link.handle), True, error(refused.condition, str(refused))]
            self._send(codec.DETACH, detach, session.channel)
            return
        session.links[link.handle] = link
        self._answer(link, frame, source, target, properties)
        if not link.client_receives:
            self._give_credit(link)

    def _resolve(self, link: Link, source: Described) -> tuple[Described, dict[Any, Any] | None]:
        """Find the entity; the source to answer with (a session receiver learns its session there)."""
        self.authorize(link.path, "Listen" if link.client_receives else "Send")
        if not link.client_receives:
            self.world.target(link.path).check_enabled()
            return source, None
        link.entity = entity = self.world.entity(link.path)
        entity.check_enabled()
        self.server.fail("attach", link.path)
        if entity.parent is None and entity.rules.forward_to:
            raise Refused(
                "amqp:not-allowed", "Cannot create a message receiver on an entity with auto-forwarding enabled."
            )
        filters = source.value[7] if len(source.value) > 7 else None
        if not filters or SESSION_FILTER not in filters:
            if entity.by_session:
                raise Refused(
                    "amqp:not-allowed",
                    "It is not possible for an entity that requires sessions to create a non-sessionful receiver.",
                )
            return source, None
        if not entity.by_session:
            raise Refused("amqp:not-allowed", "A sessionful message receiver needs an entity that requires sessions.")
        wanted = filters[SESSION_FILTER]
        name = wanted.value if isinstance(wanted, Described) else wanted
        name = name or entity.next_session()
        if name is None:
            raise Refused("com.microsoft:timeout", "No session is available.")
        until = entity.lock_session(name)
        link.session_id = name
        answer = [*source.value, *[None] * 11][:11]
        answer[7] = {Symbol(SESSION_FILTER): name}
        ticks = Long(int(until * 10_000_000) + EPOCH_TICKS)
        return Described(source.descriptor, answer), {Symbol("com.microsoft:locked-until-utc"): ticks}

    def authorize(self, path: str, right: str) -> None:
        """Raises Refused unless one of the client's tokens gives ``right``."""
        if not any(right in rights for rights in self.claims.values()):
            text = (
                f"Unauthorized access. '{right}' claim(s) are required to perform this operation. Resource: '{path}'."
            )
            raise Refused("amqp:unauthorized-access", text)

    def _answer(self, link: Link, frame: Frame, source: Any, target: Any, properties: dict[Any, Any] | None) -> None:
        bound = self.server.max_message_bytes_of(link.path)
        self._send(
            codec.ATTACH,
            [
                link.name,
                UInt(link.handle),
                not frame.field(2),
                UByte(frame.field(3, 2)),
                UByte(frame.field(4, 0)),
                source,
                target,
                None,
                False,
                UInt(0),
                ULong(bound),
                None,
                None,
                properties,
            ],
            link.session.channel,
        )

    def _leave(self, link: Link) -> None:
        """A closed link keeps its message locks until they end; a session is free at once."""
        if link.entity is not None and link.session_id is not None:
            link.entity.end_session(link.session_id)
        link.credit = 0

    def _gone(self) -> None:
        for session in self.sessions.values():
            for link in session.links.values():
                self._leave(link)
        self.sessions.clear()
        self.server.forget(self)

    # --- credit and deliveries to the client ------------------------------------------------------------------

    def _flow(self, session: Session, frame: Frame) -> None:
        link = session.links.get(frame.field(4, -1))
        if link is None or not link.client_receives:
            return
        link.credit = frame.field(5, 0) + frame.field(6, 0) - link.delivery_count
        self.server.pump()
        if frame.field(8, False):  # drain: what is left of the credit is used up
            link.delivery_count += max(link.credit, 0)
            link.credit = 0
            self._send(codec.FLOW, self._flow_fields(link, drain=True), session.channel)

    def _give_credit(self, link: Link) -> None:
        link.received = 0
        fields = self._flow_fields(link)
        fields[6] = UInt(CREDIT)
        self._send(codec.FLOW, fields, link.session.channel)

    def _flow_fields(self, link: Link, *, drain: bool = False) -> list[Any]:
        window = UInt(2**31 - 1)
        session = link.session
        place = [UInt(session.next_incoming), window, UInt(session.next_transfer), window]
        return [*place, UInt(link.handle), UInt(link.delivery_count), UInt(0), None, drain]

    def pump(self) -> bool:
        """Send one message to each link that has credit; whether any went."""
        went = False
        for session in list(self.sessions.values()):
            for link in list(session.links.values()):
                if link.credit > 0 and link.entity is not None and not link.entity.rules.disabled:
                    message = link.entity.take(link.session_id, lock=not link.presettled)
                    if message is not None:
                        self._deliver(link, message)
                        went = True
        return went

    def _deliver(self, link: Link, message: Message) -> None:
        token = message.lock.token if message.lock else uuid.uuid4()
        link.delivery_count += 1
        link.credit -= 1
        delivery = self._push(link, message.encode(), token.bytes_le, settled=link.presettled)
        if not link.presettled:
            link.session.unsettled[delivery] = (link, token)

    def _push(self, link: Link, payload: bytes, tag: bytes, *, settled: bool) -> int:
        """One delivery, in as many frames as it needs."""
        session = link.session
        delivery = next(session.next_delivery)
        room = MAX_FRAME - 512
        for start in range(0, max(len(payload), 1), room):
            more = start + room < len(payload)
            first = [UInt(delivery), tag, UInt(0)] if start == 0 else [None, None, None]
            fields = [UInt(link.handle), *first, settled, more]
            self._send(codec.TRANSFER, fields, session.channel, payload[start : start + room])
            session.next_transfer += 1
        return delivery

    def respond(self, link: Link, message: bytes) -> None:
        """Send a response over the link that the client attached for responses."""
        if link.credit > 0:
            link.delivery_count += 1
            link.credit -= 1
            self._push(link, message, uuid.uuid4().bytes, settled=True)

    # --- deliveries from the client -----------------------------------------------------------------------------

    def _transfer(self, session: Session, frame: Frame) -> None:
        link = session.links.get(frame.field(0))
        if link is None:
            return
        session.next_incoming += 1
        first, content = link.pending or (frame, bytearray())
        content += frame.payload
        if frame.field(5, False):
            link.pending = (first, content)
            return
        link.pending = None
        link.delivery_count += 1
        link.received += 1
        state = outcome(codec.ACCEPTED)
        try:
            self._take(link, bytes(content), first.field(3, 0))
        except Refused as refused:
            state = outcome(codec.REJECTED, [error(refused.condition, str(refused))])
        except _Silence:
            return  # the answer is lost
        if self.open:
            number = UInt(first.field(1))
            self._send(codec.DISPOSITION, [RECEIVER, number, number, True, state], session.channel)
            if link.received >= CREDIT // 2:
                self._give_credit(link)

    def _take(self, link: Link, content: bytes, message_format: int) -> None:
        if link.path == "$cbs" or link.path.lower().endswith("/$management"):
            management.answer(self, link, content)
            self.server.pump()
            return
        self.server.fail("send", link.path)
        parts = [content]
        if message_format == BATCH_FORMAT:
            parts = [one.value for one in codec.sections(content) if one.code == codec.DATA]
        messages = [Message(part) for part in parts]
        target = self.world.target(link.path)
        self._check_batch(target, messages)
        for message in messages:
            target.enqueue(message)
        self.server.sent += len(messages)
        self.server.transfers += 1
        self.server.pump()
        if self.server.lose_answers:
            self.server.lose_answers -= 1
            self.abort()
            raise _Silence

    @staticmethod
    def _check_batch(target: Entity | Topic, messages: list[Message]) -> None:
        """All of a batch or nothing of it."""
        for message in messages:
            target.check(message)
        if sum(message.size for message in messages) > target.rules.max_message_bytes:
            raise Refused("amqp:link:message-size-exceeded", "The batch is larger than the entity allows.")
        if target.rules.partitioned and len({message.partition_key for message in messages}) > 1:
            raise Refused(
                "com.microsoft:argument-error", "All messages of a batch for a partitioned entity must share their key."
            )

    # --- outcomes from the client ---------------------------------------------------------------------------------

    def _disposition(self, session: Session, frame: Frame) -> None:
        if frame.field(0) != RECEIVER:
            return
        first = frame.field(1)
        settled, state = frame.field(3, False), frame.field(4)
        for number in range(first, frame.field(2, first) + 1):
            link, token = session.unsettled.pop(number, (None, None))
            answer: Any = state
            try:
                if link is None or token is None or link.entity is None:
                    raise Refused("com.microsoft:message-lock-lost", "The delivery is not known.")
                self.server.fail("settle", link.path)
                settle(link.entity, token, state)
            except Refused as refused:
                answer = outcome(codec.REJECTED, [error(refused.condition, str(refused))])
            if answer is state and int(state.descriptor) == codec.REJECTED:
                answer = outcome(codec.REJECTED)  # an echo with an error would mean that it failed
            if not settled:
                echo = [SENDER, UInt(number), UInt(number), True, answer]
                self._send(codec.DISPOSITION, echo, session.channel)
        self.server.pump()


class _Silence(Exception):
    """The server is gone before it answers."""


def settle(entity: Entity, token: uuid.UUID, state: Described | None) -> None:
    """Do to a locked message what the client decided; raises Refused where the lock is lost."""
    message = entity.locked(token)
    fields = state.value if state is not None else []
    match int(state.descriptor) if state is not None else codec.ACCEPTED:
        case codec.ACCEPTED:
            entity.remove(message)
        case codec.REJECTED:
            info = (fields[0].value[2] if fields and fields[0] is not None else None) or {}
            entity.dead_letter(message, info.get("DeadLetterReason"), info.get("DeadLetterErrorDescription"))
        case codec.RELEASED:
            entity.release(message)
        case codec.MODIFIED if len(fields) > 1 and fields[1]:
            entity.defer(message)
        case _:
            entity.abandon(message)
