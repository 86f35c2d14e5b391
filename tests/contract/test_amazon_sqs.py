"""The SQS adapter: the contract on an SQS-compatible server, and what only SQS does."""

import json
import re
import ssl
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import botocore.exceptions as boto
import pytest
from botocore.credentials import DeferredRefreshableCredentials
from urllib3.exceptions import ProxyError
from urllib3.exceptions import SSLError as URLLib3SSLError

from redrive.brokers import open_broker
from redrive.brokers.sqs.adapter import AmazonSqs
from redrive.brokers.sqs.kind import FAILURE_HEADERS
from redrive.brokers.sqs.message import MAX_BYTES
from redrive.errors import (
    BrokerError,
    BrokerUnavailable,
    NothingSent,
    PermissionRefused,
    QueueMissing,
    SettingsError,
)
from redrive.message import Header, clean_headers, tracking_headers
from tests.contract.broker_contract import LEASE, NO_WAIT, BrokerContract, outgoing
from tests.contract.scripted_sqs import Drop, Hang, Proxy, Refuse, ScriptedSqs, all_sent
from tests.elasticmq_server import ElasticMq
from tests.servers import Ministack, free_port

MINUTE = 60_000_000


def connection(url: str, **extra: object) -> str:
    return json.dumps(
        {
            "conn_type": "aws",
            "login": "test",
            "password": "test",
            "extra": {"region_name": "us-east-1", "endpoint_url": url, **extra},
        }
    )


def adapter(url: str, **options: object) -> AmazonSqs:
    """The adapter on ``url``; it does not really sleep between tries unless told to."""
    options.setdefault("sleep", lambda seconds: None)
    return AmazonSqs.open("sqs_test", env={"AIRFLOW_CONN_SQS_TEST": connection(url)}, **options)


@pytest.fixture
def sqs(sqs_server: Ministack | ElasticMq) -> Iterator[AmazonSqs]:
    broker = adapter(sqs_server.url)
    yield broker
    broker.close()


@pytest.fixture
def create(sqs: AmazonSqs) -> Callable[..., str]:
    def create(
        *,
        ordered: bool = False,
        dead_letter_queue: str | None = None,
        max_deliveries: int | None = None,
        **attributes: str,
    ) -> str:
        name = f"q-{uuid.uuid4().hex[:12]}{'.fifo' if ordered else ''}"
        if ordered:
            attributes |= {"FifoQueue": "true"}
        if dead_letter_queue:
            arn = f"arn:aws:sqs:us-east-1:000000000000:{dead_letter_queue}"
            policy = {"deadLetterTargetArn": arn, "maxReceiveCount": max_deliveries}
            attributes |= {"RedrivePolicy": json.dumps(policy)}
        sqs._client.create_queue(QueueName=name, Attributes=attributes)
        return name

    return create


