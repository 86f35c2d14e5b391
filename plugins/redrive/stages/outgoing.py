"""What goes out for a claimed message: its payload from staging, its headers, its correction, its delay."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter

from redrive.brokers.base import Capabilities
from redrive.corrections import EDITED_HEADER, Correction, changed, read_changes
from redrive.errors import StagingError
from redrive.ledger.delivery.claims import Claimed, Slice
from redrive.ledger.drain import batches
from redrive.ledger.engine import parse_instant
from redrive.ledger.review import applying
from redrive.message import (
    MAX_ROWS,
    ROW_BITS,
    DeadLetter,
    Header,
    Micros,
    Outgoing,
    clean_headers,
    maker,
    tracking_headers,
)
from redrive.stages.context import Context, micros, not_sent_on
from redrive.stages.stretches import Stretch

_message_id = attrgetter("message_id")


def outgoing(
    context: Context, todo: Sequence[Claimed], claimed: Slice, stretch: Stretch | None, damaged: list[Claimed]
) -> Iterator[Outgoing]:
    """The claimed messages as they go out, in order; payloads that are not in the ``stretch`` are read from staging
    file by file.

    Those whose file turns out to be damaged are left out and added to ``damaged``.
    """
    capabilities = context.broker.capabilities_for(claimed.destination)
    edits: dict[int, Correction] = {}
    with context.ledger.read() as connection:
        paths = batches.paths(connection, {one.message_id >> ROW_BITS for one in todo})
        released = [one.message_id for one in todo if one.mode == "release"]
        if released:
            edits = applying.corrected(connection, released)
    strip = not_sent_on(context.route, capabilities)
    claimed_at: dict[object, Micros | None] = {}  # one moment per slice, but for resends
    make = maker(Outgoing)
    for together, letters in _letters(context, todo, paths, stretch, damaged):
        for one, letter in zip(together, letters, strict=True):
            body = letter.body
            headers = clean_headers(letter.headers, strip)
            edit = edits.get(one.message_id) if edits else None
            if edit is not None and edit.headers is not None:
                headers = changed(headers, read_changes(edit.headers))
            room = None if capabilities.max_headers is None else capabilities.max_headers - len(headers)
            marks = tracking_headers(one.redrive_id, one.attempt, room=room)
            if edit is not None:
                body = letter.body if edit.body is None else edit.body.encode("utf-8")
                if room is None or room > len(marks):
                    marks = (*marks, Header(EDITED_HEADER, "String", "true"))
            if one.claimed_at not in claimed_at:
                moment = parse_instant(one.claimed_at)
                claimed_at[one.claimed_at] = micros(moment) if moment else None
            yield make(
                (
                    one.message_id,
                    one.redrive_id,
                    one.attempt,
                    body,
                    headers + marks,
                    letter.properties,
                    letter.ordering_key,
                    letter.content_type,
                    None,  # dedup_id: that of the attempt
                    0.0 if one.due_at is None else _delay(one.due_at, context.now(), capabilities),
                    claimed_at[one.claimed_at],
                )
            )


def _delay(due_at: datetime | str, now: datetime, capabilities: Capabilities) -> float:
    """How long the broker is to keep a message that is not due yet: as long as it can, should that be shorter; where
    it can't keep exactly that, the next longer time."""
    moment, longest = parse_instant(due_at), capabilities.native_delay
    if moment is None or longest is None or moment <= now:
        return 0.0
    wait = min(moment - now, longest).total_seconds()
    return next((float(one) for one in capabilities.native_delays if one >= wait), wait)


def _letters(
    context: Context,
    todo: Sequence[Claimed],
    paths: dict[int, str],
    stretch: Stretch | None,
    damaged: list[Claimed],
) -> Iterator[tuple[Sequence[Claimed], list[DeadLetter]]]:
    """What was claimed with its copies, those of a row group at a time."""
    end = 0
    while end < len(todo):
        start, batch_id = end, todo[end].message_id >> ROW_BITS
        end = bisect_left(todo, (batch_id + 1) << ROW_BITS, start, key=_message_id)
        rows = [one.message_id & (MAX_ROWS - 1) for one in todo[start:end]]
        try:
            at_hand = stretch.letters(batch_id, rows) if stretch is not None else None
            for letters in at_hand or context.staging.letters(paths[batch_id], rows):
                start += len(letters)
                yield todo[start - len(letters) : start], letters
        except StagingError:
            context.staging.close()  # not to be read on from where it failed
            if not context.staging.is_damaged(paths[batch_id], rows[-1]):
                raise
            damaged += todo[start:end]
