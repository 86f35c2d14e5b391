"""ElasticMQ: a second SQS-compatible server, written by others than the first and in another language.

Fetched by ``make brokers`` (tests/install_elasticmq.sh), which needs Maven and Java.
"""

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers import ROOT, Server, ServerMissing

SUMS = ROOT / "tests" / "stand_ins" / "elasticmq" / "SHA256SUMS"


def library() -> Path:
    """The folder of its jars; another one when a jar changes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "redrive" / f"elasticmq-{hashlib.sha256(SUMS.read_bytes()).hexdigest()[:12]}"


class ElasticMq(Server):
    """A stand-in for SQS, as real AWS can't be reached from tests; queues live in memory."""

    name = "elasticmq"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        (self.directory / "elasticmq.conf").write_text(
            'include classpath("application.conf")\n'
            f'node-address {{ protocol = http, host = "127.0.0.1", port = {self.port}, context-path = "" }}\n'
            f'rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {self.port} }}\n'
            "rest-stats.enabled = false\n"
            'aws { region = "us-east-1", accountId = "000000000000" }\n'
        )

    def command(self) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
        if java is None or not Path(java).exists():
            raise ServerMissing("java is neither in PATH nor in $JAVA_HOME")
        jars = library()
        if not jars.is_dir():
            raise ServerMissing(f"ElasticMQ is not in {jars}: run make brokers (needs Maven)")
        return [
            java,
            *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),  # it lives for seconds
            f"-Dconfig.file={self.directory / 'elasticmq.conf'}",
            *("-cp", f"{jars}/*", "org.elasticmq.server.Main"),
        ]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return True  # it answers, in whatever way
        except OSError:
            return False
