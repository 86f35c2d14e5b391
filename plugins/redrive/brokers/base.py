"""The port that every broker adapter fills, and what a broker can do.

The Protocol stays small; differences are asked for through :class:`Capabilities`, never sniffed.
One instance belongs to one thread of one task: receive, stage and settle happen there, because
receipts do not travel.

One file, though a long one: it is the contract. Whoever writes an adapter, here or in a package of their own, reads all
of it and imports it from here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, NamedTuple, Protocol

from redrive.classification.causes import Cause
from redrive.errors import BrokerError, NothingSent, PermissionRefused, QueueMissing
from redrive.message import DeadLetter, Header, Micros, Outgoing, Received

#: What consumers that dead-letter by themselves, and the libraries that they are made with, write about a failure by
#: custom, whichever broker they use.
CUSTOM_FAILURE_HEADERS: Final = frozenset(
    {
        *("x-error", "x-error-code", "x-error-message", "x-error-type", "x-error-stack"),
        *("x-exception", "x-exception-class", "x-exception-type", "x-exception-message"),
        *("x-exception-stacktrace", "x-failure-reason", "x-failure-text"),
        # NServiceBus and MassTransit
        *("NServiceBus.ExceptionInfo.ExceptionType", "NServiceBus.ExceptionInfo.Message", "NServiceBus.FailedQ"),
        *("NServiceBus.ExceptionInfo.StackTrace", "NServiceBus.ExceptionInfo.Source"),
        *("MT-Reason", "MT-Fault-ExceptionType", "MT-Fault-Message", "MT-Fault-StackTrace", "MT-Fault-Timestamp"),
        *("MT-Fault-InputAddress", "MT-Fault-RetryCount", "MT-Fault-ConsumerType", "MT-Fault-MessageType"),
    }
)

#: With so many bytes of bodies a receive asks for nothing more: nobody knows how large the next ones are.
RECEIVE_BYTES: Final = 16 * 1024 * 1024
#: So often an instance asks its broker about a name that a message brought: anyone may have written any number of them,
#: and what was received before is leased meanwhile.
NAMES_ASKED: Final = 256


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker can do; stages ask here instead of asking which broker it is.

    A wrong answer breaks a promise: claim a capability only where a test on the broker proves it.
    """

    #: Depth counts everything that a drain could still receive, so a drain may end when it says zero.
    knows_empty: bool
    #: A copy has the same broker id and enqueue time each time it is received, so a second staging can be proved.
    stable_identity: bool
    #: A dead letter says why it died.
    gives_reason: bool
    #: A publish reaches only the queue, or the subscriber, that failed.
    single_target: bool
    #: Within this window the broker drops a repeated id, and still answers ``sent``. None: it drops nothing.
    native_dedupe: timedelta | None
    #: The longest delay that the broker keeps for one message: it never ends early, and hardly late. None: no delay.
    native_delay: timedelta | None
    #: Application headers per message, ours included.
    max_headers: int | None
    #: Body and headers together.
    max_message_bytes: int | None
    #: Messages per publish request.
    publish_batch: int
    #: Names of headers that say why a message died; they are removed before a redelivery.
    failure_headers: frozenset[str]
    #: No receive and no extension leases for longer.
    max_lease: timedelta | None = None
    #: What a receive gave out of which the answer was lost, or whose drain died, is hidden for as long as the broker
    #: says, whatever lease was asked for: this at most.
    hides_for: timedelta = timedelta(0)
    #: It fills TellsOfConsumers too.
    consumer_statistics: bool = False
    #: It fills ClosesConnections too.
    closes_connections: bool = False
    #: Closing one connection of a queue's consumers makes all of them connect anew: what each holds is given out again.
    closes_all_together: bool = False
    #: The only delays that it keeps, in rising seconds; others are rounded up. (): any delay.
    native_delays: tuple[int, ...] = ()
    #: One settle call takes all its receipts or none, also in a crash: a batch is settled in one call.
    settles_whole: bool = False
    #: Rights that a run needs and that can't be tried without receiving, settling or sending something, in the broker's
    #: own words.
    untried_rights: str = ""
    #: Whether a dead letter has the broker id that its consumer saw, so that the consumer's records can be asked by it.
    #: ``kept``: every redelivery has it too. ``new``: publish tells another id for each redelivery. None: it has not.
    consumer_ids: Literal["kept", "new"] | None = None
    #: How the age of a live queue's oldest message can be found out. ``sample``: receive a few messages and release
    #: them, which leaves each as it was but for one delivery; such a broker fills ``QueueInfo.own_max_deliveries``,
    #: which rations these looks. None: not at all.
    oldest_age: Literal["sample"] | None = None
    #: A depth may be as old as this, though it is right in the end. So a source counts as empty only where receives
    #: said so too, and as drained only up to this long before the drain; a destination counts as worked off only up to
    #: this long before the look.
    depth_lag: timedelta = timedelta(0)
    #: How long a count has to stay zero before nothing is there: where the count is an estimate, it may be zero by
    #: itself. 0: one look is enough.
    zeros_apart: timedelta = timedelta(0)
    #: A depth counts every message at one moment, so whatever it goes down by has left. Where that isn't so, it may
    #: waver by itself, and only emptiness and great swings say that a destination works.
    exact_depth: bool = False
    #: What came first is given out first, whatever its key, group, session, partition or priority. Then a message was
    #: received once as many have left as lay before it, or once a later send came back. Otherwise only emptiness proves
    #: that.
    in_order: bool = False
    #: The queue into which goes what would be dead-lettered to this one, by each name that it may have as a source, in
    #: any letter case; ``*`` stands for a part that the broker doesn't tell. Only what came before lies here, so that
    #: this one is empty says nothing of returns, unless the route drains that one too. Empty: what is dead-lettered to
    #: this queue lies in it.
    letters_go_to: tuple[str, ...] = ()
    #: A consumer's hold ends by the broker's clock unless the consumer renews it: whoever hangs gives back what it has,
    #: and after its deliveries a message is dead-lettered. Depth tells what waits apart from what is held.
    leases_end: bool = False
    #: Describing a dead-letter queue tells how long its origin leases: a hint at the cause where no reason is given.
    tells_origin_lease: bool = False
    #: It fills Peeks too: messages can be looked at without receiving them, which counts no delivery and hides nothing.
    peeks: bool = False
    #: What was drained from a dead-letter queue can be put back there. False: nobody can send there, so
    #: :func:`redrive.stages.restore.restore` can't either.
    takes_back: bool = True
    #: A consumer's client library keeps a lease alive for this long, unless told otherwise. What runs out then is this
    #: lease, whatever the origin says. None: the library renews nothing.
    client_lease: timedelta | None = None
    #: A letter's origin is the broker's own word (SQS: a system attribute). False: it is in a header, which any
    #: producer can write.
    proves_origin: bool = False
    #: The time per delivery of a dead letter without a reason tells that its lease ran out: its times are the broker's
    #: own, and it is dead-lettered for nothing but its deliveries.
    times_tell_leases: bool = False
    #: A publish tells an id that the broker gave this send alone, so the same id twice means that it took two sends for
    #: one. False where a producer's id is kept, or where nobody knows.
    ids_of_sends: bool = False
    #: It fills Pipelines too: a publish can begin while another is on the wire.
    pipelines: bool = False
    #: It fills ReadsAhead too: what is wanted next can come while this is worked on.
    reads_ahead: bool = False
    #: It fills WayBack too: what is to get into a source is published under another name, which only it can tell.
    way_back: bool = False

    def lease_for(self, lease: timedelta) -> timedelta:
        """What a drain gets that asks for ``lease``, at most."""
        return min(lease, self.max_lease or timedelta.max)

    def hidden_for(self, lease: timedelta) -> timedelta:
        """How long at most what a drain received stays hidden that asks for ``lease`` and dies, or gets no answer."""
        return max(self.lease_for(lease), self.hides_for)


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


