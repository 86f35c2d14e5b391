"""Google's own clients for a connection: credentials, project, endpoint, one channel for both services.

The library's retries stay off: a publish that is repeated after a lost answer would be sent twice in silence. What
may be repeated is repeated by the adapter.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import google.auth
import google.auth.credentials
import google.auth.exceptions
import grpc
from google.oauth2 import service_account
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from redrive.brokers.pubsub.errors import TOKEN_AWAY
from redrive.connections.lookup import Connection
from redrive.errors import SettingsError

PUBSUB = "pubsub.googleapis.com"
MONITORING = "monitoring.googleapis.com"
EMULATOR = "PUBSUB_EMULATOR_HOST"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: What plain clients can be made of; any other key in the extra needs Airflow's hook (impersonation, secrets, …).
_SIMPLE_EXTRA = frozenset(
    {"project", "key_path", "keyfile_dict", "endpoint", "monitoring_endpoint", "num_retries", "quota_project_id"}
)
_OLD_PREFIX = "extra__google_cloud_platform__"
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Another adapter in this process may have waited long for the same server: not our backoff.
    ("grpc.use_local_subchannel_pool", 1),
)
_KEEPALIVE = (("grpc.keepalive_time_ms", 30_000),)


class Clients(NamedTuple):
    """What the adapter talks through. ``monitoring`` is a channel, or None where nobody tells depths."""

    publisher: Any
    subscriber: Any
    channel: Any
    project: str
    monitoring: Any


def open_clients(connection: Connection, env: Mapping[str, str]) -> Clients:
    """The clients for ``connection``; nothing is asked of Google yet, except where credentials need it.

    Raises :class:`~redrive.errors.SettingsError` for what can't work.
    """
    if connection.conn_type not in ("google_cloud_platform", "gcpcloud"):
        raise SettingsError(
            f"connection {connection.conn_id} is of type {connection.conn_type!r}, not google_cloud_platform"
        )
    extra = {key.removeprefix(_OLD_PREFIX): value for key, value in connection.extra.items() if value not in (None, "")}
    endpoint = str(extra.get("endpoint") or env.get(EMULATOR) or PUBSUB)
    project = extra.get("project") or env.get("GOOGLE_CLOUD_PROJECT")
    if not _is_google(endpoint):
        if not project:
            raise SettingsError(f"connection {connection.conn_id}: extra.project is needed")
        channel = grpc.insecure_channel(_target(endpoint, connection), options=_OPTIONS)
        monitoring = extra.get("monitoring_endpoint")
        other = grpc.insecure_channel(_target(str(monitoring), connection), options=_OPTIONS) if monitoring else None
        return Clients(*_clients(channel), channel, str(project), other)
    credentials, own_project = _credentials(connection, extra)
    project = project or own_project
    if not project:
        raise SettingsError(
            f"connection {connection.conn_id}: extra.project is needed; its credentials belong to no project"
        )
    channel = _secure_channel(_target(endpoint, connection), credentials, extra)
    monitoring = _secure_channel(str(extra.get("monitoring_endpoint") or MONITORING), credentials, extra)
    return Clients(*_clients(channel), channel, str(project), monitoring)


def _clients(channel: Any) -> tuple[Any, Any]:
    return (
        PublisherClient(transport=PublisherGrpcTransport(channel=channel)),
        SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)),
    )


class TellingCredentials(google.auth.credentials.Credentials):  # type: ignore[misc]  # it has no types
    """Credentials that say of an error whether it may pass: gRPC hands on no more of it than its text."""

    def __init__(self, credentials: Any) -> None:
        super().__init__()
        self._credentials = credentials

    def refresh(self, request: Any) -> None:
        self._credentials.refresh(request)

    def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
        try:
            self._credentials.before_request(request, method, url, headers)
        except google.auth.exceptions.GoogleAuthError as error:
            away = (google.auth.exceptions.TransportError, google.auth.exceptions.TimeoutError)
            # Some credentials make a refusal of what they could not ask.
            if error.retryable or isinstance(error, away) or isinstance(error.__cause__, away):
                raise google.auth.exceptions.TransportError(f"{TOKEN_AWAY}: {error}", retryable=True) from error
            raise


def _secure_channel(host: str, credentials: Any, extra: Mapping[str, Any]) -> Any:
    whole = google.auth.credentials.with_scopes_if_required(credentials, _SCOPES)
    payer = extra.get("quota_project_id")
    if payer and isinstance(whole, google.auth.credentials.CredentialsWithQuotaProject):
        whole = whole.with_quota_project(payer)
    return PublisherGrpcTransport.create_channel(
        host if ":" in host else f"{host}:443",
        credentials=TellingCredentials(whole),
        options=[*_OPTIONS, *_KEEPALIVE],
    )


def _is_google(endpoint: str) -> bool:
    """Regional endpoints and the service itself; anything else is an emulator: no TLS, no credentials."""
    if endpoint.startswith("https://"):
        return True
    host = endpoint.removeprefix("http://").partition("/")[0].partition(":")[0]
    return not endpoint.startswith("http://") and host.endswith(".googleapis.com")


def _target(endpoint: str, connection: Connection) -> str:
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"connection {connection.conn_id}: endpoint {endpoint!r}: {error}") from None
    if not parts.hostname or parts.path.strip("/"):
        raise SettingsError(f"connection {connection.conn_id}: endpoint {endpoint!r} is not host:port")
    return parts.netloc if port else f"{parts.hostname}:443"


def _credentials(connection: Connection, extra: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Credentials and the project that they belong to: a key file, a key, else what the environment gives."""
    if not set(extra) <= _SIMPLE_EXTRA:
        return _hook_credentials(connection, extra)
    try:
        if key := extra.get("keyfile_dict"):
            info = json.loads(key) if isinstance(key, str) else dict(key)
            made = service_account.Credentials.from_service_account_info(info, scopes=_SCOPES)
            return made, made.project_id
        if path := extra.get("key_path"):
            made = service_account.Credentials.from_service_account_file(str(path), scopes=_SCOPES)
            return made, made.project_id
        found, project = google.auth.default(scopes=_SCOPES)
    except json.JSONDecodeError as error:
        raise SettingsError(f"connection {connection.conn_id}: extra.keyfile_dict is not JSON: {error.msg}") from None
    except (google.auth.exceptions.GoogleAuthError, OSError, ValueError) as error:
        raise SettingsError(f"connection {connection.conn_id}: no usable credentials: {error}") from error
    return found, project


def _hook_credentials(connection: Connection, extra: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Credentials from Airflow's own hook, which knows impersonation, secrets and what else an extra can say."""
    try:
        from airflow.providers.google.common.hooks.base_google import GoogleBaseHook  # noqa: PLC0415
        from airflow.sdk import Connection as Theirs  # noqa: PLC0415
    except ImportError as error:
        keys = ", ".join(sorted(set(extra) - _SIMPLE_EXTRA))
        raise SettingsError(
            f"connection {connection.conn_id}: {keys} in the extra needs Airflow's Google provider"
        ) from error
    theirs = Theirs(
        conn_id=connection.conn_id, conn_type="google_cloud_platform", extra=json.dumps(dict(connection.extra))
    )
    # It was found already, maybe where the hook would not look (the metadata database, from the command line).
    hook = type("Hook", (GoogleBaseHook,), {"get_connection": classmethod(lambda cls, conn_id: theirs)})  # noqa: ARG005
    try:
        found, project = hook(gcp_conn_id=connection.conn_id).get_credentials_and_project_id()
    except Exception as error:  # the hook and google.auth raise many kinds
        raise SettingsError(f"connection {connection.conn_id}: no usable credentials: {error}") from error
    return found, project
