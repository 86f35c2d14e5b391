"""The models of the configuration file: one class per mapping, one attribute per key.

``description`` and default of every field become docs/configuration.md, so they are written for its readers.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from redrive import corrections, redaction, selectors
from redrive.brokers import registry
from redrive.brokers.base import BrokerKind
from redrive.classification.causes import Cause, Verdict
from redrive.errors import SelectorError, SettingsError
from redrive.selectors import Kind, Selector
from redrive.settings.expressions import check_expression
from redrive.settings.words import (
    check_schedule,
    check_timezone,
    format_duration,
    nearest,
    parse_duration,
    parse_size,
    quoted,
)


def _selector(*kinds: Kind) -> BeforeValidator:
    def parse(value: object) -> Selector:
        try:
            selector = value if isinstance(value, Selector) else selectors.parse(value)  # type: ignore[arg-type]
        except SelectorError as error:
            raise ValueError(str(error)) from None
        if selector.kind not in kinds:
            raise ValueError(f"{selector} can't be used here; possible are {', '.join(k.value for k in kinds)}")
        return selector

    return BeforeValidator(parse)


def _auto_or_duration(value: object) -> object:
    return "auto" if value == "auto" else _positive(parse_duration(value))


def _positive(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("has to be longer than nothing")
    return value


def _at_most(longest: timedelta) -> AfterValidator:
    def check(value: timedelta) -> timedelta:
        if value > longest:
            raise ValueError(f"{format_duration(value)} is too long; at most {format_duration(longest)}")
        return value

    return AfterValidator(check)


def _at_least(shortest: timedelta) -> AfterValidator:
    def check(value: timedelta) -> timedelta:
        if value < shortest:
            raise ValueError(f"{format_duration(value)} is too short; at least {format_duration(shortest)}")
        return value

    return AfterValidator(check)


def _redaction(value: object) -> str:
    try:
        return redaction.check(str(value))
    except SelectorError as error:
        raise ValueError(str(error)) from None


_TO_TEXT = PlainSerializer(str, return_type=str)
Duration = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_positive)]
DurationOrZero = Annotated[timedelta, BeforeValidator(parse_duration)]
AutoOrDuration = Annotated[Literal["auto"] | timedelta, BeforeValidator(_auto_or_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Share = Annotated[float, Field(gt=0, le=1)]
QueueName = Annotated[str, Field(min_length=1, max_length=500)]
#: Of one character or more; ``*`` only at the end.
Origin = Annotated[str, Field(pattern=r"^[^*]*(?:[^*]|\*)$", max_length=500)]
CONNECTION_ID = r"^[A-Za-z0-9_.\-]{1,200}$"
ConnectionId = Annotated[str, Field(pattern=CONNECTION_ID)]
EvidenceSelector = Annotated[Selector, _selector(Kind.ATTRIBUTE, Kind.BODY), _TO_TEXT]
OrderSelector = Annotated[Selector, _selector(Kind.MESSAGE_GROUP, Kind.KEY, Kind.ATTRIBUTE, Kind.BODY), _TO_TEXT]
SearchSelector = Annotated[Selector, _selector(Kind.ATTRIBUTE, Kind.BODY, Kind.KEY), _TO_TEXT]
KeySelector = Annotated[Selector, _selector(Kind.ATTRIBUTE, Kind.BODY, Kind.KEY, Kind.BROKER_ID), _TO_TEXT]
Expression = Annotated[
    str, Field(min_length=1, max_length=500), BeforeValidator(lambda v: _checked(v, check_expression))
]
Schedule = Annotated[str, BeforeValidator(lambda v: _checked(v, check_schedule))]
Redaction = Annotated[str, BeforeValidator(_redaction)]

#: Redrive leases a copy at most this long while its batch is open.
LONGEST_LEASE = timedelta(hours=12)
#: Stands for whichever broker where parts of a route are looked at alone; a file can't say it.
ANY_BROKER = "*"


def _a_registered_broker(name: str, info: ValidationInfo) -> str:
    if name == ANY_BROKER and (info.context or {}).get("parts"):
        return name
    if name not in registry.names():
        raise ValueError(f"{quoted(name)} is unknown{nearest(name, registry.names())}; {registry.known()}")
    registry.kind(name)
    return name


BrokerName = Annotated[str, AfterValidator(_a_registered_broker)]


def _checked(value: object, check: Any) -> object:
    return check(value) if isinstance(value, str) else value


def _problem(key: str, text: str) -> PydanticCustomError:
    """A problem that only several keys together show, told at the key that is most likely wrong."""
    return PydanticCustomError("together", "{text}", {"key": key, "text": text})


class Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,  # values may hold secrets
    )


class SparkSettings(Part):
    """Where the job that finds causes runs."""

    runner: Literal["local", "submit", "connect", "emr_serverless", "dataproc_serverless"] = Field(
        default="local",
        description="`local`: in a process beside the task. `submit`: `spark-submit` to a cluster. "
        "`connect`: Spark Connect. The other two start a batch in the cloud and are experimental: no cloud "
        "has run them yet.",
    )
    # Spark tries a task four times on a cluster, but on one machine only if told: without it one Python worker that a
    # busy machine starts too late (Spark waits 10 s) ends the job.
    master: str = Field(
        default="local[*,4]",
        description="For `local` and `submit`. Default: all cores of this machine, four tries for a task.",
    )
    connection: ConnectionId | None = Field(
        default=None,
        description="Airflow connection id: of a Spark cluster for `submit` (overrides `master`), of AWS or "
        "Google Cloud for the cloud runners. Default: that of Airflow's provider.",
    )
    remote: str | None = Field(
        default=None,
        pattern=r"^sc://",
        description="For `connect`: the address, such as `sc://spark:15002`.",
    )
    application_id: str | None = Field(default=None, description="EMR Serverless: the application's id.")
    execution_role_arn: str | None = Field(
        default=None, pattern=r"^arn:", description="EMR Serverless: the role that the job takes on."
    )
    project: str | None = Field(
        default=None, description="Dataproc Serverless: the project. Default: the connection's."
    )
    region: str | None = Field(
        default=None,
        description="The cloud's region. Required for Dataproc; default for EMR: the connection's.",
    )
    batch_bucket: str | None = Field(
        default=None,
        pattern=r"^(s3|gs)://[^/]",
        description="Cloud runners: where the job's code and logs go, such as `s3://bucket/prefix`.",
    )
    history: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]",
        description="Address of Spark's History Server, to which the task `classify` links.",
    )
    timeout: Duration = Field(default=timedelta(hours=1), description="After this long a job counts as failed.")
    conf: dict[str, str] = Field(
        default={}, description="More Spark properties, such as `spark.driver.memory`. They override Redrive's."
    )

    @model_validator(mode="after")
    def _runner_has_what_it_needs(self) -> Self:
        needed = {
            "connect": ("remote",),
            "emr_serverless": ("application_id", "execution_role_arn", "batch_bucket"),
            "dataproc_serverless": ("region", "batch_bucket"),
        }
        for key in needed.get(self.runner, ()):
            if getattr(self, key) is None:
                raise _problem(key, f"is required with runner {self.runner}")
        scheme = {"emr_serverless": "s3://", "dataproc_serverless": "gs://"}.get(self.runner, "")
        if scheme and not (self.batch_bucket or "").startswith(scheme):
            raise _problem("batch_bucket", f"has to be {scheme}… with runner {self.runner}")
        return self


class Source(Part):
    """One queue that is drained."""

    queue: QueueName = Field(description="Its name, as the broker knows it.")
    kind: Literal["dead_letter", "delay"] = Field(
        default="dead_letter",
        description="`dead_letter`: its messages have failed. `delay`: they only wait, and go on after `delay`.",
    )
    lease: Duration | None = Field(
        default=None,
        description="How long the *origin* leases a message to its consumers. Default: asked of the broker.",
    )
    max_deliveries: int | None = Field(
        default=None,
        ge=1,
        description="Deliveries at the origin before a message is dead-lettered. Default: asked of the broker.",
    )
    retention: Duration | None = Field(
        default=None, description="How long the broker keeps a message. Default: asked of the broker."
    )
    delay: DurationOrZero | None = Field(
        default=None,
        description="Required for `delay` sources, and only there: how long a message waits, from its enqueue.",
    )
    destination: QueueName | None = Field(
        default=None, description="Where this source's messages go. Default: the route's `destination`."
    )
    origins: tuple[Origin, ...] = Field(
        default=(),
        max_length=1000,
        description="Without a destination: queues to which its messages may go back, beside those of which the "
        "broker itself says that they dead-letter into it. Names, or beginnings of names with `*`; no source of this "
        "route. A header alone is not believed, because anybody can write one.",
    )

    @model_validator(mode="after")
    def _delay_belongs_to_delay_sources(self) -> Self:
        if self.kind == "delay" and self.delay is None:
            raise _problem("delay", "is required for a source of kind delay")
        if self.kind != "delay" and self.delay is not None:
            raise _problem("delay", "is only for sources of kind delay; the route's backoff delays dead letters")
        return self


class Destination(Part):
    """Where messages go back to."""

    queue: QueueName = Field(description="Its name, as the broker knows it.")


class Backoff(Part):
    """How long a delayed message waits: capped, exponential, with full jitter."""

    least: DurationOrZero | None = Field(
        default=None,
        description="No wait is shorter. Default: a tenth of `first`.",
    )
    first: Duration = Field(default=timedelta(minutes=1), description="Longest wait before the first delayed attempt.")
    factor: float = Field(
        default=2, ge=1, le=100, description="Each attempt's longest wait is this many times the last."
    )
    max: Duration = Field(default=timedelta(hours=6), description="No wait is longer.")
    native: bool = Field(
        default=False,
        description="Let the broker keep the last 15 minutes of a delay where it can. A message then comes when it is "
        "due instead of with the next run, but can't be held back any more. Not with `order_by`.",
    )

    @model_validator(mode="after")
    def _max_is_not_below_first(self) -> Self:
        if self.max < self.first:
            raise _problem("max", f"{format_duration(self.max)} is shorter than first, {format_duration(self.first)}")
        if self.least is not None and self.least > self.first:
            raise _problem(
                "least", f"{format_duration(self.least)} is longer than first, {format_duration(self.first)}"
            )
        return self


class Drain(Part):
    """How sources are read into staging."""

    shards: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Parallel tasks, at most 1024. With `order_by` at most one per source.",
    )
    limit: int = Field(
        default=100_000,
        ge=1,
        description="Messages per run, over all shards and sources. While a gate or an ordered message waits only for "
        "the drain, a run reads up to a hundred times as many.",
    )
    # A message id has 20 bits for the row of its batch.
    flush_messages: int = Field(
        default=5_000, ge=1, le=1_000_000, description="A batch is closed at this many messages."
    )
    flush_bytes: Size = Field(
        default=64 << 20, ge=1 << 10, le=4 << 30, description="A batch is closed at this many bytes of bodies."
    )
    lease: Annotated[Duration, _at_most(LONGEST_LEASE)] = Field(
        default=timedelta(minutes=5),
        description="How long Redrive leases a copy while its batch is open. A batch is closed when half of it is "
        "over.",
    )
    wait: Annotated[DurationOrZero, _at_most(timedelta(seconds=20))] = Field(
        default=timedelta(seconds=2),
        description="How long an empty receive waits (long poll).",
    )


class Deliver(Part):
    """How messages are sent."""

    shards: int = Field(default=1, ge=1, le=1024, description="Parallel tasks.")
    slice: int = Field(default=1_000, ge=1, le=100_000, description="Messages that are claimed together.")
    confirm_window: int = Field(
        default=200,
        ge=1,
        le=10_000,
        description="Messages that are sent and not marked yet at any moment. A crash can leave this many `unknown`.",
    )
    run_for: Duration = Field(
        default=timedelta(minutes=8), description="How long one task goes on while the destination makes room."
    )
    tries: int = Field(
        default=3,
        ge=1,
        le=100,
        description="How often a message that can't be sent is tried before it is escalated.",
    )


class Rate(Part):
    """How fast the destination gets messages."""

    per_second: float = Field(
        default=500, gt=0, description="Messages per second, over all delivery tasks of the route."
    )
    max_in_flight: int = Field(
        default=5_000,
        ge=1,
        description="No slice fills the destination beyond this depth, which is measured before each.",
    )


class Canary(Part):
    """How a group of failures is tried: a few messages first."""

    first: int = Field(default=20, ge=1, description="Messages of a new, unclassified or fixed group that go first.")
    grow: float = Field(
        default=10, gt=1, description="After a stage that passed, the next is this many times as large."
    )
    pass_: Share = Field(
        default=0.95, alias="pass", description="A stage passes if at least this share of its messages did not return."
    )
    observe: AutoOrDuration = Field(
        default="auto",
        description="How long a send is watched for its return. `auto`: the 99th percentile of the route's times to "
        "return; until those are known, lease times `max_deliveries`.",
    )


class Breaker(Part):
    """When redelivery of a group, or to a destination, is stopped."""

    return_rate: Share = Field(default=0.5, description="A group is held when a larger share of it returns.")
    min_samples: int = Field(
        default=20, ge=1, description="How many outcomes have to be known before `return_rate` is looked at."
    )
    cool_down: Duration = Field(
        default=timedelta(minutes=15),
        description="After this a held group may try again. It doubles each time.",
    )
    max_held_share: Share = Field(
        default=0.6,
        description="When more than this share of open messages would be held, and there are five groups or more, the "
        "destination is sick and the whole route pauses.",
    )


_NOT_A_BIND = re.compile(r"'[^']*'|--[^\n]*|/\*.*?\*/|::", re.DOTALL)
_BIND = re.compile(r":([A-Za-z_][A-Za-z0-9_]*)")


def _repeats(value: Any) -> bool:
    """Whether ``"{key}"`` stands within a list of one thing."""
    if isinstance(value, list) and len(value) == 1 and '"{key}"' in json.dumps(value):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_repeats(one) for one in inner)


class CheckAnswer(Part):
    """Where an HTTP endpoint's answer says which keys were processed. Places are names with dots between them."""

    items: str = Field(description="The place of a list.", min_length=1, max_length=500)
    key: str = Field(default="", max_length=500, description="The key's place in an item. Empty: the item is the key.")
    when: dict[str, str | int | bool] = Field(
        default={},
        description="Only items with these values at these places were processed. Each key needs its item, and each "
        "item a value at these places. Empty: whatever is listed was processed.",
    )
    empty: tuple[str, ...] = Field(
        default=(),
        description="Places at which the answer may have nothing, or something empty: there it says which keys it "
        "left out.",
    )


