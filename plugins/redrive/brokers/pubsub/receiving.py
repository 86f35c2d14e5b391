"""Receives from subscriptions, holds by our own clock, acks, gives back, leases for longer.

Without exactly-once delivery Pub/Sub doesn't say whether an ack came too late; so the end of each lease is kept here,
and what is acked after that is not reported as settled.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import google.api_core.exceptions as api
from google.pubsub_v1 import types

from redrive.brokers.base import RECEIVE_BYTES, Settled
from redrive.brokers.names_of_messages import NamesOfMessages
from redrive.brokers.pubsub.calls import Calls
from redrive.brokers.pubsub.errors import PartlyRefused, certainly_not_taken, known_error, may_pass
from redrive.brokers.pubsub.kind import BATCH, MAX_LEASE, is_full
from redrive.brokers.pubsub.message import LEAST_LEASE, full_name, may_exist, received, short_name
from redrive.brokers.pubsub.names import Names
from redrive.brokers.retries import of_all, until
from redrive.errors import BrokerError, BrokerUnavailable
from redrive.message import Received, bytes_of

#: Messages that a pull which waits asks for, and how many seconds it waits: half of what any lease lasts.
WAIT_FOR = 10
WAIT_AT_ONCE = LEAST_LEASE.total_seconds() / 2
#: The broker may have leased a little after our error, and gives out again a little after that is over.
LATE = timedelta(seconds=3)


class _Lost(NamedTuple):
    """When messages were leased last that nobody here holds, and for how long at least; 0: they were given back."""

    at: float
    lease: float


class Receiver:
    """What we receive from any subscription, and until when it is ours."""

    def __init__(
        self, calls: Calls, names: Names, *, sleep: Callable[[float], None], monotonic: Callable[[], float]
    ) -> None:
        self._calls = calls
        self._names = names
        self._sleep = sleep
        self._monotonic = monotonic
        self._leases: dict[object, float] = {}  # ack id -> when its lease ends, on our clock
        self._lost: dict[str, _Lost] = {}  # by subscription: of answers to pulls that were lost, with messages maybe
        self._origins = NamesOfMessages[str | None](None, monotonic)  # topics of subscriptions

    def receive(self, queue: str, *, limit: int, wait: timedelta, lease: timedelta) -> list[Received]:
        """See :class:`~redrive.brokers.base.Broker`.

        What is there is pulled first; only where that brings nothing, messages are waited for. More pulls follow, which
        don't wait, until ``limit`` is reached, the messages are large enough together, a pull comes back empty, or a
        quarter of the lease is used up. An error after some messages have come is kept back: the next call will meet it
        again. What an answer had that was lost is awaited, or an error: until its lease is over, it looks as if it
        weren't there.
        """
        if limit < 1:
            return []
        name = self._names.subscription_name(queue)
        seconds = _lease_seconds(lease)
        began = self._monotonic()
        fill_until = began + seconds / 4
        found = self._pull(queue, name, min(limit, BATCH), seconds)
        if not found and wait > timedelta(0):
            on_the_way = min(self._monotonic() - began, WAIT_AT_ONCE / 2)
            found = self._await(queue, name, limit, wait.total_seconds(), seconds, on_the_way)
        while not found and (hidden := self._hidden_for(queue, name)) > 0:
            if self._monotonic() + hidden > fill_until:
                raise BrokerUnavailable(
                    f"Pull on queue {queue}: an answer was lost, and what it had is hidden for up to {hidden:.0f} s"
                )
            self._sleep(hidden)
            found = self._pull(queue, name, min(limit, BATCH), seconds)
        size = bytes_of(found)
        while found and len(found) < limit and size < RECEIVE_BYTES and self._monotonic() < fill_until:
            try:
                more = self._pull(queue, name, min(limit - len(found), BATCH), seconds)
            except BrokerError:
                break
            if not more:
                break
            found += more
            size += bytes_of(more)
        return found

    def _await(self, queue: str, name: str, limit: int, wait: float, seconds: int, on_the_way: float) -> list[Received]:
        """What comes to a subscription that has just said that it has nothing, in an answer that was so long on its
        way.

        A wait ends by our deadline. An answer that is late for it is lost, and its messages stay leased and look as if
        they weren't there: so few are asked for at a time, of which an answer comes in fast, and the way of an answer
        is added to each wait. What is given out at the very end of a wait is lost all the same: to doubt after each
        wait would cost each empty subscription its ack deadline.
        """
        times = math.ceil(wait / WAIT_AT_ONCE)
        for _ in range(times):
            if found := self._pull(queue, name, min(limit, WAIT_FOR), seconds, wait=wait / times + on_the_way):
                return found
        return []

    def _pull(self, queue: str, name: str, limit: int, seconds: int, *, wait: float = 0) -> list[Received]:
        """One pull, and the lease that was asked for instead of the subscription's own.

        A pull that doesn't wait has the time that any answer has, and no answer is an error, not an empty subscription.
        """
        request = types.PullRequest(subscription=name, max_messages=limit, return_immediately=wait <= 0)
        began = 0.0

        def pull(**call: Any) -> Any:
            nonlocal began
            began = self._monotonic()  # of the try that is answered
            try:
                return self._calls.subscriber.pull(**call)
            except api.GoogleAPICallError as error:
                over = wait > 0 and isinstance(error, api.DeadlineExceeded)
                if may_pass(error) and not certainly_not_taken(error) and not over:
                    self._note_lost(name, LEAST_LEASE.total_seconds())
                raise

        try:
            with warnings.catch_warnings():  # deprecated for those who can wait; a drain must be able to just ask
                warnings.simplefilter("ignore", DeprecationWarning)
                answer = self._calls.call("Pull", queue, pull, request, timeout=wait or None, patient=True)
        except api.DeadlineExceeded as error:
            if wait > 0:
                return []
            # Not repeated: what its answer has is leased, and the next one would say that nothing is there.
            raise known_error("Pull", queue, error) from error
        got = types.PullResponse.pb(answer).received_messages
        if not got:
            return []
        ids = [message.ack_id for message in got]
        # Pub/Sub leased them after the request had left, and the answer may have been on its way for long. Whether the
        # rest is long enough for the next request is seen there.
        self._leases.update(dict.fromkeys(ids, began + self._own_lease(queue, name, self._monotonic() - began)))
        try:
            self._set_deadlines(queue, name, ids, seconds)
            return [received(message, self._origin) for message in got]
        except BrokerError:
            self._let_go(name, ids, seconds)
            raise

    def _let_go(self, name: str, ids: Sequence[str], seconds: int) -> None:
        """Of these, which were pulled, nobody will hear: give them back if that goes at once, and note that else they
        are hidden, as those of a lost answer. A request that failed may have leased them for ``seconds``."""
        for one in ids:
            self._leases.pop(one, None)
        request = types.ModifyAckDeadlineRequest(subscription=name, ack_ids=list(ids), ack_deadline_seconds=0)
        lease = max(LEAST_LEASE.total_seconds(), seconds)
        with contextlib.suppress(api.GoogleAPICallError):
            self._calls.once("ModifyAckDeadline", self._calls.subscriber.modify_ack_deadline, request)
            lease = 0.0
        self._note_lost(name, lease)

    def _note_lost(self, name: str, lease: float) -> None:
        before = self._lost.get(name)
        self._lost[name] = _Lost(self._monotonic(), lease if before is None else max(lease, before.lease))

    def _hidden_for(self, queue: str, name: str) -> float:
        """For how many more seconds messages of an answer that was lost may be leased to nobody, or rest after that;
        0: none do."""
        lost = self._lost.get(name)
        if lost is None:
            return 0
        hidden = MAX_LEASE
        with contextlib.suppress(BrokerError):
            told = self._names.subscription(queue, name)
            own = timedelta(seconds=max(lost.lease, told.ack_deadline_seconds))
            hidden = own if lost.lease else timedelta(0)
            hidden += told.retry_policy.maximum_backoff if "retry_policy" in told else timedelta(0)
        hidden += LATE
        left = lost.at + hidden.total_seconds() - self._monotonic()
        if left <= 0:
            del self._lost[name]
        return max(0.0, left)

    def _own_lease(self, queue: str, name: str, gone: float) -> float:
        """For how many seconds at least the subscription leases by itself; asked where many of them are ``gone``."""
        least = LEAST_LEASE.total_seconds()
        if gone <= WAIT_AT_ONCE:
            return least
        try:
            return max(least, float(self._names.subscription(queue, name).ack_deadline_seconds))
        except BrokerError:
            return least

    def _origin(self, project: str | None, subscription: str) -> str | None:
        """The topic, for people, of the subscription on which a message says that it failed; None where nobody tells.

        Anyone may have written the name, so whatever is wrong with it, the message is received.
        """
        name = full_name("subscriptions", subscription, project or self._names.project)

        def ask() -> str | None:
            try:
                found = str(self._names.subscription(subscription, name).topic)
            except BrokerUnavailable:
                raise
            except BrokerError:  # gone, not ours to see, or none that Pub/Sub could have
                return None
            return short_name(found, self._names.project) if is_full(found, "topics") else None

        return self._origins.answer(name, ask) if may_exist(name, "subscriptions") else None

    def settle(self, queue: str, receipts: Sequence[object]) -> Settled:
        """See :class:`~redrive.brokers.base.Broker`; errors are raised only where nothing could be acked.

        What was acked after its lease ended by our clock is a failure: Pub/Sub may take the ack and deliver again.
        """
        if not receipts:
            return Settled(0)
        name = self._names.subscription_name(queue)
        failures: list[tuple[object, str]] = []
        errors: list[BrokerError] = []
        batches = [receipts[at : at + BATCH] for at in range(0, len(receipts), BATCH)]
        asked_before = self._calls.requests["Acknowledge"]
        for batch in batches:
            try:
                refused = self._acknowledge(queue, name, batch)
            except BrokerError as error:
                errors.append(error)
                refused = {receipt: str(error) for receipt in batch}
            now = self._monotonic()  # the ack may have waited for its turn on the way
            for receipt in batch:
                if receipt in refused:
                    failures.append((receipt, refused[receipt]))
                elif self._leases.pop(receipt, -math.inf) <= now:
                    failures.append((receipt, "it was released, or its lease ended before the ack: it may come again"))
        if len(errors) == len(batches):
            raise of_all(errors, repeated=self._calls.requests["Acknowledge"] - asked_before > len(batches))
        return Settled(len(receipts) - len(failures), tuple(failures))

    def _acknowledge(self, queue: str, name: str, receipts: Sequence[object]) -> dict[object, str]:
        """Ack; the ids that were refused for good (exactly-once subscriptions only) with Pub/Sub's words."""

        def send(ids: Sequence[object]) -> None:
            request = types.AcknowledgeRequest(subscription=name, ack_ids=list(ids))
            self._calls.call("Acknowledge", queue, self._calls.subscriber.acknowledge, request)

        return self._by_id(queue, receipts, send)

    def release(self, queue: str, receipts: Sequence[object]) -> None:
        """See :class:`~redrive.brokers.base.Broker`; each release counts as a delivery attempt."""
        if not receipts:
            return
        self._set_deadlines(queue, self._names.subscription_name(queue), receipts, 0)

    def extend(self, queue: str, receipts: Sequence[object], lease: timedelta) -> None:
        """See :class:`~redrive.brokers.base.Broker`; what is no longer ours is left alone."""
        if not receipts:
            return
        self._set_deadlines(queue, self._names.subscription_name(queue), receipts, _lease_seconds(lease))

    def _set_deadlines(self, queue: str, name: str, receipts: Sequence[object], seconds: int) -> None:
        def send(ids: Sequence[object]) -> None:
            request = types.ModifyAckDeadlineRequest(subscription=name, ack_ids=list(ids), ack_deadline_seconds=seconds)
            self._calls.call("ModifyAckDeadline", queue, self._calls.subscriber.modify_ack_deadline, request)

        for at in range(0, len(receipts), BATCH):
            batch = receipts[at : at + BATCH]
            began = self._monotonic()
            refused = self._by_id(queue, batch, send)
            now = self._monotonic()
            for receipt in batch:
                if seconds == 0 or receipt in refused:
                    self._leases.pop(receipt, None)
                elif self._leases.get(receipt, math.inf) > now:  # one that ended can't be extended: it stays ended
                    self._leases[receipt] = began + seconds

    def _by_id(self, queue: str, ids: Sequence[object], send: Callable[[Sequence[object]], None]) -> dict[object, str]:
        """Send; exactly-once's results per id: passing failures are tried again, lasting ones returned."""
        lasting: dict[object, str] = {}
        open_ids = list(ids)

        def once() -> bool:
            try:
                send(open_ids)
            except PartlyRefused as partial:
                lasting.update({i: partial.ids[i] for i in open_ids if partial.ids.get(i, "").startswith("PERMANENT")})
                open_ids[:] = [i for i in open_ids if i in partial.ids and i not in lasting]
                return not open_ids
            open_ids.clear()
            return True

        until(once, sleep=self._sleep)
        return lasting | dict.fromkeys(open_ids, f"{queue}: Pub/Sub refused it for the moment, again and again")


def _lease_seconds(lease: timedelta) -> int:
    return max(1, math.ceil(min(lease, MAX_LEASE).total_seconds()))