class SqsContract(BrokerContract):
    """What holds for SQS on whatever server."""

    carries_binary = False
    carries_empty = False

    @pytest.fixture
    def sqs_server(self) -> Ministack | ElasticMq:
        raise NotImplementedError

    @pytest.fixture
    def broker(self, sqs: AmazonSqs) -> AmazonSqs:
        return sqs

    @pytest.fixture
    def another_broker(self, sqs_server: Ministack | ElasticMq) -> Iterator[AmazonSqs]:
        broker = adapter(sqs_server.url)
        yield broker
        broker.close()

    @pytest.fixture
    def make_queue(self, create: Callable[..., str]) -> Callable[..., str]:
        return create

    @pytest.fixture
    def refused_broker(self) -> Iterator[AmazonSqs]:
        with ScriptedSqs() as script:
            for operation in list(script.always):
                if operation != "GetQueueUrl":
                    script.always[operation] = Refuse("AccessDenied", 403)
            broker = adapter(script.url)
            yield broker
            broker.close()

    @pytest.fixture
    def unreachable_broker(self) -> AmazonSqs:
        return adapter(f"http://127.0.0.1:{free_port()}")

    def test_a_content_type_survives(self, broker: AmazonSqs, queue: str) -> None:
        """SQS has none of its own: an attribute of that name is taken for it, and stays an attribute."""
        header = Header("Content-Type", "String", "application/json")
        self.send(broker, queue, outgoing(headers=(header,)))
        [received] = self.take(broker, queue, 1)

        assert received.letter.content_type == "application/json"
        assert received.letter.headers == (header,)

    def test_a_round_trip_costs_three_requests_per_ten_messages(
        self, sqs: AmazonSqs, create: Callable[..., str]
    ) -> None:
        dead, live = create(), create()
        self.send(sqs, dead, *(outgoing(b"%d" % n, n) for n in range(200)))
        fresh = adapter(sqs._client.meta.endpoint_url)

        received = fresh.receive(dead, limit=200, wait=timedelta(seconds=5), lease=LEASE)
        assert len(received) == 200
        assert fresh.settle(dead, [r.receipt for r in received]).count == 200
        self.send(fresh, live, *(outgoing(r.letter.body, n) for n, r in enumerate(received)))

        assert fresh.requests["ReceiveMessage"] == 20
        assert fresh.requests["DeleteMessageBatch"] == 20
        assert fresh.requests["SendMessageBatch"] == 20
        assert fresh.requests.total() <= 0.31 * 200
        fresh.close()

    def test_queues_are_named_by_url_and_arn_too(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        name = create()
        self.send(sqs, name, outgoing())
        url = sqs._client.get_queue_url(QueueName=name)["QueueUrl"]

        assert sqs.depth(url).visible == 1
        assert sqs.depth(f"arn:aws:sqs:us-east-1:000000000000:{name}").visible == 1
        for queue in (url, f"arn:aws:sqs:us-east-1:000000000000:{name}"):
            assert sqs.leads_to(queue, name) is True
            assert sqs.leads_to(queue, "another") is False

    def test_fifo_ids_come_back_and_a_used_one_is_dropped(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        queue = create(ordered=True)
        self.send(sqs, queue, outgoing(ordering_key="g", dedup_id="order-17"))
        self.send(sqs, queue, outgoing(ordering_key="g", dedup_id="order-17"))  # "sent", says SQS
        [received] = self.take(sqs, queue, 5, least=1)

        properties = dict(received.letter.properties)
        assert properties["MessageDeduplicationId"] == "order-17"
        assert "SequenceNumber" in properties

    def test_a_second_attempt_is_not_dropped_where_content_would_be_deduplicated(
        self, sqs: AmazonSqs, create: Callable[..., str]
    ) -> None:
        queue = create(ordered=True, ContentBasedDeduplication="true")
        for attempt in (1, 2):
            self.send(sqs, queue, outgoing(b"same", ordering_key="g")._replace(attempt=attempt))

        assert sqs.depth(queue).visible == 2

    def test_a_message_without_a_group_gets_one_of_its_own_on_a_fifo_queue(
        self, sqs: AmazonSqs, create: Callable[..., str]
    ) -> None:
        queue = create(ordered=True)
        self.send(sqs, queue, *(outgoing(number=n) for n in range(3)))

        assert len({r.letter.ordering_key for r in self.take(sqs, queue, 3)}) == 3

    def test_a_group_on_a_standard_queue_is_kept(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        queue = create()
        self.send(sqs, queue, outgoing(ordering_key="tenant-7"))

        assert self.take(sqs, queue, 1)[0].letter.ordering_key == "tenant-7"

    def test_a_queue_with_a_smaller_bound_refuses_with_it(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        queue = create(MaximumMessageSize="262144")
        results = sqs.publish(queue, [outgoing(b"x" * 300_000), outgoing(number=2)])

        assert [r.status for r in results] == ["refused", "sent"]
        assert "262144" in results[0].detail

    def test_a_queue_with_a_tiny_bound_refuses_by_itself(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        queue = create(MaximumMessageSize="1024")
        results = sqs.publish(queue, [outgoing(b"x" * 2000), outgoing(number=2)])

        assert [r.status for r in results] == ["refused", "sent"]
        assert "1024" in results[0].detail

    def test_a_description_tells_retention_and_bounds(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        told = sqs.describe(create(MessageRetentionPeriod="86400", VisibilityTimeout="45"))

        assert told.retention == timedelta(days=1)
        assert told.lease == timedelta(seconds=45)
        assert told.max_message_bytes == MAX_BYTES

    def test_the_registry_opens_it_by_connection_id(
        self, sqs_server: Ministack | ElasticMq, create: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_SQS_DEMO", connection(sqs_server.url))
        broker = open_broker("amazon_sqs", "sqs_demo")

        assert broker.depth(create()).total == 0
        broker.close()

    @pytest.mark.airflow
    def test_a_connection_that_needs_more_goes_through_airflows_hook(
        self, sqs_server: Ministack | ElasticMq, create: Callable[..., str]
    ) -> None:
        env = {
            "AIRFLOW_CONN_SQS_ROLE": connection(
                "http://127.0.0.1:1", service_config={"sqs": {"endpoint_url": sqs_server.url}}
            )
        }
        broker = AmazonSqs.open("sqs_role", env=env)

        assert broker.depth(create()).total == 0
        assert broker._client.meta.config.retries["total_max_attempts"] == 1
        broker.close()


@pytest.mark.server
class TestAmazonSqs(SqsContract):
    """On ministack: a stand-in that speaks SQS's protocol over HTTP, because tests can't reach AWS."""

    @pytest.fixture
    def sqs_server(self, ministack: Ministack) -> Ministack:
        return ministack


@pytest.mark.server
class TestOnElasticMq(SqsContract):
    """On ElasticMQ, as an opinion that isn't ministack's.

    It takes 256 KiB at most, as SQS did until August 2025, and of a queue's attributes it keeps neither a smaller
    bound nor the retention: what differs below is that, and nothing else.
    """

    max_body = 250_000

    @pytest.fixture
    def sqs_server(self, elasticmq: ElasticMq) -> ElasticMq:
        return elasticmq

    def test_a_queue_with_a_smaller_bound_refuses_with_it(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        """The queue doesn't tell its bound, so the adapter can't refuse by itself; the server does, in its words."""
        queue = create(MaximumMessageSize="262144")
        results = sqs.publish(queue, [outgoing(b"x" * 300_000), outgoing(number=2)])

        assert [r.status for r in results] == ["refused", "sent"]
        assert "MessageTooLong" in results[0].detail

    def test_a_queue_with_a_tiny_bound_refuses_by_itself(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        """ElasticMQ forgets such a bound: what a queue doesn't tell is not made up."""
        queue = create(MaximumMessageSize="1024")
        self.send(sqs, queue, outgoing(b"x" * 2000))

        assert sqs.describe(queue).max_message_bytes is None

    def test_a_description_tells_retention_and_bounds(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        told = sqs.describe(create(MessageRetentionPeriod="86400", VisibilityTimeout="45"))

        assert (told.retention, told.lease, told.max_message_bytes) == (None, timedelta(seconds=45), None)

    def test_a_dead_letter_queue_tells_after_how_many_deliveries_its_messages_died(
        self, sqs: AmazonSqs, create: Callable[..., str]
    ) -> None:
        """ElasticMQ has ListDeadLetterSourceQueues, which ministack has not."""
        dead = create()
        for deliveries in (5, 3):
            create(dead_letter_queue=dead, max_deliveries=deliveries)

        assert sqs.describe(dead).max_deliveries == 3

    def test_a_trace_header_survives_a_round_trip(self, sqs: AmazonSqs, create: Callable[..., str]) -> None:
        """ministack loses this system attribute when it is sent in a batch."""
        queue = create()
        trace = (("AWSTraceHeader", "Root=1-5e1b4151-43a0913a12345678901234567"),)
        self.send(sqs, queue, outgoing(properties=trace))

        assert trace[0] in self.take(sqs, queue, 1)[0].letter.properties


# --- what an SQS-compatible server can't be made to do ----------------------------------------------------


@pytest.fixture
def script() -> Iterator[ScriptedSqs]:
    with ScriptedSqs() as server:
        yield server


@pytest.fixture
def broker(script: ScriptedSqs) -> Iterator[AmazonSqs]:
    """One request at a time, so that the script's order is the order of the calls."""
    opened = adapter(script.url, concurrency=1)
    yield opened
    opened.close()


def statuses(broker: AmazonSqs, queue: str, count: int, **fields: object) -> list[str]:
    messages = [outgoing(b"%d" % n, n, **fields) for n in range(count)]
    return [result.status for result in broker.publish(queue, messages)]


def test_a_throttled_send_is_repeated_after_a_while(script: ScriptedSqs) -> None:
    pauses: list[float] = []
    broker = adapter(script.url, sleep=pauses.append)
    script.then("SendMessageBatch", *[Refuse("RequestThrottled", 400)] * 5)

    assert statuses(broker, "orders", 3) == ["sent"] * 3
    assert len(pauses) == 5
    assert all(0 <= pause <= 10 for pause in pauses)
    assert len(set(pauses)) == 5  # jitter
    broker.close()


def test_a_send_that_stays_throttled_may_be_tried_later(script: ScriptedSqs, broker: AmazonSqs) -> None:
    script.always["SendMessageBatch"] = Refuse("ThrottlingException", 400)

    assert statuses(broker, "orders", 3) == ["retry"] * 3


LOST = {
    "hang": Hang(),
    "drop": Drop(),
    "500": Refuse("InternalFailure", 500),
    "503": Refuse("ServiceUnavailable", 503),
    **{f"proxy-{status}": Proxy(status) for status in (302, 400, 401, 403, 404, 408, 429, 502, 503, 504)},
    "proxy-page": Proxy(200, "<html>Service Unavailable</html>"),
    "proxy-json": Proxy(503, '{"message": "no healthy upstream"}'),
}


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
def test_a_lost_answer_is_unknown_for_exactly_its_messages_and_never_repeated(
    script: ScriptedSqs, fault: Hang | Drop | Refuse | Proxy
) -> None:
    script.then("SendMessageBatch", all_sent, fault, all_sent)
    broker = adapter(script.url, concurrency=1, **({"read_timeout": 1} if isinstance(fault, Hang) else {}))

    assert statuses(broker, "orders", 30) == ["sent"] * 10 + ["unknown"] * 10 + ["sent"] * 10
    assert len(script.requests("SendMessageBatch")) == 3
    broker.close()


def test_a_server_that_is_not_there_has_taken_nothing(script: ScriptedSqs) -> None:
    broker = adapter(script.url)
    broker.depth("orders")  # knows the queue's URL now
    broker._client.meta.events.register_first("before-send.sqs.SendMessageBatch", _refuse_connection)

    assert statuses(broker, "orders", 2) == ["retry"] * 2
    broker.close()


def _refuse_connection(request: object, **_: object) -> None:
    request.url = f"http://127.0.0.1:{free_port()}/"  # type: ignore[attr-defined]


@pytest.mark.parametrize("missing", ["", "NotVisible", "Delayed"])
def test_a_count_that_is_not_told_is_unknown_never_zero(script: ScriptedSqs, broker: AmazonSqs, missing: str) -> None:
    """SQS tells all three; of a server that speaks its protocol nobody knows."""
    names = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
    told = dict.fromkeys(names, "0")
    script.always["GetQueueAttributes"] = {"Attributes": told}
    assert broker.depth("orders").total == 0
    del told[f"ApproximateNumberOfMessages{missing}"]
    depth = broker.depth("orders")
    assert depth.total is None
    assert sorted(map(str, depth[:3])) == ["0", "0", "None"]


def test_failed_entries_are_told_apart(script: ScriptedSqs, broker: AmazonSqs) -> None:
    def partly(request: dict[str, list[dict[str, str]]]) -> dict[str, object]:
        ids = [entry["Id"] for entry in request["Entries"]]
        return {
            "Successful": [{"Id": ids[0], "MessageId": "m-0", "MD5OfMessageBody": "0"}],
            "Failed": [
                {"Id": ids[1], "Code": "InvalidParameterValue", "Message": "no", "SenderFault": True},
                {"Id": ids[2], "Code": "InternalError", "Message": "later", "SenderFault": False},
                {"Id": ids[3], "Code": "RequestThrottled", "Message": "slow", "SenderFault": True},
            ],
        }

    script.then("SendMessageBatch", partly)
    results = broker.publish("orders", [outgoing(number=n) for n in range(5)])

    # SQS may have taken what failed within itself, and what it says nothing of.
    assert [r.status for r in results] == ["sent", "refused", "unknown", "retry", "unknown"]
    assert results[1].detail == "InvalidParameterValue: no"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (boto.EndpointConnectionError(endpoint_url="u"), "retry"),
        (boto.ConnectTimeoutError(endpoint_url="u"), "retry"),
        (boto.SSLError(endpoint_url="u", error=URLLib3SSLError(ssl.SSLCertVerificationError("self-signed"))), "retry"),
        (boto.SSLError(endpoint_url="u", error=URLLib3SSLError(ssl.SSLEOFError("EOF occurred"))), "unknown"),
        (boto.ProxyConnectionError(proxy_url="p", error=ProxyError("no", OSError("Tunnel connection failed: 407"))),
         "retry"),
        (boto.ProxyConnectionError(proxy_url="p", error=ProxyError("no", ConnectionResetError("reset"))), "unknown"),
        (boto.ReadTimeoutError(endpoint_url="u"), "unknown"),
        (boto.ConnectionClosedError(endpoint_url="u"), "unknown"),
    ],
    ids=["refused", "connect", "certificate", "tls-broke", "tunnel", "proxy-broke", "read", "closed"],
)  # fmt: skip
def test_only_what_never_left_is_certainly_not_sent(
    script: ScriptedSqs, broker: AmazonSqs, error: Exception, status: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    broker._client.meta.events.register_first("before-send.sqs.SendMessageBatch", fail)

    assert statuses(broker, "orders", 2) == [status] * 2


def get_credentials(broker: AmazonSqs, refresh: Callable[[], dict[str, str]]) -> None:
    """From now on each request gets its credentials by ``refresh``, as from STS."""
    broker._client._request_signer._credentials = DeferredRefreshableCredentials(refresh, "assume-role")


def refused_by_sts(code: str, status: int) -> boto.ClientError:
    told = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(told, "AssumeRoleWithWebIdentity")  # type: ignore[arg-type]


NO_CREDENTIALS = [
    (refused_by_sts("InvalidIdentityToken", 400), PermissionRefused),
    (refused_by_sts("AccessDenied", 403), PermissionRefused),
    (refused_by_sts("ValidationError", 400), PermissionRefused),
    (refused_by_sts("QueueDoesNotExist", 400), PermissionRefused),
    (refused_by_sts("404", 404), PermissionRefused),
    (boto.NoCredentialsError(), PermissionRefused),
    (refused_by_sts("IDPCommunicationError", 400), BrokerUnavailable),
    (refused_by_sts("Throttling", 400), BrokerUnavailable),
    (refused_by_sts("InternalFailure", 500), BrokerUnavailable),
    (boto.ReadTimeoutError(endpoint_url="sts"), BrokerUnavailable),
    (boto.ConnectionClosedError(endpoint_url="sts"), BrokerUnavailable),
]


@pytest.mark.parametrize(("error", "raised"), NO_CREDENTIALS)
def test_nothing_was_sent_where_there_are_no_credentials(
    script: ScriptedSqs, broker: AmazonSqs, error: Exception, raised: type[BrokerError]
) -> None:
    """The SDK raises what STS answered as if the send had failed; no message is to blame, and none is in doubt."""

    def fail() -> dict[str, str]:
        raise error

    broker.depth("orders")  # knows the queue's URL now
    get_credentials(broker, fail)
    nothing_sent = NothingSent if raised is BrokerUnavailable else raised
    with pytest.raises(nothing_sent, match="SendMessageBatch on queue orders"):
        broker.publish("orders", [outgoing(number=n) for n in range(30)])
    for ask in (
        lambda: broker.receive("orders", limit=1, wait=NO_WAIT, lease=LEASE),
        lambda: broker.settle("orders", ["r-1"]),
        lambda: broker.extend("orders", ["r-1"], LEASE),
    ):
        with pytest.raises(raised):
            ask()

    assert {operation for operation, _ in script.asked} <= {"GetQueueUrl", "GetQueueAttributes"}


def test_what_is_behind_credentials_that_ran_out_may_be_sent_later(script: ScriptedSqs, broker: AmazonSqs) -> None:
    def run_out(request: dict[str, list[dict[str, str]]]) -> dict[str, object]:
        def fail() -> dict[str, str]:
            raise refused_by_sts("InvalidIdentityToken", 400)

        get_credentials(broker, fail)
        return all_sent(request)

    script.then("SendMessageBatch", run_out)

    assert statuses(broker, "orders", 30) == ["sent"] * 10 + ["retry"] * 20


def test_credentials_that_come_late_are_waited_for(script: ScriptedSqs, broker: AmazonSqs) -> None:
    tries: list[int] = []

    def late() -> dict[str, str]:
        tries.append(1)
        if len(tries) < 3:
            raise refused_by_sts("InvalidIdentityToken", 400)
        return {"access_key": "a", "secret_key": "s", "token": "t", "expiry_time": "2099-01-01T00:00:00Z"}

    broker.depth("orders")
    get_credentials(broker, late)

    assert statuses(broker, "orders", 3) == ["sent"] * 3
    assert len(tries) == 3


def test_deletions_of_which_one_has_no_answer_are_not_said_to_be_refused(
    script: ScriptedSqs, broker: AmazonSqs
) -> None:
    """A refusal says that nothing was deleted."""
    script.then("DeleteMessageBatch", Refuse("AccessDenied", 403))
    script.always["DeleteMessageBatch"] = Drop()

    with pytest.raises(BrokerUnavailable):
        broker.settle("orders-dlq", [f"r-{number}" for number in range(20)])


def test_a_deletion_that_is_refused_when_it_is_made_again_may_have_been_done(
    script: ScriptedSqs, broker: AmazonSqs
) -> None:
    script.then("DeleteMessageBatch", Drop())
    script.always["DeleteMessageBatch"] = Refuse("AccessDenied", 403)

    with pytest.raises(BrokerUnavailable, match="AccessDenied"):
        broker.settle("orders-dlq", ["r-1"])
    with pytest.raises(PermissionRefused):
        broker.settle("orders-dlq", ["r-1"])


def test_what_is_too_large_for_a_proxy_is_found(script: ScriptedSqs, broker: AmazonSqs) -> None:
    def too_large(request: dict[str, list[dict[str, str]]]) -> dict[str, object] | Proxy:
        return Proxy(413) if any(e["MessageBody"] == "3" for e in request["Entries"]) else all_sent(request)

    script.always["SendMessageBatch"] = too_large  # type: ignore[assignment]

    assert statuses(broker, "orders", 5) == ["sent"] * 3 + ["refused", "sent"]


def test_one_message_that_spoils_a_whole_request_is_found(script: ScriptedSqs, broker: AmazonSqs) -> None:
    def refuse_seven(request: dict[str, list[dict[str, str]]]) -> dict[str, object] | Refuse:
        if any(entry["MessageBody"] == "7" for entry in request["Entries"]):
            return Refuse("InvalidMessageContents")
        return all_sent(request)

    script.always["SendMessageBatch"] = refuse_seven  # type: ignore[assignment]

    assert statuses(broker, "orders", 10) == ["sent"] * 7 + ["refused"] + ["sent"] * 2


def test_lost_permission_midway_is_told_without_forgetting_what_was_sent(
    script: ScriptedSqs, broker: AmazonSqs
) -> None:
    script.then("SendMessageBatch", all_sent)
    script.always["SendMessageBatch"] = Refuse("AccessDenied", 403)

    assert statuses(broker, "orders", 20) == ["sent"] * 10 + ["retry"] * 10


def test_an_error_for_all_is_raised(script: ScriptedSqs, broker: AmazonSqs) -> None:
    script.always["SendMessageBatch"] = Refuse("ExpiredToken", 403)

    with pytest.raises(PermissionRefused, match="SendMessageBatch on queue orders: ExpiredToken"):
        broker.publish("orders", [outgoing()])


@pytest.mark.parametrize(
    ("queue", "named"),
    [
        ("arn:aws:sqs:eu-west-1:000000000000:orders", "eu-west-1 (partition aws)"),
        ("arn:aws-cn:sqs:us-east-1:000000000000:orders", "us-east-1 (partition aws-cn)"),
        ("https://sqs.eu-west-1.amazonaws.com/000000000000/orders", "eu-west-1"),
        ("https://SQS.EU-WEST-1.amazonaws.com:443/000000000000/orders", "eu-west-1"),
        ("https://sqs-fips.us-west-2.amazonaws.com/000000000000/orders", "us-west-2"),
        ("https://sqs.eu-west-1.api.aws/000000000000/orders", "eu-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/000000000000/orders", "cn-north-1"),
        ("https://eu-west-1.queue.amazonaws.com/000000000000/orders", "eu-west-1"),
    ],
)
def test_a_queue_of_another_region_is_refused_before_anything_is_asked(
    script: ScriptedSqs, broker: AmazonSqs, queue: str, named: str
) -> None:
    """SQS would look for the name in the connection's region: another queue would be drained, or sent to."""
    asked = (
        lambda: broker.publish(queue, [outgoing()]),
        lambda: broker.receive(queue, limit=1, wait=NO_WAIT, lease=LEASE),
        lambda: broker.depth(queue),
        lambda: broker.describe(queue),
    )
    for ask in asked:
        with pytest.raises(PermissionRefused, match=f"queue {queue} is in region {re.escape(named)}.*to us-east-1"):
            ask()

    assert broker.requests.total() == 0


@pytest.mark.parametrize(
    "queue",
    [
        "arn:aws:sqs:us-east-1:000000000000:orders",
        "https://sqs.us-east-1.amazonaws.com/000000000000/orders",
        "https://queue.amazonaws.com/000000000000/orders",
        "https://vpce-0a-1b.sqs.eu-west-1.vpce.amazonaws.com/000000000000/orders",
        "http://sqs.eu-west-1.localhost.localstack.cloud:4566/000000000000/orders",
        "http://localhost:9324/000000000000/orders",
    ],
)
def test_a_queue_of_the_connections_region_and_a_host_that_tells_none_are_asked(
    script: ScriptedSqs, broker: AmazonSqs, queue: str
) -> None:
    assert statuses(broker, queue, 1) == ["sent"]


@pytest.mark.parametrize("queue", ["arn:aws:sns:us-east-1:000000000000:orders", "arn:aws:sqs:us-east-1:orders"])
def test_what_is_not_the_arn_of_a_queue_is_a_missing_queue(broker: AmazonSqs, queue: str) -> None:
    with pytest.raises(QueueMissing, match=f"queue {queue} is not the ARN of a queue"):
        broker.depth(queue)


@pytest.mark.parametrize("fault", [Drop(), Refuse("RequestThrottled")], ids=["unknown", "retry"])
def test_a_fifo_group_waits_behind_what_was_not_sent(
    script: ScriptedSqs, broker: AmazonSqs, fault: Drop | Refuse
) -> None:
    script.then("SendMessageBatch", *[fault] * (1 if isinstance(fault, Drop) else 8))
    messages = [outgoing(number=n, ordering_key="a" if n < 12 else "b") for n in range(14)]
    results = broker.publish("orders.fifo", messages)

    lost = "unknown" if isinstance(fault, Drop) else "retry"
    assert [r.status for r in results] == [lost] * 10 + ["retry"] * 2 + ["sent"] * 2


def test_a_trace_header_goes_back_as_system_attribute(script: ScriptedSqs, broker: AmazonSqs) -> None:
    script.then(
        "ReceiveMessage",
        {
            "Messages": [
                {
                    "MessageId": "m-1",
                    "ReceiptHandle": "r-1",
                    "Body": "x",
                    "Attributes": {
                        "AWSTraceHeader": "Root=1-5e1b4151",
                        "SentTimestamp": "1700000000123",
                        "ApproximateFirstReceiveTimestamp": "1700000001000",
                        "ApproximateReceiveCount": "6",
                        "DeadLetterQueueSourceArn": "arn:aws:sqs:eu-west-1:123456789012:orders",
                    },
                }
            ]
        },
    )
    [received] = broker.receive("orders-dlq", limit=1, wait=NO_WAIT, lease=LEASE)
    letter = received.letter
    broker.publish("orders", [outgoing(letter.body, properties=letter.properties)])

    assert (letter.origin, letter.deliveries) == ("orders", 6)
    assert letter.enqueued_at == 1_700_000_000_123_000
    assert letter.first_received_at == 1_700_000_001_000_000
    [request] = script.requests("SendMessageBatch")
    assert request["Entries"][0]["MessageSystemAttributes"] == {
        "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5e1b4151"}
    }


OURS, THEIRS = "000000000000", "111111111111"


@pytest.mark.parametrize(
    ("source", "account", "there", "origin"),
    [
        ("orders-dlq", OURS, True, "orders"),
        (f"arn:aws:sqs:us-east-1:{OURS}:orders-dlq", OURS, True, "orders"),
        (f"https://sqs.us-east-1.amazonaws.com/{OURS}/orders-dlq", OURS, True, "orders"),
        (f"arn:aws:sqs:us-east-1:{THEIRS}:orders-dlq", THEIRS, True, f"arn:aws:sqs:us-east-1:{THEIRS}:orders"),
        (f"arn:aws:sqs:us-east-1:{THEIRS}:orders-dlq", THEIRS, False, f"arn:aws:sqs:us-east-1:{THEIRS}:orders"),
        (
            f"https://sqs.us-east-1.amazonaws.com/{THEIRS}/orders-dlq",
            THEIRS,
            True,
            f"arn:aws:sqs:us-east-1:{THEIRS}:orders",
        ),
    ],
    ids=["name", "our ARN", "our URL", "their ARN", "their ARN alone", "their URL"],
)
def test_a_letter_of_another_account_goes_back_to_that_account(
    script: ScriptedSqs, broker: AmazonSqs, source: str, account: str, there: bool, origin: str
) -> None:
    """By its name alone the origin would be found in our own account, where a queue is often called so too."""

    def url(request: dict[str, str]) -> dict[str, str]:
        return {"QueueUrl": f"{script.url}/{request.get('QueueOwnerAWSAccountId', OURS)}/{request['QueueName']}"}

    script.always["GetQueueUrl"] = url
    failed_at = {"DeadLetterQueueSourceArn": f"arn:aws:sqs:us-east-1:{account}:orders"}
    found = {"MessageId": "m", "ReceiptHandle": "r", "Body": "x", "Attributes": failed_at}
    script.then("ReceiveMessage", {"Messages": [found, found]})
    if not there:
        script.then("GetQueueUrl", url, Refuse("AWS.SimpleQueueService.NonExistentQueue"))
    letters = [one.letter for one in broker.receive(source, limit=2, wait=NO_WAIT, lease=LEASE)]
    assert [one.origin for one in letters] == [origin, origin]

    broker.publish(origin, [outgoing()])
    [sent] = script.requests("SendMessageBatch")
    assert sent["QueueUrl"] == f"{script.url}/{account}/orders"


@pytest.mark.parametrize(
    ("queue", "origin", "leads"),
    [
        ("orders", "orders", True),
        (f"arn:aws:sqs:us-east-1:{THEIRS}:orders", "orders", True),
        (f"arn:aws:sqs:us-east-1:{THEIRS}:orders", f"arn:aws:sqs:us-east-1:{THEIRS}:orders", True),
        (f"https://sqs.us-east-1.amazonaws.com/{THEIRS}/orders", f"arn:aws:sqs:us-east-1:{THEIRS}:orders", True),
        (f"arn:aws:sqs:us-east-1:{OURS}:orders", f"arn:aws:sqs:us-east-1:{THEIRS}:orders", False),
        ("orders", f"arn:aws:sqs:us-east-1:{THEIRS}:orders", None),
        ("invoices", f"arn:aws:sqs:us-east-1:{THEIRS}:orders", False),
    ],
)
def test_what_fails_in_another_account_was_not_sent_to_ours(
    broker: AmazonSqs, queue: str, origin: str, leads: bool | None
) -> None:
    assert broker.leads_to(queue, origin) is leads


def test_half_a_surrogate_pair_is_kept_and_refused_on_the_way_back(script: ScriptedSqs, broker: AmazonSqs) -> None:
    script.then("ReceiveMessage", {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "\ud83d!"}]})
    [received] = broker.receive("orders-dlq", limit=1, wait=NO_WAIT, lease=LEASE)

    assert received.letter.body == b"\xed\xa0\xbd!"
    assert broker.publish("orders", [outgoing(received.letter.body)])[0].status == "refused"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"headers": (Header("a:b", "String", "v"),)}, "'a:b'"),
        ({"headers": (Header("AWS.trace", "String", "v"),)}, "'AWS.trace'"),
        ({"headers": (Header("a", "String", ""),)}, "attribute a is empty"),
        ({"headers": (Header("a", "String", "\x01"),)}, r"attribute a holds U\+0001"),
        ({"headers": (Header("a", "String", "1"), Header("a", "String", "2"))}, "same name"),
        ({"headers": (Header("a", "Binary", b"x" * MAX_BYTES),)}, f"at most {MAX_BYTES}"),
        ({"delay_seconds": 901}, "at most 900 s"),
    ],
    ids=["name", "reserved-name", "empty", "control-character", "twice", "size", "delay"],
)
def test_what_sqs_never_takes_is_refused_without_asking(
    script: ScriptedSqs, broker: AmazonSqs, fields: dict[str, object], words: str
) -> None:
    [result] = broker.publish("orders", [outgoing(**fields)])

    assert result.status == "refused"
    assert re.search(words, result.detail)
    assert script.requests("SendMessageBatch") == []


def test_a_delay_per_message_is_refused_on_a_fifo_queue(broker: AmazonSqs) -> None:
    assert statuses(broker, "orders.fifo", 1, delay_seconds=5, ordering_key="a") == ["refused"]


def test_another_brokers_header_types_become_strings(script: ScriptedSqs, broker: AmazonSqs) -> None:
    headers = (Header("a", "int", "7"), Header("b", "", "text"), Header("c", "", b"\x00"))
    broker.publish("orders", [outgoing(headers=headers)])

    [request] = script.requests("SendMessageBatch")
    kinds = {name: value["DataType"] for name, value in request["Entries"][0]["MessageAttributes"].items()}
    assert kinds == {"a": "String", "b": "String", "c": "Binary"}


def test_a_lease_is_asked_for_with_the_receive(script: ScriptedSqs, broker: AmazonSqs) -> None:
    broker.receive("orders-dlq", limit=5, wait=NO_WAIT, lease=timedelta(seconds=90))

    [request] = script.requests("ReceiveMessage")
    assert request["VisibilityTimeout"] == 90
    assert request["MaxNumberOfMessages"] == 5
    assert request["MessageSystemAttributeNames"] == ["All"]
    assert request["MessageAttributeNames"] == ["All"]


def test_messages_that_have_come_are_not_lost_to_a_later_error(script: ScriptedSqs, broker: AmazonSqs) -> None:
    ten = {"Messages": [{"MessageId": f"m-{n}", "ReceiptHandle": f"r-{n}", "Body": "x"} for n in range(10)]}
    script.then("ReceiveMessage", ten, Refuse("AccessDenied", 403))

    assert len(broker.receive("orders-dlq", limit=50, wait=NO_WAIT, lease=LEASE)) == 10


def test_with_as_many_bytes_as_have_room_no_more_is_asked_for(
    script: ScriptedSqs, broker: AmazonSqs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.brokers.sqs.receiving.RECEIVE_BYTES", 600)
    script.always["ReceiveMessage"] = {
        "Messages": [{"MessageId": f"m-{n}", "ReceiptHandle": f"r-{n}", "Body": "x" * 20} for n in range(10)]
    }

    assert len(broker.receive("orders-dlq.fifo", limit=1_000, wait=NO_WAIT, lease=LEASE)) == 30


def test_failed_deletes_are_repeated_if_they_may_pass(script: ScriptedSqs, broker: AmazonSqs) -> None:
    def partly(request: dict[str, list[dict[str, str]]]) -> dict[str, object]:
        ids = [entry["Id"] for entry in request["Entries"]]
        return {
            "Successful": [{"Id": i} for i in ids[2:]],
            "Failed": [
                {"Id": ids[0], "Code": "InternalError", "Message": "later", "SenderFault": False},
                {"Id": ids[1], "Code": "ReceiptHandleIsInvalid", "Message": "bad", "SenderFault": True},
            ],
        }

    script.then("DeleteMessageBatch", partly)
    settled = broker.settle("orders-dlq", [f"r-{n}" for n in range(10)])

    assert settled.count == 9
    assert settled.failures == (("r-1", "ReceiptHandleIsInvalid: bad"),)
    again = script.requests("DeleteMessageBatch")[1]
    assert [entry["ReceiptHandle"] for entry in again["Entries"]] == ["r-0"]


def test_what_is_deleted_after_its_lease_may_be_somebody_elses(script: ScriptedSqs) -> None:
    now = [100.0]
    broker = adapter(script.url, concurrency=1, monotonic=lambda: now[0])
    four = {"Messages": [{"MessageId": f"m-{n}", "ReceiptHandle": f"r-{n}", "Body": "x"} for n in range(4)]}
    script.then("ReceiveMessage", four)
    receipts = [one.receipt for one in broker.receive("orders-dlq", limit=4, wait=NO_WAIT, lease=timedelta(seconds=30))]
    now[0] += 20
    broker.extend("orders-dlq", receipts[:2], timedelta(seconds=30))
    broker.release("orders-dlq", receipts[3:])
    now[0] += 20
    settled = broker.settle("orders-dlq", receipts[:3])
    assert settled.count == 2
    assert settled.failures == (("r-2", "its lease ended before it was deleted: it may come again"),)
    broker.close()


@pytest.mark.parametrize("tries", [1, 2])
@pytest.mark.parametrize(("late_by", "count"), [(25, 0), (4, 1)], ids=["late", "in time"])
def test_a_lease_begins_before_the_answer_to_a_receive_has_come(
    script: ScriptedSqs, late_by: int, count: int, tries: int
) -> None:
    """On a slow link a lease may be over long before it would be, had it begun with the answer. It begins in the try
    that is answered, whenever an earlier one began."""
    now = [100.0]

    def wait(_: float) -> None:
        now[0] += 20

    def slowly(_: dict[str, object]) -> dict[str, object]:
        now[0] += late_by
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "x"}]}

    broker = adapter(script.url, concurrency=1, monotonic=lambda: now[0], sleep=wait)
    script.then("ReceiveMessage", *[Refuse("ServiceUnavailable", 503)] * (tries - 1), slowly)
    [one] = broker.receive("orders-dlq", limit=1, wait=NO_WAIT, lease=timedelta(seconds=30))
    now[0] += 20
    settled = broker.settle("orders-dlq", [one.receipt])

    assert settled.count == count
    assert len(script.requests("ReceiveMessage")) == tries
    broker.close()


