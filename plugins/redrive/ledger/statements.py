"""SQL as text, with named parameters, and instants as both databases store them."""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

_BIND = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


class Instant(sa.types.TypeDecorator[datetime]):
    """A point in time, UTC. ``timestamptz`` on PostgreSQL; on SQLite text ``YYYY-MM-DD HH:MM:SS.ffffff``,
    which sorts, compares and reads like a time and works with SQLite's date functions."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.DateTime(timezone=True))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return instant_text(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's
        return parse_instant(value)


def instant_text(value: datetime) -> str:
    """``value`` as SQLite stores it."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def parse_instant(value: datetime | str | None) -> datetime | None:
    """A stored instant, from either database, as an aware datetime."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


@lru_cache(maxsize=512)
def sql(statement: str) -> sa.TextClause:
    """``statement`` with its parameters typed by name: ``:now`` and ``:…_at`` are instants."""
    instants = {name for name in _BIND.findall(statement) if name == "now" or name.endswith("_at")}
    return sa.text(statement).bindparams(*(sa.bindparam(name, type_=Instant()) for name in sorted(instants)))
