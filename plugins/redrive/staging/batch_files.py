"""Staging: dead letters as Parquet files under any Arrow filesystem, written durably and read slice by slice.

A batch file holds every byte of every copy (bodies are bytes, headers keep their types). It is durable when
:meth:`BatchWriter.close` returns, and only then may it be recorded in the ledger. Memory stays flat: rows are
written in row groups of at most :data:`GROUP_ROWS` rows or :data:`GROUP_BYTES` bytes of bodies, and read
row group by row group.

Nothing that lies there is ever overwritten. The name of a batch file has a random part, because the number of its batch
is no promise: a ledger that was restored from a backup counts anew, and two ledgers may share a folder.
"""

import os
import re
import secrets
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from redrive.errors import PathTaken, StagingError
from redrive.message import (
    FIRST_MOMENT,
    LAST_MOMENT,
    TYPE_ATTRIBUTE,
    DeadLetter,
    Header,
    Micros,
    body_hash,
    message_type,
    read_tracking,
)
from redrive.staging import file_schemas, filesystems

GROUP_ROWS = 5_000
GROUP_BYTES = 8 * 1024 * 1024

SCHEMA = file_schemas.STAGED
_TIME = SCHEMA.field("enqueued_at").type
_HEADER = SCHEMA.field("headers").type.value_type
_PROPERTY = SCHEMA.field("properties").type.value_type
_PAYLOAD_COLUMNS = [
    "row",
    "broker_message_id",
    "body",
    "headers",
    "properties",
    "enqueued_at",
    "dead_lettered_at",
    "first_received_at",
    "deliveries",
    "origin",
    "ordering_key",
    "content_type",
    "reason",
    "description",
    "redelivered",
]
_EVIDENCE_COLUMNS = [
    *("row", "source", "broker_message_id", "body_hash", "enqueued_at", "dead_lettered_at", "redelivered"),
    *("redrive_id", "redrive_attempt"),
]
_PROOF_COLUMNS = ["batch_id", "row", "body_hash", "origin", "redrive_id", "redrive_attempt"]
_DESCRIBING_COLUMNS = [
    *("batch_id", "row", "source", "kind", "broker_message_id", "body_hash", "body_bytes"),
    *("enqueued_at", "dead_lettered_at", "received_at", "deliveries", "origin", "redrive_id", "redrive_attempt"),
]


#: What a Parquet file ends with.
_END = b"PAR1"
#: A batch file: its number, the ledger that wrote it, and what makes the name one of its kind. Names had no more than
#: the number once.
_BATCH_FILE = re.compile(r"batch-(\d{12,19})(?:-([0-9a-z]+)-[0-9a-f]+)?\.parquet")


class BatchFile(NamedTuple):
    """A file that is named like a batch's."""

    path: str  # relative to the staging folder
    route: str
    batch_id: int  # when it was written
    ledger_id: str  # of the ledger that wrote it; "" where the name is too old to say