def test_what_an_answer_does_not_name_is_not_deleted(script: ScriptedSqs, broker: AmazonSqs) -> None:
    script.then("DeleteMessageBatch", {"Successful": [{"Id": "0"}], "Failed": []}, {})
    assert broker.settle("orders-dlq", ["r-0", "r-1"]).count == 2, "asked for once more, and once more"
    assert [len(one["Entries"]) for one in script.requests("DeleteMessageBatch")] == [2, 1, 1]
    script.always["DeleteMessageBatch"] = {}
    settled = broker.settle("orders-dlq", ["r-2"])
    assert settled.count == 0
    assert settled.failures == (("r-2", "SQS said nothing about it"),)


@pytest.mark.parametrize("code", ["KMS.InvalidStateException", "KmsInvalidKeyUsage", "KMS.InvalidKeyUsageException"])
def test_a_key_that_can_not_be_used_now_is_the_queues_trouble_and_no_messages(
    script: ScriptedSqs, broker: AmazonSqs, code: str
) -> None:
    script.always["SendMessageBatch"] = Refuse(code)
    with pytest.raises(PermissionRefused, match=re.escape(code)):
        statuses(broker, "orders", 20)
    script.always["SendMessageBatch"] = lambda request: {
        "Failed": [{"Id": e["Id"], "Code": code, "Message": "", "SenderFault": True} for e in request["Entries"]]
    }
    assert set(statuses(broker, "orders", 5)) == {"retry"}


