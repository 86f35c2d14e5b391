"""Tables of what may be sent, what is being sent, and what was seen of queues and consumers since."""

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, Computed, Index, Table, UniqueConstraint, text

from redrive.ledger.engine import Instant
from redrive.ledger.predicates import listed
from redrive.ledger.tables.columns import BigId, count, metadata, one_of
from redrive.lifecycle import SENDS, Outcome
from redrive.policy.gates import OF_DESTINATIONS, OF_GROUPS

#: A breaker has fewer periods: a new one every second for half a year.
PERIODS = 1 << 24

delivery_slices = Table(
    "delivery_slices",
    metadata,
    Column("slice_id", BigId, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("run_id", sa.Text, nullable=False),
    Column("fence", sa.BigInteger, nullable=False),
    Column("shard", sa.Integer, nullable=False),
    Column("task_try", sa.Text, nullable=False, server_default=""),  # which of several tries of its task claimed it
    Column("destination", sa.Text, nullable=False),
    count("claimed"),
    count("sent"),
    Column("claimed_at", Instant, nullable=False),
    Column("deadline_at", Instant, nullable=False),  # no window is sent after it
    # Windows are sent in message id order. Nothing above high_water was handed to the broker;
    # everything up to confirmed_to has been marked. A crash leaves what is between the two unknown.
    Column("high_water", sa.BigInteger, nullable=False, server_default=text("-1")),
    Column("confirmed_to", sa.BigInteger, nullable=False, server_default=text("-1")),
    Column("closed_at", Instant),
    Column("last_sent_at", Instant),  # or, where it is later, when the broker lets go of the last that it delays
    Column("observed_from", Instant),  # the destination had worked past the slice by then
    Column("observed_at", Instant),  # the observation window closed: what had not returned is presumed
    Column("system", sa.Text, nullable=False, server_default=""),  # the broker and connection that it went by
    Column("window_ends_at", Instant),  # as far as is known now: a return could be seen up to then
    Index("ix_delivery_slices_route_slice_id", "route", "slice_id"),
    Index("ix_delivery_slices_route_closed_at", "route", "closed_at"),
    Index("ix_delivery_slices_run_id", "run_id"),
    # Those of which something is still to be seen, however many there were.
    Index(
        "ix_delivery_slices_unobserved",
        "route",
        "slice_id",
        sqlite_where=text("observed_at is null"),
        postgresql_where=text("observed_at is null"),
    ),
    # Those of all routes that may still lie in a destination.
    Index(
        "ix_delivery_slices_destination",
        "destination",
        "closed_at",
        sqlite_where=text("observed_at is null"),
        postgresql_where=text("observed_at is null"),
    ),
    sqlite_autoincrement=True,
)

redelivery_attempts = Table(
    "redelivery_attempts",
    metadata,
    Column("message_id", sa.BigInteger, primary_key=True),
    Column("attempt", sa.Integer, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("group_id", sa.BigInteger),  # at the time of the claim: outcomes count for it
    Column("slice_id", sa.BigInteger, nullable=False),
    Column("mode", sa.Text, nullable=False),  # the plan that it carried out
    Column("destination", sa.Text, nullable=False),
    Column("broker_message_id", sa.Text),  # given by the broker at the send
    Column("tracked", sa.Boolean, nullable=False, server_default=text("true")),  # false: no room for our headers
    Column("body_hash", sa.LargeBinary(16)),  # where it is not the message's own: an edited body
    Column("claimed_at", Instant, nullable=False),
    Column("due_at", Instant),  # it was sent early, and the broker keeps it until then; null: it went at once
    Column("sent_at", Instant),
    Column("unknown_at", Instant),
    Column("outcome", sa.Text),
    Column("outcome_at", Instant),
    Column("return_copy", sa.BigInteger),
    Column("return_kind", sa.Text),  # dead_letter: it failed again; delay: the consumer asked for later
    # The stage of its group's breaker, and of its destination's, for which it counts (breakers.stage_id); null: none
    Column("group_stage", sa.BigInteger),
    Column("destination_stage", sa.BigInteger),
    one_of("mode", *SENDS),
    one_of("outcome", *Outcome),
    # PostgreSQL would put the versions of a row into one entry, which it can't mark as dead while one of them is not: a
    # large table's it leaves for days, and whoever reads a slice would look at all versions of its attempts.
    Index(
        "ix_redelivery_attempts_slice_id",
        "slice_id",
        "message_id",
        postgresql_with={"deduplicate_items": "off"},
    ),
    Index(
        "ix_redelivery_attempts_untracked",
        "broker_message_id",
        sqlite_where=text("not tracked"),
        postgresql_where=text("not tracked"),
    ),
    # How long returns take: the newest of them, however few they are.
    Index(
        "ix_redelivery_attempts_returned",
        "route",
        "message_id",
        sqlite_where=text("outcome = 'returned'"),
        postgresql_where=text("outcome = 'returned'"),
    ),
    # All that is counted of a stage, and nothing of what counts for none.
    Index(
        "ix_redelivery_attempts_group_stage",
        "group_stage",
        "outcome",
        "return_kind",
        sqlite_where=text("group_stage is not null"),
        postgresql_where=text("group_stage is not null"),
    ),
    Index(
        "ix_redelivery_attempts_destination_stage",
        "destination_stage",
        "group_id",
        "outcome",
        "return_kind",
        sqlite_where=text("destination_stage is not null"),
        postgresql_where=text("destination_stage is not null"),
    ),
    sqlite_with_rowid=False,
)

# What a group of failures may be sent (its gate), and what a destination may. Which attempts count for its stage they
# say themselves; views group_state and destination_state count them.
breakers = Table(
    "breakers",
    metadata,
    Column("breaker_id", BigId, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("group_id", sa.BigInteger),  # of a group …
    Column("destination", sa.Text),  # … or of a destination
    # canary: the first few.  ramp: more each time they stay away.  half_open: a few, whatever their group.
    # open: all.  tripped: nothing until cool_down_until, then canary or half_open.
    # failed: the canary came back, a person must release.
    Column("stage", sa.Text, nullable=False),
    count("period"),  # counts up with each stage that begins, and when an open one forgets
    # Of this period of this breaker alone: what an attempt carries that counts for it.
    Column("stage_id", sa.BigInteger, Computed(f"breaker_id * {PERIODS} + period", persisted=True), nullable=False),
    count("allowed"),  # sends that this stage allows
    count("trips"),
    count("admits"),  # counts up with each time that places of a stage are given away
    Column("cool_down_until", Instant),
    Column("reason", sa.Text),
    Column("stage_at", Instant, nullable=False),
    # Since when it is tried in this series of stages: what was sent before, before a fix perhaps, tells nothing.
    Column("began_at", Instant, nullable=False),
    # The newest slice at those two moments: what is claimed later has a later one, whatever a clock says.
    Column("stage_slice", sa.BigInteger, nullable=False, server_default=text("0")),
    Column("began_slice", sa.BigInteger, nullable=False, server_default=text("0")),
    # When a group last failed, or tripped with what people had released. A standing redelivery that was made before is
    # suspended by it, whatever stage comes next.
    Column("failed_at", Instant),
    CheckConstraint(
        f"destination is null and group_id is not null and stage in {listed(OF_GROUPS)}"
        f" or group_id is null and destination is not null and stage in {listed(OF_DESTINATIONS)}",
        name="stage",
    ),
    UniqueConstraint("route", "group_id"),
    UniqueConstraint("route", "destination"),
    sqlite_autoincrement=True,
)

queue_observations = Table(
    "queue_observations",
    metadata,
    Column("observation_id", BigId, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("run_id", sa.Text),
    Column("queue", sa.Text, nullable=False),
    Column("role", sa.Text, nullable=False),
    Column("observed_at", Instant, nullable=False),
    Column("visible", sa.BigInteger),
    Column("in_flight", sa.BigInteger),
    Column("delayed", sa.BigInteger),
    Column("consumers", sa.Integer),
    Column("oldest_age_seconds", sa.Float),
    Column("oldest_age_method", sa.Text, nullable=False),
    Column("oldest_visible_age_seconds", sa.Float),
    Column("oldest_visible_age_method", sa.Text, nullable=False),
    Column("coverage", sa.Float),  # share of the queue that the ages were seen on, 0..1
    Column("oldest_enqueued_at", Instant),  # of the oldest message: what its age counts from
    Column("oldest_seen_at", Instant),  # when it was last seen: now for a sample, earlier for what is remembered
    Column("oldest_deliveries", sa.Integer),  # how often others had received it by then
    Column("looked_from_at", Instant),  # what was received to look at it was sent between these two moments
    Column("looked_to_at", Instant),
    Column("system", sa.Text, nullable=False, server_default=""),  # the broker and connection that the queue is on
    Column("lag_seconds", sa.Float, nullable=False, server_default="0"),  # so long before observed_at it may have been
    Column("zeros_apart_seconds", sa.Float, nullable=False, server_default="0"),  # a zero needs another so long before
    Column("exact", sa.Boolean, nullable=False, server_default=text("false")),  # it counts every message, no estimate
    Column("told", sa.Boolean, nullable=False, server_default=text("false")),  # observed_at is by the broker's clock
    Column("fence", sa.BigInteger),  # with which the run looked: one that is begun anew has another, and the same id
    one_of("role", "source", "destination"),
    one_of("oldest_age_method", "broker", "ledger", "sample", "unknown"),
    one_of("oldest_visible_age_method", "broker", "ledger", "sample", "unknown"),
    Index("ix_queue_observations_seen", "queue", "system", "observed_at"),
    Index("ix_queue_observations_newest", "route", "queue", "observation_id"),
    sqlite_autoincrement=True,
)

consumer_health = Table(
    "consumer_health",
    metadata,
    Column("route", sa.Text, primary_key=True),
    Column("queue", sa.Text, primary_key=True),
    Column("consumer", sa.Text, primary_key=True),
    Column("observed_at", Instant, nullable=False),
    Column("last_progress_at", Instant),
    Column("unacked", sa.BigInteger),
    Column("progress", sa.BigInteger),  # the broker's number that changes with each ack, as last seen
    Column("status", sa.Text, nullable=False),
    Column("isolated_at", Instant),
    Column("closed_at", Instant),  # when the broker was asked to close its connection; null: not, or it refused
    one_of("status", "healthy", "stuck", "isolated", "gone"),
)