class ProcessedCheck(Part):
    """How to find out whether a message was processed although it is here."""

    connection: ConnectionId = Field(
        description="Airflow connection id: of the consumer's database with `query`, of type `http` with `path`."
    )
    query: str | None = Field(
        default=None,
        max_length=10_000,
        description="Returns those of the list `:keys` that were processed: `select message_id from processed where "
        "message_id in :keys`. Either this or `path` is required.",
    )
    path: str | None = Field(
        default=None,
        max_length=2_000,
        pattern=r"^/[!-~]*$",
        description='Path of an HTTP endpoint. It gets `POST {"keys": [...]}` and answers `200 {"processed": '
        "[...]}`. On any other answer the messages are held.",
    )
    request: dict[str, Any] | None = Field(
        default=None,
        description='With `path`: the JSON that is sent instead. `"{keys}"` in it becomes the list of keys. Or a list '
        'of one thing that holds `"{key}"` becomes a list of such things, one per key.',
    )
    answer: CheckAnswer | None = Field(
        default=None, description="With `path`: where the answer says which keys were processed."
    )
    batch: int = Field(default=500, ge=1, le=500, description="How many keys are asked about at once.")
    key: KeySelector = Field(
        description="The key in a message: `attribute:NAME`, `body:$.path`, `key` or `broker_id` (all ids that it "
        "ever had). `broker_id` is refused where a dead letter has another id than the message that its consumer saw."
    )
    settle_after: DurationOrZero = Field(
        default=timedelta(minutes=5),
        description="Not asked earlier after dead-lettering, because a commit may be under way.",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=10),
        description="A check that takes longer has failed, and its messages are held.",
    )

    @model_validator(mode="after")
    def _one_way_of_asking(self) -> Self:
        if self.query is None and self.path is None:
            raise _problem("query", "is required, or path for an HTTP endpoint")
        if self.query is not None and self.path is not None:
            raise _problem("path", "is not for a check with a query: write one of both")
        if self.path is None and (self.request is not None or self.answer is not None):
            raise _problem("request", "is for a check with a path, and so is answer")
        return self

    @field_validator("request")
    @classmethod
    def _request_has_the_keys(cls, request: dict[str, Any] | None) -> dict[str, Any] | None:
        if request is None:
            return None
        told = json.dumps(request)
        if told.count('"{keys}"') + told.count('"{key}"') != 1:
            raise ValueError('has to hold "{keys}", or "{key}" within a list of one thing, exactly once')
        if '"{key}"' in told and not _repeats(request):
            raise ValueError('"{key}" has to stand within a list of one thing, which is repeated for each key')
        return request

    @field_validator("query")
    @classmethod
    def _query_binds_the_keys(cls, query: str | None) -> str | None:
        if query is None:
            return None
        bare = _NOT_A_BIND.sub(" ", query)
        binds = _BIND.findall(bare)
        if binds != ["keys"]:
            raise ValueError(
                "has to name :keys exactly once and no other parameter, as in … where message_id in :keys"
                + (f"; found {', '.join(f':{bind}' for bind in binds)}" if binds else "; found none")
            )
        if not re.match(r"\s*(select|with)\b", bare, re.IGNORECASE) or ";" in bare.rstrip().rstrip(";"):
            raise ValueError("has to be one select statement")
        return query


