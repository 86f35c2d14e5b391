"""Messages as Redrive sees them: what was received, what is sent, and the headers that tie the two.

Everything here is immutable and byte-exact. Times are microseconds since the epoch, UTC (:data:`Micros`),
because millions of them go straight into Arrow columns.
"""

import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])
Micros = int

#: The years 1 to 9999: beyond them there is no datetime, so nothing could read what is stored.
FIRST_MOMENT: Micros = -62_135_596_800_000_000
LAST_MOMENT: Micros = 253_402_300_799_999_999

ID_HEADER = "x-redrive-id"
ATTEMPT_HEADER = "x-redrive-attempt"
#: ``id;attempt`` in one header, for brokers that allow only a few (SQS: ten attributes).
COMPACT_HEADER = "x-redrive"
TRACKING_HEADERS = frozenset({ID_HEADER, ATTEMPT_HEADER, COMPACT_HEADER})

_DIGITS = re.compile(r"[0-9]+")
_PLAIN = re.compile(r"[!-~]{1,64}")

#: Rows of one staging batch: a message id is ``batch << ROW_BITS | row``.
ROW_BITS = 20
MAX_ROWS = 1 << ROW_BITS
#: What people may ask for: no id is larger, in no database, and no run moves more messages.
LARGEST_ID = (1 << 63) - 1
MOST_MESSAGES = 1_000_000_000


def maker(kind: type[T]) -> Callable[[Sequence[Any]], T]:
    """What makes a named tuple of ``kind`` of a row with its fields in order: nobody counts them, so this is several
    times as fast as its own ``_make``, or as naming them."""
    return functools.partial(tuple.__new__, kind)


def as_tuples(kind: type[T], rows: Iterable[Sequence[Any]]) -> Iterator[T]:
    """``rows`` as named tuples of one kind, by its :func:`maker`."""
    return map(maker(kind), rows)


class Header(NamedTuple):
    """One application header; ``type`` is the broker's own type name (SQS: ``String``, ``Number.int``)."""

    name: str
    type: str
    value: str | bytes


class DeadLetter(NamedTuple):
    """One received copy of a message, as the broker handed it over."""

    broker_message_id: str  # "" where the broker gives none
    body: bytes
    headers: tuple[Header, ...] = ()  # application headers in the broker's order
    properties: tuple[tuple[str, str], ...] = ()  # the broker's own fields, as text, kept for redelivery and restore
    enqueued_at: Micros | None = None  # first enqueue, as far back as the broker remembers
    dead_lettered_at: Micros | None = None
    first_received_at: Micros | None = None
    deliveries: int = 0  # how often the broker says that it was delivered
    origin: str | None = None  # the queue on which it failed
    ordering_key: str | None = None  # FIFO group, session, partition or ordering key
    content_type: str | None = None
    reason: str | None = None  # the broker's own reason code
    description: str | None = None  # the broker's own error text
    redelivered: bool = False


class Received(NamedTuple):
    """A letter under lease, with the receipt that settles it; receipts never leave the task that got them."""

    letter: DeadLetter
    receipt: object


def bytes_of(received: Iterable[Received]) -> int:
    """How large their bodies are together."""
    return sum([len(one.letter.body) for one in received])


