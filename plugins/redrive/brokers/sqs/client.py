"""The client for a connection: credentials, region, endpoint; from Airflow's hook where that is needed."""

from functools import cache
from typing import Any

import botocore.exceptions as boto
from botocore.config import Config
from botocore.loaders import Loader, create_loader
from botocore.session import Session

from redrive.connections import lookup
from redrive.connections.lookup import Connection
from redrive.errors import SettingsError

#: What a plain client can be made of; any other key in the extra needs Airflow's hook (roles, SSO, …).
_SIMPLE_EXTRA = frozenset(
    {
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
        *("region_name", "endpoint_url", "profile_name", "verify"),
    }
)


def open_client(connection: Connection, read_timeout: float) -> Any:
    """The client for ``connection``, without retries of its own; nothing is asked of AWS yet.

    ``read_timeout`` (seconds) is how long an answer may take. Raises :class:`~redrive.errors.SettingsError` for what
    can't work.
    """
    if connection.conn_type != "aws":
        raise SettingsError(f"connection {connection.conn_id} is of type {connection.conn_type!r}, not aws")
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=5,
        read_timeout=read_timeout,
        max_pool_connections=16,
        user_agent_extra="redrive",
    )
    extra = connection.extra
    try:
        if not set(extra) <= _SIMPLE_EXTRA:
            return _hook_client(connection, config)
        session = Session(profile=extra.get("profile_name"))
        session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
        access_key = connection.login or extra.get("aws_access_key_id")
        secret = connection.password or extra.get("aws_secret_access_key")
        token = extra.get("aws_session_token")
        if access_key and secret:
            session.set_credentials(access_key, secret, token)
        elif access_key or secret or token:
            raise SettingsError(f"connection {connection.conn_id}: of access key and secret access key, one is missing")
        return session.create_client(
            "sqs",
            region_name=extra.get("region_name"),
            endpoint_url=extra.get("endpoint_url"),
            verify=lookup.verification(connection) if "verify" in extra else None,  # botocore has a default of its own
            config=config,
        )
    except boto.NoRegionError:
        raise SettingsError(f"connection {connection.conn_id}: no region; give extra.region_name") from None
    except (boto.ProfileNotFound, boto.PartialCredentialsError, ValueError) as error:
        raise SettingsError(f"connection {connection.conn_id}: {error}") from error


@cache
def _descriptions(search_path: str | None) -> Loader:
    """botocore's descriptions of services and endpoints, read once for all clients: each stage opens one of its own,
    and to read them takes longer than all that a run asks of empty queues."""
    return create_loader(search_path)


def _hook_client(connection: Connection, config: Config) -> Any:
    """A client from Airflow's own hook, which knows roles, web identities and what else an extra can say."""
    try:
        from airflow.providers.amazon.aws.hooks.sqs import SqsHook  # noqa: PLC0415

        theirs = lookup.to_airflow(connection)
    except ImportError as error:
        keys = ", ".join(sorted(set(connection.extra) - _SIMPLE_EXTRA))
        raise SettingsError(
            f"connection {connection.conn_id}: {keys} in the extra needs Airflow's Amazon provider"
        ) from error
    # A config given to the hook replaces the connection's own, so ours goes on top of that.
    own = connection.extra.get("config_kwargs")
    hook = SqsHook(aws_conn_id=connection.conn_id, config=Config(**own).merge(config) if own else config)
    # It was found already, maybe where the hook would not look (the metadata database, from the command line).
    hook.get_connection = lambda conn_id: theirs  # noqa: ARG005
    return hook.get_conn()
