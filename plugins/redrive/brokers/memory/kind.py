"""What the broker in memory is."""

from datetime import timedelta

from redrive.brokers.base import BrokerKind, Capabilities

#: What a memory broker can do unless it is told otherwise.
MEMORY_CAPABILITIES = Capabilities(
    knows_empty=True,
    stable_identity=True,
    gives_reason=True,
    single_target=True,
    native_dedupe=None,
    native_delay=timedelta(minutes=15),
    max_headers=None,
    max_message_bytes=None,
    publish_batch=1000,
    failure_headers=frozenset({"x-failure-reason", "x-failure-text"}),
    oldest_age="sample",
    consumer_statistics=True,
    closes_connections=True,
    exact_depth=True,
    in_order=True,
    ids_of_sends=True,
)

KIND = BrokerKind(
    title="memory",
    adapter="redrive.brokers.memory.adapter:MemoryBroker",
    capabilities=MEMORY_CAPABILITIES,
    words={"broker": "`memory` is for tests.", "connection": "`memory` has none."},
    needs_connection=False,
)
