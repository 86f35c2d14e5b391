"""What people are told about a cause, beside a failure and beside a message."""

from redrive.brokers import registry
from redrive.classification import causes
from redrive.classification.causes import Cause
from redrive_ui.request_context import RequestContext


def advice(ctx: RequestContext, route: str, cause: str | None) -> tuple[str, str] | None:
    """What the cause means, and how to make it not happen again, with the knobs of the route's broker."""
    if cause not in set(Cause):
        return None
    broker = ctx.settings.routes[route].broker if route in ctx.settings.routes else ""
    return causes.meaning(Cause(cause)), registry.advice(Cause(cause), broker)
