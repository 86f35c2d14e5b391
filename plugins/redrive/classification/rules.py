# ruff: noqa: E501 - lists of words stand in one line each
"""Which rule of the table decides about a failure text.

The text is cut where exceptions are chained, and the parts are looked at from the root
cause outwards. In the first part where a rule of tier :attr:`Tier.SAID` or :attr:`Tier.USUAL` matches, the
first such rule of the table wins. Only if no part has one, tier :attr:`Tier.GENERIC` is asked in the same
way, and after that :attr:`Tier.LAST`. A finding that knows no more than that something was raised is ``weak``:
``explain`` asks the learned model before it believes it, as it does where nothing was found.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final, NamedTuple

from redrive.classification import rule_table
from redrive.classification.causes import PROFILES, Cause
from redrive.classification.rule_table import SHORTEST_LITERAL, Tier
from redrive.classification.word_lists import WORDS, says


class Finding(NamedTuple):
    """A cause and why."""

    cause: Cause
    rule: str
    confidence: float
    last_resort: bool = False  # decided in tier LAST
    weak: bool = False  # no more than that something was raised


RULES: Final = rule_table.shipped()

#: What the broker's own reason means; asked where the text says nothing or only that it was given up.
REASONS: Final[dict[str, Finding]] = {
    "maxdeliverycountexceeded": Finding(Cause.MAX_DELIVERIES, "broker.max_delivery_count", 0.6),
    "delivery_limit": Finding(Cause.MAX_DELIVERIES, "broker.delivery_limit", 0.6),
    "maximumretryattempts": Finding(Cause.MAX_DELIVERIES, "broker.retry_attempts", 0.6),
    "ttlexpiredexception": Finding(Cause.MESSAGE_EXPIRED, "broker.ttl_expired", 0.95),
    "expired": Finding(Cause.MESSAGE_EXPIRED, "broker.expired", 0.95),
    "maximumeventageinseconds": Finding(Cause.MESSAGE_EXPIRED, "broker.event_age", 0.95),
    "headersizeexceeded": Finding(Cause.OVERSIZED, "broker.header_size", 0.95),
    "session id is null": Finding(Cause.ROUTING_FAILURE, "broker.no_session", 0.95),
    "maxtransferhopcountexceeded": Finding(Cause.ROUTING_FAILURE, "broker.hops", 0.95),
    "maxlen": Finding(Cause.ROUTING_FAILURE, "broker.maxlen", 0.9),
    "rejected": Finding(Cause.UNCLASSIFIED, "broker.rejected", 0.2),
}

# At the bottom of a chain of exceptions these say more than the wording of the wrappers above them.
_PLAIN_BUGS: Final = frozenset({"bug.null", "bug.key_or_index", "bug.type"})
_RAISED: Final = Cause.APPLICATION_BUG

# In the order of asking: stage by stage, within a stage as in the table.
_STAGE_OF: Final = {Tier.SAID: 0, Tier.USUAL: 0, Tier.GENERIC: 1, Tier.LAST: 2}
_ORDERED: Final = tuple(sorted(RULES, key=lambda rule: rule.tier))
_STAGES_OF: Final = tuple(_STAGE_OF[rule.tier] for rule in _ORDERED)
# Each for itself: a search for the beginning of one passes over most of a text, for any of several it does not.
_PATTERNS: Final = tuple(
    tuple(re.compile(expression, re.ASCII) for expression in rule.expressions) for rule in _ORDERED
)
_LOOSE_PATTERNS: Final = tuple(
    re.compile(rule.loose_pattern, re.ASCII) if rule.loose_pattern else None for rule in _ORDERED
)
_STAGES: Final = (0, 1, 2)
#: Up to this length a literal that is one word must begin a word of the text; longer ones say enough anywhere.
_SHORT: Final = 7


class _Literal(NamedTuple):
    """A literal, and the numbers of the rules that have it; of those that have it as a loose one apart."""

    text: str
    rules: tuple[int, ...]
    loosely: tuple[int, ...]


def _index() -> dict[str, list[_Literal]]:
    """Three letters of each literal -> the literal and the numbers of its rules.

    Two thousand literals would be two thousand searches for each text; so only those are searched for whose
    rarest three letters occur in it.
    """
    rules_of: dict[str, tuple[list[int], list[int]]] = {}
    for number, rule in enumerate(_ORDERED):
        for is_loose, literals in enumerate((rule.literals, rule.loose)):
            for literal in literals:
                rules_of.setdefault(literal, ([], []))[is_loose].append(number)
    frequency = Counter(gram for literal in rules_of for gram in _grams(literal))
    index: dict[str, list[_Literal]] = {}
    for literal, (numbers, loosely) in rules_of.items():
        rarest = min(_grams(literal), key=lambda gram: (frequency[gram], gram))
        index.setdefault(rarest, []).append(_Literal(literal, tuple(numbers), tuple(loosely)))
    return index


def _grams(text: str) -> set[str]:
    return set(map("".join, zip(*(text[at:] for at in range(SHORTEST_LITERAL)), strict=False)))


# Names such as ``TooManyRequestsException`` and ``RATE_LIMIT_EXCEEDED`` say the same as the words in them.
_WORDS: Final = re.compile(
    r"(?<![A-Za-z0-9_-])[A-Za-z]{1,40}(?:[_-][A-Za-z]{1,40}){1,8}|(?<![A-Za-z])[A-Z]?[a-z]{1,40}(?:[A-Z][a-z]{1,40}){1,10}",
    re.ASCII,
)
# A capital letter, an underscore or a hyphen first, of which there are few, and then what is before it.
_MAY_BE_WORDS: Final = re.compile(r"[A-Z_-](?<=[A-Za-z][_-]|[a-z][A-Z])(?=[A-Za-z])", re.ASCII)
_HUMPS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|[_-]", re.ASCII)


# Of what a text tells beside a failure, the name of a field is no failure: lockToken=7, backOffMultiplier = 5.0,
# "rateLimit":, (content-type: x).
# A name that says what failed, or how often, may be one.
_NAME_AND_VALUE: Final = (
    r"(?:(?:[A-Za-z]{1,40}(?:[_-][A-Za-z]{1,40}){1,8}|[A-Za-z]{1,40}[a-z][A-Z][A-Za-z]{1,80})(?==[^=\s]| = [^=\s]|\"\s?:)|"
    r"(?:(?<=[(])|(?<=, ))(?:[a-z]{1,40}[A-Z][A-Za-z]{1,80}|[a-z]{1,40}(?:[_-][a-z]{1,40}){1,4})(?=: [^\s]))"
)
_FIELD_NAME: Final = re.compile(
    # what costs most, last
    rf"(?=[A-Za-z])(?<![\w.<-])(?={_NAME_AND_VALUE})"
    r"(?![\w-]{0,80}(?i:err|code|status|reason|cause|except|fault|fail|count|attempt|deliver|retr|exceed|lost|"
    rf"expired|invalid|denied|missing|unknown|refus|reject|unavail)){_NAME_AND_VALUE}",
    re.ASCII,
)


# (1364, "Field 'brim' ..."): a number and a message, as Python's drivers print an error.
_PRINTED_CODE: Final = re.compile(r"\((?=[0-9]{3,5}, [bu]?[\"'])", re.ASCII)


# MongoServerError, servererrors.InvalidQueryException: what a driver raises for whatever its server answered. That the
# server failed is said otherwise: InternalServerError, HTTPServerError.
_OF_A_SERVER: Final = re.compile(
    r"(?<![A-Za-z])(?!Internal|HTTP|Http|Api|API|Web|Remote|Unexpected|Unknown)[A-Z][A-Za-z]{1,20}ServerErrors?(?![A-Za-z])|"
    r"(?<=[.])servererrors(?=[.][A-Z])",
    re.ASCII,
)


def _view(text: str) -> str:
    """What rules look at: lower case, and below it the names with their words apart; without the names of fields."""
    if len(text) > 2 * _LOOKED_AT:
        text = text[:_LOOKED_AT] + "\n" + text[-_LOOKED_AT:]
    has_names = _MAY_BE_WORDS.search(text) is not None
    if has_names and ("=" in text or '":' in text or ": " in text):
        text = _FIELD_NAME.sub("", text)
    text = _PRINTED_CODE.sub("(error ", text)
    if "ServerError" in text or "servererrors" in text:
        text = _OF_A_SERVER.sub("Error", text)
    names = _WORDS.findall(text) if has_names else []
    return text.lower() + "\n" + _HUMPS.sub(" ", "\n".join(names)).lower() if names else text.lower()


# Where a deeper cause begins: Java, Spring, .NET, Node, Ruby and PHP name the wrapper first.
_DEEPER: Final = re.compile(
    r"caused by:? |while trying to deserialize arguments: |nested exception is |---> |\[cause\]:? |cause by: |with root cause\n|root cause:? |inner exception:? |"
    r"lost task [^ \n]{1,12} in stage [^\n]{1,80}executor [^ \n)]{1,12}\): |innerexception:? |previous exception:? |exception_cause[\"']?[:=] ?",
    re.IGNORECASE | re.ASCII,
)
#: One of these is in every text of which :data:`_DEEPER` finds some, lower case.
_WORDS_OF_DEEPER: Final = (
    *("cause", "inner exception", "innerexception", "previous exception", "nested exception is "),
    *("--->", "lost task ", "deserialize arguments: "),
)
# Python names the deepest first and says so between the two.
_PYTHON_CHAIN: Final = "The above exception was the direct cause of the following exception"
_PYTHON_DURING: Final = "During handling of the above exception, another exception occurred"
# Frames: their class and file names say where, not why. Python's frames are followed by a line of code.
_FRAMES: Final = re.compile(
    r"(?:^|\n)(?:[ \t]{1,12}at [^\n]{0,600}|[ \t]{0,8}file \"[^\n\"]{0,400}\", line [^\n]{0,200}(?:\n[ \t]{4,12}[^ \t\n][^\n]{0,400})?|"
    r"#[^ \n]{1,5} [^\n]{0,600}|[ \t]{1,12}from [^\n]{0,300}:in [^\n]{0,200}|[ \t]{1,8}\.\.\. [^\n]{0,12} more)(?=\n|$)",
    re.IGNORECASE | re.ASCII,
)
_MAX_PARTS: Final = 24

_INDEX: Final = _index()
#: The rules of phrases in other languages than English.
_ELSEWHERE: Final = frozenset(
    number for number, rule in enumerate(_ORDERED) if rule.id.endswith((".localised", ".spoken"))
)
#: Characters of a text without its frames that rules look at, from its beginning and from its end.
_LOOKED_AT: Final = 3000


def without_frames(text: str) -> str:
    """``text`` without the lines that say where and not why."""
    return _FRAMES.sub("", text)


# GET /v2/rate-limits, https://<*>/deadlocks: what was asked for is called so, and didn't fail for it. The type of a
# problem (RFC 9457) is an address too, and says why.
_ASKED_FOR: Final = re.compile(
    r"/(?:(?<=GET /)|(?<=POST /)|(?<=PUT /)|(?<=PATCH /)|(?<=DELETE /)|(?<=HEAD /)|(?<=OPTIONS /)|(?<=://<[*]>/)"
    r"(?<!\"type\":\"https://<[*]>/)(?<!\"type\": \"https://<[*]>/)(?<!\"type\":\"http://<[*]>/)(?<!\"type\": \"http://<[*]>/))"
    r"[^\s\"'<>,;:()\]}]{1,400}",
    re.ASCII,
)


def without_requests(text: str) -> str:
    """``text``, masked, without the paths of requests."""
    return _ASKED_FOR.sub("/", text) if " /" in text or "://" in text else text


@lru_cache(maxsize=4096)
def find(text: str) -> Finding | None:
    """What a masked failure text says, or None where no rule of the table knows it."""
    text = without_requests(text)
    bare = without_frames(text)
    found = _find_in(list(_parts(bare)))
    if found is None and bare != text:
        # Nothing but frames, or none that says why: better a word from the frames than nothing, and less sure.
        found = _find_in([text])
        found = found and found._replace(confidence=found.confidence / 2)
    return found


def _find_in(parts: Sequence[str]) -> Finding | None:
    views = [_view(part) for part in parts]
    candidates = [_candidates(view) for view in views]
    for stage in _STAGES:
        for depth, (view, numbers) in enumerate(zip(views, candidates, strict=True)):
            for number in numbers:
                rule, patterns = _ORDERED[number], _PATTERNS[number]
                at_root = stage == 0 and depth == 0 and len(views) > 1 and rule.id in _PLAIN_BUGS
                if (_STAGES_OF[number] == stage or at_root) and (
                    not patterns
                    or any(pattern.search(view) for pattern in patterns)
                    or ((loose := _LOOSE_PATTERNS[number]) is not None and _may_mean(loose, view))
                ):
                    found = Finding(rule.cause, rule.id, rule.confidence, rule.tier is Tier.LAST)
                    # That something was raised says less than the words about it may.
                    if rule.cause is _RAISED and found.last_resort:
                        return found._replace(weak=True)
                    return found
    return None


def _is_word(literal: str) -> bool:
    # Scripts without blanks between words have no beginnings of words either.
    return literal.isascii() and literal.isalpha()


def _begins_a_word(literal: str, view: str) -> bool:
    """Whether ``literal`` stands at the beginning of a word: "stalled" is not in "installed"."""
    at = view.find(literal)
    while at > 0 and view[at - 1].isalpha():
        at = view.find(literal, at + 1)
    return at >= 0


def _candidates(view: str) -> list[int]:
    """The numbers of the rules of which a literal occurs in ``view``, in the order of asking."""
    numbers, loosely, said = _occurring(view)
    if loosely and not loosely <= numbers and _is_of_machines(view, said, loosely):
        numbers |= loosely
    return sorted(numbers)


def _occurring(view: str) -> tuple[set[int], set[int], str]:
    """The numbers of the rules of which a literal occurs in ``view``; of which a loose one does, and those literals."""
    numbers: set[int] = set()
    loosely: set[int] = set()
    said = ""
    for gram in _grams(view) & _INDEX.keys():
        for literal, rules, loose in _INDEX[gram]:
            if literal in view and (len(literal) > _SHORT or not _is_word(literal) or _begins_a_word(literal, view)):
                numbers.update(rules)
                if loose:
                    loosely.update(loose)
                    said += f" {literal}"
    return numbers, loosely, said


def is_of_machines(text: str) -> bool:
    """Whether a masked text is about machines, or about nothing else. Of one that is not in ASCII nobody knows."""
    return not text.isascii() or _is_of_machines(_view(without_frames(text)))


def is_of_business(text: str) -> bool:
    """Whether a masked text has words of failures which businesses have too, and is not about machines."""
    view = _view(without_frames(text))
    _, loosely, said = _occurring(view)
    return bool(loosely) and not _is_of_machines(view, said, loosely)


def says_nothing(text: str) -> bool:
    """Whether a masked text has no word but of machines and of anything: *see the log*, *scheduled in 2 s*."""
    return _words_in(_view(text)) <= _MACHINES | _ANYTHING | _PASSING


_PASSING: Final = frozenset(WORDS["of_passing"])
_MACHINES: Final = frozenset(WORDS["of_machines"])
_ANYTHING: Final = frozenset(WORDS["of_anything"])
_MACHINES_ELSEWHERE: Final = (_MACHINES | set(WORDS["of_machines_elsewhere"])).difference(
    WORDS["of_anything_elsewhere"]
)
_ANYTHING_ELSEWHERE: Final = _ANYTHING.union(WORDS["of_anything_elsewhere"])
_PLAIN_WORDS: Final = re.compile(r"[^\W\d_]{1,40}")
_ASCII_WORDS: Final = re.compile(r"[a-z]{1,40}", re.ASCII)


def _words_in(view: str) -> set[str]:
    return {*(_ASCII_WORDS if view.isascii() else _PLAIN_WORDS).findall(view)}


def _is_of_machines(view: str, said: str = "", loosely: AbstractSet[int] = frozenset()) -> bool:
    """Whether a text is about machines, or about nothing, but for what it ``said`` in words that may mean both, of the
    rules ``loosely``."""
    elsewhere = not _ELSEWHERE.isdisjoint(loosely)
    machines, anything = (_MACHINES_ELSEWHERE, _ANYTHING_ELSEWHERE) if elsewhere else (_MACHINES, _ANYTHING)
    words = _words_in(view).difference(said.split())
    return not words.isdisjoint(machines) or "://" in view or words <= anything


def _may_mean(pattern: re.Pattern[str], view: str) -> bool:
    """Whether a rule's loose expression is found in a text that is about machines."""
    return pattern.search(view) is not None and _is_of_machines(view)


