"""Staging on an object store, by an Airflow connection: whoever opens it is told the credentials by this module alone.

Spark's job knows the connection's id. What that stands for is in the environment of the program that starts the job,
which gives it to its workers inside of their tasks; on another machine, a cluster that runs the driver too, the job
asks the environment there, and where that knows nothing either, it goes as whom that machine is.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from redrive.connections import lookup
from redrive.connections.lookup import Connection
from redrive.errors import SettingsError
from redrive.extras import needing

if TYPE_CHECKING:
    from redrive.settings import Settings
    from redrive.staging.batch_files import Staging
    from redrive.staging.filesystems import Access

#: The variable in which a job that is started from here finds what to say to the store.
VARIABLE: Final = "REDRIVE_STAGING_ACCESS"
#: What is read here of an AWS connection's extra; with any other key Airflow's own hook is asked.
_SIMPLE_AWS = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region_name"})
_SIMPLE_AWS |= {"endpoint_url", "service_config"}
_GOOGLE = "https://www.googleapis.com/auth/devstorage.read_write"


def staging(settings: "Settings") -> "Staging":
    """The staging folder of a configuration, with the credentials of its connection."""
    from redrive.staging.batch_files import Staging  # noqa: PLC0415 - Arrow, which not everybody needs

    return Staging(settings.staging, access_of(settings))


def access_of(settings: "Settings") -> "Access | None":
    """What to say to the object store of ``staging``; None where the environment says it.

    Raises :class:`~redrive.errors.ConnectionMissing`, and :class:`~redrive.errors.SettingsError` where the connection
    doesn't fit.
    """
    if settings.staging_connection is None:
        return None
    return access_by(lookup.get(settings.staging_connection), settings.staging)


def for_job(settings: "Settings") -> dict[str, str]:
    """More environment for the program that starts the job."""
    access = access_of(settings)
    if access is None:
        return {}
    told = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in access.options.items()}
    return {VARIABLE: json.dumps({"kind": access.kind, "options": told})}


def access_of_job(conn_id: str, uri: str, env: Mapping[str, str] = os.environ) -> "Access | None":
    """What the job says to the object store of ``uri``, by its own environment."""
    from redrive.staging.filesystems import Access  # noqa: PLC0415

    if told := env.get(VARIABLE):
        found = json.loads(told)
        options: dict[str, Any] = found["options"]
        if ends := options.get("credential_token_expiration"):
            options["credential_token_expiration"] = datetime.fromisoformat(ends)
        return Access(found["kind"], options)
    if conn_id and env.get(lookup.variable_of(conn_id), "").strip():
        return access_by(lookup.get(conn_id, env), uri)
    return None


def access_by(connection: Connection, uri: str) -> "Access":
    """What ``connection`` says to the object store of ``uri``."""
    from redrive.staging.filesystems import Access, kind_of  # noqa: PLC0415

    kind = kind_of(uri)
    fitting = {"s3": _AWS, "gs": _GOOGLE_CLOUD, "abfs": _AZURE}.get(kind)
    if fitting is None:
        raise SettingsError(f"staging_connection: {connection.conn_id} is for an object store, and staging is {uri}")
    if connection.conn_type not in fitting:
        raise SettingsError(
            f"connection {connection.conn_id} is of type {connection.conn_type!r}, and {kind}:// needs {fitting[0]}"
        )
    options = {"s3": _s3, "gs": _gs, "abfs": _abfs}[kind](connection, uri)
    return Access(kind, {key: value for key, value in options.items() if value})


_AWS: Final = ("aws", "s3")
_GOOGLE_CLOUD: Final = ("google_cloud_platform", "gcs")
_AZURE: Final = ("wasb", "adls", "azure_data_lake")


def _s3(connection: Connection, uri: str) -> dict[str, Any]:
    del uri
    extra = connection.extra
    if set(extra) <= _SIMPLE_AWS:
        keys = (
            connection.login or extra.get("aws_access_key_id"),
            connection.password or extra.get("aws_secret_access_key"),
            extra.get("aws_session_token"),
        )
        region, config = extra.get("region_name"), extra.get("service_config") or {}
        endpoint = config.get("s3", {}).get("endpoint_url") or extra.get("endpoint_url")
    else:
        with needing("emr", f"connection {connection.conn_id} (roles, profiles)"):
            from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook  # noqa: PLC0415
        hook = AwsBaseHook(aws_conn_id=connection.conn_id, client_type="s3")
        theirs = lookup.to_airflow(connection)
        hook.get_connection = lambda conn_id: theirs  # noqa: ARG005  it was found already
        found = hook.get_credentials()
        keys = (found.access_key, found.secret_key, found.token)
        region, endpoint = hook.region_name, hook.conn_config.get_service_endpoint_url("s3")
    parts = lookup.address(connection, "extra.endpoint_url", endpoint) if endpoint else None
    return {
        **dict(zip(("access_key", "secret_key", "session_token"), keys, strict=True)),
        "region": region,
        "endpoint_override": parts and parts.netloc,
        "scheme": parts and parts.scheme,
    }


def _gs(connection: Connection, uri: str) -> dict[str, Any]:
    """A token, because Arrow takes no key; it is good for an hour."""
    del uri
    with needing("pubsub", f"connection {connection.conn_id}"):
        import google.auth  # noqa: PLC0415
        from google.auth.transport.requests import Request  # noqa: PLC0415
        from google.oauth2 import service_account  # noqa: PLC0415
    extra = {key.removeprefix("extra__google_cloud_platform__"): value for key, value in connection.extra.items()}
    if lookup.flag(replace(connection, extra=extra), "is_anonymous", otherwise=False):
        return {"anonymous": True}
    try:
        if key := extra.get("keyfile_dict"):
            info = json.loads(key) if isinstance(key, str) else dict(key)
            made = service_account.Credentials.from_service_account_info(info, scopes=[_GOOGLE])
        elif path := extra.get("key_path"):
            made = service_account.Credentials.from_service_account_file(str(path), scopes=[_GOOGLE])
        elif unknown := sorted(set(extra) & {"key_secret_name", "credential_config_file", "impersonation_chain"}):
            raise SettingsError(f"connection {connection.conn_id}: extra.{unknown[0]} is not read for staging")
        else:
            made, _ = google.auth.default(scopes=[_GOOGLE])
        made.refresh(Request())
    except (google.auth.exceptions.GoogleAuthError, OSError, ValueError) as error:
        # An error of JSON tells a position only; none of these quotes a key.
        raise SettingsError(f"connection {connection.conn_id}: no usable credentials: {type(error).__name__}") from None
    return {"access_token": made.token, "credential_token_expiration": made.expiry}


def _abfs(connection: Connection, uri: str) -> dict[str, Any]:
    account = urlsplit(uri).netloc.rpartition("@")[2].partition(".")[0]
    extra = {key.removeprefix(f"extra__{connection.conn_type}__"): value for key, value in connection.extra.items()}
    said = dict(part.partition("=")[::2] for part in str(extra.get("connection_string") or "").split(";"))
    tenant = extra.get("tenant_id") or extra.get("tenantId") or extra.get("tenant")
    options: dict[str, Any] = {"account_name": said.get("AccountName") or account}
    if token := extra.get("sas_token") or said.get("SharedAccessSignature"):
        return options | {"sas_token": token}
    if tenant and connection.login and connection.password:
        return options | {"tenant_id": tenant, "client_id": connection.login, "client_secret": connection.password}
    return options | {"account_key": said.get("AccountKey") or connection.password}
