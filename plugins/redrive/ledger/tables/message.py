"""Tables of the messages: what each is, its state and its plan, and what it is found by."""

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, Index, Table, text

from redrive.ledger.engine import Instant
from redrive.ledger.predicates import UNFINISHED
from redrive.ledger.tables.columns import BigId, among, count, metadata, one_of
from redrive.lifecycle import SENDS, UNPLANNED, Plan, State

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
    # It may have been sent by a ledger that is lost, by this one since it was backed up, or by another route, until a
    # person says that it is to be sent, or it comes back.
    Column("doubted", sa.Boolean, nullable=False, server_default=text("false")),
    count("attempts"),
    count("requeues"),
    count("delays"),
    count("releases"),
    count("send_failures"),
    count("deliveries"),
    Column("first_enqueued_at", Instant),
    Column("dead_lettered_at", Instant),  # of the newest copy, where the broker tells
    Column("received_at", Instant),  # when the newest copy was drained
    Column("next_attempt_at", Instant),
    Column("changed_at", Instant, nullable=False),
    Column("message_key", sa.Text),  # an index_key, like the other texts here that come from outside
    Column("order_key", sa.Text),
    one_of("state", *State),
    one_of("plan", *Plan),
    # Whatever waits says when and how it goes; whatever is held, how it would.
    CheckConstraint(
        f"state <> 'waiting' or (next_attempt_at is not null and {among('plan', SENDS)})",
        name="waiting_is_planned",
    ),
    CheckConstraint(f"state <> 'held' or {among('plan', (*SENDS, Plan.HOLD))}", name="held_is_planned"),
    CheckConstraint(
        f"plan is null or not {among('state', (s for s in State if s in UNPLANNED))}", name="plan_has_ended"
    ),
    Index("ix_messages_redrive_id", "redrive_id", unique=True),
    # Where the broker gives ids: each entry is made anew with every state, and one of all that have none would be too.
    Index(
        "ix_messages_broker_message_id",
        "broker_message_id",
        sqlite_where=text("broker_message_id <> ''"),
        postgresql_where=text("broker_message_id <> ''"),
    ),
    # With the destination behind it, so that a claim looks at no message of another one.
    Index("ix_messages_route_state", "route", "state", "message_id", "destination"),
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
