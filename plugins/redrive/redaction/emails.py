"""Mail addresses, wherever they stand in a text."""

import re

from redrive.redaction.escapes import Unescaped, backslashes_before
from redrive.redaction.masks import MASK_EMAIL, replaced

#: From the at sign on; URLs may spell it otherwise.
_AT_DOMAIN = re.compile(r"(?:@|%40)(?:[\w-]{1,63}\.){1,8}(?:xn--[\w-]{1,59}|[^\W\d_]{2,63}+)(?![^\W\d_])")
#: What can't be part of the name before it.
_NOT_IN_NAME = re.compile(r"[\s@<>\"'(),:;\[\]{}|\\=/]")
_MAX_NAME = 256
_PREFIXES = frozenset("burfBURF")


def without_emails(text: str) -> str:
    """``text`` with every mail address masked, also as JSON or a URL spells it, and with its name in quotes."""
    unescaped = Unescaped(text)
    said = unescaped.text
    if "@" not in said and "%40" not in said:
        return text
    places, at = list[tuple[int, int, str]](), 0
    for found in _AT_DOMAIN.finditer(said):
        start = _in_quotes_before(said, found.start(), at)
        while start > at and found.start() - start < _MAX_NAME and _is_of_name(said, start - 1):
            start -= 1
        if start == found.start():
            continue
        at = found.end()
        places.append((unescaped.place(start), unescaped.place(at), MASK_EMAIL))
    return replaced(text, places)


def _in_quotes_before(text: str, end: int, first: int) -> int:
    """Where the name in quotes begins that ends at ``end``, from ``first`` on; ``end`` where there is none."""
    if text[end - 1 : end] != '"':
        return end
    closed = backslashes_before(text, end - 1)
    start = end - 1 - closed
    while (start := text.rfind('"', max(first, end - _MAX_NAME), start)) >= 0:
        opened = backslashes_before(text, start)
        if opened == closed:
            start -= opened
            return start if start >= first and "\n" not in text[start:end] else end
        if opened < closed:
            break
    return end


def _is_of_name(text: str, at: int) -> bool:
    """Whether the character there may be part of the name in front of an at sign."""
    if text[at] != "'":
        return not _NOT_IN_NAME.match(text[at])
    before = text[max(0, at - 2) : at]  # mary.o'hara; but u'ana is how Python prints a text
    is_printed = before[-1:] in _PREFIXES and not before[:-1].isalpha()
    return before[-1:].isalpha() and text[at + 1].isalpha() and not is_printed