def _whole(queue: str) -> tuple[str | None, ...]:
    return (queue,)


def _carries_all(headers: Sequence[Header]) -> str | None:  # noqa: ARG001 - see BrokerKind.refuses_headers
    return None


@dataclass(frozen=True, slots=True)
class BrokerKind:
    """What an adapter says of its broker before there is a connection; what its entry point names.

    The module that holds one imports no client library: settings are read, and advice is shown, where there is none.
    """

    #: As people call the broker.
    title: str
    #: ``module:class`` of what fills Broker; imported when a route is opened.
    adapter: str
    #: What it can do at best. The adapter's own capabilities say what it can do over its connection, or for a queue.
    capabilities: Capabilities
    #: By cause: what to add to the general advice, with the names of this broker's knobs. At least for
    #: ``lease_expired``, ``max_deliveries`` and ``consumer_stuck``, as far as the broker has such knobs.
    advice: Mapping[Cause, str] = field(default_factory=dict)
    #: By key of a route, as docs/configuration.md writes it (``sources[].queue``): what the key means on this broker.
    words: Mapping[str, str] = field(default_factory=dict)
    #: The queue that a source ``(queue, kind)`` of the configuration means, where that isn't what is written (Service
    #: Bus: ``orders/$DeadLetterQueue``).
    source_name: Callable[[str, str], str] = _as_written
    #: Whether the source ``queue`` stands for several (Service Bus: ``topic/*``); the adapter then fills ListsSources.
    many: Callable[[str], bool] = _never
    #: Whether the source ``queue`` is, or stands for, ``one``.
    covers: Callable[[str, str], bool] = _for_itself
    #: What a queue's name tells, so that one queue is known by each of its names: the name itself comes last, before it
    #: what a longer one tells of where that is (a region, an account, a project), None where the connection says it.
    name_tells: Callable[[str], tuple[str | None, ...]] = _whole
    #: How to write a name that tells all that :attr:`name_tells` can read.
    in_full: str = "in full"
    #: Whether something else is sent to than is drained (Pub/Sub: topics, and subscriptions), whatever it is called.
    drains_elsewhere: bool = False
    #: Why headers, all that a message has, can't go out as a person wrote them: a sentence that names the first that is
    #: to blame. None: they can. Their number and the size of the message are in the capabilities.
    refuses_headers: Callable[[Sequence[Header]], str | None] = _carries_all
    #: False where a route names no connection.
    needs_connection: bool = True
    #: The extra of redrive that brings its client library; left out in a package of its own.
    extra: str = ""
    #: Where none of Airflow's providers has a form for this broker; its *Test* opens the adapter.
    form: ConnectionForm | None = None

    def may_be_one(self, queue: str, other: str) -> bool:
        """Whether two names mean one queue over one connection, as far as they tell."""
        pairs = zip(self.name_tells(queue), self.name_tells(other), strict=True)
        return all(one is None or another is None or one == another for one, another in pairs)

    def may_come_back(self, source: str, target: str) -> bool:
        """Whether what is sent to ``target`` is drained from ``source``, as far as their names tell."""
        return source == target or (not self.drains_elsewhere and self.may_be_one(source, target))


