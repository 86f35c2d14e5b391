"""What people are not shown: the values that a route's ``redact`` names, masked in any text on its way to eyes.

Rules are ``email``, ``card`` (a payment card's number with a right check digit), ``credentials`` (bearer tokens, and
what stands behind ``password=`` and the like), ``attribute:NAME`` (a header's value) and paths into JSON such as
``$.customer.name``, ``$.items[*].phone`` or ``$..iban`` (at any depth).

Masking is for pages, examples and logs. Staging, the review table and what is redelivered are never touched. It errs
on the side of masking: a body that is cut off or no proper JSON is walked as far as it goes, and what looks like a
value of the last name of a path is masked there too. Everything here takes time linear in the length of the text and
raises nothing, whatever the text is.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol

from redrive.errors import SelectorError
from redrive.selectors import parse_path

EMAIL: Final = "email"
CARD: Final = "card"
CREDENTIALS: Final = "credentials"
ATTRIBUTE: Final = "attribute:"
MASK: Final = "[redacted]"
MASK_EMAIL: Final = "[redacted email]"
MASK_CARD: Final = "[redacted card]"
MASK_CREDENTIALS: Final = "[redacted credentials]"
#: What tells a text that was copied from where it had been masked, or locked (``restored_values``).
MASKED: Final = re.compile(r"\[redacted(?: email| card| credentials| [0-9]{1,6})?\]")
MAX_STEPS: Final = 32
#: A JSON text within a JSON string within …: so deep is looked.
MAX_NESTED_TEXTS: Final = 3


class Redacts(Protocol):
    """Anything with rules, such as a route's settings."""

    @property
    def redact(self) -> Sequence[str]: ...


class _Any(Enum):
    STEP = "*"  # every name or position
    DEPTH = ".."  # any number of steps, also none


_Step = str | int | _Any
_Path = tuple[_Step, ...]

_STEP = re.compile(
    r"(\.\.)(?=[^.\[]|\[)|\.?(?:\[\*\]|(?<=\.)\*)|\.([^.\[\]'\"*?\s]{1,256})|(?<=\.\.)([^.\[\]'\"*?\s]{1,256})"
    r"|\['([^'*?]{1,256})'\]|\[([0-9]{1,6})\]"
)


class Redactor:
    """Masks texts by rules; a call takes a text and gives the text that may be shown."""

    def __init__(self, rules: Iterable[str]) -> None:
        """Raises :class:`~redrive.errors.SelectorError` for a rule that can't be read."""
        chosen = [check(rule) for rule in rules]
        self._email = EMAIL in chosen
        self._card = CARD in chosen
        self._credentials = CREDENTIALS in chosen
        self._headers = {one.removeprefix(ATTRIBUTE).lower() for one in chosen if one.startswith(ATTRIBUTE)}
        self._paths = tuple(dict.fromkeys(_parse(one) for one in chosen if one.startswith("$")))
        names = {next((step for step in reversed(path) if isinstance(step, str)), "") for path in self._paths} - {""}
        self._names = _values_of(names) if names else None

    def __call__(self, text: str) -> str:
        """``text`` with everything masked that the rules name, but headers, which only :meth:`header` knows."""
        if self._paths:
            text = self._by_path(text, 0)
        if self._email and ("@" in text or "0040" in text or "%40" in text):
            text = _without_emails(text)
        if self._card:
            text = _without_cards(text)
        if self._credentials:
            text = _CREDENTIALS.sub(MASK_CREDENTIALS, text)
        return text

    def header(self, name: str, value: str) -> str:
        """A header's value as it may be shown."""
        return MASK if name.lower() in self._headers else self(value)

    def shows(self, selector: str, value: str) -> bool:
        """Whether ``value``, which ``selector`` found (:mod:`redrive.selectors`), may be seen as it is."""
        kind, _, where = selector.partition(":")
        if kind == "attribute":
            return self.header(where, value) == value
        if kind != "body" or not self._paths:
            return self(value) == value
        path = parse_path(where)
        text = value if value[:1] in ("{", "[") else json.dumps(value)
        for step in reversed(path):  # as it stood in its body
            text = f"{{{json.dumps(step)}:{text}}}" if isinstance(step, str) else f"[{'null,' * step}{text}]"
        return self(text) == text and self(value) == value

    def headers(self, stored: str) -> str:
        """Headers as the review table holds them (JSON ``[[name, type, value], …]``), as they may be shown."""
        try:
            found = json.loads(stored)
            shown = [[name, kind, self.header(str(name), str(value))] for name, kind, value in found]
        except (ValueError, TypeError, RecursionError):
            return MASK if self._headers else self(stored)
        return json.dumps(shown, ensure_ascii=False)

    def changes(self, stored: str) -> str:
        """Corrections of headers as the review table holds them (a JSON object by name), as they may be shown."""
        try:
            found = json.loads(stored)
            shown = {
                name: value
                if value is None
                else [*value[:-1], self.header(name, str(value[-1]))]
                if isinstance(value, list)
                else self.header(name, str(value))
                for name, value in found.items()
            }
        except (ValueError, TypeError, AttributeError, IndexError, RecursionError):
            return MASK if self._headers else self(stored)
        return json.dumps(shown, ensure_ascii=False)

    def __bool__(self) -> bool:
        """Whether there is anything to mask."""
        return bool(self._email or self._card or self._credentials or self._headers or self._paths)

    def _by_path(self, text: str, depth: int) -> str:
        if text.lstrip()[:1] in ("{", "["):
            text, proper = _Walk(text, self._paths, self._nested(depth)).masked()
            if proper:
                return text
        return text if self._names is None else _without_values(text, self._names)

    def _nested(self, depth: int) -> Callable[[str], str]:
        if depth >= MAX_NESTED_TEXTS:
            return lambda text: text
        return lambda text: self._by_path(text, depth + 1)


