"""Serve one of the tests' brokers to whoever starts this: ``python -m tests.serving rabbitmq FOLDER``.

Prints one line of JSON once the broker answers: ``about``, what it is, and ``connection``, as an Airflow connection has
it; or ``missing``, what isn't installed. It ends when its standard input does or by SIGTERM; with ``--keep`` only by
the latter. ``redrive demo --broker …`` starts it.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import ServerMissing

Connection = dict[str, Any]


@contextmanager
def rabbitmq(folder: Path) -> Iterator[tuple[str, Connection]]:
    from tests.servers import RabbitMQ  # noqa: PLC0415 - each has its own client

    with RabbitMQ(folder) as server:
        version = server.ask("GET", "overview")["rabbitmq_version"]
        yield f"a real RabbitMQ node, {version}", server.connection()


@contextmanager
def pulsar(folder: Path) -> Iterator[tuple[str, Connection]]:
    from tests.pulsar_server import Pulsar  # noqa: PLC0415

    with Pulsar(folder) as server:
        yield f"a real Apache Pulsar, {server.ask('GET', 'brokers/version', text=True)}", server.connection()


@contextmanager
def pubsub(_: Path) -> Iterator[tuple[str, Connection]]:
    from tests.stand_ins.pubsub import PubSubServer  # noqa: PLC0415
    from tests.stand_ins.pubsub_topics import World  # noqa: PLC0415

    with PubSubServer(World()) as server:
        extra = {"project": "shop", "endpoint": server.endpoint}
        yield (
            "a stand-in of ours that speaks Pub/Sub's protocol to Google's own client (Google's can't be had here)",
            {"conn_type": "google_cloud_platform", "extra": extra},
        )


@contextmanager
def service_bus(_: Path) -> Iterator[tuple[str, Connection]]:
    from tests.stand_ins.service_bus import ServiceBusStandIn  # noqa: PLC0415

    with ServiceBusStandIn() as bus:
        bus.queue("orders", lock_duration=30.0, max_delivery_count=3)
        bus.topic("news")
        for name in ("mail", "push"):
            bus.subscription("news", name, lock_duration=30.0, max_delivery_count=3)
        extra = {"admin_endpoint": bus.admin_url}
        yield (
            "a stand-in of ours that speaks AMQP to Microsoft's own client (Microsoft's needs Docker)",
            {"conn_type": "azure_service_bus", "schema": bus.connection_string(), "extra": extra},
        )


BROKERS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (rabbitmq, pulsar, pubsub, service_bus)}


def _tell_of_the_end(over: int) -> None:
    while os.read(0, 1024):  # not by sys.stdin, which a thread must not hold when Python ends
        pass
    os.write(over, b".")


def main(name: str, folder: str, *options: str) -> None:
    """Serve until told to end."""
    # Python runs a handler once its main thread does something again. What is just about to wait when a signal comes
    # waits on, for anything but what the signal itself writes.
    told, over = os.pipe()
    os.set_blocking(over, False)
    signal.set_wakeup_fd(over)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    try:
        with BROKERS[name](place) as (about, connection):
            print(json.dumps({"about": about, "connection": connection}), flush=True)
            if "--keep" not in options:
                threading.Thread(target=_tell_of_the_end, args=(over,), daemon=True).start()
            os.read(told, 1)
    except ServerMissing as missing:
        print(json.dumps({"missing": str(missing)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
