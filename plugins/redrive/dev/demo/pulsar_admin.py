"""Ask a Pulsar of ours on loopback through its admin API, as whoever sets up topics does."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import tenacity

#: Seconds a bookie that was killed may still be registered, beside the one that was started for it.
_PATIENCE: Final = 60.0
_NO_PROXY: Final = urllib.request.ProxyHandler({})


def administer(
    admin_url: str,
    token: str,
    method: str,
    path: str,
    body: object = None,
    *,
    text: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Any:
    """What the API says of ``path`` below ``/admin/v2/``: JSON read, or as it is with ``text``; None for no content.

    After a kill, the registration of the bookie that died runs out when the new one is already at work, and for a
    moment Pulsar sees neither: no topic can be made. So what it refuses for that is asked again for up to a minute.
    It may be done all the same: then the next try is told of a conflict, which is as good. Every other answer that
    is no success raises ``urllib.error.HTTPError``.
    """
    request = urllib.request.Request(  # noqa: S310 - on loopback
        f"{admin_url}/admin/v2/{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    opener = urllib.request.build_opener(_NO_PROXY)
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_sees_no_bookie),
        wait=tenacity.wait_fixed(0.5),
        stop=tenacity.stop_after_delay(_PATIENCE),
        sleep=sleep,
        reraise=True,
    )
    for attempt in attempts:
        with attempt:
            try:
                with opener.open(request, timeout=60) as answer:
                    content = answer.read().decode()
            except urllib.error.HTTPError as error:
                if attempt.retry_state.attempt_number > 1 and method == "PUT" and error.code == HTTPStatus.CONFLICT:
                    return None
                raise
    if text:
        return content
    return json.loads(content) if content else None


def _sees_no_bookie(error: BaseException) -> bool:
    """Pulsar says so in the status line, in the answer, or in both."""
    return (
        isinstance(error, urllib.error.HTTPError)
        and error.code == HTTPStatus.INTERNAL_SERVER_ERROR
        and ("non-faulty bookies" in str(error.reason) or b"non-faulty bookies" in error.read())
    )
