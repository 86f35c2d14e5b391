"""The executors' part of the Spark job: why the messages of staging files failed, file by file.

Of every message the failure text is picked and masked, and its key and its case's key are written beside each other,
one file for one batch. What goes back to the driver is the distinct cases. Columns are read as they are needed and a
row group at a time (:mod:`~redrive.classification.row_groups`); which case a message is says
:mod:`~redrive.classification.case_finder`.

Nothing here knows Spark: a task calls :func:`write` with the batches of its share.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from redrive.classification import explain
from redrive.classification.case_finder import FOUND, CaseFinder, CaseSettings
from redrive.classification.cases import Case, RouteRule
from redrive.classification.causes import Cause
from redrive.classification.learned_model import Model
from redrive.classification.row_groups import RowGroup
from redrive.classification.rules import Finding
from redrive.classification.templates import KnownGroup
from redrive.staging import file_schemas, filesystems

__all__ = [
    "EXPLAINED",
    "FOUND",
    "READ",
    "Batch",
    "CaseSettings",
    "explain_others",
    "model_of",
    "read",
    "reading_of",
    "write",
]

#: What is given back of a case that is explained on its own.
EXPLAINED = pa.schema(
    [
        ("case_key", pa.int64()),
        ("messages", pa.int64()),
        ("text", pa.string()),
        ("cause", pa.string()),
        ("rule", pa.string()),
        ("confidence", pa.float64()),
        ("template", pa.string()),
        ("fingerprint", pa.string()),
        ("telling", pa.string()),
    ]
)


#: A case and what its text says by itself (:func:`read`).
READ = FOUND.append(pa.field("reading", pa.string()))


class _Unreadable(Exception):
    """A staging file is missing or damaged."""


class Batch(NamedTuple):
    """A staging file."""

    batch_id: int
    uri: str


def write(
    batches: Iterable[Batch], asked: CaseSettings, output: str, access: filesystems.Access | None = None
) -> pa.RecordBatch:
    """Write ``{output}/batch-N.parquet`` (columns :data:`~redrive.staging.file_schemas.MESSAGES`) for each; the cases.

    A file appears complete or not at all; writing it again gives the same file. Memory is
    proportional to the cases of this share and the largest row group. For a batch whose staging file can't be read to
    its end, because it is missing or damaged, an answer without rows is written: it stops no other batch, and the load
    finds out why. Where the store fails, ``OSError`` is raised: Spark tries the task again.
    """
    finder = CaseFinder(asked)
    filesystem, folder = filesystems.locate(output, access)
    filesystem.create_dir(folder, recursive=True)
    for batch in batches:
        path = f"{folder}/{file_schemas.messages_file(batch.batch_id)}"
        # Spark may run a task twice at the same time.
        try:
            with filesystems.appearing_whole(filesystem, path) as sink, _writer(sink) as out:
                for table in _tables(batch, finder, access):
                    out.write_table(table)
        except _Unreadable:
            with filesystems.appearing_whole(filesystem, path) as sink, _writer(sink):
                pass
    return finder.found()


def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cases (:data:`FOUND`) with what their texts say by themselves (:data:`READ`)."""
    for batch in batches:
        said = [_written(text) if text else None for text in batch.column("masked").to_pylist()]
        yield pa.record_batch([*batch.columns, pa.array(said, pa.string())], schema=READ)


def _written(masked: str) -> str:
    template, finding = explain.Reading.of(masked)
    return json.dumps([template, finding])


def reading_of(written: str) -> explain.Reading:
    """What :func:`read` wrote."""
    template, finding = json.loads(written)
    return explain.Reading(template, Finding(Cause(finding[0]), *finding[1:]) if finding else None)


def explain_others(
    batches: Iterable[pa.RecordBatch], rules: Sequence[RouteRule], known: Sequence[KnownGroup], learned: str | None
) -> Iterator[pa.RecordBatch]:
    """Judge cases (:data:`FOUND`) on their own; ``known`` are the groups of the ledger and those found in this job."""
    others = explain.Others(rules, known, model_of(learned))
    shown: set[str] = set()
    for batch in batches:
        rows = []
        for key, messages, _, masked, reason, hint, text in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            explained = others.explain(Case(masked, reason, hint))
            rows.append((key, messages, "" if explained.fingerprint in shown else text, *explained))
            shown.add(explained.fingerprint)
        columns = zip(*rows, strict=True) if rows else [()] * len(EXPLAINED)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, EXPLAINED, strict=True)]
        yield pa.record_batch(arrays, schema=EXPLAINED)


def model_of(learned: str | None) -> Model | None:
    """What the site has learned, as a manifest brings it."""
    return Model.from_bytes(base64.b64decode(learned)) if learned else None


def _writer(sink: pa.NativeFile) -> pq.ParquetWriter:
    # Ids and keys are all different, so a dictionary of them would only cost time.
    return pq.ParquetWriter(
        sink,
        file_schemas.MESSAGES,
        compression="zstd",
        compression_level=1,
        use_dictionary=["case_key", "order_key"],
        write_statistics=False,
        write_page_checksum=True,
    )


def _tables(batch: Batch, finder: CaseFinder, access: filesystems.Access | None) -> Iterator[pa.Table]:
    try:
        source, path = filesystems.locate(batch.uri, access)
        with source.open_input_file(path) as stream:
            file = file_schemas.open_staged(stream)
            for number in range(file.num_row_groups):
                yield finder.at(RowGroup(file, number))
    except MemoryError:  # Arrow's own is one of its errors too
        raise
    except (FileNotFoundError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _Unreadable(batch.uri) from error
    except OSError as error:  # pyarrow raises it for some kinds of damage too
        if not _is_damaged(batch, access):
            raise
        raise _Unreadable(batch.uri) from error


def _is_damaged(batch: Batch, access: filesystems.Access | None) -> bool:
    """Whether the file is to blame, of which every byte can be read; ``OSError`` where that fails too."""
    source, path = filesystems.locate(batch.uri, access)
    with source.open_input_file(path) as stream:
        file_schemas.read_through(stream)
        stream.seek(0)
        try:
            file = file_schemas.open_staged(stream)
            for number in range(file.num_row_groups):
                file_schemas.read_group(file, number, file_schemas.STAGED.names)
        except MemoryError:
            raise
        except (OSError, pa.ArrowException):
            return True
    return False
