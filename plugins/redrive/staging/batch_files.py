"""Staging: dead letters as Parquet files under any Arrow filesystem, written durably and read slice by slice.

A batch file holds every byte of every copy (bodies are bytes, headers keep their types). It is durable when
:meth:`BatchWriter.close` returns, and only then may it be recorded in the ledger. Files are written and read row group
by row group, so memory stays flat.

Nothing that lies there is ever overwritten. The name of a batch file has a random part, because the number of its batch
is no promise: a ledger that was restored from a backup counts anew, and two ledgers may share a folder.
"""

import re
import secrets
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from redrive.errors import RedriveError, StagingError
from redrive.message import TYPE_ATTRIBUTE, DeadLetter, Header, body_hash
from redrive.staging import file_schemas, filesystems
from redrive.staging.batch_columns import SCHEMA, carriers_of, headers_of, of_types, to_letters
from redrive.staging.batch_writer import BatchWriter, Written, staging_errors

_PAYLOAD_COLUMNS = [
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


#: Copies that are made letters at once: few enough to be made while a part of a window is on the wire.
PORTION = 500
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

    def batch_files(self, route: str | None = None) -> Iterator[BatchFile]:
        """Every batch file of a route, or of all, folder by folder."""
        if route is None:
            for name in self.names(""):
                if name.endswith("/"):
                    yield from self.batch_files(name.rstrip("/"))
            return
        for folder in [f"{route}/{name.rstrip('/')}" for name in self.names(route) if name.endswith("/")]:
            for name in self.names(folder):
                if match := _BATCH_FILE.fullmatch(name):
                    yield BatchFile(f"{folder}/{name}", route, int(match[1]), match[2] or "")

    @staticmethod
    def ledger_of(relative: str) -> str:
        """Which ledger wrote the batch's file of this path; "" where its name doesn't say."""
        match = _BATCH_FILE.fullmatch(relative.rpartition("/")[2])
        return match[2] or "" if match else ""

    def newest_batch(self, ledger_id: str, route: str | None = None) -> int:
        """The greatest number of a batch that ``ledger_id`` may have written there; 0 when it has written none."""
        files = self.batch_files(route)
        return max((file.batch_id for file in files if file.ledger_id in (ledger_id, "")), default=0)

    def uri(self, relative: str) -> str:
        """``relative`` as Spark and people name it."""
        if self.is_local:
            return f"{self.root}/{relative}"
        return f"{self.location.rstrip('/')}/{relative}"

    def full_path(self, relative: str) -> str:
        """``relative`` as Arrow filesystems name it."""
        return f"{self.root}/{relative}"

    def writer(
        self,
        relative: str,
        *,
        batch_id: int,
        route: str,
        source: str,
        kind: str,
        broker: str,
        by_origin: bool = False,
    ) -> BatchWriter:
        """Begin the file of one batch."""
        constants = {"batch_id": batch_id, "route": route, "source": source, "kind": kind, "broker": broker}
        return BatchWriter(self, relative, constants, by_origin=by_origin)

    def write_bytes(self, relative: str, content: bytes) -> str:
        """Write a small file (a manifest); returns its URI.

        It isn't made durable: nothing is settled on the strength of it, and a run that lost it fails and is repeated.
        """
        path = self.full_path(relative)
        with staging_errors(path):
            self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            with self.filesystem.open_output_stream(path) as stream:
                stream.write(content)
        return self.uri(relative)

    def read_json(self, relative: str) -> Any:
        """The content of a small file that :meth:`write_bytes` wrote."""
        path = self.full_path(relative)
        with staging_errors(path):
            return filesystems.read_json(self.uri(relative), self._access)

    def remove(self, relative: str) -> None:
        """Remove a file or folder; it may be gone already."""
        path = self.full_path(relative)
        with staging_errors(path):
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
        with staging_errors(path):
            found = self.filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return sorted(
            f"{info.base_name}/" if info.type == pafs.FileType.Directory else info.base_name for info in found
        )

    def copies(self, relative: str) -> int:
        """How many copies the batch file holds, from its footer. Raises :class:`StagingError` when it is damaged."""
        with self._reading(self.full_path(relative)) as file:
            return int(file.metadata.num_rows)

    @contextmanager
    def _reading(self, path: str) -> Iterator[pq.ParquetFile]:
        """The batch file at ``path``; whatever goes wrong with it in the block is a :class:`StagingError`."""
        with _damage_told(path), self.filesystem.open_input_file(path) as stream:
            yield file_schemas.open_staged(stream)

    def exists(self, relative: str) -> bool:
        """Whether a file lies there."""
        path = self.full_path(relative)
        with staging_errors(path):
            return bool(self.filesystem.get_file_info(path).type == pafs.FileType.File)

    def finished(self, relative: str) -> Written | None:
        """What a batch file holds that was written to its end; None for one that wasn't, or isn't there.

        Raises :class:`StagingError` where that can't be told: it was written to its end and can't be read.
        """
        path = self.full_path(relative)
        with staging_errors(path):
            if not self.exists(relative):
                return None
            with self.filesystem.open_input_file(path) as stream:
                size = stream.size()
                stream.seek(max(0, size - len(_END)))
                if size <= 2 * len(_END) or stream.read(len(_END)) != _END:  # it begins with the same letters
                    return None  # whoever wrote it died
                with _damage_told(path):
                    file = file_schemas.open_staged(stream)
                    sizes = file.read(columns=["body_bytes"]).column("body_bytes")
                    return Written(file.metadata.num_rows, pc.sum(sizes).as_py() or 0)

    def is_damaged(self, relative: str, row: int = -1) -> bool:
        """A batch file could not be read: whether the file is to blame, which is missing or no longer what was written.
        It had a ``row`` of this number.

        False where it can be read after all, or where the store can't be reached: then waiting may help.
        """
        path = self.full_path(relative)
        try:
            if self.is_gone(relative.partition("/")[0]):
                return False  # not one file is gone, but the place of all
            with self.filesystem.open_input_file(path) as stream:
                file_schemas.read_through(stream)
        except FileNotFoundError:
            return True
        except MemoryError:
            raise
        except (StagingError, pa.ArrowException, OSError):
            return False
        try:
            with self._reading(path) as file:
                start = 0
                for group in range(file.num_row_groups):
                    start += len(_whole(file, group, start))
                return row >= start
        except StagingError:
            return True

    def is_gone(self, route: str) -> bool:
        """Whether nothing at all of a route lies there: it never had a file, or this is not the place of its files."""
        path = self.full_path(route)
        with staging_errors(path):
            return bool(self.filesystem.get_file_info(path).type == pafs.FileType.NotFound)

    def proof(self, relative: str, *, bodies: bool) -> pa.Table:
        """Of every copy of a batch file its id, hash and tracking; with ``bodies`` each body is held against its hash,
        and all else is read too.

        At most one row group is in memory. Raises :class:`StagingError` when the file is damaged.
        """
        path, parts = self.full_path(relative), []
        with self._reading(path) as file:
            for group in range(file.num_row_groups):
                if not bodies:
                    parts.append(_valid(file_schemas.read_group(file, group, _PROOF_COLUMNS)))
                else:
                    parts.append(_whole(file, group, sum(map(len, parts))).select(_PROOF_COLUMNS))
            return pa.concat_tables(parts) if parts else SCHEMA.empty_table().select(_PROOF_COLUMNS)

    def source_of(self, relative: str) -> tuple[str, str]:
        """The queue that a batch file was drained from, and its kind; raises :class:`StagingError` if it is empty."""
        path = self.full_path(relative)
        with self._reading(path) as file:
            if not file.metadata.num_rows:
                raise StagingError(f"{path}: holds no copies")
            (row,) = file_schemas.read_group(file, 0, ["source", "kind"]).slice(0, 1).to_pylist()
            return str(row["source"]), str(row["kind"])

    def copy_batch(self, old: str, new: str, batch_id: int) -> Written:
        """Write the copies of one batch file to another, as batch ``batch_id``; it is durable when this returns."""
        path = self.full_path(old)
        with self._reading(path) as file:
            writer = BatchWriter(self, new, {"batch_id": batch_id})
            try:
                for group in range(file.num_row_groups):
                    writer.add_table(_whole(file, group, writer.copies))
                return writer.close()
            except BaseException:
                writer.abort(remove=False)
                raise

    def evidence(self, relative: str) -> pa.Table:
        """Of every copy of a batch file what tells it from others, in row order and without payloads."""
        path = self.full_path(relative)
        with self._reading(path) as file:
            return _valid(file.read(columns=_EVIDENCE_COLUMNS))

    def redelivered(self, relative: str) -> pa.ChunkedArray:
        """The hashes of the bodies of those copies of a batch file that had been delivered before."""
        path = self.full_path(relative)
        with self._reading(path) as file:
            table = _valid(file.read(columns=["body_hash", "redelivered"]))
            return table.column("body_hash").filter(table.column("redelivered"))

    def carrying(self, relative: str, rows: Sequence[int], wanted: Mapping[str, AbstractSet[str]]) -> list[int]:
        """Those of ``rows`` (ascending) whose headers hold, for every name of ``wanted``, one of its values; or whose
        message type is one, for :data:`~redrive.message.TYPE_ATTRIBUTE`.

        Of a header that occurs more than once the last counts. Bodies are not read; at most the headers of one row
        group are in memory.
        """
        path, found, start = self.full_path(relative), [], 0
        with self._reading(path) as file:
            for group in range(file.num_row_groups):
                end = start + file.metadata.row_group(group).num_rows
                picked = rows[bisect_left(rows, start) : bisect_left(rows, end)]
                if picked:
                    by_type = wanted.get(TYPE_ATTRIBUTE)
                    columns = ["headers"] if by_type is None else ["headers", "properties"]
                    table = file_schemas.read_group(file, group, columns)
                    carriers = carriers_of(table.column("headers"), wanted)
                    rows_here = [row for row in picked if row - start in carriers]
                    found += rows_here if by_type is None else of_types(table, rows_here, start, by_type)
                start = end
        if rows and rows[-1] >= start:
            raise StagingError(f"{path}: has no row {rows[-1]}")
        return found

    def headers(self, relative: str, rows: Sequence[int]) -> Iterator[tuple[int, tuple[Header, ...]]]:
        """The headers of the copies at ``rows`` (ascending); bodies are not read, and at most the headers of one row
        group are in memory."""
        path, start = self.full_path(relative), 0
        with self._reading(path) as file:
            for group in range(file.num_row_groups):
                end = start + file.metadata.row_group(group).num_rows
                picked = rows[bisect_left(rows, start) : bisect_left(rows, end)]
                if picked:
                    column = file_schemas.read_group(file, group, ["headers"]).column("headers")
                    wanted = column.take(pa.array([row - start for row in picked], pa.int64()))
                    yield from zip(picked, headers_of(wanted), strict=True)
                start = end

    def described(self, relative: str) -> pa.Table:
        """Of every copy of a batch file what the ledger keeps of it, in row order and without payloads."""
        path = self.full_path(relative)
        with self._reading(path) as file:
            return _valid(file.read(columns=_DESCRIBING_COLUMNS))

    def row_groups(self, relative: str) -> Iterator[tuple[pq.ParquetFile, int]]:
        """The row groups of a batch file one after the other, for who reads columns of them: the file, and the number
        of each. Raises :class:`StagingError` where the file can't be opened."""
        with self._reading(self.full_path(relative)) as file:
            for group in range(file.num_row_groups):
                yield file, group

    def letters(self, relative: str, rows: Sequence[int]) -> Iterator[list[DeadLetter]]:
        """The copies at ``rows`` (ascending), at most :data:`PORTION` of one row group at a time.

        The last file and row group stay open for the next call, which most often goes on where this one ended.
        """
        path = self.full_path(relative)
        for table in self._tables(relative, rows):
            yield from _portions(table, path)

    def payloads(self, relative: str, rows: Sequence[int], most: int) -> "Payloads":
        """The copies at ``rows`` (ascending), in memory, for several who each need some of them: the first ones, until
        they take ``most`` bytes or more, with their headers."""
        tables, here = list[pa.Table](), 0
        for table in self._tables(relative, rows):
            tables.append(table)
            here += len(table)
            most -= table.nbytes
            if most <= 0:
                break
        return Payloads(self.full_path(relative), rows[:here], pa.concat_tables(tables).combine_chunks())

    def _tables(self, relative: str, rows: Sequence[int]) -> Iterator[pa.Table]:
        """The payload columns of ``rows``, row group by row group."""
        path = self.full_path(relative)
        with _damage_told(path):
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
            with _damage_told(path):
                table = _at(file.read(group), picked)
            yield table
        if position < len(rows):
            raise StagingError(f"{path}: has no row {rows[position]}")

    def close(self) -> None:
        """Close the file that :meth:`letters` keeps open."""
        if self._open is not None:
            self._open.stream.close()
            self._open = None


class Payloads:
    """Copies at some rows of a batch file, in memory."""

    def __init__(self, path: str, rows: Sequence[int], table: pa.Table) -> None:
        self.bytes = int(table.nbytes)
        self._path = path
        self._rows = rows  # ascending
        self._table = table

    def letters(self, rows: Sequence[int]) -> Iterator[list[DeadLetter]] | None:
        """Those at ``rows`` (ascending), as :meth:`Staging.letters` gives them; None where not all are here."""
        places = [bisect_left(self._rows, row) for row in rows]
        if any(place == len(self._rows) or self._rows[place] != row for place, row in zip(places, rows, strict=True)):
            return None
        return _portions(_at(self._table, places), self._path)


def _at(table: pa.Table, places: Sequence[int]) -> pa.Table:
    """The rows at ``places`` (ascending)."""
    if places[-1] - places[0] + 1 == len(places):
        return table.slice(places[0], len(places))  # neighbours: no copy
    return table.take(pa.array(places, pa.int64()))


def _portions(table: pa.Table, path: str) -> Iterator[list[DeadLetter]]:
    for done in range(0, len(table), PORTION):
        with _damage_told(path):
            letters = to_letters(table.slice(done, PORTION))
        yield letters


@contextmanager
def _damage_told(path: str) -> Iterator[None]:
    """Turns whatever goes wrong while a file is read and made letters into :class:`StagingError` that names the path:
    damage shows in many ways, and only some of them are Arrow's errors."""
    try:
        yield
    except (RedriveError, MemoryError):  # Arrow's own lack of memory is one of its errors too
        raise
    except (pa.ArrowException, OSError) as error:
        raise StagingError(f"{path}: {error}") from error
    except Exception as error:
        raise StagingError(f"{path}: {error!r}") from error


def _valid(table: pa.Table) -> pa.Table:
    """The table; raises where a text in it is none, for example."""
    table.validate(full=True)
    return table


def _whole(file: pq.ParquetFile, group: int, start: int) -> pa.Table:
    """Row group ``group`` of a batch file with all that was staged, whose first row has the number ``start``. Raises
    where any of it can't be read or understood, or a body is not the one whose hash was written with it."""
    table = _valid(file_schemas.read_group(file, group, SCHEMA.names))
    _hold_rows(table, start, start + file.metadata.row_group(group).num_rows)
    for done in range(0, len(table), PORTION):
        to_letters(table.slice(done, PORTION))
    pairs = zip(table.column("body").to_pylist(), table.column("body_hash").to_pylist(), strict=True)
    wrong = sum(1 for body, known in pairs if body_hash(body) != known)
    if wrong:
        raise pa.ArrowInvalid(f"{wrong} bodies are not what was staged")
    return table


def _hold_rows(table: pa.Table, start: int, end: int) -> None:
    """Raise where the table has not the rows from ``start`` up to ``end``, as the copies number themselves."""
    rows = table.column("row")
    if len(rows) != end - start or (rows and (rows[0].as_py(), rows[-1].as_py()) != (start, end - 1)):
        raise pa.ArrowInvalid(f"rows {start} to {end - 1} are not where they were")


class _OpenFile:
    """A batch file that is being read, with the row group that was read last."""

    def __init__(self, path: str, stream: pa.NativeFile) -> None:
        self.path = path
        self.stream = stream
        self._file = file_schemas.open_staged(stream)
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
            table = file_schemas.read_group(self._file, group, [*_PAYLOAD_COLUMNS, "row"])
            _hold_rows(table, *self.groups[group])
            self._table = table.combine_chunks()
            self._group = group
        return self._table


def _folder(route: str, source: str) -> str:
    """Where the batches of a source are; its name is made safe for paths."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in source).strip(".") or "source"
    return f"{route}/{safe}"
