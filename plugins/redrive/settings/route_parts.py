"""What a route is made of: a class for each of its mappings."""

import hashlib
import json
import re
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from redrive.classification.causes import Cause, Verdict
from redrive.settings.values import (
    CONNECTION_ID,
    LONGEST_LEASE,
    AutoOrDuration,
    ConnectionId,
    Duration,
    DurationOrZero,
    Expression,
    Origin,
    Part,
    QueueName,
    Share,
    Size,
    at_least,
    at_most,
    problem,
)
from redrive.settings.words import check_timezone, format_duration


class Source(Part):
    """One queue that is drained."""

    queue: QueueName = Field(
        description="Its name, as the broker knows it. One route drains it: no two over one connection."
    )
    kind: Literal["dead_letter", "delay"] = Field(
        default="dead_letter",
        description="`dead_letter`: its messages have failed. `delay`: they only wait, and go on after `delay`.",
    )
    lease: Duration | None = Field(
        default=None,
        description="How long the *origin* leases a message to its consumers. Default: asked of the broker; 30 seconds "
        "where it doesn't tell.",
    )
    max_deliveries: int | None = Field(
        default=None,
        ge=1,
        description="Deliveries at the origin before a message is dead-lettered. Default: asked of the broker; 5 where "
        "it doesn't tell.",
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
        "broker itself says that they dead-letter into it. Names, or beginnings of names with `*`.",
    )

    @model_validator(mode="after")
    def _delay_belongs_to_delay_sources(self) -> Self:
        if self.kind == "delay" and self.delay is None:
            raise problem("delay", "is required for a source of kind delay")
        if self.kind != "delay" and self.delay is not None:
            raise problem("delay", "is only for sources of kind delay; the route's backoff delays dead letters")
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
        description="Let the broker keep the last 15 minutes of a delay where it can: a message then comes when it is "
        "due, but can't be held back any more. Not with `order_by`.",
    )

    @model_validator(mode="after")
    def _max_is_not_below_first(self) -> Self:
        if self.max < self.first:
            raise problem("max", f"{format_duration(self.max)} is shorter than first, {format_duration(self.first)}")
        if self.least is not None and self.least > self.first:
            raise problem("least", f"{format_duration(self.least)} is longer than first, {format_duration(self.first)}")
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
        description="Messages per run, over all shards and sources; up to a hundred times as many while a gate or an "
        "ordered message waits only for the drain.",
    )
    # A message id has 20 bits for the row of its batch.
    flush_messages: int = Field(
        default=5_000, ge=1, le=1_000_000, description="A batch is closed at this many messages."
    )
    flush_bytes: Size = Field(
        default=64 << 20,
        ge=1 << 10,
        le=4 << 30,
        description="A batch is closed at this many bytes of bodies and large headers; a receive asks for no more"
        " messages than have room in that, as large as they were lately.",
    )
    lease: Annotated[Duration, at_most(LONGEST_LEASE)] = Field(
        default=timedelta(minutes=5),
        description="How long Redrive leases a copy while its batch is open. A batch is closed when half of it is "
        "over.",
    )
    wait: Annotated[DurationOrZero, at_most(timedelta(seconds=20))] = Field(
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
        default=timedelta(minutes=8),
        description="How long one task goes on while the destination makes room."
        " Airflow ends one that does not stop then after 6 h, or an hour later.",
    )
    tries: int = Field(
        default=3,
        ge=1,
        le=100,
        description="How often a message that can't be sent is tried before it is escalated,"
        " and how often one is sent again whose answer is lost each time.",
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
        description="How long a send is watched for its return. `auto`: lease times `max_deliveries`, the longest that "
        "a failing message may stay with consumers; the 99th percentile of the route's times to return where that is "
        "longer. Each stage of a canary takes at least as long. Where consumers let go sooner than the origin's lease "
        "says, say so with `sources[].lease`.",
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
        default=(),
        max_length=len(get_args(EventName)),
        description="Which events it is told of. Default: all of these.",
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
            raise problem("connection", "either connection or notifier is required, and not both")
        if self.notifier is not None and (self.path or self.to):
            raise problem("path" if self.path else "to", "is not for a notifier; it has arguments")
        if self.notifier is None and self.arguments:
            raise problem("arguments", "are only for a notifier")
        return self


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
    watch: Annotated[Duration, at_least(timedelta(seconds=5))] | None = Field(
        default=None,
        description="How often Airflow's triggerer looks at dead-letter sources and consumers, and begins a run when "
        "more has come. The broker may bill each look. Default: never.",
    )
    run_timeout: Duration | None = Field(
        default=None,
        description="Airflow fails a run that takes longer, and ends its tasks. Default: never.",
    )
