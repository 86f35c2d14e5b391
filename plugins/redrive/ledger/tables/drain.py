"""Tables of what was drained: how far each source is, its staging files, and copies that became no message."""

import sqlalchemy as sa
from sqlalchemy import Column, Index, Table, text

from redrive.ledger.engine import Instant
from redrive.ledger.tables.columns import BigId, count, metadata, one_of

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

# What comes back there with an id of the route may be a send of the route still.
former_sources = Table(
    "former_sources",
    metadata,
    Column("route", sa.Text, primary_key=True),
    Column("source", sa.Text, primary_key=True),
    Column("system", sa.Text, primary_key=True),  # the broker and connection that it is on
    comment="Sources that a route drained once, and drains no more.",
    sqlite_with_rowid=False,
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
    count("copies"),
    Column("bytes", sa.BigInteger, nullable=False, server_default=text("0")),
    count("settled_copies"),
    # What the copies turned out to be; all zero until loaded_at, then their sum is ``copies``.
    count("new_copies"),
    count("returned_copies"),
    count("duplicate_copies"),
    count("surplus_copies"),
    count("suspected_copies"),
    Column("opened_at", Instant, nullable=False),
    Column("recorded_at", Instant),
    Column("settled_at", Instant),
    Column("loaded_at", Instant),
    Column("removed_at", Instant),  # the file is gone: abandoned, or past retention
    # The file without a row that this batch is a copy of: what is in it may have been redelivered since.
    Column("adopted_from", sa.Text),
    # It was not loaded when the ledger was backed up: so may this.
    Column("doubted", sa.Boolean, nullable=False, server_default=text("false")),
    # What found the keys of its messages, and is configured no more perhaps; none where nothing was asked for.
    Column("message_key_by", sa.Text),
    Column("order_key_by", sa.Text),
    # The broker and connection that it was taken from ('': not known). Only there may come again what was not settled.
    Column("system", sa.Text, nullable=False, server_default=""),
    # open: being written, settles nothing.  recorded: durable; its copies may be settled, though nobody was told.
    # settled: the source is done with settled_copies of it; with none where it refused.  abandoned: its writer
    # vanished or was too slow; its rows were never recorded; or, with recorded_at, a person gave it up as its file was
    # lost before it was loaded.
    one_of("state", "open", "recorded", "settled", "abandoned"),
    one_of("kind", "dead_letter", "delay"),
    Index("ix_staging_batches_route_state", "route", "state"),
    Index("ix_staging_batches_run_id", "run_id"),
    # What is still to be loaded, however many batches there were.
    Index(
        "ix_staging_batches_to_load",
        "route",
        "batch_id",
        sqlite_where=text("loaded_at is null"),
        postgresql_where=text("loaded_at is null"),
    ),
    # Those of all routes of which something may come again: a queue may move from one route to another.
    Index(
        "ix_staging_batches_unsettled",
        "source",
        "batch_id",
        sqlite_where=text("settled_copies < copies and removed_at is null"),
        postgresql_where=text("settled_copies < copies and removed_at is null"),
    ),
    Index(
        "ix_staging_batches_adopted_from",
        "adopted_from",
        unique=True,
        sqlite_where=text("adopted_from is not null and state <> 'abandoned'"),
        postgresql_where=text("adopted_from is not null and state <> 'abandoned'"),
    ),
    sqlite_autoincrement=True,  # a batch id is never given twice, also after retention
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
    one_of("kind", "returned", "duplicate", "surplus", "suspected"),
    Index("ix_repeat_copies_broker_message_id", "broker_message_id"),
    Index("ix_repeat_copies_message_id", "message_id"),
    # About which people are asked, however many came back.
    Index(
        "ix_repeat_copies_suspected",
        "route",
        "copy_id",
        sqlite_where=text("kind = 'suspected'"),
        postgresql_where=text("kind = 'suspected'"),
    ),
    comment="Staged copies that did not become a message of their own, and what they were.",
)

# Written by the load of the route that has the copy, which may not write of another route's sends; taken out by the
# next run of the route that sent it.
returned_elsewhere = Table(
    "returned_elsewhere",
    metadata,
    Column("message_id", sa.BigInteger, primary_key=True),
    Column("attempt", sa.Integer, primary_key=True),
    Column("route", sa.Text, nullable=False),  # the one that sent it
    Column("copy_id", sa.BigInteger, nullable=False),  # what came back, a message of the other route
    Column("kind", sa.Text, nullable=False),
    Column("dead_lettered_at", Instant),
    Column("received_at", Instant, nullable=False),
    one_of("kind", "dead_letter", "delay"),
    Index("ix_returned_elsewhere_route", "route"),
    comment="Attempts that came back to another route than sent them, until that one's next run knows it.",
    sqlite_with_rowid=False,
)
