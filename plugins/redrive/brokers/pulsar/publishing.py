"""Sends windows of messages, each confirmed on its own, and says what became of each.

The client library sends what was not confirmed again when a connection comes back. Only a topic with deduplication
drops such a repetition; on any other the producer is closed at once when its connection is lost, and what was under
way is ``unknown``.
"""

import itertools
import queue as queues
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pulsar

from redrive.brokers.base import Publication, before_the_send
from redrive.brokers.pulsar import schemas
from redrive.brokers.pulsar.connection import LazyClient, Place, close_quietly
from redrive.brokers.pulsar.errors import fate, known_error
from redrive.brokers.pulsar.message import BATCH, Entry, entry, id_text
from redrive.brokers.pulsar.topics import Topics
from redrive.errors import BrokerError, MessageRefused, PermissionRefused, QueueMissing
from redrive.message import Outgoing

#: How often an open window looks whether its connection is still there. Reconnecting takes the library longer.
_LOOK = 0.02
_BEHIND = Publication("retry", detail="an earlier message of its key was not sent")


class Publisher:
    """Our producers, one per topic and schema."""

    def __init__(self, place: Place, topics: Topics, client: LazyClient) -> None:
        self._place = place
        self._topics = topics
        self._client = client
        self._producers: dict[tuple[str, str | None], Any] = {}
        self._dedup: dict[str, bool] = {}  # full name of a topic -> whether it drops a repetition

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        Messages go out in windows, each message on its own, and every one is confirmed. What was under way when a
        connection was lost is ``unknown``.
        """
        if not messages:
            return []
        with before_the_send():
            topic = self._topics.full(queue)
        results: list[Publication | None] = [None] * len(messages)
        closed: set[str] = set()  # keys of which a message can't be sent
        going: list[Entry] = []
        for place, message in enumerate(messages):
            made = entry(place, message)
            key = message.ordering_key
            if key is not None and key in closed:
                results[place] = _BEHIND
            elif isinstance(made, str):
                results[place] = Publication("refused", detail=made)
                if key is not None:
                    closed.add(key)
            else:
                going.append(made)
        trouble: BrokerError | None = None
        closed = set()  # from here on: by what became of those that were handed to the library
        # One producer at a time: those of two schemas know nothing of each other's order.
        for schema, members in itertools.groupby(going, key=lambda one: one.schema):
            run = list(members)
            for window in (run[at : at + BATCH] for at in range(0, len(run), BATCH)):
                if trouble is None:
                    trouble = self._publish_window(queue, topic, schema, window, closed, results)
                else:
                    _answer(results, window, Publication("retry", detail=str(trouble)))
        if isinstance(trouble, QueueMissing | PermissionRefused) and not any(
            result and result.status in ("sent", "unknown") for result in results
        ):
            raise trouble  # any other may pass, and certainly none of these was taken: that is said per message
        return [result or _BEHIND for result in results]

    def close(self) -> None:
        """Close our producers."""
        for producer in self._producers.values():
            close_quietly(producer)
        self._producers.clear()

    def _publish_window(
        self,
        queue: str,
        topic: str,
        schema: str | None,
        window: Sequence[Entry],
        closed: set[str],
        results: list[Publication | None],
    ) -> BrokerError | None:
        """Send one window and wait for every answer; the error if it concerns the topic and not the messages."""
        try:
            producer = self._producer(queue, topic, schema)
        except MessageRefused as error:
            _answer(results, window, Publication("refused", detail=str(error)))
            closed.update(one.key for one in window if one.key is not None)
            return None
        except BrokerError as error:
            _answer(results, window, Publication("retry", detail=str(error)))
            return error
        going = [one for one in window if one.key is None or one.key not in closed]  # the others stay _BEHIND
        answers: queues.SimpleQueue[tuple[int, str, str | None]] = queues.SimpleQueue()
        waiting = {one.place for one in going}
        for one in going:
            try:
                producer.send_async(one.body, _tell(answers, one.place), **one.arguments)
            except pulsar.PulsarException as error:  # it never left
                answers.put((one.place, type(error).__name__, None))
        lost = False
        while waiting:
            try:
                place, result, broker_id = answers.get(timeout=_LOOK)
            except queues.Empty:
                if lost:
                    break  # the library has forgotten the rest
                if not self._dedup[topic] and not producer.is_connected():
                    lost = True
                    self._forget_producer(topic, schema)
                continue
            waiting.discard(place)
            results[place] = fate(result, broker_id)
        for place in waiting:
            results[place] = Publication("unknown", detail="the connection was lost before the broker's confirmation")
        closed.update(one.key for one in going if one.key is not None and _status(results[one.place]) != "sent")
        if any(_status(results[one.place]) == "unknown" for one in going):
            self._forget_producer(topic, schema)
        return None

    def _producer(self, queue: str, topic: str, schema: str | None) -> Any:
        """A connected producer on ``topic`` for messages of one schema."""
        producer = self._producers.get((topic, schema))
        if producer is not None and not producer.is_connected():
            self._forget_producer(topic, schema)
            producer = None
        if producer is None:
            options: dict[str, Any] = {}
            if schema is not None:
                options["schema"] = schemas.registered(self._place.admin, schema)
            try:
                self._dedup[topic] = self._topics.stats(topic).get("deduplicationStatus") == "Enabled"
                producer = self._client.get().create_producer(
                    topic,
                    send_timeout_millis=max(1, round(self._place.timeout * 1000)),
                    max_pending_messages=BATCH,
                    batching_enabled=False,
                    **options,
                )
            except pulsar.PulsarException as error:
                raise known_error("publish", queue, error, self._place.service) from error
            self._producers[topic, schema] = producer
        return producer

    def _forget_producer(self, topic: str, schema: str | None) -> None:
        producer = self._producers.pop((topic, schema), None)
        if producer is not None:
            close_quietly(producer)


def _tell(answers: "queues.SimpleQueue[tuple[int, str, str | None]]", place: int) -> Callable[[Any, Any], None]:
    """What the library calls from a thread of its own when it knows what became of a message."""

    def tell(result: Any, message_id: Any) -> None:
        answers.put((place, result.name, id_text(message_id) if result == pulsar.Result.Ok else None))

    return tell


def _status(result: Publication | None) -> str:
    return result.status if result else ""


def _answer(results: list[Publication | None], window: Iterable[Entry], answer: Publication) -> None:
    for one in window:
        results[one.place] = answer
