"""Who else would get what is sent somewhere, where a broker reaches not only the subscriber that failed."""

from redrive.errors import PermissionRefused
from redrive.stages.context import Context


def objection(context: Context, queue: str) -> str | None:
    """Why nothing may be sent to ``queue``, which not only the one reads for whom it is meant; None: it may."""
    broker = context.broker
    if broker.capabilities_for(queue).single_target:
        return None
    try:
        readers = broker.describe(queue).subscribers
    except PermissionRefused:
        readers = None
    if readers == 0:
        return f"{queue} has no subscription: what is sent there is lost"
    if readers == 1 or context.route.fan_out == "allow":
        return None
    several = f"{queue} has {readers} subscriptions" if readers else f"who reads {queue} is not known"
    return f"{several}: all of them would get the message, and fan_out is refuse"
