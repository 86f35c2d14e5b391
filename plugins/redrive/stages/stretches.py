"""Lanes that go through what is due together, so that files in which their messages lie mixed are read once.

All dead letters of a system often lie in one queue, message by message for another destination. A slice for each would
read all files, for each destination anew. So where lanes are many, the next due messages of all of them are read, as
many as fit into memory: a stretch. Each lane then has its slices of that, until they all go on to the next one.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from redrive.errors import StagingError
from redrive.ledger.delivery import lanes
from redrive.ledger.delivery.lanes import Lane, NativeDelay
from redrive.ledger.drain import batches
from redrive.message import MAX_ROWS, ROW_BITS, DeadLetter
from redrive.stages.context import Context

if TYPE_CHECKING:
    from redrive.staging.batch_files import Payloads

#: Fewer lanes read the files one after the other: as they go, and each as far as it gets.
MANY_LANES = 4
#: What a stretch takes in memory, but for a row group, and what a message is thought to take of that beside its body;
#: of those that take more the last ones are not kept.
STRETCH_BYTES = 64 * 1024 * 1024
BESIDE_BODY = 1024
#: Due messages that are looked up at once.
PAGE = 20_000

#: A destination, and the cause of a lane that is claimed apart.
LaneName = tuple[str, str | None]


class Span(NamedTuple):
    """Where in what is due a lane's next slice may be: message ids above ``after``, and up to ``until`` if there is."""

    after: int
    until: int | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """The copies of due messages with ids in ``span``, as far as they can be read."""

    span: Span
    last: Mapping[str, int]  # by destination: its last message
    payloads: Mapping[int, "Payloads"]  # by batch

    def letters(self, batch_id: int, rows: Sequence[int]) -> Iterator[list[DeadLetter]] | None:
        """The copies at ``rows`` of a batch; None where not all of them are at hand: some became due since, or
        take more room than was thought."""
        found = self.payloads.get(batch_id)
        return found.letters(rows) if found is not None else None


class Course:
    """How far each lane got, and the stretch that they are in; without one each has all that is due before it.

    Not ``together`` they go where little of what is due may be claimed: to read all of it would be for nothing.
    """

    def __init__(self, due: Iterable[Lane], *, together: bool = True) -> None:
        self.stretch: Stretch | None = None
        self._least = MANY_LANES if together else sys.maxsize
        self._reached: dict[LaneName, int] = {(lane.destination, lane.cause): -1 for lane in due}
        self._turn: list[LaneName] = []

    def __bool__(self) -> bool:
        return bool(self._reached)

    def turn(self) -> list[LaneName]:
        """The lanes that may have something up to the end of the stretch. Unknown sends that are to be repeated are in
        no stretch, and a lane's first slice may be of them."""
        if self.stretch is None:
            self._turn = list(self._reached)
            return self._turn
        begin, last = self.stretch.span.after, self.stretch.last
        self._turn = [
            lane
            for lane, reached in self._reached.items()
            if reached < 0 or reached < begin or reached < last.get(lane[0], -1)
        ]
        return self._turn

    def following(self, lane: LaneName) -> LaneName:
        """The lane whose turn is next, as far as that can be told: in this turn, or first in another."""
        after = self._turn.index(lane) + 1
        return next(one for one in (*self._turn[after:], *self._turn[:after]) if one in self._reached)

    def others(self, lanes: AbstractSet[LaneName]) -> list[LaneName]:
        """The lanes that are not among ``lanes`` and have a stretch before them."""
        if self.stretch is None or self.stretch.span.until is None:
            return []
        return [lane for lane in self._reached if lane not in lanes]

    def span(self, lane: LaneName) -> Span:
        """Where the lane's next slice may be."""
        return Span(self._reached[lane], self.stretch.span.until if self.stretch else None)

    def reach(self, lane: LaneName, message_id: int) -> None:
        """The lane's slice ended there."""
        self._reached[lane] = message_id

    def leave(self, lane: LaneName) -> None:
        """Nothing more of the lane can go: of this stretch, or at all where no other follows."""
        if self.stretch is None or self.stretch.span.until is None:
            self.drop(lane)
        else:
            self._reached[lane] = max(self._reached[lane], self.stretch.span.until)

    def drop(self, lane: LaneName) -> None:
        """Nothing goes to the lane's destination any more."""
        del self._reached[lane]

    def go_on(self, context: Context, ahead: NativeDelay | None) -> bool:
        """Enter the next stretch; False where there is none. What was behind the last one goes on from where it is."""
        begin: int | None = self.stretch.span.until if self.stretch is not None else -1
        if begin is None:
            return False
        if len(self._reached) < self._least:
            was, self.stretch = self.stretch, None
            return was is not None
        self.stretch = None  # never two in memory because of us
        self.stretch = _read(context, begin, {lane[0] for lane in self._reached}, ahead)
        if self.stretch.span.until is None:
            for lane in self._reached.keys() - set(self.turn()):
                self.drop(lane)
        return True


def _read(context: Context, after: int, destinations: AbstractSet[str], ahead: NativeDelay | None) -> Stretch:
    """The next stretch of what is due for ``destinations``."""
    chosen, last, size, until = list[int](), dict[str, int](), 0, after
    end = False
    while size < STRETCH_BYTES and not end:
        with context.ledger.read() as connection:
            page = lanes.next_due(connection, context.name, context.now(), until, PAGE, context.selection, ahead)
        for message_id, destination, body_bytes in page:
            until = message_id
            if destination is not None and destination in destinations:
                chosen.append(message_id)
                last[destination] = message_id
                size += body_bytes + BESIDE_BODY
                if size >= STRETCH_BYTES:
                    break
        else:
            end = len(page) < PAGE
    return Stretch(Span(after, None if end else until), last, _payloads(context, chosen))


def _payloads(context: Context, message_ids: Sequence[int]) -> dict[int, "Payloads"]:
    """The copies of these messages. What can't be read is left to the slice that needs it, which says so."""
    rows: dict[int, list[int]] = {}
    for message_id in message_ids:
        rows.setdefault(message_id >> ROW_BITS, []).append(message_id & (MAX_ROWS - 1))
    with context.ledger.read() as connection:
        paths = batches.paths(connection, set(rows))
    found: dict[int, Payloads] = {}
    room = STRETCH_BYTES
    for batch_id, some in rows.items():
        try:
            if room > 0 and batch_id in paths:
                found[batch_id] = context.staging.payloads(paths[batch_id], some, room)
                room -= found[batch_id].bytes
        except StagingError:
            context.staging.close()  # not to be read on from where it failed
    return found
