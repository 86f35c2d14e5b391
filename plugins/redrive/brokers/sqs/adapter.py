"""Amazon SQS.

Requests are what SQS charges for and what limits speed, so everything goes in batches of ten: one receive,
one delete and one send per ten messages. The SDK's own retries are off: a send that is repeated after a lost
answer would be sent twice in silence. What may be repeated is repeated here, with backoff and full jitter.
"""

import json
import math
import os
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Literal, Self

import boto3
import botocore.exceptions as boto
import urllib3
from botocore import xform_name
from botocore.config import Config
from botocore.parsers import ResponseParserError

from redrive.brokers.base import Capabilities, Depth, Publication, QueueInfo, Settled
from redrive.brokers.retries import again, until
from redrive.brokers.sqs.kind import FIFO, STANDARD
from redrive.brokers.sqs.message import (
    BATCH,
    MAX_BYTES,
    MAX_LEASE,
    MAX_WAIT,
    OLD_MAX_BYTES,
    Entry,
    entry,
    packs,
    queue_of_arn,
    received,
)
from redrive.connections import lookup
from redrive.connections.lookup import Connection
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing, SettingsError
from redrive.message import Outgoing, Received

_THROTTLED = frozenset(
    {
        *("RequestThrottled", "Throttling", "ThrottlingException", "ThrottledException", "TooManyRequests"),
        *("RequestThrottledException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown"),
        *("OverLimit", "AWS.SimpleQueueService.OverLimit", "KmsThrottled", "KMS.ThrottlingException"),
    }
)
_MISSING = frozenset(
    {
        *("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "NonExistentQueue"),
        *("InvalidAddress", "QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently"),
    }
)
_REFUSED_CALLER = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "AuthorizationError", "NotAuthorized", "OptInRequired"),
        *("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "InvalidAccessKeyId"),
        *(
            "UnrecognizedClientException",
            "SignatureDoesNotMatch",
            "InvalidSecurity",
            "InvalidSignatureException",
        ),
        *("MissingAuthenticationToken", "IncompleteSignature", "RequestExpired"),
        *("KmsAccessDenied", "KmsDisabled", "KmsInvalidState", "KmsNotFound", "KmsOptInRequired"),
        *("KMS.AccessDeniedException", "KMS.DisabledException", "KMS.NotFoundException"),
    }
)
#: There was no connection, or none any more.
_NOT_CONNECTED = (
    boto.EndpointConnectionError,
    boto.ConnectTimeoutError,
    boto.ProxyConnectionError,
    boto.SSLError,
)
_SDK_ERRORS = (boto.ClientError, boto.BotoCoreError, boto.HTTPClientError, ResponseParserError, OSError)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
_ARRIVED = frozenset({"sent", "unknown"})
_BEHIND = Publication("retry", detail="an earlier message of its group was not sent")
_SILENCE = Publication("unknown", detail="SQS said nothing about it")
#: What a plain client can be made of; any other key in the extra needs Airflow's hook (roles, SSO, …).
_SIMPLE_EXTRA = frozenset(
    {
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
        *("region_name", "endpoint_url", "profile_name", "verify"),
    }
)


