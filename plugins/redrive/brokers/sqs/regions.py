"""Whether a queue that is named by ARN or URL is one of the client's region: no other can be reached by it.

SQS looks a name up in the region that is asked, whatever the ARN or the host says. A queue of the same name there would
be taken for the one that is named: drained, or sent to.
"""

import re

from redrive.brokers.sqs.message import account_of, queue_of_arn
from redrive.errors import PermissionRefused, QueueMissing

_SUFFIXES = (
    r"(?:amazonaws\.com(?:\.cn)?|amazonaws\.eu|api\.aws|api\.amazonwebservices\.com\.cn"
    r"|c2s\.ic\.gov|sc2s\.sgov\.gov|csp\.hci\.ic\.gov|cloud\.adc-e\.uk)"
)
_REGION = r"[a-z]+(?:-[a-z]+)+-[0-9]+"
#: AWS's own hosts. Those of VPC endpoints and of stand-ins are their owner's, and tell nothing.
_HOST = re.compile(
    rf"https?://(?:sqs(?:-fips)?\.(?P<region>{_REGION})\.{_SUFFIXES}"
    rf"|(?:(?P<legacy>{_REGION})\.)?queue\.amazonaws\.com(?:\.cn)?)(?::[0-9]+)?(?:/|$)",
    re.ASCII | re.IGNORECASE,
)
_OLDEST = "us-east-1"  # whose host names none


def of_arn(queue: str, *, region: str, partition: str) -> tuple[str, str]:
    """The account and the name in an ARN of the client's region; raises :class:`PermissionRefused` for another one, and
    :class:`QueueMissing` for what is not the ARN of a queue."""
    parts = queue.split(":")
    if len(parts) != 6 or parts[2] != "sqs" or not all(parts):
        raise QueueMissing(f"queue {queue} is not the ARN of a queue: arn:<partition>:sqs:<region>:<account>:<name>")
    if (parts[1], parts[3]) != (partition, region):
        raise _elsewhere(queue, f"{parts[3]} (partition {parts[1]})", f"{region} (partition {partition})")
    return parts[4], parts[5]


def name_tells(queue: str) -> tuple[str | None, ...]:
    """The region, account and name that an ARN or a URL tells; of a name only that."""
    if queue.startswith("arn:"):
        return queue.split(":")[3] if queue.count(":") == 5 else None, account_of(queue), queue_of_arn(queue)
    if "://" in queue:
        return _of_host(queue), account_of(queue), queue.rstrip("/").rpartition("/")[2]
    return None, None, queue


def _of_host(queue: str) -> str | None:
    found = _HOST.match(queue)
    return (found["region"] or found["legacy"] or _OLDEST).lower() if found else None


def refuse_host_elsewhere(queue: str, region: str) -> None:
    """Raises :class:`PermissionRefused` for the URL of a queue whose host is AWS's in another region."""
    named = _of_host(queue)
    if named is not None and named != region:
        raise _elsewhere(queue, named, region)


def _elsewhere(queue: str, named: str, region: str) -> PermissionRefused:
    return PermissionRefused(
        f"queue {queue} is in region {named}, and the connection is to {region}, where a queue of that name would be"
        " another one: give the route a connection to the queue's region (extra.region_name), or name a queue of the"
        " connection's; what a route drains and where it sends are in one region"
    )
