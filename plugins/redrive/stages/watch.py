"""Watch: look at the consumers of a route's destinations between its runs, and tell people of those that are stuck.

A run compares with what the run before has seen, so with runs ten minutes apart a consumer that hangs is found late.
This looks as often as it is called, holds no route, and neither receives nor sends: what it writes down the next run
goes by. It closes no connection, a run does.
"""

from datetime import datetime
from typing import cast

from redrive.brokers.base import Broker, TellsOfConsumers
from redrive.errors import QueueMissing
from redrive.ledger import schema
from redrive.ledger.delivery import consumers as ledger_consumers
from redrive.ledger.engine import Ledger
from redrive.message import index_key
from redrive.settings import Settings
from redrive.stages import notify
from redrive.stages.consumers import assess
from redrive.stages.observe import destinations_of


def watch(settings: Settings, name: str, broker: Broker, now: datetime) -> int:
    """How many consumers of the destinations of route ``name`` are stuck, isolated ones too; 0 where nobody tells.

    Called every so often it finds one at the first look after ``isolation.ack_timeout``.
    """
    if not broker.capabilities.consumer_statistics:
        return 0
    route, stuck = settings.route(name), 0
    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        with ledger.read() as connection:
            queues = destinations_of(connection, name, route)
        for queue in queues:
            if not broker.capabilities_for(queue).consumer_statistics:
                continue
            try:
                told = cast("TellsOfConsumers", broker).consumers(queue)
            except QueueMissing:
                continue  # a run tells of that
            seen = [one._replace(consumer=index_key(one.consumer)) for one in told]
            with ledger.read() as connection:
                known = ledger_consumers.of_queue(connection, name, queue)
            assessed = assess(known, seen, ack_timeout=route.isolation.ack_timeout, now=now)
            if assessed:
                ledger_consumers.write_unheld(ledger, name, queue, assessed, now)
            stuck += sum(1 for one in assessed if one.status in ("stuck", "isolated"))
    finally:
        ledger.close()
    notify.watched(settings, name, now)
    return stuck
