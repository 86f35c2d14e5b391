"""Transactions that change the ledger, as objects that know who changes it, on which route and when.

A run writes in a :class:`RunTransaction`, which can't be had without its lease: so a process that was replaced writes
nothing, and nobody has to remember to ask. Whoever holds no route, people most often, writes in an
:class:`ActorTransaction`. Both run statements in which ``:route``, ``:run_id``, ``:actor`` and ``:now`` are theirs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, TextClause
from sqlalchemy.engine import Connection, CursorResult

from redrive.errors import LeaseLost
from redrive.ledger.dialects import Dialect
from redrive.ledger.statements import sql

#: The actor of what Redrive does by itself.
MACHINE = "redrive"


@dataclass(frozen=True, slots=True)
class RouteLease:
    """The right of one run to change one route."""

    route: str
    run_id: str
    fence: int
    ttl: timedelta


class Transaction:
    """One transaction that changes the ledger. What only reads takes its :attr:`connection`."""

    def __init__(self, dialect: Dialect, connection: Connection, now: datetime, **names: Any) -> None:
        self.dialect = dialect
        self.connection = connection
        self.now = now
        self._names: dict[str, Any] = {**names, "now": now}

    @property
    def route(self) -> str | None:
        """The route that is changed; None: whichever the statements say."""
        route: str | None = self._names["route"]
        return route

    @property
    def run_id(self) -> str | None:
        """The run that changes it; None: no run does."""
        run_id: str | None = self._names["run_id"]
        return run_id

    @property
    def actor(self) -> str:
        """Who changes it."""
        return str(self._names["actor"])

    def execute(self, statement: TextClause, values: Mapping[str, Any] | None = None) -> CursorResult[Any]:
        """Run ``statement`` with these ``values`` and the transaction's own, whose names no value may have."""
        if values and not self._names.keys().isdisjoint(values):
            raise TypeError(f"of the transaction itself: {', '.join(sorted(self._names.keys() & values.keys()))}")
        return self.connection.execute(statement, {**values, **self._names} if values else self._names)

    def temporary(self, name: str, columns: str) -> None:
        """As :meth:`Dialect.temporary`."""
        self.dialect.temporary(self.connection, name, columns)

    def bulk(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """As :meth:`Dialect.bulk`."""
        self.dialect.bulk(self.connection, table, columns, rows)

    def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """As :meth:`Dialect.many`."""
        return self.dialect.many(self.connection, statement, rows)

    def update_each(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """As :meth:`Dialect.update_each`."""
        self.dialect.update_each(self.connection, table, columns, rows)

    def tuples(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """As :meth:`Dialect.tuples`."""
        return self.dialect.tuples(self.connection, statement, values)


class RunTransaction(Transaction):
    """A transaction of the run that holds a route. Statements also have its ``:fence``.

    To make one is to renew the lease; it raises :class:`LeaseLost` when another run holds the route. From then to its
    end other transactions of the route's runs wait for it.

    One that goes ``alongside`` others neither renews the lease nor waits, nor is waited for. It may change rows that
    nobody else changes without a row that both lock: of an open slice its task alone, after that slice's own row.
    """

    def __init__(
        self,
        dialect: Dialect,
        connection: Connection,
        lease: RouteLease,
        now: datetime,
        *,
        actor: str = MACHINE,
        alongside: bool = False,
    ) -> None:
        super().__init__(
            dialect, connection, now, route=lease.route, run_id=lease.run_id, fence=lease.fence, actor=actor
        )
        self.lease = lease
        held = "route = :route and run_id = :run_id and fence = :fence"
        if alongside:
            holds = self.execute(sql(f"select count(*) from route_state where {held}")).scalar_one()
        else:
            renewed = self.execute(
                sql(f"update route_state set lease_until = :until_at where {held}"), {"until_at": now + lease.ttl}
            )
            holds = renewed.rowcount
        if holds != 1:
            raise LeaseLost(f"route {lease.route}: run {lease.run_id} (fence {lease.fence}) was replaced")

    @property
    def route(self) -> str:
        """The route that the run holds."""
        return self.lease.route

    @property
    def run_id(self) -> str:
        """The run."""
        return self.lease.run_id


class ActorTransaction(Transaction):
    """A transaction of somebody who holds no route: a person, or Redrive when it puts things in order.

    It may change what no run relies on for the length of a transaction: decisions, pauses, gates that wait for people.
    The states of messages are moved by runs alone.
    """

    def __init__(
        self, dialect: Dialect, connection: Connection, now: datetime, *, actor: str, route: str | None
    ) -> None:
        super().__init__(dialect, connection, now, route=route, run_id=None, actor=actor)

    def one_after_the_other(self) -> None:
        """Until this ends, another such transaction of the same actor waits: a second click sees what the first did."""
        self.dialect.in_turn(self.connection, self.actor)
