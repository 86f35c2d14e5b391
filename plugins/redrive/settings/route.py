"""A route: from where dead messages come, and how they go back."""

from collections import defaultdict
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from redrive import body_schemas, redaction
from redrive.brokers import registry
from redrive.brokers.base import BrokerKind
from redrive.classification import failure_text
from redrive.classification.causes import Cause
from redrive.selectors import Kind
from redrive.settings.processed_check import ProcessedCheck
from redrive.settings.route_parts import (
    Ages,
    Backoff,
    Breaker,
    Canary,
    CauseOverride,
    Deliver,
    Destination,
    Drain,
    InAirflow,
    Isolation,
    Notify,
    Rate,
    Rule,
    Source,
)
from redrive.settings.values import (
    ANY_BROKER,
    MOST_SEARCHED,
    BrokerName,
    ConnectionId,
    Duration,
    EvidenceSelector,
    OrderSelector,
    Part,
    Redaction,
    Schedule,
    SearchSelector,
    problem,
)


def _named_by(kind: BrokerKind, source: object) -> object:
    if not isinstance(source, dict) or not isinstance(source.get("queue"), str):
        return source
    return source | {"queue": kind.source_name(source["queue"], str(source.get("kind", "dead_letter")))}


def _canary(value: object) -> object:
    # YAML reads a bare off as false.
    if value is False or value == "off":
        return None
    if value is None:
        raise ValueError("write off, or leave the key out for the default")
    return {} if value is True or value == "on" else value


class Known(NamedTuple):
    """A queue as it is written, and what it is of."""

    name: str
    of: str


class Queues:
    """Queues over one connection, each known by whatever name means it; by the written one where the ``kind`` of broker
    is not known."""

    def __init__(self, kind: BrokerKind | None) -> None:
        self._kind = kind
        self._known = defaultdict[str | None, list[Known]](list)

    def add(self, name: str, of: str) -> None:
        self._known[self._last(name)].append(Known(name, of))

    def find(self, name: str) -> Known | None:
        """The queue that ``name`` means, as far as that can be told."""
        found = [one for one in self._known.get(self._last(name), ()) if self.are_one(one.name, name)]
        return min(found, key=lambda one: one.name != name, default=None)

    def are_one(self, name: str, other: str) -> bool:
        return name == other if self._kind is None else self._kind.may_be_one(name, other)

    def draining(self, target: str) -> Known | None:
        """The queue from which is drained what is sent to ``target``, as far as that can be told."""
        found = self.find(target)
        is_source = found is not None and (self._kind is None or self._kind.may_come_back(found.name, target))
        return found if is_source else None

    def as_written(self, name: str, other: str) -> str:
        """The rest of a sentence about ``name`` where the queue is called otherwise elsewhere."""
        if name == other or self._kind is None:
            return ""
        tells, another = self._kind.name_tells(name), self._kind.name_tells(other)
        told_apart = tells != another or None in tells
        apart = f" (if these are two, write both {self._kind.in_full})" if told_apart else ""
        return f", as {other!r}{apart}"

    def _last(self, name: str) -> str | None:
        return name if self._kind is None else self._kind.name_tells(name)[-1]