def redactor(route: Redacts) -> Redactor:
    """What masks texts of this route; ``redactor(route)(text)`` is what may be shown of ``text``."""
    return of_rules(tuple(route.redact))


@lru_cache(maxsize=256)
def of_rules(rules: tuple[str, ...]) -> Redactor:
    """The same by the rules alone."""
    return Redactor(rules)


def as_example(text: str) -> str:
    """``text`` as it may be kept as the example of its group, which people of every route may see."""
    return of_rules((EMAIL, CARD, CREDENTIALS))(text)


def check(rule: str) -> str:
    """The rule, if it is one; raises :class:`~redrive.errors.SelectorError` if not."""
    if rule in (EMAIL, CARD, CREDENTIALS):
        return rule
    if rule.startswith(ATTRIBUTE) and 0 < len(rule) - len(ATTRIBUTE) <= 256:
        return rule
    if rule.startswith("$"):
        _parse(rule)
        return rule
    raise SelectorError(
        f"{rule[:80]!r}: write email, card, credentials or a path such as $.customer.name, or attribute:NAME"
    )


def _parse(text: str) -> _Path:
    """The steps of a path; beyond what selectors know, ``[*]`` and ``.*`` are any step, ``..`` any number of them."""
    steps: list[_Step] = []
    at = 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise SelectorError(
                f"{text[:80]!r}: can't read {text[at : at + 20]!r}; steps are .name, ['any name'], [0], [*] and ..name"
            )
        deep, name, after_deep, quoted, position = step.groups()
        if deep:
            steps.append(_Any.DEPTH)
        elif position is not None:
            steps.append(int(position))
        else:
            steps.append(name or after_deep or quoted or _Any.STEP)
        at = step.end()
    if not steps or steps[-1] is _Any.DEPTH:
        raise SelectorError(f"{text[:80]!r}: the path names nothing; write $.name")
    if len(steps) > MAX_STEPS:
        raise SelectorError(f"{text[:80]!r}: more than {MAX_STEPS} steps")
    return tuple(steps)


# --- paths ------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)
_State = frozenset[tuple[int, int]]  # which path, and how many of its steps are behind us


