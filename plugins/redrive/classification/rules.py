# ruff: noqa: E501 - lists of words stand in one line each
"""Which rule of the table decides about a failure text.

The text is cut where exceptions are chained, and the parts are looked at from the root
cause outwards. In the first part where a rule of tier :attr:`Tier.SAID` or :attr:`Tier.USUAL` matches, the
first such rule of the table wins. Only if no part has one, tier :attr:`Tier.GENERIC` is asked in the same
way, and after that :attr:`Tier.LAST`. What none of them knows, or of which only is known that something was
raised, is weighed word by word (``hints.words``), with a low confidence and in doubt for the cause that is not
sent again by itself; such findings are ``weak``, and ``explain`` asks the learned model before it believes them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from redrive.classification import rule_table
from redrive.classification.causes import AUTOMATIC, PROFILES, Cause
from redrive.classification.rule_table import SHORTEST_LITERAL, Tier


class Finding(NamedTuple):
    """A cause and why."""

    cause: Cause
    rule: str
    confidence: float
    last_resort: bool = False  # decided in tier LAST
    weak: bool = False  # single words, or no more than that something was raised


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

# What single words hint at, for texts that no family above knows. A word stands for all that begin with it.
_HINTS: Final[dict[Cause, dict[int, str]]] = {
    Cause.TRANSIENT_NETWORK: {
        3: "timeout timedout unreachable disconnect socket handshake closed",
        2: "connect reset refused network dns hostname peer transport hung-up timed elapsed",
        1: "host port remote stream reach respond",
    },
    Cause.TRANSIENT_DATABASE: {
        3: "deadlock rollback failover",
        2: "transaction locked",
        1: "database primary commit lock",
    },
    Cause.DEPENDENCY_UNAVAILABLE: {
        3: "unavailable outage maintenance overload offline degraded",
        2: "upstream gateway temporar backend downtime",
        1: "server service later again internal",
    },
    Cause.THROTTLED: {
        3: "throttl quota ratelimit",
        2: "rate burst frequent concurrency backoff",
        1: "limit many slow per retry wait",
    },
    Cause.CONSISTENCY_LAG: {
        3: "stale concurren optimistic eventual",
        2: "conflict revision replica precondition sync",
        1: "version yet pending progress modified",
    },
    Cause.RESOURCE_EXHAUSTED: {
        3: "memory disk heap oom",
        2: "exhaust allocat capacity storage descriptor insufficient",
        1: "space threads handles resource",
    },
    Cause.CONSUMER_STUCK: {
        3: "killed heartbeat stalled crashed evicted hung hang terminated liveness unresponsive",
        2: "worker shutdown interrupt restart abort stuck cancel",
        1: "process signal exit",
    },
    Cause.LEASE_EXPIRED: {3: "lease reservation visibility", 2: "renew unacked", 1: "lock ack expired"},
    Cause.DUPLICATE: {3: "duplicat idempot unique replay", 2: "already twice", 1: "exists same again"},
    Cause.MESSAGE_EXPIRED: {3: "ttl outdated expired", 2: "expir late", 1: "old age too"},
    Cause.MALFORMED_PAYLOAD: {
        3: "malformed decod pars schema deserial serializ corrupt unmarshal encod validat",
        2: "invalid format syntax convert mismatch unsupported illegal unrecogni truncat required incompatible bad garbage",
        1: "unexpected must field value payload body header empty version type expected missing charset json xml csv date",
    },
    Cause.MISSING_DATA: {
        3: "notfound nonexist orphan",
        2: "found exist unknown absent deleted missing removed unresolved dangling",
        1: "no not reference record lookup",
    },
    Cause.AUTH_FAILURE: {
        3: "denied forbid unauth permission credential password certificate privilege revoked",
        2: "verif token login signature secret authenti authoriz access expired allowed scope blocked suspended",
        1: "role key policy user account invalid rejected",
    },
    Cause.OVERSIZED: {
        3: "oversize toolarge",
        2: "large big bytes size length",
        1: "maximum max limit bigger exceed long",
    },
    Cause.ROUTING_FAILURE: {
        3: "routing unroutable undeliverable",
        2: "route handler destination exchange subscriber binding recipient endpoint queue topic",
        1: "listener no disabled full unknown",
    },
    Cause.APPLICATION_BUG: {
        3: "null undefined assert panic nil traceback unhandled uncaught bug segfault",
        2: "argument cast import attribute index module exception syntax overflow recursion uninitial initiali config",
        1: "error unexpected type variable function method state object code invalid",
    },
}
_HINT: Final[dict[str, tuple[tuple[Cause, int], ...]]] = {
    word: tuple(
        (cause, weight) for cause, words in _HINTS.items() for weight, line in words.items() if word in line.split()
    )
    for words in _HINTS.values()
    for line in words.values()
    for word in line.split()
}
_LONGEST_HINT: Final = max(map(len, _HINT))
_HINT_WORD: Final = re.compile(r"[a-z]{2,24}", re.ASCII)
# At the bottom of a chain of exceptions these say more than the wording of the wrappers above them.
_PLAIN_BUGS: Final = frozenset({"bug.null", "bug.key_or_index", "bug.type"})
#: The rule that weighs single words.
HINTS: Final = "hints.words"
_RAISED: Final = Cause.APPLICATION_BUG
#: Points from which hints decide, and by how much a cause that is sent again by itself must lead.
_ENOUGH: Final = 2
_LEAD: Final = 2

# In the order of asking: stage by stage, within a stage as in the table.
_STAGE_OF: Final = {Tier.SAID: 0, Tier.USUAL: 0, Tier.GENERIC: 1, Tier.LAST: 2}
_ORDERED: Final = tuple(sorted(RULES, key=lambda rule: rule.tier))
_PATTERNS: Final = tuple(re.compile(rule.pattern, re.ASCII) if rule.pattern else None for rule in _ORDERED)
_STAGES: Final = (0, 1, 2)
#: Up to this length a literal that is one word must begin a word of the text; longer ones say enough anywhere.
_SHORT: Final = 7


def _index() -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Three letters of each literal -> the literal and the numbers of its rules.

    Two thousand literals would be two thousand searches for each text; so only those are searched for whose
    rarest three letters occur in it.
    """
    rules_of: dict[str, list[int]] = {}
    for number, rule in enumerate(_ORDERED):
        for literal in rule.literals:
            rules_of.setdefault(literal, []).append(number)
    frequency = Counter(gram for literal in rules_of for gram in _grams(literal))
    index: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for literal, numbers in rules_of.items():
        rarest = min(_grams(literal), key=lambda gram: (frequency[gram], gram))
        index.setdefault(rarest, []).append((literal, tuple(numbers)))
    return index


