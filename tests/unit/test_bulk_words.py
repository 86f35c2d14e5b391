"""Words of many texts at once, beside the same said with a regular expression, text by text."""

import random
import re
from collections import Counter
from collections.abc import Sequence

import pytest

from redrive.classification import rare_words
from redrive.classification.bulk_words import Words
from redrive.classification.rare_words import RARE, RareWords

PIECES = (
    *(
        "ogufemi",
        "timeout",
        "Ogufemi",
        "ab",
        "abc",
        "xyz_",
        "_xy",
        "___",
        "dead",
        "deadlock",
        "0f3a9c",
        "12ms",
        "x",
        "g12",
    ),
    *(" ", "  ", "\n", "\t", ".", ":", "-", "/", "'", "", "\0", "\x7f"),
)
STRANGE = ("é", "пользователь", "订单不存在", "\u00a0", "x\u0301yz")


def drawn(seed: int, pieces: Sequence[str] = PIECES) -> list[str]:
    chance = random.Random(seed)
    texts = ["".join(chance.choices(pieces, k=chance.randrange(12))) for _ in range(chance.randrange(40))]
    return ["", *texts, ""] if seed % 2 else texts


def words_of(text: str) -> list[str]:
    return [word for word in re.findall(r"\w{3,}", text, re.ASCII) if not re.fullmatch(r"[0-9a-fA-F_]+", word)]


@pytest.mark.parametrize("seed", range(200))
def test_words_are_found_counted_and_replaced_as_one_by_one(seed: int) -> None:
    texts = drawn(seed)
    words = Words(texts)
    counts = Counter(word for text in texts for word in set(words_of(text)))
    assert words.distinct == list(dict.fromkeys(word for text in texts for word in words_of(text)))
    assert dict(zip(words.distinct, words.texts_with(), strict=True)) == counts
    gone = {word for word in counts if len(word) % 2}
    assert words.without([word in gone for word in words.distinct], "?!") == [
        re.sub(r"\w{3,}", lambda found: "?!" if found[0] in gone else found[0], text, flags=re.ASCII) for text in texts
    ]


@pytest.mark.parametrize("seed", range(100))
def test_a_flood_in_several_scripts_is_blanked_as_one_by_one(seed: int) -> None:
    blanked, counts = RareWords(1_000), Counter[str]()
    for part in range(3):
        texts = drawn(3 * seed + part, (*PIECES, *STRANGE))
        counts.update(word for text in texts for word in set(re.findall(r"\w{3,}", text)))

        def instead(found: re.Match[str]) -> str:
            word = found[0]
            is_rare = counts[word] < RARE and not blanked._tells(word)
            return rare_words._BLANKED if is_rare else word

        assert blanked.blanked(texts, 0) == [re.sub(r"\w{3,}", instead, text) for text in texts]
