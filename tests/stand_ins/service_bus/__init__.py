"""A stand-in for Azure Service Bus: a server in this process that speaks AMQP 1.0 to Microsoft's own client.

Azure can't be reached from tests and Microsoft's emulator needs Docker, so this keeps the promises that Redrive
relies on: peek-lock with lock tokens that outlive the link, echoed outcomes, delivery counts, dead-letter and transfer
dead-letter queues with the service's own reasons, time to live, scheduled messages, duplicate detection, sessions,
topics with filters, forwarding with its limit of hops, size limits, keys with rights and verified signatures, and the
HTTP API for descriptions and counts. Faults and time are under the test's control.

It does **not**: speak WebSockets, know Entra tokens, persist anything, throttle, know transactions, sessions'
idle timeouts, SQL filters (a filter is a Python function), partitions (only their rule for batches) or quotas of size.
Where Microsoft's documentation is silent, it does what seems the harder case for a client. It proves that Redrive
and the SDK understand each other, not that Azure behaves so.
"""

from tests.stand_ins.service_bus.server import ServiceBusStandIn

__all__ = ["ServiceBusStandIn"]
