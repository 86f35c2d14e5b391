"""Sends to SQS in requests of up to ten messages, and says what became of each message."""

from collections.abc import Iterable, Sequence

from redrive.brokers.base import Publication, before_the_send
from redrive.brokers.sqs.calls import Calls
from redrive.brokers.sqs.errors import SDK_ERRORS, SILENCE, fate, fate_of_entry
from redrive.brokers.sqs.looking import Inspector
from redrive.brokers.sqs.message import OLD_MAX_BYTES, Entry, entry, is_fifo, packs
from redrive.errors import BrokerError
from redrive.message import Outgoing

_ARRIVED = frozenset({"sent", "unknown"})
_BEHIND = Publication("retry", detail="an earlier message of its group was not sent")
_SILENCE = Publication("unknown", detail=SILENCE)


class Publisher:
    """Sends to any queue; ``inspector`` knows how large a message may be there."""

    def __init__(self, calls: Calls, inspector: Inspector) -> None:
        self._calls = calls
        self._inspector = inspector

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> list[Publication]:
        """See :class:`~redrive.brokers.base.Broker`.

        A request whose answer is lost is ``unknown`` for exactly its messages, and so is one to which
        something else than SQS answers: a proxy's 503 may hide that SQS took it. Requests that SQS calls
        throttled are repeated with backoff, and answered ``retry`` in the end, as are those for which there are no
        credentials. A missing queue, permission or credentials are raised where nothing of the call was sent;
        otherwise what is left is ``retry``. FIFO queues get one request after another; SQS itself may take a message
        and refuse an earlier one of its group in the same request, and then both are reported as they are.
        """
        if not messages:
            return []
        with before_the_send():
            url = self._calls.url(queue)
        fifo = is_fifo(queue)
        results: list[Publication | None] = [None] * len(messages)
        entries: list[Entry] = []
        for index, message in enumerate(messages):
            made = entry(index, message, fifo=fifo)
            if isinstance(made, Entry) and made.size > OLD_MAX_BYTES:
                with before_the_send():
                    most = self._inspector.max_bytes(queue)
                made = made if made.size <= most else f"{made.size} bytes; queue {queue} takes at most {most}"
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
        for outcome, error in self._calls.together(lambda pack: self._send(queue, url, pack), list(packs(entries))):
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
        try:
            answer = self._calls.send(queue, url, [item.fields for item in pack])
        except BrokerError as error:  # nothing was sent
            return {item.place: Publication("retry", detail=error.detail) for item in pack}, error
        except SDK_ERRORS as error:
            result, concerns_queue = fate(queue, error)
            if result.status == "refused" and len(pack) > 1:
                return self._send_halves(queue, url, pack)
            return {item.place: result for item in pack}, concerns_queue
        outcome = {item.place: _SILENCE for item in pack}
        for done in answer.get("Successful", ()):
            outcome[int(done["Id"])] = Publication("sent", done.get("MessageId"))
        for failed in answer.get("Failed", ()):
            outcome[int(failed["Id"])] = fate_of_entry(failed)
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