class Rule(Part):
    """A route's own knowledge of its failures."""

    match: Expression = Field(description="A regular expression of RE2, looked for in the failure text.")
    cause: Cause = Field(description="The cause of failures that match.")


class CauseRate(Part):
    """A lower rate for one cause; what is left out is a tenth of the route's `rate`."""

    per_second: float | None = Field(
        default=None, gt=0, description="Messages per second, over all delivery tasks of the route."
    )
    max_in_flight: int | None = Field(default=None, ge=1, description="Depth of the destination that is not exceeded.")


class CauseOverride(Part):
    """What this route does differently for one cause."""

    verdict: Verdict | None = Field(default=None, description="Instead of the cause's own verdict.")
    rate: CauseRate | None = Field(
        default=None, description="A lower rate. The route's rate holds for all causes together."
    )


class Ages(Part):
    """How the true age of a destination's oldest message is found out."""

    sample: int = Field(
        default=0,
        ge=0,
        le=100,
        description="How many messages each observation receives from a destination and gives back at once. **Each "
        "look is a delivery**; where the queue dead-letters, looks never cost a message half of its deliveries. 0: "
        "ages of destinations stay unknown.",
    )


class Isolation(Part):
    """What is done about consumers that hold messages and get nowhere."""

    ack_timeout: Duration = Field(
        default=timedelta(minutes=5),
        description="A consumer that holds messages and acked none for this long is stuck.",
    )
    action: Literal["none", "close_connection"] = Field(
        default="none",
        description="`close_connection` ends an isolated consumer's connection, so that others get its messages. It is "
        "refused where the broker can't do that.",
    )


