"""Audit: prove that it adds up, against the ledger and against the staging files themselves; and tidy up.

Retention removes whole batches, and only those of which every message is finished and old, so that what is left still
adds up.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from redrive.brokers import open_broker, registry
from redrive.brokers.base import Broker
from redrive.connections import storage
from redrive.errors import RedriveError, StagingError
from redrive.ledger import configurations
from redrive.ledger.account import balance, findings, retention
from redrive.ledger.account.balance import Problem
from redrive.ledger.drain import batches
from redrive.ledger.engine import Ledger
from redrive.ledger.schema import ledger_id
from redrive.message import MAX_ROWS, batch_and_row
from redrive.settings import LONGEST_LEASE, Route, Settings
from redrive.stages import adopt
from redrive.stages.context import Progress, silent

if TYPE_CHECKING:
    from redrive.staging.batch_files import Staging

#: An open batch this old, or as old as the lease of its copies where that is longer, has no writer any more: a drain
#: closes its batches within half a lease.
ABANDON_AFTER = timedelta(hours=1)
#: After so many failures nothing more is tried to be removed.
ENOUGH = 10
#: So many times its retention a route keeps what an audit complains about, and batches of which copies may come again.
#: Not for ever: some findings go only with the messages that they are about, a source may never be drained to its end
#: any more, and disks fill.
LONGER = 2


@dataclass(slots=True)
class Audited:
    """What an audit found."""

    batches: int = 0
    copies: int = 0
    abandoned: int = 0
    problems: list[Problem] = field(default_factory=list)


#: Opens the broker of a route; asked only where a copy came back from elsewhere than it was sent to.
Brokers = Callable[[Route], Broker]


def _open(route: Route) -> Broker:
    return open_broker(route.broker, route.connection or "")


def audit(
    settings: Settings,
    *,
    route: str | None = None,
    now: datetime,
    progress: Progress = silent,
    brokers: Brokers = _open,
) -> Audited:
    """Check every recorded batch's file and every number of the ledger; abandons batches whose writer is gone.

    Of each file the hashes of all copies are held against the ledger. Bodies are read and hashed anew where something
    may still ask for them: of batches that are not loaded, or hold a message that isn't finished.
    """
    ledger, staging = Ledger(settings.database), storage.staging(settings)
    found = Audited()
    try:
        leases = [one.drain.lease for one in settings.routes.values()]
        longest = max([ABANDON_AFTER, *leases, *([LONGEST_LEASE] if settings.broken else [])])
        with ledger.read() as connection:
            left = batches.left_open(connection, route=route, before_fence=None, opened_before=now - longest)
            left += batches.abandoned(connection, route)
        found.abandoned = close_left_open(ledger, staging, left, now)
        with ledger.read() as connection:
            recorded, needed = batches.recorded(connection, route), batches.needed(connection, route)
            found.problems += balance.problems(connection, route, thorough=True)
            found.problems += findings.findings(ledger, connection, route, now, own_ids=registry.with_own_ids())
            if route is None:
                found.problems += findings.of_routes_not_configured(
                    connection, {*settings.routes, *settings.broken}, now
                )
        files = _Files(settings, ledger, staging, brokers)
        for batch in recorded:
            found.batches += 1
            problem, copies = files.examine(batch, bodies=batch.batch_id in needed)
            found.copies += copies
            if problem is not None:
                found.problems.append(Problem(f"batch {batch.batch_id} of route {batch.route}: {problem}", batch.route))
            if found.batches % 100 == 0:
                progress("auditing", found.batches, len(recorded))
        files.close()
        found.problems += _without_row(ledger, staging, route)
    finally:
        ledger.close()
    return found


class _Files:
    """Holds staging files against the ledger."""

    def __init__(self, settings: Settings, ledger: Ledger, staging: "Staging", brokers: Brokers) -> None:
        self._settings = settings
        self._ledger = ledger
        self._staging = staging
        self._open = brokers
        self._brokers: dict[str, Broker | None] = {}

    def close(self) -> None:
        """Close the brokers that were asked."""
        for broker in self._brokers.values():
            if broker is not None:
                broker.close()

    def examine(self, batch: batches.Batch, *, bodies: bool) -> tuple[str | None, int]:
        """What is wrong with a batch's file, and how many copies it holds."""
        try:
            table = self._staging.proof(batch.uri, bodies=bodies)
        except StagingError as error:
            return f"{error}. {_BRING_BACK}", 0
        if len(table) != batch.copies:
            return f"{batch.copies} copies are recorded, {len(table)} are in {batch.uri}. {_BRING_BACK}", len(table)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        if set(columns["batch_id"]) - {batch.batch_id}:
            return f"{batch.uri} holds another batch. {_BRING_BACK}", len(table)
        with self._ledger.read() as connection:
            hashes = batches.hashes(connection, batch.batch_id)
            kept = batches.kept(connection, batch.batch_id)
        staged = columns["body_hash"]
        wrong = sum(1 for row, known in hashes.items() if row >= len(staged) or staged[row] != known)
        if wrong and all(row < len(staged) for row in hashes):  # others are no copies of it, which is told elsewhere
            return f"{wrong} bodies in {batch.uri} are not those that were loaded. {_BRING_BACK}", len(table)
        for one in kept:
            row = one.copy_id & (MAX_ROWS - 1)
            if row < len(table):
                told = (columns[name][row] for name in ("origin", "redrive_id", "redrive_attempt"))
                if problem := self._misjudged(batch, one, *told):
                    return problem, len(table)
        return None, len(table)

    def _misjudged(
        self, batch: batches.Batch, one: batches.Kept, origin: str | None, redrive_id: str | None, attempt: int | None
    ) -> str | None:
        """Why a copy that was taken for another's return or second staging may be a message that is lost."""
        copy = f"copy {one.copy_id} in {batch.uri}"
        to = one.destination
        came_back = one.kind in ("returned", "surplus") and origin is not None and to is not None and origin != to
        if came_back and self._leads_nowhere_near(batch.route, str(to), str(origin)):
            return (
                f"{copy} counts as {one.kind} of message {one.owner}, and failed at {origin}, while the attempt went to"
                f" {to}: a consumer seems to have passed it on with our headers, so it is a message of its own."
                f" Send its"
                " body to where it failed, if nobody has"
            )
        if one.kind == "duplicate" and redrive_id is not None and not one.seen_in_return and one.owner is not None:
            first = self._carried(one.owner)
            if first is not None and first != (redrive_id, attempt):
                return (
                    f"{copy} was dropped as a second staging of message {one.owner}, whose first copy carries another"
                    " id of ours or none: it is a return that was overlooked. Redeliver message"
                    f" {one.owner}, or ask its consumer"
                )
        return None

    def _carried(self, message_id: int) -> tuple[str | None, int | None] | None:
        """The id and attempt that the first copy of a message carries; None where its file can't be read."""
        batch_id, row = batch_and_row(message_id)
        with self._ledger.read() as connection:
            path = batches.paths(connection, {batch_id}).get(batch_id)
        try:
            table = self._staging.proof(path, bodies=False) if path else None
        except StagingError:
            return None
        if table is None or row >= len(table):
            return None
        return table.column("redrive_id")[row].as_py(), table.column("redrive_attempt")[row].as_py()

    def _leads_nowhere_near(self, route: str, destination: str, origin: str) -> bool:
        """What is sent to ``destination`` can't fail at ``origin``, by the broker's word; False where it has none."""
        if route not in self._brokers:
            try:
                self._brokers[route] = self._open(self._settings.route(route))
            except RedriveError:
                self._brokers[route] = None
        broker = self._brokers[route]
        if broker is None or broker.leads_to(destination, origin) is not False:
            return False
        try:
            onward = broker.describe(destination).dead_letter_queue
        except RedriveError:
            return True
        return onward is None or broker.leads_to(onward, origin) is False


