"""A real Apache Pulsar in one process, with tokens and permissions, on loopback."""

import base64
import hashlib
import hmac
import json
import os
import re
import shutil
import signal
import time
import uuid
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from redrive.dev.demo.pulsar_admin import administer
from tests.servers import GUARD, Server, ServerMissing, free_port

#: Signs the tokens; a server lives for one test session.
SECRET = b"a secret that only tests on loopback know"

#: Enough for a few hundred topics; one compiler level, because the server lives for seconds.
MEMORY = "-Xms256m -Xmx640m -XX:MaxDirectMemorySize=384m -XX:TieredStopAtLevel=1 -XX:ActiveProcessorCount=2"


class Pulsar(Server):
    """Pulsar standalone: broker, bookie and metadata store in one JVM."""

    name = "pulsar"
    start_within = 240.0

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self.web_port = free_port()
        self.tls_port, self.tls_web_port = free_port(), free_port()
        self.certificate = self.directory / "certificate.pem"
        self.bookie_port = free_port()
        self.admin_url = f"http://127.0.0.1:{self.web_port}"
        self.known: set[str] = set()  # topics that were made

    def command(self) -> list[str]:
        home = _home()
        return [
            str(home / "bin" / "pulsar"),
            "standalone",
            "--no-functions-worker",
            "--no-stream-storage",
            "--config",
            str(self.directory / "standalone.conf"),
            "--advertised-address",
            "127.0.0.1",
            "--bookkeeper-port",
            str(self.bookie_port),
            "--bookkeeper-dir",
            str(self.directory / "bookkeeper"),
            "--metadata-dir",
            str(self.directory / "metadata"),
        ]

    def environment(self) -> dict[str, str]:
        return dict(os.environ) | {
            "PULSAR_MEM": MEMORY,
            "PULSAR_GC": "-XX:+UseSerialGC",
            "PULSAR_LOG_DIR": str(self.directory / "logs"),
            "PULSAR_LOG_LEVEL": "warn",
            "PULSAR_STANDALONE_CONF": str(self.directory / "standalone.conf"),
            "PULSAR_EXTRA_OPTS": "-Dpulsar.allocator.exit_on_oom=true",
        }

    def prepare(self) -> None:
        if not self.certificate.exists():
            certificate, key = _certificate()
            self.certificate.write_bytes(certificate)
            (self.directory / "key.pem").write_bytes(key)
        own = {
            "brokerServicePort": self.port,
            "brokerServicePortTls": self.tls_port,
            "webServicePortTls": self.tls_web_port,
            "tlsCertificateFilePath": self.certificate,
            "tlsKeyFilePath": self.directory / "key.pem",
            "tlsTrustCertsFilePath": self.certificate,
            "webServicePort": self.web_port,
            "bindAddress": "127.0.0.1",
            "listeningInterface": "lo",  # the bookie's, which the broker's bindAddress does not reach
            "advertisedAddress": "127.0.0.1",
            "authenticationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
            "authorizationEnabled": "true",
            "superUserRoles": "admin",
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"token:{token('admin')}",
            "tokenSecretKey": "data:;base64," + base64.b64encode(SECRET).decode(),
            "brokerDeleteInactiveTopicsEnabled": "false",
            "delayedDeliveryTickTimeMillis": "50",
            "webSocketServiceEnabled": "false",
            "numIOThreads": "2",
            "numHttpServerThreads": "8",
            "managedLedgerCacheSizeMB": "32",
            "dbStorage_writeCacheMaxSizeMb": "16",
            "dbStorage_readAheadCacheMaxSizeMb": "16",
            "dbStorage_rocksDB_blockCacheSize": "8388608",
            # After a restart the only bookie would be shunned for half an hour if it came up a moment too late.
            "bookkeeperClientHealthCheckEnabled": "false",
            "journalSyncData": "true",
        }
        lines = (_home() / "conf" / "standalone.conf").read_text().splitlines()
        kept = [line for line in lines if (found := re.match(r"(\w+)=", line)) is None or found[1] not in own]
        (self.directory / "standalone.conf").write_text(
            "\n".join([*kept, *(f"{key}={value}" for key, value in own.items()), ""])
        )

    def ready(self) -> bool:
        try:
            if self.ask("GET", "brokers/health", text=True) != "ok":
                return False
            # After a restart that may be so before the bookie takes new ledgers.
            self.ask("PUT", f"persistent/public/default/ready-{uuid.uuid4().hex[:8]}")
        except OSError:
            return False
        return True

    def freeze(self) -> None:
        """Let it answer no more: the signal was sent before the last of its many threads has stopped."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        patience = time.monotonic() + 60
        while {(one / "stat").read_text().rpartition(")")[2].split()[0] for one in threads.iterdir()} != {"T"}:
            assert time.monotonic() < patience, "it goes on"
            time.sleep(0.001)

    def kill(self) -> None:
        """Let it die as in a power cut, as far as a process can."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        GUARD.forget(self.process.pid)
        self.process = None

    def _clean_up(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()  # nobody reads its files any more, and stopping in order takes seconds
        super()._clean_up()

    # --- what an operator does ------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: object = None, *, text: bool = False) -> Any:
        """Call the admin API as the superuser; None where there is no content."""
        return administer(self.admin_url, token("admin"), method, path, body, text=text)

    def create_topic(self, name: str, *, partitions: int = 0) -> str:
        """Make a topic in public/default and return its name."""
        if partitions:
            self.ask("PUT", f"persistent/public/default/{name}/partitions", partitions)
        else:
            self.ask("PUT", f"persistent/public/default/{name}")
        self.known.add(name)
        return name

    def subscribe(self, topic: str, subscription: str) -> str:
        """Make a subscription that begins at the first message."""
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        self.ask("PUT", f"persistent/public/default/{topic}/subscription/{quote(subscription, safe='')}", earliest)
        return subscription

    def is_worked_off(self, topic: str, subscription: str) -> bool:
        """Whether nothing waits for an ack there: all was done or dead-lettered, and a consumer may be closed.

        The vendor's library ends the process with a segmentation fault where a consumer that dead-letters is closed
        before the broker has answered what it sent to the dead-letter topic (pulsar-client 3.13.0).
        """
        place = f"persistent/public/default/{topic}"
        told = "partitioned-stats" if self.ask("GET", f"{place}/partitions")["partitions"] else "stats"
        return not self.ask("GET", f"{place}/{told}")["subscriptions"][subscription]["msgBacklog"]

    def allow(self, role: str, *actions: str, namespace: str = "public/default") -> str:
        """Give a role rights in a namespace; its token."""
        self.ask("POST", f"namespaces/{namespace}/permissions/{role}", list(actions))
        return token(role)

    def connection(self, **changes: object) -> dict[str, Any]:
        """What an Airflow connection to this server says, as JSON."""
        return {
            "conn_type": "pulsar",
            "host": "127.0.0.1",
            "port": self.port,
            "password": token("admin"),
            "extra": {"admin_url": self.admin_url, "timeout": 10},
        } | changes


def token(role: str) -> str:
    """A JSON web token for ``role``, signed with the server's secret."""

    def encoded(part: bytes) -> str:
        return base64.urlsafe_b64encode(part).rstrip(b"=").decode()

    head = encoded(b'{"alg":"HS256"}') + "." + encoded(json.dumps({"sub": role}).encode())
    return head + "." + encoded(hmac.digest(SECRET, head.encode(), hashlib.sha256))


def _certificate() -> tuple[bytes, bytes]:
    """A certificate for loopback that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redrive tests")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), private


def _home() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "redrive"
    found = sorted(cache.glob("apache-pulsar-*/bin/pulsar"))
    if not found:
        raise ServerMissing(f"Apache Pulsar is not in {cache} (make brokers fetches it)")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise ServerMissing("Java, which Apache Pulsar needs, is not in PATH")
    return found[-1].parent.parent
