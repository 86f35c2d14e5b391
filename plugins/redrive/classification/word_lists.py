"""The words by which names are told from values, read from ``word_lists.txt``."""

import re
from importlib import resources
from typing import Final


def shipped() -> dict[str, list[str]]:
    """The lists by name, each in the order of the file; a blank after a backslash belongs to its word."""
    lists: dict[str, list[str]] = {}
    name = ""
    text = (resources.files("redrive.classification") / "word_lists.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if match := re.fullmatch(r"\[([a-z_]+)\]", line):
            name = match[1]
            lists[name] = []
        elif name:
            words = re.findall(r"(?:\\ |[^ ])+", line)
            lists[name] += [word.replace("\\ ", " ") for word in words]
    return lists


WORDS = shipped()
#: Letters of scripts that part no words by blanks, as a class of characters has them.
WITHOUT_BLANKS: Final = "\\u3005-\\u3007\\u3040-\\u30ff\\u3400-\\u9fff\\uac00-\\ud7af"


def says(text: str, words: tuple[str, ...]) -> bool:
    """Whether ``text`` has one of ``words`` anywhere: far cheaper to ask than an expression is to try."""
    for word in words:  # noqa: SIM110 - any() takes twice as long
        if word in text:
            return True
    return False


def may_say(text: str, words: tuple[str, ...]) -> bool:
    """Whether an expression that takes letters for small and capital ones may find one of ``words``, which are small.

    Beyond ASCII it takes more than these for one another (``\u017f`` for s, ``\u0131`` for i), so there it is tried.
    """
    return not text.isascii() or says(text.lower(), words)


def any_of(name: str) -> str:
    """The words of a list as alternatives of an expression, the longest first."""
    return "|".join(sorted((re.escape(word) for word in WORDS[name]), key=len, reverse=True))