class Staging:
    """A folder of staging files: a local path, or a URI such as ``s3://bucket/prefix`` or ``gs://…``.

    :func:`redrive.connections.storage.staging` opens that of a configuration, with its credentials.
    """

    def __init__(self, location: str, access: filesystems.Access | None = None) -> None:
        self.location = location
        self._access = access
        try:
            self.filesystem, self.root = filesystems.locate(location, access)
        except (pa.ArrowInvalid, OSError) as error:
            raise StagingError(f"staging: {location}: {error}") from error
        self.is_local = isinstance(self.filesystem, pafs.LocalFileSystem)
        self._open: _OpenFile | None = None

    def new_path(self, route: str, source: str, batch_id: int, ledger_id: str) -> str:
        """A path for batch ``batch_id`` that was never given before, relative to the staging folder."""
        return f"{_folder(route, source)}/batch-{batch_id:012d}-{ledger_id}-{secrets.token_hex(8)}.parquet"

    def batch_files(self, route: str | None = None, source: str | None = None) -> Iterator[BatchFile]:
        """Every batch file of a route's source, of a route, or of all, folder by folder."""
        if route is None:
            for name in self.names(""):
                if name.endswith("/"):
                    yield from self.batch_files(name.rstrip("/"))
            return
        if source is None:
            folders = [f"{route}/{name.rstrip('/')}" for name in self.names(route) if name.endswith("/")]
        else:
            folders = [_folder(route, source)]
        for folder in folders:
            for name in self.names(folder):
                if match := _BATCH_FILE.fullmatch(name):
                    yield BatchFile(f"{folder}/{name}", route, int(match[1]), match[2] or "")

    def newest_batch(self, ledger_id: str, route: str | None = None, source: str | None = None) -> int:
        """The greatest number of a batch that ``ledger_id`` may have written there; 0 when it has written none."""
        files = self.batch_files(route, source)
        return max((file.batch_id for file in files if file.ledger_id in (ledger_id, "")), default=0)

    def uri(self, relative: str) -> str:
        """``relative`` as Spark and people name it."""
        if self.is_local:
            return f"{self.root}/{relative}"
        return f"{self.location.rstrip('/')}/{relative}"

    def full_path(self, relative: str) -> str:
        """``relative`` as Arrow filesystems name it."""
        return f"{self.root}/{relative}"

    def writer(self, relative: str, *, batch_id: int, route: str, source: str, kind: str, broker: str) -> "BatchWriter":
        """Begin the file of one batch."""
        constants = {"batch_id": batch_id, "route": route, "source": source, "kind": kind, "broker": broker}
        return BatchWriter(self, relative, constants)

    def write_bytes(self, relative: str, content: bytes) -> str:
        """Write a small file (a manifest); returns its URI.

        It isn't made durable: nothing is settled on the strength of it, and a run that lost it fails and is repeated.
        """
        path = self.full_path(relative)
        with _staging_errors(path):
            self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            with self.filesystem.open_output_stream(path) as stream:
                stream.write(content)
        return self.uri(relative)

    def read_json(self, relative: str) -> Any:
        """The content of a small file that :meth:`write_bytes` wrote."""
        path = self.full_path(relative)
        with _staging_errors(path):
            return filesystems.read_json(self.uri(relative), self._access)

    def remove(self, relative: str) -> None:
        """Remove a file or folder; it may be gone already."""
        path = self.full_path(relative)
        with _staging_errors(path):
            info = self.filesystem.get_file_info(path)
            try:
                if info.type == pafs.FileType.Directory:
                    self.filesystem.delete_dir(path)
                elif info.type == pafs.FileType.File:
                    self.filesystem.delete_file(path)
            except FileNotFoundError:
                pass  # somebody else was faster

    def names(self, relative: str) -> list[str]:
        """What lies directly in a folder: names, those of folders with a ``/`` at the end; [] when it isn't there."""
        path = self.full_path(relative).rstrip("/")
        with _staging_errors(path):
            found = self.filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return sorted(
            f"{info.base_name}/" if info.type == pafs.FileType.Directory else info.base_name for info in found
        )

    def copies(self, relative: str) -> int:
        """How many copies the batch file holds, from its footer. Raises :class:`StagingError` when it is damaged."""
        path = self.full_path(relative)
        with _staging_errors(path), self.filesystem.open_input_file(path) as stream:
            return int(pq.read_metadata(stream).num_rows)

    def exists(self, relative: str) -> bool:
        """Whether a file lies there."""
        path = self.full_path(relative)
        with _staging_errors(path):
            return bool(self.filesystem.get_file_info(path).type == pafs.FileType.File)

    def finished(self, relative: str) -> "Written | None":
        """What a batch file holds that was written to its end; None for one that wasn't, or isn't there.

        Raises :class:`StagingError` where that can't be told: it was written to its end and can't be read.
        """
        path = self.full_path(relative)
        with _staging_errors(path):
            if not self.exists(relative):
                return None
            with self.filesystem.open_input_file(path) as stream:
                size = stream.size()
                stream.seek(max(0, size - len(_END)))
                if size <= 2 * len(_END) or stream.read(len(_END)) != _END:  # it begins with the same letters
                    return None  # whoever wrote it died
                file = pq.ParquetFile(stream)
                sizes = file.read(columns=["body_bytes"]).column("body_bytes")
                return Written(file.metadata.num_rows, pc.sum(sizes).as_py() or 0)

    def is_damaged(self, relative: str) -> bool:
        """A batch file could not be read: whether the file is to blame, which is missing or no longer what was written.

        False where it can be read after all, or where the store can't be reached: then waiting may help.
        """
        path = self.full_path(relative)
        try:
            if self.filesystem.get_file_info(self.full_path(relative.partition("/")[0])).type == pafs.FileType.NotFound:
                return False  # not one file is gone, but the place of all
            with self.filesystem.open_input_file(path) as stream:
                while stream.read(GROUP_BYTES):
                    pass
        except FileNotFoundError:
            return True
        except (pa.ArrowException, OSError):
            return False
        try:
            with self.filesystem.open_input_file(path) as stream:
                file = pq.ParquetFile(stream)
                for group in range(file.num_row_groups):
                    file.read_row_group(group, columns=SCHEMA.names)
        except (pa.ArrowException, OSError):
            return True
        return False

    def proof(self, relative: str, *, bodies: bool) -> pa.Table:
        """Of every copy of a batch file its id, hash and tracking; with ``bodies`` each body is held against its hash.

        At most one row group is in memory. Raises :class:`StagingError` when the file is damaged.
        """
        path, parts = self.full_path(relative), []
        with _staging_errors(path), self.filesystem.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=[*_PROOF_COLUMNS, *(["body"] if bodies else [])])
                if bodies:
                    pairs = zip(table.column("body").to_pylist(), table.column("body_hash").to_pylist(), strict=True)
                    wrong = sum(1 for body, known in pairs if body_hash(body) != known)
                    if wrong:
                        raise StagingError(f"{path}: {wrong} bodies are not what was staged")
                parts.append(table.select(_PROOF_COLUMNS))
            return pa.concat_tables(parts) if parts else SCHEMA.empty_table().select(_PROOF_COLUMNS)

    def source_of(self, relative: str) -> tuple[str, str]:
        """The queue that a batch file was drained from, and its kind; raises :class:`StagingError` if it is empty."""
        path = self.full_path(relative)
        with _staging_errors(path), self.filesystem.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            if not file.metadata.num_rows:
                raise StagingError(f"{path}: holds no copies")
            (row,) = file.read_row_group(0, columns=["source", "kind"]).slice(0, 1).to_pylist()
            return str(row["source"]), str(row["kind"])

    def copy_batch(self, old: str, new: str, batch_id: int) -> "Written":
        """Write the copies of one batch file to another, as batch ``batch_id``; it is durable when this returns."""
        path = self.full_path(old)
        with _staging_errors(path), self.filesystem.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            writer = BatchWriter(self, new, {"batch_id": batch_id})
            try:
                for group in range(file.num_row_groups):
                    writer.add_table(file.read_row_group(group))
                return writer.close()
            except BaseException:
                writer.abort(remove=False)
                raise

    def evidence(self, relative: str) -> pa.Table:
        """Of every copy of a batch file what tells it from others, in row order and without payloads."""
        path = self.full_path(relative)
        with _staging_errors(path), self.filesystem.open_input_file(path) as stream:
            return pq.read_table(stream, columns=_EVIDENCE_COLUMNS)

    def carrying(self, relative: str, rows: Sequence[int], wanted: Mapping[str, AbstractSet[str]]) -> list[int]:
        """Those of ``rows`` (ascending) whose headers hold, for every name of ``wanted``, one of its values; or whose
        message type is one, for :data:`~redrive.message.TYPE_ATTRIBUTE`.

        Of a header that occurs more than once the last counts. Bodies are not read; at most the headers of one row
        group are in memory.
        """
        path, found, start = self.full_path(relative), [], 0
        with _staging_errors(path), self.filesystem.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            for group in range(file.num_row_groups):
                end = start + file.metadata.row_group(group).num_rows
                picked = rows[bisect_left(rows, start) : bisect_left(rows, end)]
                if picked:
                    by_type = wanted.get(TYPE_ATTRIBUTE)
                    columns = ["headers"] if by_type is None else ["headers", "properties"]
                    table = file.read_row_group(group, columns=columns)
                    carriers = _carriers(table.column("headers"), wanted)
                    rows_here = [row for row in picked if row - start in carriers]
                    found += rows_here if by_type is None else _of_types(table, rows_here, start, by_type)
                start = end
        if rows and rows[-1] >= start:
            raise StagingError(f"{path}: has no row {rows[-1]}")
        return found

    def headers(self, relative: str, rows: Sequence[int]) -> Iterator[tuple[int, tuple[Header, ...]]]:
        """The headers of the copies at ``rows`` (ascending); bodies are not read, and at most the headers of one row
        group are in memory."""
        path, start = self.full_path(relative), 0
        with _staging_errors(path), self.filesystem.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            for group in range(file.num_row_groups):
                end = start + file.metadata.row_group(group).num_rows
                picked = rows[bisect_left(rows, start) : bisect_left(rows, end)]
                if picked:
                    column = file.read_row_group(group, columns=["headers"]).column("headers")
                    wanted = column.take(pa.array([row - start for row in picked], pa.int64()))
                    yield from zip(picked, _lists(wanted, _headers), strict=True)
                start = end

    def described(self, relative: str) -> pa.Table:
        """Of every copy of a batch file what the ledger keeps of it, in row order and without payloads."""
        path = self.full_path(relative)
        with _staging_errors(path), self.filesystem.open_input_file(path) as stream:
            return pq.read_table(stream, columns=_DESCRIBING_COLUMNS)

    def letters(self, relative: str, rows: Sequence[int]) -> Iterator[tuple[int, DeadLetter]]:
        """The copies at ``rows`` (ascending), one at a time; at most one row group is in memory.

        The last file and row group stay open for the next call, which most often goes on where this one ended.
        """
        path = self.full_path(relative)
        with _staging_errors(path):
            if self._open is None or self._open.path != path:
                self.close()
                self._open = _OpenFile(path, self.filesystem.open_input_file(path))
            file = self._open
        position = 0
        for group, (start, end) in enumerate(file.groups):
            picked = []
            while position < len(rows) and rows[position] < end:
                picked.append(rows[position] - start)
                position += 1
            if not picked:
                continue
            with _staging_errors(path):
                table = file.read(group)
                if picked[-1] - picked[0] + 1 == len(picked):
                    table = table.slice(picked[0], len(picked))  # neighbours: no copy
                else:
                    table = table.take(pa.array(picked, pa.int64()))
            yield from _to_letters(table)
        if position < len(rows):
            raise StagingError(f"{path}: has no row {rows[position]}")

    def close(self) -> None:
        """Close the file that :meth:`letters` keeps open."""
        if self._open is not None:
            self._open.stream.close()
            self._open = None


