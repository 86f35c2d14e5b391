"""What is wrong with a file, each problem in a line for people, beginning with the key at which they find it."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from redrive.classification.causes import Cause
from redrive.settings.models import known_keys
from redrive.settings.words import nearest, quoted

#: What pydantic calls by its name in Python, and its name in YAML.
_IN_YAML = (
    (re.compile(r"a valid tuple"), "a list, as in [a, b]"),
    (re.compile(r"^Tuple should"), "should"),
    (re.compile(r"a valid dictionary(?: or instance of \w+)?"), "a mapping, as in {key: value}"),
    (re.compile(r"a valid string"), "a text"),
)
#: The path of a key, or of an item of a list.
Key = tuple[str | int, ...]


class Problem(NamedTuple):
    """What is wrong at a key, for people."""

    key: Key
    line: str

    @property
    def route(self) -> str | None:
        """The route that alone has it; None where it is everybody's."""
        return str(self.key[1]) if self.key[:1] == ("routes",) and len(self.key) > 1 else None


def lines(problems: Iterable[Problem]) -> str:
    """All of them, each line once."""
    return "\n".join(dict.fromkeys(problem.line for problem in problems))


def dotted(key: Key) -> str:
    """``key`` as people write it."""
    return ".".join(str(step) for step in key) or "the file"


def line_of(key: Key, detail: ErrorDetails) -> str:
    """The line about what pydantic found at ``key``; no value that may be a secret is in it."""
    context = detail.get("ctx", {})
    is_name = bool(key) and key[-1] == "[key]"
    key = tuple(step for step in key if step != "[key]")
    match detail["type"]:
        case "missing":
            text = "is required"
        case "extra_forbidden":
            known = known_keys(key[:-1])
            text = f"unknown key{nearest(str(key[-1]), known)}; known: {', '.join(known)}"
        case "together":
            key, text = (*key, *str(context["key"]).split(".")), str(context["text"])
        case "enum" if is_name:
            causes = [cause.value for cause in Cause]
            text = f"is not a cause{nearest(str(key[-1]), causes)}; known: {', '.join(causes)}"
        case "string_pattern_mismatch" if is_name:
            text = "a route's name has 1 to 40 lower-case letters, digits and underscores"
        case "value_error":
            text = str(context["error"])
        case _:
            text = detail["msg"].replace("Input should be", "should be")
            for python, yaml in _IN_YAML:
                text = python.sub(yaml, text)
            given = detail["input"]
            if isinstance(given, str | int | float) and not _may_be_secret(key):
                text += f", not {quoted(given)}"
            choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
            if isinstance(given, str) and len(choices) > 1:
                text += nearest(given, choices)
    return f"{dotted(key)}: {text}"


#: Keys of which a value, or what is in it, may be a secret or hold one: addresses, paths of webhooks, what goes into a
#: request. Errors don't repeat it.
_SECRETIVE = frozenset(
    {
        *("arguments", "batch_bucket", "conf", "database", "history", "master", "page", "path", "query", "remote"),
        *("request", "staging"),
    }
)


def _may_be_secret(key: Key) -> bool:
    own = key[2:] if key[:1] == ("routes",) else key  # a route may be called anything
    return not _SECRETIVE.isdisjoint(own)


def first_causes(error: ValidationError) -> list[ErrorDetails]:
    """Its problems, without those that only follow: a list whose items are wrong also counts as too short."""
    details = error.errors()
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(
            len(other["loc"]) > len(detail["loc"]) and other["loc"][: len(detail["loc"])] == detail["loc"]
            for other in details
        )
    ]


def found_at(detail: ErrorDetails, given: dict[str, Any]) -> Key:
    """The key at which a person finds the problem: a value that a route inherits is wrong in ``defaults``."""
    loc: Key = detail["loc"]
    if len(loc) > 2 and loc[0] == "routes" and not _has(given, loc) and _has(given, ("defaults", *loc[2:])):
        return ("defaults", *loc[2:])
    return loc


def _has(value: Any, key: Key) -> bool:
    for step in key:
        if step == "[key]":
            continue
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True
