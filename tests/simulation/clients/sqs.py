"""boto3's SQS client over a simulated system. Queues whose name ends in ``.fifo`` deduplicate and keep order."""

import hashlib
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import botocore.exceptions as boto

from redrive.brokers.sqs.adapter import AmazonSqs
from tests.simulation.world import Copy, System
from tests.simulation.world.systems import Header

TRAITS: dict[str, object] = {
    "ids": "kept",
    "death_times": False,
    "tells_origin": True,
    "tells_reason": False,
    "max_headers": 10,
    "publish_batch": 10,
    "native_delay": 900,
    "subscribers": 1,
}
FIFO_TRAITS: dict[str, object] = {**TRAITS, "ordered": True, "shuffles": False, "dedupe": 300, "native_delay": None}

_URL, _ARN = "https://sqs.simulated/1/", "arn:aws:sqs:eu-central-1:1:"
_COUNT = "ApproximateNumberOfMessages"
_DEDUP = "MessageDeduplicationId"


def connect(system: System) -> AmazonSqs:
    """The real adapter, on this client."""
    clock = system.world.clock
    return AmazonSqs(Sqs(system), concurrency=1, sleep=clock.sleep, monotonic=clock.monotonic)


def deduplication_id(body: bytes) -> str:
    """What content-based deduplication makes of a body."""
    return hashlib.sha256(body).hexdigest()


