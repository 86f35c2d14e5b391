"""A text that people correct although they may not see all of it: what is masked is locked and comes back by itself.

Each masked value stands as ``[redacted 1]``, ``[redacted 2]`` … in what is shown. Whoever corrects the rest keeps them,
wherever they are masked; :meth:`Locked.restore` puts the values in their places again. So nothing that is masked is
seen, lost, doubled, or sent as its mask.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from redrive.redaction import MASKED

_LOCK = re.compile(r"\[redacted ([0-9]{1,6})\]")
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Locked:
    """A text with its masked values locked."""

    shown: str
    values: tuple[str, ...]  # what stands at [redacted 1] …
    quoted: bool  # a value of a JSON text: its lock stands in quotation marks
    mask: Callable[[str], str]

    def restore(self, corrected: str) -> str:
        """``corrected`` with every value in its place again. Raises ValueError, with a sentence, unless each lock is
        there once, as it was shown, and hides its value where it stands."""
        restored = self._put_back(corrected)
        if self.quoted and not _is_json(restored):
            raise ValueError("corrected_body is not JSON, as the original is")
        if self.values and not self._is_hidden_in(restored):
            raise ValueError("what is masked has to stay where it is masked: elsewhere people would see it")
        return restored

    def _is_hidden_in(self, restored: str) -> bool:
        """Whether every value is masked in the text too: what hides a value may be its place."""
        again = lock(restored, self.mask)
        return again is not None and Counter(self.values) <= Counter(again.values)

    def _put_back(self, corrected: str) -> str:
        found = [int(match[1]) for match in _LOCK.finditer(corrected)]
        times = Counter(found)
        for number in range(1, len(self.values) + 1):
            if times[number] != 1:
                there = f"stands there {times[number]} times" if times[number] else "is missing"
                raise ValueError(f"[redacted {number}] {there}: what is masked has to stay, once; undo that and go on")
        if unknown := sorted(set(found) - set(range(1, len(self.values) + 1))):
            raise ValueError(f"[redacted {unknown[0]}] stands for nothing")
        pattern = re.compile(f'"{_LOCK.pattern}"') if self.quoted else _LOCK
        if len(pattern.findall(corrected)) != len(found):
            raise ValueError("a [redacted …] is a value of its own: nothing else belongs into its quotation marks")
        return pattern.sub(lambda match: self.values[int(match[1]) - 1], corrected)


def lock(text: str, mask: Callable[[str], str]) -> Locked | None:
    """``text`` with everything locked that ``mask`` hides; None where that can't be said piece by piece."""
    masked = mask(text)
    if masked == text:
        return Locked(text, (), quoted=False, mask=mask)
    if _LOCK.search(text):
        return None  # it holds what looks like a lock
    try:
        found = list(_json_spans(text, masked))
        quoted = True
    except (ValueError, RecursionError):
        pieces = _plain_spans(text, masked, mask)
        if pieces is None:
            return None
        found, quoted = pieces, False
    parts, values, at = [], [], 0
    for start, end in found:
        values.append(text[start:end])
        name = f"[redacted {len(values)}]"
        parts += [text[at:start], f'"{name}"' if quoted else name]
        at = end
    shown = "".join([*parts, text[at:]])
    # Nothing that is hidden may show, whatever was found; and all has to come back as it was.
    one = Locked(shown, tuple(values), quoted, mask)
    return one if values and _alike(mask(shown)) == _alike(shown) and one._put_back(shown) == text else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _alike(text: str) -> str:
    """``text`` with locks and masks of one kind: a path masks a lock, too."""
    return MASKED.sub("[redacted]", _LOCK.sub("[redacted]", text))


def _plain_spans(text: str, masked: str, mask: Callable[[str], str]) -> list[tuple[int, int]] | None:
    """Where the masked values are in a text that is no JSON; None where it is not certain."""
    pieces, marks = MASKED.split(masked), MASKED.findall(masked)
    if not text.startswith(pieces[0]):
        return None
    spans, at = [], len(pieces[0])
    for number, (mark, piece) in enumerate(zip(marks, pieces[1:], strict=True)):
        last = number == len(marks) - 1
        end = len(text) - len(piece) if last else text.find(piece, at + 1) if piece else -1
        if end <= at or mask(text[at:end]) != mark:
            return None
        spans.append((at, end))
        at = end + len(piece)
    return spans if text.endswith(pieces[-1]) else None


class _Node(NamedTuple):
    start: int
    end: int
    keys: tuple[str, ...] | None  # of an object; None: something else
    members: tuple["_Node", ...]


def _json_spans(text: str, masked: str) -> Iterator[tuple[int, int]]:
    """Where values of a JSON text are that are not the same in ``masked``; raises ValueError if either is none."""
    return _different(text, _parse(text), masked, _parse(masked))


def _different(text: str, here: _Node, masked: str, there: _Node) -> Iterator[tuple[int, int]]:
    if text[here.start : here.end] == masked[there.start : there.end]:
        return
    if not here.members or here.keys != there.keys or len(here.members) != len(there.members):
        yield here.start, here.end
        return
    for one, other in zip(here.members, there.members, strict=True):
        yield from _different(text, one, masked, other)


def _parse(text: str) -> _Node:
    json.loads(text)
    node, end = _node(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise ValueError("something follows")
    return node


_DECODER = json.JSONDecoder(strict=False)


def _node(text: str, start: int) -> tuple[_Node, int]:
    """The value that begins at ``start`` in a text that is JSON, and its end."""
    kind = text[start]
    if kind not in "{[":
        _, end = _DECODER.raw_decode(text, start)
        return _Node(start, end, None, ()), end
    keys, members = [], []
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        if kind == "{":
            key, at = _DECODER.raw_decode(text, at)
            keys.append(str(key))
            at = _skip(text, _skip(text, at) + 1)  # the colon
        one, at = _node(text, at)
        members.append(one)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return _Node(start, at + 1, tuple(keys) if kind == "{" else None, tuple(members)), at + 1


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
