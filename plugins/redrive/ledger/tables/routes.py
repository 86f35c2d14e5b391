"""Tables of who works on which route, and with what: the ledger's identity, configurations, runs, leases and pauses."""

import sqlalchemy as sa
from sqlalchemy import Column, Index, Table, text

from redrive.ledger.engine import Instant
from redrive.ledger.tables.columns import metadata, one_of

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
    Column("began_at", Instant),  # by the earliest of its hosts' clocks, where that is before started_at
    Column("finished_at", Instant),
    Column("counts", sa.Text, nullable=False, server_default="{}"),  # JSON: what each stage reported
    Column("airflow_run_id", sa.Text),
    # The hash of what it began with, also when retention has removed the text.
    Column("configuration", sa.Text),
    one_of("status", "running", "succeeded", "failed", "replaced"),
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
