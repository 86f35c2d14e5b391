"""How much more a destination takes: what it still has to work off, and what all tasks' claims may take."""

from collections.abc import Mapping
from typing import NamedTuple

from redrive.brokers.base import Depth
from redrive.ledger.delivery import claims, in_flight, lanes
from redrive.ledger.delivery.claims import Room
from redrive.stages.context import Context
from redrive.stages.rates import Rate


class _Unsettled(NamedTuple):
    """Sends without a known outcome, as a task found them, and by cause what more may go."""

    to: in_flight.SendTarget
    newest: int  # of the route's own slices
    sent: dict[int, int]  # of slices that were open: how much of them
    sends: int
    rooms: dict[str, int]


class Rooms:
    """The room of each destination, as one delivery task sees it; ``arrived`` counts by destination what it sent."""

    def __init__(self, context: Context, arrived: Mapping[str, int]) -> None:
        self._context = context
        self._arrived = arrived
        self._found: dict[str, _Unsettled] = {}  # by destination

    def tells(self, depth: Depth) -> bool:
        """Whether a depth tells what lies there, and what the broker keeps for it elsewhere, which comes too."""
        return depth.visible is not None and (depth.delayed is not None or not self._context.route.backoff.native)

    def in_flight(self, destination: str, depth: Depth) -> int:
        """What the destination still has to work off: what the broker tells, and what it keeps for it elsewhere.

        Of a destination that doesn't tell, all counts as still there that was sent without a known outcome when this
        task began, by whichever run; what is claimed from then on takes of the room. Where only is told what lies
        ready, this task's own sends may be with consumers.
        """
        if depth.visible is None or not self.tells(depth):
            return self._unsettled(destination).sends
        if depth.total is None:
            return max(depth.visible, self._arrived.get(destination, 0))
        unseen = 0
        if self._context.route.backoff.native:  # what the broker keeps somewhere else comes all the same
            with self._context.ledger.read() as connection:
                kept = lanes.kept_by_broker(connection, self._context.name, destination, self._context.now())
            unseen = max(0, kept - (depth.delayed or 0))
        return depth.total + unseen

    def of_claim(self, destination: str, cause: str | None, rate: Rate, depth: Depth, seen: Room) -> list[Room]:
        """What all tasks' claims may take: of what the depth showed, or where there is none of what the ledger knew."""
        if depth.total is not None:
            return [seen]
        if self.tells(depth):
            return []
        found = self._unsettled(destination)
        rooms = [Room(seen.free, seen.least, found.newest, found.sent)]
        if cause is not None and rate.starts_at_one:
            if cause not in found.rooms:
                with self._context.ledger.read() as connection:
                    found.rooms[cause] = in_flight.room_of_cause(
                        connection, found.to, cause, self._context.now(), most=rate.max_in_flight
                    )
            rooms.append(Room(found.rooms[cause], 1, found.newest, found.sent, cause))
        return rooms

    def _unsettled(self, destination: str) -> _Unsettled:
        """What was sent to a destination that tells no depth, and has no known outcome, as this task found it first."""
        if destination not in self._found:
            context = self._context
            with context.ledger.read() as connection:
                newest, sent = claims.seen(connection, context.name)
                to = in_flight.SendTarget(context.name, destination, in_flight.newest_slice(connection))
                sends = in_flight.sends(connection, to, context.now(), most=context.route.rate.max_in_flight)
            self._found[destination] = _Unsettled(to, newest, sent, sends, {})
        return self._found[destination]
