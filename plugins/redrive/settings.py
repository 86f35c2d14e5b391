"""The configuration: what ``config/redrive.yaml`` may say, read once, checked whole, frozen.

:func:`load` is the only I/O here: it reads one file. Secrets do not belong into that file; connections are
named by their Airflow id, and values can come from the environment as ``${VAR}`` or ``${VAR:-default}``.
``python -m redrive.settings`` writes docs/configuration.md from the models below.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticUndefined

from redrive import selectors
from redrive.causes import Cause, Verdict
from redrive.errors import SelectorError, SettingsError
from redrive.selectors import Kind, Selector

# --- words of the file: durations, sizes, selectors, schedules, expressions -----------------------------------

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_SHORT = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?(?:ms|[smhdw]))+")
_SHORT_PART = re.compile(r"([0-9.]+)(ms|[smhdw])")
_ISO = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,6})?)S)?)?"
)
_LONGEST = timedelta(days=3650)

_SIZE = re.compile(r"([0-9]{1,12})\s*([kmg]i?b|b)?", re.IGNORECASE)
_SIZE_UNITS: Final = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}


def parse_duration(value: object) -> timedelta:
    """``30s``, ``1h30m``, ``4d``, ``PT5M`` as a timedelta of at most ten years; ValueError says what is wrong."""
    if isinstance(value, timedelta):
        return value
    text = value.strip() if isinstance(value, str) else ""
    duration: timedelta | None = None
    if _SHORT.fullmatch(text):
        duration = sum((float(n) * _UNITS[unit] for n, unit in _SHORT_PART.findall(text)), timedelta())
    elif iso := _ISO.fullmatch(text):
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        duration = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    if duration is None:
        raise ValueError(f"{_quoted(value)} is not a duration; write 30s, 5m, 6h, 4d, 1w or PT5M")
    if duration > _LONGEST:
        raise ValueError(f"{_quoted(value)} is longer than ten years")
    return duration


def format_duration(duration: timedelta) -> str:
    """The shortest way to write it: ``90s``, ``5m``, ``0s``."""
    for unit in ("w", "d", "h", "m", "s"):
        count, rest = divmod(duration, _UNITS[unit])
        # Whole weeks from the second on only: people say 7d, and 14d, and 30d.
        if not rest and count and unit != "w":
            return f"{count}{unit}"
    return f"{duration / _UNITS['ms']:g}ms" if duration else "0s"


def parse_size(value: object) -> int:
    """``64MiB``, ``5MB`` or a plain number of bytes; ValueError says what is wrong."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{_quoted(value)} is not a size; write 64MiB, 5MB or a number of bytes")
    return int(match[1]) * _SIZE_UNITS[(match[2] or "b").lower()]


def format_size(size: int) -> str:
    """The shortest way to write it: ``64MiB``, ``1500``."""
    for unit in ("GiB", "MiB", "KiB"):
        count, rest = divmod(size, _SIZE_UNITS[unit.lower()])
        if count and not rest:
            return f"{count}{unit}"
    return str(size)


