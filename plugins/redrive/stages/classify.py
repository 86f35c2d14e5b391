"""Classify: :func:`prepare` writes down what Spark is to read, :func:`load` takes in what it found.

In between the Spark job runs, in a process of its own (:mod:`redrive.spark`). The manifest names the batches. The
output path carries the ledger, the run, its fence and its beginning, so that a run which was replaced writes where
nobody reads, and what a ledger wrote before it was restored from a backup is not taken for its answer now. Loading
inserts if absent, so doing any of this twice changes nothing.

A run asks about no more of a backlog than a job can be expected to get through, the oldest first, and loads what it
asked about; the rest waits for the next runs. After a job that did not end well the next is asked about half as much:
one that ran over ``spark.timeout`` is followed by a smaller one and not by a larger one.
"""

import base64
import json
import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from redrive.brokers import registry
from redrive.errors import BrokerError, StagingError
from redrive.ledger import leases
from redrive.ledger.drain import batches, groups, horizon, repeats
from redrive.ledger.drain.batches import Batch
from redrive.ledger.drain.keys import Selectors
from redrive.ledger.drain.loading import Loaded
from redrive.ledger.engine import CHUNK_ROWS
from redrive.ledger.review import rulings
from redrive.ledger.schema import ledger_id
from redrive.settings import Source
from redrive.settings.places import home
from redrive.stages import completeness, keys
from redrive.stages.context import Context, micros

if TYPE_CHECKING:
    from redrive.staging.batch_files import Staging

log = logging.getLogger(__name__)

#: Copies that a run asks Spark about at most; and at least, however many jobs failed (unless a batch has more).
MOST, LEAST = 10_000_000, 20_000
#: The name under which a run notes what it asked about.
PREPARE = "prepare"
#: The name under which a run notes how long it waited for the answers, from the question to the load.
CLASSIFY = "classify"
#: So much of a run's id its folder is named by, for people: Airflow allows ids that are as long as a name may be.
NAMED_BY = 100
#: Of batches that can't be read so many are named in a run's counts.
NAMED = 100


def _learned() -> dict[str, str]:
    """The model that this site has trained, so that the job uses it wherever it runs. One that the job couldn't read,
    of another version of Redrive, is left out: classifying with ours is better than not at all."""
    from redrive.classification.learned_model import LEARNED, Model  # noqa: PLC0415 - slow, and most runs find nothing

    path = home() / LEARNED
    if not path.is_file():
        return {}
    model = path.read_bytes()
    try:
        Model.from_bytes(model)
    except ValueError as error:
        log.warning("%s is left out: %s", path, error)
        return {}
    return {"model": base64.b64encode(model).decode()}


def output_path(context: Context) -> str:
    """Where this run's classified files go, relative to the staging folder."""
    with context.ledger.read() as connection:
        mine = ledger_id(connection)
    run = context.run
    named = run.run_id[:NAMED_BY]
    return f"{context.name}/classified/{mine}-{named}-{run.fence}-{micros(run.started_at)}"


def remove_leftovers(staging: "Staging", route: str, mine: str) -> None:
    """Remove what runs of ledger ``mine`` that died before their load left; nobody reads it. The route must be held.

    Only folders and manifests: a source may have the same name as the folder, and another ledger may be at work there.
    """
    folder = f"{route}/classified"
    for name in staging.names(folder):
        if name.startswith(f"{mine}-") and name.endswith(("/", ".json")):
            staging.remove(f"{folder}/{name.rstrip('/')}")