def _parts(text: str) -> Iterator[str]:
    """The parts of a chain of exceptions, the root cause first."""
    blocks: Sequence[str]
    if _PYTHON_CHAIN in text or _PYTHON_DURING in text:
        # The direct cause is the deeper one. What happened "during handling" often hides what it was handling,
        # but a handler that fails for a reason of its own is what stopped the message: the later comes first.
        blocks = []
        for piece in text.split(_PYTHON_DURING):
            blocks = [*piece.split(_PYTHON_CHAIN), *blocks]
    else:
        blocks = [text]
    for block in blocks:
        parts = _DEEPER.split(block, maxsplit=_MAX_PARTS) if says(block.lower(), _WORDS_OF_DEEPER) else [block]
        yield from (part for part in reversed(parts) if part.strip())


def find_reason(reason: str) -> Finding | None:
    """What the broker's own reason code means (any case), or None if it is not one of its words."""
    return REASONS.get(reason.lower()) if reason else None


def document() -> str:
    """``docs/causes.md``: what every cause means, what is done, and what helps."""
    lines = [
        "# Causes",
        "",
        "<!-- Written by `python -m redrive.classification.rules > docs/causes.md`; a test holds it to the code. -->",
        "",
        "A route's own `rules` come first, then the built-in ones of `plugins/redrive/classification/rule_table.txt`, then a",
        "[learned model](adr/0009-learned-causes.md) (`learned: ` and the words that speak for the cause). Where it abstains, the",
        "text is `unclassified`. A broker's reason is the last resort.",
        "",
    ]
    for cause, profile in PROFILES.items():
        lines += [
            f"## {cause.value}",
            "",
            f"{profile.meaning} First verdict: `{profile.verdict.value}`.",
            "",
            profile.advice,
            "",
        ]
        reasons = sorted(reason for reason, finding in REASONS.items() if finding.cause is cause)
        if reasons:
            lines += [f"Broker reasons: {', '.join(f'`{reason}`' for reason in reasons)}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), end="")  # noqa: T201
