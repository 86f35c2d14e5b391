"""Why a message died: the eighteen causes, what each means, what is done first, and how to prevent it.

A cause is a word that the Spark job gives to a failure; everything that follows from the word alone is here.
History, groups and the state of the destination are weighed later, in :mod:`redrive.policy.next_step`.
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Cause(StrEnum):
    """What made the consumer fail, as far as the evidence tells."""

    TRANSIENT_NETWORK = "transient_network"
    TRANSIENT_DATABASE = "transient_database"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    THROTTLED = "throttled"
    CONSISTENCY_LAG = "consistency_lag"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    CONSUMER_STUCK = "consumer_stuck"
    LEASE_EXPIRED = "lease_expired"
    DUPLICATE = "duplicate"
    MAX_DELIVERIES = "max_deliveries"
    UNCLASSIFIED = "unclassified"
    MESSAGE_EXPIRED = "message_expired"
    MALFORMED_PAYLOAD = "malformed_payload"
    MISSING_DATA = "missing_data"
    AUTH_FAILURE = "auth_failure"
    OVERSIZED = "oversized"
    ROUTING_FAILURE = "routing_failure"
    APPLICATION_BUG = "application_bug"


class Verdict(StrEnum):
    """What is done with a message of a cause when nothing else is known about it.

    Each is :attr:`automatic`, or :attr:`needs_person`, or neither: of a canary the few that are sent decide, and what
    is discarded goes nowhere. This is the one place that says so.
    """

    REQUEUE = "requeue"  # back at once, at most requeue_attempts times, then delay
    DELAY = "delay"  # back after backoff, at most delay_attempts times, then a person
    CANARY = "canary"  # a few of the group first; the rest only if those do not return
    HOLD = "hold"  # not before the destination's consumers are well, then requeue
    SUPPRESS_OR_REQUEUE = "suppress_or_requeue"  # not sent if it was processed, else back slowly
    SUPPRESS_OR_ESCALATE = "suppress_or_escalate"  # not sent if it was processed, else a person
    ESCALATE = "escalate"  # a person decides
    DISCARD = "discard"  # nobody needs it; never a default, only where a route says so

    @property
    def automatic(self) -> bool:
        """Whether the message goes again by itself: all of the group, sooner or later, and nobody is asked before."""
        return self in (Verdict.REQUEUE, Verdict.DELAY, Verdict.HOLD, Verdict.SUPPRESS_OR_REQUEUE)

    @property
    def needs_person(self) -> bool:
        """Whether nothing is sent before a person has said so."""
        return self in (Verdict.ESCALATE, Verdict.SUPPRESS_OR_ESCALATE)


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything that follows from the name of a cause."""

    meaning: str  # one sentence
    verdict: Verdict
    advice: str  # one paragraph: how to make it not happen again


