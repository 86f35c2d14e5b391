"""Where none of its words is said, an expression is not tried: then it must find nothing there."""

import random
import re

import pytest
from tests.unit import pumped

from redrive.classification import dress, named_faults, named_fields, normalization, rules, values_and_names
from redrive.classification.word_lists import may_say, says

#: The words, the expression, and whether the words are looked for in small letters.
TRIED = [
    (values_and_names._WORDS_OF_FOUND, values_and_names._FOUND, False),
    (values_and_names._WORDS_OF_GIVEN_UP, values_and_names._GIVEN_UP, True),
    (values_and_names._WORDS_OF_NOT_ASKED, values_and_names._NOT_ASKED, False),
    (values_and_names._WORDS_OF_NOT_CONNECTED, values_and_names._NOT_CONNECTED, True),
    (values_and_names._OF_LISTS, values_and_names._LISTED, False),
    (values_and_names._OF_LISTS, values_and_names._LISTED_LAST, False),
    (values_and_names._OF_LISTS, values_and_names._CLAUSE, False),
    (values_and_names._WHO_DID, values_and_names._BY, False),
    (values_and_names._WHO_DID, values_and_names._BY_USER, False),
    *((words, pattern, True) for words, pattern, _ in values_and_names._TOLD_VALUES if words),
    (named_fields._ROOTS, named_fields._OF_AJV, False),
    (named_fields._BEFORE_BEHIND, named_fields._NAMED_BEHIND, False),
    (named_fields._BEHIND_VALIDATED, named_fields._VALIDATED, False),
    (named_fields._WORDS_OF_REQUIRED, named_fields._REQUIRED, False),
    *((words, pattern, True) for words, pattern in named_faults._NAMED),
    (normalization._WORDS_OF_INNER, normalization._INNER, True),
    (normalization._PAGES, normalization._HTML, True),
    (rules._WORDS_OF_DEEPER, rules._DEEPER, True),
    (dress._ENDINGS, dress._END, True),
]
#: A cheaper expression that has to find something first, the expression, and whether the first looks at small letters.
CHEAPER_FIRST = [
    (values_and_names._SHOUTED_BEHIND_BLANK, values_and_names._PLACED, False),
    (values_and_names._SHOUTED_BEHIND_BLANK, values_and_names._NOUN_SHOUTED, False),
    (values_and_names._SHOUTED_BEHIND_BLANK, values_and_names._COUNTRY, False),
    (values_and_names._SHOUTED_BEHIND_BLANK, values_and_names._BANK, False),
    (values_and_names._CAPITAL_BEHIND_BLANK, values_and_names._TITLED, False),
    (values_and_names._CAPITAL_BEHIND_BLANK, values_and_names._CALLED, False),
    (values_and_names._CAPITAL_BEHIND_BLANK, values_and_names._LETTER, False),
    (values_and_names._MAY_BE_BEFORE_VALUE, values_and_names._BEFORE_VALUE, False),
    (values_and_names._BEHIND_NOUN, values_and_names._OF_NOUN, True),
    (values_and_names._MAY_BE_DUMP, values_and_names._DUMP, False),
    (rules._MAY_BE_WORDS, rules._WORDS, False),
    (rules._MAY_BE_WORDS, rules._FIELD_NAME, False),
]
#: What follows, where an expression looks ahead.
ENDS = (
    "",
    "]",
    " must",
    " is required",
    ": 'a'",
    ", b",
    " was",
    " at <*>",
    " <*>",
    "<*>",
    " must be",
    "=x",
    ": x",
    ".",
)
#: What none of these makes: behind what is not a word, or of several.
OTHERS = ["failed: <html><head>", "Fields: 'hat'", "the value Oak was lost"]


def texts_of(pattern: re.Pattern[str]) -> list[str]:
    """Texts in which ``pattern`` finds something, each of other alternatives."""
    turns = random.Random(pattern.pattern)
    samples = [pumped.sample(pattern, lambda: turns.randrange(10_000)) for _ in range(300)]
    tried = (f"{start}{said}{end}" for said in samples for start in ("", "a ") for end in ENDS)
    return [text for text in (*tried, *OTHERS) if pattern.search(text)]


@pytest.mark.parametrize(("words", "pattern", "small"), TRIED, ids=[pattern.pattern[:40] for _, pattern, _ in TRIED])
def test_what_an_expression_finds_has_one_of_its_words(
    words: tuple[str, ...], pattern: re.Pattern[str], small: bool
) -> None:
    found = texts_of(pattern)
    assert found
    assert [text for text in found if not (may_say if small else says)(text, words)] == []


@pytest.mark.parametrize(("cheaper", "pattern", "small"), CHEAPER_FIRST)
def test_where_an_expression_finds_something_so_does_the_cheaper_one(
    cheaper: re.Pattern[str], pattern: re.Pattern[str], small: bool
) -> None:
    found = texts_of(pattern)
    assert found
    assert [text for text in found if not cheaper.search(text.lower() if small else text)] == []


@pytest.mark.parametrize("text", ["retry\u0131ng", "RETRY\u0130NG", "retrie\u017f exhausted, retrying"])
def test_letters_that_stand_for_small_ones_beyond_ascii_are_tried(text: str) -> None:
    """Those are small in no other way, and an expression finds them."""
    assert may_say(text, ("retrying",))
    assert not may_say("tried again", ("retrying",))
