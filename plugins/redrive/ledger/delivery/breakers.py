"""Breakers: the gate of each group and the breaker of each destination, at their stages.

How many of a stage were sent, stayed away and came back is written nowhere. It is counted, whenever it is asked, from
the attempts that carry the stage (:mod:`redrive.ledger.delivery.counting`).

Outcomes of a destination are told by group, because one group that keeps coming back says something of that group; that
several do says something of the destination.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection, Row

from redrive.audit_actions import Action
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import COUNTS, NEWEST_OF_ROUTE
from redrive.ledger.transactions import RouteLease, RunTransaction, Transaction
from redrive.policy import gates
from redrive.policy.gates import Counts, Outcomes, Stage, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGate(Counts):
    """A group's gate as the ledger holds it, with what is open behind it.

    ``waiting`` are its messages that are waiting, sending or unknown.
    """

    stage_id: int  # of the stage that it was read at, and of no other one, before or after
    admits: int  # how often places were given away until it was read
    group_id: int
    cause: str
    reason: str | None
    released: int  # of those that wait or are held, the ones that a person released
    sending: int = 0  # of those that are ``waiting``
    unknown: int = 0  # likewise
    next_due_at: datetime | None = None  # when the first of the others is due


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationGate(Counts):
    """A destination's breaker as the ledger holds it.

    ``waiting`` are the messages that are due there or will be; it holds none back itself.
    """

    stage_id: int  # of the stage that it was read at, and of no other one, before or after
    destination: str
    reason: str | None
    outcomes: tuple[Outcomes, ...]  # of each group


#: So many gates are asked for in one statement.
_AT_ONCE = 500


# --- as they are ------------------------------------------------------------------------------------------

#: Each gate with what counts for it, and what is open behind it; of ``{one}``, or of all.
_GATES = """
select
    breakers.stage_id, breakers.admits, gate.group_id, failure_groups.cause, gate.stage, gate.allowed, gate.sent,
    gate.stayed, gate.returned, gate.trips, gate.cool_down_until, gate.reason, coalesce(open.waiting, 0) as waiting,
    coalesce(open.held, 0) as held, coalesce(open.released, 0) as released, coalesce(open.sending, 0) as sending,
    coalesce(open.unknown, 0) as unknown, open.next_due_at
from group_state gate
inner join breakers on breakers.route = gate.route and breakers.group_id = gate.group_id
inner join failure_groups on failure_groups.group_id = gate.group_id
left join (
    select
        group_id,
        sum(case when state = 'held' then 0 else 1 end) as waiting,
        sum(case when state = 'held' then 1 else 0 end) as held,
        sum(case when plan = 'release' then 1 else 0 end) as released,
        sum(case when state = 'sending' then 1 else 0 end) as sending,
        sum(case when state = 'unknown' then 1 else 0 end) as unknown,
        min(case when state = 'waiting' then next_attempt_at end) as next_due_at
    from messages
    where route = :route and state in ('waiting', 'sending', 'unknown', 'held') and kind <> 'delay' {one}
    group by group_id
) open on open.group_id = gate.group_id
where gate.route = :route
order by gate.group_id
"""


def of_groups(connection: Connection, route: str) -> list[GroupGate]:
    """All gates of the route with what is waiting and held behind them."""
    return _gates(connection, _GATES.format(one=""), {"route": route})


def of_group(connection: Connection, route: str, group_id: int) -> GroupGate | None:
    """As :func:`of_groups`, of one group; None where it has no gate on this route."""
    gates = _gates(
        connection,
        f"select * from ({_GATES.format(one='and group_id = :group_id')}) gates where group_id = :group_id",
        {"route": route, "group_id": group_id},
    )
    return gates[0] if gates else None


def _gates(connection: Connection, statement: str, values: Mapping[str, Any]) -> list[GroupGate]:
    return [
        GroupGate(**_as_read(row) | {"next_due_at": parse_instant(row.next_due_at)})
        for row in connection.execute(sql(statement), values)
    ]


def has_gates_at(connection: Connection, route: str, *stages: Stage) -> bool:
    """Whether any group's gate is at one of ``stages``: that is known without counting what is behind them."""
    marks = {f"stage_{i}": stage.value for i, stage in enumerate(stages)}
    found = connection.execute(
        sql(
            "select exists (select 1 from breakers where route = :route and group_id is not null and stage in"
            f" ({', '.join(':' + mark for mark in marks)}))"
        ),
        {"route": route, **marks},
    ).scalar()
    return bool(found)