_PROFILES: dict[Cause, Profile] = {
    Cause.TRANSIENT_NETWORK: Profile(
        "A connection was reset, refused, timed out or could not be set up with something that is normally there.",
        Verdict.REQUEUE,
        "Retry inside the consumer, two or three times with jitter; set connect and read timeouts well "
        "below the lease; close idle pooled connections before the load balancer does; spread restarts of "
        "the dependency.",
    ),
    Cause.TRANSIENT_DATABASE: Profile(
        "A deadlock, serialization failure, lock wait, failover or momentarily empty pool stopped a transaction.",
        Verdict.REQUEUE,
        "Retry the whole transaction in the consumer on SQLSTATE 40001 and 40P01; take locks in one order; "
        "keep transactions short, with no remote call inside; give the pool a connection per concurrent "
        "handler.",
    ),
    Cause.DEPENDENCY_UNAVAILABLE: Profile(
        "A service that the consumer needs answered 502, 503 or 504, was in maintenance, or a circuit was open.",
        Verdict.DELAY,
        "Stop receiving while the dependency is down: a circuit breaker should pause the consumer and not "
        "fail its messages. Let the readiness check follow what the consumer can't work without, and allow "
        "more deliveries than the longest usual outage uses up.",
    ),
    Cause.THROTTLED: Profile(
        "A quota or rate limit was hit: 429, provisioned throughput, too many requests.",
        Verdict.DELAY,
        "Limit concurrency to what the quota allows, over all replicas together; honour Retry-After; batch "
        "calls; ask for a larger quota before a planned peak; set this route's `causes.throttled.rate` "
        "below the limit.",
    ),
    Cause.CONSISTENCY_LAG: Profile(
        "What the message refers to was not visible yet, or a version conflicted: replica lag or a lost race.",
        Verdict.DELAY,
        "Publish only after the commit (an outbox does that), read from the primary or with "
        "read-your-writes, carry the version in the message, and retry version conflicts in the consumer.",
    ),
    Cause.RESOURCE_EXHAUSTED: Profile(
        "The consumer or something below it ran out of disk, memory, file handles, threads or connections.",
        Verdict.DELAY,
        "Put limits where the resource is taken: fewer messages at a time, bounded pools and queues, "
        "streaming for large payloads. Alert on 80 % of the limit, and look for handles that are never "
        "closed.",
    ),
    Cause.CONSUMER_STUCK: Profile(
        "The consumer hung, was killed or evicted, or missed its heartbeats; the message is not to blame.",
        Verdict.HOLD,
        "Give every blocking call a timeout, work off the thread that sends heartbeats, let a liveness "
        "check watch progress, drain on SIGTERM within the grace period, and size memory so that the "
        "consumer is not the first to be evicted.",
    ),
    Cause.LEASE_EXPIRED: Profile(
        "The lock, lease, ack deadline or visibility ran out while the consumer was working; it may have succeeded.",
        Verdict.SUPPRESS_OR_REQUEUE,
        "Fetch fewer messages at a time, because the last of a batch waits under lease for all before it; "
        "shorten or split the work; lengthen or renew the lease to at least twice the slowest handling; "
        "make the handler idempotent, with its key written in the transaction that does the work.",
    ),
    Cause.DUPLICATE: Profile(
        "A unique constraint or an idempotency check says that this was done already, or a text that it may have been.",
        Verdict.SUPPRESS_OR_ESCALATE,
        "Treat an already processed key as success in the consumer and ack it, write the key in the "
        "transaction that does the work, use the broker's deduplication where there is one, and configure "
        "`processed_check`, so that such messages are suppressed with proof.",
    ),
    Cause.MAX_DELIVERIES: Profile(
        "Nothing is known but that it was delivered too often.",
        Verdict.CANARY,
        "Let the consumer leave the reason: dead-letter it yourself with the error text in an attribute, or "
        "log the message id with the exception. Allow at least five deliveries, so that a restart does not "
        "use them up.",
    ),
    Cause.UNCLASSIFIED: Profile(
        "There is a failure text, but no rule knows it.",
        Verdict.CANARY,
        "Read the group's sample, and add a rule to this route (`rules: [{match: …, cause: …}]`); `redrive "
        "explain` shows what a rule would catch. Errors with a code or an exception class are recognised "
        "best.",
    ),
    Cause.MESSAGE_EXPIRED: Profile(
        "The message's own time to live passed before anybody handled it.",
        Verdict.ESCALATE,
        "Find out whether late is worthless: then let the route say `causes.message_expired.verdict: "
        "discard`. Otherwise lengthen the time to live beyond the longest backlog, and add consumers when "
        "the oldest visible message passes half of it.",
    ),
    Cause.MALFORMED_PAYLOAD: Profile(
        "The body can't be decoded or does not fit its schema.",
        Verdict.ESCALATE,
        "Validate where it is produced, with the consumer's schema; let a registry refuse incompatible "
        "changes; deploy consumers before producers when a field is added; let consumers ignore what they "
        "don't know.",
    ),
    Cause.MISSING_DATA: Profile(
        "Something that the message refers to does not exist.",
        Verdict.ESCALATE,
        "Check references where the message is produced, order creation before use (one key, one partition "
        "or group), do not delete what open messages refer to, and tell 'not there' from 'not there yet' in "
        "the error.",
    ),
    Cause.AUTH_FAILURE: Profile(
        "Credentials, a permission or a certificate were refused.",
        Verdict.ESCALATE,
        "Rotate credentials with an overlap, alert 30 days before certificates end, keep permissions in "
        "code, and let the consumer stop at the first refusal instead of failing every message.",
    ),
    Cause.OVERSIZED: Profile(
        "The message, its headers or a batch was larger than something allows.",
        Verdict.ESCALATE,
        "Put large payloads into object storage and send a reference, compress what repeats, check the size "
        "against the smallest limit on the way, and split batches.",
    ),
    Cause.ROUTING_FAILURE: Profile(
        "There was no queue, handler or session for it, too many hops, or the destination was disabled or full.",
        Verdict.ESCALATE,
        "Declare queues, bindings and subscriptions in code and before producers start, publish so that an "
        "unroutable message is reported (mandatory), watch maximum lengths, and keep a handler for a "
        "retired message type until its queues are empty.",
    ),
    Cause.APPLICATION_BUG: Profile(
        "The consumer's own code failed: a null reference, a KeyError, an assertion.",
        Verdict.ESCALATE,
        "Turn the sample of this group into a test, fix it, then decide redeliver for the group: it goes out as a "
        "canary first. Contract tests catch most of these before they are deployed.",
    ),
}

#: Every cause has a profile; a test holds that.
PROFILES = MappingProxyType(_PROFILES)

#: Causes whose messages go again by themselves, and those whose messages wait for a person; see :class:`Verdict`.
AUTOMATIC = frozenset(cause for cause, profile in PROFILES.items() if profile.verdict.automatic)
NEED_PERSON = frozenset(cause for cause, profile in PROFILES.items() if profile.verdict.needs_person)


def meaning(cause: Cause) -> str:
    """What happened, in one sentence."""
    return PROFILES[cause].meaning


def default_verdict(cause: Cause) -> Verdict:
    """What is done first where neither the route nor history says otherwise."""
    return PROFILES[cause].verdict


def advice(cause: Cause) -> str:
    """How to make it not happen again: one paragraph. ``redrive.brokers.registry.advice`` adds a broker's knobs."""
    return PROFILES[cause].advice
