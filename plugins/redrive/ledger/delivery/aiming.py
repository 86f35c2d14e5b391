"""Bring the destinations of messages in line with the configuration of the run that sends them.

``messages.destination`` is where the next attempt goes; ``redelivery_attempts.destination`` is where each attempt went.
A message that may be on its way (``sending``, ``sent``, ``unknown``) keeps the destination of that attempt: a resend is
the same attempt, and only at the same place can a broker drop the second of two.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event
from redrive.ledger.transactions import RouteLease
from redrive.policy.aims import Aim, Aims

#: States in which the next send is a new attempt.
_AIMED = "('classified', 'waiting', 'held', 'to_review', 'escalated', 'expired')"
#: So many changes of destination are named in the audit event.
_NAMED = 20


class Changed(NamedTuple):
    """So many messages that went to ``old`` go to ``new``."""

    old: str | None
    new: str | None
    messages: int


def target(aims: Aims) -> tuple[str, dict[str, str]]:
    """SQL over table ``messages`` for where a message goes, and its parameters."""
    values: dict[str, str] = {}
    cases = ""
    for place, (source, aim) in enumerate(aims.by_source.items()):
        values[f"aim_source_{place}"] = source
        cases += f" when messages.source = :aim_source_{place} then {_of(aim, str(place), values)}"
    otherwise = _of(aims.elsewhere, "else", values)
    return f"case{cases} else {otherwise} end" if cases else otherwise, values


def _of(aim: Aim, name: str, values: dict[str, str]) -> str:
    if aim.as_before:
        return "messages.destination"
    if aim.configured is not None:
        values[f"aim_{name}"] = aim.configured
        return f"cast(:aim_{name} as text)"
    if aim.any_origin:
        return "messages.origin"
    names = {f"aim_{name}_origin_{place}": one for place, one in enumerate(sorted(aim.origins))}
    starts = {f"aim_{name}_start_{place}": one for place, one in enumerate(aim.beginnings)}
    values |= names | starts
    trusted = [f"substr(messages.origin, 1, {len(one)}) = :{key}" for key, one in starts.items()]
    if names:
        trusted.append(f"messages.origin in ({', '.join(':' + key for key in names)})")
    return f"case when {' or '.join(trusted)} then messages.origin end" if trusted else "cast(null as text)"


def aim(ledger: Ledger, lease: RouteLease, aims: Aims, now: datetime) -> int:
    """Let every message of the route that waits for a new attempt, or for people, go where ``aims`` say; how many went
    elsewhere until now. Their review rows say so too."""
    with ledger.read() as connection:
        if not _changes(connection, lease.route, aims):
            return 0
    where, values = _elsewhere(aims)
    with ledger.under(lease, now) as tx:
        changes = _changes(tx.connection, lease.route, aims)
        new, _ = target(aims)
        count = tx.execute(
            sql(f"update messages set destination = {new} where route = :route and {where}"),
            values,
        ).rowcount
        tx.execute(
            sql(
                "update escalated_messages set destination = (select messages.destination from messages"
                " where messages.message_id = escalated_messages.message_id) where status <> 'applied'"
                " and route = :route and exists (select 1 from messages where messages.message_id ="
                " escalated_messages.message_id and messages.state = 'escalated' and coalesce(messages.destination, '')"
                " <> coalesce(escalated_messages.destination, ''))"
            )
        )
        if count:
            record_event(
                tx,
                action=Action.AIM,
                count=count,
                selection={"changed": changes},
                reason="The configuration sends them elsewhere now.",
            )
    return int(count)


def _changes(connection: Connection, route: str, aims: Aims) -> Sequence[Changed]:
    """The largest sets of messages that are to go elsewhere."""
    new, _ = target(aims)
    where, values = _elsewhere(aims)
    rows = connection.execute(
        sql(
            "select old, new, count(*) as n from (select messages.destination as old,"
            f" {new} as new from messages where route = :route and {where}) changed"
            " group by old, new order by n desc, old, new limit :limit"
        ),
        {"route": route, "limit": _NAMED, **values},
    )
    return [Changed(row.old, row.new, row.n) for row in rows]


def _elsewhere(aims: Aims) -> tuple[str, dict[str, str]]:
    new, values = target(aims)
    return f"messages.state in {_AIMED} and coalesce(messages.destination, '') <> coalesce({new}, '')", values
