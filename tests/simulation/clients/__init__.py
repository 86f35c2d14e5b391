"""Client libraries over a simulated world, so that the real adapters run in it.

Each module stands in for one library at the boundary where the adapter calls it: boto3's client, the AMQP link, the
Pub/Sub clients, the Service Bus SDK. They speak the library's own types and errors, and what they do to a queue goes
through the verbs of :class:`~tests.simulation.world.System`. A world that uses one has to keep to what that broker can
do (:data:`TRAITS`).

What a fate means here (see ``System.fate``): ``ok``; ``lost``: done, and the answer is lost in one of the ways in which
that library loses answers; ``error``: not done, and the library can't say so; ``retry``: the broker itself says that it
did not look at it; ``down``: no connection; ``part``: some entries of a batch are done, of the others the broker says
that something went wrong; ``refused``: never as it is.
"""

import random

from tests.simulation.clients import pubsub, rabbitmq, service_bus, sqs

#: By the name of the client: what its broker can do, as keyword arguments of ``Traits``. The rest is up to the dice.
TRAITS: dict[str, dict[str, object]] = {
    "sqs": sqs.TRAITS,
    "sqs_fifo": sqs.FIFO_TRAITS,
    "rabbitmq": rabbitmq.TRAITS,
    "rabbitmq_managed": rabbitmq.MANAGED_TRAITS,
    "pubsub": pubsub.TRAITS,
    "service_bus": service_bus.TRAITS,
}
#: By the name of the client: what ``broker:`` says, and what connects to a system.
CONNECT = {
    "sqs": ("amazon_sqs", sqs.connect),
    "sqs_fifo": ("amazon_sqs", sqs.connect),
    "rabbitmq": ("rabbitmq", rabbitmq.connect),
    "rabbitmq_managed": ("rabbitmq", rabbitmq.connect_managed),
    "pubsub": ("google_pubsub", pubsub.connect),
    "service_bus": ("azure_service_bus", service_bus.connect),
}


def queue_name(client: str, name: str, *, dead_letters_of: str | None = None) -> str:
    """What a queue is called where this client's broker has rules for names; ``dead_letters_of`` is another's name."""
    if client == "sqs_fifo":
        return f"{name}.fifo"
    if client == "service_bus" and dead_letters_of is not None:
        return f"{dead_letters_of}{service_bus.DEAD_LETTERS}"
    return name


def producer_fields(client: str, body: bytes, dice: random.Random, *, chosen: str | None = None) -> dict[str, object]:
    """What a producer's send has besides its body and headers, as keyword arguments of ``System.send``.

    ``chosen`` is an id that the producer gives, where its library lets it: several messages may have the same one.
    """
    if client == "sqs_fifo":
        dedup = chosen or sqs.deduplication_id(body)
        return {"dedup_id": dedup, "properties": (("MessageDeduplicationId", dedup),)}
    if client == "service_bus":
        return {"publisher_id": chosen, "dedup_id": chosen} if chosen else {}
    if client.startswith("rabbitmq") and chosen and dice.random() < 0.7:
        return {"publisher_id": chosen}
    return {}