def _as_read(row: Row[Any]) -> dict[str, Any]:
    return {
        **row._mapping,
        "stage": Stage(row.stage),
        "cool_down_until": parse_instant(row.cool_down_until),
    }


#: What counts for the breaker of each destination, by group.
_OUTCOMES_BY_GROUP = f"""
select
    breakers.destination,
    count(*) as sent,
    count(case when attempts.outcome in ('presumed', 'confirmed') then 1 end) as stayed,
    count(case when attempts.outcome = 'returned' then 1 end) as returned
from breakers
inner join redelivery_attempts attempts on attempts.destination_stage = breakers.stage_id
where
    breakers.route = :route and breakers.destination is not null
    and {COUNTS}
group by breakers.destination, attempts.group_id
order by breakers.destination, attempts.group_id
"""
#: Each breaker of a destination, and how many messages wait to be sent there.
_DESTINATIONS = """
select
    breakers.stage_id, breakers.destination, stage, allowed, trips, cool_down_until, reason,
    coalesce(due.waiting, 0) as waiting
from breakers
left join (
    select destination, count(*) as waiting from messages where route = :route and state = 'waiting'
    group by destination
) due on due.destination = breakers.destination
where breakers.route = :route and breakers.destination is not null
order by breakers.destination
"""


def of_destinations(connection: Connection, route: str) -> list[DestinationGate]:
    """The breakers of all destinations that the route has sent to."""
    outcomes: dict[str, list[Outcomes]] = defaultdict(list)
    for row in connection.execute(sql(_OUTCOMES_BY_GROUP), {"route": route}):
        outcomes[row.destination].append(Outcomes(row.sent, row.stayed, row.returned))
    return [
        DestinationGate(
            **_as_read(row),
            sent=sum(one.sent for one in outcomes[row.destination]),
            stayed=sum(one.stayed for one in outcomes[row.destination]),
            returned=sum(one.returned for one in outcomes[row.destination]),
            held=0,
            outcomes=tuple(outcomes[row.destination]),
        )
        for row in connection.execute(sql(_DESTINATIONS), {"route": route}).all()
    ]


#: What an open breaker let go, slice by slice, each by group. What is awaited counts for no stage yet: it is counted in
#: the slices of the stage that are watched, as long as anybody may learn of it. Of slices from before the stage of
#: which something came back late all that is known is counted, and of the others of the stage what the breaker
#: remembers, together and first.
_SLICES = f"""
with breaker as (select * from breakers where stage_id = :stage_id),

seen as (
    select slice_id from delivery_slices
    where
        route = :route and observed_at is null and claimed_at > :since_at
        and slice_id > (select stage_slice from breaker)
    union
    select slice_id from redelivery_attempts attempts
    where
        {{column}} = :stage_id and outcome = 'returned' and {COUNTS}
        and slice_id <= (select stage_slice from breaker)
),

counted as (
    select attempts.slice_id, attempts.group_id, attempts.outcome
    from redelivery_attempts attempts
    inner join delivery_slices slices on slices.slice_id = attempts.slice_id
    where
        attempts.slice_id in (select slice_id from seen) and {{of_breaker}} and {COUNTS}
        and (attempts.outcome is not null or attempts.sent_at is not null and slices.observed_at is null)
    union all
    select 0 as slice_id, attempts.group_id, attempts.outcome
    from redelivery_attempts attempts
    inner join delivery_slices slices on slices.slice_id = attempts.slice_id
    where
        attempts.{{column}} = :stage_id and slices.observed_at is not null
        and attempts.slice_id > (select stage_slice from breaker) and {COUNTS}
)

select
    slice_id,
    group_id,
    count(*) as sent,
    count(case when outcome in ('presumed', 'confirmed') then 1 end) as stayed,
    count(case when outcome = 'returned' then 1 end) as returned
from counted
group by slice_id, group_id
order by slice_id, group_id
"""


