"""What Google's errors mean for us: which may pass, which become ours, and what became of a publish that failed.

Only Pub/Sub's own word that it did not look at a request, or a connection that was never there, says that a request was
not taken. Everything else may have arrived.
"""

from collections.abc import Mapping

import google.api_core.exceptions as api

from redrive.brokers.base import Publication
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

#: Our words where whoever gives out tokens can't be asked, or gives none for the moment.
TOKEN_AWAY = "there is no token for the moment"  # noqa: S105 - words, and no password
#: The words of gRPC, and ours within them, where a request never left this process.
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed", "name resolution failure", TOKEN_AWAY)
_NO_TOKEN = ("Getting metadata from plugin failed", "metadata from plugin")


class PartlyRefused(Exception):
    """Exactly-once delivery took some ids and refused others; ``ids`` has these, with Pub/Sub's words."""

    def __init__(self, ids: Mapping[object, str]) -> None:
        self.ids = ids
        super().__init__(f"{len(ids)} ids failed")


def results_per_id(error: api.GoogleAPICallError) -> dict[object, str]:
    """The failures per ack id that an exactly-once subscription tells; {} for any other error."""
    told = error.metadata or {}
    return {i: words for i, words in told.items() if words.startswith(("PERMANENT_FAILURE", "TRANSIENT_FAILURE"))}


def known_error(action: str, queue: str, error: api.GoogleAPICallError) -> BrokerError:
    """An error of Google's library as one of ours, naming the action and the queue."""
    text = f"{action} on queue {queue}: {_words(error)}"
    if isinstance(error, api.NotFound):
        return QueueMissing(text)
    if isinstance(error, api.Forbidden | api.Unauthorized) or _has_no_token(error):
        return PermissionRefused(text)
    if may_pass(error):
        return BrokerUnavailable(text)
    return BrokerError(text)


def certainly_not_taken(error: BaseException) -> bool:
    """Pub/Sub answered that it did not look at the request (a quota), or no connection carried it there."""
    return isinstance(error, api.ResourceExhausted) or never_sent(error)


def never_sent(error: BaseException) -> bool:
    """There was no connection, or no token. A connection that broke is another matter: the request may have arrived."""
    return isinstance(error, api.ServiceUnavailable) and says_never_sent(error.message or "")


def says_never_sent(text: str) -> bool:
    """Whether these are the words where there was no connection, or no token."""
    return any(words in text for words in _NEVER_SENT)


def may_pass(error: BaseException) -> bool:
    """Worth another try, for calls that may be repeated."""
    passing = (
        *(api.ServiceUnavailable, api.DeadlineExceeded, api.ResourceExhausted, api.Aborted),
        *(api.InternalServerError, api.Unknown, api.Cancelled),
    )
    return isinstance(error, passing) and not _has_no_token(error)


def fate(queue: str, error: api.GoogleAPICallError) -> tuple[Publication, BrokerError | None]:
    """What became of the messages of a publish request that failed, and the error if it concerns the topic."""
    detail = _words(error)
    known = known_error("Publish", queue, error)
    if isinstance(known, QueueMissing | PermissionRefused):
        return Publication("retry", detail=str(known)), known
    if isinstance(error, api.FailedPrecondition):  # a disabled key, a detached topic: nothing in the messages
        return Publication("retry", detail=detail), PermissionRefused(str(known))
    if certainly_not_taken(error):
        return Publication("retry", detail=detail), None
    if isinstance(error, api.InvalidArgument | api.OutOfRange):
        return Publication("refused", detail=detail), None
    return Publication("unknown", detail=detail), None


def _words(error: api.GoogleAPICallError) -> str:
    code = error.grpc_status_code.name if error.grpc_status_code else type(error).__name__
    return f"{code}: {error.message}"


def _has_no_token(error: api.GoogleAPICallError) -> bool:
    """The credentials give none, now or later."""
    words = error.message or ""
    return any(text in words for text in _NO_TOKEN) and TOKEN_AWAY not in words
