"""What a person corrects of a message, its body and its headers, and why that could not be sent.

Headers are corrected by name, in JSON: ``{"tenant": "blue", "trace": null, "retries": ["Number", "3"]}`` gives
``tenant`` another value of the type that it had (text, where it is new), leaves ``trace`` out, and gives ``retries``
this type. What isn't named goes as it is, so what is masked or binary is never touched by chance. All of it is checked
when it is said: nobody learns minutes later that the broker won't take it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Never
from xml.parsers import expat

from redrive import body_schemas
from redrive.brokers.base import BrokerKind
from redrive.message import TRACKING_HEADERS, Header
from redrive.redaction import MASKED

#: Every header that begins so is ours.
OUR_HEADERS = "x-redrive"
#: Marks an edited copy for its consumer.
EDITED_HEADER = "x-redrive-edited"
_NEW_TYPE = "String"
_MAX_CHANGES = 1_000


class NewValue(NamedTuple):
    """What a header is to be; ``type`` None: as it was."""

    type: str | None
    value: str


#: By name; None: the message goes without it.
HeaderChanges = Mapping[str, NewValue | None]


class Correction(NamedTuple):
    """What a person wants of one message; None: as it is."""

    body: str | None
    headers: str | None  # JSON, as the ledger keeps it


class Original(NamedTuple):
    """What a correction takes the place of."""

    payload: str | None  # None if it is no text
    content_type: str | None
    is_binary: bool
    headers: str | None = None  # as the review table has them: JSON [[name, type, text], …]
    size_bytes: int = 0  # of the body


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may go out on a route."""

    kind: BrokerKind | None = None  # None: not known, so nothing of a broker is checked
    not_sent: frozenset[str] = frozenset()  # headers that no redelivery carries
    schema: Mapping[str, Any] | Path | None = None  # of the body


