"""Connections by Airflow connection id, also where no Airflow runs.

Importing Airflow takes seconds, so a connection that is an environment variable is read here by Airflow's
own rules; every other (secrets backend, UI, metadata database) is asked of Airflow.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redrive.errors import ConnectionMissing, SettingsError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

#: What libpq takes as URL query, and people put into the extra of a PostgreSQL connection.
_LIBPQ_KEYS = frozenset(
    {
        "application_name",
        "connect_timeout",
        "options",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
    }
)
_FIELDS = frozenset({"conn_id", "conn_type", "description", "host", "port", "login", "password", "schema", "extra"})
_DRIVERS = {"postgres": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}
LAST_PORT = 65_535
_YES, _NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
_NO_PORT = f"port is no number from 1 to {LAST_PORT}"


@dataclass(frozen=True, slots=True, repr=False)
class Connection:
    """What Airflow knows under one connection id. Its repr tells nothing secret."""

    conn_id: str
    conn_type: str = ""
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = None
    schema: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        known = {"conn_id": self.conn_id, "conn_type": self.conn_type, "host": self.host, "port": self.port}
        shown = ", ".join(f"{name}={value!r}" for name, value in known.items() if value not in (None, ""))
        hidden = [name for name in ("login", "password", "schema") if getattr(self, name)]
        hidden += [f"extra.{key}" for key in self.extra]
        return f"Connection({shown}, not shown: {', '.join(hidden) or 'nothing'})"


def get(conn_id: str, env: Mapping[str, str] = os.environ) -> Connection:
    """The connection ``conn_id``: from ``AIRFLOW_CONN_<ID>`` (JSON or URI), else from Airflow.

    Raises :class:`~redrive.errors.ConnectionMissing` where nobody knows it and
    :class:`~redrive.errors.SettingsError` where it can't be read.
    """
    if value := env.get(variable_of(conn_id), "").strip():
        return parse(conn_id, value)
    return _from_airflow(conn_id)


def variable_of(conn_id: str) -> str:
    """The environment variable in which Airflow looks for ``conn_id``."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def parse(conn_id: str, value: str) -> Connection:
    """``value`` as Airflow reads it: JSON if it begins with a brace, else a URI."""
    try:
        return _from_json(conn_id, value) if value.lstrip().startswith("{") else _from_uri(conn_id, value)
    except (ValueError, TypeError) as error:
        # The value holds secrets: only say what kind of trouble it is. JSON errors tell a position only.
        trouble = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise SettingsError(f"connection {conn_id} ({variable_of(conn_id)}) can't be read: {trouble}") from None


def sqlalchemy_url(connection: Connection) -> "URL":
    """The SQLAlchemy URL of a database connection.

    PostgreSQL, MySQL and SQLite are known by their connection type; any other database says its whole URL in
    ``extra.sqlalchemy_url``, or its SQLAlchemy dialect and driver in ``extra.sqlalchemy_scheme``. Whether the driver is
    installed shows only when an engine is made: that of PostgreSQL is among our requirements, PyMySQL is not.
    """
    from sqlalchemy.engine import URL, make_url  # noqa: PLC0415
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    if whole := connection.extra.get("sqlalchemy_url"):
        try:
            return make_url(str(whole))
        except (ArgumentError, ValueError):  # of a port that is no number
            raise SettingsError(f"connection {connection.conn_id}: extra.sqlalchemy_url can't be read") from None
    driver = connection.extra.get("sqlalchemy_scheme") or _DRIVERS.get(connection.conn_type)
    if driver is None:
        raise SettingsError(
            f"connection {connection.conn_id}: no SQLAlchemy driver known for type {connection.conn_type!r}; "
            "give extra.sqlalchemy_url or extra.sqlalchemy_scheme"
        )
    if str(driver).startswith("sqlite"):
        # Airflow's SQLite hook takes the file from the host; a URI with three slashes has it in the schema.
        return URL.create(str(driver), database=unquote(connection.host or connection.schema or "") or None)
    query = {key: str(value) for key, value in connection.extra.items() if key in _LIBPQ_KEYS}
    return URL.create(
        str(driver),
        username=connection.login,
        password=connection.password,
        host=connection.host,
        port=connection.port,
        database=connection.schema,
        query=query if str(driver).startswith("postgresql") else {},
    )


def _from_json(conn_id: str, value: str) -> Connection:
    fields = json.loads(value)
    if set(fields) - _FIELDS:  # which may be a secret that slipped
        raise ValueError(f"unknown field; there are {', '.join(sorted(_FIELDS))}")
    port = _port(fields.get("port"))
    return Connection(
        conn_id,
        _normal_type(fields.get("conn_type") or ""),
        fields.get("host"),
        port,
        fields.get("login"),
        fields.get("password"),
        fields.get("schema"),
        _extra(fields.get("extra")),
    )


def _port(told: object) -> int | None:
    """A port that can be connected to; None where none is told."""
    try:
        port = int(told) if told else None  # type: ignore[call-overload]
    except (ValueError, TypeError, OverflowError):
        raise ValueError(_NO_PORT) from None
    if port is not None and not 1 <= port <= LAST_PORT:
        raise ValueError(_NO_PORT)
    return port


def address(connection: Connection, what: str, told: object) -> SplitResult:
    """``told``, where the connection's ``what`` says that an HTTP server is, with a host and a port that can be asked
    for. Raises :class:`~redrive.errors.SettingsError` for anything else."""
    text = str(told or "")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not text.isprintable():
        # No more of it: there may be a password in it.
        raise SettingsError(f"connection {connection.conn_id}: {what} is no address such as https://host.example:8443")
    return parts


