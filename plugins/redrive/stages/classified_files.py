"""What Spark wrote, as the ledger loads it: groups, and copies column by column from Arrow.

Apart from :mod:`redrive.stages.classify`, because Arrow's datasets take longer to import than an idle run may last.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from redrive import classified
from redrive.errors import ClassificationFailed
from redrive.ledger import loading, repeats
from redrive.ledger.batches import Batch
from redrive.ledger.loading import Classified, Group
from redrive.ledger.repeats import Copy, Evidence, Repeat, StagedBatch
from redrive.message import ROW_BITS, message_id_of
from redrive.redaction import redactor
from redrive.stages.context import Context


def groups(context: Context, output: str) -> dict[str, int]:
    """Make the groups of the job's ``output`` known to the ledger; fingerprint -> group id."""
    table = _dataset(context, output, classified.GROUPS_DIR).to_table(
        columns=["fingerprint", "cause", "template", "example"]
    )
    for name in ("template", "example"):
        clean = pc.replace_substring(table.column(name), "\0", "\ufffd")
        table = table.set_column(table.schema.get_field_index(name), name, clean)
    mask = redactor(context.route)
    found = [Group(**row | {"example": row["example"] and mask(row["example"])}) for row in table.to_pylist()]
    return loading.ensure_groups(context.ledger, context.lease, found, context.now())


def messages(context: Context, output: str) -> ds.Dataset:
    """The job's messages, not yet read."""
    return _dataset(context, output, classified.MESSAGES_DIR)


def unclassified(context: Context, some: Sequence[Batch]) -> ds.Dataset:
    """The portion's copies as the job would write them if it found out nothing: no cause, no group, no keys."""
    tables = []
    for batch in some:
        staged = context.staging.described(batch.uri)
        made = {
            "message_id": pc.add(pc.shift_left(staged.column("batch_id"), ROW_BITS), staged.column("row")),
            "body_bytes": staged.column("body_bytes"),
        }
        columns = [
            made[field.name]
            if field.name in made
            else staged.column(field.name)
            if field.name in staged.column_names
            else pa.nulls(staged.num_rows, field.type)
            for field in classified.MESSAGES
        ]
        tables.append(pa.table(columns, schema=classified.MESSAGES))
    return ds.dataset(pa.concat_tables(tables))


def copies(context: Context, dataset: ds.Dataset, some: Sequence[Batch], ids: dict[str, int]) -> Iterator[Classified]:
    """The portion's copies, column-wise from Arrow, in message id order."""
    first, last = some[0].batch_id, some[-1].batch_id
    table = dataset.to_table(filter=(pc.field("batch_id") >= first) & (pc.field("batch_id") <= last))
    ids_as_read = table.column("message_id")
    if not pc.all(pc.less(ids_as_read[:-1], ids_as_read[1:])).as_py():
        table = table.sort_by("message_id")
    # PostgreSQL has no text with a NUL in it, and one such message must not keep the others out.
    for name in ("broker_message_id", "origin", "redrive_id", "message_key", "order_key"):
        texts = table.column(name)
        if _has_nul(texts):
            clean = pc.replace_substring(texts, "\0", "\ufffd")
            table = table.set_column(table.schema.get_field_index(name), name, clean)
    sources = {source.queue: source for source in context.route.sources}
    fixed = context.route.destination.queue if context.route.destination else None
    for part in table.to_batches(max_chunksize=10_000):
        column = {name: part.column(name) for name in part.schema.names}
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
        group_ids = [ids[fingerprint] if fingerprint is not None else None for fingerprint in plain["fingerprint"]]
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
            group_ids,
            strict=True,
        )


def _has_nul(texts: pa.ChunkedArray) -> bool:
    """Whether a NUL is anywhere in the texts; looks at their bytes as one, which is much faster than text by text."""
    data = (chunk.buffers()[2] for chunk in texts.chunks)
    return any(buffer is not None and b"\0" in memoryview(buffer).tobytes() for buffer in data)


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


def repeated(context: Context, waiting: Sequence[Batch]) -> dict[int, Repeat]:
    """Which waiting copies were staged before, for a broker that gives them no identity."""
    tables = {batch.batch_id: context.staging.evidence(batch.uri) for batch in waiting}
    if not any(pc.any(table.column("redelivered")).as_py() for table in tables.values()):
        return {}  # what was never delivered before was never staged before
    with context.ledger.read() as connection:
        doubtful = repeats.doubtful(connection, context.name)
    staged = [
        StagedBatch(batch_id, batch_id in doubtful, batch_id in tables, _evidence(batch_id, table))
        for batch_id, table in (
            tables
            | {
                batch_id: context.staging.evidence(uri)
                for batch_id, (uri, _) in doubtful.items()
                if batch_id not in tables
            }
        ).items()
    ]
    asked = (copy.evidence for batch in staged if batch.waiting for copy in batch.copies if copy.redelivered)
    return repeats.decide(staged, repeats.known(context.ledger, context.name, asked))


def _evidence(batch_id: int, table: pa.Table) -> list[Copy]:
    column = {name: table.column(name).to_pylist() for name in table.column_names}
    return [
        Copy(
            message_id_of(batch_id, row),
            Evidence(source, broker_id, enqueued, dead, body),
            again,
            redrive_id is not None,
        )
        for row, source, broker_id, enqueued, dead, body, again, redrive_id in zip(
            column["row"],
            column["source"],
            column["broker_message_id"],
            column["enqueued_at"],
            column["dead_lettered_at"],
            column["body_hash"],
            column["redelivered"],
            column["redrive_id"],
            strict=True,
        )
    ]


def _dataset(context: Context, output: str, folder: str) -> ds.Dataset:
    path = context.staging.full_path(f"{output}/{folder}")
    try:
        return ds.dataset(path, filesystem=context.staging.filesystem, format="parquet")
    except (OSError, pa.ArrowException) as error:
        raise ClassificationFailed(f"the Spark job left no {folder} in {path}: {error}") from error