class _OpenFile:
    """A batch file that is being read, with the row group that was read last."""

    def __init__(self, path: str, stream: pa.NativeFile) -> None:
        self.path = path
        self.stream = stream
        self._file = pq.ParquetFile(stream)
        self.groups: list[tuple[int, int]] = []  # first row and the row after the last
        start = 0
        for group in range(self._file.num_row_groups):
            end = start + self._file.metadata.row_group(group).num_rows
            self.groups.append((start, end))
            start = end
        self._group = -1
        self._table: pa.Table = None

    def read(self, group: int) -> pa.Table:
        """The payload columns of row group ``group``, in one chunk."""
        if group != self._group:
            self._table = None  # never two at a time
            self._table = self._file.read_row_group(group, columns=_PAYLOAD_COLUMNS).combine_chunks()
            self._group = group
        return self._table


@dataclass(slots=True)
class Written:
    """What a finished batch file holds."""

    copies: int
    bytes: int  # of bodies


class BatchWriter:
    """Writes one batch file, row group by row group; nothing of it counts before :meth:`close` returns."""

    def __init__(self, staging: Staging, relative: str, constants: dict[str, Any]) -> None:
        self._staging = staging
        self._path = staging.full_path(relative)
        self._constants = constants
        self._letters: list[DeadLetter] = []
        self._received: list[Micros] = []
        self._pending_bytes = 0
        self.copies = 0
        self.bytes = 0
        folder = self._path.rpartition("/")[0]
        self._folders = _folders_to_sync(folder, staging.root) if staging.is_local else []
        with _staging_errors(self._path):
            staging.filesystem.create_dir(folder, recursive=True)
            _take(staging, self._path)
            self._stream = staging.filesystem.open_output_stream(self._path)
            self._writer = pq.ParquetWriter(
                self._stream,
                SCHEMA,
                compression="zstd",
                compression_level=1,
                use_dictionary=[
                    "route",
                    "source",
                    "kind",
                    "broker",
                    "origin",
                    "content_type",
                    "ordering_key",
                ],
                write_statistics=["batch_id", "row"],
            )

    def add(self, letters: Sequence[DeadLetter], received_at: Micros) -> None:
        """Add copies received at ``received_at``; they get the next row numbers."""
        if not all(type(letter.body) is bytes for letter in letters):
            letters = [letter if type(letter.body) is bytes else as_far_as_possible(letter) for letter in letters]
        self._letters.extend(letters)
        self._received.extend([received_at] * len(letters))
        size = sum([len(letter.body) for letter in letters])
        self.copies += len(letters)
        self.bytes += size
        self._pending_bytes += size
        if len(self._letters) >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._write_group()

    def add_table(self, table: pa.Table) -> None:
        """Add a row group of another batch file; its copies get the next row numbers, and this batch's id."""
        count = len(table)
        for name, values in (
            ("batch_id", pa.repeat(pa.scalar(self._constants["batch_id"], pa.int64()), count)),
            ("row", pa.array(range(self.copies, self.copies + count), pa.int32())),
        ):
            table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), values)
        self.copies += count
        self.bytes += pc.sum(table.column("body_bytes")).as_py() or 0
        with _staging_errors(self._path):
            self._writer.write_table(table.select(SCHEMA.names).cast(SCHEMA))

    def close(self) -> Written:
        """Finish the file and make it durable: fsync of the file and of the folders that lead to it, or the end of the
        upload."""
        with _staging_errors(self._path):
            if self._letters:
                self._write_group()
            self._writer.close()
            self._stream.close()
            if self._staging.is_local:
                _fsync(self._path)
                _fsync(*self._folders)
        return Written(self.copies, self.bytes)

    def abort(self, *, remove: bool) -> None:
        """Give up: close what is open, in whatever state it is, and ``remove`` the file."""
        for closing in (self._writer.close, self._stream.close):
            try:
                closing()
            except (pa.ArrowException, OSError, ValueError):
                pass  # a half-written file can't be closed properly
        if remove:
            try:
                self._staging.filesystem.delete_file(self._path)
            except OSError:
                pass  # never became visible (object stores), or is gone already

    def _write_group(self) -> None:
        letters, self._letters = self._letters, []
        received, self._received = self._received, []
        self._pending_bytes = 0
        first = self.copies - len(letters)
        try:
            table = _to_table(letters, received, self._constants, first)
        except _NOT_CONVERTED:  # of thousands, most often one: what it is keeps neither the others nor itself out
            table = _one_by_one(letters, received, self._constants, first)
        with _staging_errors(self._path):
            self._writer.write_table(table)