class AmazonSqs:
    """One SQS account and region as a connection reaches it; fills :class:`~redrive.brokers.base.Broker`.

    Queues are named by name, URL or ARN. ``requests`` counts HTTP requests by operation. ``concurrency`` is
    how many requests of one call may be under way at once.
    """

    capabilities = STANDARD

    def __init__(
        self,
        client: Any,
        *,
        concurrency: int = 4,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._concurrency = concurrency
        self._sleep = sleep
        self._monotonic = monotonic
        self._pool: ThreadPoolExecutor | None = None
        self._urls: dict[str, str] = {}
        self._max_bytes: dict[str, int] = {}
        self._lock = threading.Lock()
        # A long poll that outlasts the wait for its answer would look like a lost one.
        self._max_wait = min(MAX_WAIT.total_seconds(), max(client.meta.config.read_timeout - 5, 0))
        self.requests: Counter[str] = Counter()
        client.meta.events.register("before-send.sqs.*", self._count)

    @classmethod
    def open(
        cls,
        connection_id: str,
        *,
        env: Mapping[str, str] = os.environ,
        read_timeout: float = 30,
        **options: Any,
    ) -> Self:
        """The account that Airflow connection ``connection_id`` names; nothing is asked of it yet.

        ``read_timeout`` (seconds, more than a long poll) is how long an answer may take.
        """
        connection = lookup.get(connection_id, env)
        return cls(_client(connection, max(read_timeout, 1)), **options)

    def capabilities_for(self, queue: str) -> Capabilities:
        """What holds for ``queue``: FIFO queues dedupe and can't delay, standard ones the other way round."""
        return FIFO if _is_fifo(queue) else STANDARD

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`.

        Polls are long ones (a short one looks at some of SQS's servers only), several at once on standard
        queues, until ``limit`` is reached, one comes back empty, or a quarter of the lease is used up. An
        error after some messages have come is kept back: the next call will meet it again.
        """
        if limit < 1:
            return []
        started = self._monotonic()
        url = self._url(queue)
        visibility = math.ceil(min(lease, MAX_LEASE).total_seconds())
        fill_until = started + lease.total_seconds() / 4
        at_once = 1 if _is_fifo(queue) else self._concurrency
        found: list[Received] = []

        def poll(count: int, seconds: int) -> list[Received]:
            answer = self._call(
                "ReceiveMessage",
                queue,
                QueueUrl=url,
                MaxNumberOfMessages=count,
                WaitTimeSeconds=seconds,
                VisibilityTimeout=visibility,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            return [received(message) for message in answer.get("Messages", ())]

        while True:  # wait for the first
            left = max(wait.total_seconds() - (self._monotonic() - started), 0)
            found = poll(min(limit, BATCH), math.ceil(min(left, self._max_wait)))
            if found or left <= self._max_wait:
                break
        follow_up = math.ceil(min(wait.total_seconds(), self._max_wait, 1))
        while found and len(found) < limit and self._monotonic() < fill_until:
            missing = limit - len(found)
            counts = [min(BATCH, missing - at) for at in range(0, min(missing, at_once * BATCH), BATCH)]
            answers = list(self._together(lambda count: _attempt(poll, count, follow_up), counts))
            for answer in answers:
                found += answer if isinstance(answer, list) else []
            if not all(isinstance(answer, list) and answer for answer in answers):
                break
        return found

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; errors are raised only where nothing could be deleted."""
        failures = self._in_batches("DeleteMessageBatch", queue, receipts, {})
        return Settled(len(receipts) - len(failures), tuple(failures))

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        self._in_batches("ChangeMessageVisibilityBatch", queue, receipts, {"VisibilityTimeout": 0})

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        seconds = math.ceil(min(lease, MAX_LEASE).total_seconds())
        self._in_batches("ChangeMessageVisibilityBatch", queue, receipts, {"VisibilityTimeout": seconds})

    def _in_batches(
        self, action: str, queue: str, receipts: Sequence[object], fields: dict[str, object]
    ) -> list[tuple[object, str]]:
        """Do ``action`` on all receipts; the ones on which it failed for good, with SQS's words."""
        if not receipts:
            return []
        url = self._url(queue)

        def one(batch: Sequence[object]) -> list[tuple[object, str]]:
            return self._until_settled(action, queue, url, batch, fields)

        batches = [receipts[at : at + BATCH] for at in range(0, len(receipts), BATCH)]
        failures: list[tuple[object, str]] = []
        errors: list[BrokerError] = []
        for batch, result in zip(batches, self._together(lambda batch: _attempt(one, batch), batches), strict=True):
            if isinstance(result, BrokerError):
                errors.append(result)
                failures += [(receipt, str(result)) for receipt in batch]
            else:
                failures += result
        if len(errors) == len(batches):
            raise errors[0]
        return failures

    def _until_settled(
        self, action: str, queue: str, url: str, batch: Sequence[object], fields: dict[str, object]
    ) -> list[tuple[object, str]]:
        """One batch, its passing failures tried again; what failed for good."""
        final: list[tuple[object, str]] = []
        passing: list[tuple[object, str]] = []
        open_receipts = list(batch)

        def once() -> bool:
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt, **fields} for number, receipt in enumerate(open_receipts)
            ]
            answer = self._call(action, queue, QueueUrl=url, Entries=entries)
            passing.clear()
            for failed in answer.get("Failed", ()):
                receipt = open_receipts[int(failed["Id"])]
                words = f"{failed.get('Code')}: {failed.get('Message', '')}"
                (final if _lasting(failed) else passing).append((receipt, words))
            open_receipts[:] = [receipt for receipt, _ in passing]
            return not passing

        until(once, sleep=self._sleep)
        return final + passing

    # --- sending --------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        A request whose answer is lost is ``unknown`` for exactly its messages, and so is one to which
        something else than SQS answers: a proxy's 503 may hide that SQS took it. Requests that SQS calls
        throttled are repeated with backoff, and answered ``retry`` in the end. A missing queue or
        permission is raised where nothing of the call was sent; otherwise what is left is ``retry``. FIFO
        queues get one request after another; SQS itself may take a message and refuse an earlier one of its
        group in the same request, and then both are reported as they are.
        """
        if not messages:
            return []
        url = self._url(queue)
        fifo = _is_fifo(queue)
        results: list[Publication | None] = [None] * len(messages)
        entries: list[Entry] = []
        for index, message in enumerate(messages):
            made = entry(index, message, fifo=fifo)
            if isinstance(made, Entry) and made.size > OLD_MAX_BYTES and made.size > self._bound(queue):
                made = f"{made.size} bytes; queue {queue} takes at most {self._bound(queue)}"
            if isinstance(made, Entry):
                entries.append(made)
            else:
                results[index] = Publication("refused", detail=made)
        if fifo:
            errors = self._send_in_order(queue, url, messages, entries, results)
        else:
            errors = self._send_at_once(queue, url, entries, results)
        if errors and not any(result is not None and result.status in _ARRIVED for result in results):
            raise errors[0]
        return [result or _SILENCE for result in results]

    def _send_at_once(
        self, queue: str, url: str, entries: Sequence[Entry], results: list[Publication | None]
    ) -> list[BrokerError]:
        errors: list[BrokerError] = []
        for outcome, error in self._together(lambda pack: self._send(queue, url, pack), list(packs(entries))):
            for index, result in outcome.items():
                results[index] = result
            errors += [error] if error else []
        return errors

    def _send_in_order(
        self,
        queue: str,
        url: str,
        messages: Sequence[Outgoing],
        entries: Sequence[Entry],
        results: list[Publication | None],
    ) -> list[BrokerError]:
        """One request after another; behind a message that was not sent, its group waits."""
        errors: list[BrokerError] = []
        blocked: dict[str, int] = {}  # group -> index of its first message that was not sent

        def note(indexes: Iterable[int]) -> None:
            for index in indexes:
                result, key = results[index], messages[index].ordering_key
                if result is not None and result.status != "sent" and key:
                    blocked[key] = min(index, blocked.get(key, index))

        note(range(len(messages)))
        for pack in packs(entries):
            going = []
            for item in pack:
                if errors:
                    results[item.place] = Publication("retry", detail=str(errors[0]))
                elif blocked.get(item.group or "", item.place) < item.place:
                    results[item.place] = _BEHIND
                else:
                    going.append(item)
            if going:
                outcome, error = self._send(queue, url, going)
                for index, result in outcome.items():
                    results[index] = result
                note(outcome)
                errors += [error] if error else []
        return errors

    def _send(self, queue: str, url: str, pack: Sequence[Entry]) -> tuple[dict[int, Publication], BrokerError | None]:
        """One request: an outcome per message, and the error if it concerns the queue and not the messages."""
        fields = [item.fields for item in pack]
        try:
            answer = self._patiently(
                lambda: self._client.send_message_batch(QueueUrl=url, Entries=fields), when=_throttled
            )
        except _SDK_ERRORS as error:
            result, concerns_queue = _fate(queue, error)
            if result.status == "refused" and len(pack) > 1:
                return self._send_halves(queue, url, pack)
            return {item.place: result for item in pack}, concerns_queue
        outcome = {item.place: _SILENCE for item in pack}
        for done in answer.get("Successful", ()):
            outcome[int(done["Id"])] = Publication("sent", done.get("MessageId"))
        for failed in answer.get("Failed", ()):
            words = f"{failed.get('Code')}: {failed.get('Message', '')}"
            status: Literal["retry", "refused", "unknown"] = "unknown"  # a fault within SQS, which may have it
            if failed.get("Code") in _THROTTLED:
                status = "retry"
            elif failed.get("SenderFault"):
                status = "refused"
            outcome[int(failed["Id"])] = Publication(status, detail=words)
        return outcome, None

    def _send_halves(
        self, queue: str, url: str, pack: Sequence[Entry]
    ) -> tuple[dict[int, Publication], BrokerError | None]:
        """SQS refused a request as a whole, so it took nothing; find the message that is to blame."""
        middle = len(pack) // 2
        outcome, error = self._send(queue, url, pack[:middle])
        blocked = {item.group for item in pack[:middle] if item.group and outcome[item.place].status != "sent"}
        going = [item for item in pack[middle:] if error is None and item.group not in blocked]
        outcome |= {item.place: _BEHIND for item in pack[middle:]}
        if going:
            second, error = self._send(queue, url, going)
            outcome |= second
        return outcome, error

    def _bound(self, queue: str) -> int:
        """The most bytes that ``queue`` takes in one message; asked once."""
        if queue not in self._max_bytes:
            try:
                self._max_bytes[queue] = self.describe(queue).max_message_bytes or MAX_BYTES
            except PermissionRefused:  # may send, may not look: then SQS says it at the send
                self._max_bytes[queue] = MAX_BYTES
        return self._max_bytes[queue]

    # --- looking --------------------------------------------------------------------------------------

    def leads_to(self, queue: str, origin: str) -> bool | None:
        """See :class:`~redrive.brokers.base.Broker`; an origin is a name, and a URL or an ARN ends with one."""
        return queue.rstrip("/").rpartition("/")[2].rpartition(":")[2] == origin

    def origins(self, queue: str) -> frozenset[str] | None:  # noqa: ARG002 - each letter tells it
        """See :class:`~redrive.brokers.base.Broker`; not needed, because no producer can set the system attribute."""
        return None

    def depth(self, queue: str) -> Depth:
        """See :class:`~redrive.brokers.base.Broker`; SQS's numbers are approximate and lag up to a minute."""
        names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ]
        found = self._attributes(queue, self._url(queue), names)
        return Depth(*(int(told) if (told := found.get(name)) is not None else None for name in names))

    def describe(self, queue: str) -> QueueInfo:
        """See :class:`~redrive.brokers.base.Broker`.

        ``max_deliveries`` is the smallest of the queues that dead-letter into ``queue``; where there are
        none, or SQS does not say which, it is that of ``queue`` itself.
        """
        url = self._url(queue)
        found = self._attributes(queue, url, ["All"])
        policy = _policy(found)
        largest = found.get("MaximumMessageSize")
        if largest is not None:
            self._max_bytes[queue] = int(largest)
        return QueueInfo(
            retention=_seconds(found.get("MessageRetentionPeriod")),
            lease=_seconds(found.get("VisibilityTimeout")),
            max_deliveries=self._source_deliveries(queue, url) or _max_receives(policy),
            ordered=_is_fifo(queue),
            dead_letter_queue=queue_of_arn(policy.get("deadLetterTargetArn")),
            max_message_bytes=int(largest) if largest is not None else None,
            own_max_deliveries=_max_receives(policy),
        )

    def _source_deliveries(self, queue: str, url: str) -> int | None:
        try:
            answer = self._call("ListDeadLetterSourceQueues", queue, QueueUrl=url)
            counts = [
                _max_receives(_policy(self._attributes(queue, source, ["RedrivePolicy"])))
                for source in answer.get("queueUrls", ())
            ]
        except BrokerError:  # not every server has it, and not everybody may ask
            return None
        return min((count for count in counts if count), default=None)

    def _attributes(self, queue: str, url: str, names: list[str]) -> dict[str, str]:
        answer = self._call("GetQueueAttributes", queue, QueueUrl=url, AttributeNames=names)
        return dict(answer.get("Attributes", {}))

    def close(self) -> None:
        """Close connections; what is leased comes back when its lease ends."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._client.close()

    # --- calls ----------------------------------------------------------------------------------------

    def _url(self, queue: str) -> str:
        if queue not in self._urls:
            if "://" in queue:
                self._urls[queue] = queue
            else:
                question = {"QueueName": queue}
                if queue.startswith("arn:"):
                    *_, account, name = queue.split(":")
                    question = {"QueueName": name, "QueueOwnerAWSAccountId": account}
                self._urls[queue] = self._call("GetQueueUrl", queue, **question)["QueueUrl"]
        return self._urls[queue]

    def _call(self, action: str, queue: str, **parameters: Any) -> dict[str, Any]:
        """One call that may safely be repeated; raises the errors of :mod:`redrive.errors`."""
        method = getattr(self._client, xform_name(action))
        try:
            answer: dict[str, Any] = self._patiently(lambda: method(**parameters), when=_may_pass)
        except _NO_CREDENTIALS as error:
            raise PermissionRefused(f"{action} on queue {queue}: {error}") from error
        except boto.ParamValidationError as error:
            raise BrokerError(f"{action} on queue {queue}: {error}") from error
        except boto.ClientError as error:
            raise _known_error(action, queue, error) from error
        except _SDK_ERRORS as error:
            raise BrokerUnavailable(f"{action} on queue {queue}: {error}") from error
        return answer

    def _patiently(self, work: Callable[[], Any], *, when: Callable[[BaseException], bool]) -> Any:
        return again(work, when=when, away=lambda error: isinstance(error, _NOT_CONNECTED), sleep=self._sleep)

    def _together(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """``work`` on all items, a few at a time, results in order."""
        if len(items) <= 1 or self._concurrency <= 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="sqs")
        return self._pool.map(work, items)

    def _count(self, event_name: str, **_: object) -> None:
        with self._lock:
            self.requests[event_name.rpartition(".")[2]] += 1


def _client(connection: Connection, read_timeout: float) -> Any:
    """The boto3 client for ``connection``, without retries of its own."""
    if connection.conn_type != "aws":
        raise SettingsError(f"connection {connection.conn_id} is of type {connection.conn_type!r}, not aws")
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=5,
        read_timeout=read_timeout,
        max_pool_connections=16,
        user_agent_extra="redrive",
    )
    extra = connection.extra
    try:
        if not set(extra) <= _SIMPLE_EXTRA:
            return _hook_client(connection, config)
        session = boto3.Session(
            aws_access_key_id=connection.login or extra.get("aws_access_key_id"),
            aws_secret_access_key=connection.password or extra.get("aws_secret_access_key"),
            aws_session_token=extra.get("aws_session_token"),
            region_name=extra.get("region_name"),
            profile_name=extra.get("profile_name"),
        )
        return session.client("sqs", endpoint_url=extra.get("endpoint_url"), verify=extra.get("verify"), config=config)
    except boto.NoRegionError:
        raise SettingsError(f"connection {connection.conn_id}: no region; give extra.region_name") from None
    except (boto.ProfileNotFound, boto.PartialCredentialsError, ValueError) as error:
        raise SettingsError(f"connection {connection.conn_id}: {error}") from error


def _hook_client(connection: Connection, config: Config) -> Any:
    """A client from Airflow's own hook, which knows roles, web identities and what else an extra can say."""
    try:
        from airflow.providers.amazon.aws.hooks.sqs import SqsHook  # noqa: PLC0415

        theirs = lookup.to_airflow(connection)
    except ImportError as error:
        keys = ", ".join(sorted(set(connection.extra) - _SIMPLE_EXTRA))
        raise SettingsError(
            f"connection {connection.conn_id}: {keys} in the extra needs Airflow's Amazon provider"
        ) from error
    # A config given to the hook replaces the connection's own, so ours goes on top of that.
    own = connection.extra.get("config_kwargs")
    hook = SqsHook(aws_conn_id=connection.conn_id, config=Config(**own).merge(config) if own else config)
    # It was found already, maybe where the hook would not look (the metadata database, from the command line).
    hook.get_connection = lambda conn_id: theirs  # noqa: ARG005
    return hook.get_conn()


def _words(error: boto.ClientError) -> tuple[str, str, int]:
    """SQS's error code, its words, and the HTTP status."""
    told = error.response.get("Error", {})
    code = str(told.get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return code, f"{code}: {told.get('Message', '')}", status


def _known_error(action: str, queue: str, error: boto.ClientError) -> BrokerError:
    code, words, status = _words(error)
    text = f"{action} on queue {queue}: {words}"
    if code in _MISSING:
        return QueueMissing(text)
    if code in _REFUSED_CALLER or status in (401, 403):
        return PermissionRefused(text)
    if _may_pass(error):
        return BrokerUnavailable(text)
    return BrokerError(text)


def _throttled(error: BaseException) -> bool:
    """SQS itself answered that it did not look at the request."""
    return isinstance(error, boto.ClientError) and _words(error)[0] in _THROTTLED


def _is_its_own(code: str) -> bool:
    """The error is SQS's own. Where an answer names none, the SDK puts its HTTP status there: it is a proxy's."""
    return bool(code) and not code.isdigit()


def _never_left(error: Exception) -> bool:
    """The request was not written to any server. A connection that broke under it may have carried it there."""
    if isinstance(error, boto.EndpointConnectionError | boto.ConnectTimeoutError):
        return True
    if not isinstance(error, boto.SSLError | boto.ProxyConnectionError):
        return False
    cause = error.kwargs.get("error")
    cause = getattr(cause, "original_error", None) or next(iter(getattr(cause, "args", ())), None) or cause
    unsent = (
        ssl.SSLCertVerificationError,
        urllib3.exceptions.NewConnectionError,
        urllib3.exceptions.ConnectTimeoutError,
    )
    return isinstance(cause, unsent) or "Tunnel connection failed" in str(cause)


def _may_pass(error: BaseException) -> bool:
    """Worth another try, for calls that may be repeated."""
    if isinstance(error, boto.ClientError):
        status = _words(error)[2]
        return _throttled(error) or status == 429 or status >= 500
    if isinstance(error, _NO_CREDENTIALS):
        return False
    return isinstance(error, boto.ConnectionError | boto.HTTPClientError | ResponseParserError)


def _lasting(failed: Mapping[str, Any]) -> bool:
    """A failed entry of a batch that would fail again."""
    return bool(failed.get("SenderFault")) and failed.get("Code") not in _THROTTLED


def _fate(queue: str, error: Exception) -> tuple[Publication, BrokerError | None]:
    """What became of the messages of a send request that failed, and the error if it concerns the queue."""
    detail = f"{type(error).__name__}: {error}"
    if isinstance(error, boto.ClientError):
        code, detail, status = _words(error)
        if not _is_its_own(code):
            # What is too large for a proxy never came through whole.
            return Publication("refused" if status == 413 else "unknown", detail=f"not from SQS: {detail}"), None
        known = _known_error("SendMessageBatch", queue, error)
        if isinstance(known, QueueMissing | PermissionRefused):
            return Publication("retry", detail=str(known)), known
        if _throttled(error):
            return Publication("retry", detail=detail), None
        return Publication("unknown" if status >= 500 else "refused", detail=detail), None
    if isinstance(error, _NO_CREDENTIALS):
        refused = PermissionRefused(f"SendMessageBatch on queue {queue}: {error}")
        return Publication("retry", detail=detail), refused
    if _never_left(error):
        return Publication("retry", detail=f"not connected: {detail}"), None
    # A request that the SDK would not build was never sent; of any other the answer is lost.
    unbuilt = isinstance(error, boto.ParamValidationError)
    return Publication("refused" if unbuilt else "unknown", detail=detail), None


def _attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of ``work``, or the broker's error as a value."""
    try:
        return work(*arguments)
    except BrokerError as error:
        return error


def _policy(attributes: Mapping[str, str]) -> dict[str, Any]:
    try:
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    except json.JSONDecodeError:
        return {}
    return policy if isinstance(policy, dict) else {}


def _max_receives(policy: Mapping[str, Any]) -> int | None:
    count = policy.get("maxReceiveCount")
    return int(count) if count else None


def _is_fifo(queue: str) -> bool:
    return queue.endswith(".fifo")


def _seconds(text: str | None) -> timedelta | None:
    return timedelta(seconds=int(text)) if text else None
