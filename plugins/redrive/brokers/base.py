"""The port that every broker adapter fills, and what a broker can do.

The Protocol stays small; differences are asked for through :class:`Capabilities`, never sniffed.
One instance belongs to one thread of one task: receive, stage and settle happen there, because
receipts do not travel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, NamedTuple, Protocol

from redrive.classification.causes import Cause
from redrive.errors import BrokerError
from redrive.message import DeadLetter, Header, Micros, Outgoing, Received

#: What consumers that dead-letter by themselves write about a failure by custom, whichever broker they use.
CUSTOM_FAILURE_HEADERS: Final = frozenset(
    {
        *("x-error", "x-error-code", "x-error-message", "x-error-type", "x-error-stack"),
        *("x-exception", "x-exception-class", "x-exception-type", "x-exception-message"),
        *("x-exception-stacktrace", "x-failure-reason", "x-failure-text"),
    }
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker can do; stages ask here instead of asking which broker it is."""

    knows_empty: bool  # depth is exact enough to end a drain
    stable_identity: bool  # a copy keeps its broker id until it is settled, so a second staging is provable
    gives_reason: bool  # a dead letter says why it died
    single_target: bool  # a redelivery reaches only the subscriber that failed
    native_dedupe: timedelta | None  # window in which the broker drops a repeated dedup id
    native_delay: timedelta | None  # longest delay that the broker keeps for one message, and never ends early
    max_headers: int | None  # application headers per message, ours included
    max_message_bytes: int | None  # body and headers together
    publish_batch: int  # messages per publish request
    failure_headers: frozenset[str]  # stripped before a redelivery
    max_lease: timedelta | None = None  # no receive or extension leases for longer
    consumer_statistics: bool = False  # it fills TellsOfConsumers too
    closes_connections: bool = False  # it fills ClosesConnections too
    #: Closing one connection of a queue's consumers makes all of them connect anew: what each holds is given out again.
    closes_all_together: bool = False
    native_delays: tuple[int, ...] = ()  # the only ones, in rising seconds; others are rounded up. (): any
    settles_whole: bool = False  # one settle takes all its receipts or none: a batch is settled in one call
    #: Rights that a run needs and that can't be tried without changing something, in the broker's own words.
    untried_rights: str = ""
    #: Whether a dead letter has the broker id that its consumer saw, so that the consumer's records can be asked by it.
    #: ``kept``: and so has every redelivery of it. ``new``: publish tells another for each. None: it has not.
    consumer_ids: Literal["kept", "new"] | None = None
    #: How the age of a live queue's oldest message can be found out: ``sample``: receive a few and release them,
    #: which hurts nothing but costs each one delivery. None: not at all.
    oldest_age: Literal["sample"] | None = None
    #: So long ago the depth that it tells may have been so. A source counts as empty only where receives said so too,
    #: and as drained up to so long before the drain; a destination as worked off up to so long before the look.
    depth_lag: timedelta = timedelta(0)
    #: A count of zero says that nothing is there once another, so much earlier, said so too and none between them said
    #: otherwise: an estimate may be zero by itself. 0: one is enough.
    zeros_apart: timedelta = timedelta(0)
    #: Whether a depth counts every message at one moment, so that whatever it goes down by has left. Where it doesn't,
    #: it may waver by itself, and only emptiness and great swings say that a destination works.
    exact_depth: bool = False
    #: What came first is given to a consumer first, whatever its key: then as many that left as lay before a message,
    #: or a later send that came back, prove that it was received. Where it isn't so, only emptiness does.
    in_order: bool = False
    #: A consumer's hold ends by the broker's clock unless the consumer renews it: whoever hangs gives back what it has,
    #: and after its deliveries a message is dead-lettered. Depth tells what waits apart from what is held.
    leases_end: bool = False
    #: Whether describing a dead-letter queue says how long its origin leases: where no reason is given, a hint at one.
    tells_origin_lease: bool = False
    #: Whether messages can be looked at without receiving them: it counts no delivery and hides them from nobody.
    peeks: bool = False
    #: Whether what was drained from a dead-letter queue can be put back there. False: nobody can send there, so
    #: :func:`redrive.stages.restore.restore` can't.
    takes_back: bool = True
    #: So long a consumer's client library keeps a lease alive, unless told otherwise; None: it ends when the origin's
    #: lease does. What runs out then is this one, whatever the origin says.
    client_lease: timedelta | None = None
    #: Whether a letter's origin is the broker's own word. False: it is in a header, and a producer can write that.
    proves_origin: bool = False
    #: Whether the time per delivery of a dead letter without a reason tells that its lease ran out: its times are the
    #: broker's own, and it is dead-lettered for nothing but its deliveries.
    times_tell_leases: bool = False
    #: Whether a publish tells an id that the broker gave this send alone, so that the same id twice means that it took
    #: two sends for one. False where a producer's id is kept, or where nobody knows.
    ids_of_sends: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionForm:
    """The form of a connection in Airflow's UI, for a broker of which none of Airflow's providers has one."""

    conn_type: str
    #: By field (``host``, ``schema``, ``port``, ``login``, ``password``, ``extra``): what it is called there.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: By field: what stands in it while it is empty.
    placeholders: Mapping[str, str] = field(default_factory=dict)


