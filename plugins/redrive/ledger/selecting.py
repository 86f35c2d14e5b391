"""Which messages a run may touch, as a WHERE clause over table ``messages``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.errors import UsageError
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.predicates import enqueued


class Condition(NamedTuple):
    """SQL that is true or not of a row, and its parameters."""

    sql: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a run is limited to; empty means everything.

    ``since`` and ``until`` select by dead-lettered time, and by first enqueue where the broker doesn't tell.
    ``limit`` bounds what is drained and what is sent, each. ``sources`` also limits what is drained.
    ``attributes`` are (name, value) pairs of headers; of one name any value will do, different names all have to
    match. The ledger doesn't know headers: they are looked up in staging, page by page, and each page is a
    selection of its own with ``message_ids``.
    """

    limit: int | None = None
    causes: Sequence[str] = field(default=())
    groups: Sequence[int] = field(default=())
    since: datetime | None = None
    until: datetime | None = None
    sources: Sequence[str] = field(default=())
    attributes: Sequence[tuple[str, str]] = field(default=())
    message_ids: Sequence[int] | None = None  # exactly these; needs :func:`stage_selection` in the same transaction
    apart: Condition | None = None  # over ``messages``; not what a dry run tells apart

    def where(self, table: str = "messages") -> tuple[str, dict[str, Any]]:
        """A condition and its parameters."""
        if self.attributes and self.message_ids is None:
            raise ValueError("the ledger knows no attributes: select page by page, with message_ids")
        parts = ["1 = 1"]
        values: dict[str, Any] = {}
        if self.message_ids is not None:
            parts.append(f"{table}.message_id in (select message_id from wanted)")
        for column, chosen in (("cause", self.causes), ("source", self.sources)):
            if chosen:
                names = [f"{column}_{i}" for i in range(len(chosen))]
                parts.append(f"{table}.{column} in ({', '.join(':' + n for n in names)})")
                values.update(zip(names, chosen, strict=True))
        if self.groups:
            parts.append(f"{table}.group_id in ({', '.join(str(int(group)) for group in self.groups)})")
        moment = f"coalesce({table}.dead_lettered_at, {enqueued(table)})"
        if self.since:
            parts.append(f"{moment} >= :since_at")
            values["since_at"] = self.since
        if self.until:
            parts.append(f"{moment} < :until_at")
            values["until_at"] = self.until
        if self.apart:
            parts.append(f"not coalesce({self.apart.sql}, false)")
            values |= self.apart.values
        return " and ".join(parts), values

    def to_json(self) -> dict[str, Any]:
        """A form that travels through XCom; :meth:`from_json` reads it."""
        return {
            "limit": self.limit,
            "causes": list(self.causes),
            "groups": list(self.groups),
            "since": self.since.isoformat() if self.since else None,
            "until": self.until.isoformat() if self.until else None,
            "sources": list(self.sources),
            "attributes": [list(pair) for pair in self.attributes],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Selection":
        """The inverse of :meth:`to_json`."""
        return cls(
            limit=data.get("limit"),
            causes=tuple(data.get("causes") or ()),
            groups=tuple(data.get("groups") or ()),
            since=datetime.fromisoformat(data["since"]) if data.get("since") else None,
            until=datetime.fromisoformat(data["until"]) if data.get("until") else None,
            sources=tuple(data.get("sources") or ()),
            attributes=tuple((name, value) for name, value in data.get("attributes") or ()),
        )

    def of(self, sources: Sequence[str]) -> "Selection":
        """The same of these sources."""
        return replace(self, sources=tuple(sources))

    def refuse_unknown_sources(
        self, known: Iterable[str], covers: Callable[[str, str], bool] = lambda name, source: name == source
    ) -> None:
        """:class:`~redrive.errors.UsageError` where a source is named that none of the ``known`` is, or ``covers``: a
        mistyped one would select nothing, in silence."""
        names = list(known)
        for source in self.sources:
            if not any(covers(name, source) for name in names):
                raise UsageError(f"source {source}: the route doesn't drain it; it drains {', '.join(names)}")

    def without_attributes(self) -> "Selection":
        """What the ledger alone can select: this, and more where there are attributes."""
        return replace(self, attributes=())

    def only(self, message_ids: Sequence[int]) -> "Selection":
        """Of this selection these messages; their attributes were looked at."""
        return replace(self, message_ids=message_ids)

    def wanted_attributes(self) -> dict[str, frozenset[str]]:
        """By name the values of which a message has to carry one."""
        wanted: dict[str, frozenset[str]] = {}
        for name, value in self.attributes:
            wanted[name] = wanted.get(name, frozenset()) | {value}
        return wanted


def parse_attributes(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """``NAME=VALUE`` texts as pairs; :class:`~redrive.errors.UsageError` for anything else."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"attribute {text!r}: write NAME=VALUE, as in tenant=acme")
        pairs.append((name, value))
    return tuple(pairs)


def refuse_unknown_groups(ledger: Ledger, selection: Selection) -> None:
    """:class:`~redrive.errors.UsageError` where a group is named that the ledger doesn't know: a mistyped one would
    select nothing, in silence."""
    if not selection.groups:
        return
    names = ", ".join(str(int(group)) for group in selection.groups)
    with ledger.read() as connection:
        rows = connection.execute(sql(f"select group_id from failure_groups where group_id in ({names})"))
        known = set(rows.scalars())
    if missing := [group for group in selection.groups if group not in known]:
        raise UsageError(f"there is no group {missing[0]}; `redrive status` and `redrive review list` show their ids")


def stage_selection(ledger: Ledger, connection: Connection, selection: Selection) -> None:
    """Put the selection's ``message_ids``, if it has any, where its condition looks for them; for this transaction."""
    if selection.message_ids is not None:
        ledger.dialect.temporary(connection, "wanted", "message_id bigint primary key")
        ledger.dialect.bulk(connection, "wanted", ("message_id",), [(one,) for one in selection.message_ids])


def candidates(
    connection: Connection,
    route: str,
    selection: Selection,
    *,
    where: str,
    values: Mapping[str, Any],
    after: int,
    limit: int,
) -> list[int]:
    """Ids of messages that the ledger's part of the selection and ``where`` allow, in order, above ``after``."""
    selected, more = selection.without_attributes().where()
    rows = connection.execute(
        sql(
            f"select message_id from messages where route = :route and message_id > :after and {where} and {selected}"
            " order by message_id limit :limit"
        ),
        {"route": route, "after": after, "limit": limit, **values, **more},
    )
    return [row.message_id for row in rows]
