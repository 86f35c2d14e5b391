"""Receives from SQS, and says what becomes of what was received: deleted, given back, leased for longer.

Requests are what SQS charges for and what limits speed, so everything goes in batches of ten.

SQS doesn't say whether a deletion came too late, when somebody else may have the message; so the end of each lease is
kept here, and what is deleted after that is not reported as settled.
"""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from redrive.brokers.base import RECEIVE_BYTES, Settled
from redrive.brokers.retries import of_all, until
from redrive.brokers.sqs.calls import Calls
from redrive.brokers.sqs.errors import SILENCE, lasting
from redrive.brokers.sqs.message import BATCH, MAX_LEASE, MAX_WAIT, account_of, is_fifo, queue_of_arn, received
from redrive.errors import BrokerError, PermissionRefused, QueueMissing
from redrive.message import Received, bytes_of


class Receiver:
    """What we receive from any queue, and until when it is ours."""

    def __init__(self, calls: Calls, *, sleep: Callable[[float], None], monotonic: Callable[[], float]) -> None:
        self._calls = calls
        self._sleep = sleep
        self._monotonic = monotonic
        self._leases: dict[object, float] = {}  # receipt handle -> when its lease ends, on our clock
        self._origins: dict[str, str | None] = {}  # by ARN, of queues of which it had to be asked whose they are
        # A long poll that outlasts the wait for its answer would look like a lost one.
        self._max_wait = min(MAX_WAIT.total_seconds(), max(calls.read_timeout - 5, 0))

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`.

        Polls are long ones (a short one looks at some of SQS's servers only), several at once on standard
        queues, until ``limit`` is reached, they are large enough together, one comes back empty, or a quarter of the
        lease is used up. An error after some messages have come is kept back: the next call will meet it again.
        """
        if limit < 1:
            return []
        started = self._monotonic()
        url = self._calls.url(queue)
        visibility = math.ceil(min(lease, MAX_LEASE).total_seconds())
        fill_until = started + lease.total_seconds() / 4
        at_once = 1 if is_fifo(queue) else self._calls.concurrency
        found: list[Received] = []

        def poll(count: int, seconds: int) -> list[Received]:
            began = self._monotonic()  # of the try that is answered

            def begin() -> None:
                nonlocal began
                began = self._monotonic()

            answer = self._calls.call(
                "ReceiveMessage",
                queue,
                before_each=begin,
                QueueUrl=url,
                MaxNumberOfMessages=count,
                WaitTimeSeconds=seconds,
                VisibilityTimeout=visibility,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            got = answer.get("Messages", ())
            # SQS leased them while the poll waited, not later: the answer may have been on its way for long. A lease
            # ends before this by no more than the poll may have waited.
            leased = min(self._monotonic(), began + seconds)
            self._leases.update(dict.fromkeys((one["ReceiptHandle"] for one in got), leased + visibility))
            return [received(message, lambda arn: self._origin(queue, arn)) for message in got]

        while True:  # wait for the first
            left = max(wait.total_seconds() - (self._monotonic() - started), 0)
            found = poll(min(limit, BATCH), math.ceil(min(left, self._max_wait)))
            if found or left <= self._max_wait:
                break
        follow_up = math.ceil(min(wait.total_seconds(), self._max_wait, 1))
        size = bytes_of(found)
        while found and len(found) < limit and size < RECEIVE_BYTES and self._monotonic() < fill_until:
            missing = limit - len(found)
            counts = [min(BATCH, missing - at) for at in range(0, min(missing, at_once * BATCH), BATCH)]
            answers = list(self._calls.together(lambda count: _attempt(poll, count, follow_up), counts))
            for answer in answers:
                more = answer if isinstance(answer, list) else []
                found += more
                size += bytes_of(more)
            if not all(isinstance(answer, list) and answer for answer in answers):
                break
        return found

    def _origin(self, queue: str, arn: str) -> str | None:
        """The queue with this ARN on which a letter of ``queue`` failed: its name, as SQS looks it up, or the ARN where
        that would find none, or another one: a source may be another account's, and then its origins are too."""
        name, owner = queue_of_arn(arn), account_of(arn)
        if account_of(queue) is None or owner is None or name is None:
            return name
        if arn not in self._origins:
            try:
                found = account_of(self._calls.url(name))
            except (QueueMissing, PermissionRefused):
                found = ""
            self._origins[arn] = name if found in (None, owner) else arn
        return self._origins[arn]

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; errors are raised only where no request was answered well, and a
        refusal only where all were refused.

        What was deleted after its lease ended by our clock is a failure: SQS may give it to others all the same.
        """
        failures = dict(self._in_batches("DeleteMessageBatch", queue, receipts, {}))
        now = self._monotonic()
        for receipt in receipts:
            if receipt not in failures and self._leases.pop(receipt, math.inf) <= now:
                failures[receipt] = "its lease ended before it was deleted: it may come again"
        return Settled(len(receipts) - len(failures), tuple(failures.items()))

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        self._in_batches("ChangeMessageVisibilityBatch", queue, receipts, {"VisibilityTimeout": 0})
        for receipt in receipts:
            self._leases.pop(receipt, None)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        seconds, began = math.ceil(min(lease, MAX_LEASE).total_seconds()), self._monotonic()
        failures = dict(
            self._in_batches("ChangeMessageVisibilityBatch", queue, receipts, {"VisibilityTimeout": seconds})
        )
        now = self._monotonic()
        for receipt in receipts:
            if receipt not in failures and self._leases.get(receipt, math.inf) > now:  # one that ended stays ended
                self._leases[receipt] = began + seconds

    def _in_batches(
        self, action: str, queue: str, receipts: Sequence[object], fields: dict[str, object]
    ) -> list[tuple[object, str]]:
        """Do ``action`` on all receipts; the ones on which it failed for good, with SQS's words."""
        if not receipts:
            return []
        url = self._calls.url(queue)

        def one(batch: Sequence[object]) -> list[tuple[object, str]]:
            return self._until_settled(action, queue, url, batch, fields)

        batches = [receipts[at : at + BATCH] for at in range(0, len(receipts), BATCH)]
        asked_before = self._calls.requests[action]
        failures: list[tuple[object, str]] = []
        errors: list[BrokerError] = []
        results = self._calls.together(lambda batch: _attempt(one, batch), batches)
        for batch, result in zip(batches, results, strict=True):
            if isinstance(result, BrokerError):
                errors.append(result)
                failures += [(receipt, str(result)) for receipt in batch]
            else:
                failures += result
        if len(errors) == len(batches):
            raise of_all(errors, repeated=self._calls.requests[action] - asked_before > len(batches))
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
            answer = self._calls.call(action, queue, QueueUrl=url, Entries=entries)
            passing.clear()
            said = {int(one["Id"]) for word in ("Successful", "Failed") for one in answer.get(word, ())}
            passing.extend((one, SILENCE) for number, one in enumerate(open_receipts) if number not in said)
            for failed in answer.get("Failed", ()):
                receipt = open_receipts[int(failed["Id"])]
                words = f"{failed.get('Code')}: {failed.get('Message', '')}"
                (final if lasting(failed) else passing).append((receipt, words))
            open_receipts[:] = [receipt for receipt, _ in passing]
            return not passing

        until(once, sleep=self._sleep)
        return final + passing


def _attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of ``work``, or the broker's error as a value."""
    try:
        return work(*arguments)
    except BrokerError as error:
        return error
