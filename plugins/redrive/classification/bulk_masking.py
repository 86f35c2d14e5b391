"""Masks of many texts at the price of a few: texts that differ in digits and ids alone are masked once.

:func:`redrive.classification.grouping.mask` says what a mask is; this gives the same answers, several times as
fast. It rests on what the patterns of :data:`redrive.classification.grouping.MASKS` can see:

- Of a digit they see only that it is one, except where it stands alone (``0x``, ``HTTP/1.1``, ``5.7.1``) or begins a
  run of three (``503``); there they tell apart the classes of :data:`_ALONE` and :data:`_OF_THREE`.
- Lower-case hexadecimal ids of at least six characters, and UUIDs, are blanked whatever their characters are, unless
  what is before them could reach into them (:data:`_REACHES`), or they may be a code: few digits behind what could be
  a word of codes.

So a text has a *skeleton* of the same length, in which all that can't matter is the same digit, and the patterns match
at the same places in all texts of one skeleton. What they leave of the digits (codes, for instance) is looked up in
each text. Texts with other than printable ASCII characters are masked one by one.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from redrive.classification import grouping
from redrive.classification.arrow_numpy import Integers, numbers

#: Characters of texts that are looked at together: what is computed of them stays in a processor's cache.
_PORTION = 1 << 18
#: Characters of skeletons that are remembered; all are forgotten when there are more.
_REMEMBERED = 1 << 24
_ANY, _ANY_LETTER = b"6a"
_SHORTEST, _LONGEST = 6, 40  # of an id: a pattern looks for a digit among the first forty-one characters
_LONGEST_CODE = 9  # digits that a mask may leave
_UUID = (8, 4, 4, 4, 12)
_HYPHEN, _ZERO, _NINE = b"-09"
_DIGITS = re.compile(r"[0-9]")  # no mask brings one in
_OTHER, _DIGIT, _HEX, _LETTER, _STRANGE = 0, 1, 2, 4, 8  # bits: a run has the kinds of all its characters

_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.int64]


def _table(**classes: str) -> bytes:
    table = bytearray(range(256))
    for digits in classes.values():
        for digit in digits:
            table[ord(digit)] = ord(digits[0])
    return bytes(table)


def _kinds() -> bytes:
    kinds = bytearray([_STRANGE] * 256)
    for code in (9, 10, *range(32, 127)):
        char = chr(code)
        kinds[code] = _DIGIT if char.isdigit() else _HEX if char in "abcdef" else _LETTER if char.isalpha() else _OTHER
    return bytes(kinds)


# Tables of :meth:`bytes.translate`, which is several times as fast as looking up a NumPy array in another.
_KINDS = _kinds()
_DIGITS_ALIKE = _table(any=f"{_ANY:c}0123456789")
#: After one of these, a match that began earlier may end within an id, at its first letter or digit.
_REACHES = np.isin(np.arange(256), list(b".,:+-_"))
#: What parts a number from the word that says it is a code; and of such a word what is before that, at its end.
_PARTS_CODE, _ENDS_CODE = (np.isin(np.arange(256), list(some)) for some in (b" =:#\"'", b"eErR:=\"' "))
#: By what the patterns tell digits apart that stand alone, and the first of three.
_ALONE = np.frombuffer(_table(two="45", rest="63789"), np.uint8)
_OF_THREE = np.frombuffer(_table(low="123", middle="45", rest="60789"), np.uint8)


class Masks(NamedTuple):
    """The masks of some texts: the different ones, and which of them each text has."""

    distinct: list[str]
    which: Integers


class JoinedMasks:
    """Puts portions of masks together to those of all their texts."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._which: list[Integers] = []

    def add(self, masks: Masks) -> None:
        """Add those of the texts that come next; two of them may be equal."""
        numbers_of = self._numbers
        here = np.array([numbers_of.setdefault(mask, len(numbers_of)) for mask in masks.distinct], np.int64)
        self._which.append(here[masks.which])

    def masks(self) -> Masks:
        """All so far."""
        return Masks(list(self._numbers), np.concatenate([np.zeros(0, np.int64), *self._which]))


