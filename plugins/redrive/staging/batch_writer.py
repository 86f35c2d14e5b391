"""Writes a batch file: nothing of it counts before it is durable, and nothing that lies there is overwritten."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from redrive.errors import PathTaken, StagingError
from redrive.message import DeadLetter, Micros
from redrive.staging.batch_columns import SCHEMA, to_table
from redrive.staging.odd_copies import as_far_as_possible

if TYPE_CHECKING:
    from redrive.staging.batch_files import Staging

#: A row group has at most so many rows, and bytes but for those of its last row.
GROUP_ROWS = 5_000
GROUP_BYTES = 8 * 1024 * 1024
#: Of so many copies the headers of one are looked at: where these have more bytes on average, those of all count.
SAMPLE, SMALL_HEADERS = 16, 2_000


@dataclass(slots=True)
class Written:
    """What a finished batch file holds."""

    copies: int
    bytes: int  # of bodies


class BatchWriter:
    """Writes one batch file, row group by row group; nothing of it counts before :meth:`close` returns.

    With ``by_origin`` the copies of a row group are in the order of their origins, and those of one as they came: what
    goes to one destination is together then, in the file and in the ledger.
    """

    def __init__(
        self, staging: "Staging", relative: str, constants: dict[str, Any], *, by_origin: bool = False
    ) -> None:
        self._staging = staging
        self._by_origin = by_origin
        self._path = staging.full_path(relative)
        self._constants = constants
        self._letters: list[DeadLetter] = []
        self._received: list[Micros] = []
        self._pending_weight = 0
        self.copies = 0
        self.bytes = 0  # of bodies
        self.weight = 0  # bytes of bodies, and of headers where they are large
        folder = self._path.rpartition("/")[0]
        self._folders = _folders_to_sync(folder, staging.root) if staging.is_local else []
        with staging_errors(self._path):
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
                write_page_checksum=True,
            )

    def add(self, letters: Sequence[DeadLetter], received_at: Micros) -> None:
        """Add copies received at ``received_at``; they get the next row numbers. However many they are, no more than a
        row group of them is made a table at once."""
        if not all(type(letter.body) is bytes for letter in letters):
            letters = [letter if type(letter.body) is bytes else as_far_as_possible(letter) for letter in letters]
        weights = _weights(letters)
        if self._pending_weight + sum(weights) < GROUP_BYTES and len(self._letters) + len(letters) < GROUP_ROWS:
            self._collect(letters, sum(weights), received_at)
            return
        begin = weight = 0
        for end, one in enumerate(weights, 1):
            weight += one
            if self._pending_weight + weight >= GROUP_BYTES or len(self._letters) + end - begin >= GROUP_ROWS:
                self._collect(letters[begin:end], weight, received_at)
                self._write_group()
                begin, weight = end, 0
        self._collect(letters[begin:], weight, received_at)

    def _collect(self, letters: Sequence[DeadLetter], weight: int, received_at: Micros) -> None:
        self._letters.extend(letters)
        self._received.extend([received_at] * len(letters))
        self.copies += len(letters)
        self.weight += weight
        self._pending_weight += weight

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
        with staging_errors(self._path):
            self._writer.write_table(table.select(SCHEMA.names).cast(SCHEMA))

    def close(self) -> Written:
        """Finish the file and make it durable: fsync of the file and of the folders that lead to it, or the end of the
        upload."""
        with staging_errors(self._path):
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
        self._pending_weight = 0
        if self._by_origin:
            letters, received = _by_origin(letters, received)
        first = self.copies - len(letters)
        table = to_table(letters, received, self._constants, first)
        self.bytes += pc.sum(table.column("body_bytes")).as_py() or 0
        with staging_errors(self._path):
            self._writer.write_table(table)


def _weights(letters: Sequence[DeadLetter]) -> list[int]:
    """Of each copy the bytes that it takes in memory, by and large: a consumer may leave stack traces in headers."""
    bodies = [len(letter.body) for letter in letters]
    sample = [_header_bytes(letter) for letter in letters[::SAMPLE]]
    if sum(sample) <= SMALL_HEADERS * len(sample):
        return bodies
    return [body + _header_bytes(letter) for body, letter in zip(bodies, letters, strict=True)]


def _header_bytes(letter: DeadLetter) -> int:
    try:
        return sum(len(name) + len(value) for name, _, value in letter.headers)
    except (TypeError, ValueError):  # no header that any protocol allows
        return 0


def _by_origin(letters: list[DeadLetter], received: list[Micros]) -> tuple[list[DeadLetter], list[Micros]]:
    """Those of an origin one after the other, in the order in which they came."""
    # An origin that is no text is made one when its row is; where it lies matters to nothing but speed.
    origins = [letter.origin if isinstance(letter.origin, str) else "" for letter in letters]
    if len(set(origins)) < 2:
        return letters, received
    order = sorted(range(len(letters)), key=origins.__getitem__)
    return [letters[place] for place in order], [received[place] for place in order]


def _take(staging: "Staging", path: str) -> None:
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


class staging_errors:  # noqa: N801 - reads as the statement it stands in
    """Turns Arrow's and the system's errors into :class:`StagingError` that names the path; a lack of memory is not
    about the path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, pa.ArrowException | OSError) and not isinstance(error, MemoryError):
            raise StagingError(f"{self._path}: {error}") from error
