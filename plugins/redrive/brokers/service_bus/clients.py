"""The SDK's clients for a connection: credentials, namespace, endpoints; one for messages, one for administration."""

from collections.abc import Callable, Mapping
from typing import Any

from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from redrive.brokers.service_bus.facts import Administration, AtomApi, NoAdministration
from redrive.connections.lookup import Connection
from redrive.errors import SettingsError

_CLIENT_OPTIONS = ("custom_endpoint_address", "connection_verify", "http_proxy", "user_agent")
_SCHEMES = ("http://", "https://")


def clients(
    connection: Connection, monotonic: Callable[[], float], **options: Any
) -> tuple[ServiceBusClient, Administration]:
    """The messaging client that ``connection`` describes, and who can be asked about its entities.

    ``options`` go to the messaging client. Raises :class:`~redrive.errors.SettingsError`.
    """
    name = f"connection {connection.conn_id}"
    if connection.conn_type != "azure_service_bus":
        raise SettingsError(f"{name} is of type {connection.conn_type!r}, not azure_service_bus")
    extra = connection.extra
    options |= {key: extra[key] for key in _CLIENT_OPTIONS if extra.get(key)}
    if transport := extra.get("transport_type"):
        options["transport_type"] = _transport_type(name, str(transport))
    admin_url = str(extra.get("admin_endpoint") or "")
    if admin_url and not admin_url.startswith(_SCHEMES):
        raise SettingsError(f"{name}: extra.admin_endpoint has to begin with http:// or https://")
    text = connection.schema or _prefixed(extra, "connection_string")
    namespace = _prefixed(extra, "fully_qualified_namespace")
    http: dict[str, Any] = {"retry_total": 1, "retry_backoff_factor": 0.1, "connection_timeout": 5, "read_timeout": 20}
    if verify := extra.get("connection_verify"):
        http["connection_verify"] = verify
    if admin_url:
        http["transport"] = _Elsewhere(admin_url, **http)
    try:
        if text:
            client = ServiceBusClient.from_connection_string(text, **options)
            if "usedevelopmentemulator=true" in text.lower() and not admin_url:
                return client, NoAdministration()  # its counts, if it has any, are on another port
            admin = ServiceBusAdministrationClient.from_connection_string(text, **http)
        elif namespace:
            credential = _credential(connection)
            client = ServiceBusClient(namespace, credential, **options)
            admin = ServiceBusAdministrationClient(namespace, credential, **http)
        else:
            raise SettingsError(f"{name}: give a connection string in schema, or extra.fully_qualified_namespace")
    except ValueError as error:  # the SDK's words name keys, never values
        raise SettingsError(f"{name}: {error}") from None
    return client, AtomApi(admin, monotonic)


def address_of(client: ServiceBusClient) -> str:
    """Host and port of a namespace, for people."""
    host = client.fully_qualified_namespace
    return host if ":" in host else f"{host}:{getattr(client._config, 'connection_port', 5671)}"


def _transport_type(name: str, text: str) -> Any:
    from azure.servicebus import TransportType  # noqa: PLC0415 - rarely asked for

    try:
        return TransportType[text]
    except KeyError:
        known = ", ".join(TransportType.__members__)
        raise SettingsError(f"{name}: extra.transport_type is {text!r}; it can be {known}") from None


def _prefixed(extra: Mapping[str, Any], key: str) -> str:
    """``key``, also under the long name that older Airflow versions write."""
    return str(extra.get(key) or extra.get(f"extra__azure_service_bus__{key}") or "")


def _credential(connection: Connection) -> Any:
    """Entra credentials: a service principal from login and password, else the chain that Airflow's hook uses."""
    extra = connection.extra
    tenant = str(extra.get("tenantId") or extra.get("tenant_id") or "")
    if connection.login and connection.password:
        from azure.identity import ClientSecretCredential  # noqa: PLC0415 - a connection string needs none

        if not tenant:
            raise SettingsError(f"connection {connection.conn_id}: a login needs extra.tenantId")
        return ClientSecretCredential(tenant, connection.login, connection.password)
    if _prefixed(extra, "credential"):
        raise SettingsError(
            f"connection {connection.conn_id}: extra.credential is no credential that the SDK takes; give login, "
            "password and extra.tenantId, a connection string in schema, or neither for the default chain"
        )
    managed = _prefixed(extra, "managed_identity_client_id") or None
    workload = _prefixed(extra, "workload_identity_tenant_id") or None
    try:
        from airflow.providers.microsoft.azure.utils import get_sync_default_azure_credential  # noqa: PLC0415
    except ImportError:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415

        found = {"managed_identity_client_id": managed, "workload_identity_tenant_id": workload}
        return DefaultAzureCredential(**{key: value for key, value in found.items() if value})
    return get_sync_default_azure_credential(managed_identity_client_id=managed, workload_identity_tenant_id=workload)


class _Elsewhere(RequestsTransport):  # type: ignore[misc]  # azure-core exports it lazily, so its type is not seen
    """Sends administration requests to an address of its own: an emulator's, a proxy's."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(**options)
        self._url = url.rstrip("/")

    def send(self, request: Any, **options: Any) -> Any:
        path = request.url.split("://", 1)[1].partition("/")[2]
        request.url = f"{self._url}/{path}"
        return super().send(request, **options)