def check_expression(text: str) -> str:
    """``text`` if it is a regular expression that Python and Java both take and that can't run away.

    Rules meet hostile texts in Spark (Java) and in ``redrive explain`` (Python). So an unbounded repetition
    must not contain another one, and what only one of the two dialects knows is refused.
    """
    if problem := next(_expression_problems(text), None):
        raise ValueError(problem)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # [[a] and [a&&b] mean sets of sets in Java; Python only warns
            re.compile(text)
    except (re.error, FutureWarning, DeprecationWarning, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


#: From this count on a bounded repetition costs as much as an unbounded one when it is nested.
_MANY = 50
_REPETITION = re.compile(r"\{([0-9]{1,6})(?:(,)([0-9]{0,6}))?\}")
_NESTED = "a repetition without limit contains another, like (a+)+: hostile text would stall it; bound one, as {1,9}"


def _expression_problems(text: str) -> Iterator[str]:
    """What is wrong with the shape of an expression, found in one pass from left to right."""
    groups = [False]  # for each open group: does it contain an unbounded repetition already?
    atom: bool | None = None  # does the atom just read contain one? None: nothing to repeat here
    in_class = False
    at = 0
    while at < len(text):
        char, size = text[at], 1
        repetition = _REPETITION.match(text, at) if char == "{" else None
        if char == "\\":
            size = 2
            if not in_class and text[at + 1 : at + 2].isdigit() and text[at + 1] != "0":
                yield "back references can't be matched in bounded time"
            if text[at + 1 : at + 2] in ("Z", "z"):
                yield r"\Z and \z mean different things in Python and Java; write $"
            atom = False if not in_class else atom
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class, atom = True, False
            size = 3 if text[at + 1 : at + 3] == "^]" else 2 if text[at + 1 : at + 2] == "]" else 1
        elif char == "(":
            if text[at + 1 : at + 2] == "?" and not re.match(
                r"\?(?::|=|!|<=|<!|[ims]{1,3}[:)])", text[at + 1 :]
            ):
                yield f"{text[at : at + 4]!r}: named groups and conditions differ between Python and Java; write (?:"
            groups.append(False)
            atom = None
        elif char == ")":
            atom = groups.pop() if len(groups) > 1 else False
        elif char in "*+" or repetition:
            size = len(repetition[0]) if repetition else 1
            if text[at + size : at + size + 1] == "+":
                yield "possessive repetitions are not known to every Python; leave the second + out"
            if repetition is None or _is_many(repetition):
                if atom:
                    yield _NESTED
                groups[-1] = True
            elif atom:
                groups[-1] = True
            atom = None
        elif char == "{":
            yield "a bare { is refused by Java; write \\{"
        elif char == "?":
            groups[-1] = groups[-1] or bool(atom)
        else:
            groups[-1] = groups[-1] or bool(atom)
            atom = None if char == "|" else False
        at += size
        if atom and at >= len(text):
            groups[-1] = True


def _is_many(repetition: re.Match[str]) -> bool:
    lowest, comma, highest = repetition.groups()
    return (comma is not None and highest == "") or int(highest or lowest) >= _MANY


_CRON_BOUNDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_CRON_PART = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
_CRON_PRESETS: Final = ("@hourly", "@daily", "@weekly", "@monthly")


def check_schedule(text: str) -> str:
    """``text`` if it is a cron expression of five fields with numbers, or one of ``@hourly`` and the like."""
    fields = text.split()
    if text in _CRON_PRESETS:
        return text
    if len(fields) != 5:
        raise ValueError(
            f"{_quoted(text)} is not a schedule; write five cron fields or {', '.join(_CRON_PRESETS)}"
        )
    for field, (lowest, highest) in zip(fields, _CRON_BOUNDS, strict=True):
        for part in field.split(","):
            match = _CRON_PART.fullmatch(part)
            numbers = [int(n) for n in match.groups()[:2] if n] if match else []
            if (
                match is None
                or not all(lowest <= n <= highest for n in numbers)
                or numbers != sorted(numbers)
                or match[3] in ("0", "00")
            ):
                raise ValueError(f"{_quoted(text)}: {part!r} is not between {lowest} and {highest}, * or */n")
    return text


def _selector(*kinds: Kind) -> BeforeValidator:
    def parse(value: object) -> Selector:
        try:
            selector = value if isinstance(value, Selector) else selectors.parse(value)  # type: ignore[arg-type]
        except SelectorError as error:
            raise ValueError(str(error)) from None
        if selector.kind not in kinds:
            raise ValueError(
                f"{selector} can't be used here; possible are {', '.join(k.value for k in kinds)}"
            )
        return selector

    return BeforeValidator(parse)


def _auto_or_duration(value: object) -> object:
    return "auto" if value == "auto" else parse_duration(value)


def _redaction(value: object) -> str:
    if value in ("email", "card"):
        return str(value)
    try:
        selectors.parse_path(str(value))
    except SelectorError:
        raise ValueError(f"{_quoted(value)}: write email, card or a path such as $.customer.name") from None
    return str(value)


_TO_TEXT = PlainSerializer(str, return_type=str)
Duration = Annotated[timedelta, BeforeValidator(parse_duration), Field(gt=timedelta(0))]
DurationOrZero = Annotated[timedelta, BeforeValidator(parse_duration), Field(ge=timedelta(0))]
AutoOrDuration = Annotated[Literal["auto"] | timedelta, BeforeValidator(_auto_or_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Share = Annotated[float, Field(gt=0, le=1)]
QueueName = Annotated[str, Field(min_length=1, max_length=500)]
ConnectionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,200}$")]
EvidenceSelector = Annotated[Selector, _selector(Kind.ATTRIBUTE, Kind.BODY), _TO_TEXT]
OrderSelector = Annotated[
    Selector, _selector(Kind.MESSAGE_GROUP, Kind.KEY, Kind.ATTRIBUTE, Kind.BODY), _TO_TEXT
]
KeySelector = Annotated[Selector, _selector(Kind.ATTRIBUTE, Kind.BODY, Kind.KEY, Kind.BROKER_ID), _TO_TEXT]
Expression = Annotated[
    str, Field(min_length=1, max_length=500), BeforeValidator(lambda v: _checked(v, check_expression))
]
Schedule = Annotated[str, BeforeValidator(lambda v: _checked(v, check_schedule))]
Redaction = Annotated[str, BeforeValidator(_redaction)]

BrokerName = Literal[
    "amazon_sqs", "google_pubsub", "rabbitmq", "azure_service_bus", "apache_pulsar", "memory"
]


def _checked(value: object, check: Any) -> object:
    return check(value) if isinstance(value, str) else value


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _problem(key: str, text: str) -> PydanticCustomError:
    """A problem that only several keys together show, told at the key that is most likely wrong."""
    return PydanticCustomError("together", "{text}", {"key": key, "text": text})


# --- the models: one attribute per key ------------------------------------------------------------------------


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,  # values may hold secrets
    )


class SparkSettings(_Part):
    """Where the job that finds causes runs."""

    runner: Literal["local", "submit", "connect", "emr_serverless", "dataproc_serverless"] = Field(
        default="local",
        description="`local`: in a process beside the task. `submit`: `spark-submit` to a cluster. `connect`: Spark "
        "Connect. The other two: a batch in the cloud.",
    )
    master: str = Field(default="local[*]", description="Spark's master, for `local` and `submit`.")
    connection: ConnectionId | None = Field(
        default=None,
        description="Airflow connection id: of a Spark cluster for `submit` (overrides `master`), of AWS for "
        "`emr_serverless`, of Google Cloud for `dataproc_serverless`. Default: the provider's own default.",
    )
    remote: str | None = Field(
        default=None,
        pattern=r"^sc://",
        description="Spark Connect's address, such as `sc://spark:15002`; for `connect`.",
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
        description="The cloud's region. Needed for Dataproc; for EMR the connection's is the default.",
    )
    batch_bucket: str | None = Field(
        default=None,
        pattern=r"^(s3|gs)://[^/]",
        description="Cloud runners: where the job's code and logs go, such as `s3://bucket/prefix`.",
    )
    driver_memory: str = Field(
        default="1g", pattern=r"^[0-9]+[kmgt]$", description="Memory of the Spark driver."
    )
    timeout: Duration = Field(
        default=timedelta(hours=1), description="After this long a job counts as failed."
    )
    conf: dict[str, str] = Field(default={}, description="More Spark properties; they win over ours.")

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


class Source(_Part):
    """One queue that is drained."""

    queue: QueueName = Field(description="Its name, as the broker knows it.")
    kind: Literal["dead_letter", "delay"] = Field(
        default="dead_letter",
        description="`dead_letter`: what is in it has failed. `delay`: it only waits; it goes on after `delay`.",
    )
    lease: Duration | None = Field(
        default=None,
        description="How long the *origin* leases a message to its consumers (SQS: visibility timeout). "
        "Default: asked of the broker.",
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
        default=None, description="`delay` sources: how long a message waits, from its enqueue. Needed there."
    )
    destination: QueueName | None = Field(
        default=None, description="Where this source's messages go. Default: the route's `destination`."
    )
    poll: DurationOrZero | None = Field(
        default=None,
        description="How long an empty receive waits at this source. Default: the route's `drain.wait`.",
    )

    @model_validator(mode="after")
    def _delay_belongs_to_delay_sources(self) -> Self:
        if self.kind == "delay" and self.delay is None:
            raise _problem("delay", "is required for a source of kind delay")
        if self.kind != "delay" and self.delay is not None:
            raise _problem(
                "delay", "is only for sources of kind delay; the route's backoff delays dead letters"
            )
        return self


class Destination(_Part):
    """Where messages go back to."""

    queue: QueueName = Field(description="Its name, as the broker knows it.")


class Backoff(_Part):
    """How long a delayed message waits: capped, exponential, with full jitter."""

    first: Duration = Field(
        default=timedelta(minutes=1), description="Longest wait before the first delayed attempt."
    )
    factor: float = Field(
        default=2, ge=1, le=100, description="Each attempt's longest wait is this many times the last."
    )
    max: Duration = Field(default=timedelta(hours=6), description="No wait is longer.")
    native: bool = Field(
        default=False,
        description="Let the broker keep the delay where it can; otherwise it is kept in the ledger.",
    )

    @model_validator(mode="after")
    def _max_is_not_below_first(self) -> Self:
        if self.max < self.first:
            raise _problem(
                "max", f"{format_duration(self.max)} is shorter than first, {format_duration(self.first)}"
            )
        return self


class Drain(_Part):
    """How sources are read into staging."""

    shards: int = Field(
        default=2, ge=1, le=1024, description="Parallel tasks. 1024 is as far as Airflow maps a task."
    )
    limit: int = Field(default=100_000, ge=1, description="Messages per run, over all shards and sources.")
    # A message id has 20 bits for the row of its batch.
    flush_messages: int = Field(
        default=5_000, ge=1, le=1_000_000, description="A batch is closed at this many messages,"
    )
    flush_bytes: Size = Field(
        default=64 << 20, ge=1 << 10, le=4 << 30, description="or at this many bytes of bodies,"
    )
    lease: Duration = Field(
        default=timedelta(minutes=5),
        le=timedelta(hours=12),
        description="or when half of this is over: how long we lease a copy while its batch is open.",
    )
    wait: DurationOrZero = Field(
        default=timedelta(seconds=2),
        le=timedelta(seconds=20),
        description="How long an empty receive waits (long poll).",
    )


class Deliver(_Part):
    """How messages are sent."""

    shards: int = Field(default=1, ge=1, le=1024, description="Parallel tasks.")
    slice: int = Field(
        default=1_000, ge=1, le=100_000, description="Messages that are decided on and claimed together."
    )
    confirm_window: int = Field(
        default=200,
        ge=1,
        le=10_000,
        description="Messages sent before the broker's confirmations are awaited: what a crash can leave `unknown`.",
    )
    run_for: Duration = Field(
        default=timedelta(minutes=8), description="How long one task goes on, as the destination works off."
    )
    tries: int = Field(
        default=3,
        ge=1,
        le=100,
        description="A message that can't be sent is tried this often, then escalated.",
    )
    claim_for: Duration = Field(
        default=timedelta(minutes=5),
        description="How long a claimed slice belongs to its task; nothing of it is sent after that.",
    )


class Rate(_Part):
    """How fast the destination gets messages."""

    per_second: float = Field(default=500, gt=0, description="Messages per second and delivery task.")
    max_in_flight: int = Field(
        default=5_000,
        ge=1,
        description="The destination's depth, measured before each slice, is not filled beyond this.",
    )


class Canary(_Part):
    """How a group of failures is tried: a few messages first."""

    first: int = Field(
        default=20, ge=1, description="Messages of a new, unclassified or fixed group that go first."
    )
    grow: float = Field(
        default=10, gt=1, description="After a stage that passed, the next is this many times as large."
    )
    pass_: Share = Field(
        default=0.95, alias="pass", description="A stage passes if at least this share of it did not return."
    )
    observe: AutoOrDuration = Field(
        default="auto",
        description="How long a return is waited for. `auto`: the 99th percentile of the route's times to return; until "
        "known, lease × max deliveries.",
    )


class Breaker(_Part):
    """When redelivery of a group, or to a destination, is stopped."""

    return_rate: Share = Field(default=0.5, description="A group of which a larger share returns is held.")
    min_samples: int = Field(
        default=20, ge=1, description="Outcomes that have to be known before that is judged."
    )
    cool_down: Duration = Field(
        default=timedelta(minutes=15),
        description="After this a held group may try again; it grows each time.",
    )
    max_held_share: Share = Field(
        default=0.6,
        description="From five groups on: when more than this share of open messages would be held, the whole route "
        "pauses, because then the destination is sick.",
    )


_NOT_A_BIND = re.compile(r"'[^']*'|--[^\n]*|/\*.*?\*/|::", re.DOTALL)
_BIND = re.compile(r":([A-Za-z_][A-Za-z0-9_]*)")


class ProcessedCheck(_Part):
    """How to find out whether a message was processed although it is here."""

    connection: ConnectionId = Field(description="Airflow connection id of the consumer's database.")
    query: str = Field(
        max_length=10_000,
        description="A `select` of the keys that were processed, out of `:keys`, which is bound to the list of keys: "
        "`select message_id from processed where message_id in :keys`.",
    )
    key: KeySelector = Field(
        description="The key in a message: `attribute:NAME`, `body:$.path`, `key` or `broker_id`. It has to survive trips."
    )
    settle_after: DurationOrZero = Field(
        default=timedelta(minutes=5),
        description="Not asked earlier than this after dead-lettering: a commit may be under way.",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=10),
        description="A check that takes longer counts as failed; its messages are held.",
    )

    @field_validator("query")
    @classmethod
    def _query_binds_the_keys(cls, query: str) -> str:
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