def _to_table(letters: list[DeadLetter], received: list[Micros], constants: dict[str, Any], first: int) -> pa.Table:
    # Column by column from plain lists: about ten times cheaper than a dict per row.
    count = len(letters)
    (ids, bodies, headers, properties, enqueued, dead, first_received, deliveries) = ([] for _ in range(8))
    (origins, keys, types, reasons, descriptions, redelivered) = ([] for _ in range(6))
    redrive_ids: list[str | None] = []
    attempts: list[int | None] = []
    for letter in letters:
        (a, b, c, d, e, f, g, h, i, j, k, m, n, o) = letter
        ids.append(a)
        bodies.append(b)
        headers.append(c)
        properties.append(d)
        enqueued.append(e)
        dead.append(f)
        first_received.append(g)
        deliveries.append(h)
        origins.append(i)
        keys.append(j)
        types.append(k)
        reasons.append(m)
        descriptions.append(n)
        redelivered.append(o)
        tracking = read_tracking(c) if c else None
        redrive_ids.append(tracking.redrive_id if tracking else None)
        attempts.append(tracking.attempt if tracking else None)
    constant = [pa.repeat(pa.scalar(constants[name], SCHEMA.field(name).type), count) for name in SCHEMA.names[:5]]
    columns = [
        *constant,
        pa.array(range(first, first + count), pa.int32()),
        _strings(ids),
        pa.array(bodies, pa.binary()),
        pa.array([body_hash(body) for body in bodies], pa.binary()),
        pa.array([len(body) for body in bodies], pa.int32()),
        _header_column(headers),
        _property_column(properties),
        _times(enqueued),
        _times(dead),
        _times(first_received),
        _times(received),
        pa.array(deliveries, pa.int32()),
        _strings(origins),
        _strings(keys),
        _strings(types),
        _strings(reasons),
        _strings(descriptions),
        pa.array(redelivered, pa.bool_()),
        _strings(redrive_ids),
        pa.array(attempts, pa.int32()),
    ]
    return pa.table(columns, schema=SCHEMA)


