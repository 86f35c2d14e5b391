"""Sends of which nobody knows whether they were made: made again, or for people to say."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import move
from redrive.ledger.predicates import listed
from redrive.ledger.selecting import Selection
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import RESENDS, Plan, State


def destinations(connection: Connection, route: str) -> list[str]:
    """Queues to which the route has sends of unknown fate."""
    rows = connection.execute(
        sql("select distinct destination from messages where route = :route and state = 'unknown'"), {"route": route}
    )
    return sorted(row.destination for row in rows)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a broker drops a repeat of: sends that were claimed ``after`` a moment for queues on this ``system``. One on
    another never saw them."""

    after: datetime
    system: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Of the unknown sends to a destination those that are unknown, and were due, since before ``unknown_before`` get
    this ``plan``; with None people are to be asked. It is limited to sends within a ``memory``, or to those ``beyond``
    one, and by ``keyed`` to messages that have a key, or none, by which a processed check could know them.
    """

    plan: Literal[Plan.REPEAT, Plan.RESEND] | None
    unknown_before: datetime
    memory: Memory | None = None
    beyond: Memory | None = None
    keyed: bool | None = None

    def where(self, number: int = 0) -> tuple[str, dict[str, Any]]:
        """SQL over ``messages`` for the sends that it is about, and its parameters, which end in ``number``."""
        which = ""
        values: dict[str, Any] = {f"before{number}_at": self.unknown_before}
        for memory, which_ones in ((self.memory, ""), (self.beyond, "not ")):
            if memory is not None:
                which += (
                    f" and {which_ones}(attempts.claimed_at > :after{number}_at and exists (select 1"
                    " from delivery_slices went where went.slice_id = attempts.slice_id"
                    f" and went.system = :system{number}))"
                )
                values |= {f"after{number}_at": memory.after, f"system{number}": memory.system}
        if self.keyed is not None:
            which += f" and messages.message_key is {'not null' if self.keyed else 'null'}"
        return (
            "exists (select 1 from redelivery_attempts attempts"
            " where attempts.message_id = messages.message_id and attempts.attempt = messages.attempts"
            f" and attempts.unknown_at <= :before{number}_at"
            f" and coalesce(attempts.due_at, attempts.unknown_at) <= :before{number}_at{which})"
        ), values


def decide(ledger: Ledger, lease: RouteLease, *, destination: str, rule: Rule, now: datetime) -> int:
    """Do with the unknown sends to ``destination`` what the ``rule`` says; of how many that is news."""
    which, values = rule.where()
    values["destination"] = destination
    where = f"route = :route and destination = :destination and {which}"
    with ledger.under(lease, now) as tx:
        if rule.plan is None:
            return move(
                tx,
                State.UNKNOWN,
                State.TO_REVIEW,
                where=where,
                values={
                    **values,
                    "why": "Nobody knows whether it was sent: a delivery ended between send and confirmation.",
                },
                set_="reason = :why, next_attempt_at = null",
                action=Action.PUT_TO_REVIEW,
                reason="Nobody knows whether it was sent.",
            )
        return int(
            tx.execute(
                sql(
                    "update messages set plan = :plan, reason = null where state = 'unknown'"
                    f" and coalesce(plan, '') <> :plan and {where}"
                ),
                {**values, "plan": rule.plan},
            ).rowcount
        )


class UnknownCount(NamedTuple):
    """Messages of a group of unknown fate, and what is done with them: resend, repeat, review, or wait for now."""

    group_id: int | None
    cause: str | None
    fate: str
    messages: int


def fates(
    connection: Connection, route: str, destination: str, rules: Sequence[Rule], selection: Selection
) -> list[UnknownCount]:
    """What becomes of the selected unknown sends to ``destination`` by ``rules`` that leave each to one of them; what
    none is about stays as it was decided before."""
    selected, values = selection.where()
    cases = ""
    for number, rule in enumerate(rules):
        which, more = rule.where(number)
        cases += f" when {which} then '{rule.plan or 'review'}'"
        values |= more
    fate = f"case{cases} when plan in {listed(RESENDS)} then plan else 'wait' end"
    rows = connection.execute(
        sql(
            f"select group_id, cause, fate, count(*) as n from (select group_id, cause, {fate} as fate from messages"
            f" where route = :route and state = 'unknown' and destination = :destination and {selected}) decided"
            " group by group_id, cause, fate"
        ),
        {**values, "route": route, "destination": destination},
    )
    return [UnknownCount(row.group_id, row.cause, row.fate, row.n) for row in rows]
