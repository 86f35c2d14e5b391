"""Audit: prove that it adds up, against the ledger and against the staging files themselves; and tidy up.

Retention removes whole batches, and only those of which every message is finished and old, so that what is left still
adds up.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from redrive.errors import StagingError
from redrive.ledger import balance, batches, retention
from redrive.ledger.balance import Problem
from redrive.ledger.engine import Ledger
from redrive.ledger.schema import ledger_id
from redrive.settings import Settings
from redrive.stages import adopt
from redrive.stages.context import Progress, silent

if TYPE_CHECKING:
    from redrive.staging import Staging

#: An open batch this old, or as old as the lease of its copies where that is longer, has no writer any more: a drain
#: closes its batches within half a lease.
ABANDON_AFTER = timedelta(hours=1)


@dataclass(slots=True)
class Audited:
    """What an audit found."""

    batches: int = 0
    copies: int = 0
    abandoned: int = 0
    problems: list[Problem] = field(default_factory=list)


def audit(settings: Settings, *, route: str | None = None, now: datetime, progress: Progress = silent) -> Audited:
    """Check every recorded batch's file and every number of the ledger; abandons batches whose writer is gone."""
    from redrive.staging import Staging  # noqa: PLC0415 - Arrow, which whoever only imports this does not need

    ledger, staging = Ledger(settings.database), Staging(settings.staging)
    found = Audited()
    try:
        longest = max([ABANDON_AFTER, *(one.drain.lease for one in settings.routes.values())])
        with ledger.read() as connection:
            left = batches.left_open(connection, route=route, before_fence=None, opened_before=now - longest)
            left += batches.abandoned(connection, route)
        found.abandoned = close_left_open(ledger, staging, left, now)
        with ledger.read() as connection:
            recorded = batches.recorded(connection, route)
            found.problems += balance.problems(connection, route, thorough=True)
        for batch in recorded:
            found.batches += 1
            try:
                copies = staging.copies(batch.uri)
            except StagingError as error:
                found.problems.append(Problem(f"batch {batch.batch_id} of route {batch.route}: {error}", batch.route))
                continue
            found.copies += copies
            if copies != batch.copies:
                found.problems.append(
                    Problem(
                        f"batch {batch.batch_id} of route {batch.route}: {batch.copies} copies are recorded,"
                        f" {copies} are in {batch.uri}",
                        batch.route,
                    )
                )
            if found.batches % 100 == 0:
                progress("auditing", found.batches, len(recorded))
        found.problems += _without_row(ledger, staging, route)
    finally:
        ledger.close()
    return found


def _without_row(ledger: Ledger, staging: "Staging", route: str | None) -> Iterator[Problem]:
    """Files that the ledger doesn't know, one by one those of this ledger, and together those of each other one."""
    with ledger.read() as connection:
        mine = ledger_id(connection)
    others: Counter[tuple[str, str]] = Counter()
    for file in adopt.without_row(ledger, staging, route):
        if file.ledger_id not in (mine, ""):
            others[file.route, file.ledger_id] += 1
            continue
        yield Problem(
            f"{staging.uri(file.path)} is a staging file of route {file.route} that the ledger doesn't know: it may"
            " hold all that is left of messages that were settled, as after a restore of the ledger from a backup;"
            f" `redrive adopt {file.route}` takes it in, and people decide",
            file.route,
        )
    for (name, other), count in sorted(others.items()):
        yield Problem(
            f"{count} staging files in the folder of route {name} were written by another ledger, {other}: if it is in"
            " use, give each ledger a staging folder of its own; if it is lost,"
            f" `redrive adopt {name} --ledger {other}` takes them in, and people decide",
            name,
        )


def tidy(settings: Settings, *, now: datetime) -> dict[str, int]:
    """Remove what is finished and older than each route's retention: messages, files, then the rows that name these.

    What a crash left of an earlier call is removed too.
    """
    from redrive.staging import Staging  # noqa: PLC0415 - Arrow, which whoever only imports this does not need

    ledger, staging = Ledger(settings.database), Staging(settings.staging)
    totals = {"batches": 0, "messages": 0}
    try:
        for name, route in settings.routes.items():
            gone, messages = retention.forget(ledger, name, before=now - route.retention, now=now)
            totals["batches"] += len(gone)
            totals["messages"] += messages
            with ledger.read() as connection:
                left = retention.forgotten(connection)
            for batch in left:
                staging.remove(batch.uri)
            retention.drop(ledger, [batch.batch_id for batch in left])
    finally:
        ledger.close()
    return totals


def close_left_open(ledger: Ledger, staging: "Staging", left: list[batches.Batch], now: datetime) -> int:
    """Batches that a writer left open are recorded where their file is complete, and abandoned where it is not; the
    files of abandoned ones are removed, and their rows say so. Returns how many are abandoned.

    One whose file can't be read now stays as it is, for the next to look.
    """
    gone = []
    for batch in left:
        if batch.state == "open":
            try:
                written = staging.finished(batch.uri) if batch.uri else None
            except StagingError:
                continue
            if written is not None:
                batches.record_left(ledger, batch, copies=written.copies, size=written.bytes, now=now)
                continue
            if not batches.abandon(ledger, batch, now):
                continue
        if batch.uri:
            staging.remove(batch.uri)
        gone.append(batch.batch_id)
    if gone:
        batches.removed(ledger, gone, now)
    return len(gone)
