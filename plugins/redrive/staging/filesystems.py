"""Files by their URIs: which Arrow filesystem has one, and its path there."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs


def locate(uri: str) -> tuple[pafs.FileSystem, str]:
    """The filesystem and the path of a local path, ``file://…``, ``s3://…`` or anything else that Arrow knows.

    Raises ``OSError`` or ``ValueError`` (``pyarrow.ArrowInvalid``) when nothing can be made of it.
    """
    if "://" not in uri and not uri.startswith("file:/"):
        return pafs.LocalFileSystem(), str(Path(uri).resolve())
    filesystem, path = pafs.FileSystem.from_uri(uri)
    return filesystem, path


#: Kinds on which a file is there when it is closed, and not before.
_WHOLE = frozenset({"s3", "gcs", "abfs"})


@contextmanager
def appearing_whole(filesystem: pafs.FileSystem, path: str) -> Iterator[pa.NativeFile]:
    """A stream whose file is at ``path`` when the block ends well, in full, and not before; also where two write it.

    An object store shows a file when it is closed. Elsewhere (a disk, HDFS) it is written beside its place and moved.
    """
    unfinished = path if filesystem.type_name in _WHOLE else f"{path}.{uuid.uuid4().hex}"
    try:
        with filesystem.open_output_stream(unfinished) as sink:
            yield sink
    except BaseException:
        if unfinished != path:
            with suppress(OSError):
                filesystem.delete_file(unfinished)
        raise
    if unfinished != path:
        filesystem.move(unfinished, path)


def read_json(uri: str) -> Any:
    """What the JSON file at ``uri`` says; raises ``OSError`` or ``ValueError`` when it can't be read."""
    filesystem, path = locate(uri)
    with filesystem.open_input_stream(path) as stream:
        return json.loads(stream.read())
