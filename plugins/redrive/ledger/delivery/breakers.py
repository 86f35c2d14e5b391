"""The breaker of each destination: what came back from it across groups, and how many it may get now.

A destination without a row in ``destination_state`` is open. Outcomes are counted per group, because one group that
keeps coming back says something of that group; that several do says something of the destination. Counted is what was
sent since the stage began.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import record_event
from redrive.ledger.transactions import RouteLease, RunTransaction, Transaction
from redrive.policy.gates import BreakerStage, BreakerStep

_OF_THIS_STAGE = (
    "attempts.sent_at is not null and not exists (select 1 from destination_state state where state.route ="
    " attempts.route and state.destination = attempts.destination and state.stage_at > attempts.sent_at)"
)


@dataclass(frozen=True, slots=True)
class DestinationGate:
    """A destination's breaker as the ledger holds it."""

    destination: str
    stage: BreakerStage
    allowed: int
    trips: int
    cool_down_until: datetime | None
    reason: str | None
    outcomes: tuple[tuple[int, int, int], ...]  # per group: sent, stayed, returned
    waiting: int  # messages that are due or will be

    @property
    def sent(self) -> int:
        return sum(sent for sent, _, _ in self.outcomes)

    @property
    def stayed(self) -> int:
        return sum(stayed for _, stayed, _ in self.outcomes)

    @property
    def returned(self) -> int:
        return sum(returned for _, _, returned in self.outcomes)


def states(connection: Connection, route: str) -> list[DestinationGate]:
    """The breakers of all destinations that the route has sent to."""
    outcomes: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in connection.execute(
        sql(
            "select destination, sent, stayed, returned from destination_outcomes where route = :route"
            " order by destination, group_id"
        ),
        {"route": route},
    ):
        outcomes[row.destination].append((row.sent, row.stayed, row.returned))
    known = {
        row.destination: row
        for row in connection.execute(sql("select * from destination_state where route = :route"), {"route": route})
    }
    waiting: dict[str, int] = {
        row.destination: row.n
        for row in connection.execute(
            sql(
                "select destination, count(*) as n from messages where route = :route and state = 'waiting'"
                " and destination is not null group by destination"
            ),
            {"route": route},
        )
    }
    return [
        DestinationGate(
            name,
            BreakerStage(row.stage) if row is not None else BreakerStage.OPEN,
            row.allowed if row is not None else 0,
            row.trips if row is not None else 0,
            parse_instant(row.cool_down_until) if row is not None else None,
            row.reason if row is not None else None,
            tuple(outcomes.get(name, ())),
            waiting.get(name, 0),
        )
        for name in sorted(outcomes.keys() | known.keys())
        for row in [known.get(name)]
    ]


def set_stage(ledger: Ledger, lease: RouteLease, gate: DestinationGate, step: BreakerStep, now: datetime) -> None:
    """Move a destination's breaker to another stage and begin to count anew."""
    with ledger.under(lease, now) as tx:
        tx.execute(
            sql(
                "insert into destination_state (route, destination, stage, allowed, trips, cool_down_until, reason,"
                " stage_at) values (:route, :destination, :stage, :allowed, :trips, :cool_down_at, :reason, :now)"
                " on conflict (route, destination) do update set stage = excluded.stage, allowed = excluded.allowed,"
                " trips = excluded.trips, cool_down_until = excluded.cool_down_until, reason = excluded.reason,"
                " stage_at = excluded.stage_at"
            ),
            {
                "destination": gate.destination,
                "stage": step.stage,
                "allowed": step.allowed,
                "trips": step.trips,
                "cool_down_at": step.cool_down_until,
                "reason": step.reason,
            },
        )
        _forget(tx, gate.destination)
        record_event(
            tx,
            action=Action.STEP_BREAKER,
            count=gate.waiting,
            selection={"destination": gate.destination, "from": gate.stage, "to": step.stage, "allowed": step.allowed},
            reason=step.reason,
        )


def release(ledger: Ledger, route: str, destination: str, *, by: str, now: datetime) -> bool:
    """A person lets a stopped destination have messages again, a few first, and one that has had a few as many as come:
    where nobody tells its depth, what became of those may never be known. False where its breaker is closed."""
    values = {"destination": destination, "reason": f"released by {by}"}
    with ledger.by(by, now, route=route) as tx:
        changed = tx.execute(
            sql(
                "update destination_state set cool_down_until = :now where route = :route"
                " and destination = :destination and stage = 'tripped'"
            ),
            values,
        ).rowcount
        opened = tx.execute(
            sql(
                "update destination_state set stage = 'open', allowed = 0, cool_down_until = null, reason = :reason,"
                " stage_at = :now where route = :route and destination = :destination and stage = 'half_open'"
            ),
            values,
        ).rowcount
        if opened:
            _forget(tx, destination)
        changed += opened
        if changed:
            record_event(tx, Action.RELEASE_GATE, selection={"destination": destination})
    return bool(changed)


