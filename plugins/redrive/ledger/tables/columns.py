"""What all tables are made of: the one metadata, the type of ids, and columns and checks that many of them have."""

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, text

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


def among(column: str, values: Iterable[str], otherwise: str = "false") -> str:
    """SQL: whether the column's value is one of these, words of ours.

    A case, because SQLite builds a table for an IN of more than two to look it up in, for each row that is checked:
    with an IN the checks took more than half of what it costs to insert or move a message.
    """
    cases = " ".join(f"when '{value}' then true" for value in values)
    return f"case {column} {cases} else {otherwise} end"


def one_of(column: str, *values: str) -> CheckConstraint:
    """That the column's value is one of these, words of ours, or null where it may be."""
    return CheckConstraint(among(column, values, otherwise=f"{column} is null"), name=column)


def count(name: str) -> Column[int]:
    """A column that counts from zero."""
    return Column(name, sa.Integer, nullable=False, server_default=text("0"))
