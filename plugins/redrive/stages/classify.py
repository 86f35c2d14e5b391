"""Classify: tell Spark what to read, and take in what it found.

The manifest names the batches; the output path carries the run and its fence, so that a run which was replaced
writes where nobody reads. Loading inserts if absent, so doing any of this twice changes nothing.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from redrive import classified
from redrive.errors import ClassificationFailed
from redrive.ledger import batches, leases, loading, outcomes
from redrive.ledger.batches import Batch
from redrive.ledger.engine import CHUNK_ROWS
from redrive.ledger.loading import Classified, Group, Loaded
from redrive.stages.context import Context
from redrive.staging import Staging

#: Groups that the manifest names, newest first; grouping matches against them so that ids stay the same.
KNOWN_GROUPS = 20_000


def output_path(context: Context) -> str:
    """Where this run's classified files go, relative to the staging folder."""
    return f"{context.name}/classified/{context.run.run_id}-{context.run.fence}"


def remove_leftovers(staging: Staging, route: str) -> None:
    """Remove what runs that died before their load left; nobody reads it. The route must be held.

    Only folders and manifests: a source may have the same name as the folder.
    """
    folder = f"{route}/classified"
    for name in staging.names(folder):
        if name.endswith(("/", ".json")):
            staging.remove(f"{folder}/{name.rstrip('/')}")


def prepare(context: Context) -> str | None:
    """Write the manifest of everything that waits to be classified; its URI, or None when nothing does."""
    with context.ledger.read() as connection:
        waiting = batches.unloaded(connection, context.name)
        known = loading.known_groups(connection, KNOWN_GROUPS) if waiting else []
    if not waiting:
        return None
    route, staging = context.route, context.staging
    manifest: dict[str, Any] = {
        "batches": [{"batch_id": b.batch_id, "uri": staging.uri(b.uri), "rows": b.copies} for b in waiting],
        "output": staging.uri(output_path(context)),
        "route": context.name,
        "broker": route.broker,
        "sources": {
            source.queue: {
                "kind": source.kind,
                "lease_seconds": source.lease.total_seconds() if source.lease else None,
            }
            for source in route.sources
        },
        "evidence": [str(selector) for selector in route.evidence],
        "rules": [{"match": rule.match, "cause": rule.cause} for rule in route.rules],
        "message_key": str(route.processed_check.key) if route.processed_check else None,
        "order_key": str(route.order_by) if route.order_by else None,
        "known_groups": [{"fingerprint": g.fingerprint, "cause": g.cause, "template": g.template} for g in known],
    }
    return staging.write_bytes(f"{output_path(context)}.json", json.dumps(manifest).encode())


def load(context: Context) -> dict[str, int]:
    """Take the classified copies into the ledger, batch by batch, and remove Spark's output."""
    with context.ledger.read() as connection:
        waiting = batches.unloaded(connection, context.name)
    loaded = Loaded()
    if waiting:
        ids = _groups(context)
        copies = _dataset(context, classified.MESSAGES_DIR)
        done = 0
        for some in _portions(waiting):
            rows = _copies(context, copies, some, ids)
            loaded = loaded.plus(
                loading.load(context.ledger, context.lease, [b.batch_id for b in some], rows, context.now())
            )
            done += sum(b.copies for b in some)
            context.progress("loading", done, sum(b.copies for b in waiting))
        context.staging.remove(output_path(context))
        context.staging.remove(f"{output_path(context)}.json")
    _note_drained(context)
    return {
        "classified": loaded.new + loaded.returned,
        "new": loaded.new,
        "returned": loaded.returned,
        "duplicates": loaded.duplicates,
        "surplus": loaded.surplus,
        "suspected": loaded.suspected,
    }