def quota(connection: Connection, route: str, destination: str) -> int | None:
    """How many messages the breaker lets go to ``destination`` now, beside those claimed already; None: any number."""
    row = connection.execute(
        sql(
            "select stage, allowed, coalesce((select sum(sent) from destination_outcomes o where o.route = s.route"
            " and o.destination = s.destination), 0) as sent, coalesce((select sum(claimed) from delivery_slices d"
            " where d.route = s.route and d.destination = s.destination and d.closed_at is null), 0) as claimed"
            " from destination_state s where s.route = :route and s.destination = :destination"
        ),
        {"route": route, "destination": destination},
    ).first()
    if row is None or row.stage == "open":
        return None
    return 0 if row.stage == "tripped" else max(0, int(row.allowed) - int(row.sent) - int(row.claimed))


# --- what becomes of sends; each within the transaction of whoever learned it -----------------------------


def count_sent(tx: RunTransaction, slice_id: int) -> None:
    """The sends of a slice that is being closed."""
    _add(tx, "sent", "attempts.slice_id = :slice_id", {"slice_id": slice_id})


def uncount_sent(tx: RunTransaction, which: str, values: dict[str, Any]) -> None:
    """Attempts (``which``, SQL over ``attempts``) whose outcome nobody will know: others go in their place."""
    _add(tx, "sent", which, values, by="-count(*)")


def count_stayed(tx: RunTransaction, which: str, values: dict[str, Any]) -> None:
    """Attempts (``which``, SQL over ``attempts``) without an outcome of which one is about to be known: they stayed."""
    _add(tx, "stayed", f"attempts.outcome is null and ({which})", values)


def count_returned(tx: RunTransaction) -> None:
    """The returns in table ``incoming``, before they are written into their attempts.

    What was put into a delay queue did not fail, and tells nothing of the destination.
    """
    came_back = (
        "from incoming inner join redelivery_attempts attempts on attempts.message_id = incoming.owner"
        f" and attempts.attempt = incoming.redrive_attempt where incoming.role = 'returned' and {_OF_THIS_STAGE}"
        " group by attempts.route, attempts.destination, coalesce(attempts.group_id, 0)"
    )
    tx.execute(
        sql(
            "insert into destination_outcomes (route, destination, group_id, sent, stayed, returned)"
            " select attempts.route, attempts.destination, coalesce(attempts.group_id, 0),"
            " sum(case when incoming.kind = 'dead_letter' then 0 else -1 end),"
            " sum(case when incoming.prior_outcome in ('presumed', 'confirmed') then -1 else 0 end),"
            f" sum(case when incoming.kind = 'dead_letter' then 1 else 0 end) {came_back}"
            " on conflict (route, destination, group_id) do update set"
            " sent = destination_outcomes.sent + excluded.sent,"
            " stayed = case when destination_outcomes.stayed + excluded.stayed < 0 then 0"
            " else destination_outcomes.stayed + excluded.stayed end,"
            " returned = destination_outcomes.returned + excluded.returned"
        )
    )


def remember(tx: RunTransaction, most: int) -> None:
    """Of open destinations keep only so many outcomes in mind, in their proportion: what matters is what is new."""
    tx.execute(
        sql(
            "update destination_outcomes set sent = sent - stayed - returned + stayed * cast(:most as bigint) / total.n"
            " + returned * cast(:most as bigint) / total.n, stayed = stayed * cast(:most as bigint) / total.n,"
            " returned = returned * cast(:most as bigint) / total.n"
            " from (select destination as name, sum(stayed + returned) as n from destination_outcomes"
            " where route = :route group by destination) total where route = :route and destination = total.name"
            " and total.n > :most and not exists (select 1 from destination_state state where state.route = :route"
            " and state.destination = total.name and state.stage <> 'open')"
        ),
        {"most": most},
    )


def _add(tx: RunTransaction, column: str, which: str, values: dict[str, Any], *, by: str = "count(*)") -> None:
    tx.execute(
        sql(
            f"insert into destination_outcomes (route, destination, group_id, {column})"
            f" select attempts.route, attempts.destination, coalesce(attempts.group_id, 0), {by}"
            f" from redelivery_attempts attempts where {which} and {_OF_THIS_STAGE}"
            " group by attempts.route, attempts.destination, coalesce(attempts.group_id, 0)"
            " on conflict (route, destination, group_id) do update set"
            f" {column} = destination_outcomes.{column} + excluded.{column}"
        ),
        values,
    )


def _forget(tx: Transaction, destination: str) -> None:
    tx.execute(
        sql("delete from destination_outcomes where route = :route and destination = :destination"),
        {"destination": destination},
    )
