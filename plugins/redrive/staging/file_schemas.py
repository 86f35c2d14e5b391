"""The contract between staging, the Spark job and the load: the columns of each file.

``STAGED`` is what the job reads; ``MESSAGES`` and ``CASES`` are what it writes. The job repeats nothing of what
staging holds: a message is told by its id, and what was found out about it stands once for all that failed in the
same way. Times are UTC, to the microsecond.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MESSAGES_DIR: Final = "messages"  # one file for each batch: messages_file
APPLICATION_FILE: Final = "spark.json"  # written first: which application of Spark's works on it
CASES_FILE: Final = "cases.parquet"  # written last: where it is, all is

_AT_ONCE: Final = 8 * 1024 * 1024

_TIME = pa.timestamp("us", tz="UTC")

#: One row per copy. The first five columns are the same in all rows of a file.
STAGED: Final = pa.schema(
    [
        ("batch_id", pa.int64()),
        ("route", pa.string()),
        ("source", pa.string()),
        ("kind", pa.string()),  # dead_letter | delay
        ("broker", pa.string()),
        ("row", pa.int32()),
        ("broker_message_id", pa.string()),
        ("body", pa.binary()),
        ("body_hash", pa.binary()),
        ("body_bytes", pa.int32()),
        (
            "headers",
            pa.list_(
                pa.struct(
                    [
                        ("name", pa.string()),
                        ("type", pa.string()),
                        ("text", pa.string()),
                        ("data", pa.binary()),
                    ]
                )
            ),
        ),
        ("properties", pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))),
        ("enqueued_at", _TIME),
        ("dead_lettered_at", _TIME),
        ("first_received_at", _TIME),
        ("received_at", _TIME),
        ("deliveries", pa.int32()),
        ("origin", pa.string()),
        ("ordering_key", pa.string()),
        ("content_type", pa.string()),
        ("reason", pa.string()),
        ("description", pa.string()),
        ("redelivered", pa.bool_()),
        ("redrive_id", pa.string()),
        ("redrive_attempt", pa.int32()),
    ]
)

_LISTS: Final = frozenset(field.name for field in STAGED if pa.types.is_list(field.type))

#: One row per staged message, in the order of the staging file.
MESSAGES: Final = pa.schema(
    [
        ("message_id", pa.int64()),  # batch_id << 20 | row
        ("case_key", pa.int64()),  # a row of CASES; null for a message of a delay source
        ("message_key", pa.string()),  # what the manifest's message_key selects
        ("order_key", pa.string()),  # what the manifest's order_key selects
        ("fields", pa.string()),  # JSON of what the manifest's search selects, by selector
    ]
)

#: One row per distinct case: the messages whose failure is told apart from all others.
CASES: Final = pa.schema(
    [
        ("case_key", pa.int64()),
        ("messages", pa.int64()),
        ("cause", pa.string()),
        ("rule", pa.string()),
        ("confidence", pa.float32()),  # 0 to 1
        ("fingerprint", pa.string()),  # of the group, sixteen characters; many cases may share one
        ("template", pa.string()),  # of the group, whether the ledger knew it before or not
        ("example", pa.string()),  # a failure text of the group, in one row of each; nothing personal in it
        ("telling", pa.string()),  # another template, by which the group is known too; null where there is none
    ]
)

MAX_EXAMPLE: Final = 2000  # characters
MAX_SEARCHED: Final = 1000  # characters


def open_staged(stream: pa.NativeFile) -> pq.ParquetFile:
    """The batch file in ``stream``, each page of which is held against its checksum as it is read: in a page that is
    not what was written Parquet often sees no error, but other values.

    Raises ``pyarrow.ArrowException`` or ``OSError`` where the end of the file, which has no checksum and says what is
    where, is damaged: a bit of it may have renamed a column, or made other values of the same bytes.
    """
    try:
        file = pq.ParquetFile(stream, page_checksum_verification=True)
        found, metadata = file.schema_arrow, file.metadata
        rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    except (pa.ArrowException, OSError, MemoryError):
        raise
    except Exception as error:  # a name that is no text, for one
        raise pa.ArrowInvalid(str(error)) from error
    for field in STAGED:
        at = found.get_field_index(field.name)
        if at < 0 or not found.field(at).equals(field):
            raise pa.ArrowInvalid(f"it has no column {field.name} as it was written")
    if rows != metadata.num_rows:
        raise pa.ArrowInvalid(f"it says that it has {metadata.num_rows} rows, and {rows} in its row groups")
    return file


def read_through(stream: pa.NativeFile) -> None:
    """Read every byte of a file, some at a time; ``OSError`` where its store doesn't give them."""
    while stream.read(_AT_ONCE):
        pass


def read_group(file: pq.ParquetFile, number: int, columns: Sequence[str]) -> pa.Table:
    """These columns of a row group of a batch file.

    Raises ``pyarrow.ArrowInvalid`` where there is less of them than was written: the beginnings of pages have no
    checksum, and one that tells of fewer values loses the last header.
    """
    table = file.read_row_group(number, columns=list(columns), use_threads=False)
    written = file.metadata.row_group(number)
    if len(table) != written.num_rows:
        raise pa.ArrowInvalid(f"row group {number} has {len(table)} rows and had {written.num_rows}")
    for name in _LISTS.intersection(columns):
        lengths = pc.list_value_length(table.column(name))  # without a scalar: pyarrow.scalar waits for pandas
        filled = pc.sum(lengths.cast(pa.bool_())).as_py() or 0
        values = (pc.sum(lengths).as_py() or 0) + len(table) - filled  # an empty list is written too
        for leaf in map(written.column, range(written.num_columns)):
            if leaf.path_in_schema.startswith(f"{name}.") and leaf.num_values != values:
                raise pa.ArrowInvalid(f"{name} of row group {number} are {values} and were {leaf.num_values}")
    return table


def messages_file(batch_id: int) -> str:
    """The name of the file, in the folder of messages, that answers for a batch."""
    return f"batch-{batch_id}.parquet"