#: What Arrow and Python say of a value that can't become one of a column.
_NOT_CONVERTED = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
#: A property of a copy that could not be staged as it came: it names what was changed.
CHANGED = "redrive-staged-without"
_MOST_DELIVERIES = 2**31 - 1


def _one_by_one(
    letters: Sequence[DeadLetter], received: Sequence[Micros], constants: dict[str, Any], first: int
) -> pa.Table:
    """As :func:`_to_table`, copy by copy: those that can't be converted as they are, as far as possible."""
    rows = []
    for number, (letter, moment) in enumerate(zip(letters, received, strict=True), first):
        try:
            rows.append(_to_table([letter], [moment], constants, number))
        except _NOT_CONVERTED:
            rows.append(_to_table([as_far_as_possible(letter)], [moment], constants, number))
    return pa.concat_tables(rows).combine_chunks()


def as_far_as_possible(letter: DeadLetter) -> DeadLetter:
    """The copy with every value in a form that can be staged: the body byte for byte, numbers and times within their
    bounds, texts as texts; what had to be changed is named in a property."""
    changed: list[str] = []

    def kept(name: str, before: Any, after: Any) -> Any:
        if after != before or type(after) is not type(before):
            changed.append(name)
        return after

    def text(name: str, value: Any) -> Any:
        return kept(name, value, value if value is None or isinstance(value, str) else _text(value))

    def moment(name: str) -> Any:
        value = getattr(letter, name)
        fits = isinstance(value, int) and FIRST_MOMENT <= value <= LAST_MOMENT
        return kept(name, value, value if fits else None)

    headers = [
        Header(_text(name), _text(kind), value if isinstance(value, str | bytes) else _text(value))
        for name, kind, value in _each(letter.headers, 3)
    ]
    if tuple(headers) != letter.headers:
        changed.append("headers")
    properties = [(_text(name), _text(value)) for name, value in _each(letter.properties, 2)]
    if tuple(properties) != letter.properties:
        changed.append("properties")
    deliveries = letter.deliveries if isinstance(letter.deliveries, int) else 0
    whole = letter._replace(
        broker_message_id=kept("broker_message_id", letter.broker_message_id, _text(letter.broker_message_id)),
        body=kept("body", letter.body, letter.body if isinstance(letter.body, bytes) else _bytes(letter.body)),
        headers=tuple(headers),
        enqueued_at=moment("enqueued_at"),
        dead_lettered_at=moment("dead_lettered_at"),
        first_received_at=moment("first_received_at"),
        deliveries=kept("deliveries", letter.deliveries, max(0, min(deliveries, _MOST_DELIVERIES))),
        origin=text("origin", letter.origin),
        ordering_key=text("ordering_key", letter.ordering_key),
        content_type=text("content_type", letter.content_type),
        reason=text("reason", letter.reason),
        description=text("description", letter.description),
        redelivered=kept("redelivered", letter.redelivered, bool(letter.redelivered)),
    )
    return whole._replace(properties=(*properties, (CHANGED, ", ".join(dict.fromkeys(changed)))))


