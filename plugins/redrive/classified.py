"""The contract between staging, the Spark job and the load: the columns of each file.

``STAGED`` is what the job reads, ``MESSAGES`` and ``GROUPS`` what it writes; each as a pyarrow schema and as
Spark DDL, so that neither side needs the other's library. Times are UTC, to the microsecond.
"""

from typing import Final

import pyarrow as pa

MESSAGES_DIR: Final = "messages"
GROUPS_DIR: Final = "groups"
SUCCESS_FILE: Final = "_SUCCESS"  # in both folders once they are complete

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

#: One row per staged message, sorted by ``message_id`` within each file.
MESSAGES: Final = pa.schema(
    [
        ("message_id", pa.int64()),  # batch_id << 20 | row
        ("batch_id", pa.int64()),
        ("row", pa.int32()),
        ("source", pa.string()),
        ("kind", pa.string()),
        ("broker_message_id", pa.string()),
        ("body_hash", pa.binary()),
        ("body_bytes", pa.int32()),
        ("enqueued_at", _TIME),
        ("dead_lettered_at", _TIME),
        ("received_at", _TIME),
        ("deliveries", pa.int32()),
        ("origin", pa.string()),
        ("ordering_key", pa.string()),
        ("redrive_id", pa.string()),
        ("redrive_attempt", pa.int32()),
        ("message_key", pa.string()),  # what the manifest's message_key selects
        ("order_key", pa.string()),  # what the manifest's order_key selects
        ("cause", pa.string()),  # null for a delay source, and so are rule, confidence and fingerprint
        ("rule", pa.string()),
        ("confidence", pa.float32()),  # 0 to 1
        ("fingerprint", pa.string()),  # 16 hexadecimal digits; a row of GROUPS
    ]
)

#: One row per group of this job, whether the ledger knew it before or not.
GROUPS: Final = pa.schema(
    [
        ("fingerprint", pa.string()),
        ("cause", pa.string()),
        ("template", pa.string()),
        (
            "example",
            pa.string(),
        ),  # one failure text, at most 2,000 characters, addresses and card numbers blanked
        ("messages", pa.int64()),
    ]
)

MAX_EXAMPLE: Final = 2000


def _ddl_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"ARRAY<{_ddl_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "STRUCT<" + ", ".join(f"{f.name}: {_ddl_type(f.type)}" for f in kind) + ">"
    return {
        pa.int64(): "BIGINT",
        pa.int32(): "INT",
        pa.float32(): "FLOAT",
        pa.bool_(): "BOOLEAN",
        pa.string(): "STRING",
        pa.binary(): "BINARY",
        _TIME: "TIMESTAMP",
    }[kind]


def ddl(schema: pa.Schema) -> str:
    """``schema`` as Spark writes it."""
    return ", ".join(f"`{field.name}` {_ddl_type(field.type)}" for field in schema)


STAGED_DDL: Final = ddl(STAGED)
MESSAGES_DDL: Final = ddl(MESSAGES)
GROUPS_DDL: Final = ddl(GROUPS)