def flag(connection: Connection, key: str, *, otherwise: bool) -> bool:
    """A yes or no in the extra, where a URI has it as text; ``otherwise`` where it says nothing.

    Raises :class:`~redrive.errors.SettingsError` for any other word: one that nobody understands must not mean that
    nothing is encrypted, or that anybody is trusted.
    """
    told = connection.extra.get(key)
    word = "" if told is None else str(told).strip().lower()
    if not word:
        return otherwise
    if word in _YES or word in _NO:
        return word in _YES
    raise SettingsError(f"connection {connection.conn_id}: extra.{key} is neither true nor false")


def number(connection: Connection, key: str, *, otherwise: float) -> float:
    """A number of more than nothing in the extra, where a URI has it as text; ``otherwise`` where it says nothing, or
    0. Raises :class:`~redrive.errors.SettingsError` for anything else."""
    told = connection.extra.get(key)
    try:
        found = float(told or otherwise)
    except (TypeError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        raise SettingsError(f"connection {connection.conn_id}: extra.{key} is no number")
    return found or otherwise


def verification(connection: Connection) -> bool | str:
    """Whether a server's certificate is verified, as ``extra.verify`` says; a text is the file of the authorities that
    are trusted. True where it says nothing."""
    told = connection.extra.get("verify")
    word = "" if told is None else str(told).strip()
    if not word or word.lower() in _YES:
        return True
    return False if word.lower() in _NO else word


def _from_uri(conn_id: str, uri: str) -> Connection:
    schemes = uri.count("://")
    if schemes > 2:
        raise ValueError("more than two :// in the URI")
    scheme = _split(uri).scheme
    # A second scheme belongs to the host: http://https://example.org is conn_type http, host https://example.org.
    rest = uri.replace(f"{scheme}://", "" if schemes == 2 else "//")
    if schemes == 2 and any(mark in rest.split("://", 1)[0] for mark in "@:"):
        raise ValueError("the host's protocol holds @ or :")
    parts = _split(rest)
    host: str | None = _host(parts)
    if host and schemes == 2:
        host = f"{parts.scheme}://{host}"
    extra: object = None
    if parts.query:
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        extra = query.get("__extra__", query)
    try:
        port = _port(parts.port)
    except ValueError:
        raise ValueError(_NO_PORT) from None
    return Connection(
        conn_id,
        _normal_type(scheme),
        host,
        port,
        unquote(parts.username) if parts.username else parts.username,
        unquote(parts.password) if parts.password else parts.password,
        unquote(parts.path[1:]),
        _extra(extra),
    )


def _split(uri: str) -> SplitResult:
    """The URI's parts. Raises ValueError in words of our own: Python's quote the password."""
    try:
        return urlsplit(uri)
    except ValueError:
        raise ValueError("it is no URI; what is odd in a user, a password or a host is written as %XX") from None


def _host(parts: SplitResult) -> str:
    """The host, decoded; one with slashes (a socket's directory) keeps its case, as in Airflow."""
    host = unquote(parts.hostname or "")
    if "/" in host:
        host = unquote(parts.netloc.rsplit("@", 1)[-1].split(":", 1)[0])
    return host


def _normal_type(conn_type: str) -> str:
    return "postgres" if conn_type == "postgresql" else conn_type.replace("-", "_")


def _extra(value: object) -> dict[str, Any]:
    if not value:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError("extra is not JSON") from None
    if not isinstance(value, dict):
        raise TypeError("extra is not a JSON object")
    return value


def _from_airflow(conn_id: str) -> Connection:
    missing = ConnectionMissing(
        f"connection {conn_id} is not defined; set {variable_of(conn_id)} (JSON or URI), or define it in "
        f"Airflow (airflow connections add {conn_id} …, the UI, or a secrets backend)"
    )
    try:
        from airflow.exceptions import AirflowNotFoundException  # noqa: PLC0415
        from airflow.sdk.execution_time import task_runner  # noqa: PLC0415
    except ImportError:
        raise missing from None
    try:
        if getattr(task_runner, "SUPERVISOR_COMMS", None) is not None:  # in a task: through the execution API
            from airflow.sdk import BaseHook  # noqa: PLC0415

            found: Any = BaseHook.get_connection(conn_id)
        else:  # on the command line; the SDK would not look into the metadata database here
            from airflow.models import Connection as Stored  # noqa: PLC0415

            found = Stored.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        raise missing from None
    try:
        port = _port(found.port)
    except ValueError as error:
        raise SettingsError(f"connection {conn_id}: {error}") from None
    return Connection(
        conn_id,
        found.conn_type or "",
        found.host,
        port,
        found.login,
        found.password,
        found.schema,
        found.extra_dejson,
    )


def to_airflow(connection: Connection) -> Any:
    """The connection as Airflow's own hooks take it. Raises ImportError where there is no Airflow."""
    from airflow.sdk import Connection as Theirs  # noqa: PLC0415 - takes seconds

    return Theirs(
        conn_id=connection.conn_id,
        conn_type=connection.conn_type,
        host=connection.host,
        login=connection.login,
        password=connection.password,
        schema=connection.schema,
        port=connection.port,
        extra=json.dumps(dict(connection.extra)),
    )
