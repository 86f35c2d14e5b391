"""Texts that are all different, made equal where only rare words tell them apart.

Values that look like words (names of people, of shops, of things) make each failure text a case of its own, and a case
costs a hundred times what a message costs. So where a share of a batch turns out to be a flood, the words are blanked
in it that hardly any other of its texts has. Kept is what the causes are known by, names of exceptions, what people
split groups by, what known groups say, and every word that is frequent here.

The answer for a text depends on the texts before it in its share and on nothing else: a task that runs again finds the
same cases.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Final

from redrive.classification.bulk_words import Words
from redrive.classification.templates import WILDCARD

#: Cases of a flood have fewer messages than this on average, or there are so many of them all the same.
ALIKE: Final = 2
TOO_MANY: Final = 8
#: A word is rare that fewer texts have, as long as there are no more cases than twice the room for them.
RARE: Final = 3
#: So many words are counted, about 100 MiB of them: beyond that the rarest are forgotten.
MOST_WORDS: Final = 500_000
#: With twice as many cases a word has to be so many times as frequent.
STEP: Final = 4

_WORD = re.compile(r"\w{3,}")
_WORDS_AND_BETWEEN = re.compile(r"(\w{3,})")
# Digits, hexadecimal ids, numbers with a unit, the middle of a time: masks see to them, and have to find them whole.
_OF_MASKS = re.compile(r"[0-9a-fA-F_]+|[0-9]+(?:[a-zA-Z]{1,3}|T[0-9]+Z?)|[^\W0-9]{1,3}[0-9]+")
_EXCEPTION = re.compile(r"(?:Exception|Error|Fault|Failure|Violation|Timeout)[A-Za-z]{0,20}$")
# What stands for a rare word until masks have been applied: to them it is a word, and no hexadecimal one.
_BLANKED = "qzxvzq"
_RUNS = re.compile(rf"{_BLANKED}(?:[ .,:;/_-]{{1,2}}{_BLANKED})*")


class RareWords:
    """Knows how many texts of a share have each word, and blanks those that few have.

    ``room`` is for how many cases a share may have without being looked at as a flood. Never blanked are the words of
    ``known`` and what has one of ``pieces`` in it.
    """

    def __init__(self, room: int, known: frozenset[str] = frozenset(), pieces: frozenset[str] = frozenset()) -> None:
        self._room = room
        self._known = known
        self._pieces = pieces
        self._texts_with: Counter[str] = Counter()
        self._is_flood = False
        self._shown: dict[str, str] = {}

    def is_flood(self, cases: int, messages: int) -> bool:
        """Whether so many ``cases`` of so many ``messages`` are a flood; what was one once stays one."""
        if cases > self._room and (cases * ALIKE > messages or cases > self._room * TOO_MANY):
            self._is_flood = True
        return self._is_flood

    def blanked(self, texts: Iterable[str], cases: int) -> list[str]:
        """``texts`` with a stand-in for each word that is rare in them and in all before; ``cases`` there are yet.

        :meth:`shown` makes of the stand-in what a reader sees, once masks have been applied.
        """
        texts = list(texts)
        words = Words([text for text in texts if text.isascii()])
        others = [_WORDS_AND_BETWEEN.split(text) for text in texts if not text.isascii()]
        self._count(dict(zip(words.distinct, words.texts_with(), strict=True)))
        for pieces in others:
            self._count(dict.fromkeys(pieces[1::2], 1))
        rare = RARE * STEP ** max((cases // self._room).bit_length() - 1, 0)
        made = iter(words.without([self._is_rare(word, rare) for word in words.distinct], _BLANKED))
        for pieces in others:
            pieces[1::2] = [_BLANKED if self._is_rare(word, rare) else word for word in pieces[1::2]]
        of_others = iter(others)
        return [next(made) if text.isascii() else "".join(next(of_others)) for text in texts]

    def _count(self, words: Mapping[str, int]) -> None:
        counted = self._texts_with
        counted.update(words)
        least = 1
        while len(counted) > MOST_WORDS:
            least += 1
            for word in [word for word, count in counted.items() if count < least]:
                del counted[word]

    def _is_rare(self, word: str, less_than: int) -> bool:
        return self._texts_with[word] < less_than and not self._tells(word)

    def shown(self, masked: str) -> str:
        """A text that was blanked and masked, as a template's text: rare words in a row are one value."""
        found = self._shown.get(masked)
        if found is None:
            found = self._shown[masked] = _RUNS.sub(WILDCARD, masked)
        return found

    def _tells(self, word: str) -> bool:
        if _OF_MASKS.fullmatch(word) or _EXCEPTION.search(word):
            return True
        plain = word.casefold()
        if plain in _vocabulary() or plain in self._known:
            return True
        return bool(self._pieces) and any(piece in plain for piece in self._pieces)


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """The words of all ``texts``, without case."""
    return frozenset(word for text in texts for word in _WORD.findall(text.casefold()))


@cache
def _vocabulary() -> frozenset[str]:
    """The words that causes are known by: those of the rules, and of the texts that the model was trained on."""
    ours = resources.files("redrive.classification")
    rules, texts = ((ours / name).read_text(encoding="utf-8") for name in ("rule_table.txt", "cause_texts.jsonl"))
    return words_of([rules, *(json.loads(line)["text"] for line in texts.splitlines())])
