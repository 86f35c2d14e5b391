"""Files by their URIs: which Arrow filesystem has one, and its path there."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """What an object store is told beside its address, credentials among it. Its repr tells nothing.

    It travels to Spark's workers inside of their tasks, and nowhere else: no file, argument, property or log has it.
    """

    kind: str  # s3, gs or abfs
    options: dict[str, Any]  # arguments of Arrow's filesystem

    def __repr__(self) -> str:
        return f"Access({self.kind})"

    def filesystem(self) -> pafs.FileSystem:
        """Arrow's filesystem."""
        name = {"s3": "S3FileSystem", "gs": "GcsFileSystem", "abfs": "AzureFileSystem"}[self.kind]
        return getattr(pafs, name)(**self.options)


def kind_of(uri: str) -> str:
    """Which object store ``uri`` is in; empty for every other place."""
    return {"s3": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs"}.get(uri.partition("://")[0], "")


def locate(uri: str, access: Access | None = None) -> tuple[pafs.FileSystem, str]:
    """The filesystem and the path of a local path, ``file://…``, ``s3://…`` or anything else that Arrow knows.

    ``access`` is for addresses of its kind; without it Arrow finds credentials by itself. Raises ``OSError`` or
    ``ValueError`` (``pyarrow.ArrowInvalid``) when nothing can be made of it.
    """
    if access is not None and kind_of(uri) == access.kind:
        parts = urlsplit(uri)
        # Azure's names the account behind the container.
        return access.filesystem(), f"{parts.netloc.partition('@')[0]}{parts.path}".rstrip("/")
    if "://" not in uri and not uri.startswith("file:/"):
        return pafs.LocalFileSystem(), str(Path(uri).resolve())
    filesystem, path = pafs.FileSystem.from_uri(uri)
    return filesystem, path


@contextmanager
def appearing_whole(filesystem: pafs.FileSystem, path: str) -> Iterator[pa.NativeFile]:
    """A stream whose file is at ``path`` when the block ends well, in full, and not before; also where two write it.

    It is written beside its place and moved, also on an object store: that shows a file when it is closed, and whatever
    ends the block closes the stream; Arrow can't give an upload up.
    """
    unfinished = f"{path}.{uuid.uuid4().hex}"
    try:
        with filesystem.open_output_stream(unfinished) as sink:
            yield sink
    except BaseException:
        with suppress(OSError):
            filesystem.delete_file(unfinished)
        raise
    filesystem.move(unfinished, path)


def read_json(uri: str, access: Access | None = None) -> Any:
    """What the JSON file at ``uri`` says; raises ``OSError`` or ``ValueError`` when it can't be read."""
    filesystem, path = locate(uri, access)
    with filesystem.open_input_stream(path) as stream:
        return json.loads(stream.read())
