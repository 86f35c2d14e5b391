"""One place knows in which database the ledger is."""

import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

from tests.servers import ROOT

from redrive.ledger import schema
from redrive.ledger.engine import Ledger

#: A question after the database: by its name, or by the class of its dialect.
ASKED = re.compile(r"""dialect\.name\s*(?:==|!=|in\b)|isinstance\([^)]*\b(?:Sqlite|Postgresql)\b""")


def test_nobody_but_the_dialects_asks_which_database_runs() -> None:
    asking = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in ROOT.glob("plugins/**/*.py")
        for found in ASKED.finditer(path.read_text())
    }
    assert asking == set()


def test_a_new_sqlite_ledger_is_its_owners_alone(tmp_path: Path) -> None:
    """Nobody else on the machine reads payloads in it, nor in what SQLite lays beside it."""
    mask = os.umask(0o022)
    try:
        ledger = Ledger(f"sqlite:///{tmp_path}/new/ledger.db")
        schema.upgrade(ledger, datetime(2026, 11, 27, tzinfo=UTC))
        with ledger.read():
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
        ledger.close()
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o755, "a Spark of another user reads staging in it"
    assert {"ledger.db", "ledger.db-wal"} <= found.keys()
    assert set(found.values()) == {0o600}
