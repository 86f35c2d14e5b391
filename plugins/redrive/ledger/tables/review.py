"""Tables of what people are asked, what they decide and say, and how they look at it."""

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Table, text

from redrive.ledger.engine import Instant
from redrive.ledger.tables.columns import BigId, metadata, one_of
from redrive.lifecycle import Decision, IssueStatus, Question, ReviewStatus

#: What people decided about a failure, and was carried out; the same in the view ``review_groups``.
_ANSWERED = f"status = 'applied' and question = '{Question.FAILURE}'"
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
    Column("question", sa.Text, nullable=False, server_default=Question.FAILURE),  # what a decision answers
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
    # What wrote it last, told by a trigger: see Dialect.unchanged. Null: with SQLite it is as it was escalated.
    Column("changed", sa.BigInteger),
    one_of("status", *ReviewStatus),
    one_of("decision", *Decision),
    one_of("question", *Question),
    CheckConstraint(
        "decision <> 'edit' or corrected_body is not null or corrected_headers is not null",
        name="edit_needs_correction",
    ),
    CheckConstraint("decision is null or coalesce(trim(decided_by), '') <> ''", name="decision_needs_name"),
    # Not for status decided: on SQLite a trigger can take a decision back only after the row was written without it.
    CheckConstraint("status <> 'applied' or decision is not null", name="status_needs_decision"),
    Index("ix_escalated_messages_message_id", "message_id"),
    Index("ix_escalated_messages_status_group_id", "status", "route", "group_id", "escalation_id"),
    # What is decided, page by page: what was released stays decided until it is sent.
    Index(
        "ix_escalated_messages_decided",
        "route",
        "escalation_id",
        sqlite_where=text("status = 'decided'"),
        postgresql_where=text("status = 'decided'"),
    ),
    # What came since a moment, and of which groups.
    Index("ix_escalated_messages_route_escalated_at", "route", "escalated_at", "group_id"),
    # What was decided together: what became of it, and how it is taken back.
    Index(
        "ix_escalated_messages_decided_at",
        "decided_at",
        sqlite_where=text("decided_at is not null"),
        postgresql_where=text("decided_at is not null"),
    ),
    # What people decided last about the failure of a group.
    Index(
        "ix_escalated_messages_answered",
        "route",
        "group_id",
        "decided_at",
        "escalation_id",
        sqlite_where=text(_ANSWERED),
        postgresql_where=text(_ANSWERED),
    ),
    # Which change was the last one.
    Index(
        "ix_escalated_messages_changed",
        "changed",
        sqlite_where=text("changed is not null"),
        info={"only_on": "sqlite"},
    ).ddl_if(dialect="sqlite"),
    # What came of a group since a moment; and all that review_groups counts, so that it reads no payloads.
    Index(
        "ix_escalated_messages_review",
        "route",
        "group_id",
        "escalated_at",
        "status",
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
    one_of("decision", Decision.REDELIVER, Decision.DISCARD),
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
    one_of("status", *IssueStatus),
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

saved_filters = Table(
    "saved_filters",
    metadata,
    Column("filter_id", BigId, primary_key=True),
    Column("name", sa.Text, nullable=False, unique=True),
    Column("page", sa.Text, nullable=False),
    Column("query", sa.Text, nullable=False),  # as in the page's address
    Column("saved_by", sa.Text, nullable=False),
    Column("saved_at", Instant, nullable=False),
    one_of("page", "find", "messages"),
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