class Depth(NamedTuple):
    """How many messages a queue holds; None where the broker does not tell. Never 0 for "unknown"."""

    visible: int | None
    in_flight: int | None
    delayed: int | None
    consumers: int | None = None
    as_of: Micros | None = None  # when it was so, where the broker tells late; None: now
    by_its_clock: bool = False  # ``as_of`` is by the broker's clock, and not by ours

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


class Origin(NamedTuple):
    """How often one queue gives out a message before it dead-letters it, and for how long each time."""

    lease: timedelta | None
    max_deliveries: int | None


class QueueInfo(NamedTuple):
    """What a broker tells about a queue; None where it doesn't."""

    retention: timedelta | None = None
    lease: timedelta | None = None
    max_deliveries: int | None = None  # of the origin that dead-letters from here; of several the least
    ordered: bool = False
    dead_letter_queue: str | None = None  # as a source of dead letters is named
    max_message_bytes: int | None = None
    subscribers: int | None = None  # who gets what is published here; asked where a redelivery has no single target
    origin_lease: timedelta | None = None  # of the origin that dead-letters from here; of several the longest
    own_max_deliveries: int | None = None  # after so many this queue dead-letters a message; None: never
    warnings: tuple[str, ...] = ()  # what is dangerous about it, each the rest of a sentence that begins with its name
    losses: tuple[str, ...] = ()  # by what it loses what was sent there and confirmed, in the same form
    bounds: tuple[str, ...] = ()  # what holds there and is good to know, in the same form
    origins: tuple[Origin, ...] = ()  # each of those that dead-letter from here, where the broker tells them apart


