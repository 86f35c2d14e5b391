"""What the adapter needs, from an Airflow connection."""

import math
import ssl
from collections.abc import Callable
from typing import Any

import pika

from redrive.brokers.rabbitmq.kind import MAX_BYTES
from redrive.brokers.rabbitmq.management import Management
from redrive.brokers.rabbitmq.session import Hosts
from redrive.connections.lookup import LAST_PORT, Connection, address, flag, number
from redrive.errors import SettingsError

_TYPES = ("amqp", "amqps", "rabbitmq")
_EXTRA = frozenset(
    {
        *("vhost", "ssl", "ca_certs", "certfile", "keyfile", "verify", "server_hostname"),
        *("management_url", "management_port", "heartbeat", "timeout", "confirm_timeout", "blocked_timeout"),
        *("keep_expiration", "max_message_bytes"),
    }
)


def arguments(connection: Connection, sleep: Callable[[float], None]) -> dict[str, Any]:
    """What the constructor needs, from an Airflow connection; ``sleep`` (seconds) is between attempts to connect."""
    name, extra = f"connection {connection.conn_id}", connection.extra
    if connection.conn_type not in _TYPES:
        raise SettingsError(f"{name}: its type is {connection.conn_type!r}, not one of {', '.join(_TYPES)}")
    if unknown := sorted(set(extra) - _EXTRA):
        raise SettingsError(f"{name}: extra.{unknown[0]} is unknown; known are {', '.join(sorted(_EXTRA))}")
    if not connection.host:
        raise SettingsError(f"{name}: no host")
    context = _tls(name, connection)
    vhost = str(extra.get("vhost") or connection.schema or "/")
    user, password = connection.login or "guest", connection.password or "guest"
    port = connection.port or (5671 if context else 5672)
    server_hostname = extra.get("server_hostname")
    heartbeat = number(connection, "heartbeat", otherwise=180)
    timeout = number(connection, "timeout", otherwise=30)
    hosts = []
    for one in connection.host.split(","):
        host, _, own_port = one.strip().partition(":")
        if own_port and not (own_port.isascii() and own_port.isdigit() and 1 <= int(own_port[:6]) <= LAST_PORT):
            raise SettingsError(f"{name}: its host has to be host or host:port, with a port from 1 to {LAST_PORT}")
        hosts.append(
            pika.ConnectionParameters(
                host=host,
                port=int(own_port) if own_port else port,
                virtual_host=vhost,
                credentials=pika.PlainCredentials(user, password),
                ssl_options=pika.SSLOptions(context, server_hostname or host) if context else None,
                heartbeat=math.ceil(heartbeat),
                socket_timeout=min(timeout, 10),
                stack_timeout=timeout,
                client_properties={"connection_name": "redrive", "product": "Redrive"},
            )
        )
    management = None
    url = extra.get("management_url")
    if not url and extra.get("management_port"):
        own = number(connection, "management_port", otherwise=0)
        if not 1 <= own <= LAST_PORT:
            raise SettingsError(f"{name}: extra.management_port is no number from 1 to {LAST_PORT}")
        url = f"{'https' if context else 'http'}://{hosts[0].host}:{int(own)}"
    if url and "@" in str(url):  # it would be told in errors
        raise SettingsError(
            f"{name}: extra.management_url must not hold user and password; login and password are used"
        )
    if url:
        address(connection, "extra.management_url", url)
        management = Management(str(url), vhost, user, password, context=context, timeout=min(timeout, 15))
    return {
        "hosts": Hosts(hosts, subject=name, timeout=timeout, sleep=sleep),
        "management": management,
        "confirm_timeout": number(connection, "confirm_timeout", otherwise=60),
        "blocked_timeout": number(connection, "blocked_timeout", otherwise=120),
        "keep_expiration": flag(connection, "keep_expiration", otherwise=False),
        "max_message_bytes": int(number(connection, "max_message_bytes", otherwise=MAX_BYTES)),
    }


def _tls(name: str, connection: Connection) -> ssl.SSLContext | None:
    extra = connection.extra
    secure = connection.conn_type == "amqps" or connection.port == 5671 or "ca_certs" in extra
    verified = flag(connection, "verify", otherwise=True)
    if not flag(connection, "ssl", otherwise=secure):
        return None
    try:
        context = ssl.create_default_context(cafile=extra.get("ca_certs"))
        if extra.get("certfile"):
            context.load_cert_chain(extra["certfile"], extra.get("keyfile"))
    except OSError as error:
        raise SettingsError(f"{name}: TLS: {error}") from error
    if not verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
