"""A stand-in for Google Pub/Sub: its gRPC protocol on loopback, for the official client library.

It is not Google's software and proves nothing about Google's service beyond what is documented. It serves the unary
calls that a subscriber, a publisher and an operator make, StreamingPull, and one call of Cloud Monitoring. It has
leases that end, stale ack ids that are ignored, exactly-once's results per id, ordering keys, delivery attempts,
dead-letter forwarding with the ``CloudPubSubDeadLetterSource…`` attributes and a new id, retry policies, simple
filters, the form of names, the limits of a publish request, and faults on demand
(:class:`~tests.stand_ins.pubsub_topics.Faults`).

It does not do: push, schemas, snapshots and seek, message retention (nothing expires), IAM beyond a list of
forbidden names, several regions, quotas, detached subscriptions, updates of settings. Real Pub/Sub also redelivers
now and then without reason, may dead-letter early, and answers a pull with fewer messages than there are.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, Self

import grpc
from google.cloud.monitoring_v3 import types as monitoring
from google.protobuf import any_pb2, empty_pb2
from google.pubsub_v1 import types
from google.rpc import error_details_pb2, status_pb2

from tests.stand_ins.pubsub_topics import Refusal, World

#: How long a pull waits for the first message, unless its caller is less patient.
PATIENCE = 20.0
#: How often a waiting pull looks at leases that may have ended.
LOOK_AGAIN = 0.02

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 1),
)


class PubSubServer:
    """Serves a :class:`World` on loopback: ``with PubSubServer(world) as server``; ``server.endpoint`` is host:port.

    :meth:`restart` cuts all connections and begins again on the same port; the world stays, as in the service.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.port = 0
        self._server: grpc.Server | None = None
        self._stopping = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        self._stopping = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(32, thread_name_prefix="pubsub"), options=_OPTIONS)
        self._server.add_generic_rpc_handlers(_services(self))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()
        return self

    def stop(self) -> None:
        """Cut all connections; what was not answered stays unanswered."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop(0)
            with self.world.changed:
                self.world.changed.notify_all()
            self._server = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- calls ----------------------------------------------------------------------------------------

    def answer(self, method: str, work: Callable[[Any], Any], request: Any, context: grpc.ServicerContext) -> Any:
        """Do ``work``, unless a fault is due; a :class:`Refusal` becomes the call's status."""
        world = self.world
        try:
            self._faults_before(method, _resource(request))
            done = work(request)
        except Refusal as refusal:
            _refuse(context, refusal)
        if world.faults.lost_answers[method] > 0:
            world.faults.lost_answers[method] -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "injected: the answer was lost")
        if world.faults.hang[method] > 0:
            world.faults.hang[method] -= 1
            while context.is_active():
                time.sleep(LOOK_AGAIN)
        time.sleep(world.faults.slow.get(method, 0))
        return done

    def _faults_before(self, method: str, resource: str) -> None:
        world = self.world
        with world.changed:
            world.requests[method] += 1
            faults = world.faults
            before = faults.before
            refusals = faults.refuse.get(method)
            refusal = refusals.pop(0) if refusals else None
        if before is not None:
            before(method, resource)
        if refusal is not None:
            raise refusal
        if resource.rpartition("/")[2] in faults.forbidden:
            raise Refusal("PERMISSION_DENIED", f"User not authorized to perform this action on {resource}.")

    def pull(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Wait for at least one message, as long as the caller does."""
        patience = min(PATIENCE, (context.time_remaining() or PATIENCE) - 0.01)
        deadline = time.monotonic() + (0 if request.return_immediately else patience)
        while True:
            got = self.world.pull(request.subscription, request.max_messages)
            if got or time.monotonic() >= deadline or not context.is_active() or self._stopping.is_set():
                return types.PullResponse.pb()(received_messages=got)
            with self.world.changed:
                self.world.changed.wait(LOOK_AGAIN)

    def streaming_pull(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Messages as they come, no more at a time than the stream asked for; acks come with the requests."""
        try:
            first = next(requests)
            self._faults_before("StreamingPull", first.subscription)
            self.world.subscription(first.subscription)
        except Refusal as refusal:
            _refuse(context, refusal)
        stream, answers = object(), []
        reading = threading.Thread(target=self._read, args=(first, requests, answers), daemon=True)
        reading.start()
        most = first.max_outstanding_messages or 1_000
        while context.is_active() and not self._stopping.is_set():
            room = most - self.world.held_by(first.subscription, stream)
            got = (
                self.world.pull(
                    first.subscription, min(room, 100), deadline=first.stream_ack_deadline_seconds, stream=stream
                )
                if room > 0
                else []
            )
            if got or answers:
                settings = self.world.subscription(first.subscription).settings
                response = answers.pop(0) if answers else types.StreamingPullResponse.pb()()
                response.received_messages.extend(got)
                response.subscription_properties.exactly_once_delivery_enabled = settings.enable_exactly_once_delivery
                response.subscription_properties.message_ordering_enabled = settings.enable_message_ordering
                yield response
            else:
                with self.world.changed:
                    self.world.changed.wait(LOOK_AGAIN)
        context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was cut")

    def _read(self, first: Any, requests: Iterator[Any], answers: list[Any]) -> None:
        name = first.subscription
        try:
            for request in requests:
                response = types.StreamingPullResponse.pb()()
                acknowledged = response.acknowledge_confirmation
                if request.ack_ids:
                    done, stale = _tried(lambda ids: self.world.acknowledge(name, ids), request.ack_ids)
                    acknowledged.ack_ids.extend(done)
                    acknowledged.invalid_ack_ids.extend(stale)
                for ack_id, seconds in zip(
                    request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True
                ):
                    done, stale = _tried(lambda ids, s=seconds: self.world.modify_deadline(name, ids, s), [ack_id])
                    response.modify_ack_deadline_confirmation.ack_ids.extend(done)
                    response.modify_ack_deadline_confirmation.invalid_ack_ids.extend(stale)
                answers.append(response)
        except grpc.RpcError:
            pass  # the stream was cut


def _tried(work: Callable[[list[str]], None], ids: Any) -> tuple[list[str], list[str]]:
    try:
        work(list(ids))
    except Refusal as refusal:
        return [i for i in ids if i not in refusal.ids], list(refusal.ids)
    return list(ids), []


def _resource(request: Any) -> str:
    """The topic or subscription that a request is about (a new subscription names its topic too)."""
    names = ("name",) if request.DESCRIPTOR.name == "Subscription" else ("topic", "subscription", "name", "project")
    return next((str(getattr(request, n)) for n in names if n in request.DESCRIPTOR.fields_by_name), "")


def _refuse(context: grpc.ServicerContext, refusal: Refusal) -> None:
    code = grpc.StatusCode[refusal.status]
    if refusal.ids:
        details = any_pb2.Any()
        details.Pack(error_details_pb2.ErrorInfo(reason="ACK_FAILURES", metadata=refusal.ids))
        status = status_pb2.Status(code=code.value[0], message=refusal.text, details=[details])
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, refusal.text)