def _each(values: Any, width: int) -> list[tuple[Any, ...]]:
    """Those of ``values`` that have so many parts."""
    those = values if isinstance(values, tuple | list) else ()
    return [tuple(one) for one in those if isinstance(one, tuple | list) and len(one) == width]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return "" if value is None else str(value)
    except Exception:  # whatever an object from outside says of itself
        return f"<{type(value).__name__}>"


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return _text(value).encode("utf-8", "surrogatepass")


def _strings(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:  # lone surrogates, from a broker that does not check its text
        return pa.array([v if v is None else v.encode("utf-8", "replace").decode() for v in values], pa.string())


def _times(values: Sequence[Micros | None]) -> pa.Array:
    array = pa.array(values, pa.int64())
    bounds = pc.min_max(array).as_py()
    if bounds["min"] is not None and not FIRST_MOMENT <= bounds["min"] <= bounds["max"] <= LAST_MOMENT:
        raise ValueError("a time beyond the year 9999")  # nothing could read it
    return array.cast(_TIME)


def _header_column(rows: list[tuple[Header, ...]]) -> pa.Array:
    offsets, total = [0], 0
    for row in rows:
        total += len(row)
        offsets.append(total)
    flat = [header for row in rows for header in row]
    values = [header[2] for header in flat]
    texts = _strings([value if isinstance(value, str) else None for value in values])
    data = pa.array([value if isinstance(value, bytes) else None for value in values], pa.binary())
    if texts.null_count + data.null_count != len(values):
        raise TypeError("a header that is neither text nor bytes")  # its value would be lost
    struct = pa.StructArray.from_arrays(
        [_strings([header[0] for header in flat]), _strings([header[1] for header in flat]), texts, data],
        fields=list(_HEADER),
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), struct)


