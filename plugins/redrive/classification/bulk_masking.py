"""Masks of many texts at the price of a few: texts that differ in digits and ids alone are masked once.

:func:`redrive.classification.grouping.mask` says what a mask is; this gives the same answers, several times as
fast. It rests on what the patterns of :data:`redrive.classification.grouping.MASKS` can see:

- Of a digit they see only that it is one, except where it stands alone (``0x``, ``HTTP/1.1``, ``5.7.1``) or begins a
  run of three (``503``); there they tell apart the classes of :data:`_ALONE` and :data:`_OF_THREE`.
- Lower-case hexadecimal ids of at least six characters, and UUIDs, are blanked whatever their characters are, unless
  what is before them could reach into them (:data:`_REACHES`).

So a text has a *skeleton* of the same length, in which all that can't matter is the same digit, and the patterns match
at the same places in all texts of one skeleton. What they leave of the digits (codes, for instance) is looked up in
each text. Texts with other than printable ASCII characters are masked one by one.
"""

import re
from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from redrive.classification import grouping

#: Characters of texts that are looked at together: what is computed of them stays in a processor's cache.
_PORTION = 1 << 16
#: Characters of skeletons that are remembered; all are forgotten when there are more.
_REMEMBERED = 1 << 24
_ANY = ord("6")
_SHORTEST, _LONGEST = 6, 40  # of an id: a pattern looks for a digit among the first forty-one characters
_UUID = (8, 4, 4, 4, 12)
_HYPHEN, _ZERO, _NINE = b"-09"
_DIGITS = re.compile(r"[0-9]")  # no mask brings one in
_OTHER, _DIGIT, _HEX, _LETTER, _STRANGE = range(5)
_IN_WORDS = np.array([False, True, True, True, False])
_NOT_HEXADECIMAL = 1 << 8
_WEIGHTS = np.array([0, 1, 0, _NOT_HEXADECIMAL, 0], np.int32)

_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.int64]


def _table(**classes: str) -> _Bytes:
    table = np.arange(256, dtype=np.uint8)
    for digits in classes.values():
        for digit in digits:
            table[ord(digit)] = ord(digits[0])
    return table


def _kinds() -> _Bytes:
    kinds = np.full(256, _STRANGE, np.uint8)
    for code in (9, 10, *range(32, 127)):
        char = chr(code)
        kinds[code] = _DIGIT if char.isdigit() else _HEX if char in "abcdef" else _LETTER if char.isalpha() else _OTHER
    return kinds


_KINDS = _kinds()
#: After one of these, a match that began earlier may end within an id, at its first letter or digit.
_REACHES = np.isin(np.arange(256), list(b".,:+-_"))
#: By what the patterns tell digits apart that stand alone, and the first of three.
_ALONE = _table(two="45", rest="63789")
_OF_THREE = _table(low="123", middle="45", rest="60789")