class Rule(_Part):
    """A route's own knowledge of its failures."""

    match: Expression = Field(
        description="A regular expression that is looked for in the failure text; it has to mean the same in Java."
    )
    cause: Cause = Field(description="The cause of failures that match.")


class CauseRate(_Part):
    """A lower rate for one cause; what is left out is as in the route's `rate`."""

    per_second: float | None = Field(default=None, gt=0, description="Messages per second and delivery task.")
    max_in_flight: int | None = Field(
        default=None, ge=1, description="Depth of the destination that is not exceeded."
    )


class CauseOverride(_Part):
    """What this route does differently for one cause."""

    verdict: Verdict | None = Field(default=None, description="Instead of the cause's own verdict.")
    rate: CauseRate | None = Field(default=None, description="Instead of the route's rate.")


class Isolation(_Part):
    """What is done about consumers that hold messages and get nowhere."""

    ack_timeout: Duration = Field(
        default=timedelta(minutes=5),
        description="A consumer that holds messages and acked none for this long is stuck.",
    )
    action: Literal["none", "close_connection"] = Field(
        default="none", description="`close_connection` (RabbitMQ) hands its messages to the other consumers."
    )


def _canary(value: object) -> object:
    # YAML reads a bare off as false.
    if value is False or value == "off":
        return None
    if value is None:
        raise ValueError("write off, or leave the key out for the default")
    return {} if value is True or value == "on" else value