class Settled(NamedTuple):
    """The outcome of a settle: how many copies are gone, and why the others are not."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on an outcome
    failures: tuple[tuple[object, str], ...] = ()  # (receipt, the broker's words)


class Publication(NamedTuple):
    """The outcome of one publish.

    - ``sent``: the broker confirmed that it has the message durably.
    - ``refused``: it certainly does not have this message, and never takes it as it is. The rest of the batch goes on.
    - ``retry``: it certainly does not have it, and may take it later (throttled, not reachable). Certain is what the
      broker itself says, or what never left us; a proxy's 503, a nack after a fault and a broken link are not.
    - ``unknown``: everything else, such as a timeout after the request left.
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

    The class also has a class method ``open(connection_id, *, env=os.environ, **options)``. It reads the connection by
    :func:`redrive.connections.lookup.get`, so that the environment is enough, and does without the network if it can.

    Every method raises :class:`~redrive.errors.QueueMissing`, :class:`~redrive.errors.PermissionRefused`
    or :class:`~redrive.errors.BrokerUnavailable`, naming the queue, ``from`` the client's error.
    """

    capabilities: Capabilities

    def capabilities_for(self, queue: str) -> Capabilities:
        """What holds for ``queue``, where queues of one broker differ (SQS: FIFO dedupes, standard not)."""
        ...

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """Up to ``limit`` messages, each leased to us for ``lease``; [] after ``wait`` without any.

        Fewer come where they are large: who asks the broker several times asks no more with :data:`RECEIVE_BYTES`.

        Bodies are the original bytes. Every header keeps its broker type name, and ``properties`` has whatever a
        redelivery or a restore needs. What the broker doesn't tell is None (``""`` for ids), never a guess. Anyone may
        have written what a message says of itself: read it by ``message.count`` and ``message.instant``, put
        :func:`readable` around the conversion, and ask the broker about what it names at most :data:`NAMES_ASKED`
        times.
        """
        ...

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """Delete or ack for good. Harmless when repeated. Order of ``receipts`` does not matter.

        What could not be settled is in ``Settled.failures``, each with its receipt: it may be settled all the same.
        :class:`~redrive.errors.PermissionRefused` is raised only where certainly nothing was.
        """
        ...

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """Give messages back at once instead of when their lease ends.

        An adapter that can't does the nearest thing, and its docstring says which.
        """
        ...

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """Lease the messages to us for ``lease`` from now; where that can't be, as ``release``."""
        ...

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """Send and wait for the broker's word: one result per message, in the same order.

        Never repeats a request whose fate is unknown: the client's own retries are off. Order within one ordering key
        is kept: when a message of a key is not sent, later ones of that key in the call are answered ``retry``.

        A broker that drops a repeated id gets ``message.send_id``, never a producer's own id, which several messages
        may share.

        ``QueueMissing``, ``PermissionRefused`` and :class:`~redrive.errors.NothingSent` are raised only where certainly
        nothing of the call was sent: who calls takes all of it back. After any other error all of it is unknown. Once
        a message is ``sent`` or ``unknown``, what is left is answered ``retry``.
        """
        ...

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """Whether what is sent to ``queue`` fails at ``origin`` if it fails, where that is the origin of a letter.

        False: what failed there was sent elsewhere, so a copy with our headers is a message of its own. None: nobody
        can say.
        """
        ...

    def origins(self, queue: str) -> frozenset[str] | None:
        """The queues, as letters name their origin, that dead-letter into ``queue`` by the broker's own word.

        Without a ``destination`` messages go back only to these and to what the source lists under ``origins``. None:
        the broker can't say; an outage is raised. What a header says is no word of the broker.
        """
        ...

    def depth(self, queue: str) -> Depth:
        """How many messages are there. A number that is missing is None, never 0: 0 means "worked off"."""
        ...

    def describe(self, queue: str) -> QueueInfo:
        """What the broker tells about ``queue``; ``redrive doctor`` shows its warnings."""
        ...

    def close(self) -> None:
        """End the connection. Settles nothing: what is leased goes back."""
        ...