class _Walk:
    """One pass over a JSON text, also one that is cut off or broken, that leaves out what paths name.

    It goes token by token with a stack of its own, so that neither depth nor breakage stops it, and what is shown keeps
    its spelling: no number is rounded, no field of the same name gets lost.
    """

    def __init__(self, text: str, paths: Sequence[_Path], nested: Callable[[str], str]) -> None:
        self._text, self._paths, self._nested = text, paths, nested
        self._parts: list[str] = []
        self._shown_to = 0
        self._proper = True
        self._start: _State = self._with_depth({(number, 0) for number in range(len(paths))})

    def masked(self) -> tuple[str, bool]:  # noqa: PLR0912 - one branch per kind of token
        """The text as it may be shown, and whether it was proper enough to be sure that nothing was missed."""
        stack: list[tuple[str, _State, str | int]] = []  # container, what its members may match, the member we are at
        expects_value, hidden_from, hidden_depth, documents = True, -1, 0, 0
        for token in _TOKEN.finditer(self._text):
            word = token[0]
            match word:
                case "{" | "[":
                    self._proper &= expects_value
                    inner, hide = self._member(stack)
                    if hide and hidden_from < 0:
                        hidden_from, hidden_depth = token.start(), len(stack)
                    stack.append((word, inner, "" if word == "{" else 0))
                    expects_value = word == "["
                case "}" | "]":
                    if not stack or (stack[-1][0] == "{") != (word == "}"):
                        self._proper = False
                        continue
                    stack.pop()
                    documents += not stack
                    if hidden_from >= 0 and len(stack) == hidden_depth:
                        self._leave_out(hidden_from, token.end(), f'"{MASK}"')
                        hidden_from = -1
                    expects_value = False
                case ",":
                    if not stack:
                        self._proper = False
                        continue
                    kind, states, member = stack[-1]
                    if kind == "[":
                        stack[-1] = (kind, states, member + 1 if isinstance(member, int) else 0)
                    expects_value = kind == "["
                case ":":
                    self._proper &= bool(stack) and stack[-1][0] == "{"
                    expects_value = True
                case _:
                    if stack and stack[-1][0] == "{" and not expects_value:
                        stack[-1] = ("{", stack[-1][1], self._name(word))
                        continue
                    self._proper &= bool(stack) and expects_value and (word[0] != '"' or _closed(word))
                    if hidden_from < 0:
                        self._scalar(token, hide=self._member(stack)[1])
                    if stack and stack[-1][0] == "{":
                        expects_value = False
        if hidden_from >= 0:  # cut off within what must not be shown
            self._leave_out(hidden_from, len(self._text), f'"{MASK}"')
        self._parts.append(self._text[self._shown_to :])
        return "".join(self._parts), self._proper and not stack and documents == 1

    def _member(self, stack: Sequence[tuple[str, _State, str | int]]) -> tuple[_State, bool]:
        """What the members of the present value may match, and whether a path ends at it."""
        if not stack:
            return self._start, False
        _, states, member = stack[-1]
        following, ends = set(), False
        for number, behind in states:
            step = self._paths[number][behind]
            if step is _Any.DEPTH:
                following.add((number, behind))
            elif step is _Any.STEP or (step == member and isinstance(step, int) == isinstance(member, int)):
                if behind + 1 == len(self._paths[number]):
                    ends = True
                else:
                    following.add((number, behind + 1))
        return self._with_depth(following), ends

    def _with_depth(self, states: set[tuple[int, int]]) -> _State:
        """The states, and those beyond a ``..`` that stands for no step at all."""
        beyond = {(number, at + 1) for number, at in states if self._paths[number][at] is _Any.DEPTH}
        return frozenset(states | beyond)

    def _name(self, word: str) -> str:
        if not _closed(word):
            self._proper = False
            return word.strip('"')
        try:
            return str(json.loads(word, strict=False))
        except ValueError:
            self._proper = False
            return word[1:-1]

    def _scalar(self, token: re.Match[str], *, hide: bool) -> None:
        word = token[0]
        if hide:
            self._leave_out(token.start(), token.end(), f'"{MASK}"')
        elif _closed(word) and word[1:].lstrip()[:1] in ("{", "["):
            try:
                inner = str(json.loads(word, strict=False))
            except ValueError:
                self._proper = False
                return
            if (shown := self._nested(inner)) != inner:
                self._leave_out(token.start(), token.end(), json.dumps(shown, ensure_ascii=False))

    def _leave_out(self, start: int, end: int, instead: str) -> None:
        self._parts += [self._text[self._shown_to : start], instead]
        self._shown_to = end


def _closed(word: str) -> bool:
    return len(word) > 1 and word[0] == '"' and word[-1] == '"'


def _values_of(names: Iterable[str]) -> re.Pattern[str]:
    """What stands before a value of one of ``names`` in a text that is no JSON."""
    either = "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))
    return re.compile(rf"(?<!\w)(?:{either})(?!\w)(?:\\?[\"'])?\s{{0,8}}(?:=>|[:=])\s{{0,8}}", re.IGNORECASE)


