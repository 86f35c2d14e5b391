"""Where a message says why it failed: picking the text, and cutting it to a bound.

The order is the route's own ``evidence`` selectors, the headers in which frameworks leave an exception,
the broker's description, an error envelope in the body. What only says "too often" or "too old" is the
broker's reason and counts last. Nothing here decodes more than :data:`MAX_BODY_BYTES` of a body, and
nothing raises, whatever the message holds.

The Spark job (:mod:`redrive.classification.case_finder`) decides the commonest case for whole columns and
asks :func:`pick` for the rest; a parity test holds the two together.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redrive.message import Header
from redrive.redaction.escapes import Unescaped
from redrive.selectors import Kind, Selector

#: Characters of a failure text that are looked at: its beginning and its end, where root causes are named.
HEAD = 4096
TAIL = 4096
#: Texts up to so many characters are left whole.
UNCUT = HEAD + TAIL
MAX_TEXT = HEAD + TAIL + 5
GAP = "\n...\n"
#: Characters of one header or field that are looked at, before they are put together and cut.
MAX_PART = 65_536
#: Bodies above this are not searched for an error envelope.
MAX_BODY_BYTES = 262_144
MAX_REASON = 200

#: Headers that name a code or a class, a message, a stack trace; lower case, in the order of reading.
CODE_HEADERS: tuple[str, ...] = (
    "error_code",
    "errorcode",
    "error-code",
    "x-error-code",
    "status_code",
    "statuscode",
    "status-code",
    "http_status",
    "x-status-code",
)
CLASS_HEADERS: tuple[str, ...] = (
    "nservicebus.exceptioninfo.exceptiontype",
    "mt-fault-exceptiontype",
    "kafka_dlt-exception-fqcn",
    "kafka_dlt-exception-cause-fqcn",
    "__connect.errors.exception.class.name",
    "x-exception-class",
    "x-exception-type",
    "exception-class",
    "exception-type",
    "exception_class",
    "exception_type",
    "exception.type",
    "exceptionclass",
    "exceptiontype",
    "error.type",
    "error_type",
    "error-type",
    "errortype",
    "x-error-type",
    "error_class",
)
MESSAGE_HEADERS: tuple[str, ...] = (
    "nservicebus.exceptioninfo.message",
    "mt-fault-message",
    "kafka_dlt-exception-message",
    "kafka_dlt-key-exception-message",
    "__connect.errors.exception.message",
    "x-exception-message",
    "exception-message",
    "exception_message",
    "exception.message",
    "exceptionmessage",
    "exception",
    "x-exception",
    "error.message",
    "error_message",
    "error-message",
    "errormessage",
    "error_msg",
    "errormsg",
    "x-error-message",
    "error",
    "err",
    "x-error",
    "error_description",
    "error-description",
    "errordescription",
    "error_detail",
    "error_details",
    "errordetails",
    "failure",
    "failure_message",
    "failure_reason",
    "failure-reason",
    "failurereason",
    "x-failure-reason",
    "last_error",
    "last-error",
    "lasterror",
    "x-last-error",
    "dead_letter_error",
    "dlq_error",
    "cloudpubsubdeadlettersourcedeliveryerrormessage",
)
STACK_HEADERS: tuple[str, ...] = (
    "nservicebus.exceptioninfo.stacktrace",
    "mt-fault-stacktrace",
    "kafka_dlt-exception-stacktrace",
    "__connect.errors.exception.stacktrace",
    "x-exception-stacktrace",
    "exception-stacktrace",
    "exception_stacktrace",
    "exception.stacktrace",
    "exception.stack",
    "stacktrace",
    "stack_trace",
    "stack-trace",
    "traceback",
    "x-traceback",
)
EVIDENCE_HEADERS: tuple[str, ...] = CODE_HEADERS + CLASS_HEADERS + MESSAGE_HEADERS + STACK_HEADERS
_RANK = {name: rank for rank, name in enumerate(EVIDENCE_HEADERS)}
#: A header of :data:`CODE_HEADERS` that is only a number is given its word back, so that rules know it.
BARE_CODE = r"^[0-9]{3,5}$"
CODE_WORD = "error code "

#: Only a body that has such a field is parsed at all.
ENVELOPE_FIELD = r"\"[A-Za-z_]{0,20}(?:[eE]rror|[eE]xception|[fF]ailure|fault)"
#: Places of an error in a JSON body: Lambda destinations, MassTransit faults, and what people write themselves.
ENVELOPE_PATHS: tuple[tuple[str | int, ...], ...] = (
    ("errorType",),
    ("error", "type"),
    ("error", "code"),
    ("exceptionType",),
    ("exception", "type"),
    ("exception", "class"),
    ("responsePayload", "errorType"),
    ("exceptions", 0, "exceptionType"),
    ("message", "exceptions", 0, "exceptionType"),
    ("errorMessage",),
    ("error_message",),
    ("error", "message"),
    ("error", "description"),
    ("error",),
    ("exception", "message"),
    ("exception",),
    ("exceptionMessage",),
    ("responsePayload", "errorMessage"),
    ("exceptions", 0, "message"),
    ("message", "exceptions", 0, "message"),
    ("failure", "message"),
    ("failure",),
    ("failureReason",),
    ("failure_reason",),
    ("lastError",),
    ("last_error",),
    ("stackTrace",),
    ("stacktrace",),
    ("exception", "stackTrace"),
    ("exceptions", 0, "stackTrace"),
)

#: Broker reasons that say nothing about the failure itself; lower case.
BROKER_REASONS: frozenset[str] = frozenset(
    {
        "maxdeliverycountexceeded",
        "ttlexpiredexception",
        "headersizeexceeded",
        "session id is null",
        "maxtransferhopcountexceeded",
        "rejected",
        "expired",
        "maxlen",
        "delivery_limit",
        "maximumretryattempts",
        "maximumeventageinseconds",
    }
)
#: Descriptions that a broker writes by itself when deliveries or time ran out.
GENERIC_DESCRIPTION = (
    r"(?i)^[ \n]{0,4}(?:message could not be consumed after [0-9]{1,6} delivery attempts"
    r"|the message (?:has )?expired|message expired|failed after [0-9]{1,6} (?:retry|delivery) attempts)"
    r"[^\n]{0,40}$"
)
_BARE_CODE = re.compile(BARE_CODE.replace("$", r"\Z"), re.ASCII)
_ENVELOPE_FIELD = re.compile(ENVELOPE_FIELD.encode(), re.ASCII)
_GENERIC_DESCRIPTION = re.compile(GENERIC_DESCRIPTION.replace("$", r"\Z"), re.ASCII)
#: What is trimmed from the ends of texts.
BLANKS = " \t\n\r"


class Evidence(NamedTuple):
    """What a message says about its failure; both are "" where it says nothing."""

    text: str  # cut to MAX_TEXT characters
    reason: str  # the broker's own reason, lower case, where it is one of BROKER_REASONS


def pick(
    headers: Sequence[Header],
    body: bytes,
    *,
    description: str | None = None,
    reason: str | None = None,
    evidence: Sequence[Selector] = (),
    ordering_key: str | None = None,
    broker_message_id: str = "",
    given: str = "",
) -> Evidence:
    """The failure text of a message and the broker's reason.

    A text that is ``given`` decides, then the first of ``evidence`` that finds something, then headers,
    ``description``, body. A reason
    that is not one of the broker's own words was written by a consumer, so it heads the text.
    """
    own = (reason or "")[:MAX_REASON].strip(BLANKS)
    text = given[:MAX_PART].strip(BLANKS)
    for selector in evidence:
        if text:
            break
        text = (selector.evaluate(headers, body, ordering_key, broker_message_id) or "").strip(BLANKS)
    said = (description or "")[:MAX_PART].strip(BLANKS)
    generic = _GENERIC_DESCRIPTION.search(said) is not None
    text = text or _from_headers(headers) or ("" if generic else said) or _from_body(body) or said
    known = own.lower() if own.lower() in BROKER_REASONS else ""
    if own and not known:
        text = f"{own}: {text}" if text else own
    return Evidence(cut(text), known)


def is_told_by(header: str, evidence: Sequence[Selector]) -> bool:
    """Whether a failure text may hold the header's value, where a route's own ``evidence`` is this; :func:`pick` looks
    at the usual headers wherever ``evidence`` finds nothing."""
    return header.lower() in _RANK or any(
        one.kind is Kind.ATTRIBUTE and one.name.lower() == header.lower() for one in evidence
    )


def cut(text: str) -> str:
    """``text``, :func:`readable`, without what is between its first and last few thousand characters, blanks around it
    trimmed."""
    text = readable(text)
    if len(text) > UNCUT:
        text = text[:HEAD] + GAP + text[-TAIL:]
    return text.strip(BLANKS)


#: What begins a character as JSON may write it. A text of ASCII without one is :func:`readable`.
ESCAPED: Final = "\\u"
# What looks as in other texts and is other characters: an apostrophe, blanks, letters and digits of full or half width,
# ligatures. Punctuation of full width stays: it is that of its languages.
_APOSTROPHE: Final = re.compile(r"(?<=[^\W\d_])\u2019(?=[^\W\d_])")
_BLANK: Final = re.compile(r"[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_DRESSED: Final = re.compile(r"[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uff9f\uffa0-\uffdc\ufb00-\ufb06]+")
_UNSEEN: Final = re.compile(r"[\xad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]+")


def readable(text: str) -> str:
    """``text`` with the characters that a reader sees: those that stand escaped in JSON as themselves, and each letter
    in one form, whatever wrote it."""
    if ESCAPED in text:
        text = Unescaped(text, controls=False).text
    if text.isascii():
        return text
    text = _UNSEEN.sub("", text)
    text = _DRESSED.sub(lambda some: unicodedata.normalize("NFKC", some[0]), text)
    return unicodedata.normalize("NFC", _APOSTROPHE.sub("'", _BLANK.sub(" ", text)))


def _from_headers(headers: Sequence[Header]) -> str:
    found: dict[int, str] = {}
    for name, _, value in headers:
        rank = _RANK.get(name.lower())
        if rank is None:
            continue
        text = _decoded(value)
        if text is None:
            continue
        text = text[:MAX_PART].strip(BLANKS)
        if text:
            found[rank] = CODE_WORD + text if rank < len(CODE_HEADERS) and _BARE_CODE.search(text) else text
    return "\n".join(found[rank] for rank in sorted(found))


def _from_body(body: bytes) -> str:
    if not body or len(body) > MAX_BODY_BYTES or not _ENVELOPE_FIELD.search(body):
        return ""
    try:
        # Like Spark's parser: what follows the document does not matter, a doubled field does.
        document, _ = _DECODER.raw_decode(body.decode("utf-8").lstrip(BLANKS))
    except (ValueError, RecursionError):
        return ""
    parts: list[str] = []
    for path in ENVELOPE_PATHS:
        value = document
        for step in path:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                value = None
                break
        # Only texts: an object or a list here is business data or is reached by a longer path.
        if isinstance(value, str):
            text = value[:MAX_PART].strip(BLANKS)
            if text and text not in parts:
                if not text.isprintable() and _has_surrogate(text):
                    return ""
                parts.append(text)
    return "\n".join(parts)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a field occurs twice")
    return document


def _no_constant(word: str) -> None:
    raise ValueError(word)


def _number(_word: str) -> None:
    """Numbers tell nothing here; and of one with thousands of digits Python would make none."""


_DECODER = json.JSONDecoder(
    object_pairs_hook=_without_doubles, parse_int=_number, parse_float=_number, parse_constant=_no_constant
)


def _decoded(value: str | bytes) -> str | None:
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
