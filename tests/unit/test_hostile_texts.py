"""No text takes long: neither those that once did, nor those that are made of the patterns' own parts."""

import functools
import gc
import random
import re
import time
from collections.abc import Callable

import pytest
from pace import in_time
from pumped import patterns_of, pumped

from redrive import classification, redaction
from redrive.classification import similarity
from redrive.classification.explain import explain
from redrive.classification.failure_text import MAX_TEXT
from redrive.classification.template_parts import signature_of

#: What almost matched many times over, by what it was almost.
ALMOST = {
    "attempts": "Msg " + "1" * 24 + "g",
    "settings": "a=b," * 80 + "!",
    "settings of a caller": "level=a;;" * 200,
    "a list in a field": '{"hats": [' + '"x"    ' * 12 + "!",
    "a list of numbers in a field": '{"hats": [' + "1" * 40 + "!",
    "a list in a printed error": "HatError { hats: (" + "1" * 40 + "!",
    "a last line of blanks": "ValueError: x\n" + " " * 8_000 + "!",
    "dots before nothing": "TrackingId:" + "." * 8_000,
    "an answer by mail": "{x(550, b'xxx', " * 500,
    "SQL": "x; SQL [y " * 800,
    "answers of a search engine": "w[Elasticsearch exception [type=www, reason=]x" * 200,
}


def seconds(text: str) -> float:
    """What it takes to explain ``text``, of computing, however busy the machine is."""
    started = time.process_time()
    list(explain([{"text": text}]))
    return time.process_time() - started


@pytest.mark.parametrize("name", ALMOST)
def test_what_almost_matches_is_not_slow(name: str) -> None:
    list(explain([{"text": "once for what is read at first"}]))
    text = ALMOST[name][:MAX_TEXT]
    assert in_time(min(seconds(text), seconds(f"{text} ")), 0.3)  # a slow case takes seconds


SYLLABLES = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("lim", "rok", "tas", "nup", "vex", "zor")]


def word(number: int) -> str:
    return SYLLABLES[number % len(SYLLABLES)] + SYLLABLES[number // len(SYLLABLES) % len(SYLLABLES)]


def some_words(number: int) -> str:
    return " ".join(sorted(random.Random(number).sample(SYLLABLES[:24], 12)))


#: Templates of one form, of which each is held against the others; the n-th.
MANY = {
    "cut frames": lambda n: f"the hat is lost\n  at a.b.{word(n)}" + ("x.y" if n % 2 else "\u2026"),
    "cut short": lambda n: f"order failed {word(n)} {word(n * 7)}" + (" and no more" if n % 2 else "\u2026"),
    "in parentheses": lambda n: f"ValueError: the hat could not be put on ({some_words(n)})",
    "in front": lambda n: f"{some_words(n)}: the hat could not be put on",
}


@pytest.mark.parametrize("form", MANY)
def test_many_templates_of_one_form_are_told_apart_in_time(form: str) -> None:
    """Eight times as many take 6 to 14 times as long; what grows with the square of their number, 64 times."""
    templates = [MANY[form](number) for number in range(16_000)]
    for template in templates:
        signature_of(template)

    def took(number: int) -> float:
        started = time.process_time()
        similarity.clusters(templates[:number])
        return time.process_time() - started

    gc.collect()
    gc.disable()  # it goes through all that the tests before have left, now and then
    try:
        few, many = (min(took(number) for _ in range(2)) for number in (2_000, 16_000))
    finally:
        gc.enable()
    assert many < 32 * few


def test_who_says_more_is_found_however_many_say_it() -> None:
    chance = random.Random(7)
    some = [chance.sample(SYLLABLES[:10], chance.randrange(8)) for _ in range(700)]
    sets = {" ".join(words): frozenset(words) for words in some}
    said = similarity._above(sets)
    assert said == {value: [one for one in sets if words < sets[one]] for value, words in sets.items()}


LENGTHS = (20, 25, 30, 40, 60, 100, 160)
PATTERNS = patterns_of(classification) | patterns_of(redaction)
#: Modules of the latter whose patterns every text meets.
REDACTION = ("brackets", "cards", "complaints", "credentials", "emails", "tokens", "values")


def of_computing(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def test_the_patterns_are_found() -> None:
    assert len(PATTERNS) > 400
    assert {where.partition(".")[0] for where in PATTERNS} >= {"dress", "wordings", "grouping", "rules", *REDACTION}


@pytest.mark.parametrize("part", range(4))
def test_no_pattern_takes_exponential_time(part: int) -> None:
    """On short texts that are made of its own parts, the shortest first, so that one that does ends in time."""
    for where in list(PATTERNS)[part::4]:
        for text in (text for length in LENGTHS for text in pumped(PATTERNS[where], length)):
            find = functools.partial(PATTERNS[where].search, text)
            if (taken := of_computing(find)) > 0.05:  # once more, as others may have been at work
                assert in_time(min(taken, of_computing(find)), 0.05), (where, text)


@pytest.mark.parametrize("module", ["dress._FRONT", "wordings", "grouping", *(f"{name}." for name in REDACTION)])
def test_what_every_text_meets_takes_linear_time(module: str) -> None:
    """On a text of the longest length that is made of a pattern's own parts; others see a word or a line of it."""
    for where, pattern in PATTERNS.items():
        if not where.startswith(module):
            continue
        for text in pumped(pattern, MAX_TEXT):
            find = functools.partial(_match if module == "dress._FRONT" else _every, pattern, text)
            if (taken := of_computing(find)) > 0.25:
                assert in_time(min(taken, of_computing(find)), 0.25), (where, text[:200])


def _match(pattern: re.Pattern[str], text: str) -> object:
    return pattern.match(text)


def _every(pattern: re.Pattern[str], text: str) -> object:
    return [*pattern.finditer(text)]


def test_no_text_that_is_made_of_patterns_is_slow() -> None:
    """Some of them, as there are thousands, through all that a text goes through."""
    list(explain([{"text": "once for what is read at first"}]))
    texts = [text for pattern in PATTERNS.values() for text in pumped(pattern, MAX_TEXT)]
    for text in random.Random(11).sample(texts, 150):
        if (taken := seconds(text)) > 0.3:
            assert min(taken, seconds(f"{text[:-1]}?")) < 0.3, text[:200]
