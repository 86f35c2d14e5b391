"""Decisions of people, as the command line makes them: the same plain UPDATE that reviewers use in SQL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.corrections import Correction, Original
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.predicates import UNDECIDED_REVIEW
from redrive.message import LARGEST_ID


@dataclass(frozen=True, slots=True)
class Choice:
    """Which questions somebody means to answer: those of some messages, or of a group; of one route if it is given."""

    messages: Sequence[int] = ()
    group: int | None = None
    route: str | None = None

    def where(self) -> tuple[str, dict[str, Any]]:
        """A condition over ``escalated_messages`` and its parameters."""
        parts, values = [], dict[str, Any]()
        if self.group is not None:
            parts.append("group_id = :group")
            values["group"] = self.group
        if self.messages:
            parts.append(f"message_id in ({', '.join(str(int(one)) for one in self.messages)})")
        if self.route is not None:
            parts.append("route = :route")
            values["route"] = self.route
        return " and ".join(parts), values


class Open(NamedTuple):
    """What a choice finds."""

    questions: int  # that nobody has decided
    up_to: int  # the newest of them
    seen: str  # what was there, for Dialect.unchanged
    left: list[str]  # a sentence for each message or group that it names and that isn't among them
    routes: list[str]  # whose they are


def undecided(ledger: Ledger, choice: Choice, limit: int | None = None) -> Open:
    """What ``choice`` would decide now, at most the ``limit`` oldest of it, and what it would not, and why. Changes
    nothing."""
    where, values = choice.where()
    found = f"from escalated_messages where {UNDECIDED_REVIEW} and {where}"
    with ledger.read() as connection:
        questions, up_to = connection.execute(
            sql(
                "select count(*), coalesce(max(escalation_id), 0) from"
                f" (select escalation_id {found} order by escalation_id limit :limit) as oldest"
            ),
            {**values, "limit": LARGEST_ID if limit is None else limit},
        ).one()
        seen = ledger.dialect.seen(connection)
        routes = connection.execute(sql(f"select distinct route {found}"), values).scalars().all()
        left = []
        if choice.messages:
            asked = set(connection.execute(sql(f"select message_id {found}"), values).scalars())
            left = [_why_not(connection, message, choice) for message in choice.messages if message not in asked]
        if choice.group is not None and not questions:
            left.append(_why_no_group(connection, choice.group, choice.route))
    return Open(questions, up_to, seen, left, list(routes))


def original(connection: Connection, where: str, values: Mapping[str, Any]) -> tuple[int, str, Original] | None:
    """Of the newest undecided question that matches (SQL over ``escalated_messages``) the id, route and original."""
    row = connection.execute(
        sql(
            "select escalation_id, route, payload, content_type, payload_bytes is not null as is_binary, headers,"
            " size_bytes from escalated_messages"
            f" where {UNDECIDED_REVIEW} and {where} order by escalation_id desc limit 1"
        ),
        values,
    ).first()
    if row is None:
        return None
    found = Original(row.payload, row.content_type, bool(row.is_binary), row.headers, row.size_bytes)
    return row.escalation_id, row.route, found


def decide(
    ledger: Ledger,
    choice: Choice,
    *,
    up_to: int,
    seen: str,
    decision: str,
    by: str,
    note: str,
    correction: Correction | None,
) -> int:
    """Decide every undecided question of ``choice`` up to the question ``up_to`` that is as it was ``seen``.

    Returns how many. What changed meanwhile, and is undecided again or of this group only now, is left alone.

    An edit has a ``correction``, and no other decision has.
    """
    where, chosen = choice.where()
    which = f"{UNDECIDED_REVIEW} and {where} and escalation_id <= :up_to"
    values = {"decision": decision, "by": by, "note": note, "up_to": up_to, "seen": seen, **chosen}
    corrected = ""
    if correction is not None:
        corrected = ", corrected_body = :body, corrected_headers = :headers"
        values |= {"body": correction.body, "headers": correction.headers}
    with ledger.write() as connection:
        if ledger.dialect.for_update:
            connection.execute(
                sql(
                    f"select 1 from escalated_messages where {which} order by escalation_id{ledger.dialect.for_update}"
                ),
                {"up_to": up_to, **chosen},
            )
        return int(
            connection.execute(
                sql(
                    "update escalated_messages set decision = :decision, decided_by = :by, note = :note"
                    f"{corrected} where {which} and {ledger.dialect.unchanged(':seen')}"
                ),
                values,
            ).rowcount
        )


def _why_not(connection: Connection, message: int, choice: Choice) -> str:
    row = connection.execute(
        sql(
            "select route, group_id, status, decision, decided_by from escalated_messages where message_id = :message"
            " order by escalation_id desc limit 1"
        ),
        {"message": message},
    ).first()
    if row is not None and choice.route not in (None, row.route):
        return f"message {message} is of route {row.route}"
    if row is not None and choice.group not in (None, row.group_id):
        return f"message {message} is of group {row.group_id}"
    if row is not None:
        return f"message {message} is decided already: {row.decision}, by {row.decided_by} ({row.status})"
    state = connection.execute(
        sql("select state from messages where message_id = :message"), {"message": message}
    ).scalar()
    return (
        f"there is no message {message}" if state is None else f"message {message} is not before people: it is {state}"
    )


def _why_no_group(connection: Connection, group: int, route: str | None) -> str:
    here = f" on route {route}" if route else ""
    rows = connection.execute(
        sql(
            "select status, count(*) as n from escalated_messages where group_id = :group"
            + (" and route = :route" if route else "")
            + " group by status order by status"
        ),
        {"group": group} | ({"route": route} if route else {}),
    ).all()
    if rows:
        told = ", ".join(f"{row.n} {row.status}" for row in rows)
        return f"nothing of group {group}{here} waits for a decision: {told}"
    known = connection.execute(sql("select 1 from failure_groups where group_id = :group"), {"group": group}).first()
    return f"nothing of group {group} was ever put before people{here}" if known else f"there is no group {group}"
