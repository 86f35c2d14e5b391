"""What Azure Service Bus is, before there is a connection."""

import re
from datetime import timedelta

from redrive.brokers.base import CUSTOM_FAILURE_HEADERS, BrokerKind, Capabilities
from redrive.brokers.service_bus.amqp_values import refuses_headers
from redrive.classification.causes import Cause

#: What the standard tier takes; the premium tier's bound is told by the link.
STANDARD_BYTES = 256 * 1024
MAX_LOCK = timedelta(minutes=5)

REASON = "DeadLetterReason"
DESCRIPTION = "DeadLetterErrorDescription"
#: Written by Service Bus, and by consumers that dead-letter by themselves.
FAILURE_HEADERS = CUSTOM_FAILURE_HEADERS | {REASON, DESCRIPTION}

CAPABILITIES = Capabilities(
    knows_empty=True,
    stable_identity=True,
    gives_reason=True,
    single_target=True,
    native_dedupe=None,
    native_delay=timedelta(days=365),
    max_headers=None,
    max_message_bytes=STANDARD_BYTES,
    publish_batch=500,
    failure_headers=FAILURE_HEADERS,
    max_lease=MAX_LOCK,
    peeks=True,
    takes_back=False,
    untried_rights="the claims Listen on sources and Send on destinations, or the roles Azure Service Bus Data Receiver"
    " and Data Sender",
    tells_origin_lease=True,
    consumer_ids="new",  # where duplicates are detected; else a MessageId is kept
)


def source_name(queue: str, kind: str) -> str:
    """``orders`` as a source of dead letters means ``orders/$DeadLetterQueue``.

    Taken literally, it would drain what live consumers wait for. ``orders/$Active`` is the queue itself.
    """
    if kind != "dead_letter" or queue.lower().endswith(("/$deadletterqueue", "/$active")):
        return queue
    return f"{queue.rstrip('/')}/$DeadLetterQueue"


#: ``news/*``: the dead-letter queues of all subscriptions of a topic.
_MANY = re.compile(r"(?P<topic>[^*]+?)/(?:subscriptions/)?\*(?:/\$deadletterqueue)?", re.IGNORECASE)
_DEAD_LETTERS_OF = "{}/Subscriptions/{}/$DeadLetterQueue"


def topic_of_many(queue: str) -> str | None:
    """The topic for all of whose subscriptions the source stands; None: it stands for one queue."""
    found = _MANY.fullmatch(queue)
    return found["topic"] if found else None


def dead_letters_of(topic: str, subscription: str) -> str:
    """The dead-letter queue of a subscription, as a source is named."""
    return _DEAD_LETTERS_OF.format(topic, subscription)


def covers(queue: str, one: str) -> bool:
    """See :class:`~redrive.brokers.base.BrokerKind`."""
    topic = topic_of_many(queue)
    if queue == one or topic is None:
        return queue == one
    return re.fullmatch(_DEAD_LETTERS_OF.replace("$", r"\$").format(re.escape(topic), "[^/]+"), one, re.I) is not None


def name_tells(queue: str) -> tuple[str | None, ...]:
    """Letter case tells nothing, nor that a queue itself is meant."""
    topic = topic_of_many(queue)
    return ((f"{topic}/*" if topic else queue.strip("/")).lower().removesuffix("/$active"),)


KIND = BrokerKind(
    title="Service Bus",
    adapter="redrive.brokers.service_bus.adapter:AzureServiceBus",
    extra="servicebus",
    capabilities=CAPABILITIES,
    refuses_headers=refuses_headers,
    advice={
        Cause.LEASE_EXPIRED: (
            "On Service Bus: lower `prefetch_count` and `max_message_count`, raise the entity's `LockDuration` "
            "(5 minutes at most), and renew longer work with `AutoLockRenewer(max_lock_renewal_duration=…)` or "
            "`MaxAutoLockRenewalDuration`."
        ),
        Cause.MAX_DELIVERIES: "On Service Bus the number is the entity's `MaxDeliveryCount` (10 by default).",
        Cause.MESSAGE_EXPIRED: (
            "On Service Bus look at `DefaultMessageTimeToLive` and the message's own `time_to_live`."
        ),
    },
    words={
        "sources[].queue": "On Service Bus `orders` of kind `dead_letter` means `orders/$DeadLetterQueue`, and "
        "`news/*` those of all subscriptions of the topic `news`, also of later ones.",
        "sources[].lease": "On Service Bus: the lock duration, which takes the right Manage. If your consumers renew "
        "their locks, say for how long.",
    },
    source_name=source_name,
    many=lambda queue: topic_of_many(queue) is not None,
    covers=covers,
    name_tells=name_tells,
)