def test_a_batch_that_can_not_be_deleted_does_not_hide_the_others(script: ScriptedSqs, broker: AmazonSqs) -> None:
    script.then("DeleteMessageBatch", all_sent)
    script.always["DeleteMessageBatch"] = Refuse("RequestThrottled")
    settled = broker.settle("orders-dlq", [f"r-{n}" for n in range(20)])

    assert settled.count == 10
    assert {receipt for receipt, _ in settled.failures} == {f"r-{n}" for n in range(10, 20)}


def test_an_idempotent_call_is_repeated_and_then_given_up(script: ScriptedSqs, broker: AmazonSqs) -> None:
    names = (
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    )
    told = {"Attributes": dict.fromkeys(names, "2")}
    script.then("GetQueueAttributes", Drop(), Refuse("InternalFailure", 500), Refuse("RequestThrottled"), told)
    assert broker.depth("orders").total == 6

    script.always["GetQueueAttributes"] = Refuse("RequestThrottled")
    with pytest.raises(BrokerUnavailable, match="GetQueueAttributes on queue orders: RequestThrottled"):
        broker.depth("orders")


@pytest.mark.parametrize("code", ["QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"])
def test_both_names_of_a_missing_queue_are_known(script: ScriptedSqs, broker: AmazonSqs, code: str) -> None:
    script.always["GetQueueUrl"] = Refuse(code)

    with pytest.raises(QueueMissing, match="GetQueueUrl on queue orders"):
        broker.depth("orders")