def _for_itself(queue: str, one: str) -> bool:
    return queue == one


def _never(queue: str) -> bool:  # noqa: ARG001 - see BrokerKind.many
    return False


def _as_written(queue: str, kind: str) -> str:  # noqa: ARG001 - see BrokerKind.source_name
    return queue


def _carries_all(headers: Sequence[Header]) -> str | None:  # noqa: ARG001 - see BrokerKind.refuses_headers
    return None


@dataclass(frozen=True, slots=True)
class BrokerKind:
    """What an adapter says of its broker before there is a connection; what its entry point names.

    The module that holds one imports no client library: settings are read, and advice is shown, where there is none.
    """

    title: str  # as people call the broker
    adapter: str  # ``module:class``; the class has ``open(connection_id, **options)`` and fills Broker
    capabilities: Capabilities  # what it can do at best; over a connection or for a queue it may be less
    #: By cause: what to add to the general advice, with the names of this broker's knobs.
    advice: Mapping[Cause, str] = field(default_factory=dict)
    #: By key of a route, as docs/configuration.md writes it (``sources[].queue``): what the key means on this broker.
    words: Mapping[str, str] = field(default_factory=dict)
    #: The queue that a source ``(queue, kind)`` of the configuration means.
    source_name: Callable[[str, str], str] = _as_written
    #: Whether the source ``queue`` stands for several, of which ListsSources tells.
    many: Callable[[str], bool] = _never
    #: Whether the source ``queue`` is, or stands for, ``one``.
    covers: Callable[[str, str], bool] = _for_itself
    #: Why headers, all that a message has, can't go out as a person wrote them: a sentence that names the first that is
    #: to blame. None: they can. Their number and the size of the message are in the capabilities.
    refuses_headers: Callable[[Sequence[Header]], str | None] = _carries_all
    needs_connection: bool = True
    extra: str = ""  # the extra of redrive that brings its client library
    form: ConnectionForm | None = None


class Depth(NamedTuple):
    """How many messages a queue holds; None where the broker does not tell. Never 0 for "unknown"."""

    visible: int | None
    in_flight: int | None
    delayed: int | None
    consumers: int | None = None
    as_of: Micros | None = None  # when it was so, where the broker tells late; None: now

    @property
    def total(self) -> int | None:
        """All messages, or None where a part of them is unknown."""
        if self.visible is None or self.in_flight is None or self.delayed is None:
            return None
        return self.visible + self.in_flight + self.delayed

    @property
    def known(self) -> int:
        """So many are there at least: what is told, without the parts that are unknown."""
        return sum(part for part in (self.visible, self.in_flight, self.delayed) if part is not None)


#: The answer of a broker that does not tell.
UNKNOWN_DEPTH = Depth(None, None, None)


class QueueInfo(NamedTuple):
    """What a broker tells about a queue; None where it doesn't."""

    retention: timedelta | None = None
    lease: timedelta | None = None
    max_deliveries: int | None = None  # of the origin that dead-letters from here
    ordered: bool = False
    dead_letter_queue: str | None = None
    max_message_bytes: int | None = None
    subscribers: int | None = None  # who gets what is published here; asked where a redelivery has no single target
    origin_lease: timedelta | None = None  # of the origin that dead-letters from here
    own_max_deliveries: int | None = None  # after so many this queue dead-letters a message; None: never
    warnings: tuple[str, ...] = ()  # what is dangerous about it, each the rest of a sentence that begins with its name
    bounds: tuple[str, ...] = ()  # what holds there and is good to know, in the same form


