"""Bring the destinations of messages in line with the configuration of the run that sends them.

``messages.destination`` is where the next attempt goes; ``redelivery_attempts.destination`` is where each attempt went.
A message that may be on its way (``sending``, ``sent``, ``unknown``) keeps the destination of that attempt: a resend is
the same attempt, and only at the same place can a broker drop the second of two. Where nobody knows where to, people
are asked.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move, record_event
from redrive.ledger.predicates import IS_SEND
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import State
from redrive.policy.aims import Aim, Aims

#: States in which the next send is a new attempt.
_AIMED = "('classified', 'waiting', 'held', 'to_review', 'escalated', 'expired')"
LOST = "No destination is known: the broker does not tell where it came from, and the route names none."
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
    elsewhere until now. Their review rows say so too. A message whose row somebody is changing at this moment follows
    the next time: nothing of it is sent before, and whoever takes their time keeps no run waiting."""
    with ledger.read() as connection:
        if not _changes(connection, lease.route, aims):
            return 0
    where, values = _elsewhere(aims)
    with ledger.under(lease, now) as tx:
        changes = _changes(tx.connection, lease.route, aims)
        new, _ = target(aims)
        tx.temporary("aimed", "escalation_id bigint primary key")
        tx.execute(
            sql(
                "insert into aimed select escalation_id from escalated_messages where status <> 'applied'"
                f" and message_id in (select message_id from messages where route = :route and {where})"
                f" order by escalation_id {tx.dialect.locked}"
            ),
            values,
        )
        count = tx.execute(
            sql(
                f"update messages set destination = {new} where route = :route and {where} and (state <> 'escalated'"
                " or not exists (select 1 from escalated_messages where status <> 'applied'"
                " and message_id = messages.message_id and escalation_id not in (select escalation_id from aimed)))"
            ),
            values,
        ).rowcount
        tx.execute(
            sql(
                "update escalated_messages set destination = (select messages.destination from messages"
                " where messages.message_id = escalated_messages.message_id)"
                " where escalation_id in (select escalation_id from aimed)"
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


def refuse_lost(ledger: Ledger, lease: RouteLease, keys: Mapping[str, str], now: datetime) -> int:
    """Messages that were to be sent but of which nobody knows where to are marked for people; ``keys``: by source,
    under which key of the configuration its origins are listed."""
    values = {f"source_{place}": source for place, source in enumerate(keys)}
    values |= {f"key_{place}": key for place, key in enumerate(keys.values())}
    known = "".join(f" when source = :source_{place} then cast(:key_{place} as text)" for place in range(len(keys)))
    claim = (
        "'A header says that it came from ' || substr(origin, 1, 200) || ', and nobody vouches for that: the broker"
        " does not say that this dead-letters into ' || source || ', and it is not listed under ' ||"
        f" case{known or ' when false then null'} else 'the origins of that source' end"
        " || '. List it, or configure a destination.'"
    )
    with ledger.under(lease, now) as tx:
        return sum(
            move(
                tx,
                state,
                State.TO_REVIEW,
                where=f"route = :route and destination is null and {IS_SEND}",
                values={"why": LOST, **values},
                set_="next_attempt_at = null,"
                f" reason = case when origin is null then cast(:why as text) else {claim} end",
                action=Action.REFUSE_DESTINATION,
                reason="No destination is known, or nobody vouches for the origin that a header names.",
            )
            for state in (State.WAITING, State.HELD)
        )


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