def test_lease_and_deliveries_come_from_the_queues_that_dead_letter_here(
    script: ScriptedSqs, broker: AmazonSqs
) -> None:
    feeding = {
        "a": {"RedrivePolicy": '{"maxReceiveCount": "5"}', "VisibilityTimeout": "900"},
        "b": {"RedrivePolicy": '{"maxReceiveCount": 3}', "VisibilityTimeout": "60"},
    }
    script.always["ListDeadLetterSourceQueues"] = {"queueUrls": [f"{script.url}/0/{name}" for name in feeding]}
    script.always["GetQueueAttributes"] = lambda request: {
        "Attributes": feeding.get(request["QueueUrl"][-1], {"VisibilityTimeout": "30"})
    }
    told = broker.describe("orders-dlq")

    assert (told.max_deliveries, told.lease, told.origin_lease) == (3, timedelta(seconds=30), timedelta(minutes=15))
    assert told.origins == ((timedelta(minutes=15), 5), (timedelta(minutes=1), 3))
    assert broker.requests == {"GetQueueUrl": 1, "GetQueueAttributes": 3, "ListDeadLetterSourceQueues": 1}


def test_where_the_origins_may_not_be_listed_no_lease_of_theirs_is_told(script: ScriptedSqs, broker: AmazonSqs) -> None:
    script.always["ListDeadLetterSourceQueues"] = Refuse("AccessDenied")
    script.always["GetQueueAttributes"] = {"Attributes": {"VisibilityTimeout": "30"}}
    told = broker.describe("orders-dlq")

    assert (told.max_deliveries, told.lease, told.origin_lease, told.origins) == (None, timedelta(seconds=30), None, ())


