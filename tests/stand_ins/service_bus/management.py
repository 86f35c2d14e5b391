"""Requests and responses: tokens (``$cbs``) and what an entity's ``$management`` node does."""

import base64
import hashlib
import hmac
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from tests.stand_ins.service_bus import codec
from tests.stand_ins.service_bus.broker import DEFERRED, SCHEDULED, Entity, Message, Refused, Topic
from tests.stand_ins.service_bus.codec import Array, Int, Long, Symbol, Timestamp, section

if TYPE_CHECKING:
    from tests.stand_ins.service_bus.connection import Connection, Link

OK, NO_CONTENT, UNAUTHORIZED, NOT_FOUND, GONE = 200, 204, 401, 404, 410
_STATUS = {
    "com.microsoft:message-lock-lost": GONE,
    "com.microsoft:session-lock-lost": GONE,
    "amqp:unauthorized-access": UNAUTHORIZED,
    "amqp:not-found": NOT_FOUND,
    "com.microsoft:message-not-found": NOT_FOUND,
}


def answer(connection: "Connection", link: "Link", content: bytes) -> None:
    """Do what the request says and respond over the other link of the pair."""
    parts = {one.code: one.value for one in codec.sections(content)}
    request_id = parts[codec.PROPERTIES][0]
    application = parts.get(codec.APPLICATION_PROPERTIES, {})
    status, body, condition, text = OK, {}, None, "OK"
    try:
        if link.path == "$cbs":
            _put_token(connection, application, parts[codec.VALUE])
        else:
            path = link.path[: -len("/$management")]
            status, body = _manage(connection, path, application, parts[codec.VALUE] or {})
    except Refused as refused:
        status, condition, text = _STATUS.get(refused.condition, 400), refused.condition, str(refused)
    # CBS and $management call the same thing by different names.
    told: dict[str, Any] = {
        "status-code": Int(status),
        "statusCode": Int(status),
        "status-description": text,
        "statusDescription": text,
    }
    if condition:
        told["errorCondition"] = told["error-condition"] = Symbol(condition)
    response = b"".join(
        [
            section(codec.PROPERTIES, [None, None, None, None, None, request_id]),
            section(codec.APPLICATION_PROPERTIES, told),
            section(codec.VALUE, body),
        ]
    )
    for other in link.session.links.values():
        if other.client_receives and other.path == link.path:
            connection.respond(other, response)


# --- tokens --------------------------------------------------------------------------------------------------


def rights_of(token: str, keys: dict[str, tuple[str, frozenset[str]]]) -> frozenset[str]:
    """The rights that a shared access signature gives; raises Refused where it is not one of ours."""
    signature = token.partition(" ")[2]
    fields = {key: values[0] for key, values in parse_qs(signature, keep_blank_values=True).items()}
    # What is signed is the resource as it is written in the token, quoted.
    resource = next((part[3:] for part in signature.split("&") if part.startswith("sr=")), "")
    name = fields.get("skn", "")
    secret, rights = keys.get(name, ("", frozenset()))
    made = hmac.new(secret.encode(), f"{resource}\n{fields.get('se', '')}".encode(), hashlib.sha256).digest()
    given = fields.get("sig", "")
    if name not in keys or not hmac.compare_digest(base64.b64encode(made).decode(), given):
        raise Refused("amqp:unauthorized-access", "InvalidSignature: The token has an invalid signature.")
    return rights


def _put_token(connection: "Connection", application: dict[str, Any], token: str) -> None:
    audience = str(application.get("name", ""))
    connection.claims[audience] = rights_of(token, connection.server.keys)


# --- management ------------------------------------------------------------------------------------------------


def _manage(
    connection: "Connection", path: str, application: dict[str, Any], body: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    operation = str(application["operation"]).rpartition(":")[2]
    server = connection.server
    connection.authorize(path, "Send" if "schedule" in operation else "Listen")
    server.fail(operation, path)
    server.operations[operation] += 1
    if operation == "schedule-message":
        target = server.world.target(path)
        messages = [Message(bytes(one["message"])) for one in body["messages"]]
        for message in messages:
            target.check(message)
        return OK, {"sequence-numbers": Array(Long(target.enqueue(message)) for message in messages)}
    topic = server.world.topic(path)
    if operation == "peek-message" and topic is not None:
        return _peek_topic(topic, body)
    return _OPERATIONS[operation](server.world.entity(path), body)


def _peek(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    found = entity.browse(body["from-sequence-number"], body["message-count"], body.get("session-id"))
    return (OK if found else NO_CONTENT), {"messages": [{"message": message.encode()} for message in found]}


def _peek_topic(topic: Topic, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """As the service does it (Azure/azure-service-bus#352): a topic shows what it keeps for later, and lets nobody
    receive. Here each subscription has a copy of it."""
    kept = [[m for m in one.messages.values() if m.state == SCHEDULED] for one in topic.subscriptions]
    found = [m for m in max(kept, key=len, default=[]) if m.sequence >= body["from-sequence-number"]]
    shown = sorted(found, key=lambda message: message.sequence)[: body["message-count"]]
    return (OK if shown else NO_CONTENT), {"messages": [{"message": message.encode()} for message in shown]}


def _renew_lock(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    tokens = body["lock-tokens"]
    for token in tokens:  # all or none
        entity.locked(token)
    return OK, {"expirations": Array(Timestamp(entity.renew(token) * 1000) for token in tokens)}


def _renew_session_lock(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return OK, {"expiration": Timestamp(entity.renew_session(body["session-id"]) * 1000)}


def _cancel_scheduled(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    for number in body["sequence-numbers"]:
        message = entity.messages.get(number)
        if message is not None and message.state == SCHEDULED:
            entity.remove(message)
    return OK, {}


def _update_disposition(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    messages = [entity.locked(token) for token in body["lock-tokens"]]
    for message in messages:
        match body["disposition-status"]:
            case "completed":
                entity.remove(message)
            case "abandoned":
                entity.abandon(message)
            case "suspended":
                entity.dead_letter(message, body.get("deadletter-reason"), body.get("deadletter-description"))
            case "defered":
                entity.defer(message)
    return OK, {}


def _receive_deferred(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    found = [entity.messages.get(number) for number in body["sequence-numbers"]]
    deferred = [message for message in found if message is not None and message.state == DEFERRED]
    if not deferred:
        raise Refused("com.microsoft:message-not-found", "No such deferred message.")
    answers = []
    for message in deferred:
        token: uuid.UUID = entity.lock(message).token
        answers.append({"message": message.encode(), "lock-token": token})
    return OK, {"messages": answers}


def _sessions(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    names = sorted({message.session for message in entity.messages.values() if message.session})
    return (OK, {"skip": Int(0), "sessions-ids": Array(names)}) if names else (NO_CONTENT, {})


def _set_state(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    entity.session_states[body["session-id"]] = body.get("session-state")
    return OK, {}


def _get_state(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return OK, {"session-state": entity.session_states.get(body["session-id"])}


_OPERATIONS = {
    "peek-message": _peek,
    "renew-lock": _renew_lock,
    "renew-session-lock": _renew_session_lock,
    "cancel-scheduled-message": _cancel_scheduled,
    "update-disposition": _update_disposition,
    "receive-by-sequence-number": _receive_deferred,
    "get-message-sessions": _sessions,
    "set-session-state": _set_state,
    "get-session-state": _get_state,
}
