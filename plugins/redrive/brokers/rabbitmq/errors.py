"""What the broker or the network says of a lost connection or a closed channel, as one of our errors."""

from collections.abc import Sequence

import pika.exceptions as amqp

from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

#: Reply codes of AMQP 0-9-1, with which the broker closes.
NOT_FOUND, ACCESS_REFUSED, RESOURCE_LOCKED, PRECONDITION_FAILED, NOT_ALLOWED = 404, 403, 405, 406, 530


def connection_error(error: BaseException | None, subject: str) -> BrokerError:
    """The broker's or the network's words on a connection, as one of our errors."""
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, amqp.AuthenticationError | amqp.ProbableAuthenticationError):
            return PermissionRefused(f"{subject}: RabbitMQ refuses user and password")
        if isinstance(cause, amqp.ProbableAccessDeniedError):
            return PermissionRefused(f"{subject}: RabbitMQ refuses the virtual host: {cause}")
        if isinstance(cause, amqp.ConnectionClosedByBroker):
            words = f"{subject}: {cause.reply_code} {cause.reply_text}"
            if cause.reply_code in (ACCESS_REFUSED, NOT_ALLOWED):
                return PermissionRefused(words)
            return BrokerUnavailable(words)
    told = dict.fromkeys(words for cause in causes if (words := _words(cause)))
    words = "; ".join(told) or "no connection in time"
    return BrokerUnavailable(f"{subject}: {words}")


def channel_error(error: BaseException, action: str, queue: str) -> BrokerError:
    """Why the broker closed a channel, as one of our errors."""
    subject = f"{action} on queue {queue}" if queue else action
    if isinstance(error, amqp.ChannelClosedByBroker):
        words = f"{subject}: {error.reply_code} {error.reply_text}"
        if error.reply_code == NOT_FOUND:
            return QueueMissing(words)
        if error.reply_code in (ACCESS_REFUSED, RESOURCE_LOCKED):
            return PermissionRefused(words)
        if error.reply_code == PRECONDITION_FAILED and "timeout" in error.reply_text:
            return BrokerUnavailable(f"{words} (consumer_timeout: unacked for too long)")
        return BrokerError(words)
    return BrokerUnavailable(f"{subject}: {_words(error)}")


def _chain(error: BaseException | None) -> Sequence[BaseException]:
    """The error with what pika wrapped in it."""
    found: list[BaseException] = []
    todo = [error] if error is not None else []
    while todo and len(found) < 20:
        one = todo.pop(0)
        found.append(one)
        inner = [*getattr(one, "exceptions", ()), getattr(one, "exception", None), one.__cause__, *one.args]
        todo += [each for each in inner if isinstance(each, BaseException)]
    return found


def _words(error: BaseException) -> str:
    """The error in words, or "" where it only wraps another."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return f"{type(error).__name__}: {text}" if text and not getattr(error, "exceptions", None) else ""