_VALUE = re.compile(
    r'(?P<double>"(?:[^"\\]++|\\.)*+"?)|(?P<single>\'(?:[^\'\\]++|\\.)*+\'?)|(?P<escaped>\\"(?:[^"\\]++|\\[^"])*+(?:\\")?)'
    r"|(?P<container>[{\[])|(?P<bare>[^\s,;&}\])\"'<>]++)",
    re.DOTALL,
)
_BRACKETS = re.compile(r"[{\[}\]]")


def _without_values(text: str, names: re.Pattern[str]) -> str:
    parts, at = [], 0
    while found := names.search(text, at):
        value = _VALUE.match(text, found.end())
        if value is None:
            parts.append(text[at : found.end()])
            at = found.end()
            continue
        end = value.end()
        if value["container"]:
            end, depth = len(text), 0
            for bracket in _BRACKETS.finditer(text, value.start()):
                depth += 1 if bracket[0] in "{[" else -1
                if not depth:
                    end = bracket.end()
                    break
        quote = value[0][0] if value["double"] or value["single"] else ('\\"' if value["escaped"] else "")
        parts += [text[at : found.end()], quote, MASK, quote]
        at = end
    parts.append(text[at:])
    return "".join(parts)


# --- patterns ---------------------------------------------------------------------------------------------------

#: From the at sign on; JSON and URLs may spell it otherwise.
_AT_DOMAIN = re.compile(r"(?:@|\\u0040|%40)(?:[\w-]{1,63}\.){1,8}(?:xn--[\w-]{1,59}|[^\W\d_]{2,63})(?![\w-])")
#: What can't be part of the name before it.
_NOT_IN_NAME = re.compile(r"[\s@<>\"'(),:;\[\]{}|\\=/]")
_MAX_NAME = 256


def _without_emails(text: str) -> str:
    parts, at = [], 0
    for found in _AT_DOMAIN.finditer(text):
        start = found.start()
        while start > at and found.start() - start < _MAX_NAME and not _NOT_IN_NAME.match(text[start - 1]):
            start -= 1
        if start == found.start():
            continue
        parts += [text[at:start], MASK_EMAIL]
        at = found.end()
    parts.append(text[at:])
    return "".join(parts)


_CREDENTIALS = re.compile(
    r"(?<![a-z])(?:bearer|basic) [a-z0-9._~+/=-]{12,}+|(?<=ord=|swd=|pwd=|ret=|key=|ken=)[^ \t\n;&,\"']++",
    re.ASCII | re.IGNORECASE,
)
_DIGITS = re.compile(r"(?<![0-9A-Za-z_.])[0-9]+(?:[ .\u00a0-][0-9]+)*")
_GROUP = re.compile(r"[0-9]+")


def _without_cards(text: str) -> str:
    parts, at = [], 0
    for run in _DIGITS.finditer(text):
        if len(run[0]) < 13:
            continue
        for start, end in _cards(run[0]):
            start, end = start + run.start(), end + run.start()  # noqa: PLW2901 - from places in the run to places in the text
            bare = text[:start].rstrip()[-1:] in (":", ",", "[") and text[end : end + 1] in (",", "}", "]", "\n", "\r")
            quote = '"' if bare and text.lstrip()[:1] in ("{", "[") else ""  # a number of a JSON text: it stays JSON
            parts += [text[at:start], quote, MASK_CARD, quote]
            at = end
    parts.append(text[at:])
    return "".join(parts)


def _cards(run: str) -> Iterable[tuple[int, int]]:
    """Where card numbers are in a run of digits and separators: whole groups of digits, 13 to 19 of them together."""
    groups = list(_GROUP.finditer(run))
    first = 0
    while first < len(groups):
        digits, found = "", None
        for last in range(first, min(first + 19, len(groups))):
            digits += groups[last][0]
            if len(digits) > 19:
                break
            if len(digits) >= 13 and digits[0] in "23456" and _luhn(digits):
                found = last
        if found is None:
            first += 1
        else:
            yield groups[first].start(), groups[found].end()
            first = found + 1


def _luhn(digits: str) -> bool:
    """Whether the check digit is right."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0
