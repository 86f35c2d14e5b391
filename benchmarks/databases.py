"""An empty database for a benchmark's ledger: SQLite, or PostgreSQL with a server of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: What PostgreSQL keeps in memory of its own: its documentation begins with a quarter of the machine's; this is less.
BUFFERS = "1GB"


@contextmanager
def database(folder: Path, name: str) -> Iterator[tuple[str, int | None]]:
    """Its URL, and the process of its server; ``name`` is ``sqlite`` or ``postgresql``."""
    if name == "sqlite":
        yield f"sqlite:///{folder}/redrive.db", None
        return
    from tests.servers import Postgres  # noqa: PLC0415

    place = folder / "postgres"
    folder.chmod(0o755)
    place.mkdir()
    with Postgres(place, buffers=BUFFERS) as server:
        yield server.create_database(), server.process.pid


def variant(name: str) -> str:
    """What a run on this database is called beside one on SQLite, which is called nothing."""
    return "" if name == "sqlite" else name