class Masked:
    """Masks of texts, many at a time; remembers skeletons from call to call."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Skeleton] = {}
        self._remembered = 0

    def all(self, texts: Sequence[str]) -> list[str]:
        """``grouping.mask(text)`` of each of ``texts``."""
        found: list[str] = []
        portion: list[str] = []
        size = 0
        for text in texts:
            portion.append(text)
            size += len(text)
            if size >= _PORTION:
                found += self._some(portion)
                portion, size = [], 0
        return found + self._some(portion)

    def _some(self, texts: list[str]) -> list[str]:
        if self._remembered > _REMEMBERED:
            self._known.clear()
            self._remembered = 0
        known = self._known
        found = []
        for text, skeleton in zip(texts, skeletons(texts), strict=True):
            if skeleton is None:
                found.append(grouping.mask(text))
                continue
            one = known.get(skeleton)
            if one is None:
                one = known[skeleton] = _Skeleton(skeleton, text)
                self._remembered += len(skeleton)
            masked = one.only
            found.append(one.mask(text) if masked is None else masked)
        return found


class _Skeleton:
    """The masks of the texts of one skeleton, by the digits that stay in them."""

    __slots__ = ("_kept", "_masks", "only")

    def __init__(self, skeleton: bytes, text: str) -> None:
        masked = grouping.mask(text)
        kept = _kept(skeleton, text) if _DIGITS.search(masked) else []
        #: The mask of all texts of the skeleton, where no digits stay.
        self.only = None if kept else masked
        self._kept: Callable[[str], object] = itemgetter(*kept or [0])
        self._masks: dict[object, str] = {self._kept(text): masked} if kept else {}

    def mask(self, text: str) -> str:
        kept = self._kept(text)
        masked = self._masks.get(kept)
        if masked is None:
            masked = self._masks[kept] = grouping.mask(text)
        return masked


def _kept(skeleton: bytes, text: str) -> list[int]:
    """Where the digits of ``text`` are that its mask leaves."""
    _, places = grouping.mask_and_places(text)
    return [place for place in places if place >= 0 and _ZERO <= skeleton[place] <= _NINE]


def skeletons(texts: Sequence[str]) -> list[bytes | None]:
    """The skeleton of each text; None of one that is not of printable ASCII characters, tabs and line breaks."""
    plain = [text if text.isascii() else "" for text in texts]
    joined = "\n".join(["", *plain, ""]).encode("ascii")
    text = np.frombuffer(joined, np.uint8)
    kinds = _KINDS[text]
    bones = text.copy()
    _blank_digits(bones, kinds)
    _blank_ids(bones, text, kinds)
    made = bones.tobytes()
    found: list[bytes | None] = []
    start = 1
    for one, original in zip(plain, texts, strict=True):
        end = start + len(one)
        found.append(made[start:end] if one is original else None)
        start = end + 1
    strange = np.flatnonzero(kinds == _STRANGE)
    if len(strange):
        starts = np.cumsum([1, *(len(one) + 1 for one in plain)])
        for number in np.unique(np.searchsorted(starts, strange, side="right") - 1).tolist():
            found[number] = None
    return found


def _runs(inside: npt.NDArray[np.bool_]) -> tuple[_Places, _Places]:
    """Where runs begin, and where each has ended; the first and the last character are in none."""
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    return edges[0::2], edges[1::2]


def _blank_digits(bones: _Bytes, kinds: _Bytes) -> None:
    digits = kinds == _DIGIT
    starts, ends = _runs(digits)
    lengths = ends - starts
    alone, three = starts[lengths == 1], starts[lengths == 3]
    first = _ALONE[bones[alone]], _OF_THREE[bones[three]]
    bones[digits] = _ANY
    bones[alone], bones[three] = first


def _blank_ids(bones: _Bytes, text: _Bytes, kinds: _Bytes) -> None:
    starts, ends = _runs(_IN_WORDS[kinds])
    lengths = ends - starts
    # The digits of a run, and so much for a letter that is not hexadecimal that digits can't make up for it.
    sums = np.cumsum(_WEIGHTS[kinds], dtype=np.int32)
    weights = sums[ends - 1] - sums[starts - 1]
    free = (weights < _NOT_HEXADECIMAL) & (lengths <= _LONGEST) & ~_REACHES[text[starts - 1]]
    ids = np.flatnonzero(free & (weights > 0) & (lengths >= _SHORTEST))
    uuids = np.flatnonzero(free & (lengths == _UUID[0]))
    uuids = uuids[uuids <= len(starts) - len(_UUID)]
    for part, length in enumerate(_UUID[1:], 1):
        at = uuids + part
        linked = (starts[at] == ends[at - 1] + 1) & (text[starts[at] - 1] == _HYPHEN)
        uuids = uuids[linked & (lengths[at] == length) & (weights[at] < _NOT_HEXADECIMAL)]
    blank = np.concatenate([ids, *(uuids + part for part in range(len(_UUID)))])
    if len(blank):
        long = lengths[blank]
        shift = np.cumsum(long) - long
        bones[np.repeat(starts[blank] - shift, long) + np.arange(long.sum())] = _ANY
