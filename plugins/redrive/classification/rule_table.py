"""Reads the table of rules, ``rule_table.txt``: what wordings and codes mean which cause.

A rule is data: an id that never changes, a cause, a tier, a confidence, literals, and expressions if it has some.
Rules see the masked text in lower case, without stack frames, and the words inside its names
(``TooManyRequests``, ``RATE_LIMIT_EXCEEDED``) apart. A rule matches where one of its literals
occurs and, if it has some, one of its expressions is found; literals are what makes a few hundred rules cheap.
Literals and expressions that are ``loose`` stand in what people say of their business too: they count only where a
text is about machines (:func:`redrive.classification.rules.find`).

Expressions are written in the subset that Java and Python share, on lower-case ASCII, with bounded repetition.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import resources
from typing import Final, NamedTuple

from redrive.classification.causes import AUTOMATIC, Cause

#: Literals are looked up by so many letters.
SHORTEST_LITERAL: Final = 3


class Tier(IntEnum):
    """How much a match says; lower is asked first."""

    SAID = 0  # a code, a class or a phrase that means one thing
    USUAL = 1  # wording that usually means it
    GENERIC = 2  # a class of errors, a bare status, a bare "timeout"
    LAST = 3  # only says that it was given up


class Rule(NamedTuple):
    """One entry of the table."""

    id: str
    cause: Cause
    tier: Tier
    confidence: float  # that the cause is right where the rule decides, 0 to 1
    literals: tuple[str, ...]  # lower case; at least one must occur
    expressions: tuple[str, ...] = ()  # any of which must be found as well, where there are some
    loose: tuple[str, ...] = ()  # literals that count where the text is about machines
    loose_pattern: str = ""  # as ``pattern``, where the text is about machines

    @property
    def pattern(self) -> str:
        """The expressions as one."""
        return "|".join(self.expressions)


def shipped() -> tuple[Rule, ...]:
    """The rules that come with redrive, in the order of the file."""
    return parse((resources.files("redrive.classification") / "rule_table.txt").read_text(encoding="utf-8"))


def parse(table: str) -> tuple[Rule, ...]:
    """The rules of a table that is written as the head of ``rule_table.txt`` says.

    Raises ValueError with the number of a line that is not, or whose rule can't be.
    """
    entries: list[_Entry] = []
    for number, line in enumerate(table.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        head = _HEAD.fullmatch(line)
        if head is not None:
            entries.append(_Entry(number, head))
        elif entries and line.startswith(_INDENT):
            entries[-1].take(line.removeprefix(_INDENT), number)
        else:
            raise ValueError(f"line {number}: neither a rule nor what belongs to one: {line!r}")
    rules: dict[str, Rule] = {}
    for entry in entries:
        rule = entry.rule()
        if rules.setdefault(rule.id, rule) is not rule:
            raise ValueError(f"line {entry.number}: {rule.id} is there already")
    return tuple(rules.values())


_INDENT: Final = "    "
_HEAD: Final = re.compile(r"([a-z]+[.][a-z0-9_]+) +([a-z_]+) +([a-z]+) +([01](?:[.][0-9]+)?)")
_TIERS: Final = {tier.name.lower(): tier for tier in Tier}
_CAUSES: Final = {cause.value: cause for cause in Cause}
_AUTOMATIC: Final = frozenset(cause.value for cause in AUTOMATIC)


@dataclass(slots=True)
class _Entry:
    """A rule while it is read."""

    number: int  # of its line
    head: re.Match[str]
    literals: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    loose_expressions: list[str] = field(default_factory=list)
    expressions: list[str] = field(default_factory=list)

    def take(self, text: str, number: int) -> None:
        """Take one of the lines below the rule's own."""
        if text.startswith("@ "):
            codes = text[2:].split()
            self.literals += codes
            # What is for a person is, however little it says, and a 429 is hardly another number.
            sure = [code for code in codes if self.head[2] not in _AUTOMATIC or not code.startswith("5")]
            loose = [code for code in codes if code not in sure]
            if sure:
                self.expressions += _status(sure, "not")
            if loose:
                told, perhaps = _status(loose, "not (?:avail|ready|resp)")
                self.expressions.append(told)
                self.loose_expressions.append(perhaps)
        elif text.startswith("~ "):
            self.expressions.append(_unquoted(text[2:], number))
        else:
            literal = _unquoted(text.removeprefix("? "), number)
            if len(literal) < SHORTEST_LITERAL or literal != literal.lower():
                raise ValueError(f"line {number}: {literal!r} is too short for a literal, or not in lower case")
            (self.loose if text.startswith("? ") else self.literals).append(literal)

    def rule(self) -> Rule:
        """The whole rule."""
        name, cause, tier, confidence = self.head.groups()
        where = f"line {self.number}: {name}"
        pattern, perhaps = "|".join(self.expressions), "|".join(self.loose_expressions)
        literals = [*self.literals, *self.loose]
        if cause not in _CAUSES or tier not in _TIERS or not 0 < float(confidence) <= 1:
            raise ValueError(f"{where}: {cause} {tier} {confidence} is no cause, tier and confidence")
        if not literals:
            raise ValueError(f"{where} has no literal")
        if len(set(literals)) < len(literals):
            raise ValueError(f"{where} has a literal twice")
        try:
            re.compile(pattern, re.ASCII)
        except re.error as error:
            raise ValueError(f"{where}: {error}") from None
        return Rule(
            name,
            _CAUSES[cause],
            _TIERS[tier],
            float(confidence),
            tuple(self.literals),
            tuple(self.expressions),
            tuple(self.loose),
            perhaps,
        )


def _unquoted(text: str, number: int) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    if text != text.strip():
        raise ValueError(f"line {number}: what begins or ends with a blank stands in double quotes: {text!r}")
    return text


def _status(codes: Sequence[str], reason: str) -> tuple[str, str]:
    """The patterns of an HTTP status, wherever clients and servers put it: what it can't be taken for, and what has a
    number that may be any."""
    either = "|".join(codes)
    told = (
        r"(?:http|https|http/<\*>|http/[12](?:[.][01])?|status[ _-]?code|statuscode|response|response code|"
        r"response status|responded with|returned|http_code|http_status|httpstatus|http error)"
        + _said_behind(either)
        + "|"
        r"(?:^|[^0-9a-z.>])(?:"
        + either
        + r")(?:[ :,-]{1,3}|[)\]] )(?:\(?(?:bad|unauth|payment|forbidden|"
        + reason
        + r"|method|proxy|"
        r"request|conflict|gone|precondition|payload|content|uri|unsupported|unprocessable|locked|failed|too|internal|"
        r"server|client|service(?! not contained)|gateway|http|insufficient|network|error))"
        # alone in its line, as a header of codes is read
        r"|(?:^|\n)error code (?:" + either + r")(?:\n|$)"
    )
    return told, r"(?:status|received|with|got|code|error|errorcode|an error)" + _said_behind(either)


def _said_behind(either: str) -> str:
    return r"[\"']?(?: ?[:=>(\[#] ?| is | of | ){0,2}[\"'\[(]{0,2}(?:" + either + r")(?![0-9a-z])"