class Peeks(Protocol):
    """What a broker has besides where its capabilities say ``peeks``."""

    def peek(self, queue: str, limit: int) -> list[DeadLetter]:
        """Up to ``limit`` messages of ``queue``, oldest first, which stay as they are."""
        ...


class ReadsAhead(Protocol):
    """What a broker has besides where its capabilities say ``reads_ahead``."""

    def receive_ahead(self, queue: str, *, limit: int, ahead: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """As :meth:`Broker.receive`; of up to ``ahead`` more, which will be asked for next, some may come meanwhile.

        What it holds has to fit into memory too. To us those ahead are visible in a depth, to others in flight. A
        release, even of nothing, gives them back.
        """
        ...


class WayBack(Protocol):
    """What a broker has besides where its capabilities say ``way_back``."""

    def way_back(self, source: str) -> str:
        """The queue to which is published what is to get into ``source``, in a name that nothing else can have.

        Raises :class:`~redrive.errors.QueueMissing` where nothing gets there: the source is gone, or what feeds it.
        """
        ...


class Pipelines(Protocol):
    """What a broker has besides where its capabilities say ``pipelines``."""

    def ready(self, queue: str, messages: Sequence[Outgoing]) -> Callable[[], Callable[[], list[Publication]]]:
        """Make the messages ready to go. The broker is asked nothing for it, so another thread may do it meanwhile.

        What is returned hands them to the broker when it is called, and returns what waits for the broker's word, and
        then returns or raises what :meth:`Broker.publish` does.

        Nothing is raised before. The next publish, or anything else, may begin meanwhile: messages go out in the order
        in which they were begun, and results are asked for in that order. What is never asked for may have arrived.
        """
        ...


def published_at_once(publish: Callable[[], list[Publication]]) -> Callable[[], list[Publication]]:
    """What a publish that was begun is, where it had to be waited for: it tells, or raises, what ``publish`` did; see
    :meth:`Pipelines.ready`."""
    done: Future[list[Publication]] = Future()
    try:
        done.set_result(publish())
    except BrokerError as error:
        done.set_exception(error)
    return done.result


def as_nothing_sent(error: BrokerError) -> BrokerError:
    """What a publish raises of which certainly nothing was sent: :class:`~redrive.errors.NothingSent`, or ``error``
    where its class says that already."""
    return error if isinstance(error, QueueMissing | PermissionRefused | NothingSent) else NothingSent(error.detail)


@contextmanager
def before_the_send() -> Iterator[None]:
    """Nothing of a publish is sent in here, and nothing was before: errors of the broker say so."""
    try:
        yield
    except BrokerError as error:
        told = as_nothing_sent(error)
        if told is error:
            raise
        raise told from error


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
