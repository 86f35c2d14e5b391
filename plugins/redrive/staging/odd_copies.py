"""Copies that can't be staged as they came, since a value in them is none that the broker's protocol allows."""

from typing import Any

from redrive.message import FIRST_MOMENT, LAST_MOMENT, DeadLetter, Header

#: A property of a copy that could not be staged as it came: it names what was changed.
CHANGED = "redrive-staged-without"
_MOST_DELIVERIES = 2**31 - 1
_RAW = bytes | bytearray | memoryview


def as_far_as_possible(letter: DeadLetter) -> DeadLetter:
    """The copy with every value in a form that can be staged: the body byte for byte, numbers and times within their
    bounds, texts as texts that UTF-8 can hold; what had to be changed is named in a property."""
    changed: list[str] = []

    def kept(name: str, before: Any, after: Any) -> Any:
        if after != before or type(after) is not type(before):
            changed.append(name)
        return after

    def text(name: str, value: Any) -> Any:
        return kept(name, value, None if value is None else _text(value))

    def moment(name: str) -> Any:
        value = getattr(letter, name)
        fits = type(value) is int and FIRST_MOMENT <= value <= LAST_MOMENT
        return kept(name, value, value if fits else None)

    headers = [
        Header(_text(name), _text(kind), _bytes(value) if isinstance(value, _RAW) else _text(value))
        for name, kind, value in _each(letter.headers, 3)
    ]
    if tuple(headers) != letter.headers:
        changed.append("headers")
    properties = [(_text(name), _text(value)) for name, value in _each(letter.properties, 2)]
    if tuple(properties) != letter.properties:
        changed.append("properties")
    deliveries = int(letter.deliveries) if isinstance(letter.deliveries, int) else 0
    whole = letter._replace(
        broker_message_id=kept("broker_message_id", letter.broker_message_id, _text(letter.broker_message_id)),
        body=kept("body", letter.body, letter.body if isinstance(letter.body, bytes) else _bytes(letter.body)),
        headers=tuple(headers),
        enqueued_at=moment("enqueued_at"),
        dead_lettered_at=moment("dead_lettered_at"),
        first_received_at=moment("first_received_at"),
        deliveries=kept("deliveries", letter.deliveries, max(0, min(deliveries, _MOST_DELIVERIES))),
        origin=text("origin", letter.origin),
        ordering_key=text("ordering_key", letter.ordering_key),
        content_type=text("content_type", letter.content_type),
        reason=text("reason", letter.reason),
        description=text("description", letter.description),
        redelivered=kept("redelivered", letter.redelivered, bool(letter.redelivered)),
    )
    named = ((CHANGED, ", ".join(dict.fromkeys(changed))),) if changed else ()
    return whole._replace(properties=(*properties, *named))


def _each(values: Any, width: int) -> list[tuple[Any, ...]]:
    """Those of ``values`` that have so many parts."""
    those = values if isinstance(values, tuple | list) else ()
    return [tuple(one) for one in those if isinstance(one, tuple | list) and len(one) == width]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        text = "" if value is None else str(value)
    except Exception:  # whatever an object from outside says of itself
        text = f"<{type(value).__name__}>"
    return str.encode(text, "utf-8", "replace").decode("utf-8")


def _bytes(value: Any) -> bytes:
    if isinstance(value, _RAW):
        return bytes(value)
    return (value if isinstance(value, str) else _text(value)).encode("utf-8", "surrogatepass")
