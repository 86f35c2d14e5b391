"""Files by their URIs: which Arrow filesystem has one, and its path there."""

import json
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs


def locate(uri: str) -> tuple[pafs.FileSystem, str]:
    """The filesystem and the path of a local path, ``file://…``, ``s3://…`` or anything else that Arrow knows.

    Raises ``OSError`` or ``ValueError`` (``pyarrow.ArrowInvalid``) when nothing can be made of it.
    """
    if "://" not in uri and not uri.startswith("file:/"):
        return pafs.LocalFileSystem(), str(Path(uri).resolve())
    filesystem, path = pafs.FileSystem.from_uri(uri)
    return filesystem, path


def read_json(uri: str) -> Any:
    """What the JSON file at ``uri`` says; raises ``OSError`` or ``ValueError`` when it can't be read."""
    filesystem, path = locate(uri)
    with filesystem.open_input_stream(path) as stream:
        return json.loads(stream.read())
