"""What can be told by its look, wherever it stands: mail addresses, numbers of payment cards, credentials."""

import re
from collections.abc import Iterable
from functools import partial

from redrive.redaction.masks import MASK_CARD, MASK_CREDENTIALS, MASK_EMAIL

#: From the at sign on; JSON and URLs may spell it otherwise.
_AT_DOMAIN = re.compile(r"(?:@|\\u0040|%40)(?:[\w-]{1,63}\.){1,8}(?:xn--[\w-]{1,59}|[^\W\d_]{2,63})(?![\w-])")
#: What can't be part of the name before it.
_NOT_IN_NAME = re.compile(r"[\s@<>\"'(),:;\[\]{}|\\=/]")
_MAX_NAME = 256


def without_emails(text: str) -> str:
    """``text`` with every mail address masked, also as JSON or a URL spells it."""
    parts, at = [], 0
    for found in _AT_DOMAIN.finditer(text):
        start = found.start()
        while start > at and found.start() - start < _MAX_NAME and not _NOT_IN_NAME.match(text[start - 1]):
            start -= 1
        if start == found.start():
            continue
        parts += [text[at:start], MASK_EMAIL]
        at = found.end()
    parts.append(text[at:])
    return "".join(parts)


_CREDENTIALS = re.compile(
    r"(?<![a-z])(?:bearer|basic) [a-z0-9._~+/=-]{12,}+|(?<=ord=|swd=|pwd=|ret=|key=|ken=)[^ \t\n;&,\"']++",
    re.ASCII | re.IGNORECASE,
)
#: A text with every bearer token masked, and what stands behind ``password=`` and the like.
without_credentials = partial(_CREDENTIALS.sub, MASK_CREDENTIALS)
_DIGITS = re.compile(r"(?<![0-9A-Za-z_.])[0-9]+(?:[ .\u00a0-][0-9]+)*")
_GROUP = re.compile(r"[0-9]+")


def without_cards(text: str) -> str:
    """``text`` with every number masked that a payment card may have; what is JSON stays JSON."""
    parts, at = [], 0
    for run in _DIGITS.finditer(text):
        if len(run[0]) < 13:
            continue
        for start, end in _cards(run[0]):
            start, end = start + run.start(), end + run.start()  # noqa: PLW2901 - from places in the run to places in the text
            bare = text[:start].rstrip()[-1:] in (":", ",", "[") and text[end : end + 1] in (",", "}", "]", "\n", "\r")
            quote = '"' if bare and text.lstrip()[:1] in ("{", "[") else ""  # a number of a JSON text: it stays JSON
            parts += [text[at:start], quote, MASK_CARD, quote]
            at = end
    parts.append(text[at:])
    return "".join(parts)


def _cards(run: str) -> Iterable[tuple[int, int]]:
    """Where card numbers are in a run of digits and separators: whole groups of digits, 13 to 19 of them together."""
    groups = list(_GROUP.finditer(run))
    first = 0
    while first < len(groups):
        digits, found = "", None
        for last in range(first, min(first + 19, len(groups))):
            digits += groups[last][0]
            if len(digits) > 19:
                break
            if len(digits) >= 13 and digits[0] in "23456" and _luhn(digits):
                found = last
        if found is None:
            first += 1
        else:
            yield groups[first].start(), groups[found].end()
            first = found + 1


def _luhn(digits: str) -> bool:
    """Whether the check digit is right."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0
