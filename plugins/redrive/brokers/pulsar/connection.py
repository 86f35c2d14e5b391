"""How a Pulsar cluster is reached: what an Airflow connection says, as clients for messages and for the admin API."""

import base64
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pulsar

from redrive.brokers.pulsar.admin import Admin
from redrive.connections.lookup import Connection, address, flag, number
from redrive.errors import SettingsError

_EXTRA = frozenset(
    {
        *("admin_url", "tenant", "namespace", "token", "token_file", "timeout"),
        *("tls", "tls_trust_certs", "tls_certificate", "tls_private_key", "tls_validate_hostname"),
        *("subscription", "subscriptions", "keep_partition"),
    }
)
_TYPES = ("pulsar", "pulsar+ssl")


class Place(NamedTuple):
    """A cluster as a connection reaches it."""

    service: str  # its address, for people
    connect: Callable[[], Any]  # -> pulsar.Client; connects at the first use
    admin: Admin
    namespace: str  # tenant/namespace of short names
    subscription: str  # ours
    subscriptions: dict[str, str]  # queue -> subscription, where it is not ours
    keep_partition: bool
    timeout: float  # seconds an answer may take


class LazyClient:
    """The client library's client for ``place``, connected at the first use. One for all that an adapter does."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._opened: Any = None

    def get(self) -> Any:
        """The ``pulsar.Client``."""
        if self._opened is None:
            self._opened = self._place.connect()
        return self._opened

    def close(self) -> None:
        """End its connections; the next use makes new ones."""
        if self._opened is not None:
            close_quietly(self._opened)
            self._opened = None


def close_quietly(closable: Any) -> None:
    """Close a client, a consumer or a producer; one that is not open any more is closed."""
    try:
        closable.close()
    except pulsar.PulsarException:
        pass


def place_of(connection: Connection) -> Place:
    """What ``connection`` says; nothing is asked of the cluster yet. Raises SettingsError for what can't be."""
    extra = connection.extra
    if connection.conn_type not in _TYPES:
        raise SettingsError(f"connection {connection.conn_id} is of type {connection.conn_type!r}, not pulsar")
    if unknown := sorted(set(extra) - _EXTRA):
        raise SettingsError(f"connection {connection.conn_id}: extra.{unknown[0]} is not known")
    if not connection.host:
        raise SettingsError(f"connection {connection.conn_id}: no host")
    certificate, key = extra.get("tls_certificate"), extra.get("tls_private_key")
    secure = connection.conn_type == "pulsar+ssl" or flag(connection, "tls", otherwise=False)
    named = flag(connection, "tls_validate_hostname", otherwise=True)
    timeout = number(connection, "timeout", otherwise=30)
    prove, headers = _credentials(connection, certificate, key)
    context = None
    if secure:
        context = ssl.create_default_context(cafile=extra.get("tls_trust_certs"))
        context.check_hostname = named
        if certificate:
            context.load_cert_chain(certificate, key)
    if extra.get("admin_url"):
        address(connection, "extra.admin_url", extra["admin_url"])
    port = connection.port or (6651 if secure else 6650)
    service = f"{'pulsar+ssl' if secure else 'pulsar'}://{connection.host}:{port}"
    default_admin = f"https://{connection.host}:8443" if secure else f"http://{connection.host}:8080"

    def connect() -> Any:
        return pulsar.Client(
            service,
            authentication=prove(),
            operation_timeout_seconds=max(1, round(timeout)),
            connection_timeout_ms=max(1, round(min(timeout, 10) * 1000)),
            # The library writes to standard output unless told otherwise, where our own answers go.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
            tls_trust_certs_file_path=extra.get("tls_trust_certs"),
            tls_validate_hostname=secure and named,
        )

    parts = (connection.schema or "").strip("/").split("/")
    tenant = extra.get("tenant") or parts[0] or "public"
    namespace = extra.get("namespace") or (parts[1] if len(parts) > 1 else "default")
    return Place(
        service,
        connect,
        Admin(extra.get("admin_url") or default_admin, headers=headers, context=context, timeout=timeout),
        f"{tenant}/{namespace}",
        str(extra.get("subscription") or "redrive"),
        dict(extra.get("subscriptions") or {}),
        flag(connection, "keep_partition", otherwise=False),
        timeout,
    )


def _credentials(
    connection: Connection, certificate: str | None, key: str | None
) -> tuple[Callable[[], Any], Callable[[], dict[str, str]]]:
    """How to prove who we are: to the client library, and to the admin API."""
    extra = connection.extra
    path = extra.get("token_file")
    if connection.login and connection.password:
        words = base64.b64encode(f"{connection.login}:{connection.password}".encode()).decode()
        login, password = connection.login, connection.password
        return lambda: pulsar.AuthenticationBasic(login, password), lambda: {"Authorization": f"Basic {words}"}
    if path or extra.get("token") or connection.password:

        def token() -> str:
            """Read anew each time: whoever rotates tokens rewrites the file."""
            if path:
                try:
                    found = Path(path).read_text()
                except OSError as error:
                    raise SettingsError(f"connection {connection.conn_id}: extra.token_file: {error}") from error
            else:
                found = str(extra.get("token") or connection.password)
            found = found.strip()  # most files, and many secrets made of one, end with a line break
            if not (found.isascii() and found.isprintable()):  # no more of it: whoever refuses it later would quote it
                raise SettingsError(f"connection {connection.conn_id}: its token holds a character that no token has")
            return found

        token()  # here it can be said; in a thread of the library it could not
        return lambda: pulsar.AuthenticationToken(token), lambda: {"Authorization": f"Bearer {token()}"}
    if certificate and key:
        return lambda: pulsar.AuthenticationTLS(certificate, key), dict
    return lambda: None, dict
