"""What the SDK's errors mean for us: which may pass, which become ours, and what became of a send that failed.

Between "certainly not taken" and "unknown" stands what would be sent twice: only SQS's own word, or a connection that
was never there, says that a request was not taken.
"""

import ssl
from collections.abc import Mapping
from typing import Any, Literal

import botocore.exceptions as boto
import urllib3
from botocore.parsers import ResponseParserError

from redrive.brokers.base import Publication
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

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
        # a key that waits to be deleted, or is of another kind: whoever owns it can mend that
        *("KMS.InvalidStateException", "KmsInvalidKeyUsage", "KMS.InvalidKeyUsageException", "KMS.OptInRequired"),
    }
)
#: STS's words of a web identity that it could not check, which passes: a fresh token, or its issuer's keys, may not be
#: known there yet.
_IDENTITY_UNCHECKED = frozenset({"IDPCommunicationError", "InvalidIdentityToken"})
#: Of an entry of a batch that an answer doesn't name.
SILENCE = "SQS said nothing about it"
_NOT_CONNECTED = (
    boto.EndpointConnectionError,
    boto.ConnectTimeoutError,
    boto.ProxyConnectionError,
    boto.SSLError,
)
#: All that a call of the SDK raises.
SDK_ERRORS = (boto.ClientError, boto.BotoCoreError, boto.HTTPClientError, ResponseParserError, OSError)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)


def known_error(action: str, queue: str, error: Exception) -> BrokerError:
    """One of :data:`SDK_ERRORS` as one of ours, naming the action and the queue."""
    if isinstance(error, boto.ClientError):
        return _told_error(action, queue, error)
    text = f"{action} on queue {queue}: {error}"
    if isinstance(error, _NO_CREDENTIALS):
        return PermissionRefused(text)
    if isinstance(error, boto.ParamValidationError):
        return BrokerError(text)
    return BrokerUnavailable(text)


def _told_error(action: str, queue: str, error: boto.ClientError) -> BrokerError:
    code, words, status = _words(error)
    if error.operation_name != action:  # of whoever gives out credentials, which the SDK gets while it signs
        text = f"{action} on queue {queue}: no credentials: {error.operation_name}: {words}"
        passes = may_pass(error) and code != "InvalidIdentityToken"  # which has been tried for a while
        return BrokerUnavailable(text) if passes else PermissionRefused(text)
    text = f"{action} on queue {queue}: {words}"
    if code in _MISSING:
        return QueueMissing(text)
    if code in _REFUSED_CALLER or status in (401, 403):
        return PermissionRefused(text)
    if may_pass(error):
        return BrokerUnavailable(text)
    return BrokerError(text)


def may_pass(error: BaseException) -> bool:
    """Worth another try, for calls that may be repeated."""
    if isinstance(error, boto.ClientError):
        code, _, status = _words(error)
        return throttled(error) or code in _IDENTITY_UNCHECKED or status == 429 or status >= 500
    if isinstance(error, _NO_CREDENTIALS):
        return False
    return isinstance(error, boto.ConnectionError | boto.HTTPClientError | ResponseParserError)


def throttled(error: BaseException) -> bool:
    """SQS itself, or who gives out credentials, answered that it did not look at the request."""
    return isinstance(error, boto.ClientError) and _words(error)[0] in _THROTTLED


def not_connected(error: BaseException) -> bool:
    """There was no connection, or none any more."""
    return isinstance(error, _NOT_CONNECTED)


def lasting(failed: Mapping[str, Any]) -> bool:
    """A failed entry of a batch that would fail again."""
    return bool(failed.get("SenderFault")) and failed.get("Code") not in _THROTTLED


def fate_of_entry(failed: Mapping[str, Any]) -> Publication:
    """What became of the message of a failed entry, where SQS took the request."""
    words = f"{failed.get('Code')}: {failed.get('Message', '')}"
    status: Literal["retry", "refused", "unknown"] = "unknown"  # a fault within SQS, which may have it
    if failed.get("Code") in _THROTTLED | _REFUSED_CALLER:
        status = "retry"
    elif failed.get("SenderFault"):
        status = "refused"
    return Publication(status, detail=words)


def fate(queue: str, error: Exception) -> tuple[Publication, BrokerError | None]:
    """What became of the messages of a send request that failed once it was signed, or could not be built; and the
    error if it concerns the queue."""
    detail = f"{type(error).__name__}: {error}"
    if isinstance(error, boto.ClientError):
        code, detail, status = _words(error)
        if not _is_its_own(code):
            # What is too large for a proxy never came through whole.
            return Publication("refused" if status == 413 else "unknown", detail=f"not from SQS: {detail}"), None
        known = known_error("SendMessageBatch", queue, error)
        if isinstance(known, QueueMissing | PermissionRefused):
            return Publication("retry", detail=str(known)), known
        if throttled(error):
            return Publication("retry", detail=detail), None
        return Publication("unknown" if status >= 500 else "refused", detail=detail), None
    if _never_left(error):
        return Publication("retry", detail=f"not connected: {detail}"), None
    # A request that the SDK would not build was never sent; of any other the answer is lost.
    unbuilt = isinstance(error, boto.ParamValidationError)
    return Publication("refused" if unbuilt else "unknown", detail=detail), None


def _words(error: boto.ClientError) -> tuple[str, str, int]:
    """SQS's error code, its words, and the HTTP status."""
    told = error.response.get("Error", {})
    code = str(told.get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return code, f"{code}: {told.get('Message', '')}", status


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