def _services(server: PubSubServer) -> tuple[grpc.GenericRpcHandler, ...]:
    world = server.world

    def publish(request: Any) -> Any:
        return types.PublishResponse.pb()(message_ids=world.publish(request.topic, request.messages))

    def readers(request: Any) -> Any:
        return types.ListTopicSubscriptionsResponse.pb()(subscriptions=world.readers(request.topic))

    def subscriptions(request: Any) -> Any:
        own = [s.settings for s in world.subscriptions.values() if s.name.startswith(f"{request.project}/")]
        return types.ListSubscriptionsResponse.pb()(subscriptions=own)

    def acknowledge(request: Any) -> Any:
        world.acknowledge(request.subscription, request.ack_ids)
        return empty_pb2.Empty()

    def modify_deadline(request: Any) -> Any:
        world.modify_deadline(request.subscription, request.ack_ids, request.ack_deadline_seconds)
        return empty_pb2.Empty()

    def delete_topic(request: Any) -> Any:
        world.delete_topic(request.topic)
        return empty_pb2.Empty()

    def delete_subscription(request: Any) -> Any:
        world.delete_subscription(request.subscription)
        return empty_pb2.Empty()

    def unary(method: str, request: Any, work: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            lambda message, context: server.answer(method, work, message, context),
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    publisher = {
        "CreateTopic": (types.Topic, world.create_topic),
        "GetTopic": (types.GetTopicRequest, lambda request: world.topic(request.topic)),
        "DeleteTopic": (types.DeleteTopicRequest, delete_topic),
        "ListTopicSubscriptions": (types.ListTopicSubscriptionsRequest, readers),
        "Publish": (types.PublishRequest, publish),
    }
    subscriber = {
        "CreateSubscription": (types.Subscription, world.create_subscription),
        "GetSubscription": (
            types.GetSubscriptionRequest,
            lambda request: world.subscription(request.subscription).settings,
        ),
        "ListSubscriptions": (types.ListSubscriptionsRequest, subscriptions),
        "DeleteSubscription": (types.DeleteSubscriptionRequest, delete_subscription),
        "Acknowledge": (types.AcknowledgeRequest, acknowledge),
        "ModifyAckDeadline": (types.ModifyAckDeadlineRequest, modify_deadline),
    }
    pull = grpc.unary_unary_rpc_method_handler(
        lambda request, context: server.answer("Pull", lambda r: server.pull(r, context), request, context),
        request_deserializer=types.PullRequest.pb().FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    streaming_pull = grpc.stream_stream_rpc_method_handler(
        server.streaming_pull,
        request_deserializer=types.StreamingPullRequest.pb().FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    time_series = unary(
        "ListTimeSeries", monitoring.ListTimeSeriesRequest.pb(), lambda request: _time_series(world, request)
    )
    made = {
        "google.pubsub.v1.Publisher": {name: unary(name, r.pb(), work) for name, (r, work) in publisher.items()},
        "google.pubsub.v1.Subscriber": {name: unary(name, r.pb(), work) for name, (r, work) in subscriber.items()}
        | {"Pull": pull, "StreamingPull": streaming_pull},
        "google.monitoring.v3.MetricService": {"ListTimeSeries": time_series},
    }
    return tuple(grpc.method_handlers_generic_handler(name, handlers) for name, handlers in made.items())


def _time_series(world: World, request: Any) -> Any:
    """``num_undelivered_messages`` of the subscriptions that the filter names; other metrics are empty."""
    answer = monitoring.ListTimeSeriesResponse.pb()()
    if "num_undelivered_messages" not in request.filter:
        return answer
    project = request.name
    for name in list(world.subscriptions):
        short = name.rpartition("/")[2]
        if f'"{short}"' not in request.filter or not name.startswith(f"{project}/"):
            continue
        point = world.undelivered(name)
        if point is None or not request.interval.start_time.ToSeconds() <= point[0]:
            continue
        series = answer.time_series.add()
        series.resource.labels["subscription_id"] = short
        added = series.points.add()
        added.interval.end_time.FromMicroseconds(round(point[0] * 1e6))
        added.value.int64_value = point[1]
    return answer


def main() -> None:
    """Serve an empty world on ``$PORT`` (8085) until interrupted: to try things by hand."""
    server = PubSubServer(World())
    server.port = int(os.environ.get("PORT", "8085"))
    with server:
        print(f"PUBSUB_EMULATOR_HOST={server.endpoint}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
