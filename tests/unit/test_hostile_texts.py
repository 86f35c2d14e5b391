"""No text takes long: neither those that once did, nor those that are made of the patterns' own parts."""

import time

import pytest

from redrive.classification.explain import explain
from redrive.classification.failure_text import MAX_TEXT

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
    assert min(seconds(text), seconds(f"{text} ")) < 0.3  # a slow case takes seconds
