"""Texts in which characters stand as JSON may write them, ``\\u00df`` for ß: what they say, and where it stands."""

import re
from bisect import bisect_right

_HEX = "[0-9a-fA-F]"
# A run of backslashes is looked at from its first one only: else many of them would take a time of their square.
_ESCAPE = re.compile(
    rf"(?<!\\)(\\++)u(?:([dD][89abAB]{_HEX}{{2}})\1u([dD][c-fC-F]{_HEX}{{2}})|({_HEX}{{4}}))", re.ASCII
)
#: What would end a JSON string, or begin an escape, were it to stand there bare.
_QUOTES = frozenset('"\\')


class Unescaped:
    """A text with its escaped characters, also those of a JSON text within a JSON text, as themselves.

    A quotation mark keeps its backslash, so that what is in quotes ends where it did. Without ``controls``, control
    characters and halves of pairs stay as they are written: nobody reads them, and not everything can keep them.
    """

    def __init__(self, written: str, *, controls: bool = True) -> None:
        self._controls = controls
        self._after: list[int] = []  # the places behind what were escapes, in the text as it is here
        self._ends: list[tuple[int, int]] = []  # where each of them began and ended in the text as it was written
        #: The text as it is here.
        self.text = self._read(written) if "\\u" in written else written

    def place(self, at: int) -> int:
        """Where in the text as it was written that stands which is ``at`` here."""
        number = bisect_right(self._after, at) - 1
        if number + 1 < len(self._after) and self._after[number + 1] == at + 1:
            return self._ends[number + 1][0]
        return at if number < 0 else self._ends[number][1] + at - self._after[number]

    def _read(self, written: str) -> str:
        parts, at, length = [], 0, 0
        for found in _ESCAPE.finditer(written):
            run, high, low, plain = found.groups()
            code = int(plain, 16) if plain else 0x10000 + (int(high, 16) - 0xD800 << 10) + int(low, 16) - 0xDC00
            if not self._controls and _is_control(code):
                continue
            character = chr(code)
            start = found.start()
            if character in _QUOTES:
                if len(run) % 2 == 0:
                    continue
                start += len(run)
            length += start - at + 1
            parts += [written[at:start], character]
            at = found.end()
            self._after.append(length)
            self._ends.append((start, at))
        return "".join([*parts, written[at:]])


def _is_control(code: int) -> bool:
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000


def backslashes_before(text: str, end: int) -> int:
    """How many backslashes, up to a few, stand in front of ``end``."""
    start = max(0, end - 8)
    return end - start - len(text[start:end].rstrip("\\"))
