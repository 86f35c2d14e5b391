"""Schemas as they are registered, so that bytes go out under the one with which they were written.

Needs inner parts of the client library, which has no public way to write bytes under any schema but BYTES.
"""

import pulsar
from _pulsar import SchemaInfo, SchemaType

from redrive.brokers.pulsar.admin import Admin
from redrive.errors import MessageRefused, QueueMissing


class RawSchema(pulsar.schema.Schema):  # type: ignore[misc]
    """Bytes as they are, under the schema with which they were written."""

    def __init__(self, kind: str, definition: str) -> None:
        self._record_cls = bytes
        self._schema_info = SchemaInfo(getattr(SchemaType, kind), kind, definition)

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


def registered(admin: Admin, name: str) -> RawSchema:
    """The schema ``topic@version``; :class:`~redrive.errors.MessageRefused` where it can't be had any more."""
    topic, _, version = name.rpartition("@")
    try:
        kind, definition = admin.schema(topic, int(version))
    except QueueMissing:
        raise MessageRefused(f"its schema {name} is no longer registered") from None
    # Of two schemas in one the API tells another form than is registered: a producer with it would wait in vain.
    if kind == "KEY_VALUE" or not hasattr(SchemaType, kind):
        raise MessageRefused(f"its schema {name} is of type {kind}, which the client library can't write")
    return RawSchema(kind, definition)
