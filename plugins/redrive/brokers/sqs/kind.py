"""What Amazon SQS is, before there is a connection."""

from dataclasses import replace
from datetime import timedelta

from redrive.brokers.base import CUSTOM_FAILURE_HEADERS, BrokerKind, Capabilities
from redrive.brokers.sqs.message import (
    BATCH,
    DEDUPE_WINDOW,
    MAX_ATTRIBUTES,
    MAX_BYTES,
    MAX_DELAY,
    refuses_headers,
)
from redrive.brokers.sqs.regions import name_tells
from redrive.classification.causes import Cause

#: Attributes that say why a message died, removed before it is sent again: what AWS services write, and what consumers
#: that dead-letter by themselves usually write. Words that could be business data (``error``, ``RequestID``) are not
#: here: a route names its own under ``evidence``.
FAILURE_HEADERS = CUSTOM_FAILURE_HEADERS | {
    # Lambda, asynchronous invocation
    *("ErrorCode", "ErrorMessage"),
    # EventBridge rules
    *("RULE_ARN", "TARGET_ARN", "ERROR_CODE", "ERROR_MESSAGE"),
    *("RETRY_ATTEMPTS", "EXHAUSTED_RETRY_CONDITION"),
    # EventBridge Scheduler
    *("SCHEDULE_ARN", "SCHEDULED_TIME", "EXECUTION_ID", "IS_PAYLOAD_TRUNCATED"),
}

STANDARD = Capabilities(
    knows_empty=True,  # but late: see depth_lag
    stable_identity=True,
    gives_reason=False,
    single_target=True,
    native_dedupe=None,
    native_delay=MAX_DELAY,
    max_headers=MAX_ATTRIBUTES,
    max_message_bytes=MAX_BYTES,
    publish_batch=BATCH,
    failure_headers=FAILURE_HEADERS,
    consumer_ids="new",
    untried_rights="sqs:ReceiveMessage, sqs:DeleteMessage and sqs:ChangeMessageVisibility on sources;"
    " sqs:SendMessage on destinations, and on sources for restore",
    oldest_age="sample",
    proves_origin=True,  # a system attribute, which no producer can set
    in_order=False,  # of a FIFO queue each group is, and others go past one that waits
    leases_end=True,
    depth_lag=timedelta(minutes=1),  # AWS: the numbers are approximate, and right about a minute after the last change
    zeros_apart=timedelta(minutes=2),  # AWS: "0 for several minutes" before a queue is known to be empty
    tells_origin_lease=True,
    times_tell_leases=True,
    ids_of_sends=True,
)
#: FIFO queues drop a repeated deduplication id, and delay whole queues only.
FIFO = replace(STANDARD, native_dedupe=DEDUPE_WINDOW, native_delay=None)

KIND = BrokerKind(
    title="SQS",
    adapter="redrive.brokers.sqs.adapter:AmazonSqs",
    extra="sqs",
    capabilities=STANDARD,
    name_tells=name_tells,
    in_full="as an ARN",
    refuses_headers=refuses_headers,
    advice={
        Cause.LEASE_EXPIRED: (
            "On SQS: receive fewer with `MaxNumberOfMessages` (Lambda: the event source's `BatchSize`), raise "
            "the queue's `VisibilityTimeout` (Lambda: to six times the function's timeout) or renew it with "
            "`ChangeMessageVisibility`, and mind that 12 hours from the receive is the end."
        ),
        Cause.MAX_DELIVERIES: "On SQS the number is `maxReceiveCount` of the queue's `RedrivePolicy`.",
        Cause.MESSAGE_EXPIRED: (
            "On SQS a dead-letter queue of a standard queue counts `MessageRetentionPeriod` from the first "
            "send: give it more than its source."
        ),
        Cause.OVERSIZED: (
            "On SQS the limit is `MaximumMessageSize` of the queue, attributes included, and the same for a whole "
            "batch."
        ),
    },
    words={
        "sources[].lease": "On SQS: the visibility timeout of the queues that dead-letter into it, which takes "
        "`sqs:ListDeadLetterSourceQueues`.",
        "backoff.native": "SQS keeps no delay of a single message in FIFO queues.",
        "ages.sample": "Only for SQS.",
    },
)
