"""How an Airflow connection of type http is spoken to: where, with which headers, whom we trust."""

import base64
import re
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult

from redrive.connections import lookup
from redrive.connections.lookup import Connection
from redrive.errors import SettingsError

#: What Airflow's HTTP hook takes out of the extra of a connection; everything else there is a header.
_NOT_HEADERS = frozenset(
    {
        *("allow_redirects", "cert", "check_response", "max_redirects", "proxies", "proxy", "stream", "timeout"),
        *("trust_env", "verify"),
    }
)


def base_url(connection: Connection, what: str) -> SplitResult:
    """Where the endpoint is, as Airflow's HTTP hook reads it: the host, with a scheme of its own or the schema's.

    Raises :class:`~redrive.errors.SettingsError`, which says that ``what`` needs a connection of type http.
    """
    if connection.conn_type not in ("http", "https"):
        raise SettingsError(f"connection {connection.conn_id} is of type {connection.conn_type!r}; {what} needs http")
    parts = lookup.address(connection, "its host", with_scheme(connection, connection.host or "", connection.conn_type))
    if parts.username is not None:
        raise SettingsError(
            f"connection {connection.conn_id}: its host is no address such as https://host.example: a user is in it"
        )
    if connection.port is not None and parts.port is None:
        parts = parts._replace(netloc=f"{parts.netloc}:{connection.port}")
    return parts


def with_scheme(connection: Connection, host: str, otherwise: str) -> str:
    """``host`` with its own scheme, or the one that the connection's schema says, or ``otherwise``. Raises
    :class:`~redrive.errors.SettingsError` where the schema is none, which most often is the path of a URI."""
    if "://" in host:
        return host
    if connection.schema and connection.schema.lower() not in ("http", "https"):  # not told: it may be a secret path
        raise SettingsError(
            f"connection {connection.conn_id}: its schema is neither http nor https. To Airflow the path of a"
            " connection's URI is the schema: name the path where the connection is used, or write the connection as"
            ' JSON with the whole address as its host, {"conn_type": "http", "host": "https://host.example/path"}'
        )
    return f"{connection.schema or otherwise}://{host}"


def request_target(connection: Connection, base: SplitResult, path: str | None) -> str:
    """What is asked for at ``base``: its path with ``path`` appended, and the queries of both.

    Raises :class:`~redrive.errors.SettingsError` where that can't stand in a request.
    """
    own, _, asked = (path or "").partition("?")
    target = f"{base.path.rstrip('/')}/{own.lstrip('/')}" if own else base.path or "/"
    if query := "&".join(one for one in (base.query, asked) if one):
        target += f"?{query}"
    if not re.fullmatch("[!-~]+", target):  # not told: it may be a secret
        raise SettingsError(f"connection {connection.conn_id}: its address has a character that has to be written %XX")
    return target


def headers(connection: Connection) -> dict[str, str]:
    """What every request says: who asks, and what the connection's extra has."""
    found = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "redrive"}
    if connection.login:
        pair = f"{connection.login}:{connection.password or ''}".encode()
        found["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    found.update({str(name): str(value) for name, value in _extra_headers(connection).items()})
    for name, value in found.items():
        if not re.fullmatch(r"[!-9;-~]+", name) or not re.fullmatch(r"[\t -~\xa0-\xff]*", value):
            raise SettingsError(f"connection {connection.conn_id}: extra.{name[:40]!r} is no header")
    return found


def _extra_headers(connection: Connection) -> Mapping[str, object]:
    extra = {name: value for name, value in connection.extra.items() if name not in _NOT_HEADERS}
    own = extra.pop("headers", None)
    return {**extra, **own} if isinstance(own, Mapping) else extra


def trust(connection: Connection) -> ssl.SSLContext:
    """Whom we believe to be the endpoint: the system's authorities, or those of ``extra.verify``.

    Raises :class:`~redrive.errors.SettingsError` where that is no file of authorities.
    """
    verify = lookup.verification(connection)
    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except OSError as error:
        raise SettingsError(f"connection {connection.conn_id}: extra.verify: {error.strerror or error}") from None
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
