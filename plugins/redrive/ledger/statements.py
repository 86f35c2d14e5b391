"""SQL as text, with named parameters, and the type of its instants."""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from redrive.ledger.dialects import named

_BIND = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


class Instant(sa.types.TypeDecorator[datetime]):
    """A point in time, UTC, as the database's :class:`~redrive.ledger.dialects.Dialect` stores it."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(named(dialect.name).instant_type)

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        return named(dialect.name).stored(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's
        return parse_instant(value)


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
