"""What the client library's errors and results mean for us: which become ours, and what became of a message."""

import pulsar

from redrive.brokers.base import Publication
from redrive.errors import BrokerError, BrokerUnavailable, MessageRefused, PermissionRefused, QueueMissing

_MISSING = (pulsar.TopicNotFound,)
_REFUSED = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.ErrorGettingAuthenticationData)
_AWAY = (
    *(pulsar.Timeout, pulsar.ConnectError, pulsar.NotConnected, pulsar.LookupError, pulsar.ServiceUnitNotReady),
    *(pulsar.TooManyLookupRequestException, pulsar.BrokerMetadataError, pulsar.BrokerPersistenceError),
    *(pulsar.AlreadyClosed, pulsar.ReadError, pulsar.ConsumerBusy, pulsar.ProducerBusy, pulsar.Interrupted),
    *(pulsar.ProducerBlockedQuotaExceededError, pulsar.ProducerBlockedQuotaExceededException, pulsar.ProducerFenced),
)
_NEVER = (pulsar.MessageTooBig, pulsar.InvalidMessage, pulsar.TopicTerminated, pulsar.IncompatibleSchema)

#: What the library says of a single message, by the names of its results.
#: A full backlog or a terminated topic is not among them: the library fails with that all that it has in hand when
#: it comes back, and the broker may have taken some of it before.
_REFUSALS = frozenset({"MessageTooBig", "InvalidMessage", "IncompatibleSchema", "NotAllowedError"})
_NOT_TAKEN = frozenset({"ProducerQueueIsFull", "MemoryBufferIsFull", "ChecksumError"})


def known_error(action: str, queue: str, error: pulsar.PulsarException, service: str) -> BrokerError:
    """An error of the library as one of ours, naming the action and the queue, and the cluster where it is away."""
    text = f"{action} on queue {queue}: {error}"
    if isinstance(error, _MISSING):
        return QueueMissing(text)
    if isinstance(error, _REFUSED):
        return PermissionRefused(text)
    if isinstance(error, _NEVER):
        return MessageRefused(text)
    if isinstance(error, _AWAY):
        return BrokerUnavailable(f"{action} on queue {queue}: {service}: {error}")
    return BrokerError(text)


def fate(result: str, broker_id: str | None) -> Publication:
    """What became of a message, by the name of the library's result for it."""
    if result == "Ok":
        return Publication("sent", broker_id)
    if result in _REFUSALS:
        return Publication("refused", detail=result)
    return Publication("retry" if result in _NOT_TAKEN else "unknown", detail=result)