def slices_of(
    connection: Connection, route: str, breaker: GroupGate | DestinationGate, *, since: datetime
) -> list[dict[Hashable, Outcomes]]:
    """What an open breaker let go at its stage, slice by slice, each by group. What is awaited of slices that were
    claimed before ``since`` is left out, and with it what is known of them."""
    if isinstance(breaker, GroupGate):
        column, of_breaker = "group_stage", "attempts.group_id = :group_id"
        values: dict[str, int | str] = {"group_id": breaker.group_id}
    else:
        column, of_breaker = "destination_stage", "attempts.destination = :destination"
        values = {"destination": breaker.destination}
    found: dict[int, dict[Hashable, Outcomes]] = defaultdict(dict)
    for row in connection.execute(
        sql(_SLICES.format(column=column, of_breaker=of_breaker)),
        {**values, "route": route, "stage_id": breaker.stage_id, "since_at": since},
    ):
        found[row.slice_id][row.group_id] = Outcomes(row.sent, row.stayed, row.returned)
    return list(found.values())


#: The breaker of a destination with the places of its stage that are taken: by what was sent, and by what is claimed.
_PLACES = f"""
select
    stage, allowed, trips,
    (
        select count(*) from redelivery_attempts attempts
        where
            attempts.destination_stage = breakers.stage_id
            and {COUNTS}
    ) as sent,
    (
        select coalesce(sum(claimed), 0) from delivery_slices slices
        where
            slices.route = breakers.route and slices.destination = breakers.destination
            and slices.closed_at is null
    ) as claimed
from breakers
where route = :route and destination = :destination and stage <> 'open'
"""


def quota(connection: Connection, route: str, destination: str, *, own: int = 0) -> int | None:
    """How many messages the breaker lets go to ``destination`` now, beside those claimed already but for ``own`` of
    them; None: any number."""
    row = connection.execute(sql(_PLACES), {"route": route, "destination": destination}).first()
    if row is None:
        return None
    return gates.quota(
        Counts(
            Stage(row.stage),
            row.allowed,
            row.sent,
            0,
            0,
            row.trips,
            cool_down_until=None,
            waiting=row.claimed - own,
            held=0,
        )
    )


# --- stages -----------------------------------------------------------------------------------------------

#: The gates of the groups of messages that match ``{which}``, where they have none yet.
_ADD_GATES = f"""
insert into breakers (route, group_id, stage, allowed, reason, stage_at, began_at, stage_slice, began_slice)
select distinct
    route, group_id, :stage, :allowed, cast(:reason as text), :begins_at, :begins_at, {NEWEST_OF_ROUTE},
    {NEWEST_OF_ROUTE}
from messages
where route = :route and {{which}} and group_id is not null
on conflict (route, group_id) do nothing
"""


def _add_gates(tx: RunTransaction, which: str, *, first: int | None, reason: str | None = None) -> int:
    values = {**_beginning(first), "begins_at": tx.now, "reason": reason}
    return int(tx.execute(sql(_ADD_GATES.format(which=which)), values).rowcount)


def _beginning(first: int | None) -> dict[str, Any]:
    """The stage at which a gate begins: a canary of ``first``, or open when None."""
    return {"stage": Stage.OPEN if first is None else Stage.CANARY, "allowed": first or 0}


def open_gates(ledger: Ledger, lease: RouteLease, *, first: int | None, now: datetime) -> int:
    """Give every group of which something is to be planned a gate, if it has none yet: a canary of ``first``, or open
    when None. So begins also a canary that is allowed nothing yet."""
    with ledger.under(lease, now) as tx:
        tx.execute(
            sql(
                "update breakers set stage = :stage, allowed = :allowed"
                " where route = :route and stage = 'canary' and allowed = 0"
            ),
            _beginning(first),
        )
        return _add_gates(tx, "state = 'classified'", first=first)