EventName = Literal["new_group", "route_paused", "slo_breach", "messages_expiring", "consumers_stuck", "balance_broken"]


class Notify(Part):
    """Who is told when people are needed: an Airflow connection, or an Airflow notifier. One message per event."""

    connection: ConnectionId | None = Field(
        default=None,
        description="Airflow connection id of type `http` (a webhook), `slackwebhook` or `smtp`. Either this or "
        "`notifier` is required. A text in place of the mapping is this key.",
    )
    path: str | None = Field(
        default=None,
        max_length=2_000,
        pattern=r"^/[!-~]*$",
        description="For a webhook: its path, appended to that of the connection.",
    )
    to: tuple[Annotated[str, Field(pattern=r"^[^\s@,<>]+@[^\s@,<>]+$")], ...] = Field(
        default=(), max_length=50, description="For mail: who gets it. Default: `to_email` in the connection's extra."
    )
    notifier: str | None = Field(
        default=None,
        max_length=500,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
        description="Import path of an Airflow notifier's class, which is called in Airflow tasks.",
    )
    arguments: dict[str, Any] = Field(
        default={},
        description="The notifier's arguments; templates in them know `redrive.title`, `.text` and `.events`.",
    )
    events: tuple[EventName, ...] = Field(
        default=(), max_length=5, description="Which events it is told of. Default: all of these."
    )

    def wants(self, event: str) -> bool:
        """Whether it is told of this kind of event."""
        return not self.events or event in self.events

    @property
    def name(self) -> str:
        """What tells it from the route's other targets; nothing secret."""
        if self.notifier is None:
            return f"connection {self.connection}" + (self.path or "") + "".join(f" {one}" for one in self.to)
        given = json.dumps(self.arguments, sort_keys=True, default=str)
        return f"notifier {self.notifier} {hashlib.sha256(given.encode()).hexdigest()[:8]}"

    @model_validator(mode="before")
    @classmethod
    def _a_text_is_a_connection(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if not re.fullmatch(CONNECTION_ID, value):
            raise ValueError("write an Airflow connection id, or a mapping with connection or notifier")
        return {"connection": value}

    @model_validator(mode="after")
    def _one_way_of_telling(self) -> Self:
        if (self.connection is None) == (self.notifier is None):
            raise _problem("connection", "either connection or notifier is required, and not both")
        if self.notifier is not None and (self.path or self.to):
            raise _problem("path" if self.path else "to", "is not for a notifier; it has arguments")
        if self.notifier is None and self.arguments:
            raise _problem("arguments", "are only for a notifier")
        return self


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


class InAirflow(Part):
    """How Airflow runs the route's DAG."""

    pool: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Airflow pool of the route's tasks; it has to exist. Default: Airflow's.",
    )
    max_active_tasks: int | None = Field(
        default=None, ge=1, le=1024, description="Tasks of the route that run at the same time. Default: Airflow's."
    )
    timezone: Annotated[str, AfterValidator(check_timezone)] | None = Field(
        default=None,
        description="Time zone of `schedule`, such as `Europe/Berlin`, with its summer time. Default: UTC.",
    )
    watch: Annotated[Duration, _at_least(timedelta(seconds=5))] | None = Field(
        default=None,
        description="How often Airflow's triggerer looks at dead-letter sources and the destination's consumers. When "
        "more has come, it begins a run, beside the schedule. The broker may bill each look. Default: never.",
    )
    run_timeout: Duration | None = Field(
        default=None,
        description="Airflow fails a run that takes longer, and ends its tasks. The route is free when the run's "
        "lease ends, after 15 minutes. Default: never.",
    )


