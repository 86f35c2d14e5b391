"""Adopt: files that the ledger doesn't know are taken in as batches of their route and source, each once.

The batch is a copy of the file with an id that was never given, because the id in the file may be another batch's by
now. It goes the way of every batch: durable, then recorded; only then the file is removed. What is loaded from it goes
to people, who are told why.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from redrive.errors import StagingError, UsageError
from redrive.ledger.drain import adopting, batches
from redrive.ledger.engine import Ledger
from redrive.ledger.schema import ledger_id
from redrive.stages.context import Context

if TYPE_CHECKING:
    from redrive.staging.batch_files import BatchFile, Staging


def adopt(context: Context, *, of_ledgers: Collection[str] = (), restored: bool = False) -> dict[str, int]:
    """Take in every file of the route that has no row, of this ledger and of ``of_ledgers``.

    ``restored``: the ledger comes from a backup, so what it says waits to be sent or loaded is held for people too.
    Returns ``adopted`` files with their ``copies``, ``unfinished`` files (a writer died; nothing of them was settled),
    ``unreadable`` ones, those ``of_other_ledgers`` that were left alone, how many messages and copies are ``doubted``,
    and how many standing decisions ended. Raises :class:`~redrive.errors.UsageError` for a ledger of which there never
    was a file.
    """
    staging, now = context.staging, context.now()
    with context.ledger.read() as connection:
        own = ledger_id(connection)
        mine = {own, "", *of_ledgers}
        taken_in = {staging.ledger_of(path) for path in adopting.ever_adopted(connection)}
    _refuse_unknown(set(of_ledgers), {file.ledger_id for file in staging.batch_files()} | taken_in, own)
    found = {"adopted": 0, "copies": 0, "unfinished": 0, "unreadable": 0, "of_other_ledgers": 0, "doubted": 0}
    found["standing_decisions_ended"] = 0
    if restored:
        found |= adopting.doubt_unsent(context.ledger, context.lease, now)
    beyond = max((file.batch_id for file in staging.batch_files() if file.ledger_id in mine), default=0)
    for file in without_row(context.ledger, staging, context.name):
        if file.ledger_id not in mine:
            found["of_other_ledgers"] += 1
            continue
        try:
            written = staging.finished(file.path)
            copies = 0 if written is None else _take_in(context, file, beyond)
        except StagingError as error:
            found["unreadable"] += 1
            context.progress(f"can't be read: {error}", 0, None)
            continue
        if written is None:
            found["unfinished"] += 1
            continue
        found["adopted"] += 1
        found["copies"] += copies
        context.progress("taking in files", found["adopted"], None)
    _remove_adopted(context)
    return found


def _refuse_unknown(asked: Collection[str], known: Collection[str], own: str) -> None:
    """:class:`~redrive.errors.UsageError` where a ledger is named of which there is no file, nor ever was one: a
    mistyped one would take in nothing, in silence."""
    for one in sorted(set(asked) - {own, *known}):
        others = sorted(set(known) - {own, ""})
        there = f"there are files of {', '.join(others)}" if others else "there are files of no other ledger"
        raise UsageError(f"--ledger {one}: no staging file was written by it; {there}")


def without_row(ledger: Ledger, staging: "Staging", route: str | None) -> Iterator["BatchFile"]:
    """Batch files of a route, or of all, that no row names; those that were taken in are not among them."""
    files = list(staging.batch_files(route))  # before the rows: each file that is there now has its row by then
    with ledger.read() as connection:
        own, adopted = adopting.paths(connection, route)
    for file in files:
        # Retention removes a file before its row.
        if file.path not in own and file.path not in adopted and staging.exists(file.path):
            yield file


def _take_in(context: Context, file: "BatchFile", beyond: int) -> int:
    source, kind = context.staging.source_of(file.path)
    batch_id, path = batches.open_batch(
        context.ledger,
        context.lease,
        source=source,
        kind=kind,
        shard=0,
        path_of=context.staging.new_path,
        now=context.now(),
        beyond=beyond,
        adopted_from=file.path,
    )
    try:
        written = context.staging.copy_batch(file.path, path, batch_id)
    except StagingError:
        if batches.abandon_one(context.ledger, batch_id):
            context.staging.remove(path)
            batches.removed(context.ledger, [batch_id], context.now())
        raise
    batches.record(
        context.ledger, context.lease, batch_id, copies=written.copies, size=written.bytes, now=context.now()
    )
    return written.copies


def _remove_adopted(context: Context) -> None:
    """Files of which a recorded batch is a copy, also those that were left by a process that died."""
    with context.ledger.read() as connection:
        _, adopted = adopting.paths(connection, context.name)
    for path in sorted(adopted):
        context.staging.remove(path)