class Route(_Part):
    """From where dead messages come, and how they go back."""

    title: str = Field(
        default="", max_length=200, description="What people call it; shown in Airflow and reports."
    )
    enabled: bool = Field(
        default=True, description="A route that is not enabled gets no schedule; it can still be run by hand."
    )
    schedule: Schedule | None = Field(
        default="*/10 * * * *",
        description="Five cron fields, or `@hourly` and the like, in UTC; `null`: only by hand.",
    )
    broker: BrokerName = Field(description="The adapter. `memory` is for tests.")
    connection: ConnectionId | None = Field(
        default=None, description="Airflow connection id of the broker. Needed, except for `memory`."
    )
    sources: tuple[Source, ...] = Field(
        min_length=1, max_length=100, description="The queues that are drained."
    )
    destination: Destination | None = Field(
        default=None, description="Default: where each message came from."
    )
    fan_out: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="What to do when only a topic with several subscribers can be reached: `allow` sends to all of them, "
        "`refuse` lets a person decide.",
    )
    requeue_attempts: int = Field(
        default=2,
        ge=0,
        le=1000,
        description="Unexpected, passing errors go straight back, at most this often;",
    )
    delay_attempts: int = Field(
        default=5,
        ge=0,
        le=1000,
        description="then with growing delay, at most this often; then a person decides.",
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
        description="Messages with the same value keep their order: `message_group`, `key`, `attribute:NAME` or `body:$.path`.",
    )
    on_unknown: Literal["auto", "resend", "review"] = Field(
        default="auto",
        description="After a crash between send and confirmation: `resend`, `review`, or `auto`: resend where the broker "
        "deduplicates or a `processed_check` exists, else review.",
    )
    processed_check: ProcessedCheck | None = Field(
        default=None, description="How to find out whether a message was processed; asked for every cause."
    )
    evidence: tuple[EvidenceSelector, ...] = Field(
        default=(),
        max_length=20,
        description="Where failure texts are, before the broker's own and the usual places.",
    )
    rules: tuple[Rule, ...] = Field(
        default=(), max_length=50, description="Own rules, tried before the built-in ones, in order."
    )
    causes: dict[Cause, CauseOverride] = Field(
        default={}, description="What is done differently for a cause."
    )
    isolation: Isolation = Field(default=Isolation(), description="What is done about stuck consumers.")
    approvals: Literal[1, 2] = Field(
        default=1, description="People who have to agree before a decision is applied."
    )
    redact: tuple[Redaction, ...] = Field(
        default=(),
        max_length=50,
        description="Masked where payloads are shown: `email`, `card`, or a path such as `$.customer.name`.",
    )
    notify: tuple[ConnectionId, ...] = Field(
        default=(),
        max_length=20,
        description="Airflow connection ids of HTTP webhooks that are told when people are needed.",
    )
    slo: Duration = Field(
        default=timedelta(hours=24),
        description="From first enqueue to a confirmed or presumed outcome; reports compare with it.",
    )
    give_up_after: Duration = Field(
        default=timedelta(days=14), description="Older messages become `expired` and go to review."
    )
    retention: Duration = Field(
        default=timedelta(days=30),
        description="How long finished messages stay in the ledger and in staging.",
    )

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> Self:
        if self.connection is None and self.broker != "memory":
            raise _problem("connection", f"is required with broker {self.broker}")
        seen: set[str] = set()
        for position, source in enumerate(self.sources):
            if source.queue in seen:
                raise _problem(f"sources.{position}.queue", f"{source.queue!r} is listed twice")
            seen.add(source.queue)
            target = source.destination or (self.destination.queue if self.destination else None)
            if source.kind == "delay" and target is None:
                raise _problem(
                    f"sources.{position}.destination",
                    "is required for a delay source, because its messages do not say where they go next",
                )
            if target == source.queue:
                raise _problem(f"sources.{position}.queue", f"{target!r} is also its destination: a loop")
        if self.isolation.action == "close_connection" and self.broker != "rabbitmq":
            raise _problem("isolation.action", f"close_connection is not possible with broker {self.broker}")
        return self

    def destination_of(self, source: str) -> str | None:
        """Where messages of the queue ``source`` go by configuration; None: where each came from."""
        own = next((s.destination for s in self.sources if s.queue == source), None)
        return own or (self.destination.queue if self.destination else None)


