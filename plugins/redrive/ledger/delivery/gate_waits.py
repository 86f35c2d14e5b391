"""What each gate and breaker waits for, in a sentence, and until when: what waits can say so.

The outcomes of a stage's sends come in this order: the destination works past them, the observation window passes, and
a run drains every source beyond its end. While a gate has sends of which only that last step is missing, drains read
on beyond their limit (:func:`for_what_came_back`), so that no gate waits for a backlog to be worked off.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection, Row

from redrive.ledger.delivery import breakers, observations, ordering
from redrive.ledger.delivery.breakers import GroupGate
from redrive.ledger.engine import parse_instant, sql
from redrive.ledger.predicates import HERE


@dataclass(frozen=True, slots=True)
class GateWait:
    """What one gate, of a group or of a destination, waits for."""

    group_id: int | None
    destination: str | None  # of a breaker
    stage: str
    waits_for: str  # a noun phrase
    until: datetime | None  # when that is over, as far as it is known
    stuck: bool = False  # nothing that runs can end it: a person has to do what it says


def waits(
    connection: Connection, route: str, now: datetime, gates: Sequence[GroupGate] | None = None
) -> list[GateWait]:
    """What the route's gates wait for at ``now``, none of it in the past; those that are open, and those behind which
    and before which nothing is, wait for nothing and are left out. ``gates`` are those of its groups, where they were
    read already: that goes through all that is open."""
    if gates is None:
        gates = breakers.of_groups(connection, route)
    return [*of_groups(connection, route, now, gates), *_of_destinations(connection, route, now)]


def of_groups(connection: Connection, route: str, now: datetime, gates: Sequence[GroupGate]) -> list[GateWait]:
    """As :func:`waits`, of these gates of groups."""
    pending: dict[int, list[Row[Any]]] = defaultdict(list)
    for row in connection.execute(
        sql(
            "select attempts.group_id, slices.destination, slices.system, slices.observed_from is null as unpassed,"
            f" slices.system = {HERE} as here, count(*) as n, max(slices.last_sent_at) as last_sent_at,"
            " max(slices.window_ends_at) as window_ends_at from breakers"
            " inner join redelivery_attempts attempts on attempts.group_stage = breakers.stage_id"
            " inner join delivery_slices slices on slices.slice_id = attempts.slice_id"
            " where breakers.route = :route and breakers.stage in ('canary', 'ramp')"
            " and slices.observed_at is null and attempts.outcome is null"
            " group by attempts.group_id, slices.destination, slices.system, slices.observed_from is null"
        ),
        {"route": route},
    ):
        pending[row.group_id].append(row)
    found = []
    for gate in gates:
        told = _of_group(connection, route, now, gate, pending[gate.group_id])
        if told is not None:
            words, until, stuck = told
            found.append(GateWait(gate.group_id, None, gate.stage, words, until, stuck))
    return found


def _of_destinations(connection: Connection, route: str, now: datetime) -> list[GateWait]:
    found = []
    for one in breakers.of_destinations(connection, route):
        if one.stage == "tripped":
            words = _cooling(one.cool_down_until, now)
            found.append(GateWait(None, one.destination, one.stage, words, one.cool_down_until))
        elif one.stage == "half_open":
            known = one.stayed + one.returned
            words = (
                f"{max(0, one.sent - known)} outcomes of {one.sent} sends" if one.sent else "a few messages to be sent"
            )
            if one.sent > known and not _last_seen(connection, route, one.destination)[1]:
                words += (
                    "; how much it holds is not known, so a person may have to say that it is well:"
                    f" redrive release {route} --destination {one.destination}"
                )
            found.append(GateWait(None, one.destination, one.stage, words, None))
    return found


def _of_group(
    connection: Connection,
    route: str,
    now: datetime,
    gate: GroupGate,
    pending: Sequence[Row[Any]],
) -> tuple[str, datetime | None, bool] | None:
    match gate.stage:
        case "failed":
            return f"a person, who decides what is in review once it is fixed: {_phrase(gate.reason)}", None, False
        case "tripped":
            return f"{_cooling(gate.cool_down_until, now)}: {_phrase(gate.reason)}", gate.cool_down_until, False
        case "open":
            return None
    for row in pending:
        if not row.here:
            return (
                f"{row.n} sends that went by {row.system}, where the route's queues are not any more: point it there"
                f" for a few runs, or redrive release {route} {gate.group_id}",
                None,
                True,
            )
    for row in pending:
        if row.unpassed:
            seen, told = _last_seen(connection, route, row.destination)
            release = "" if told else f"; else a person has to say so: redrive release {route} {gate.group_id}"
            return (
                f"{row.destination} to work past {row.n} sends, the last of {_at(row.last_sent_at)}; {seen}{release}",
                None,
                False,
            )
    if pending:
        return _of_window(connection, route, now, pending)
    return _of_open_messages(now, gate)


def _of_window(
    connection: Connection, route: str, now: datetime, pending: Sequence[Row[Any]]
) -> tuple[str, datetime | None, bool]:
    """Of sends that their destination has worked past."""
    ends = max((at for row in pending if (at := parse_instant(row.window_ends_at)) is not None), default=None)
    window = f"observation window of {sum(row.n for row in pending)} sends"
    if _is_over(ends, now):
        words = f"a run to drain every source beyond {_at(ends)}, when the {window} ended"
    else:
        words = f"the {window} to end at {_at(ends)} and a run after it to drain every source"
    return f"{words}; {_least_drained(connection, route)}", ends, False


def _of_open_messages(now: datetime, gate: GroupGate) -> tuple[str, datetime | None, bool] | None:
    """Of messages that can be sent, or are being sent."""
    if gate.unknown:
        return f"{gate.unknown} sends of which nobody knows whether they arrived", None, False
    if gate.sending:
        return f"the end of a delivery of {gate.sending}", None, False
    if gate.waiting:
        due = gate.next_due_at
        when = "by the next run" if _is_over(due, now) else f"the next due at {_at(due)}"
        return f"{gate.waiting} messages to be sent, {when}", due, False
    if gate.held:
        return "the next run to let some through; of those with an order key only the first may go", None, False
    return None


def _last_seen(connection: Connection, route: str, queue: str) -> tuple[str, bool]:
    """What was seen of a destination last, and whether its broker tells a depth, so that looking can say something."""
    row = observations.last_depth(connection, route, queue)
    if row is None:
        return "nobody has looked at it yet", True
    if row.depth is None:
        return (
            f"how much it holds is not known (asked at {_at(row.observed_at)}): a processed check tells, or in a queue"
            " that keeps order a later send that comes back",
            False,
        )
    estimate = "" if row.exact else ", as the broker estimates"
    return f"it held {row.depth:,} at {_at(row.observed_at)}{estimate}", True


def _least_drained(connection: Connection, route: str) -> str:
    rows = connection.execute(
        sql("select source, drained_to from source_state where route = :route order by source"), {"route": route}
    ).all()
    ends = [(parse_instant(row.drained_to), row.source) for row in rows]
    never = [source for at, source in ends if at is None]
    if never or not ends:
        return f"{never[0] if never else 'a source'} was never drained to its end"
    at, source = min((at, source) for at, source in ends if at is not None)
    return f"{source} is drained up to {_at(at)}"


def _cooling(until: datetime | None, now: datetime) -> str:
    if _is_over(until, now):
        return "the next run, which lets a few through, as its cool-down is over"
    return f"its cool-down, until {_at(until)}"


def _is_over(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment <= now


def _phrase(sentence: str | None) -> str:
    return (sentence or "nobody wrote down why").removesuffix(".")


def _at(moment: Any) -> str:
    at = parse_instant(moment)
    return "some time" if at is None else f"{at:%Y-%m-%d %H:%M} UTC"


def for_what_came_back(connection: Connection, route: str, *, drained_from: datetime) -> bool:
    """Whether a gate waits only for what the sources hold: something is held behind it, and the destination has worked
    past sends of its stage whose window ended before ``drained_from``, up to which a drain of all sources to their end
    would know.
    """
    values = {"route": route, "drained_from_at": drained_from}
    over = (
        "select slices.slice_id from delivery_slices slices where slices.route = :route and slices.observed_at is null"
        f" and slices.window_ends_at <= :drained_from_at and slices.system = {HERE}"
    )
    if connection.execute(sql(f"{over} limit 1"), values).first() is None:
        return False
    of_group = (
        "select 1 from breakers inner join redelivery_attempts attempts on attempts.group_stage = breakers.stage_id"
        " where breakers.route = :route and breakers.stage in ('canary', 'ramp')"
        f" and attempts.outcome is null and attempts.slice_id in ({over})"
        " and exists (select 1 from messages where messages.route = :route and messages.state = 'held'"
        " and messages.group_id = breakers.group_id) limit 1"
    )
    of_destination = (
        "select 1 from breakers inner join redelivery_attempts attempts on attempts.destination_stage ="
        " breakers.stage_id where breakers.route = :route and breakers.stage = 'half_open'"
        f" and attempts.outcome is null and attempts.slice_id in ({over}) limit 1"
    )
    return any(connection.execute(sql(one), values).first() is not None for one in (of_group, of_destination))


def for_their_turn(connection: Connection, route: str, *, drained_to: datetime | None, now: datetime) -> bool:
    """Whether messages with an order key are due and wait only for a drain to the end of all sources: something that
    goes before them may lie there."""
    row = connection.execute(
        sql(
            "select 1 from messages where route = :route and state = 'waiting' and next_attempt_at <= :now"
            f" and order_key is not null and not {ordering.staged('messages')} limit 1"
        ),
        {"route": route, "now": now, **ordering.values(drained_to)},
    )
    return row.first() is not None