def _property_column(rows: list[tuple[tuple[str, str], ...]]) -> pa.Array:
    offsets, total = [0], 0
    for row in rows:
        total += len(row)
        offsets.append(total)
    flat = [pair for row in rows for pair in row]
    struct = pa.StructArray.from_arrays(
        [_strings([pair[0] for pair in flat]), _strings([pair[1] for pair in flat])], fields=list(_PROPERTY)
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), struct)


def _carriers(headers: pa.ChunkedArray, wanted: Mapping[str, AbstractSet[str]]) -> AbstractSet[int]:
    """Positions in ``headers`` that carry one of the values of every wanted name."""
    array = headers.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    owners, flat = pc.list_parent_indices(array), pc.list_flatten(array)
    names, texts, data = (pc.struct_field(flat, field) for field in ("name", "text", "data"))
    carriers: set[int] | None = None
    for name, values in wanted.items():
        if name == TYPE_ATTRIBUTE:
            continue
        named = pc.equal(names, name)
        columns = [column.filter(named).to_pylist() for column in (owners, texts, data)]
        last = {
            owner: raw.decode("utf-8", "replace") if text is None and raw is not None else text
            for owner, text, raw in zip(*columns, strict=True)
        }
        carrying = {owner for owner, value in last.items() if value in values}
        carriers = carrying if carriers is None else carriers & carrying
    return set(range(len(array))) if carriers is None else carriers


