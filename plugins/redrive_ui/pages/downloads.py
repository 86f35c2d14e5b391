"""What leaves the review page as a file: the messages of a filter as CSV, and the payload of one."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from redrive_ui import export, message_queries
from redrive_ui.pages.parameters import Chosen, Requested
from redrive_ui.protection import Refused
from redrive_ui.request_context import RequestContext
from redrive_ui.rows import Row

router = APIRouter()


@router.get("/messages.csv")
def messages_as_csv(ctx: Requested, chosen: Chosen) -> Response:
    if chosen.route:
        ctx.require_readable(chosen.route)
    exports = ctx.app_state.exports
    if not exports.acquire(blocking=False):
        raise Refused(429, "others are exporting already: try again in a minute")
    try:
        with ctx.read() as connection:
            ids = message_queries.ids(connection, ctx.resolve(connection, chosen), ctx.readable, export.MAX_ROWS + 1)
        rows = _rows_of(ctx, ids[: export.MAX_ROWS])
        return Export(
            export.portions(rows, ctx.mask, ctx.opening, cut=len(ids) > export.MAX_ROWS),
            done=exports.release,
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="redrive-{ctx.now:%Y%m%d-%H%M%S}.csv"'},
        )
    except BaseException:
        exports.release()
        raise


class Export(StreamingResponse):
    """A stream of which somebody is told once when it is over, however it ends: also when it never began, because who
    asked was gone."""

    def __init__(self, content: Iterator[str], *, done: Callable[[], None], **options: Any) -> None:
        super().__init__(content, **options)
        self._done = weakref.finalize(self, done)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


def _rows_of(ctx: RequestContext, ids: list[int]) -> Iterator[Row]:
    """The rows of these escalations, read in portions, each for itself."""
    for start in range(0, len(ids), 500):
        portion = ids[start : start + 500]
        with ctx.read() as connection:
            rows = {row["escalation_id"]: row for row in message_queries.by_ids(connection, portion)}
        yield from (rows[one] for one in portion if one in rows)


@router.get("/messages/{message_id}/payload")
def payload(ctx: Requested, message_id: int) -> Response:
    """The body as a file: byte for byte where its route masks nothing, else with what is masked left out."""
    with ctx.read() as connection:
        found = message_queries.message(connection, message_id, ctx.readable) if 0 <= message_id < 1 << 63 else None
    review = found["review"] if found else None
    if found is None or review is None:
        raise Refused(404, f"there is no payload of message {message_id} here, or you may not see it")
    if review["payload"] is not None:
        body = ctx.mask(found["route"], review["payload"]).encode()
    elif ctx.redactor(found["route"]):
        raise Refused(403, "it is no text, so what the route's redaction names can't be masked in it")
    else:
        body = bytes(review["payload_bytes"] or b"")
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="redrive-{message_id}.bin"'},
    )
