"""What the SDK's errors mean for us: which error of ours each is, whether it may pass, and what became of a send."""

from azure.core.exceptions import AzureError, ClientAuthenticationError, ServiceRequestError, ServiceResponseError
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import AMQPException, MessageException

from redrive.brokers.base import Publication
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

#: What the SDK raises where Service Bus, or the way to it, is to blame.
SDK_ERRORS = (AzureError, AMQPException, OSError, TimeoutError)

_UNREACHABLE = (
    sdk.ServiceBusConnectionError,
    sdk.ServiceBusCommunicationError,
    sdk.OperationTimeoutError,
    sdk.ServiceBusServerBusyError,
    sdk.ServiceBusQuotaExceededError,
    sdk.MessagingEntityDisabledError,
)
_REFUSED = (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError)
_LOST = (sdk.ServiceBusConnectionError, sdk.ServiceBusCommunicationError, sdk.OperationTimeoutError)
_NO_ANSWER = (ServiceRequestError, ServiceResponseError)
#: The entity says no to everything for now.
_ENTITY = (
    *(sdk.MessagingEntityNotFoundError, sdk.MessagingEntityDisabledError, sdk.ServiceBusQuotaExceededError),
    *_REFUSED,
)


def known_error(action: str, queue: str, error: BaseException, service: str) -> BrokerError:
    """The error of ours that ``error`` is; ``service`` is the host and port that an outage names."""
    if isinstance(error, BrokerError):
        return error
    text = f"{action} on queue {queue}: {_words(error)}"
    if isinstance(error, sdk.MessagingEntityNotFoundError):
        return QueueMissing(text)
    # What Entra answers where a token is asked for, the SDK wraps without a class of its own.
    token = getattr(error, "inner_exception", None)
    busy = isinstance(token, ClientAuthenticationError) and _is_busy(token)
    if isinstance(error, _REFUSED) or (isinstance(token, ClientAuthenticationError) and not busy):
        return PermissionRefused(text)
    if isinstance(error, _UNREACHABLE) or may_pass(error) or busy or isinstance(token, _NO_ANSWER):
        return BrokerUnavailable(f"{action} on queue {queue}: {service}: {_words(error)}")
    return BrokerError(text)


def may_pass(error: BaseException) -> bool:
    """Worth another try, for work that may be repeated."""
    if isinstance(error, sdk.ServiceBusError):
        if isinstance(error, (*_REFUSED, sdk.MessagingEntityDisabledError, sdk.ServiceBusQuotaExceededError)):
            return False
        return isinstance(error, _UNREACHABLE) or bool(getattr(error, "_retryable", False))
    return isinstance(error, OSError | TimeoutError | AMQPException)


def wants_session(error: BaseException) -> bool:
    """The entity can only be received from session by session."""
    text = str(error)
    return "sessionful" in text or "requires sessions" in text


def fate(queue: str, error: Exception, service: str, *, used: bool) -> tuple[Publication, BrokerError | None]:
    """What became of the messages of a send that failed, and the error if it concerns the entity.

    ``used``: the link was there and something was given to it, so its error may hide an answer.
    """
    known = known_error("publish", queue, error, service)
    inner = getattr(error, "inner_exception", None) or error.__context__
    # Of a link or connection that broke the SDK says the same as of a message whose answer is lost.
    rejected = isinstance(inner, MessageException) and not isinstance(error, _LOST)
    if isinstance(error, sdk.MessageSizeExceededError):
        return Publication("refused", detail=known.detail), None
    if isinstance(error, sdk.ServiceBusServerBusyError) and rejected:
        return Publication("retry", detail=known.detail), None
    if isinstance(error, _ENTITY) and (rejected or not used):
        return Publication("retry", detail=known.detail), known
    if rejected and not may_pass(error):
        return Publication("refused", detail=known.detail), None
    return Publication("unknown", detail=known.detail), None


def _is_busy(token: ClientAuthenticationError) -> bool:
    """Entra's answer is no word about who asked: it has too much to do, or a fault."""
    return token.status_code is not None and (token.status_code == 429 or token.status_code >= 500)


def _words(error: BaseException) -> str:
    if isinstance(error, sdk.MessagingEntityDisabledError):
        return f"the entity is disabled ({error})"
    if isinstance(error, sdk.ServiceBusAuthenticationError):
        return f"the credentials are refused ({error})"
    return str(error) or type(error).__name__