class Route(Part):
    """From where dead messages come, and how they go back."""

    title: str = Field(default="", max_length=200, description="What people call it; shown in Airflow and reports.")
    schedule: Schedule | None = Field(
        default="*/10 * * * *",
        description="Five cron fields, or `@hourly` and the like, in UTC or `airflow.timezone`. `null`: only by hand.",
    )
    broker: BrokerName = Field(description="The adapter: one of Redrive's, or of another package that is installed.")
    connection: ConnectionId | None = Field(default=None, description="Airflow connection id of the broker.")
    sources: tuple[Source, ...] = Field(min_length=1, max_length=100, description="The queues that are drained.")
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
        "`attribute:NAME` or `body:$.path`.",
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
        "`email`, `card`, `credentials`, `attribute:NAME`, or a path such as `$.customer.name`, `$.items[*].phone`, "
        "`$..iban`.",
    )
    search: tuple[SearchSelector, ...] = Field(
        default=(),
        max_length=8,
        description="What finds messages on the review page, in every state, beside ids and the key of the "
        "`processed_check`: `attribute:NAME`, `body:$.path` or `key`. The ledger keeps the values from the load on, "
        "but never what `redact` masks.",
    )
    body_schema: str | dict[str, Any] | None = Field(
        default=None,
        description="A JSON Schema, or the path of a file with one (relative to `$REDRIVE_HOME`), which a body has to "
        "fit that a person corrected. It may refer only to parts of itself.",
    )
    notify: tuple[Notify, ...] = Field(default=(), max_length=20, description="Who is told when people are needed.")
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
        if isinstance(given, dict) and (problem := corrections.schema_problem(given)):
            raise ValueError(problem.removeprefix("body_schema "))
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
            raise _problem("connection", f"is required with broker {self.broker}")
        seen: set[str] = set()
        for position, source in enumerate(self.sources):
            if source.queue in seen:
                raise _problem(f"sources.{position}.queue", f"{source.queue!r} is listed twice")
            seen.add(source.queue)
            if kind is not None and kind.many(source.queue) and source.kind != "dead_letter":
                raise _problem(f"sources.{position}.queue", f"{source.queue!r}: only dead letters of several at once")
            target = source.destination or (self.destination.queue if self.destination else None)
            if source.kind == "delay" and target is None:
                raise _problem(
                    f"sources.{position}.destination",
                    "is required for a delay source, because its messages do not say where they go next",
                )
            if target == source.queue:
                raise _problem(f"sources.{position}.queue", f"{target!r} is also its destination: a loop")
        for position, source in enumerate(self.sources):
            for place, origin in enumerate(source.origins):
                if origin in seen:
                    raise _problem(
                        f"sources.{position}.origins.{place}",
                        f"{origin!r} is a source of this route too: what goes back there from {source.queue!r} is"
                        " drained again, a loop",
                    )
        closes = kind is None or kind.capabilities.closes_connections
        if self.isolation.action == "close_connection" and not closes:
            raise _problem("isolation.action", f"close_connection is not possible with broker {self.broker}")
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


