"""Publishes to topics, a few requests at a time, and says what became of each message."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google.api_core.exceptions as api
from google.pubsub_v1 import types

from redrive.brokers.base import Publication, before_the_send
from redrive.brokers.pubsub.calls import Calls
from redrive.brokers.pubsub.errors import fate, says_never_sent
from redrive.brokers.pubsub.message import Entry, entry, packs
from redrive.brokers.pubsub.names import Names
from redrive.errors import BrokerError, NothingSent, QueueMissing
from redrive.message import Outgoing

_ARRIVED = frozenset({"sent", "unknown"})
_BEHIND = Publication("retry", detail="an earlier message of its ordering key was not sent")


class Publisher:
    """Publishes to any topic, ``concurrency`` requests of one call at once."""

    def __init__(self, calls: Calls, names: Names, *, concurrency: int) -> None:
        self._calls = calls
        self._names = names
        self._concurrency = concurrency
        self._pool: ThreadPoolExecutor | None = None

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        A request carries messages of one ordering key only, and those of one key go one after another. A request
        whose answer is lost is ``unknown`` for exactly its messages. A subscription's name stands for its topic.
        """
        if not messages:
            return []
        results: list[Publication | None] = [None] * len(messages)
        lanes = self._lanes(messages, results)
        if lanes:
            with before_the_send():
                topic = self._names.destination(queue)
            errors = self._send_lanes(queue, topic, lanes, results)
            if errors and not _any_arrived(results) and isinstance(errors[0], QueueMissing):
                with before_the_send():
                    other = self._names.topic_behind(queue)
                if other is not None and other != topic:
                    self._names.stands_for(queue, other)
                    errors = self._send_lanes(queue, other, lanes, results)
            if errors and not _any_arrived(results):
                raise errors[0]
            if not self._calls.reached and (words := _never_connected(results)):
                raise NothingSent(f"Publish on queue {queue}: {words}")
        return [result or _BEHIND for result in results]

    def close(self) -> None:
        """End the threads in which requests went out together."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _lanes(self, messages: Sequence[Outgoing], results: list[Publication | None]) -> list[list[list[Entry]]]:
        """Lanes of requests: lanes may go at once, the requests of a lane one after another."""
        keyless: list[Entry] = []
        keyed: dict[str, list[Entry]] = {}
        closed: set[str] = set()
        for place, message in enumerate(messages):
            key = message.ordering_key or ""
            made = entry(place, message)
            if isinstance(made, str):
                results[place] = Publication("refused", detail=made)
                if key:
                    closed.add(key)
            elif key in closed:
                results[place] = _BEHIND
            elif key:
                keyed.setdefault(key, []).append(made)
            else:
                keyless.append(made)
        return [[pack] for pack in packs(keyless)] + [list(packs(entries)) for entries in keyed.values()]

    def _send_lanes(
        self, queue: str, topic: str, lanes: Sequence[list[list[Entry]]], results: list[Publication | None]
    ) -> list[BrokerError]:
        def run(lane: list[list[Entry]]) -> tuple[dict[int, Publication], BrokerError | None]:
            outcome: dict[int, Publication] = {}
            error: BrokerError | None = None
            for pack in lane:
                if outcome and any(result.status != "sent" for result in outcome.values()):
                    outcome |= {item.place: _BEHIND for item in pack}
                    continue
                sent, error = self._send(queue, topic, pack)
                outcome |= sent
            return outcome, error

        errors: list[BrokerError] = []
        for outcome, error in self._together(run, lanes):
            for place, result in outcome.items():
                results[place] = result
            errors += [error] if error else []
        return errors

    def _send(self, queue: str, topic: str, pack: Sequence[Entry]) -> tuple[dict[int, Publication], BrokerError | None]:
        """One request: an outcome per message, and the error if it concerns the topic and not the messages."""
        request = types.PublishRequest.wrap(
            types.PublishRequest.pb()(topic=topic, messages=[item.message for item in pack])
        )
        try:
            answer = self._calls.publish(request)
        except api.GoogleAPICallError as error:
            result, concerns_topic = fate(queue, error)
            if result.status == "refused" and len(pack) > 1:
                return self._send_halves(queue, topic, pack)
            return {item.place: result for item in pack}, concerns_topic
        ids = list(answer.message_ids)
        silence = Publication("unknown", detail="Pub/Sub gave no message id for it")
        return {
            item.place: Publication("sent", ids[at]) if at < len(ids) else silence for at, item in enumerate(pack)
        }, None

    def _send_halves(
        self, queue: str, topic: str, pack: Sequence[Entry]
    ) -> tuple[dict[int, Publication], BrokerError | None]:
        """Pub/Sub refused a request as a whole, so it took nothing; find the message that is to blame."""
        middle = len(pack) // 2
        outcome, error = self._send(queue, topic, pack[:middle])
        rest = pack[middle:]
        behind = bool(pack[0].key) and any(result.status != "sent" for result in outcome.values())
        if error is not None or behind:
            return outcome | {item.place: _BEHIND for item in rest}, error
        second, error = self._send(queue, topic, rest)
        return outcome | second, error

    def _together(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """``work`` on all items, a few at a time, results in order."""
        if len(items) <= 1 or self._concurrency <= 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="pubsub")
        return self._pool.map(work, items)


def _any_arrived(results: Iterable[Publication | None]) -> bool:
    return any(result is not None and result.status in _ARRIVED for result in results)


def _never_connected(results: Iterable[Publication | None]) -> str:
    """The words of a call of which nothing could be sent because nobody was there; "" for any other."""
    waiting = [result.detail for result in results if result is not None and result.status == "retry"]
    away = [detail for detail in waiting if says_never_sent(detail)]
    return away[0] if away and not _any_arrived(results) else ""
