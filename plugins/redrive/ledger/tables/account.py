"""Tables of what happened and who was told: the audit trail and notifications."""

import sqlalchemy as sa
from sqlalchemy import Column, ForeignKey, Index, Table, text

from redrive.audit_actions import Action
from redrive.ledger.engine import Instant
from redrive.ledger.tables.columns import BigId, count, metadata, one_of

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
    one_of("action", *Action),
    Index("ix_audit_events_route_at", "route", "at"),
    Index("ix_audit_events_message_id", "message_id"),
    Index("ix_audit_events_run_id", "run_id"),
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
    one_of(
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
    count("tries"),
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