def unmoved(tx: RunTransaction, gates: Iterable[GroupGate]) -> set[int]:
    """Of groups those whose gates are still at the stages that they were read at; until the transaction ends nobody
    moves these. The others were moved meanwhile, by a person for whom nobody waits: what was decided about the stage
    before is not to be done."""
    stages, found = {gate.group_id: gate.stage_id for gate in gates}, set[int]()
    groups = sorted(stages)
    for start in range(0, len(groups), _AT_ONCE):
        some = ", ".join(str(int(group)) for group in groups[start : start + _AT_ONCE])
        rows = tx.execute(
            sql(
                f"select group_id, stage_id from breakers where route = :route and group_id in ({some})"
                f" order by group_id{tx.dialect.for_update}"
            )
        )
        found.update(row.group_id for row in rows if stages[row.group_id] == row.stage_id)
    return found


def take_places(tx: RunTransaction, gates: Iterable[GroupGate]) -> set[int]:
    """Of groups those whose gates nobody admitted anything through since they were read: what was free then is to be
    given away here. The others have given theirs away, as another try of the same task did."""
    admits = {gate.group_id: gate.admits for gate in gates}
    groups, found = sorted(admits), set[int]()
    for start in range(0, len(groups), _AT_ONCE):
        some = ", ".join(f"({int(group)}, {int(admits[group])})" for group in groups[start : start + _AT_ONCE])
        rows = tx.execute(
            sql(
                "update breakers set admits = admits + 1 where route = :route and group_id is not null"
                f" and (group_id, admits) in (values {some}) returning group_id"
            )
        )
        found.update(rows.scalars())
    return found


def add_destination(tx: RunTransaction, destination: str) -> None:
    """See to it that a destination has a breaker: an open one, before anything is sent there."""
    tx.execute(
        sql(
            "insert into breakers (route, destination, stage, stage_at, began_at, stage_slice, began_slice) values"
            f" (:route, :destination, 'open', :now, :now, {NEWEST_OF_ROUTE}, {NEWEST_OF_ROUTE})"
            " on conflict (route, destination) do nothing"
        ),
        {"destination": destination},
    )


#: The next stage of one breaker, if it is at the one that it was read at. What leaves ``tripped`` is tried anew: what
#: was sent before tells nothing of it. That a group failed, or tripped with what people released, is remembered.
_STEP = f"""
update breakers set
    stage = :stage, period = period + 1, allowed = :allowed, trips = :trips, cool_down_until = :cool_down_at,
    reason = :reason, stage_at = :now, began_at = case when stage = 'tripped' then :now else began_at end,
    stage_slice = {NEWEST_OF_ROUTE},
    began_slice = case when stage = 'tripped' then {NEWEST_OF_ROUTE} else began_slice end,
    failed_at = case
        when :fails or :trips_group and exists (
            select 1 from redelivery_attempts where group_stage = breakers.stage_id and mode = 'release'
        ) then :now
        else failed_at
    end
where route = :route and (group_id = :group_id or destination = :destination) and stage_id = :stage_id
returning stage_id
"""


def take_step(
    ledger: Ledger, lease: RouteLease, breaker: GroupGate | DestinationGate, step: Step, now: datetime
) -> int | None:
    """Move a breaker to another stage, for which nothing counts yet; its ``stage_id``.

    None where it is not at the stage any more that it was read at: a person released it meanwhile, and that holds.
    """
    which: dict[str, int | str]
    fails = trips_group = False
    if isinstance(breaker, GroupGate):
        trips_group = step.stage == Stage.TRIPPED
        fails = step.stage == Stage.FAILED or (trips_group and breaker.released > 0)
        action, behind, which = Action.STEP_GATE, breaker.waiting + breaker.held, {"group_id": breaker.group_id}
    else:
        action, behind, which = Action.STEP_BREAKER, breaker.waiting, {"destination": breaker.destination}
    values = {
        "group_id": None,
        "destination": None,
        **which,
        "stage_id": breaker.stage_id,
        "stage": step.stage,
        "allowed": step.allowed,
        "trips": step.trips,
        "cool_down_at": step.cool_down_until,
        "reason": step.reason,
        "fails": fails,
        "trips_group": trips_group,
    }
    with ledger.under(lease, now) as tx:
        stage_id: int | None = tx.execute(sql(_STEP), values).scalar()
        if stage_id is None:
            return None
        record_event(
            tx,
            action=action,
            count=behind,
            selection={**which, "from": breaker.stage, "to": step.stage, "allowed": step.allowed},
            reason=step.reason,
        )
    return stage_id


