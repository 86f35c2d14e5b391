"""The ledger's tables. Migrations build them (``migrations/``); a test proves that both are the same.

On PostgreSQL everything lives in schema ``redrive``, which the connection's search path names.
Times are UTC. A message id is ``batch_id << 20 | row`` of the copy that made it, so an insert that is
repeated hits the primary key, and messages in id order are payloads in file order.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, Computed, ForeignKey, Index, Table, UniqueConstraint, text

from redrive.audit_actions import Action
from redrive.ledger.engine import Instant
from redrive.ledger.predicates import UNFINISHED, listed
from redrive.lifecycle import SENDS, UNPLANNED, Decision, IssueStatus, Outcome, Plan, ReviewStatus, State
from redrive.policy.gates import OF_DESTINATIONS, OF_GROUPS

#: A breaker has fewer periods: a new one every second for half a year.
PERIODS = 1 << 24
#: SQLite gives a rowid only to INTEGER, PostgreSQL counts in BIGINT.
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _among(column: str, values: Iterable[str], otherwise: str = "false") -> str:
    """SQL: whether the column's value is one of these, words of ours.

    A case, because SQLite builds a table for an IN of more than two to look it up in, for each row that is checked:
    with an IN the checks took more than half of what it costs to insert or move a message.
    """
    cases = " ".join(f"when '{value}' then true" for value in values)
    return f"case {column} {cases} else {otherwise} end"


def _one_of(column: str, *values: str) -> CheckConstraint:
    return CheckConstraint(_among(column, values, otherwise=f"{column} is null"), name=column)


def _count(name: str) -> Column[int]:
    return Column(name, sa.Integer, nullable=False, server_default=text("0"))


ledger_identity = Table(
    "ledger_identity",
    metadata,
    Column("ledger_id", sa.Text, primary_key=True),  # begins every redrive id made here
    Column("created_at", Instant, nullable=False),
    comment="One row: which ledger this is.",
)

configurations = Table(
    "configurations",
    metadata,
    Column("hash", sa.Text, primary_key=True),  # SHA-256 of the text
    # YAML of one route and of what all share. As it is written: the environment's values are not in it.
    Column("text", sa.Text, nullable=False),
    Column("first_used_at", Instant, nullable=False),
    Column("last_used_at", Instant, nullable=False),  # a run began with it; retention goes by this
    comment="What runs began with.",
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", sa.Text, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("trigger", sa.Text, nullable=False),  # schedule | manual | cli | review | restore | demo …
    Column("holder", sa.Text, nullable=False),  # who to ask: host, process, Airflow run
    Column("fence", sa.BigInteger, nullable=False),
    Column("selection", sa.Text, nullable=False, server_default="{}"),  # JSON
    Column("status", sa.Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("finished_at", Instant),
    Column("counts", sa.Text, nullable=False, server_default="{}"),  # JSON: what each stage reported
    Column("airflow_run_id", sa.Text),
    # The hash of what it began with, also when retention has removed the text.
    Column("configuration", sa.Text),
    _one_of("status", "running", "succeeded", "failed", "replaced"),
    Index("ix_runs_route_started_at", "route", "started_at"),
)

route_state = Table(
    "route_state",
    metadata,
    Column("route", sa.Text, primary_key=True),
    Column("run_id", sa.Text),  # the run that holds the route, if any
    Column("holder", sa.Text),
    Column("lease_until", Instant),
    Column("fence", sa.BigInteger, nullable=False, server_default=text("0")),  # grows with every acquisition
    Column("paused_at", Instant),
    Column("paused_by", sa.Text),
    Column("pause_reason", sa.Text),
    # The broker and connection that its last run used ('': none did yet): what was seen elsewhere proves nothing.
    Column("system", sa.Text, nullable=False, server_default=""),
)

source_state = Table(
    "source_state",
    metadata,
    Column("route", sa.Text, primary_key=True),
    Column("source", sa.Text, primary_key=True),
    # Everything that lay in the source before this moment has been staged and loaded: no return that
    # happened before it can be hidden from us.
    Column("drained_to", Instant),
    Column("pending_to", Instant),  # becomes drained_to when the batches of that drain are loaded
    Column("retention_seconds", sa.Float),  # how long the source keeps a message, as configured or the broker says
    # No message that may still lie there was first enqueued before this moment, as far as we can know.
    Column("oldest_at", Instant),
)

staging_batches = Table(
    "staging_batches",
    metadata,
    Column("batch_id", BigId, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("source", sa.Text, nullable=False),
    Column("kind", sa.Text, nullable=False),
    Column("shard", sa.Integer, nullable=False),
    Column("run_id", sa.Text, nullable=False),
    Column("fence", sa.BigInteger, nullable=False),
    Column("state", sa.Text, nullable=False),
    Column("uri", sa.Text, nullable=False),
    _count("copies"),
    Column("bytes", sa.BigInteger, nullable=False, server_default=text("0")),
    _count("settled_copies"),
    # What the copies turned out to be; all zero until loaded_at, then their sum is ``copies``.
    _count("new_copies"),
    _count("returned_copies"),
    _count("duplicate_copies"),
    _count("surplus_copies"),
    _count("suspected_copies"),
    Column("opened_at", Instant, nullable=False),
    Column("recorded_at", Instant),
    Column("settled_at", Instant),
    Column("loaded_at", Instant),
    Column("removed_at", Instant),  # the file is gone: abandoned, or past retention
    # The file without a row that this batch is a copy of: what is in it may have been redelivered since.
    Column("adopted_from", sa.Text),
    # open: being written, settles nothing.  recorded: durable, may be settled.  settled: the source is done
    # with it.  abandoned: its writer vanished or was too slow; its rows were never recorded;
    # or, with recorded_at, a person gave it up as its file was lost before it was loaded.
    _one_of("state", "open", "recorded", "settled", "abandoned"),
    _one_of("kind", "dead_letter", "delay"),
    Index("ix_staging_batches_route_state", "route", "state"),
    Index(
        "ix_staging_batches_adopted_from",
        "adopted_from",
        unique=True,
        sqlite_where=text("adopted_from is not null and state <> 'abandoned'"),
        postgresql_where=text("adopted_from is not null and state <> 'abandoned'"),
    ),
    sqlite_autoincrement=True,  # a batch id is never given twice, also after retention
)

failure_groups = Table(
    "failure_groups",
    metadata,
    Column("group_id", BigId, primary_key=True),
    Column("fingerprint", sa.Text, nullable=False, unique=True),
    Column("cause", sa.Text, nullable=False),
    Column("template", sa.Text, nullable=False),
    Column("example", sa.Text),
    Column("messages", sa.BigInteger, nullable=False, server_default=text("0")),
    Column("first_seen_at", Instant, nullable=False),
    Column("last_seen_at", Instant, nullable=False),
    Column("first_route", sa.Text),  # whose words template and example are; null: not known, older than this column
    sqlite_autoincrement=True,
)

# What people said about groups: two of them are one failure, or are two; or one of them holds two.
group_rulings = Table(
    "group_rulings",
    metadata,
    Column("ruling_id", BigId, primary_key=True),
    Column("ruling", sa.Text, nullable=False),
    Column("group_id", sa.BigInteger, ForeignKey("failure_groups.group_id"), nullable=False),
    # The other group; of a split by words the one that was made for what has them.
    Column("other_group_id", sa.BigInteger, ForeignKey("failure_groups.group_id")),
    Column("words", sa.Text),  # what has these words in its text is a failure of its own
    Column("decided_by", sa.Text, nullable=False),
    Column("note", sa.Text, nullable=False),
    Column("created_at", Instant, nullable=False, server_default=text("current_timestamp")),
    Column("applied_at", Instant),  # from then on it holds; the next run of any route sees to it
    Column("refusal", sa.Text),  # why it can't hold
    Column("revoked_at", Instant),
    Column("revoked_by", sa.Text),
    _one_of("ruling", "merge", "split"),
    CheckConstraint("other_group_id is not null or (ruling = 'split' and words is not null)", name="says_of_what"),
    CheckConstraint("words is null or (ruling = 'split' and trim(words) <> '')", name="words_split"),
    CheckConstraint("other_group_id <> group_id", name="about_two"),
    CheckConstraint("trim(decided_by) <> '' and trim(note) <> ''", name="says_who_and_why"),
    CheckConstraint("revoked_at is null or coalesce(trim(revoked_by), '') <> ''", name="revocation_needs_name"),
    sqlite_autoincrement=True,
)

# Groups that turned out to be one: what fits the template of either comes under the older one's name.
group_aliases = Table(
    "group_aliases",
    metadata,
    Column("group_id", sa.BigInteger, ForeignKey("failure_groups.group_id"), primary_key=True, autoincrement=False),
    Column("merged_into", sa.BigInteger, ForeignKey("failure_groups.group_id"), nullable=False),
    Column("merged_at", Instant, nullable=False),
    # Into which it was merged itself, where that was merged on; so it goes with that one should those be told apart.
    Column("parent_id", sa.BigInteger, ForeignKey("failure_groups.group_id")),
    Column("ruling_id", sa.BigInteger, ForeignKey("group_rulings.ruling_id")),  # null: Redrive found it
    CheckConstraint("merged_into < group_id", name="older"),
)

messages = Table(
    "messages",
    metadata,
    Column("message_id", BigId, primary_key=True, autoincrement=False),
    Column("redrive_id", sa.Text, nullable=False),
    Column("parent_id", sa.BigInteger),  # the message whose headers this one was derived from
    Column("route", sa.Text, nullable=False),
    Column("source", sa.Text, nullable=False),
    Column("kind", sa.Text, nullable=False),  # of the newest copy: dead_letter | delay | import
    Column("origin", sa.Text),  # where it failed, as its first copy that told it says: a claim of a header, for some
    Column("destination", sa.Text),  # where its next attempt goes, or the present one went
    Column("broker_message_id", sa.Text, nullable=False),
    Column("body_hash", sa.LargeBinary(16), nullable=False),
    Column("body_bytes", sa.Integer, nullable=False),
    Column("copy_id", sa.BigInteger, nullable=False),  # newest copy: (batch, row) like message_id
    Column("state", sa.Text, nullable=False),
    Column("cause", sa.Text),
    Column("group_id", sa.BigInteger),
    Column("plan", sa.Text),  # what is to be done with it next, where its state leaves that open
    Column("reason", sa.Text),  # why it is held, escalated, suppressed, discarded
    _count("attempts"),
    _count("requeues"),
    _count("delays"),
    _count("releases"),
    _count("send_failures"),
    _count("deliveries"),
    Column("first_enqueued_at", Instant),
    Column("dead_lettered_at", Instant),  # of the newest copy, where the broker tells
    Column("received_at", Instant),  # when the newest copy was drained
    Column("next_attempt_at", Instant),
    Column("changed_at", Instant, nullable=False),
    Column("message_key", sa.Text),
    Column("order_key", sa.Text),
    _one_of("state", *State),
    _one_of("plan", *Plan),
    # Whatever waits says when and how it goes; whatever is held, how it would.
    CheckConstraint(
        f"state <> 'waiting' or (next_attempt_at is not null and {_among('plan', SENDS)})",
        name="waiting_is_planned",
    ),
    CheckConstraint(f"state <> 'held' or {_among('plan', (*SENDS, Plan.HOLD))}", name="held_is_planned"),
    CheckConstraint(
        f"plan is null or not {_among('state', (s for s in State if s in UNPLANNED))}", name="plan_has_ended"
    ),
    Index("ix_messages_redrive_id", "redrive_id", unique=True),
    Index("ix_messages_broker_message_id", "broker_message_id"),
    Index("ix_messages_route_state", "route", "state", "message_id"),
    Index(
        "ix_messages_due",
        "route",
        "next_attempt_at",
        sqlite_where=text("state = 'waiting'"),
        postgresql_where=text("state = 'waiting'"),
    ),
    Index(
        "ix_messages_order",
        "route",
        "order_key",
        "first_enqueued_at",
        "message_id",
        sqlite_where=text(f"order_key is not null and state in {UNFINISHED}"),
        postgresql_where=text(f"order_key is not null and state in {UNFINISHED}"),
    ),
    # Whole keys and their beginnings, in whichever order the database sorts.
    Index(
        "ix_messages_message_key",
        "message_key",
        sqlite_where=text("message_key is not null"),
        postgresql_where=text("message_key is not null"),
        postgresql_ops={"message_key": "text_pattern_ops"},
    ),
)

# Written by ledger/moves.py and retention, in the transaction that moves the messages.
finished_counts = Table(
    "finished_counts",
    metadata,
    Column("route", sa.Text, primary_key=True),
    Column("state", sa.Text, primary_key=True),
    Column("messages", sa.BigInteger, nullable=False),
    comment="How many messages are finished: more each day, so they are not counted anew each time somebody asks.",
)

message_fields = Table(
    "message_fields",
    metadata,
    Column("message_id", sa.BigInteger, primary_key=True),
    Column("field", sa.Text, primary_key=True),  # the selector, as the route's ``search`` has it
    Column("value", sa.Text, nullable=False),  # in small letters, at most SEARCHED characters
    Index("ix_message_fields_value", "value", "field", postgresql_ops={"value": "text_pattern_ops"}),
    comment="What messages are found by, beside their ids and keys.",
    sqlite_with_rowid=False,
)

repeat_copies = Table(
    "repeat_copies",
    metadata,
    Column("copy_id", BigId, primary_key=True, autoincrement=False),
    Column("message_id", sa.BigInteger),  # whose copy it is; of a suspected one: whose it may be
    Column("route", sa.Text, nullable=False),
    Column("kind", sa.Text, nullable=False),
    Column("attempt", sa.Integer),
    Column("source", sa.Text, nullable=False),
    Column("broker_message_id", sa.Text, nullable=False),
    Column("enqueued_at", Instant),
    Column("seen_at", Instant, nullable=False),
    Column("headers_hash", sa.LargeBinary(16)),  # of a copy with our headers: what its other headers say
    _one_of("kind", "returned", "duplicate", "surplus", "suspected"),
    Index("ix_repeat_copies_broker_message_id", "broker_message_id"),
    Index("ix_repeat_copies_message_id", "message_id"),
    comment="Staged copies that did not become a message of their own, and what they were.",
)

delivery_slices = Table(
    "delivery_slices",
    metadata,
    Column("slice_id", BigId, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("run_id", sa.Text, nullable=False),
    Column("fence", sa.BigInteger, nullable=False),
    Column("shard", sa.Integer, nullable=False),
    Column("destination", sa.Text, nullable=False),
    _count("claimed"),
    _count("sent"),
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
    Index("ix_delivery_slices_route_closed_at", "route", "closed_at"),
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
    _one_of("mode", *SENDS),
    _one_of("outcome", *Outcome),
    Index("ix_redelivery_attempts_slice_id", "slice_id", "message_id"),
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
    _count("period"),  # counts up with each stage that begins, and when an open one forgets
    # Of this period of this breaker alone: what an attempt carries that counts for it.
    Column("stage_id", sa.BigInteger, Computed(f"breaker_id * {PERIODS} + period", persisted=True), nullable=False),
    _count("allowed"),  # sends that this stage allows
    _count("trips"),
    Column("cool_down_until", Instant),
    Column("reason", sa.Text),
    Column("stage_at", Instant, nullable=False),
    # Since when it is tried in this series of stages: what was sent before, before a fix perhaps, tells nothing.
    Column("began_at", Instant, nullable=False),
    CheckConstraint(
        f"destination is null and group_id is not null and stage in {listed(OF_GROUPS)}"
        f" or group_id is null and destination is not null and stage in {listed(OF_DESTINATIONS)}",
        name="stage",
    ),
    UniqueConstraint("route", "group_id"),
    UniqueConstraint("route", "destination"),
    sqlite_autoincrement=True,
)

escalated_messages = Table(
    "escalated_messages",
    metadata,
    Column("escalation_id", BigId, primary_key=True),
    Column("message_id", sa.BigInteger, nullable=False),
    Column("route", sa.Text, nullable=False),
    Column("group_id", sa.BigInteger),
    Column("cause", sa.Text),
    Column("reason", sa.Text, nullable=False),
    Column("error_text", sa.Text),
    Column("payload", sa.Text),  # the body where it is text …
    Column("payload_bytes", sa.LargeBinary),  # … else here
    Column("size_bytes", sa.Integer, nullable=False),
    Column("content_type", sa.Text),
    Column("headers", sa.Text, nullable=False, server_default="[]"),  # JSON [[name, type, text], …]
    Column("source", sa.Text, nullable=False),
    Column("destination", sa.Text),
    Column("broker_message_id", sa.Text),
    Column("message_key", sa.Text),
    Column("attempts", sa.Integer, nullable=False),
    Column("first_enqueued_at", Instant),
    Column("escalated_at", Instant, nullable=False),
    Column("suggested_decision", sa.Text),
    Column("status", sa.Text, nullable=False, server_default="open"),
    Column("decision", sa.Text),
    Column("decided_by", sa.Text),
    Column("decided_at", Instant),
    Column("approved_by", sa.Text),  # the second person, where the route asks for two
    Column("note", sa.Text),
    Column("corrected_body", sa.Text),
    Column("corrected_headers", sa.Text),  # JSON {name: value | [type, value] | null}, of those that change
    Column("refusal", sa.Text),  # why it was refused or reopened
    Column("applied_at", Instant),
    _one_of("status", *ReviewStatus),
    _one_of("decision", *Decision),
    CheckConstraint(
        "decision <> 'edit' or corrected_body is not null or corrected_headers is not null",
        name="edit_needs_correction",
    ),
    CheckConstraint("decision is null or coalesce(trim(decided_by), '') <> ''", name="decision_needs_name"),
    # Not for status decided: on SQLite a trigger can take a decision back only after the row was written without it.
    CheckConstraint("status <> 'applied' or decision is not null", name="status_needs_decision"),
    Index("ix_escalated_messages_message_id", "message_id"),
    Index("ix_escalated_messages_status_group_id", "status", "route", "group_id"),
    # What came since a moment.
    Index("ix_escalated_messages_route_escalated_at", "route", "escalated_at"),
    # What was decided together: what became of it, and how it is taken back.
    Index(
        "ix_escalated_messages_decided_at",
        "decided_at",
        sqlite_where=text("decided_at is not null"),
        postgresql_where=text("decided_at is not null"),
    ),
    # All that review_groups counts, so that it reads no payloads.
    Index(
        "ix_escalated_messages_review",
        "route",
        "group_id",
        "status",
        "escalated_at",
        "first_enqueued_at",
        "suggested_decision",
    ),
    sqlite_autoincrement=True,
)

# Decisions of people that also hold for what is escalated later.
standing_decisions = Table(
    "standing_decisions",
    metadata,
    Column("standing_id", BigId, primary_key=True),
    Column("route", sa.Text),  # null: on every route
    Column("group_id", sa.BigInteger, ForeignKey("failure_groups.group_id"), nullable=False),
    Column("decision", sa.Text, nullable=False),
    Column("decided_by", sa.Text, nullable=False),
    Column("approved_by", sa.Text),  # the second person; where the route asks for two, it holds only with one
    Column("note", sa.Text, nullable=False),
    Column("created_at", Instant, nullable=False, server_default=text("current_timestamp")),
    Column("until_at", Instant, nullable=False),
    Column("revoked_at", Instant),
    Column("revoked_by", sa.Text),
    _one_of("decision", Decision.REDELIVER, Decision.DISCARD),
    CheckConstraint("trim(decided_by) <> '' and trim(note) <> ''", name="says_who_and_why"),
    CheckConstraint("until_at > created_at", name="holds_for_a_while"),
    CheckConstraint("revoked_at is null or coalesce(trim(revoked_by), '') <> ''", name="revocation_needs_name"),
    sqlite_autoincrement=True,
)

# How far people are with a failure on a route, beside what they decide about its messages. No row: open.
failure_issues = Table(
    "failure_issues",
    metadata,
    Column("route", sa.Text, nullable=False, primary_key=True),
    Column("group_id", BigId, ForeignKey("failure_groups.group_id"), primary_key=True, autoincrement=False),
    # As somebody said it; the view issue_state says what it is now (regressed, ignored no longer).
    Column("status", sa.Text, nullable=False, server_default="open"),
    Column("owner", sa.Text),
    Column("ticket", sa.Text),  # its address, or its name elsewhere
    Column("ignored_until_at", Instant),
    Column("status_at", Instant, nullable=False, server_default=text("current_timestamp")),  # since when
    Column("written_by", sa.Text, nullable=False),
    Column("written_at", Instant, nullable=False, server_default=text("current_timestamp")),
    _one_of("status", *IssueStatus),
    CheckConstraint("(status = 'ignored') = (ignored_until_at is not null)", name="ignored_until"),
    CheckConstraint("trim(written_by) <> ''", name="says_who"),
)

# What people say to each other about a failure.
issue_comments = Table(
    "issue_comments",
    metadata,
    Column("comment_id", BigId, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("group_id", sa.BigInteger, ForeignKey("failure_groups.group_id"), nullable=False),
    Column("written_by", sa.Text, nullable=False),
    Column("written_at", Instant, nullable=False, server_default=text("current_timestamp")),
    Column("text", sa.Text, nullable=False),
    CheckConstraint("trim(written_by) <> '' and trim(text) <> ''", name="says_who_and_what"),
    Index("ix_issue_comments_route_group_id", "route", "group_id"),
    sqlite_autoincrement=True,
)

# What people have to know, once per event.
notifications = Table(
    "notifications",
    metadata,
    Column("notification_id", BigId, primary_key=True),
    Column("route", sa.Text, nullable=False),
    Column("event", sa.Text, nullable=False),
    Column("subject", sa.Text, nullable=False),  # which of its kind: a group's id, a queue; '' where there is one
    Column("facts", sa.Text, nullable=False),  # JSON: names and numbers, no texts of messages
    Column("raised_at", Instant, nullable=False),
    Column("resolved_at", Instant),  # it is over; should it begin again, that is a new one
    _one_of(
        "event", "new_group", "route_paused", "slo_breach", "messages_expiring", "consumers_stuck", "balance_broken"
    ),
    Index(
        "ix_notifications_unresolved",
        "route",
        "event",
        "subject",
        unique=True,
        sqlite_where=text("resolved_at is null"),
        postgresql_where=text("resolved_at is null"),
    ),
    sqlite_autoincrement=True,
)

# Who is told of a notification, and whether they were.
notification_sends = Table(
    "notification_sends",
    metadata,
    Column("notification_id", sa.BigInteger, ForeignKey("notifications.notification_id"), primary_key=True),
    Column("target", sa.Text, primary_key=True),
    _count("tries"),
    Column("next_try_at", Instant),  # null: sent, or given up
    Column("sent_at", Instant),
    Column("problem", sa.Text),  # of the last try
    Index(
        "ix_notification_sends_pending",
        "next_try_at",
        sqlite_where=text("next_try_at is not null"),
        postgresql_where=text("next_try_at is not null"),
    ),
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
    _one_of("role", "source", "destination"),
    _one_of("oldest_age_method", "broker", "ledger", "sample", "unknown"),
    _one_of("oldest_visible_age_method", "broker", "ledger", "sample", "unknown"),
    Index("ix_queue_observations_seen", "queue", "system", "observed_at"),
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
    _one_of("status", "healthy", "stuck", "isolated", "gone"),
)

audit_events = Table(
    "audit_events",
    metadata,
    Column("event_id", BigId, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("route", sa.Text),
    Column("run_id", sa.Text),
    Column("actor", sa.Text, nullable=False),  # a person's name, or redrive
    Column("action", sa.Text, nullable=False),
    Column("from_state", sa.Text),
    Column("to_state", sa.Text),
    Column("count", sa.BigInteger, nullable=False, server_default=text("1")),
    Column("message_id", sa.BigInteger),  # where a person decided about one message
    Column("selection", sa.Text),  # JSON: which set the machine moved
    Column("reason", sa.Text),
    _one_of("action", *Action),
    Index("ix_audit_events_route_at", "route", "at"),
    Index("ix_audit_events_message_id", "message_id"),
    # What people did, newest last: the machine's events are many more.
    Index(
        "ix_audit_events_people",
        "event_id",
        "actor",
        "action",
        sqlite_where=text("actor <> 'redrive'"),
        postgresql_where=text("actor <> 'redrive'"),
    ),
    sqlite_autoincrement=True,
)

saved_filters = Table(
    "saved_filters",
    metadata,
    Column("filter_id", BigId, primary_key=True),
    Column("name", sa.Text, nullable=False, unique=True),
    Column("page", sa.Text, nullable=False),
    Column("query", sa.Text, nullable=False),  # as in the page's address
    Column("saved_by", sa.Text, nullable=False),
    Column("saved_at", Instant, nullable=False),
    _one_of("page", "find", "messages"),
    CheckConstraint("trim(name) <> '' and trim(saved_by) <> ''", name="says_what_and_who"),
    sqlite_autoincrement=True,
    comment="Filters of the review page that somebody gave a name.",
)

page_visits = Table(
    "page_visits",
    metadata,
    Column("person", sa.Text, primary_key=True),
    Column("visited_at", Instant, nullable=False),  # they looked last
    Column("since_at", Instant, nullable=False),  # what has changed since then is shown to them
    comment="When people looked at the review page.",
)