class Settled(NamedTuple):
    """The outcome of a settle: how many copies are gone, and why the others are not."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on an outcome
    failures: tuple[tuple[object, str], ...] = ()  # (receipt, the broker's words)


class Publication(NamedTuple):
    """The outcome of one publish.

    ``sent``: the broker confirmed that it has the message durably. ``refused``: it certainly has not and
    never will take it as it is. ``retry``: it certainly has not, and may take it later (throttled, not
    reachable). ``unknown``: nobody can say.
    """

    status: Literal["sent", "refused", "retry", "unknown"]
    broker_message_id: str | None = None
    detail: str = ""


class ConsumerStats(NamedTuple):
    """What a broker tells about one consumer of a queue."""

    consumer: str  # its name, the same from one look to the next
    unacked: int  # messages that it holds
    progress: int  # any number that changes when it gets on: a count of what it answered, the time of the last ack
    connection: str | None = None  # the one that it came in by, where that can be closed
    shared: bool = False  # somebody who does not consume this queue works over that connection too
    blocked: bool = False  # it gets nothing more until it acks: it holds as many as the broker lets one hold


#: The description of a message of which only the body could be read.
UNREADABLE = "malformed message: its headers can't be read and were left out"


def readable(read: Callable[[], DeadLetter], least: Callable[[], DeadLetter]) -> DeadLetter:
    """What ``read`` makes of a received message; where it can't, ``least``: its body and id, with a word for people.

    Whatever its headers hold, a message has to be received: one that isn't stays, and stops its queue for good.
    """
    try:
        return read()
    except BrokerError:  # not the message's fault
        raise
    except Exception as error:
        return least()._replace(description=f"{UNREADABLE} ({type(error).__name__})")


class Broker(Protocol):
    """What Redrive needs of a broker. Queues are named as in the configuration.

    Every method raises :class:`~redrive.errors.QueueMissing`, :class:`~redrive.errors.PermissionRefused`
    or :class:`~redrive.errors.BrokerUnavailable`, naming the queue.
    """

    capabilities: Capabilities

    def capabilities_for(self, queue: str) -> Capabilities:
        """What holds for ``queue``, where queues of one broker differ (SQS: FIFO dedupes, standard not)."""
        ...

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """Up to ``limit`` messages, each leased to us for ``lease``; [] after ``wait`` without any."""
        ...

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """Delete or ack for good. Harmless when repeated. Order of ``receipts`` does not matter."""
        ...

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """Give messages back at once instead of when their lease ends."""
        ...

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """Lease the messages to us for ``lease`` from now."""
        ...

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """Send and wait for the broker's word: one result per message, in the same order.

        Never repeats a request whose fate is unknown. Order within one ordering key is kept: when a message
        of a key is not sent, later ones of that key in the call are answered ``retry``.

        ``QueueMissing`` and ``PermissionRefused`` are raised only where certainly nothing of the call was sent: who
        calls takes all of it back. Once a message is ``sent`` or ``unknown``, what is left is answered ``retry``.
        """
        ...

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """Whether what is sent to ``queue`` fails at ``origin`` if it fails, where that is the origin of a letter.

        False: what failed there was sent elsewhere. None: nobody can say.
        """
        ...

    def origins(self, queue: str) -> frozenset[str] | None:
        """The queues, as letters name their origin, that dead-letter into ``queue`` by the broker's own word.

        None: the broker can't say. What a header says is no word of the broker.
        """
        ...

    def depth(self, queue: str) -> Depth: ...

    def describe(self, queue: str) -> QueueInfo: ...

    def close(self) -> None: ...


class Peeks(Protocol):
    """What a broker has besides where its capabilities say ``peeks``."""

    def peek(self, queue: str, limit: int) -> list[DeadLetter]:
        """Up to ``limit`` messages of ``queue``, oldest first, which stay as they are."""
        ...


class ListsSources(Protocol):
    """What a broker has besides where its kind knows sources that stand for several."""

    def sources(self, queue: str) -> list[str]:
        """The queues for which ``queue`` stands now, named as a configuration names each alone, in a fixed order.

        Raises :class:`~redrive.errors.QueueMissing` where there is none.
        """
        ...


class TellsOfConsumers(Protocol):
    """What a broker has besides where its capabilities say ``consumer_statistics``."""

    def consumers(self, queue: str) -> list[ConsumerStats]:
        """Who consumes ``queue``; nobody of a subscription that gives each key to one consumer (key-shared)."""
        ...


class ClosesConnections(TellsOfConsumers, Protocol):
    """What a broker has besides where its capabilities say ``closes_connections``."""

    def close_connection(self, queue: str, connection: str, reason: str) -> bool:
        """End a ``connection`` that :class:`ConsumerStats` named; False where it is gone already.

        What its consumers hold goes back to their queues at once. ``reason`` is told to the client and the log.
        """
        ...