class Masked:
    """Masks of texts, many at a time; remembers skeletons from call to call."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Skeleton] = {}
        self._remembered = 0

    def portions(self, texts: Sequence[str]) -> Iterator[Masks]:
        """``grouping.mask(text)`` of each of ``texts``, some hundred texts at a time."""
        begin = size = 0
        for end, text in enumerate(texts, 1):
            size += len(text)
            if size >= _PORTION:
                yield self._masks(texts[begin:end])
                begin, size = end, 0
        if begin < len(texts):
            yield self._masks(texts[begin:])

    def all(self, texts: Sequence[str]) -> list[str]:
        """``grouping.mask(text)`` of each of ``texts``."""
        return [masks.distinct[number] for masks in self.portions(texts) for number in masks.which.tolist()]

    def _masks(self, texts: Sequence[str]) -> Masks:
        if self._remembered > _REMEMBERED:
            self._known.clear()
            self._remembered = 0
        numbers_of: dict[str, int] = {}
        skeletons, which = distinct_skeletons(texts)
        firsts = zip(*(column.tolist() for column in np.unique(which, return_index=True)), strict=True)
        known = {number: self._of(skeletons[number], texts[at]) for number, at in firsts if number >= 0}
        table = np.full(len(skeletons) + 1, -1)  # the last is of texts without a skeleton
        for number, one in known.items():
            if one.only is not None:
                table[number] = numbers_of.setdefault(one.only, len(numbers_of))
        found = table[which]
        single = np.flatnonzero(found < 0)
        for at, number in zip(single.tolist(), which[single].tolist(), strict=True):
            mask = grouping.mask(texts[at]) if number < 0 else known[number].mask(texts[at])
            found[at] = numbers_of.setdefault(mask, len(numbers_of))
        return Masks(list(numbers_of), found)

    def _of(self, skeleton: bytes, text: str) -> "_Skeleton":
        one = self._known.get(skeleton)
        if one is None:
            one = self._known[skeleton] = _Skeleton(skeleton, text)
            self._remembered += len(skeleton)
        return one


class _Skeleton:
    """The masks of the texts of one skeleton, by the digits that stay in them."""

    __slots__ = ("_first", "_kept", "_masks", "_skeleton", "only")

    def __init__(self, skeleton: bytes, text: str) -> None:
        masked = grouping.mask(text)
        #: The mask of all texts of the skeleton, where no digits stay.
        self.only = None if _DIGITS.search(masked) else masked
        self._skeleton, self._first = skeleton, (text, masked)
        self._kept: Callable[[str], object] | None = None
        self._masks: dict[object, str] = {}

    def mask(self, text: str) -> str:
        first, masked = self._first
        if text == first:
            return masked
        if self._kept is None:  # most skeletons have a single text, and looking for places takes longer than a mask
            self._kept = itemgetter(*_kept(self._skeleton, first))
            self._masks = {self._kept(first): masked}
        kept = self._kept(text)
        found = self._masks.get(kept)
        if found is None:
            found = self._masks[kept] = grouping.mask(text)
        return found


def _kept(skeleton: bytes, text: str) -> list[int]:
    """Where the digits of ``text`` are that its mask leaves."""
    _, places = grouping.mask_and_places(text)
    return [place for place in places if place >= 0 and _ZERO <= skeleton[place] <= _NINE]


def distinct_skeletons(texts: Sequence[str]) -> tuple[list[bytes], Integers]:
    """The different skeletons of ``texts``, each with a line break behind it, and which of them each text has; -1 of
    one that is not of printable ASCII characters, tabs and line breaks."""
    plain = [text if text.isascii() else "" for text in texts]
    joined = "\n".join(["", *plain, ""]).encode("ascii")
    text, kinds = np.frombuffer(joined, np.uint8), np.frombuffer(joined.translate(_KINDS), np.uint8)
    bones = np.frombuffer(bytearray(joined.translate(_DIGITS_ALIKE)), np.uint8)
    _tell_numbers_apart(bones, text, kinds)
    _blank_ids(bones, text, kinds)
    starts = np.cumsum([1, *(len(one) + 1 for one in plain)])
    offsets = pa.py_buffer(starts.astype(np.int32))
    encoded = pa.BinaryArray.from_buffers(pa.binary(), len(plain), [None, offsets, pa.py_buffer(bones)])
    encoded = encoded.dictionary_encode()
    which = numbers(encoded.indices)
    which[[one is not original for one, original in zip(plain, texts, strict=True)]] = -1
    strange = np.flatnonzero(kinds == _STRANGE)
    if len(strange):
        which[np.searchsorted(starts, strange, side="right") - 1] = -1
    return encoded.dictionary.to_pylist(), which


def _runs(inside: npt.NDArray[np.bool_]) -> tuple[_Places, _Places]:
    """Where runs begin, and where each has ended; the first and the last character are in none."""
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    return edges[0::2], edges[1::2]


def _tell_numbers_apart(bones: _Bytes, text: _Bytes, kinds: _Bytes) -> None:
    starts, ends = _runs(kinds == _DIGIT)
    lengths = ends - starts
    alone, three = starts[lengths == 1], starts[lengths == 3]
    bones[alone], bones[three] = _ALONE[text[alone]], _OF_THREE[text[three]]


def _blank_ids(bones: _Bytes, text: _Bytes, kinds: _Bytes) -> None:
    starts, ends = _runs((kinds != _OTHER) & (kinds != _STRANGE))
    lengths = ends - starts
    long = np.flatnonzero((lengths >= _SHORTEST) & (lengths <= _LONGEST))
    found = _kinds_of(kinds, starts[long], ends[long])
    is_free = (found < _LETTER) & ~_REACHES[text[starts[long] - 1]]
    may_be_code = (found == _DIGIT) & (lengths[long] <= _LONGEST_CODE)
    may_be_code &= _PARTS_CODE[text[starts[long] - 1]] & _ENDS_CODE[text[starts[long] - 2]]
    ids = long[is_free & ((found & _DIGIT) > 0) & ~may_be_code]
    uuids = long[is_free & (lengths[long] == _UUID[0])]
    uuids = uuids[uuids <= len(starts) - len(_UUID)]
    for part, length in enumerate(_UUID[1:], 1):
        at = uuids + part
        linked = (starts[at] == ends[at - 1] + 1) & (text[starts[at] - 1] == _HYPHEN)
        uuids = uuids[linked & (lengths[at] == length) & (_kinds_of(kinds, starts[at], ends[at]) < _LETTER)]
    blank = np.concatenate([ids, *(uuids + part for part in range(len(_UUID)))])
    if len(blank):
        sizes = lengths[blank]
        shift = np.cumsum(sizes) - sizes
        bones[np.repeat(starts[blank] - shift, sizes) + np.arange(sizes.sum())] = _ANY
        bones[starts[ids]] = _ANY_LETTER
        bones[starts[uuids]] = _ANY


def _kinds_of(kinds: _Bytes, starts: _Places, ends: _Places) -> _Bytes:
    """The kinds of the characters of each run; the runs stand in their order and none ends with the text."""
    edges = np.ravel(np.column_stack([starts, ends]))
    return np.bitwise_or.reduceat(kinds, edges)[0::2]
