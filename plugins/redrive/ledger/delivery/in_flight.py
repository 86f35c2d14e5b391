"""What a destination that tells no depth may still have to work off: what was sent there without a known outcome.

It counts over all runs, tasks and routes that send by the same broker and connection. It ends with an outcome, with a
person's word (:func:`vouch`, or the release of the destination's breaker), and after :data:`KEPT`.
"""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.delivery import observations
from redrive.ledger.delivery.claims import OF_CAUSE
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import COUNTS, HERE, NEWEST_SLICE, WATCHED

#: A queue that tells nothing keeps its messages so long, unless told otherwise. Of what was sent before, nobody will
#: ever learn more by waiting.
KEPT: Final = timedelta(days=7)

_WENT_THERE: Final = (
    "slices.destination = :destination and slices.claimed_at > :since_at and slices.slice_id <= :newest"
    f" and slices.system = {HERE}"
)
_WENT: Final = "(attempts.sent_at is not null or attempts.unknown_at is not null)"


@dataclass(frozen=True, slots=True)
class SendTarget:
    """A destination to which a route sends, and the slice up to which its sends are counted."""

    route: str
    destination: str
    newest: int


def newest_slice(connection: Connection) -> int:
    """The newest slice of all routes, for a :class:`SendTarget`."""
    return int(connection.execute(sql(f"select {NEWEST_SLICE}")).scalar_one())


def sends(connection: Connection, to: SendTarget, now: datetime, *, most: int) -> int:
    """How many sends may still be with the destination; ``most`` and more count as ``most``."""
    values = _values(to, now) | {"most": most}
    values["since_at"] = max(now - KEPT, _worked_at(connection, values) or now - KEPT)
    return _count(connection, values, "")


def room_of_cause(connection: Connection, to: SendTarget, cause: str, now: datetime, *, most: int) -> int:
    """How many messages of ``cause`` the destination may be given beside what it has of them: one, and one more for
    each that is known to have stayed since the last of them came back, up to ``most``."""
    values = _values(to, now) | {"most": most, "cause": cause}
    worked_at = _worked_at(connection, values)
    values["worked_at"] = worked_at or now - KEPT
    back = connection.execute(
        sql(
            "select max(attempts.outcome_at) from delivery_slices slices inner join redelivery_attempts attempts"
            f" on attempts.slice_id = slices.slice_id{OF_CAUSE} where {_WENT_THERE} and attempts.outcome = 'returned'"
            f" and {COUNTS}"
        ),
        values,
    ).scalar()
    values["back_at"] = parse_instant(back) or now - KEPT
    stayed = connection.execute(
        sql(
            "select count(*) from (select 1 from delivery_slices slices inner join redelivery_attempts attempts"
            f" on attempts.slice_id = slices.slice_id{OF_CAUSE} where {_WENT_THERE}"
            " and (attempts.outcome in ('confirmed', 'presumed') and attempts.outcome_at > :back_at"
            f" or attempts.outcome is null and {_WENT} and slices.claimed_at <= :worked_at"
            " and slices.claimed_at > :back_at) limit :most) stayed"
        ),
        values,
    ).scalar_one()
    values["since_at"] = max(values["since_at"], values["worked_at"])
    return min(most, 1 + int(stayed)) - _count(connection, values, OF_CAUSE)


def vouch(ledger: Ledger, route: str, destination: str, *, by: str, now: datetime) -> int:
    """A person says that ``destination`` has worked off what was sent to it; of how many sends no outcome was known.

    Where nobody tells its depth, nothing else may ever say so: the observation windows of what the route sent there
    begin now. Where its depth is told, that is what counts: then nothing is noted, and 0 is returned.
    """
    with ledger.by(by, now, route=route) as tx:
        found = to_vouch_for(tx.connection, route, destination, now)
        if found:
            tx.execute(
                sql(f"update delivery_slices set observed_from = :now where {_NOT_WORKED_PAST}"),
                {"destination": destination},
            )
            record_event(tx, Action.RELEASE_GATE, count=found, selection={"destination": destination})
    return found


def to_vouch_for(connection: Connection, route: str, destination: str, now: datetime) -> int:
    """Of how many sends :func:`vouch` would say something."""
    if observations.tells_depth(connection, route, destination):
        return 0
    newest = newest_slice(connection)
    awaited = connection.execute(
        sql(
            "select count(*) from redelivery_attempts where sent_at is not null and outcome is null"
            f" and slice_id in (select slice_id from delivery_slices where {_NOT_WORKED_PAST})"
        ),
        {"route": route, "destination": destination, "now": now},
    ).scalar_one()
    return max(sends(connection, SendTarget(route, destination, newest), now, most=1 << 31), int(awaited))


#: Over ``delivery_slices``: what the route has sent to a destination, and the broker doesn't keep any more, and of
#: which nobody has seen yet that it was worked off.
_NOT_WORKED_PAST: Final = (
    f"route = :route and {WATCHED} and observed_from is null and system = {HERE}"
    " and destination = :destination and last_sent_at <= :now"
)


def _values(to: SendTarget, now: datetime) -> dict[str, Any]:
    return {
        "route": to.route,
        "destination": to.destination,
        "newest": to.newest,
        "since_at": now - KEPT,
        "selection": json.dumps({"destination": to.destination}),
    }


def _worked_at(connection: Connection, values: dict[str, Any]) -> datetime | None:
    """When a person said last that the destination has worked."""
    return parse_instant(
        connection.execute(
            sql(
                "select max(at) from audit_events where route = :route and at > :since_at"
                " and action = 'release_gate' and selection = :selection"
            ),
            values,
        ).scalar()
    )


def _count(connection: Connection, values: dict[str, Any], more: str) -> int:
    return int(
        connection.execute(
            sql(
                "select count(*) from (select 1 from delivery_slices slices inner join redelivery_attempts attempts"
                f" on attempts.slice_id = slices.slice_id{more} where {_WENT_THERE} and slices.observed_at is null"
                f" and attempts.outcome is null and {_WENT} limit :most) unsettled"
            ),
            values,
        ).scalar_one()
    )