RouteName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]


class Settings(_Part):
    """The whole file."""

    database: str = Field(
        default="sqlite:///var/redrive.db",
        repr=False,  # holds a password
        description="The ledger: `sqlite:///path` or `postgresql://user:password@host/name`. A relative path counts from "
        "`$REDRIVE_HOME`. Take passwords from the environment.",
    )
    staging: str = Field(
        default="var/staging",
        description="Where payloads are kept as Parquet: a folder, `s3://bucket/prefix` or `gs://bucket/prefix`. A "
        "relative path counts from `$REDRIVE_HOME`.",
    )
    spark: SparkSettings = Field(default=SparkSettings(), description="Where the job that finds causes runs.")
    defaults: dict[str, Any] = Field(
        default={}, description="Anything that a route may say; each route can say otherwise."
    )
    routes: dict[RouteName, Route] = Field(
        default={}, description="By name: lower-case letters, digits and underscores, at most 40."
    )

    @field_validator("database")
    @classmethod
    def _database_is_one_that_we_know(cls, url: str) -> str:
        scheme, separator, rest = url.partition("://")
        dialect, _, driver = scheme.partition("+")
        if (
            not separator
            or dialect not in ("sqlite", "postgresql", "postgres")
            or driver not in ("", "psycopg")
        ):
            raise ValueError("has to be sqlite:///path or postgresql://user:password@host/name")
        if dialect == "sqlite" and rest.split("?")[0] in ("", "/", "/:memory:"):
            raise ValueError("has to name a file: a ledger in memory forgets what was sent")
        return url if dialect == "sqlite" else f"postgresql+psycopg://{rest}"

    @field_validator("staging")
    @classmethod
    def _staging_is_where_arrow_can_write(cls, place: str) -> str:
        scheme, separator, rest = place.partition("://")
        if separator and (scheme not in ("s3", "gs", "file") or not rest.strip("/")):
            raise ValueError(f"{_quoted(place)}: write a folder, s3://bucket/prefix or gs://bucket/prefix")
        if not place.strip():
            raise ValueError("names no place")
        return place if place == "/" else place.rstrip("/")

    @model_validator(mode="after")
    def _clouds_can_reach_staging(self) -> Self:
        scheme = {"emr_serverless": "s3://", "dataproc_serverless": "gs://"}.get(self.spark.runner)
        if scheme and not self.staging.startswith(scheme):
            raise _problem("staging", f"has to be {scheme}…, where runner {self.spark.runner} can read it")
        return self

    def route(self, name: str) -> Route:
        """The route of that name; the error lists those there are."""
        try:
            return self.routes[name]
        except KeyError:
            known = ", ".join(sorted(self.routes)) or "none"
            hint = _nearest(name, self.routes)
            raise SettingsError(f"routes.{name}: there is no such route{hint}; there are: {known}") from None


