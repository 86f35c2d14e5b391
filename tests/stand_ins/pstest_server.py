"""Google's pstest as a server process; built by ``make brokers`` (tests/install_pstest.sh), which needs Go."""

import hashlib
import os
import socket
from pathlib import Path

from tests.servers import ROOT, Server, ServerMissing

SOURCE = ROOT / "tests" / "stand_ins" / "pstest"


def binary() -> Path:
    """Where the program is kept: it is built anew when its source or one of its modules changes."""
    text = b"".join((SOURCE / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "redrive" / f"pstest-{hashlib.sha256(text).hexdigest()[:12]}"


class Pstest(Server):
    """A fake by Google, but not Google's service; tests/contract/test_google_pubsub.py says what it can't show."""

    name = "pstest"

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        given = os.environ.get("REDRIVE_PSTEST")
        found = Path(given) if given else binary()
        if not found.exists():
            raise ServerMissing(f"pstest is not at {found}: run make brokers (needs Go 1.21 or later)")
        return [str(found), "-port", str(self.port)]

    def ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False
