"""Subscription filters, as far as tests need them.

Knows ``attributes:key``, ``attributes.key = "v"``, ``attributes.key != "v"``, ``hasPrefix(attributes.key, "v")``,
each maybe after ``NOT``, joined by ``AND``; keys may be quoted. Parentheses, ``OR`` and escapes are not here.
"""

import re
from collections.abc import Callable, Mapping

Test = Callable[[Mapping[str, str]], bool]

_TERM = re.compile(
    r"""(?P<negated>NOT\s+|-)?(?:
        hasPrefix\(\s*attributes\."?(?P<prefix_key>[\w-]+)"?\s*,\s*"(?P<prefix>[^"]*)"\s*\)
      | attributes:"?(?P<has>[\w-]+)"?
      | attributes\."?(?P<key>[\w-]+)"?\s*(?P<operator>!?=)\s*"(?P<value>[^"]*)"
    )$""",
    re.VERBOSE,
)


def parse(text: str) -> Test:
    """The filter as a function of a message's attributes; raises ValueError for what isn't known here."""
    tests = [_term(part.strip()) for part in re.split(r"\s+AND\s+", text.strip())] if text.strip() else []
    return lambda attributes: all(test(attributes) for test in tests)


def _term(text: str) -> Test:
    found = _TERM.match(text)
    if found is None:
        raise ValueError(f"this stand-in does not know the filter {text!r}")
    part = found.groupdict()
    test: Test
    if part["has"]:
        test = lambda attributes: part["has"] in attributes  # noqa: E731
    elif part["prefix_key"]:
        test = lambda attributes: attributes.get(part["prefix_key"], "").startswith(part["prefix"])  # noqa: E731
    elif part["operator"] == "=":
        test = lambda attributes: attributes.get(part["key"]) == part["value"]  # noqa: E731
    else:
        test = lambda attributes: attributes.get(part["key"]) != part["value"]  # noqa: E731
    return (lambda attributes: not test(attributes)) if part["negated"] else test