class Broken(NamedTuple):
    """A route of the file that is wrong, and so is left out."""

    problem: str  # a line for each wrong key
    remains: Route  # what can be read of it, to show it by; never to run it


RouteName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]


class Settings(Part):
    """The whole file."""

    database: str = Field(
        default="sqlite:///var/redrive.db",
        repr=False,  # holds a password
        description="The ledger: `sqlite:///path` or `postgresql://user:password@host/name`. "
        "`$REDRIVE_DATABASE_URL` overrides it; passwords belong there.",
    )
    staging: str = Field(
        default="var/staging",
        description="Payloads, as Parquet: a folder, `s3://bucket/prefix`, `gs://bucket/prefix` or "
        "`abfs://container@account.dfs.core.windows.net/prefix`. `$REDRIVE_STAGING_URI` overrides it.",
    )
    staging_connection: ConnectionId | None = Field(
        default=None,
        description="For an object store: Airflow connection id of AWS, Google Cloud or Azure. Default: the "
        "credentials of each machine's environment.",
    )
    page: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]{1,500}$",
        description="Airflow's address for browsers, `https://airflow.example.org`, with which notifications link to "
        "the review page.",
    )
    spark: SparkSettings = Field(default=SparkSettings(), description="Where the job that finds causes runs.")
    defaults: dict[str, Any] = Field(
        default={}, description="Anything that a route may say. A route's own keys override it."
    )
    routes: dict[RouteName, Route] = Field(
        default={}, description="The routes by name: at most 40 lower-case letters, digits and underscores."
    )

    #: What the file says, without the environment's values and without what is inherited.
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)
    _broken: dict[str, Broken] = PrivateAttr(default_factory=dict)

    @field_validator("page")
    @classmethod
    def _page_is_a_beginning(cls, address: str | None) -> str | None:
        return address.rstrip("/") if address else None

    @field_validator("database")
    @classmethod
    def _database_is_one_that_we_know(cls, url: str) -> str:
        scheme, separator, rest = url.partition("://")
        dialect, _, driver = scheme.partition("+")
        if not separator or dialect not in ("sqlite", "postgresql", "postgres") or driver not in ("", "psycopg"):
            raise ValueError("has to be sqlite:///path or postgresql://user:password@host/name")
        if dialect == "sqlite" and rest.split("?")[0] in ("", "/", "/:memory:"):
            raise ValueError("has to name a file: a ledger in memory forgets what was sent")
        return url if dialect == "sqlite" else f"postgresql+psycopg://{rest}"

    @field_validator("staging")
    @classmethod
    def _staging_is_where_arrow_can_write(cls, place: str) -> str:
        scheme, separator, rest = place.partition("://")
        if separator and (scheme not in ("s3", "gs", "abfs", "abfss", "file") or not rest.strip("/")):
            raise ValueError(
                f"{quoted(place)}: write a folder, s3://bucket/prefix, gs://bucket/prefix or "
                "abfs://container@account.dfs.core.windows.net/prefix"
            )
        if not place.strip():
            raise ValueError("names no place")
        return place if place == "/" else place.rstrip("/")

    @model_validator(mode="after")
    def _clouds_can_reach_staging(self) -> Self:
        scheme = {"emr_serverless": "s3://", "dataproc_serverless": "gs://"}.get(self.spark.runner)
        if scheme and not self.staging.startswith(scheme):
            raise _problem("staging", f"has to be {scheme}…, where runner {self.spark.runner} can read it")
        return self

    @property
    def broken(self) -> Mapping[str, Broken]:
        """The routes that are left out, because something in their own section is wrong."""
        return self._broken

    def route(self, name: str) -> Route:
        """The route of that name; the error says what is wrong with it, or lists those there are."""
        try:
            return self.routes[name]
        except KeyError:
            if name in self.broken:
                raise SettingsError(self.broken[name].problem) from None
            known = ", ".join(sorted(self.routes)) or "none"
            hint = nearest(name, self.routes)
            raise SettingsError(f"routes.{name}: there is no such route{hint}; there are: {known}") from None


def known_keys(key: tuple[str | int, ...]) -> list[str]:
    """The keys that the mapping at ``key`` may have, as they are written in the file."""
    if key[:1] == ("defaults",):
        key = ("routes", "any", *key[1:])
    kind: Any = Settings
    for step in key:
        models = list(parts_of(kind))
        if models:
            kind = next((f.annotation for n, f in models[0].model_fields.items() if (f.alias or n) == step), None)
        else:
            kind = get_args(kind)[-1] if get_args(kind) and get_args(kind)[-1] is not ... else get_args(kind)[0]
    found = next(parts_of(kind), None)
    return [field.alias or name for name, field in found.model_fields.items()] if found else []


def parts_of(kind: Any) -> Iterator[type[Part]]:
    if isinstance(kind, type) and issubclass(kind, Part):
        yield kind
    elif getattr(kind, "__origin__", None) not in (dict, tuple):
        for part in get_args(kind):
            yield from parts_of(part)