# --- reading the file -----------------------------------------------------------------------------------------

_MAX_DEPTH = 30
_MAX_NODES = 100_000  # a page of nested aliases must not become a billion values
_MAX_FILE_BYTES = 4 << 20
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-)([^}]*))?\}|\$\{")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_Key = tuple[str | int, ...]
_T = TypeVar("_T")


def home(env: Mapping[str, str] = os.environ) -> Path:
    """``$REDRIVE_HOME``, from which relative paths count; by default the folder that holds ``plugins``."""
    return Path(env.get("REDRIVE_HOME") or Path(__file__).resolve().parents[2]).absolute()


def config_path(env: Mapping[str, str] = os.environ) -> Path:
    """The file that :func:`load` reads: ``$REDRIVE_CONFIG``, by default ``config/redrive.yaml``, under home."""
    return home(env) / (env.get("REDRIVE_CONFIG") or "config/redrive.yaml")


def load(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Read, expand and check the configuration.

    ``path`` goes before ``$REDRIVE_CONFIG``. Every problem of the file is listed in one
    :class:`~redrive.errors.SettingsError`, a line each, beginning with the path of the key.
    """
    file = path or config_path(env)
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise SettingsError(
                f"{file}: larger than {format_size(_MAX_FILE_BYTES)}; this is not a configuration"
            )
        text = raw.decode("utf-8")
    except OSError as error:
        raise SettingsError(
            f"{file}: can't be read ({error.strerror}); write one there, or set REDRIVE_CONFIG"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: is not UTF-8 text") from error
    return parse(text, env=env, root=home(env))


def parse(text: str, *, env: Mapping[str, str], root: Path) -> Settings:
    """The settings that the YAML ``text`` means; relative paths count from ``root``. No I/O."""
    problems: list[str] = []
    try:
        node = yaml.compose(text, Loader=_Loader)
        problems += [f"{_dotted(key)}: is there twice" for key in _duplicates(node)]
        given = yaml.load(text, Loader=_Loader)  # noqa: S506  a safe loader, C or not
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"not YAML: {_one_line(error)}") from None
    except RecursionError:
        raise SettingsError("not a configuration: nested too deeply") from None
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise SettingsError("not a configuration: the file has to hold keys and values")
    expanded = _Expansion(env, problems).of(given, ())
    if problems:
        raise SettingsError("\n".join(problems))

    defaults = expanded.get("defaults")
    routes = expanded.get("routes")
    merged = dict(expanded)
    merged["database"] = _sqlite_under(
        root, expanded.get("database", Settings.model_fields["database"].default)
    )
    merged["staging"] = _path_under(root, expanded.get("staging", Settings.model_fields["staging"].default))
    if isinstance(defaults, dict):
        problems += _problems_of_defaults(defaults)
        if isinstance(routes, dict):
            merged["routes"] = {
                name: _merge(defaults, route) if isinstance(route, dict) else route
                for name, route in routes.items()
            }
    settings = None
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        for detail in error.errors():
            line = _line(_where(detail, expanded), detail)
            if line not in problems:
                problems.append(line)
    if settings is None or problems:
        raise SettingsError("\n".join(problems))
    return settings


class _Expansion:
    """Puts the environment's values into strings, noting what is missing."""

    def __init__(self, env: Mapping[str, str], problems: list[str]) -> None:
        self.env, self.problems, self.nodes = env, problems, 0

    def of(self, value: Any, key: _Key) -> Any:
        self.nodes += 1
        if self.nodes > _MAX_NODES or len(key) > _MAX_DEPTH:
            raise SettingsError(f"{_dotted(key[:5])}: too large or nested too deeply for a configuration")
        match value:
            case str():
                return self._text(value, key)
            case dict():
                for name in value:
                    if not isinstance(name, str):
                        self.problems.append(f"{_dotted((*key, str(name)))}: keys are text; put it in quotes")
                return {str(name): self.of(item, (*key, str(name))) for name, item in value.items()}
            case list():
                return [self.of(item, (*key, position)) for position, item in enumerate(value)]
        return value

    def _text(self, text: str, key: _Key) -> str:
        def put(match: re.Match[str]) -> str:
            name, has_default, default = match.groups()
            if match[0] == "$${":
                return "${"
            if name is None:
                self.problems.append(
                    f"{_dotted(key)}: write ${{VAR}} or ${{VAR:-default}} (and $${{ for a plain ${{)"
                )
                return ""
            found = self.env.get(name)
            if has_default:
                return found or default  # as in a shell: :- also replaces an empty value
            if found is None:
                self.problems.append(
                    f"{_dotted(key)}: the environment variable {name} is not set and has no default"
                )
                return ""
            return str(found)

        return _VARIABLE.sub(put, text)


def _duplicates(root: yaml.Node | None) -> Iterator[_Key]:
    """Keys that a mapping has twice; YAML loaders keep the last without a word."""
    seen: set[int] = set()
    pending: list[tuple[yaml.Node | None, _Key]] = [(root, ())]
    while pending:
        node, key = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names: set[str] = set()
            for name_node, value_node in node.value:
                name = str(name_node.value)
                if isinstance(name_node, yaml.ScalarNode) and name in names and name != "<<":
                    yield (*key, name)
                names.add(name)
                pending.append((value_node, (*key, name)))
        elif isinstance(node, yaml.SequenceNode):
            pending += [(item, (*key, position)) for position, item in enumerate(node.value)]


def _merge(below: Any, above: Any) -> Any:
    """``above`` over ``below``: mappings key by key, everything else as a whole."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{name: _merge(below.get(name), item) for name, item in above.items()}}
    return above


def _path_under(root: Path, place: Any) -> Any:
    if not isinstance(place, str) or "://" in place or not place.strip():
        return place
    return str(root / Path(place).expanduser())


def _sqlite_under(root: Path, url: Any) -> Any:
    match = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/:?][^?]*)(\?.*)?", url) if isinstance(url, str) else None
    return f"{match[1]}{root / match[2]}{match[3] or ''}" if match else url


def _problems_of_defaults(defaults: dict[str, Any]) -> Iterator[str]:
    """Wrong keys and values of ``defaults``, also where no route is there to inherit them."""
    least = {"broker": "memory", "sources": [{"queue": "any"}]}
    try:
        Route.model_validate({**least, **defaults})
    except ValidationError as error:
        for detail in error.errors():
            # What only a whole route can get right is told at the routes.
            if detail["type"] != "together" or len(detail["loc"]) > 0:
                yield _line(("defaults", *detail["loc"]), detail)


def _where(detail: ErrorDetails, given: dict[str, Any]) -> _Key:
    """The key at which a person finds the problem: a value that a route inherits is wrong in ``defaults``."""
    loc: _Key = detail["loc"]
    if len(loc) > 2 and loc[0] == "routes" and not _has(given, loc) and _has(given, ("defaults", *loc[2:])):
        return ("defaults", *loc[2:])
    return loc


def _has(value: Any, key: _Key) -> bool:
    for step in key:
        if step == "[key]":
            continue
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _line(key: _Key, detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    is_name = bool(key) and key[-1] == "[key]"
    key = tuple(step for step in key if step != "[key]")
    match detail["type"]:
        case "missing":
            text = "is required"
        case "extra_forbidden":
            known = _known_keys(key[:-1])
            text = f"unknown key{_nearest(str(key[-1]), known)}; known: {', '.join(known)}"
        case "together":
            key, text = (*key, *str(context["key"]).split(".")), str(context["text"])
        case "enum" if is_name:
            causes = [cause.value for cause in Cause]
            text = f"is not a cause{_nearest(str(key[-1]), causes)}; known: {', '.join(causes)}"
        case "string_pattern_mismatch" if is_name:
            text = "a route's name has 1 to 40 lower-case letters, digits and underscores"
        case "value_error":
            text = str(context["error"])
        case _:
            text = detail["msg"].replace("Input should be", "should be")
            given = detail["input"]
            # A database's address and Spark's properties may hold secrets, so they are not repeated.
            if (
                isinstance(given, str | int | float)
                and key[:1] != ("database",)
                and key[:2] != ("spark", "conf")
            ):
                text += f", not {_quoted(given)}"
            choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
            if isinstance(given, str) and len(choices) > 1:
                text += _nearest(given, choices)
    return f"{_dotted(key)}: {text}"


def _known_keys(key: _Key) -> list[str]:
    """The keys that the mapping at ``key`` may have, as they are written in the file."""
    if key[:1] == ("defaults",):
        key = ("routes", "any", *key[1:])
    kind: Any = Settings
    for step in key:
        models = list(_models(kind))
        if models:
            kind = next(
                (f.annotation for n, f in models[0].model_fields.items() if (f.alias or n) == step), None
            )
        else:
            kind = (
                get_args(kind)[-1] if get_args(kind) and get_args(kind)[-1] is not ... else get_args(kind)[0]
            )
    found = next(_models(kind), None)
    return [field.alias or name for name, field in found.model_fields.items()] if found else []


def _models(kind: Any) -> Iterator[type[_Part]]:
    if isinstance(kind, type) and issubclass(kind, _Part):
        yield kind
    elif getattr(kind, "__origin__", None) not in (dict, tuple):
        for part in get_args(kind):
            yield from _models(part)


def _nearest(word: str, known: Any) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  only for a mistake

    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _dotted(key: _Key) -> str:
    return ".".join(str(step) for step in key) or "the file"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# --- the page of documentation --------------------------------------------------------------------------------

_PAGE_HEAD = """\
# Configuration

<!-- Written by `python -m redrive.settings > docs/configuration.md`; a test holds it to the code. -->

`config/redrive.yaml`, or the file that `$REDRIVE_CONFIG` names, says what is drained and how it goes back. It is read
once per process and checked as a whole: an unknown key or a bad value is refused with the path of the key, and nothing
runs.

- `${VAR}` is replaced by the environment's value, `${VAR:-default}` by the default where the variable is unset or
  empty; `$${` is a plain `${`. A variable that is missing and has no default is an error.
- Relative paths count from `$REDRIVE_HOME`, by default the root of the repository.
- Durations: `500ms`, `30s`, `5m`, `6h`, `4d`, `1w`, `1h30m`, or ISO 8601 such as `PT5M`. Sizes: `64MiB`, `5MB`, or bytes.
- Selectors point into a message: `attribute:NAME` (a header), `body:$.a.b[0].c` (a place in a JSON body), `key` and
  `message_group` (the ordering key), `broker_id`.
- Connections are named by their Airflow connection id (`AIRFLOW_CONN_…`, a secrets backend, or the UI), also for the
  command line. No secret belongs into this file.
- `defaults` is merged into every route: mappings key by key, everything else as a whole.

A key without a default is marked *required*.
"""


def configuration_page() -> str:
    """The text of docs/configuration.md."""
    sections: list[str] = [_PAGE_HEAD]
    pending: list[tuple[str, type[_Part]]] = [("", Settings)]
    while pending:
        prefix, model = pending.pop(0)
        title = prefix or "the file"
        rows = [f"## `{title}`" if prefix else "## The file", "", (model.__doc__ or "").strip(), ""]
        rows += ["| key | value | default | what it does |", "|---|---|---|---|"]
        for name, field in model.model_fields.items():
            key = field.alias or name
            description = (field.description or "").replace("|", "\\|")
            rows.append(
                f"| `{key}` | {_kind_text(field.annotation)} | {_default_text(field)} | {description} |"
            )
            for part in _models(_inner(field.annotation)):
                step = {"routes": "routes.NAME", "causes": "causes.CAUSE"}.get(key, key)
                is_list = getattr(field.annotation, "__origin__", None) is tuple
                pending.append((f"{prefix}.{step}".lstrip(".") + ("[]" if is_list else ""), part))
        sections.append("\n".join(rows) + "\n")
    return "\n".join(sections)


def _inner(kind: Any) -> Any:
    if getattr(kind, "__origin__", None) in (dict, tuple):
        arguments = [argument for argument in get_args(kind) if argument is not ...]
        return arguments[-1]
    return kind


_PLAIN: Final[dict[Any, str]] = {
    str: "text",
    int: "number",
    float: "number",
    bool: "true, false",
    timedelta: "duration",
    Selector: "selector",
    Cause: "a cause",
}


def _kind_text(kind: Any) -> str:
    origin, arguments = getattr(kind, "__origin__", None), get_args(kind)
    if kind is Verdict:
        return ", ".join(f"`{verdict.value}`" for verdict in Verdict)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin is tuple:
        return f"list of {_kind_text(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, _Part):
        return "mapping"
    if hasattr(kind, "__metadata__"):
        return "size" if any(m is _SIZE_MARK for m in kind.__metadata__) else _kind_text(arguments[0])
    return ", ".join(_kind_text(argument) for argument in arguments if argument is not type(None))


_SIZE_MARK: Final = get_args(Size)[1]


def _default_text(field: Any) -> str:
    default = field.default
    if default is PydanticUndefined:
        return "*required*"
    if isinstance(default, timedelta):
        return f"`{format_duration(default)}`"
    if isinstance(default, _Part):
        return "see below"
    if default is None:
        return "–"
    if default in ((), {}, ""):
        return "empty"
    if default is True or default is False:
        return f"`{str(default).lower()}`"
    if isinstance(default, int) and any(m is _SIZE_MARK for m in field.metadata):
        return f"`{format_size(default)}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
