"""Texts that are made of a pattern's own parts: what leads to each of its repetitions, and what that repeats, often."""

import importlib
import pkgutil
import re
import re._constants as codes
import re._parser as parser
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_OF_CATEGORY = {
    codes.CATEGORY_DIGIT: "7", codes.CATEGORY_SPACE: " ", codes.CATEGORY_WORD: "w", codes.CATEGORY_NOT_DIGIT: "x",
    codes.CATEGORY_NOT_SPACE: "x", codes.CATEGORY_NOT_WORD: "-",
}  # fmt: skip
_PREFERRED = "xX a1.<:-(=,/\t"


def patterns_of(package: ModuleType) -> dict[str, re.Pattern[str]]:
    """Every compiled pattern of the package's modules, also in their tables, by where it is."""
    found: dict[str, re.Pattern[str]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            _walk(value, f"{module.name.rpartition('.')[2]}.{name}", found)
    return {where: found[where] for where in sorted(found)}


def _walk(value: object, where: str, found: dict[str, re.Pattern[str]], depth: int = 0) -> None:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        if not any(value is one for one in found.values()):
            found[where] = value
    elif depth < 4 and isinstance(value, (tuple, list)):
        for number, one in enumerate(value):
            _walk(one, f"{where}[{number}]", found, depth + 1)
    elif depth < 4 and isinstance(value, Mapping):
        for key, one in value.items():
            _walk(one, f"{where}[{str(key)[:20]}]", found, depth + 1)


def pumped(pattern: re.Pattern[str], length: int) -> Iterator[str]:
    """Texts of that length that almost match: each repetition of the pattern for itself, and within another."""
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    seen = set()
    for before, piece in [*_repeated(tree, ""), *((("", one)) for one in _with_one_long(tree))]:
        for begun, unit in ((before, piece), ("", before + piece)):
            if unit and (begun, unit) not in seen:
                seen.add((begun, unit))
                for end in ("!", "\x01"):
                    yield (begun + unit * (length // len(unit) + 1))[: length - 1] + end


def sample(pattern: re.Pattern[str], turn: Callable[[], int]) -> str:
    """A text that the pattern matches, more or less; ``turn`` says at each choice which of several."""
    return _sample(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG), turn)


def _sample(tree: Any, turn: Callable[[], int] = lambda: 0) -> str:
    out = []
    for op, value in tree:
        if op is codes.LITERAL:
            out.append(chr(value))
        elif op is codes.NOT_LITERAL:
            out.append("x" if value != ord("x") else "y")
        elif op is codes.ANY:
            out.append("x")
        elif op is codes.IN:
            out.append(_one_of(value, turn()))
        elif op is codes.BRANCH:
            out.append(_sample(value[1][turn() % len(value[1])], turn))
        elif op in _REPEATS:
            out.append(_sample(value[2], turn) * max(value[0], min(1, value[1])))
        elif op is codes.GROUPREF:
            out.append('"')
        elif inner := _inside(op, value):
            out.append(_sample(inner, turn))
    return "".join(out)


def _one_of(items: Any, turn: int) -> str:
    either = "".join(
        chr(value) if op is codes.LITERAL
        else chr(value[0]) + chr((value[0] + value[1]) // 2) if op is codes.RANGE
        else _OF_CATEGORY.get(value, "") if op is codes.CATEGORY else ""
        for op, value in items
    )  # fmt: skip
    if items[0][0] is codes.NEGATE:
        either = "".join(char for char in _PREFERRED if char not in either and not (" " in either and char.isspace()))
    return either[turn % len(either)] if either else "x"


def _inside(op: Any, value: Any) -> Any:
    """What a group has in it; None of what is looked ahead for, or no group."""
    return value[3] if op is codes.SUBPATTERN else value if op is codes.ATOMIC_GROUP else None


def _repeated(tree: Any, before: str) -> Iterator[tuple[str, str]]:
    """What leads to a repetition, and what it repeats."""
    for op, value in tree:
        if op in _REPEATS:
            if value[1] > 3:
                for turn in range(3):
                    yield before, _sample(value[2], lambda turn=turn: turn)
            yield from _repeated(value[2], before)
        elif op is codes.BRANCH:
            for branch in value[1][:40]:
                yield from _repeated(branch, before)
        elif inner := _inside(op, value):
            yield from _repeated(inner, before)
        before += _sample([(op, value)])


def _with_one_long(tree: Any) -> Iterator[str]:
    """What the pattern, or a part of it that it repeats, matches where one repetition within it is long."""
    for op, value in tree:
        inner = value[2] if op in _REPEATS else _inside(op, value)
        for branch in value[1][:40] if op is codes.BRANCH else [inner] if inner else []:
            if op in _REPEATS and value[1] > 2:
                for one in range(len(branch)):
                    if branch[one][0] in _REPEATS and branch[one][1][1] > 2:
                        long = _sample(branch[one][1][2]) * min(8, branch[one][1][1])
                        yield _sample(branch[:one]) + long + _sample(branch[one + 1 :])
            yield from _with_one_long(branch)