class Route(Part):
    """From where dead messages come, and how they go back."""

    title: str = Field(default="", max_length=200, description="What people call it; shown in Airflow and reports.")
    schedule: Schedule | None = Field(
        default="*/10 * * * *",
        description="Five cron fields, or `@hourly` and the like, in UTC or `airflow.timezone`. `null`: only by hand.",
    )
    broker: BrokerName = Field(description="The adapter: one of Redrive's, or of another package that is installed.")
    connection: ConnectionId | None = Field(default=None, description="Airflow connection id of the broker.")
    sources: tuple[Source, ...] = Field(
        min_length=1, max_length=100, description="The queues that are drained. No other route may drain them too."
    )
    destination: Destination | None = Field(
        default=None, description="Where messages go. Default: back to where each came from."
    )
    fan_out: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Where only a topic with several subscribers can be reached: `allow` sends to all of them, "
        "`refuse` lets a person decide.",
    )
    requeue_attempts: int = Field(
        default=2,
        ge=0,
        le=1000,
        description="How often a message with an unexpected, passing error goes straight back.",
    )
    delay_attempts: int = Field(
        default=5,
        ge=0,
        le=1000,
        description="How often it then goes back with a growing delay. After that a person decides.",
    )
    backoff: Backoff = Field(default=Backoff(), description="How long delayed messages wait.")
    drain: Drain = Field(default=Drain(), description="How sources are read into staging.")
    deliver: Deliver = Field(default=Deliver(), description="How messages are sent.")
    rate: Rate = Field(default=Rate(), description="How fast the destination gets messages.")
    canary: Annotated[Canary | None, BeforeValidator(_canary)] = Field(
        default=Canary(), description="How a group is tried; `off`: it isn't."
    )
    breaker: Breaker = Field(default=Breaker(), description="When redelivery is stopped.")
    order_by: OrderSelector | None = Field(
        default=None,
        description="Messages with the same value keep their order: `message_group`, `key`, "
        "`attribute:NAME` or `body:$.path`. After an edit also those that were loaded before.",
    )
    on_unknown: Literal["auto", "resend", "review"] = Field(
        default="auto",
        description="What to do after a crash between send and confirmation. `auto`: resend while the broker "
        "certainly drops a repeat, or where a `processed_check` says that the key was not processed; else review.",
    )
    processed_check: ProcessedCheck | None = Field(
        default=None, description="How to find out whether a message was processed. It is asked for every cause."
    )
    evidence: tuple[EvidenceSelector, ...] = Field(
        default=(),
        max_length=20,
        description="Where failure texts are. These places come before the broker's own and the usual ones.",
    )
    rules: tuple[Rule, ...] = Field(
        default=(), max_length=50, description="Own rules, tried before the built-in ones, in order."
    )
    causes: dict[Cause, CauseOverride] = Field(default={}, description="What is done differently for a cause.")
    ages: Ages = Field(default=Ages(), description="How the true age of a destination's oldest message is found out.")
    isolation: Isolation = Field(default=Isolation(), description="What is done about stuck consumers.")
    approvals: Literal[1, 2] = Field(default=1, description="People who have to agree before a decision is applied.")
    redact: tuple[Redaction, ...] = Field(
        default=(),
        max_length=50,
        description="What is masked where texts of messages are shown, never in staging or what is redelivered: "
        "`email`, `card`, `credentials`, `attribute:NAME` (not of a header that failure texts are taken from), or a "
        "path such as `$.customer.name`, `$.items[*].phone`, `$..iban`.",
    )
    search: tuple[SearchSelector, ...] = Field(
        default=(),
        max_length=MOST_SEARCHED,
        description="What finds messages on the review page and by `redrive trace`, in every state, beside ids and the "
        "key of the `processed_check`: `attribute:NAME`, `body:$.path` or `key`. The ledger keeps the values from the "
        "load on, but never what `redact` masks: a header that it masks whole is refused.",
    )
    body_schema: str | dict[str, Any] | None = Field(
        default=None,
        description="A JSON Schema, or the path of a file with one (relative to `$REDRIVE_HOME`), which a body has to "
        "fit that a person corrected. It may refer only to parts of itself. Its expressions run on RE2: `\\d`, `\\w` "
        "and `\\s` are ASCII (`\\p{L}` is any letter), at most 1,000 repetitions, no look-around. "
        "`unevaluatedProperties` and `unevaluatedItems` are refused.",
    )
    notify: tuple[Notify, ...] = Field(
        default=(),
        max_length=20,
        description="Who is told when people are needed. Who is listed twice is told once, of what either entry names.",
    )
    airflow: InAirflow = Field(default=InAirflow(), description="How Airflow runs the route's DAG.")
    slo: Duration = Field(
        default=timedelta(hours=24),
        description="How long a message may take from its first enqueue to a confirmed or presumed outcome. `observe` "
        "counts older messages without one as `late` and notifies.",
    )
    most_messages: int | None = Field(
        default=None,
        ge=1,
        description="A source or destination that holds more breaks the SLO too. Default: no limit.",
    )
    give_up_after: Duration = Field(
        default=timedelta(days=14), description="Older messages become `expired` and go to review."
    )
    retention: Duration = Field(
        default=timedelta(days=30),
        description="How long finished messages stay in the ledger and in staging.",
    )

    @field_validator("body_schema")
    @classmethod
    def _body_schema_is_one(cls, given: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if isinstance(given, dict) and (wrong := body_schemas.problem(given)):
            raise ValueError(wrong.removeprefix("body_schema "))
        if isinstance(given, str) and ("://" in given or not given.strip()):
            raise ValueError("write a schema or the path of a file: nothing is fetched from elsewhere")
        return given

    @model_validator(mode="before")
    @classmethod
    def _sources_are_named_as_the_broker_does(cls, value: object) -> object:
        """What a name means, the broker says; unknown ones are refused later."""
        sources = value.get("sources") if isinstance(value, dict) else None
        if not isinstance(value, dict) or value.get("broker") not in registry.names():
            return value
        if not isinstance(sources, list | tuple):
            return value
        kind = registry.kind(value["broker"])
        return value | {"sources": [_named_by(kind, source) for source in sources]}

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> Self:
        kind = None if self.broker == ANY_BROKER else registry.kind(self.broker)
        if self.connection is None and kind is not None and kind.needs_connection:
            raise problem("connection", f"is required with broker {self.broker}")
        seen = Queues(kind)
        for position, source in enumerate(self.sources):
            before = seen.find(source.queue)
            if before is not None:
                said = f"{source.queue!r} is listed twice{seen.as_written(source.queue, before.name)}"
                raise problem(f"sources.{position}.queue", said)
            seen.add(source.queue, source.queue)
            if kind is not None and kind.many(source.queue) and source.kind != "dead_letter":
                raise problem(f"sources.{position}.queue", f"{source.queue!r}: only dead letters of several at once")
            target = source.destination or (self.destination.queue if self.destination else None)
            if source.kind == "delay" and target is None:
                raise problem(
                    f"sources.{position}.destination",
                    "is required for a delay source, because its messages do not say where they go next",
                )
            loop = target == source.queue if kind is None else target and kind.may_come_back(source.queue, target)
            if target is not None and loop:
                said = f"{source.queue!r} is also its destination{seen.as_written(source.queue, target)}: a loop"
                raise problem(f"sources.{position}.queue", said)
        for position, source in enumerate(self.sources):
            for place, origin in enumerate(source.origins):
                drained = seen.draining(origin)
                if drained is not None:
                    also = seen.as_written(origin, drained.name)
                    raise problem(
                        f"sources.{position}.origins.{place}",
                        f"{origin!r} is a source of this route too{also}: what goes back there from {source.queue!r} is"
                        " drained again, a loop",
                    )
        closes = kind is None or kind.capabilities.closes_connections
        if self.isolation.action == "close_connection" and not closes:
            raise problem("isolation.action", f"close_connection is not possible with broker {self.broker}")
        return self

    @model_validator(mode="after")
    def _masked_headers_are_not_needed(self) -> Self:
        for position, rule in enumerate(self.redact):
            header = redaction.header_of(rule)
            if header is not None and failure_text.is_told_by(header, self.evidence):
                raise problem(
                    f"redact.{position}",
                    f"{rule}: failure texts of this route are taken from this header, and are shown; mask what it may"
                    " hold by email, card, credentials or a path",
                )
        mask = redaction.redactor(self)
        for position, one in enumerate(self.search):
            if one.kind is Kind.ATTRIBUTE and mask.header(one.name, ""):
                raise problem(
                    f"search.{position}",
                    f"{one}: redact masks this header whole, by rule or because it is called a secret, and what is"
                    " masked is not found",
                )
        return self

    @property
    def system(self) -> str:
        """Which broker the route's queues are on: a queue's name says nothing of one on another."""
        return f"{self.broker}:{self.connection or ''}"

    def destination_of(self, source: str) -> str | None:
        """Where messages of the queue ``source`` go by configuration; None: where each came from."""
        covers = registry.kind(self.broker).covers
        lines = sorted((s for s in self.sources if covers(s.queue, source)), key=lambda s: s.queue != source)
        own = lines[0].destination if lines else None
        return own or (self.destination.queue if self.destination else None)
