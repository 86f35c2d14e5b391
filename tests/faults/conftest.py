"""What all fault tests share."""

from collections.abc import Iterator
from typing import Any

import pytest

from redrive.ledger.dialects import sqlite_file
from redrive.staging import batch_writer


@pytest.fixture(scope="package", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What a killed process has written stays with the kernel: only a power cut needs fsync, and no test cuts power.

    That fsync is called, and when, is tested in ``tests/stages/test_durable.py``.
    """
    prepare = sqlite_file.prepare

    def prepare_and_do_not_sync(connection: Any, record: Any) -> None:
        prepare(connection, record)
        connection.execute("pragma synchronous = off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_file, "prepare", prepare_and_do_not_sync)
        patch.setattr(batch_writer, "_fsync", lambda *_paths: None)
        yield