def prepare(context: Context) -> str | None:
    """Write the manifest of what is to be classified in this run; its URI, or None when nothing is."""
    rulings.apply(context.ledger, context.lease, context.now())
    with context.ledger.read() as connection:
        waiting = batches.unloaded(connection, context.name)
        known = groups.known_groups(connection) if waiting else []
    if not waiting:  # staging isn't even opened: an idle run has no need of Arrow
        return None
    most = _most_copies(context)
    asked, unreadable = _to_ask(context.staging, waiting, most)
    if not asked:
        return None
    copies = sum(batch.copies for batch in asked)
    later = sum(batch.copies for batch in waiting) - copies - sum(batch.copies for batch in unreadable)
    # Before anything is asked: should the job take this process with it, the next run has to know.
    noted = {"asked": {"copies": copies, "most": most, "later": later}}
    leases.note_counts(context.ledger, context.lease, PREPARE, noted, context.now())
    log.info("classifying %d copies in %d batches; %d wait for the next runs", copies, len(asked), later)
    if later:
        context.progress(f"classifying {copies} staged copies; {later} more wait for the next runs", copies, None)
    route, staging, output = context.route, context.staging, output_path(context)
    manifest: dict[str, Any] = {
        "batches": [
            {"batch_id": b.batch_id, "uri": staging.uri(b.uri), "rows": b.copies, "bytes": b.size} for b in asked
        ],
        "unreadable": [batch.batch_id for batch in unreadable],
        "asked_at": context.now().isoformat(),
        "output": staging.uri(output),
        "route": context.name,
        "run": context.run.run_id,
        "sources": {
            source.queue: {
                "kind": source.kind,
                "lease_seconds": lease.total_seconds() if (lease := _origin_lease(context, source)) else None,
            }
            for source in route.sources
        },
        "evidence": [str(selector) for selector in route.evidence],
        "rules": [{"match": rule.match, "cause": rule.cause} for rule in route.rules],
        **keys.selectors(route)._asdict(),  # message_key, order_key
        "search": [str(selector) for selector in route.search],
        **_learned(),
        "known_groups": [group._asdict() for group in known],
    }
    return staging.write_bytes(f"{output}.json", json.dumps(manifest).encode())


def _to_ask(staging: "Staging", waiting: Sequence[Batch], most: int) -> tuple[list[Batch], list[Batch]]:
    """Of the waiting batches, oldest first, those to ask about, of ``most`` copies but at least one batch; and those
    between them that can't be read."""
    asked: list[Batch] = []
    unreadable: list[Batch] = []
    copies = 0
    for batch in waiting:
        if asked and copies + batch.copies > most:
            break
        if _is_whole(staging, batch):
            asked.append(batch)
            copies += batch.copies
        else:
            unreadable.append(batch)
    return asked, unreadable


def _most_copies(context: Context) -> int:
    """How many copies this run asks about: half as many as a run whose answers were not loaded, twice as many as one
    whose answers were, within :data:`LEAST` and :data:`MOST`.

    Without identities, what comes again of batches in doubt is decided on the whole of it, and comes first.
    """
    with context.ledger.read() as connection:
        before = leases.run_before(connection, context.lease, PREPARE)
        doubtful = (
            {}
            if context.broker.capabilities.stable_identity
            else repeats.doubtful(context.ledger, connection, context.name, leased_for=context.route.drain.lease)
        )
    most = MOST
    if before:
        asked = before.counts[PREPARE]["asked"]
        most = asked["most"] * 2 if "load" in before.counts else asked["copies"] // 2
    return max(LEAST, min(most, MOST)) + sum(batch.copies for batch in doubtful.values())


def _is_whole(staging: "Staging", batch: Batch) -> bool:
    """Whether the batch's file is there to its end; what is damaged within, the job finds out."""
    try:
        return staging.copies(batch.uri) == batch.copies
    except StagingError:
        if not staging.is_damaged(batch.uri):
            raise
        return False


def _origin_lease(context: Context, source: Source) -> timedelta | None:
    """How long the origin leases its messages, where time per delivery is evidence: configured, else asked for, and
    at least as long as consumers' libraries renew it."""
    can = registry.kind(context.route.broker).capabilities
    if not can.times_tell_leases:
        return None
    if source.lease is not None or source.kind != "dead_letter" or not context.broker.capabilities.tells_origin_lease:
        return source.lease
    try:
        told = context.broker.describe(source.queue).origin_lease
    except BrokerError:
        return None  # a hint less
    return told and max(told, can.client_lease or told)