def _note_drained(context: Context) -> None:
    """Sources that every shard of this run drained to the end hide nothing that happened before the run."""
    drained = leases.counts_of(context.ledger, context.run.run_id).get("drain", {})
    complete = [
        source.queue
        for source in context.route.sources
        if drained.get(f"complete:{source.queue}", 0) >= max(1, drained.get("shards", 1))
    ]
    outcomes.sources_drained(context.ledger, context.lease, complete, context.run.started_at, context.now())
    outcomes.sources_loaded(context.ledger, context.lease, context.now())


def _groups(context: Context) -> dict[str, int]:
    table = _dataset(context, classified.GROUPS_DIR).to_table(columns=["fingerprint", "cause", "template", "example"])
    for name in ("template", "example"):
        clean = pc.replace_substring(table.column(name), "\0", "\ufffd")
        table = table.set_column(table.schema.get_field_index(name), name, clean)
    groups = [Group(**row) for row in table.to_pylist()]
    return loading.ensure_groups(context.ledger, context.lease, groups, context.now())


def _dataset(context: Context, folder: str) -> ds.Dataset:
    path = context.staging.full_path(f"{output_path(context)}/{folder}")
    try:
        return ds.dataset(path, filesystem=context.staging.filesystem, format="parquet")
    except (OSError, pa.ArrowException) as error:
        raise ClassificationFailed(f"the Spark job left no {folder} in {path}: {error}") from error


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


def _copies(context: Context, dataset: ds.Dataset, some: Sequence[Batch], ids: dict[str, int]) -> Iterator[Classified]:
    """The portion's copies, column-wise from Arrow, in message id order."""
    first, last = some[0].batch_id, some[-1].batch_id
    table = dataset.to_table(filter=(pc.field("batch_id") >= first) & (pc.field("batch_id") <= last))
    table = table.sort_by("message_id")
    sources = {source.queue: source for source in context.route.sources}
    fixed = context.route.destination.queue if context.route.destination else None
    for part in table.to_batches(max_chunksize=10_000):
        column = {name: part.column(name) for name in part.schema.names}
        # PostgreSQL has no text with a NUL in it, and one such message must not keep the others out.
        for name in ("broker_message_id", "origin", "redrive_id", "message_key", "order_key"):
            column[name] = pc.replace_substring(column[name], "\0", "\ufffd")
        plain = {
            name: column[name].to_pylist()
            for name in (
                "message_id", "batch_id", "source", "kind", "broker_message_id", "body_hash", "body_bytes",
                "deliveries", "origin", "redrive_id", "redrive_attempt", "message_key", "order_key", "cause",
                "fingerprint",
            )
        }  # fmt: skip
        destinations = [
            (sources[source].destination if source in sources else None) or fixed or origin
            for source, origin in zip(plain["source"], plain["origin"], strict=True)
        ]
        groups = [ids[fingerprint] if fingerprint is not None else None for fingerprint in plain["fingerprint"]]
        yield from zip(
            plain["message_id"],
            plain["batch_id"],
            plain["source"],
            plain["kind"],
            destinations,
            plain["broker_message_id"],
            plain["body_hash"],
            plain["body_bytes"],
            _instants(context, column["enqueued_at"]),
            _instants(context, column["dead_lettered_at"]),
            _instants(context, column["received_at"]),
            plain["deliveries"],
            plain["redrive_id"],
            plain["redrive_attempt"],
            plain["message_key"],
            plain["order_key"],
            plain["cause"],
            groups,
            strict=True,
        )


def _instants(context: Context, column: pa.Array) -> list[Any]:
    """Arrow timestamps as the ledger stores them; on SQLite formatted by Arrow, ten times faster than by Python."""
    if not context.ledger.is_sqlite:
        return list(column.to_pylist())
    if column.null_count == len(column):
        return [None] * len(column)
    distinct = column.dictionary_encode()
    if len(distinct.dictionary) * 2 < len(column):  # thousands of copies are received at one moment
        texts = _instants(context, distinct.dictionary)
        return [None if i is None else texts[i] for i in distinct.indices.to_pylist()]
    return list(pc.strftime(column.cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S").to_pylist())
