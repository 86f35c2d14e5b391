"""How a ledger in an SQLite file is made and opened: durable, with readers beside one writer, in little memory."""

import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import tenacity
from sqlalchemy import event

#: How long SQLite waits for whoever writes, unless somebody says otherwise.
PATIENCE = timedelta(minutes=1)


def _path(url: sa.URL) -> str | None:
    """The file of ``url``; None for a database in memory, and where SQLite reads a URI of the user's itself."""
    return None if url.database in (None, "", ":memory:") or "uri" in url.query else url.database


def is_absent(url: sa.URL) -> bool:
    """Whether ``url`` names a file that is not there. SQLite would make an empty one to connect to."""
    if (path := _path(url)) is None:
        return False
    try:
        Path(path).stat()  # not exists(), which takes a folder that may not be read for an absence
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # SQLite says what is wrong
    return False


def make(url: sa.URL) -> None:
    """Make the file of ``url`` where it is missing, for its owner alone: it holds payloads. What SQLite lays beside the
    file has its mode. Its folder is as the umask has it: staging is beside the file, and others may have to read it."""
    if (path := _path(url)) is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch(0o600)


def open_engine(url: sa.URL, patience: timedelta) -> sa.Engine:
    """What connects to the file of ``url``; it waits for whoever writes for as long as ``patience``."""
    engine = sa.create_engine(
        url,
        connect_args={"timeout": patience.total_seconds(), "check_same_thread": False},
        hide_parameters=True,
    )
    event.listen(engine, "connect", prepare)
    return engine


def prepare(connection: Any, _record: Any) -> None:
    """Set up a new connection of the driver."""
    # Autocommit at the driver, so that the dialect begins: sqlite3's own begin is deferred, and a deferred transaction
    # that writes after it has read fails instead of waiting when another one wrote.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("pragma page_size = 8192")  # of a new file: fewer, larger writes of the same rows
    _write_ahead(cursor)
    cursor.execute("pragma synchronous = full")  # recorded means durable, also when the power fails
    cursor.execute("pragma wal_autocheckpoint = 16384")  # 128 MiB: each checkpoint writes every touched page again
    cursor.execute("pragma foreign_keys = on")
    cursor.execute("pragma temp_store = file")  # what is sorted grows with the messages, memory must not
    cursor.execute("pragma cache_size = -8192")  # 8 MiB: with 32 as much is computed, and sorts take as much again
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """Have readers and the writer not wait for each other. The file keeps that, so it is said once. While somebody else
    who has just found the new file says it too, SQLite refuses at once, whatever its timeout is."""
    patience = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(sqlite3.OperationalError),
        wait=tenacity.wait_random(0.01, 0.1),
        stop=tenacity.stop_after_delay(PATIENCE),
        reraise=True,
    )
    for attempt in patience:
        with attempt:
            if cursor.execute("pragma journal_mode").fetchone()[0] != "wal":
                cursor.execute("pragma journal_mode = wal")
