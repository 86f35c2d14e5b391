"""Requests to SQS: counted, repeated where that is safe, a few at a time.

The SDK's own retries are off: a send that is repeated after a lost answer would be sent twice in silence. What may be
repeated is repeated here, with backoff and full jitter.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore import xform_name
from botocore.exceptions import ParamValidationError

from redrive.brokers.base import as_nothing_sent
from redrive.brokers.retries import again
from redrive.brokers.sqs import regions
from redrive.brokers.sqs.errors import SDK_ERRORS, known_error, may_pass, not_connected, throttled


class Calls:
    """What one client is asked. ``requests`` counts HTTP requests by operation.

    ``concurrency`` is how many requests of one call may be under way at once, ``read_timeout`` how many seconds an
    answer may take.
    """

    def __init__(self, client: Any, *, concurrency: int, sleep: Callable[[float], None]) -> None:
        self._client = client
        self._sleep = sleep
        self._pool: ThreadPoolExecutor | None = None
        self._urls: dict[str, str] = {}
        self._lock = threading.Lock()
        self.concurrency = concurrency
        self.read_timeout: float = client.meta.config.read_timeout
        self.requests: Counter[str] = Counter()
        self._here = threading.local()  # of each thread: ``signed``, whether its request got its credentials
        client.meta.events.register("before-send.sqs.*", self._count)
        client.meta.events.register_last("request-created.sqs", self._note_signed)  # behind the SDK's own signer

    def url(self, queue: str) -> str:
        """The URL of a queue that is named by name, URL or ARN; asked once. Raises
        :class:`~redrive.errors.PermissionRefused` for a queue of a region that is not the client's."""
        if queue not in self._urls:
            meta = self._client.meta
            if "://" in queue:
                regions.refuse_host_elsewhere(queue, meta.region_name)
                self._urls[queue] = queue
            else:
                question: dict[str, Any] = {"QueueName": queue}
                if queue.startswith("arn:"):
                    account, name = regions.of_arn(queue, region=meta.region_name, partition=meta.partition)
                    question = {"QueueName": name, "QueueOwnerAWSAccountId": account}
                self._urls[queue] = self.call("GetQueueUrl", queue, **question)["QueueUrl"]
        return self._urls[queue]

    def call(
        self, action: str, queue: str, *, before_each: Callable[[], object] = lambda: None, **parameters: Any
    ) -> dict[str, Any]:
        """One call that may safely be repeated; raises the errors of :mod:`redrive.errors`.

        ``before_each`` is called as each try begins.
        """
        method = getattr(self._client, xform_name(action))

        def once() -> dict[str, Any]:
            before_each()
            answer: dict[str, Any] = method(**parameters)
            return answer

        try:
            answer: dict[str, Any] = self._patiently(once, when=may_pass)
        except SDK_ERRORS as error:
            raise known_error(action, queue, error) from error
        return answer

    def send(self, queue: str, url: str, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One send request, repeated only where SQS says that it did not look at it, or where it never left.

        The SDK gets credentials while it signs, from STS say, and raises what they answer as if SQS had. Then nothing
        was sent, and an error of ours says so; what failed later is raised as the SDK's own.
        """

        def once() -> dict[str, Any]:
            self._here.signed = False
            answer: dict[str, Any] = self._client.send_message_batch(QueueUrl=url, Entries=entries)
            return answer

        def may_be_repeated(error: BaseException) -> bool:
            return throttled(error) or (not self._here.signed and may_pass(error))

        try:
            answer: dict[str, Any] = self._patiently(once, when=may_be_repeated)
        except SDK_ERRORS as error:
            if self._here.signed or isinstance(error, ParamValidationError):
                raise
            raise as_nothing_sent(known_error("SendMessageBatch", queue, error)) from error
        return answer

    def together(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """``work`` on all items, a few at a time, results in order."""
        if len(items) <= 1 or self.concurrency <= 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="sqs")
        return self._pool.map(work, items)

    def close(self) -> None:
        """End the threads in which requests went out together."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _patiently(self, work: Callable[[], Any], *, when: Callable[[BaseException], bool]) -> Any:
        return again(work, when=when, away=not_connected, sleep=self._sleep)

    def _note_signed(self, **_: object) -> None:
        self._here.signed = True

    def _count(self, event_name: str, **_: object) -> None:
        with self._lock:
            self.requests[event_name.rpartition(".")[2]] += 1
