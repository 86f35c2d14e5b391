"""The words of many texts at once: which there are, in which texts, and the texts without some of them.

A word is what ``\\w{3,}`` finds in ASCII. Words that could be hexadecimal are left out: whoever asks for words asks for
what a mask does not take for a value. Arrow finds out which are equal, so no word is made into a string twice.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from redrive.classification.arrow_numpy import integers, numbers

_LEAST = 3
_NONE, _HEXADECIMAL, _LETTER = range(3)


def _kinds() -> npt.NDArray[np.uint8]:
    kinds = np.full(256, _NONE, np.uint8)
    for code in range(128):
        char = chr(code)
        if char.isalnum() or char == "_":
            kinds[code] = _HEXADECIMAL if char in "0123456789abcdefABCDEF_" else _LETTER
    return kinds


_KINDS = _kinds()


class Words:
    """The words of ``texts``, which are all ASCII."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._joined = "\n".join(["", *texts, ""])
        self._begins = np.cumsum([1, *(len(text) + 1 for text in texts)])  # the last one is the end of all
        raw = self._joined.encode("ascii")
        kinds = _KINDS[np.frombuffer(raw, np.uint8)]
        inside = kinds != _NONE
        edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
        starts, ends = edges[0::2], edges[1::2]
        # What is between two edges is a word or no word, in turn.
        named = np.maximum.reduceat(kinds, edges)[0::2] == _LETTER if len(edges) else np.zeros(0, np.bool_)
        words = np.flatnonzero(named & (ends - starts >= _LEAST))
        self._starts, self._ends = starts[words], ends[words]
        offsets, count = pa.py_buffer(edges.astype(np.int32)), max(len(edges) - 1, 0)
        pieces = pa.StringArray.from_buffers(count, offsets, pa.py_buffer(raw))
        encoded = pieces.take(integers(2 * words)).dictionary_encode()
        #: The different words, in the order in which they first occur.
        self.distinct: list[str] = encoded.dictionary.to_pylist()
        self._which = numbers(encoded.indices)

    def texts_with(self) -> list[int]:
        """In how many texts each of the distinct words is."""
        many = max(len(self.distinct), 1)
        owners = np.searchsorted(self._begins, self._starts, side="right")
        counts: list[int] = np.bincount(np.unique(owners * many + self._which) % many, minlength=many).tolist()
        return counts[: len(self.distinct)]

    def without(self, gone: Sequence[bool], instead: str) -> list[str]:
        """The texts with ``instead`` in the place of each of the distinct words that is to be ``gone``."""
        at = np.flatnonzero(np.array(gone, np.bool_)[self._which])
        starts, ends = self._starts[at], self._ends[at]
        pieces, begin = [], 0
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            pieces.append(self._joined[begin:start])
            begin = end
        made = instead.join([*pieces, self._joined[begin:]])
        longer = np.cumsum([0, *(len(instead) - (ends - starts))])
        begins = (self._begins + longer[np.searchsorted(starts, self._begins)]).tolist()
        return [made[begin : end - 1] for begin, end in pairwise(begins)]