class Sqs:
    """The calls that the adapter makes of boto3's client, with boto3's answers and errors."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._dice = system.world.dice
        self._deleted: set[int] = set()  # to delete them once more succeeds
        self._told: list[Callable[[], None]] = []  # that a request was signed
        self.meta = SimpleNamespace(
            config=SimpleNamespace(read_timeout=30.0),
            events=SimpleNamespace(register=lambda *_args: None, register_last=self._register_last),
            region_name="eu-central-1",
            partition="aws",
        )

    def close(self) -> None:
        """Nothing is held."""

    def _register_last(self, event: str, told: Callable[[], None]) -> None:
        assert event == "request-created.sqs"
        self._told.append(told)

    # --- queues -------------------------------------------------------------------------------------------

    def get_queue_url(self, *, QueueName: str, **_: Any) -> dict[str, Any]:  # noqa: N803 - as boto3 has it
        self._queue(_URL + QueueName, "GetQueueUrl")
        return {"QueueUrl": _URL + QueueName}

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: list[str]) -> dict[str, Any]:  # noqa: N803
        name = self._begins("depth", "GetQueueAttributes", QueueUrl)
        queue = self._system.queues[name]
        told = self._system.depth(name)
        found = {
            "MessageRetentionPeriod": "1209600",
            "VisibilityTimeout": str(queue.lease),
            "MaximumMessageSize": "262144",
        }
        if queue.dead_letters and queue.max_deliveries:
            policy = {"deadLetterTargetArn": _ARN + queue.dead_letters, "maxReceiveCount": queue.max_deliveries}
            found["RedrivePolicy"] = json.dumps(policy)
        if told is not None:  # SQS tells it; of a server that only speaks its protocol nobody knows
            found |= {_COUNT: str(told[0]), f"{_COUNT}NotVisible": str(told[1]), f"{_COUNT}Delayed": str(told[2])}
        wanted = found if "All" in AttributeNames else {name: found[name] for name in AttributeNames if name in found}
        return {"Attributes": wanted}

    def list_dead_letter_source_queues(self, *, QueueUrl: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        name = self._begins("depth", "ListDeadLetterSourceQueues", QueueUrl)
        feeding = [_URL + one.name for one in self._system.queues.values() if one.dead_letters == name]
        return {"queueUrls": feeding}

    # --- receiving ----------------------------------------------------------------------------------------

    def receive_message(
        self,
        *,
        QueueUrl: str,  # noqa: N803
        MaxNumberOfMessages: int,  # noqa: N803
        WaitTimeSeconds: int,  # noqa: N803
        VisibilityTimeout: int,  # noqa: N803
        **_: Any,
    ) -> dict[str, Any]:
        name = self._queue(QueueUrl, "ReceiveMessage")
        fate = self._system.fate("receive")
        if fate in ("retry", "down", "error"):
            raise _error(fate, "ReceiveMessage", self._dice)
        taken = self._system.receive(name, MaxNumberOfMessages, VisibilityTimeout, by="redrive")
        if fate == "lost":
            raise boto.ReadTimeoutError(endpoint_url=_URL)
        if not taken:
            self._system.world.clock.sleep(WaitTimeSeconds)
            return {}
        return {"Messages": [_message(copy, receipt) for copy, receipt in taken]}

    def delete_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        name = self._queue(QueueUrl, "DeleteMessageBatch")
        fate = self._system.fate("settle")
        if fate in ("retry", "down", "error"):
            raise _error(fate, "DeleteMessageBatch", self._dice)
        going = Entries[: len(Entries) // 2] if fate == "part" else Entries
        handles = [int(one["ReceiptHandle"]) for one in going]
        late = set(self._system.settle(name, handles, by="redrive")) - self._deleted
        self._deleted.update(handles)
        self._deleted -= late
        if fate == "lost":
            raise boto.ReadTimeoutError(endpoint_url=_URL)
        failed = [_failed(one, "InternalError", sender=False) for one in Entries[len(going) :]]
        failed += [
            _failed(one, "ReceiptHandleIsInvalid", sender=True) for one in going if int(one["ReceiptHandle"]) in late
        ]
        bad = {one["Id"] for one in failed}
        return {"Successful": [{"Id": one["Id"]} for one in Entries if one["Id"] not in bad], "Failed": failed}

    def change_message_visibility_batch(
        self,
        *,
        QueueUrl: str,  # noqa: N803
        Entries: list[dict[str, Any]],  # noqa: N803
    ) -> dict[str, Any]:
        name = self._begins("extend", "ChangeMessageVisibilityBatch", QueueUrl)
        for one in Entries:
            handle, seconds = int(one["ReceiptHandle"]), int(one["VisibilityTimeout"])
            if seconds:
                self._system.extend(name, [handle], seconds)
            else:
                self._system.release(name, [handle], by="redrive")
        return {"Successful": [{"Id": one["Id"]} for one in Entries]}

    # --- sending ------------------------------------------------------------------------------------------

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        for told in self._told:
            told()
        name = self._queue(QueueUrl, "SendMessageBatch")
        fate = self._system.fate("publish")
        if fate == "error" and self._dice.random() < 0.3:
            return {"Successful": []}  # not a word of any entry, and none was taken
        if fate in ("retry", "down", "error"):
            raise _error(fate, "SendMessageBatch", self._dice)
        if fate == "refused":
            return {
                "Successful": [],
                "Failed": [_failed(one, "InvalidMessageContents", sender=True) for one in Entries],
            }
        lost_how = self._dice.choice(["time", "proxy", "entries", "silence"]) if fate == "lost" else ""
        going = Entries[: len(Entries) // 2] if fate == "part" else Entries
        done = [{"Id": one["Id"], "MessageId": self._send(name, one, known=not lost_how)} for one in going]
        match lost_how:
            case "time":
                raise boto.ReadTimeoutError(endpoint_url=_URL)
            case "proxy":  # something between us and SQS answers, and SQS has taken it
                raise boto.ClientError(
                    {
                        "Error": {"Code": "503", "Message": "Service Unavailable"},
                        "ResponseMetadata": {"HTTPStatusCode": 503},
                    },
                    "SendMessageBatch",
                )
            case "entries":
                return {"Successful": [], "Failed": [_failed(one, "InternalError", sender=False) for one in Entries]}
            case "silence":
                return {"Successful": []}
        failed = [_failed(one, "InternalError", sender=False) for one in Entries[len(going) :]]
        return {"Successful": done, "Failed": failed}

    def _send(self, queue: str, entry: dict[str, Any], *, known: bool) -> str:
        fifo = queue.endswith(".fifo")
        body = entry["MessageBody"].encode("utf-8", "surrogatepass")
        dedup = (entry.get(_DEDUP) or deduplication_id(body)) if fifo else None
        headers: list[Header] = []
        for name, value in entry.get("MessageAttributes", {}).items():
            content = value["BinaryValue"] if "BinaryValue" in value else value["StringValue"]
            headers.append((name, value["DataType"], content))
        return self._system.send(
            queue,
            body,
            tuple(headers),
            by="redrive",
            key=entry.get("MessageGroupId") if fifo else None,
            properties=((_DEDUP, dedup),) if dedup else (),
            dedup_id=dedup,
            delay=float(entry.get("DelaySeconds", 0)),
            known=known,
        )

    # --- inside -------------------------------------------------------------------------------------------

    def _queue(self, url: str, action: str) -> str:
        name = url.rpartition("/")[2]
        if not self._system.exists(name):
            raise boto.ClientError(
                {
                    "Error": {
                        "Code": "AWS.SimpleQueueService.NonExistentQueue",
                        "Message": "The specified queue does not exist.",
                    },
                    "ResponseMetadata": {"HTTPStatusCode": 400},
                },
                action,
            )
        return name

    def _begins(self, verb: str, action: str, url: str) -> str:
        name = self._queue(url, action)
        fate = self._system.fate(verb)
        if fate in ("retry", "down", "error"):
            raise _error(fate, action, self._dice)
        return name


def _message(copy: Copy, receipt: int) -> dict[str, Any]:
    attributes = {
        "ApproximateReceiveCount": str(copy.deliveries),
        "SentTimestamp": str(copy.enqueued_at // 1000),
        "ApproximateFirstReceiveTimestamp": str((copy.first_received_at or 0) // 1000),
        "SenderId": "simulated",
    }
    if copy.origin is not None:
        attributes["DeadLetterQueueSourceArn"] = _ARN + copy.origin
    if copy.key is not None:
        attributes["MessageGroupId"] = copy.key
    attributes |= {name: value for name, value in copy.properties if name in (_DEDUP, "AWSTraceHeader")}
    headers = {}
    for name, kind, value in copy.headers:
        if isinstance(value, bytes):
            headers[name] = {"DataType": "Binary", "BinaryValue": value}
        elif value:
            known = kind.split(".")[0] in ("String", "Number")
            headers[name] = {"DataType": kind if known else "String", "StringValue": value}
    return {
        "MessageId": copy.broker_id,
        "ReceiptHandle": str(receipt),
        "Body": copy.body.decode("utf-8", "replace"),
        "Attributes": attributes,
        "MessageAttributes": headers,
    }


def _failed(entry: dict[str, Any], code: str, *, sender: bool) -> dict[str, Any]:
    return {"Id": entry["Id"], "Code": code, "Message": "simulated", "SenderFault": sender}


def _error(fate: str, action: str, dice: Any) -> Exception:
    """What the SDK raises for a request that was not carried out."""
    if fate == "down":
        return boto.EndpointConnectionError(endpoint_url=_URL)
    if fate == "retry":
        return boto.ClientError(
            {
                "Error": {"Code": "RequestThrottled", "Message": "Rate exceeded"},
                "ResponseMetadata": {"HTTPStatusCode": 400},
            },
            action,
        )
    if dice.random() < 0.5:
        return boto.ConnectionClosedError(endpoint_url=_URL)
    return boto.ClientError(
        {
            "Error": {"Code": "InternalFailure", "Message": "simulated"},
            "ResponseMetadata": {"HTTPStatusCode": 500},
        },
        action,
    )
