"""What PostgreSQL says otherwise than SQLite."""

import json
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, ProgrammingError

from redrive.extras import needing
from redrive.ledger.dialects.base import CREATE_VIEW, Dialect
from redrive.ledger.dialects.driver import through_driver
from redrive.ledger.dialects.stored_headers import header_condition

#: What each of its sessions is told. It neither compiles a statement (``jit``) nor begins more processes for it: it
#: would where a plan looks expensive, as it does once much is finished, however few rows are read in the end, and then
#: either takes longer than our statements do.
_SESSION = "-csearch_path=redrive -ctimezone=UTC -cjit=off -cmax_parallel_workers_per_gather=0"
#: So many changes are worth another look at a table however large it is: what a claim reads at worst, again and again.
MUCH = 100_000
#: How closely it looks at a temporary table (a hundred is its default): at 300 times as many rows. Of 10,000 copies
#: with 25 columns that takes 6 to 12 ms instead of 25.
FEW = 10
#: Seconds: a connection that nobody used for so long is asked whether it still stands, before it is used again. To ask
#: each time is an answer more to wait for in every transaction.
IDLE = 1.0
#: How long a statement waits for what somebody else has locked, where nobody says otherwise: longer than any of our own
#: transactions takes. Runs pass over what people have open; where one can't, it ends and says so, and frees its route.
PATIENCE = timedelta(minutes=10)
#: The same while the schema is upgraded, for which everybody else waits meanwhile.
_UPGRADE_PATIENCE = "10s"
#: The first key of locks for :meth:`PostgreSQL.in_turn`.
_TURNS = 7239582
#: Its codes for: a lock was not to be had in time, two waited for each other, somebody else was faster.
_BUSY = ("55P03", "40P01", "40001")


def _ask_the_idle(engine: sa.Engine) -> None:
    """Replace connections that the server ended while they were idle."""

    def given_back(_: Any, record: Any) -> None:
        record.info["since"] = time.monotonic()

    def taken(connection: Any, record: Any, _: Any) -> None:
        since = record.info.get("since")
        if since is not None and time.monotonic() - since >= IDLE:
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as error:
                raise sa.exc.InvalidatePoolError from error  # whatever ended it ended the others too

    sa.event.listen(engine, "checkin", given_back)
    sa.event.listen(engine, "checkout", taken)