def read_changes(text: str) -> dict[str, NewValue | None]:
    """Changes of headers as they are kept. Raises ValueError, with a sentence, for anything else."""
    try:
        found = json.loads(text, object_pairs_hook=_pairs)
    except RecursionError:
        raise ValueError("corrected_headers is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"corrected_headers is not JSON: {error}") from None
    if not isinstance(found, dict) or len(found) > _MAX_CHANGES:
        raise ValueError('corrected_headers has to be an object: {"name": "value", "gone": null}')
    return {name: _change(name, value) for name, value in found.items()}


def changed(headers: Iterable[Header], changes: HeaderChanges) -> tuple[Header, ...]:
    """``headers`` with the changes: in their order, what is new at the end."""
    kept, seen = [], set()
    for header in headers:
        seen.add(header.name)
        if header.name not in changes:
            kept.append(header)
        elif (new := changes[header.name]) is not None:
            kept.append(Header(header.name, new.type or header.type, new.value))
    added = [(name, new) for name, new in changes.items() if new is not None and name not in seen]
    return (*kept, *(Header(name, new.type or _NEW_TYPE, new.value) for name, new in added))


def business(headers: Iterable[Header], bounds: Bounds) -> tuple[Header, ...]:
    """The headers that a person may correct: without ours, and without those that no redelivery carries."""
    return tuple(one for one in headers if not (_is_ours(one.name) or one.name in bounds.not_sent))


def stored_headers(stored: str | None) -> tuple[Header, ...]:
    """Headers as the review table has them; none where they can't be read."""
    try:
        return tuple(Header(str(name), str(kind), str(value)) for name, kind, value in json.loads(stored or "[]"))
    except (ValueError, TypeError, RecursionError):
        return ()


def objection(correction: Correction, original: Original, bounds: Bounds) -> str | None:
    """Why the correction can't take the place of the original; None when it can."""
    body, headers = correction
    if body is None and headers is None:
        return "neither corrected_body nor corrected_headers says what to correct"
    if body is not None and (problem := _objection_to_body(body, original)):
        return problem
    if body is not None and bounds.schema is not None and (problem := _against_schema(body, bounds.schema)):
        return problem
    try:
        changes = read_changes(headers) if headers is not None else {}
    except ValueError as error:
        return str(error)
    was = business(stored_headers(original.headers), bounds)
    if problem := _objection_to_changes(changes, was, bounds):
        return problem
    return _objection_of_broker(body, changed(was, changes), original, bounds.kind)


# --- headers -----------------------------------------------------------------------------------------------


def _pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
    times = Counter(name for name, _ in found)
    if twice := next((name for name, count in times.items() if count > 1), None):
        raise ValueError(f"corrected_headers names {twice[:100]!r} twice")
    return dict(found)


def _change(name: str, value: object) -> NewValue | None:
    match value:
        case None:
            return None
        case str():
            return NewValue(None, value)
        case [str() as kind, str() as text] if kind:
            return NewValue(kind, text)
    raise ValueError(f'header {name[:100]!r}: its value is a text, null (without it), or ["type", "text"]')


def _is_ours(name: str) -> bool:
    return name in TRACKING_HEADERS or name.lower().startswith(OUR_HEADERS)


def _objection_to_changes(changes: HeaderChanges, was: Iterable[Header], bounds: Bounds) -> str | None:
    before = {one.name: one.value for one in was}
    for name, new in changes.items():
        shown = repr(name[:100])
        if not name:
            return "a header has to have a name"
        if _is_ours(name):
            return f"header {shown} is written by Redrive alone"
        if name in bounds.not_sent:
            return f"header {shown} says why the message failed before: no redelivery carries it"
        if new is None:
            continue
        try:
            f"{name}{new.type or ''}{new.value}".encode()
        except UnicodeEncodeError:
            return f"header {shown} holds half of a character (a surrogate), which can't be sent"
        if MASKED.search(new.value) and not MASKED.search(str(before.get(name, ""))):
            return f"header {shown} holds [redacted]: it was copied from where it is masked"
    return None


def _objection_of_broker(
    body: str | None, headers: tuple[Header, ...], original: Original, kind: BrokerKind | None
) -> str | None:
    if kind is None:
        return None
    most, bytes_at_most = kind.capabilities.max_headers, kind.capabilities.max_message_bytes
    if most is not None and len(headers) > most:
        return f"{len(headers)} headers, the last of them {headers[-1].name[:100]!r}; {kind.title} takes at most {most}"
    if problem := kind.refuses_headers(headers):
        return problem
    size = len(body.encode("utf-8", "surrogatepass")) if body is not None else original.size_bytes
    size += sum(len(part.encode() if isinstance(part, str) else part) for one in headers for part in one)
    if bytes_at_most is not None and size > bytes_at_most:
        return f"{size:,} bytes with headers; {kind.title} takes at most {bytes_at_most:,}"
    return None


# --- the body ----------------------------------------------------------------------------------------------


def _objection_to_body(body: str, original: Original) -> str | None:
    if not body:
        return "corrected_body is empty"
    if MASKED.search(body) and not MASKED.search(original.payload or ""):
        return (
            "corrected_body holds [redacted]: it was copied from where the payload is masked; take the column payload"
        )
    kind = (original.content_type or "").partition(";")[0].strip().lower()
    if "json" in kind:
        problem = _not_json(body)
        return problem and f"corrected_body is not JSON, as the original's content type says: {problem}"
    if kind in ("text/xml", "application/xml") or kind.endswith("+xml"):
        problem = _not_xml(body)
        return problem and f"corrected_body is not XML, as the original's content type says: {problem}"
    if kind and original.is_binary and not kind.startswith("text/"):
        return f"the original is no text but {kind[:100]}, and corrected_body can only be text"
    if not kind and (original.payload or "").lstrip()[:1] in ("{", "[") and _not_json(original.payload or "") is None:
        problem = _not_json(body)
        return problem and f"corrected_body is not JSON, as the original is: {problem}"
    return None


def _against_schema(body: str, schema: Mapping[str, Any] | Path) -> str | None:
    if problem := _not_json(body):
        return f"corrected_body is not JSON, as the route's body_schema wants it: {problem}"
    return body_schemas.objection(body, schema)


def _not_json(text: str) -> str | None:
    def no_constant(word: str) -> Never:
        raise ValueError(f"{word} is no value in JSON")

    try:
        json.loads(text, parse_constant=no_constant)
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"
    return None


def _not_xml(text: str) -> str | None:
    def no_entities(*_: Any) -> Never:
        raise ValueError("entities are not taken")

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = no_entities
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, ValueError) as error:
        return str(error)
    return None
