"""Numbers of payment cards, wherever they stand in a text, told by their check digit."""

import re
from collections.abc import Iterable

from redrive.redaction.escapes import Unescaped
from redrive.redaction.masks import MASK_CARD, replaced
from redrive.redaction.paths import begins_at

# Of any script. On a track of a card, a letter stands in front.
_BLANK = r"[ \u00a0\u2000-\u200a\u202f\u3000]"
_DASH = r"[-\u2010-\u2015\u2212\uff0d]"
_DIGITS = re.compile(rf"(?:(?<![\dA-Za-z])|(?<=%B))\d+(?:(?:{_BLANK}{{1,2}}|{_DASH}|[._/\t])\d+)*")
_GROUP = re.compile(r"\d+")
#: What may be between groups of any length that are of one card.
_NEAR = re.compile(rf"{_BLANK}|{_DASH}|[.]")
#: Digits of a group beside anything else: else columns of numbers, dates and paths would be cards.
_IN_GROUP = range(4, 7)


def without_cards(text: str) -> str:
    """``text`` with every number masked that a payment card may have, in digits of any script; what is JSON stays
    JSON."""
    unescaped = Unescaped(text)
    places = list[tuple[int, int, str]]()
    is_json = begins_at(text) is not None
    for run in _DIGITS.finditer(unescaped.text):
        if len(run[0]) < 13:
            continue
        for first, last in _cards(run[0]):
            start, end = unescaped.place(first + run.start()), unescaped.place(last + run.start())
            bare = (
                is_json
                and text[end : end + 1] in (",", "}", "]", "\n", "\r")
                and _before(text, start) in (":", ",", "[")
            )
            quote = '"' if bare else ""  # a number of a JSON text: it stays JSON
            places.append((start, end, f"{quote}{MASK_CARD}{quote}"))
    return replaced(text, places)


def _before(text: str, end: int) -> str:
    """The last character in front of ``end`` that is no blank."""
    while end and text[end - 1].isspace():
        end -= 1
    return text[end - 1 : end]


def _cards(run: str) -> Iterable[tuple[int, int]]:
    """Where card numbers are in a run of digits and separators: whole groups of digits, 13 to 19 of them together."""
    groups = list(_GROUP.finditer(run))
    first = 0
    while first < len(groups):
        digits, found = "", None
        for last in range(first, min(first + 19, len(groups))):
            if last > first and not _go_together(run, groups[last - 1], groups[last]):
                break
            digits += _as_ascii(groups[last][0])
            if len(digits) > 19:
                break
            if len(digits) >= 13 and digits[0] in "23456" and _luhn(digits):
                found = last
        if found is None:
            first += 1
        else:
            yield groups[first].start(), groups[found].end()
            first = found + 1


def _go_together(run: str, one: re.Match[str], following: re.Match[str]) -> bool:
    """Whether two groups of digits may be of one card."""
    near = _NEAR.fullmatch(run, one.end(), following.start())
    return near is not None or (len(one[0]) in _IN_GROUP and len(following[0]) in range(1, 7))


def _as_ascii(digits: str) -> str:
    return digits if digits.isascii() else "".join([str(int(digit)) for digit in digits])


def _luhn(digits: str) -> bool:
    """Whether the check digit is right."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0