def _of_types(table: pa.Table, rows: Sequence[int], start: int, types: AbstractSet[str]) -> list[int]:
    """Those of ``rows``, counted from ``start`` in ``table``, whose message says that it is of one of the ``types``."""
    picked = table.take(pa.array([row - start for row in rows], pa.int64()))
    each = zip(rows, *(_lists(picked.column(name), _LISTS[name]) for name in ("headers", "properties")), strict=True)
    return [row for row, headers, properties in each if message_type(headers, properties) in types]


def _to_letters(table: pa.Table) -> Iterator[tuple[int, DeadLetter]]:
    # Column by column and without a name for each field: a slice of a delivery makes thousands of these.
    columns = [
        _lists(table.column(name), _LISTS[name]) if name in _LISTS else _column(table, name)
        for name in DeadLetter._fields
    ]
    yield from zip(table.column("row").to_pylist(), map(DeadLetter._make, zip(*columns, strict=True)), strict=True)


def _column(table: pa.Table, name: str) -> list[Any]:
    column = table.column(name)
    if column.null_count == len(column):
        return [None] * len(column)
    return list((column.cast(pa.int64()) if column.type == _TIME else column).to_pylist())


def _lists(column: pa.ChunkedArray, make: Callable[[pa.StructArray], list[Any]]) -> list[tuple[Any, ...]]:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    flat = make(array.flatten())
    if not flat:
        return [()] * len(array)
    found, start = [], 0
    for length in array.value_lengths().to_pylist():
        end = start + (length or 0)
        found.append(tuple(flat[start:end]))
        start = end
    return found


def _headers(struct: pa.StructArray) -> list[Header]:
    names, types, texts, data = (struct.field(i).to_pylist() for i in range(4))
    values = (
        texts
        if struct.field(3).null_count == len(struct)
        else [text if text is not None else raw for text, raw in zip(texts, data, strict=True)]
    )
    return list(map(Header._make, zip(names, types, values, strict=True)))


def _properties(struct: pa.StructArray) -> list[tuple[str, str]]:
    return list(zip(struct.field(0).to_pylist(), struct.field(1).to_pylist(), strict=True))


_LISTS: dict[str, Callable[[Any], list[Any]]] = {"headers": _headers, "properties": _properties}


def _folder(route: str, source: str) -> str:
    """Where the batches of a source are; its name is made safe for paths."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in source).strip(".") or "source"
    return f"{route}/{safe}"


def _take(staging: Staging, path: str) -> None:
    """Make sure that ``path`` is ours: raises :class:`PathTaken` when something lies there."""
    if not staging.is_local:
        # An object store can't be asked for more through Arrow; the name's random part is what keeps files apart.
        if staging.filesystem.get_file_info(path).type != pafs.FileType.NotFound:
            raise PathTaken(f"{path}: there is a file already")
        return
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError as error:
        raise PathTaken(f"{path}: there is a file already") from error


def _folders_to_sync(folder: str, root: str) -> list[str]:
    """The folders that have to be durable for a file in ``folder`` to be: a new folder is an entry of its parent.

    Those below ``root`` always, as another task may have made them a moment ago; beyond it what isn't there yet, and
    the first that is.
    """
    found = []
    for path in (Path(folder), *Path(folder).parents):
        found.append(str(path))
        if path.exists() and Path(root).is_relative_to(path):
            break
    return found


def _fsync(*paths: str) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _staging_errors:  # noqa: N801 - reads as the statement it stands in
    """Turns Arrow's and the system's errors into :class:`StagingError` that names the path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, pa.ArrowException | OSError):
            raise StagingError(f"{self._path}: {error}") from error