class Outgoing(NamedTuple):
    """One message to publish; ``headers`` are final (failure headers stripped, tracking headers set)."""

    message_id: int
    redrive_id: str
    attempt: int
    body: bytes
    headers: tuple[Header, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    ordering_key: str | None = None
    content_type: str | None = None
    dedup_id: str | None = None  # for brokers with native dedupe; None: that of the attempt (send_id)
    delay_seconds: float = 0.0  # native delay; 0: at once
    claimed_at: Micros | None = None  # of the attempt, the same for every try of it


class Tracking(NamedTuple):
    """The marks that a redelivered message carries: its id and the number of its attempt."""

    redrive_id: str
    attempt: int


def body_hash(body: bytes) -> bytes:
    """16 bytes of BLAKE2b over the body: what tells a returned copy from a derived message."""
    return hashlib.blake2b(body, digest_size=16).digest()


#: Bytes of a value from outside that go into an index as they are. PostgreSQL refuses rows of an index above 2,704.
MAX_INDEXED = 512
_HASHED = re.compile(r"\A.{0,64}~[0-9a-f]{32}\Z", re.DOTALL)
#: Half of a surrogate pair, or what looks like a key with a hash.
_UNUSUAL = re.compile(rf"[\ud800-\udfff]|{_HASHED.pattern}", re.DOTALL)


def index_key(value: str) -> str:
    """``value`` as it goes into an index: itself, if it is short and a database can hold it, else its beginning and a
    hash. The same value gives the same key wherever it is asked for, and no two give one: what looks like the key of
    another value is hashed too."""
    if value.isascii() and len(value) <= MAX_INDEXED and "~" not in value and "\0" not in value:
        return value  # as nearly all are
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_INDEXED and "\0" not in value and not _UNUSUAL.search(value):
        return value
    shown = value[:64].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return f"{shown}~{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def is_hashed(key: str) -> bool:
    """Whether ``key``, which :func:`index_key` gave, is another text than the value that it stands for."""
    return "~" in key and bool(_HASHED.match(key))


def index_keys(values: Sequence[str | None]) -> Sequence[str | None]:
    """The :func:`index_key` of each, None where there is none; of values that all go in as they are, at one look."""
    known = list(filter(None, values))
    if len(max(known, key=len, default="")) <= MAX_INDEXED:
        together = "".join(known)
        if together.isascii() and "~" not in together and "\0" not in together:
            return values
    return [value and index_key(value) for value in values]


def headers_hash(headers: Iterable[Header], strip: frozenset[str]) -> bytes:
    """16 bytes over what producer and consumer wrote into the headers, whatever their order: without failure headers
    (``strip``) and without our marks."""
    digest = hashlib.blake2b(digest_size=16)
    for name, kind, value in sorted(
        (name, kind, value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)
        for name, kind, value in clean_headers(headers, strip)
    ):
        for part in (name.encode("utf-8", "surrogatepass"), kind.encode("utf-8", "surrogatepass"), value):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def message_id_of(batch_id: int, row: int) -> int:
    """The ledger's id of row ``row`` of staging batch ``batch_id``: the same however often it is loaded."""
    return (batch_id << ROW_BITS) | row


def batch_and_row(message_id: int) -> tuple[int, int]:
    """The inverse of :func:`message_id_of`."""
    return message_id >> ROW_BITS, message_id & (MAX_ROWS - 1)


def span_of(batch_id: int) -> dict[str, int]:
    """The ids of a staging batch's copies as parameters of SQL: from ``low`` on, and below ``high``."""
    return {"low": message_id_of(batch_id, 0), "high": message_id_of(batch_id + 1, 0)}


#: A copy's own word on how often it was redelivered counts up to here.
MAX_CARRIED_ATTEMPTS = 1_000
#: Hexadecimal digits of the message id in a redrive id.
REDRIVE_ID_DIGITS = 14


def redrive_id_of(ledger_id: str, message_id: int) -> str:
    """The id that a new message carries for life, e.g. ``k3v9q2-00000000100007``.

    It begins with the ledger's own random id, so two ledgers never give the same, and sorts like the
    message id, so an index over it grows at one end only.
    """
    return f"{ledger_id}-{message_id:0{REDRIVE_ID_DIGITS}x}"


#: What a column for counts holds.
MOST = 2**31 - 1
#: No clock of a broker shows this or anything later: the year 2100. Some clients write milliseconds for seconds.
_IMPLAUSIBLE: Micros = 4_102_444_800_000_000
#: Nor anything earlier: the year 2000. A clock that was never set begins in 1970, and some clients write seconds for
#: milliseconds.
_FIRST_PLAUSIBLE: Micros = 946_684_800_000_000
MILLISECOND, SECOND = 1_000, 1_000_000


def count(value: object, otherwise: int = 0) -> int:
    """How often something happened, as somebody outside says it: never below 0, never more than a column holds.

    ``otherwise`` for what is no number: anyone can write a header.
    """
    number = _number(value)
    return otherwise if number is None else min(max(number, 0), MOST)


def instant(value: object, unit: int = 1) -> Micros | None:
    """When something happened, as somebody outside says it in ``unit`` microseconds since the epoch.

    None for what is no number, for 0 (not set) and for what no clock of a broker shows.
    """
    number = _number(value)
    moment = 0 if number is None else number * unit
    return moment if _FIRST_PLAUSIBLE <= moment < _IMPLAUSIBLE else None


def _number(value: object) -> int | None:
    """A whole number, or a text of plain digits; int() would take other digits too, and refuse very many."""
    if isinstance(value, str):
        return (int(value) if len(value) <= 20 else MOST**3) if _DIGITS.fullmatch(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and math.isfinite(value) else None


def plain_id(redrive_id: str) -> str:
    """``redrive_id`` where a broker takes printable ASCII only: one from outside may be anything, then it is hashed."""
    if _PLAIN.fullmatch(redrive_id):
        return redrive_id
    return hashlib.blake2b(redrive_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def send_id(message: Outgoing) -> str:
    """What a broker with native dedupe knows a send by: the same for each try of an attempt, another for anything else.

    A producer's own id is never used again: other messages may share it, and a broker that has seen it within its
    window answers "sent" and drops the message. The moment of the claim tells attempts apart whose numbers are
    given twice, as by a ledger that was restored from a backup. At most 96 characters of printable ASCII.
    """
    if message.dedup_id is not None:
        return message.dedup_id
    made = f"{plain_id(message.redrive_id)}.{message.attempt}"
    return made if message.claimed_at is None else f"{made}.{message.claimed_at}"


def restore_id(redrive_id: str, fence: int, at: Micros) -> str:
    """As :func:`send_id`, of a message that the run with ``fence`` puts back: no two restores share one."""
    return f"{plain_id(redrive_id)}.restored.{fence}.{at}"


def read_tracking(headers: Iterable[Header]) -> Tracking | None:
    """Our marks on a copy that came back, or None; nonsense in them (another tool's, forged) is None too."""
    redrive_id = attempt = None
    for name, _, value in headers:
        if name not in TRACKING_HEADERS:
            continue
        if name == ID_HEADER:
            redrive_id = _text(value)
        elif name == ATTEMPT_HEADER:
            attempt = _text(value)
        else:
            redrive_id, _, attempt = _text(value).rpartition(";")
    if (
        redrive_id
        and attempt
        and len(redrive_id) <= 64
        and redrive_id.isascii()
        and redrive_id.isprintable()
        and attempt.isascii()
        and attempt.isdigit()
        and len(attempt) <= 6
    ):
        return Tracking(redrive_id, int(attempt))
    return None


def tracking_headers(redrive_id: str, attempt: int, *, room: int | None = None) -> tuple[Header, ...]:
    """The marks of one attempt, in as many headers as there is ``room`` for (None: no limit)."""
    if room is None or room >= 2:
        return (_header((ID_HEADER, "String", redrive_id)), _attempt_header(attempt))
    if room == 1:
        return (Header(COMPACT_HEADER, "String", f"{redrive_id};{attempt}"),)
    return ()


_header = maker(Header)


@functools.lru_cache(maxsize=256)
def _attempt_header(attempt: int) -> Header:
    return Header(ATTEMPT_HEADER, "Number", str(attempt))


def clean_headers(headers: Iterable[Header], strip: frozenset[str]) -> tuple[Header, ...]:
    """``headers`` without the named failure headers and without the marks of an earlier attempt."""
    return tuple([header for header in headers if header[0] not in strip and header[0] not in TRACKING_HEADERS])


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


#: Headers and properties that name the type of a message: NServiceBus, MassTransit, and what brokers have for it.
_TYPES = ("NServiceBus.EnclosedMessageTypes", "MT-MessageType", "MessageType", "message-type", "type", "Subject")
#: In a selection by attributes: what :func:`message_type` tells. No header is called so.
TYPE_ATTRIBUTE = "type()"


def message_type(headers: Iterable[Header], properties: Iterable[tuple[str, str]]) -> str | None:
    """What kind of message it says it is; of a list of types the first, without its assembly."""
    found = named_type(headers, properties)
    return found[1] if found else None


def named_type(headers: Iterable[Header], properties: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The header or property that says what kind of message it is, and what it says (:func:`message_type`)."""
    said: dict[str, object] = {**{header.name: header.value for header in headers}, **dict(properties)}
    for name in _TYPES:
        told = said.get(name)
        if isinstance(told, str) and told.strip():
            return name, told.partition(";")[0].partition(",")[0].strip()[:200]
    return None
