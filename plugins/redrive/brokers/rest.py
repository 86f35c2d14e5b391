"""A broker's admin API: JSON over HTTP, with errors that name what was asked."""

import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPMessage
from typing import IO, Any
from urllib.parse import urlsplit

from redrive.brokers.retries import RetryPolicy, again
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

#: Bytes that an answer may have, far more than any broker's list of queues; of an error's only the reason is read.
LARGEST = 256 << 20
_LARGEST_REASON = 1 << 16


class NotReady(BrokerUnavailable):
    """The server answers, but not yet for this."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """What proves who we are goes along with a redirect: never from HTTPS to plain text, and to another host only
    where ``elsewhere``."""

    def __init__(self, *, elsewhere: bool) -> None:
        self._elsewhere = elsewhere

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("https", before.scheme) or (before.hostname != after.hostname and not self._elsewhere):
            return None  # so the redirect itself is the answer, and an error
        if code in (307, 308):  # these keep the method; nothing that is asked here has a body
            return urllib.request.Request(newurl, headers=req.headers, method=req.get_method())  # noqa: S310 - see above
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Rest:
    """One API below ``url``. ``headers`` gives what proves who we are, anew for each request.

    ``cluster``: its servers send us on to each other.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Callable[[], Mapping[str, str]],
        context: ssl.SSLContext | None,
        timeout: float,
        cluster: bool = False,
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = headers
        self._timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [_Redirects(elsewhere=cluster)]
        if _is_loopback(url):
            handlers.append(urllib.request.ProxyHandler({}))
        if context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def retried(self, path: str, subject: str, policy: RetryPolicy) -> Any:
        """What a GET answers; a server that just started, and answers 500 until it is ready, is asked a few times."""
        return again(lambda: self.ask(path, subject), when=_is_not_ready, policy=policy)

    def ask(self, path: str, subject: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Any:
        """The decoded answer to one request, None where it is empty; ``subject`` begins every error.

        Raises ``PermissionRefused`` for 401 and 403, ``QueueMissing`` for 404, :class:`NotReady` from 500 on,
        ``BrokerUnavailable`` where there is no answer or none that can be read, and ``BrokerError`` for the
        rest, and for an answer of more than :data:`LARGEST` bytes.
        """
        try:
            request = urllib.request.Request(  # noqa: S310 - the connection says http or https
                f"{self._url}/{path}", method=method, headers={**self._headers(), **(headers or {})}
            )
            with self._opener.open(request, timeout=self._timeout) as answer:
                content = answer.read(LARGEST + 1)
            if len(content) > LARGEST:
                raise BrokerError(f"{subject}: the answer has more than {LARGEST >> 20} MiB")
            return json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            words = f"{subject}: HTTP {error.code} {_reason(error)}"
            if 300 <= error.code < 400:
                words += f": sent on to {_host_of(error)}, and not followed with what proves who we are"
            if error.code in (401, 403):
                raise PermissionRefused(words) from None
            if error.code == 404:
                raise QueueMissing(words) from None
            raise (NotReady if error.code >= 500 else BrokerError)(words) from None
        except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
            where = self._url.partition("://")[2].partition("/")[0].rpartition("@")[2]
            raise BrokerUnavailable(f"{subject}: {where}: {type(error).__name__}: {error}") from error


def _is_not_ready(error: BaseException) -> bool:
    return isinstance(error, NotReady)


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        told = json.loads(error.read(_LARGEST_REASON))
        return str(told["reason"]).strip().partition("\n")[0][:300]  # it may hold a stack trace of the server
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return str(error.reason)


def _host_of(redirect: urllib.error.HTTPError) -> str:
    try:
        return urlsplit(str(redirect.headers.get("Location") or "")).hostname or "nowhere"
    except ValueError:
        return "nowhere"


def _is_loopback(url: str) -> bool:
    return bool(re.match(r"https?://(127\.|localhost|\[::1\])", url))