class Postgresql(Dialect):
    """PostgreSQL."""

    name = "postgresql"
    zone = "+00"
    # As an update locks, which leaves alone who only names such a row in another one: a "for update" would wait for
    # whoever is about to say something of a group.
    locked = "for no key update skip locked"
    locked_shared = "for share skip locked"
    for_update = " for no key update"
    for_share = " for share"
    writers_beside = True
    isolation = "REPEATABLE READ"
    instant_type = sa.DateTime(timezone=True)

    def open_engine(self, url: sa.URL, patience: timedelta | None) -> sa.Engine:
        waits = f" -clock_timeout={round((patience or PATIENCE).total_seconds() * 1000)}"
        with needing("postgres", "database: PostgreSQL"):  # whose driver is imported here
            engine = sa.create_engine(url, connect_args={"options": _SESSION + waits}, hide_parameters=True)
        _ask_the_idle(engine)
        return engine

    def is_absent(self, url: sa.URL) -> bool:  # noqa: ARG002
        return False  # connecting makes none, and says so

    def make(self, url: sa.URL) -> None:
        pass

    def begin(self, connection: Connection) -> None:
        pass  # its driver does with the first statement

    def begin_reading(self, connection: Connection) -> None:
        pass

    def is_busy(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in _BUSY

    def is_unreadable(self, error: DBAPIError) -> bool:  # noqa: ARG002
        return False  # its server says so itself

    def later(self, base: str, seconds: str) -> str:
        return f"(cast({base} as timestamptz) + ({seconds}) * interval '1 second')"

    def latest(self, one: str, other: str) -> str:
        return f"greatest({one}, {other})"

    def earliest(self, one: str, other: str) -> str:
        return f"least({one}, {other})"

    def seconds_between(self, start: str, end: str) -> str:
        return f"extract(epoch from ({end} - {start}))"

    def day(self, instant: str) -> str:
        return f"to_char({instant} at time zone 'UTC', 'YYYY-MM-DD')"

    def ago(self, time: str) -> str:
        return f"(now() - interval '{time}')"

    def hexadecimal(self, number: str, digits: int) -> str:
        return f"lpad(to_hex({number}), {digits}, '0')"

    def contains(self, text: str, pattern: str) -> str:
        return rf"lower({text}) like lower({pattern}) escape '\'"

    def some_header(self, headers: str, name: str, value: str) -> tuple[str, dict[str, str]]:
        begin, end = ":header_begin", ":header_end"
        apart = (
            f"exists (select 1 from (select cast(json_array_elements(cast({headers} as json)) as text) as value)"
            f" as header where substr(header.value, 1, length({begin})) = {begin}"
            f" and substr(header.value, length(header.value) - length({end}) + 1) = {end})"
        )
        values = {"header_begin": f"[{json.dumps(name)},", "header_end": f", {json.dumps(value)}]"}
        return header_condition(lambda bind: f"strpos({headers}, {bind}) > 0", name, value, apart, values)

    def members(self, text: str) -> str:
        return f"json_each_text(cast({text} as json)) as member"

    def begins(self, column: str, low: str, high: str) -> str:
        return f"({column} ~>=~ {low} and {column} ~<~ {high})"

    def by_beginning(self, column: str) -> str:
        return f"{column} using ~<~"

    def marks(self, types: Sequence[str]) -> str:
        # It can't infer the types of bare parameters in the list of a select.
        return ", ".join(f"?::{name}" for name in types)

    def few(self, column: str, chosen: str) -> str:
        # As a join it is planned by statistics: where nothing was waiting when they were taken, they tell of hardly a
        # message that waits, and for each that does the whole slice is read.
        return f"{column} = any(array({chosen}))"

    def in_row(self, column: str) -> str:
        # Statistics that were taken while nothing was waiting make the index of what waits look like the shortest way;
        # then each slice reads all that waits.
        return f"({column} || '')"

    def tidy_up_early(self, connection: Connection, tables: Sequence[str]) -> None:
        # By itself it waits until a fifth of a table has changed: of a year's messages two months. Until then whoever
        # reads what a day left behind reads all its earlier versions too. Statistics are taken anew when a tenth has
        # changed: until then they say that nothing waits, and what waits is sorted on disk instead of counted.
        # So it comes after some thousand changes, of a year's messages as of a week's.
        options = ", ".join(
            f"autovacuum_{what}_scale_factor = 0.001, autovacuum_{what}_threshold = 1000"
            for what in ("vacuum", "vacuum_insert", "analyze")
        )
        for table in tables:
            connection.exec_driver_sql(f"alter table {table} set ({options})")

    def seen(self, connection: Connection) -> str:
        return str(connection.exec_driver_sql("select cast(pg_current_snapshot() as text)").scalar_one())

    def unchanged(self, seen: str) -> str:
        # A transaction that is still to come changed it in another server, from which the ledger was copied.
        changed = "cast(cast(changed as text) as xid8)"
        return (
            f"(changed is null or pg_visible_in_snapshot({changed}, cast({seen} as pg_snapshot))"
            f" or {changed} >= pg_snapshot_xmax(pg_current_snapshot()))"
        )

    def off_index(self, column: str) -> str:
        return column  # its planner knows

    def temporary(self, connection: Connection, name: str, columns: str) -> None:
        connection.exec_driver_sql(f"drop table if exists pg_temp.{name}")
        portable = columns.replace("blob", "bytea").replace("instant", "timestamptz")
        connection.exec_driver_sql(f"create temp table {name} ({portable}) on commit drop")

    def bulk(self, connection: Connection, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        statement = f"copy {table} ({','.join(columns)}) from stdin"
        with through_driver(connection, statement) as raw, raw.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def many(self, connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        if not rows:
            return 0
        with through_driver(connection, statement) as raw, raw.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)
            return int(cursor.rowcount)

    def update_each(
        self, connection: Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        if not rows:
            return
        # One statement: one for each row takes three times as long, though they are sent together. Its arrays are what
        # takes time: so what is the same in all rows, as the moment of a send, is told once.
        key = [column.name for column in table.primary_key]
        told = dict(zip((*columns, *key), map(list, zip(*rows, strict=True)), strict=True))
        types = {name: table.c[name].type.compile(connection.dialect) for name in told}
        same = {name for name in (*columns, *key[1:]) if told[name].count(told[name][0]) == len(rows)}
        each = [name for name in told if name not in same]
        one = {name: f"%({name})s::{types[name]}" if name in same else f"given.{name}" for name in told}
        statement = (
            f"update {table.name} set {', '.join(f'{name} = {one[name]}' for name in columns)}"
            f" from unnest({', '.join(f'%({name})s::{types[name]}[]' for name in each)}) as given ({', '.join(each)})"
            f" where {' and '.join(f'{table.name}.{name} = {one[name]}' for name in key)}"
        )
        with through_driver(connection, statement) as raw:
            raw.execute(statement, {name: values[0] if name in same else values for name, values in told.items()})

    def tuples(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with through_driver(connection, statement) as raw:
            return list(raw.execute(statement.replace("?", "%s"), values).fetchall())

    def stored(self, value: datetime | None) -> Any:
        return value

    def comparable(self, instant: Any) -> Any:
        return None if instant is None else instant.timestamp()

    def look_again(self, connection: Connection, table: str, changed: int) -> None:
        known = connection.execute(
            sa.text("select max(reltuples) from pg_class where oid = to_regclass(:table)"), {"table": table}
        ).scalar_one()
        if known is not None and changed > min(known / 5, MUCH):
            connection.exec_driver_sql(f"analyze {table}")

    def look_at_temporary(self, connection: Connection, name: str) -> None:
        # How many rows there are, and which columns are empty or all different, few rows tell.
        connection.exec_driver_sql(f"set local default_statistics_target = {FEW}")
        connection.exec_driver_sql(f"analyze {name}")
        connection.exec_driver_sql("set local default_statistics_target to default")

    def no_longer_than(self, connection: Connection, limit: str) -> None:
        connection.execute(sa.text(f"set local statement_timeout = '{limit}'"))

    def count_on(self, connection: Connection, table: str, column: str, last: int) -> None:
        counter = connection.execute(
            sa.text("select pg_get_serial_sequence(:table, :column)"), {"table": table, "column": column}
        ).scalar_one()
        given = connection.execute(
            sa.text(f"select case when is_called then last_value else 0 end from {counter}")
        ).scalar_one()
        # Counted on and not set: others may be counting at this moment, and a counter that is set may go back.
        connection.execute(
            sa.text("select count(nextval(cast(:counter as regclass))) from generate_series(1, :missing)"),
            {"counter": counter, "missing": max(0, last - given)},
        )

    def in_turn(self, connection: Connection, name: str) -> None:
        connection.execute(sa.text(f"select pg_advisory_xact_lock({_TURNS}, hashtext(:name))"), {"name": name})

    def begin_upgrade(self, connection: Connection) -> None:
        connection.exec_driver_sql("select pg_advisory_xact_lock(7239581)")
        connection.exec_driver_sql(f"set local lock_timeout = '{_UPGRADE_PATIENCE}'")
        # "if not exists" asks for the right to create before it looks, and whoever upgrades may lack it
        if connection.exec_driver_sql("select to_regnamespace('redrive')").scalar() is None:
            connection.exec_driver_sql("create schema redrive")

    def as_it_is(self, connection: Connection, statement: str) -> None:
        connection.exec_driver_sql(statement.replace("%", "%%"))  # psycopg reads a percent sign as a parameter

    def lacks_reviewers(self, connection: Connection) -> bool:
        return connection.exec_driver_sql("select to_regrole('redrive_reviewer') is null").scalar_one() is True

    def may_lose(self, connection: Connection) -> str | None:
        # Most columns of pg_stat_replication are hidden from ordinary roles, but not its rows; nor is who takes changes
        # by a logical slot, which is no standby.
        fsync, commit, standbys, watched = connection.exec_driver_sql(
            "select current_setting('fsync'), current_setting('synchronous_commit'),"
            " current_setting('synchronous_standby_names'), exists (select 1 from pg_stat_replication walsender"
            " where coalesce(state, '') <> 'backup' and not exists (select 1 from pg_replication_slots slot"
            " where slot.active_pid = walsender.pid and slot.slot_type = 'logical'))"
        ).one()
        reasons = []
        if fsync == "off":
            reasons.append("fsync is off")
        if commit in ("off", "local"):
            reasons.append(f"synchronous_commit is {commit}")
        elif watched and not standbys:
            reasons.append("it has standbys, and none of them is synchronous (synchronous_standby_names is empty)")
        return ", ".join(reasons) or None

    def clock(self, connection: Connection) -> datetime | None:
        now: datetime = connection.exec_driver_sql("select clock_timestamp()").scalar_one()
        return now

    def replace_views(self, connection: Connection, statements: Sequence[str]) -> bool:
        try:
            with connection.begin_nested():
                for statement in statements:
                    self.as_it_is(connection, CREATE_VIEW.sub(r"create or replace view \1", statement))
        except ProgrammingError:
            return False  # a view lost or renamed a column
        return True