def load(context: Context) -> dict[str, Any]:
    """Take the classified copies into the ledger, batch by batch, and remove Spark's output."""
    began = context.now()
    rulings.apply(context.ledger, context.lease, began)
    with context.ledger.read() as connection:
        waiting = batches.unloaded(connection, context.name)
    output = output_path(context) if waiting else ""
    asked, unreadable, asked_at, keyed_by = _asked_about(context, waiting, f"{output}.json")
    later = sum(b.copies for b in waiting) - sum(b.copies for b in asked) - sum(b.copies for b in unreadable)
    loaded = Loaded()
    overflowed = 0
    if asked:
        from redrive.stages import classified_files  # noqa: PLC0415 - see there

        answers: classified_files.Answers | None = None
        stable = context.broker.capabilities.stable_identity
        # What comes again is decided on all of it, also on what is loaded later.
        repeated = None if stable else classified_files.repeated(context, waiting)
        done = 0
        for some in _portions(asked):
            readable = classified_files.described(context, some)
            if readable:
                answers = answers or classified_files.Answers(context, output)
                readable = [(batch, table) for batch, table in readable if not answers.left_out(batch)]
            ids = {batch.batch_id for batch, _ in readable}
            unreadable += [batch for batch in some if batch.batch_id not in ids]
            if readable:
                loaded = loaded.plus(classified_files.load(context, readable, answers, repeated, keyed_by))
            done += sum(b.copies for b in some)
            context.progress("loading", done, sum(b.copies for b in asked))
        overflowed = answers.overflowed if answers is not None else 0
        if answers is not None and asked_at is not None:
            took = {"seconds": round((began - asked_at).total_seconds(), 3)}
            leases.note_counts(context.ledger, context.lease, CLASSIFY, took, context.now())
    if waiting:
        context.staging.remove(output)
        context.staging.remove(f"{output}.json")
    emptied = _note_drained(context)
    return {
        "classified": loaded.new + loaded.returned,
        "new": loaded.new,
        "returned": loaded.returned,
        "duplicates": loaded.duplicates,
        "surplus": loaded.surplus,
        "suspected": loaded.suspected,
        "emptied": emptied,
        **(
            {
                "unreadable": sum(batch.copies for batch in unreadable),
                "unreadable_batches": [batch.batch_id for batch in unreadable][:NAMED],
            }
            if unreadable
            else {}
        ),
        **({"later": later} if later else {}),
        **({"overflowed": overflowed} if overflowed else {}),
    }


class _Asked(NamedTuple):
    """What a run's manifest says of the batches that wait."""

    batches: list[Batch]
    unreadable: list[Batch]
    at: datetime | None = None  # it was written
    keyed_by: Selectors = Selectors()


def _asked_about(context: Context, waiting: Sequence[Batch], manifest: str) -> _Asked:
    """Of the waiting batches, those that the run's manifest asks about, those that it says can't be read, when it was
    written, and what finds their keys. What was recorded since by whoever was slow is neither, whatever its id, and
    waits for the next run.

    Without a manifest nothing could be asked, or the answers are loaded already: then those that can't be read.
    """
    if not waiting:
        return _Asked([], [])
    if not context.staging.exists(manifest):
        return _Asked([], [batch for batch in waiting if not _is_whole(context.staging, batch)])
    told = context.staging.read_json(manifest)
    asked, unreadable = {batch["batch_id"] for batch in told["batches"]}, set(told["unreadable"])
    return _Asked(
        [batch for batch in waiting if batch.batch_id in asked],
        [batch for batch in waiting if batch.batch_id in unreadable],
        datetime.fromisoformat(told["asked_at"]),
        Selectors(told["message_key"], told["order_key"]),
    )


def load_unclassified(context: Context) -> int:
    """Take in what was staged and never classified, without cause and group; returns how many messages are new.

    For the way out: what Spark could not look at can still go back.
    """
    with context.ledger.read() as connection:
        waiting = batches.unloaded(connection, context.name)
    if not waiting:
        return 0
    from redrive.stages import classified_files  # noqa: PLC0415 - see there

    repeated = None if context.broker.capabilities.stable_identity else classified_files.repeated(context, waiting)
    new = 0
    for some in _portions(waiting):
        readable = classified_files.described(context, some)
        if not readable:
            continue
        new += classified_files.load(context, readable, None, repeated).new
    return new


def _note_drained(context: Context) -> list[str]:
    """Sources that this run drained to the end hide nothing that happened before the run, or where the broker's count
    is late, so much before it. Returns their names."""
    by_moment: dict[datetime, list[str]] = {}
    for queue, moment in completeness.drained_to(context).items():
        by_moment.setdefault(moment, []).append(queue)
    for moment, queues in by_moment.items():
        horizon.sources_drained(context.ledger, context.lease, queues, moment, context.now())
    horizon.sources_loaded(context.ledger, context.lease, context.now())
    return sorted(queue for queues in by_moment.values() for queue in queues)


def _portions(waiting: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Batches in portions of about :data:`CHUNK_ROWS` copies; one larger batch is a portion of its own."""
    portion: list[Batch] = []
    size = 0
    for batch in waiting:
        if portion and size + batch.copies > CHUNK_ROWS:
            yield portion
            portion, size = [], 0
        portion.append(batch)
        size += batch.copies
    if portion:
        yield portion
