"""What every answer and every write has to keep to: headers against injection, checks against forged requests."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Everything that a decision may bring: a corrected body is the largest part of it.
MAX_BODY_BYTES = 1 << 20

#: Scripts and styles only from our own files, no frames but Airflow's around us, nothing from elsewhere.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'self'; require-trusted-types-for 'script'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), clipboard-read=()"),
)


class Refused(Exception):
    """A request that is not answered; ``status`` is HTTP's word for why."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why
        super().__init__(why)


class ProtectiveHeaders:
    """Puts the headers on every answer, also on errors; what is not cached explicitly is not stored anywhere."""

    def __init__(self, app: ASGIApp, broken: Callable[[Request, Exception], Response]) -> None:
        self.app, self._broken = app, broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def send_protected(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = list(message.get("headers", []))
                headers += _HEADERS
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self.app(scope, receive, send_protected)
        except Exception as error:
            if begun:
                raise
            # What nobody foresaw is answered here: beyond this it would be answered without the headers.
            await self._broken(Request(scope), error)(scope, receive, send_protected)


def refuse_forged(request: Request) -> None:
    """Raise :class:`Refused` unless this write comes from our own page, or from a program with its own token.

    A browser sends the login's cookie also with requests that other sites make. But it says truthfully where they come
    from (``Sec-Fetch-Site``, ``Origin``), and sends JSON or an ``Authorization`` header for another site only after it
    has asked, which is not answered here.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "decisions are sent as application/json")
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if origin is None and request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    if origin is None or site not in (None, "same-origin") or not (site or _is_ours(origin, request)):
        raise Refused(403, "decisions are taken from this page only: the request came from elsewhere")


def _is_ours(origin: str, request: Request) -> bool:
    # Only asked of browsers that don't say it themselves (plain HTTP, old ones). A proxy in front of Airflow may change
    # the scheme; host and port are those that the browser knows.
    given = urlsplit(origin)
    return given.scheme in ("http", "https") and given.netloc.lower() == request.headers.get("host", "").lower()


async def bounded_json(request: Request) -> dict[str, Any]:
    """The request's body as a JSON object of at most :data:`MAX_BODY_BYTES`; else :class:`Refused`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, f"at most {MAX_BODY_BYTES:,} bytes are read")
    try:
        value = json.loads(body)
        json.dumps(value, ensure_ascii=False).encode()  # an escape may stand for half a character, which is no text
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body is not a JSON object")
    return value