_BRING_BACK = (
    "Something outside of Redrive changed it. Bring it back from the store's versions or a backup; until then its"
    " messages wait or are with people, and all others go on"
)


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


def tidy(settings: Settings, *, now: datetime, longer: Collection[str] = ()) -> dict[str, int]:
    """Remove what is finished and older than each route's retention: messages, files, then the rows that name these.
    Of the routes named in ``longer`` it stays twice as long: an audit complains about them, and it may explain that.
    So does, until its source was drained to the end, a batch of which copies may come again. Rows of files stay while
    nothing at all of their route lies in staging.

    What a crash left of an earlier call is removed too. What fails for one route or file keeps no other; the first such
    error is raised in the end.
    """
    ledger, staging = Ledger(settings.database), storage.staging(settings)
    totals, failures = {"batches": 0, "messages": 0}, list[RedriveError]()
    try:
        for name, route in settings.routes.items():
            doubted = route.retention * LONGER
            kept = doubted if name in longer else route.retention
            try:
                gone, messages = retention.forget(
                    ledger, name, before=now - kept, doubted_before=now - doubted, now=now
                )
            except RedriveError as error:
                failures.append(error)
                continue
            totals["batches"] += len(gone)
            totals["messages"] += messages
        with ledger.read() as connection:
            left = retention.forgotten(connection)
        removed = []
        for batch in left:
            try:
                if staging.is_gone(batch.route):
                    continue  # else its file is one that nobody knows, once the place is back
                staging.remove(batch.uri)
            except StagingError as error:
                failures.append(error)
                if len(failures) >= ENOUGH:  # the place is away
                    break
            else:
                removed.append(batch.batch_id)
        retention.drop(ledger, removed)
        if settings.routes and not settings.broken:  # of a broken route nobody knows how long it keeps
            longest = max(route.retention for route in settings.routes.values())
            configurations.forget(ledger, before=now - (LONGER if longer else 1) * longest)
    finally:
        ledger.close()
    if failures:
        raise failures[0]
    return totals


def close_left_open(ledger: Ledger, staging: "Staging", left: list[batches.Batch], now: datetime) -> int:
    """Batches that a writer left open are recorded where their file is complete, and abandoned where it is not; the
    files of abandoned ones are removed, and their rows say so. Returns how many are abandoned.

    One whose file can't be read now stays as it is, for the next to look; also where nothing at all of its route lies
    there: a disk that is not mounted says nothing about the file.
    """
    gone = []
    for batch in left:
        if batch.state == "open":
            try:
                if batch.uri and staging.is_gone(batch.route):
                    continue
                written = staging.finished(batch.uri) if batch.uri else None
            except StagingError:
                continue
            if written is not None and written.copies:  # an empty file holds nothing that could be lost
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
