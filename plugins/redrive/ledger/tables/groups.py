"""Tables of failure groups, over all routes, and of what people and Redrive found about them."""

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, Table, text

from redrive.ledger.engine import Instant
from redrive.ledger.tables.columns import BigId, metadata, one_of

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
    Column("parted_at", Instant),  # when it last had its own name again, after it came under another group's
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
    one_of("ruling", "merge", "split"),
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