def begin_anew(
    tx: Transaction,
    stage: Stage,
    *,
    allowed: int,
    reason: str,
    which: str,
    values: Mapping[str, Any] | None = None,
) -> int:
    """Begin a series of stages of the route's breakers that match ``which`` (SQL over ``breakers``); how many."""
    return int(
        tx.execute(
            sql(
                "update breakers set stage = :stage, period = period + 1, allowed = :allowed, cool_down_until = null,"
                f" trips = 0, reason = :reason, stage_at = :now, began_at = :now, stage_slice = {NEWEST_OF_ROUTE},"
                f" began_slice = {NEWEST_OF_ROUTE} where route = :route and {which}"
            ),
            {**(values or {}), "stage": stage, "allowed": allowed, "reason": reason},
        ).rowcount
    )


def release_group(ledger: Ledger, route: str, group_id: int, *, first: int | None, by: str, now: datetime) -> bool:
    """A person lets a group try its canary again (``first`` None: opens it); False when it has no gate."""
    with ledger.by(by, now, route=route) as tx:
        changed = begin_anew(
            tx,
            **_beginning(first),
            reason=f"{by} released it.",
            which="group_id = :group_id",
            values={"group_id": group_id},
        )
        if changed:
            record_event(tx, Action.RELEASE_GATE, selection={"group_id": group_id})
    return bool(changed)


def release_destination(ledger: Ledger, route: str, destination: str, *, by: str, now: datetime) -> bool:
    """A person lets a stopped destination have messages again, a few first, and one that has had a few as many as come:
    where nobody tells its depth, what became of those may never be known. False where its breaker is closed."""
    values = {"destination": destination}
    with ledger.by(by, now, route=route) as tx:
        changed = end_cool_down(tx, "destination = :destination", values)
        changed += begin_anew(
            tx,
            Stage.OPEN,
            allowed=0,
            reason=f"{by} released it.",
            which="destination = :destination and stage = 'half_open'",
            values=values,
        )
        if changed:
            record_event(tx, Action.RELEASE_GATE, selection=values)
    return bool(changed)


def end_cool_down(tx: Transaction, which: str = "true", values: Mapping[str, Any] | None = None) -> int:
    """The route's tripped breakers that match ``which`` (SQL over ``breakers``) may be tried at once; how many."""
    return int(
        tx.execute(
            sql(f"update breakers set cool_down_until = :now where route = :route and stage = 'tripped' and {which}"),
            values,
        ).rowcount
    )


def regate(tx: RunTransaction, released: str, *, first: int | None) -> int:
    """The gates of the groups of which people ``released`` messages (SQL that selects their ids) go back to a canary,
    unless they are tried already (``first`` None: they open): a fix is a claim, not a fact. A group that people were
    asked about before anything of it was planned gets its gate here. How many gates."""
    of_released, reason = tx.dialect.few("message_id", released), "People released messages of it."
    begun = begin_anew(
        tx,
        **_beginning(first),
        reason=reason,
        which="group_id is not null and stage in ('failed', 'tripped', 'open') and group_id in"
        f" (select group_id from messages where {of_released})",
    )
    return begun + _add_gates(tx, of_released, first=first, reason=reason)


def move_route(tx: RunTransaction, reason: str) -> None:
    """The route's queues are elsewhere now: destinations there are new ones, and groups begin with a canary to which
    the plan will allow its first few (:func:`open_gates`)."""
    tx.execute(sql("delete from breakers where route = :route and destination is not null"))
    begin_anew(
        tx,
        Stage.CANARY,
        allowed=0,
        reason=reason,
        which="group_id is not null and stage in ('canary', 'ramp', 'open')",
    )