def _grams(text: str) -> set[str]:
    return {text[at : at + SHORTEST_LITERAL] for at in range(len(text) - SHORTEST_LITERAL + 1)}


# Names such as ``TooManyRequestsException`` and ``RATE_LIMIT_EXCEEDED`` say the same as the words in them.
_WORDS: Final = re.compile(
    r"(?<![A-Za-z0-9_-])[A-Za-z]{1,40}(?:[_-][A-Za-z]{1,40}){1,8}|(?<![A-Za-z])[A-Z]?[a-z]{1,40}(?:[A-Z][a-z]{1,40}){1,10}",
    re.ASCII,
)
_HUMPS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|[_-]", re.ASCII)


def _view(text: str) -> str:
    """What rules look at: lower case, and below it the names with their words apart."""
    if len(text) > 2 * _LOOKED_AT:
        text = text[:_LOOKED_AT] + "\n" + text[-_LOOKED_AT:]
    names = _WORDS.findall(text)
    return text.lower() + "\n" + "\n".join(_HUMPS.sub(" ", name).lower() for name in names) if names else text.lower()


# Where a deeper cause begins: Java, Spring, .NET, Node, Ruby and PHP name the wrapper first.
_DEEPER: Final = re.compile(
    r"caused by:? |while trying to deserialize arguments: |nested exception is |---> |\[cause\]:? |cause by: |with root cause\n|root cause:? |inner exception:? |"
    r"innerexception:? |previous exception:? |exception_cause[\"']?[:=] ?",
    re.IGNORECASE | re.ASCII,
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
#: Characters of a text without its frames that rules look at, from its beginning and from its end.
_LOOKED_AT: Final = 3000


def without_frames(text: str) -> str:
    """``text`` without the lines that say where and not why."""
    return _FRAMES.sub("", text)


@lru_cache(maxsize=4096)
def find(text: str) -> Finding | None:
    """What a masked failure text says, or None where no rule of the table knows it."""
    bare = without_frames(text)
    found = _find_in(list(_parts(bare)))
    if found is None and bare != text:
        # Nothing but frames, or none that says why: better a hint from the frames than nothing, and less sure.
        found = _find_in([text])
        found = found and found._replace(confidence=found.confidence / 2)
    return found


def _find_in(parts: Sequence[str]) -> Finding | None:
    views = [_view(part) for part in parts]
    candidates = [_candidates(view) for view in views]
    for stage in _STAGES:
        for depth, (view, numbers) in enumerate(zip(views, candidates, strict=True)):
            for number in numbers:
                rule, pattern = _ORDERED[number], _PATTERNS[number]
                at_root = depth == 0 and stage == 0 and len(views) > 1 and rule.id in _PLAIN_BUGS
                if (_STAGE_OF[rule.tier] == stage or at_root) and (pattern is None or pattern.search(view) is not None):
                    found = Finding(rule.cause, rule.id, rule.confidence, rule.tier is Tier.LAST)
                    # That something was raised says less than the words about it do.
                    if rule.cause is _RAISED and found.last_resort:
                        return _hinted_in(views) or found._replace(weak=True)
                    return found
    return _hinted_in(views)


def _hinted_in(views: Sequence[str]) -> Finding | None:
    return next((found for found in map(_hinted, views) if found is not None), None)


def _hinted(view: str) -> Finding | None:
    """The cause that most words of ``view`` hint at; where it is close, the one for which nothing is sent again."""
    points: Counter[Cause] = Counter()
    for word in set(_HINT_WORD.findall(view)):
        for length in range(min(len(word), _LONGEST_HINT), 1, -1):
            hints = _HINT.get(word[:length])
            # Short words are whole words: "no" is not the beginning of "node".
            if hints is not None and (length > 4 or length == len(word)):
                for cause, weight in hints:
                    points[cause] += weight
                break
    if not points:
        return None
    bold = max((points[cause], cause) for cause in AUTOMATIC)
    careful = max(((points[cause], cause) for cause in points if cause not in AUTOMATIC), default=(0, bold[1]))
    score, cause = bold if bold[0] >= careful[0] + _LEAD else careful
    if score < _ENOUGH:
        return None
    return Finding(cause, HINTS, min(0.25 + 0.03 * score, 0.45), weak=True)


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
    numbers: set[int] = set()
    for gram in _grams(view) & _INDEX.keys():
        for literal, rules in _INDEX[gram]:
            if literal in view and (len(literal) > _SHORT or not _is_word(literal) or _begins_a_word(literal, view)):
                numbers.update(rules)
    return sorted(numbers)


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
        parts = _DEEPER.split(block, maxsplit=_MAX_PARTS)
        yield from (part for part in reversed(parts) if part.strip())


def find_reason(reason: str) -> Finding | None:
    """What the broker's own reason code means (any case), or None if it is not one of its words."""
    return REASONS.get(reason.lower()) if reason else None


def document() -> str:
    """``docs/causes.md``: what every cause means, what is done, what helps, and which rules find it."""
    lines = [
        "# Causes",
        "",
        "Generated by `python -m redrive.classification.rules > docs/causes.md` from `causes.py` and `rule_table.txt` beside it; a test fails when",
        "it is stale. Which rule decides is told in the docstring of `rules.py`. A route's own `rules` come before these.",
        "A text that no rule knows is answered by a learned model ([adr/0009](adr/0009-learned-causes.md)): `learned: `",
        "and the words that speak for the cause, with a calibrated confidence. Where that abstains, the text is weighed word by",
        "word: rule `hints.words`, confidence below 0.5. Both choose in doubt the cause that is not sent again by itself.",
        "",
    ]
    for cause, profile in PROFILES.items():
        lines += [
            f"## {cause.value}",
            "",
            profile.meaning,
            "",
            f"First verdict: `{profile.verdict.value}`.",
            "",
            profile.advice,
            "",
        ]
        rules = [rule for rule in RULES if rule.cause is cause]
        reasons = sorted(reason for reason, finding in REASONS.items() if finding.cause is cause)
        if reasons:
            lines += [f"Broker reasons (last resort): {', '.join(f'`{reason}`' for reason in reasons)}.", ""]
        if rules:
            lines += ["| rule | says | confidence | looks for, among others |", "|---|---|---|---|"]
        for rule in rules:
            some = ", ".join(f"`{literal.strip()}`" for literal in rule.literals[:5]).replace("|", "\\|")
            lines.append(f"| `{rule.id}` | {rule.tier.name.lower()} | {rule.confidence:.2f} | {some} |")
        if rules:
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), end="")  # noqa: T201
