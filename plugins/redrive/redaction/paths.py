"""Paths into JSON: how they are written, and texts without what they name, also where these are cut off or broken."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final

from redrive.errors import SelectorError
from redrive.redaction.escapes import Unescaped
from redrive.redaction.masks import MASK, MASKED

MAX_STEPS: Final = 32


class _Any(Enum):
    STEP = "*"  # every name or position
    DEPTH = ".."  # any number of steps, also none


_Step = str | int | _Any
Steps = tuple[_Step, ...]

_STEP = re.compile(
    r"(\.\.)(?=[^.\[]|\[)|\.?(?:\[\*\]|(?<=\.)\*)|\.([^.\[\]'\"*?\s]{1,256})|(?<=\.\.)([^.\[\]'\"*?\s]{1,256})"
    r"|\['([^'*?]{1,256})'\]|\[([0-9]{1,6})\]"
)


def parse(text: str) -> Steps:
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


_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)
# A mask has a bracket, too.
_MAY_BEGIN = re.compile(rf"(?!{MASKED.pattern})[{{\[]")
_FRONT = re.compile(rf"[\s\ufeff]*+(?={_MAY_BEGIN.pattern})")
_State = frozenset[tuple[int, int]]  # which path, and how many of its steps are behind us


def begins_at(text: str) -> int | None:
    """Where the JSON begins if ``text`` is some, proper or not, maybe behind a byte order mark; else None."""
    front = _FRONT.match(text)
    return front and front.end()


def without_brackets(text: str) -> str:
    """``text`` up to where JSON may begin in it, and a mask for the rest."""
    found = _MAY_BEGIN.search(text)
    return text if found is None else text[: found.start()] + MASK


class Walk:
    """One pass over a JSON text, also one that is cut off or broken, that leaves out what paths name.

    It goes token by token with a stack of its own, so that neither depth nor breakage stops it, and what is shown keeps
    its spelling: no number is rounded, no field of the same name gets lost.
    """

    def __init__(self, text: str, paths: Sequence[Steps], nested: Callable[[str], str]) -> None:
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
        elif _closed(word) and ("{" in word or "[" in word or "\\u" in word):
            try:
                inner = str(json.loads(word, strict=False))
            except ValueError:
                self._proper = False
                return
            if begins_at(inner) is not None and (shown := self._nested(inner)) != inner:
                self._leave_out(token.start(), token.end(), json.dumps(shown, ensure_ascii=False))

    def _leave_out(self, start: int, end: int, instead: str) -> None:
        self._parts += [self._text[self._shown_to : start], instead]
        self._shown_to = end


def _closed(word: str) -> bool:
    return len(word) > 1 and word[0] == '"' and word[-1] == '"'


def before_values_of(names: Iterable[str]) -> re.Pattern[str]:
    """What stands before a value of one of ``names`` in a text that is no JSON, and in which no ``\\u`` is left."""
    either = "|".join(_as_written(name) for name in sorted(names, key=lambda name: (-len(name), name)))
    return re.compile(rf"(?<!\w)(?:{either})(?!\w)(?:\\{{0,15}}[\"'])?\s{{0,8}}(?:=>|[:=])\s{{0,8}}", re.IGNORECASE)


def _as_written(name: str) -> str:
    """What finds the name, bare and as JSON writes it, also within a JSON text within a JSON text."""
    parts = []
    for character in name:
        short = "/" if character == "/" else json.dumps(character, ensure_ascii=False)[2:-1]  # what follows a backslash
        if character == "\\":
            parts.append(r"\\{1,16}")
        elif len(short) == 1:
            parts.append(rf"(?:{re.escape(character)}|\\{{1,8}}{re.escape(short)})")
        else:
            parts.append(re.escape(character))
    return "".join(parts)


_BARE = re.compile(r"[^\s,;&}\])\"'<>]++")
_VALUE = re.compile(
    r'(?P<double>"(?:[^"\\]++|\\.)*+"?)|(?P<single>\'(?:[^\'\\]++|\\.)*+\'?)|'
    # With more backslashes in front than at its beginning, a quotation mark is within it.
    r'(?P<escaped>(?P<run>\\{1,15})"(?:[^"\\]++|(?P=run)\\++"|\\++(?!"))*+(?:(?P=run)")?)'
    rf"|(?P<container>[{{\[])|(?P<bare>{_BARE.pattern})",
    re.DOTALL,
)
_BRACKETS = re.compile(r"[{\[}\]]")


def without_values(text: str, names: re.Pattern[str]) -> str:
    """``text`` without the value behind each name that ``names`` finds (:func:`before_values_of`), JSON or not."""
    written, unescaped = text, Unescaped(text)
    text = unescaped.text
    parts, at, shown_to = [], 0, 0
    while found := names.search(text, at):
        at = found.end()
        value = _VALUE.match(text, at)
        if value is None:
            continue
        end = value.end()
        if value["container"]:
            end, depth = len(text), 0
            for bracket in _BRACKETS.finditer(text, value.start()):
                depth += 1 if bracket[0] in "{[" else -1
                if not depth:
                    end = bracket.end()
                    break
        quote = value[0][0] if value["double"] or value["single"] else (value["run"] + '"' if value["escaped"] else "")
        start, until = unescaped.place(at), unescaped.place(end)
        if value["bare"] and (bare := _BARE.match(written, start)):  # what an escape hides does not end it
            until = max(until, bare.end())
        if start >= shown_to:
            parts += [written[shown_to:start], quote, MASK, quote]
        at, shown_to = end, max(shown_to, until)
    parts.append(written[shown_to:])
    return "".join(parts)
