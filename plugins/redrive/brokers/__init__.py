"""Broker adapters. :func:`open_broker` loads the one that a route names, and only that one."""

from typing import Any

from redrive.brokers.base import Broker
from redrive.errors import SettingsError

#: What ``broker:`` in a route may say today.
KINDS = ("amazon_sqs", "azure_service_bus", "memory", "google_pubsub", "rabbitmq", "apache_pulsar")
#: Agreed in the design, not built yet; named so that the error can say so.
PLANNED: tuple[str, ...] = ()


def open_broker(kind: str, connection_id: str, **options: Any) -> Broker:
    """The adapter for ``kind``, connected as the Airflow connection ``connection_id`` says.

    ``options`` go to the adapter (see its constructor). Client libraries are imported here, not before, so
    that a run that needs no broker pays for none. Raises :class:`~redrive.errors.SettingsError` for an
    unknown kind and :class:`~redrive.errors.ConnectionMissing` for an undefined connection.
    """
    if kind == "amazon_sqs":
        from redrive.brokers.amazon_sqs import AmazonSqs  # noqa: PLC0415

        return AmazonSqs.open(connection_id, **options)
    if kind == "rabbitmq":
        from redrive.brokers.rabbitmq import RabbitMQ  # noqa: PLC0415

        return RabbitMQ.open(connection_id, **options)
    if kind == "google_pubsub":
        from redrive.brokers.google_pubsub import GooglePubSub  # noqa: PLC0415

        return GooglePubSub.open(connection_id, **options)
    if kind == "azure_service_bus":
        from redrive.brokers.azure_service_bus import AzureServiceBus  # noqa: PLC0415

        return AzureServiceBus.open(connection_id, **options)
    if kind == "apache_pulsar":
        from redrive.brokers.apache_pulsar import ApachePulsar  # noqa: PLC0415

        return ApachePulsar.open(connection_id, **options)
    if kind == "memory":
        from redrive.brokers.memory import open_memory_broker  # noqa: PLC0415

        return open_memory_broker(connection_id)
    if kind in PLANNED:
        raise SettingsError(f"broker: {kind} is not supported yet; this version knows {', '.join(KINDS)}")
    raise SettingsError(f"broker: {kind!r} is unknown; this version knows {', '.join(KINDS)}")
