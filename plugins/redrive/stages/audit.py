"""Audit: prove that it adds up, against the ledger and against the staging files themselves; and tidy up.

Retention removes whole batches, and only those of which every message is finished and old, so that what is left still
adds up.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from redrive.errors import StagingError
from redrive.ledger import balance, batches, retention
from redrive.ledger.balance import Problem
from redrive.ledger.engine import Ledger
from redrive.settings import Settings
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
        gone = batches.abandon(ledger, route=route, before_fence=None, opened_before=now - longest, now=now)
        remove_files(ledger, staging, gone, now)
        found.abandoned = len(gone)
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
    finally:
        ledger.close()
    return found


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


def remove_files(ledger: Ledger, staging: "Staging", gone: list[batches.Batch], now: datetime) -> None:
    """Remove the files of abandoned batches; their rows say so afterwards."""
    for batch in gone:
        staging.remove(batch.uri)
    batches.removed(ledger, [batch.batch_id for batch in gone], now)