def test_every_request_is_counted(script: ScriptedSqs, broker: AmazonSqs) -> None:
    script.then("GetQueueAttributes", Refuse("RequestThrottled"))
    broker.depth("orders")

    assert broker.requests == {"GetQueueUrl": 1, "GetQueueAttributes": 2}


def test_fifo_queues_can_do_other_things_than_standard_ones(broker: AmazonSqs) -> None:
    assert broker.capabilities_for("orders").native_dedupe is None
    assert broker.capabilities_for("orders").native_delay == timedelta(minutes=15)
    assert broker.capabilities_for("orders.fifo").native_dedupe == timedelta(minutes=5)
    assert broker.capabilities_for("orders.fifo").native_delay is None


def test_no_credentials_at_all_is_a_refusal(script: ScriptedSqs) -> None:
    value = json.dumps({"conn_type": "aws", "extra": {"region_name": "us-east-1", "endpoint_url": script.url}})
    broker = AmazonSqs.open("sqs_test", env={"AIRFLOW_CONN_SQS_TEST": value})

    with pytest.raises(PermissionRefused, match="GetQueueUrl on queue orders: Unable to locate credentials"):
        broker.depth("orders")
    broker.close()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (json.dumps({"conn_type": "postgres"}), "'postgres', not aws"),
        (json.dumps({"conn_type": "aws", "login": "a", "password": "b"}), "region_name"),
        (connection("no url"), "no url"),
        (connection("http://127.0.0.1:1", profile_name="no-such-profile"), "no-such-profile"),
    ],
    ids=["type", "region", "endpoint", "profile"],
)
def test_a_wrong_connection_says_what_is_wrong(value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(SettingsError, match=f"connection sqs_test.*{words}"):
        AmazonSqs.open("sqs_test", env={"AIRFLOW_CONN_SQS_TEST": value})


# --- deduplication ids and failure attributes --------------------------------------------------------------


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_producers_deduplication_id_is_never_sent_again(script: ScriptedSqs, broker: AmazonSqs, attempt: int) -> None:
    kept = (("MessageDeduplicationId", "order-17"),)
    broker.publish("orders.fifo", [outgoing(properties=kept, claimed_at=7)._replace(attempt=attempt)])

    [made] = script.requests("SendMessageBatch")[0]["Entries"]
    assert made["MessageDeduplicationId"] == f"k3v9q2-00000000000001.{attempt}.7"


def test_an_id_from_outside_makes_no_request_that_sqs_refuses(script: ScriptedSqs, broker: AmazonSqs) -> None:
    broker.publish("orders.fifo", [outgoing()._replace(redrive_id="not plain, größer")])

    [made] = script.requests("SendMessageBatch")[0]["Entries"]
    for name in ("MessageDeduplicationId", "MessageGroupId"):
        assert re.fullmatch(r"[!-~]{1,128}", made[name])


def test_failure_attributes_go_and_business_attributes_stay() -> None:
    business = (Header("RequestID", "String", "req-7"), Header("error", "String", "budget overrun"))
    failed = (Header("ErrorCode", "Number", "200"), Header("ERROR_MESSAGE", "String", "boom"))

    cleaned = clean_headers([*business, *failed, *tracking_headers("r-1", 1)], FAILURE_HEADERS)
    assert cleaned == business
