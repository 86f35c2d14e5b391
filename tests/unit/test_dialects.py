"""One place knows in which database the ledger is."""

import re

from tests.servers import ROOT

#: A question after the database: by its name, or by the class of its dialect.
ASKED = re.compile(r"""dialect\.name\s*(?:==|!=|in\b)|isinstance\([^)]*\b(?:Sqlite|Postgresql)\b""")


def test_nobody_but_the_dialects_asks_which_database_runs() -> None:
    asking = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in ROOT.glob("plugins/**/*.py")
        for found in ASKED.finditer(path.read_text())
    }
    assert asking == set()
