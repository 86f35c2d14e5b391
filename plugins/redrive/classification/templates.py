"""Templates of masked texts: which of them differ only in words that vary.

Masks blank what is a value by its form. What is left are values that look like words: user names, host
names, queues, classes. They are found by statistics over the *distinct* masked texts of one batch:

1. A text becomes tokens, and runs of equal tokens one (a list of three ids and one of five are the same).
2. Texts with equally many tokens that differ only in tokens of an identifier's form (digits, dots,
   underscores inside) are one template, except for names of exceptions, which always tell failures apart.
3. Templates that differ in a single place, in which many different words occur, are one template.

Known groups come first: a text that fits a known template has that template, so ids stay what they are.
The answer depends on the set of texts only, never on their order.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from redrive.classification.word_lists import WITHOUT_BLANKS, WORDS

WILDCARD: Final = "<*>"

#: From so many different words in one place on, the place is a value.
MANY_WORDS: Final = 5
#: Templates with fewer words than this say too little to be joined.
MIN_WORDS: Final = 3
#: Texts are compared in their first tokens only; what follows belongs to no template.
MAX_TOKENS: Final = 120
MAX_TEMPLATE: Final = 1000


class KnownGroup(NamedTuple):
    """A group that the ledger has already."""

    fingerprint: str
    cause: str
    template: str
    #: What people split off: failures of the group ``of`` (a fingerprint) belong here if they say ``words``.
    words: str = ""
    of: str = ""


class Place(NamedTuple):
    """Where a text belongs; ``fingerprint`` is that of the known group, "" for a new one."""

    template: str
    fingerprint: str = ""


# Blanks and punctuation part tokens; punctuation is a token of its own, so `key=value` has three.
_TOKEN: Final = re.compile(r"(?:[^\s,;=:()\[\]{}\"'`|.]|[.](?![.]))+|[.]{2,}|[^\s]", re.ASCII)
_IDENTIFIER: Final = re.compile(
    r"<[*a-z]{1,5}>|[0-9]|[A-Za-z0-9][.$#@/\\][A-Za-z0-9]|^[KMGT]?i?B$|^[mun]?s$|^secs?$|^[A-Z][a-z]{2}$", re.ASCII
)
# These tell failures apart even where they vary: names of exceptions, and the codes that masks have left.
_TELLING: Final = re.compile(
    r"(?:Exception|Error|Fault|Failure|Failed|Violation|Timeout)[A-Za-z]{0,20}$|(?:_ERROR|_EXCEPTION|_FAILED)$|^[0-9]{1,6}$|"
    r"^[A-Z]{2,5}-[0-9]{3,5}$|^[A-Z][A-Z0-9]{2}(?:\^[0-9]{1,2}){1,4}$|^[A-Z][A-Z0-9]{2}-[0-9]{1,2}$|^0[xX][0-9A-Fa-f]{4,8}$|^E?[A-Z0-9]{4,5}$|^code-[0-9]{1,2}$",
    re.ASCII,
)
# What was asked for tells, and the way to a field: /api/orders, customer.taxId
_OF_NAMES: Final = re.compile(
    r"[A-Za-z_]+(?:[.][A-Za-z_]+){1,3}|[a-z][a-z_-]*/[a-z][a-z_-]*|(?:/[A-Za-z][A-Za-z_-]*){1,6}", re.ASCII
)
_WITHOUT_BLANKS: Final = re.compile(f"[{WITHOUT_BLANKS}]")
_WORD: Final = re.compile(r"[A-Za-z0-9]", re.ASCII)
#: What stands between a name and the word that says so; behind a quoted name that word is near: 'sku' is a required
#: property.
_BETWEEN: Final = frozenset("'\"(:=[")
_NEAR: Final = 4
_BETWEEN_VALUE: Final = frozenset("'\":=#")
_OF_AN_ID: Final = frozenset(["with", "for", "by", "exists", "found", "id", "ID", "Id", "number", "no", "key", "uuid"])
_NAMES: Final = frozenset(WORDS["names"])
# An index and a key may be data; the others keep what looks like an id.
_KINDS: Final = _NAMES - {"index", "key"}

Tokens = tuple[str, ...]


def tokens_of(text: str) -> Tokens:
    """The tokens of a masked text; a run of equal tokens, or of equal pairs, counts once."""
    tokens: list[str] = []
    for match in _TOKEN.finditer(text):
        tokens.append(match.group())
        if len(tokens) >= 2 and tokens[-1] == tokens[-2]:
            tokens.pop()
        elif len(tokens) >= 4 and tokens[-2:] == tokens[-4:-2]:
            del tokens[-2:]
        if len(tokens) >= MAX_TOKENS:
            break
    return tuple(tokens)


def mine(weights: Mapping[str, int], known: Sequence[KnownGroup] = ()) -> dict[str, Place]:
    """The place of each text of ``weights`` (text to number of messages).

    Memory is a few hundred bytes for each text, and time grows with their number.
    ``known`` templates keep their fingerprints.
    """
    finder = KnownTemplates(known)
    places: dict[str, Place] = {}
    open_texts: dict[Tokens, list[str]] = {}
    for text in sorted(weights):
        tokens = tokens_of(text)
        group = finder.match(tokens)
        if group is not None:
            places[text] = Place(group.template, group.fingerprint)
        else:
            open_texts.setdefault(tokens, []).append(text)
    for tokens_list, template in _clusters({*open_texts, *finder.by_tokens}):
        groups = [finder.by_tokens[tokens] for tokens in tokens_list if tokens in finder.by_tokens]
        if groups:
            first = min(groups)
            place = Place(first.template, first.fingerprint)
        else:
            place = Place(_readable(open_texts[min(tokens_list)][0], template))
        for tokens in tokens_list:
            for text in open_texts.get(tokens, ()):
                places[text] = place
    return places


class KnownTemplates:
    """Finds the known template that a text fits: the one with the fewest wildcards.

    A text is held against those only that have a token in common with it, the rarest that each has, so that what a
    text costs hardly grows with what is known.
    """

    def __init__(self, known: Iterable[KnownGroup]) -> None:
        self.by_tokens: dict[Tokens, KnownGroup] = {}
        for group in sorted(known):
            self.by_tokens.setdefault(tokens_of(group.template), group)
        varying = [tokens for tokens in self.by_tokens if WILDCARD in tokens]
        frequency = Counter(place for tokens in varying for place in _places(tokens))
        self._by_place: dict[tuple[int, int, str], list[Tokens]] = {}
        for tokens in varying:
            rarest = min(_places(tokens), key=lambda place: (frequency[place], place), default=(len(tokens), -1, ""))
            self._by_place.setdefault(rarest, []).append(tokens)

    def match(self, tokens: Tokens) -> KnownGroup | None:
        """The group of the template that ``tokens`` of a text fit."""
        exact = self.by_tokens.get(tokens)
        if exact is not None or not self._by_place:
            return exact
        fitting = [
            (template.count(WILDCARD), self.by_tokens[template])
            for place in ((len(tokens), -1, ""), *_places(tokens))
            for template in self._by_place.get(place, ())
            if all(
                wanted == token or (wanted == WILDCARD and not _tells(token) and not _is_named(tokens, at))
                for at, (wanted, token) in enumerate(zip(template, tokens, strict=True))
            )
        ]
        return min(fitting)[1] if fitting else None


def _places(tokens: Tokens) -> Iterator[tuple[int, int, str]]:
    """The fixed tokens of a text or template, each with its place and how many there are."""
    length = len(tokens)
    return ((length, at, token) for at, token in enumerate(tokens) if token != WILDCARD)


def _clusters(texts: Iterable[Tokens]) -> list[tuple[list[Tokens], Tokens]]:
    """``texts`` in clusters of one template each; a template has WILDCARD where its texts differ."""
    skeletons: dict[Tokens, list[Tokens]] = {}
    for tokens in sorted(texts):
        skeleton = tuple(
            token if (kept := _skeleton(token)) != token and _follows(tokens, at, _KINDS) else kept
            for at, token in enumerate(tokens)
        )
        skeletons.setdefault(skeleton, []).append(tokens)
    clusters = list(skeletons.items())
    clusters = _joined(clusters)
    return [(members, _template(members)) for _, members in clusters]


@lru_cache(maxsize=1 << 16)
def _skeleton(token: str) -> str:
    if _IDENTIFIER.search(token) and not _TELLING.search(token) and not _OF_NAMES.fullmatch(token):
        # Where blanks part no words, a token is a whole clause.
        return token if _WITHOUT_BLANKS.search(token) else WILDCARD
    return token


@lru_cache(maxsize=1 << 16)
def _tells(token: str) -> bool:
    return _TELLING.search(token) is not None or _OF_NAMES.fullmatch(token) is not None


def _is_named(tokens: Tokens, at: int) -> bool:
    """Whether the word before, or behind, says that this one names what is broken: *column 'email'*."""
    if _follows(tokens, at, _NAMES):
        return True
    if at + 2 < len(tokens) and tokens[at + 1] == "'":
        return any(token in _NAMES for token in tokens[at + 2 : at + 2 + _NEAR])
    return _introduces_value(tokens, at)


def _follows(tokens: Tokens, at: int, words: frozenset[str]) -> bool:
    """Whether the word before, in front of quotes and the like, is one of ``words``."""
    before = at - 1
    while before >= 0 and tokens[before] in _BETWEEN:
        before -= 1
    return before >= 0 and tokens[before].lower() in words


def _introduces_value(tokens: Tokens, at: int) -> bool:
    """Whether a word says of what kind the value behind it is: *Customer <*> not found*, *Customer with id <*>*."""
    behind = at + 1
    while behind < len(tokens) and (tokens[behind] in _BETWEEN_VALUE or tokens[behind] in _OF_AN_ID):
        behind += 1
    return behind < len(tokens) and tokens[behind] == WILDCARD and tokens[at].isalpha()


@lru_cache(maxsize=1 << 16)
def _is_word(token: str) -> bool:
    return _WORD.search(token) is not None


def _joined(clusters: list[tuple[Tokens, list[Tokens]]]) -> list[tuple[Tokens, list[Tokens]]]:
    """Clusters that differ in one word at a place where many words occur become one, place by place."""
    changed = True
    while changed:
        changed = False
        taken: set[int] = set()
        merged: list[tuple[Tokens, list[Tokens]]] = []
        for at, _, numbers in sorted(_alike(clusters), key=lambda item: (-len(item[2]), item[0], item[1])):
            free = [number for number in numbers if number not in taken]
            if len({clusters[number][0][at] for number in free}) < MANY_WORDS:
                continue
            taken.update(free)
            skeleton = clusters[free[0]][0]
            members = sorted(tokens for number in free for tokens in clusters[number][1])
            merged.append(((*skeleton[:at], WILDCARD, *skeleton[at + 1 :]), members))
            changed = True
        clusters = [cluster for number, cluster in enumerate(clusters) if number not in taken] + merged
    return clusters


def _alike(clusters: Sequence[tuple[Tokens, list[Tokens]]]) -> Iterator[tuple[int, Tokens, list[int]]]:
    """A place, what is beside it, and the clusters that have a word there and are alike beside it: many, or none.

    What is beside a place is told by a sum of hashes without that place's, so that of a text of n tokens not n texts of
    n - 1 are made; and one place is looked at after the other, so that memory is that of one.
    """
    sums: dict[int, int] = {}
    for number, (skeleton, _) in enumerate(clusters):
        if sum(1 for token in skeleton if token != WILDCARD and _is_word(token)) >= MIN_WORDS:
            sums[number] = hash(len(skeleton)) + sum(map(hash, enumerate(skeleton)))
    for at in range(max((len(clusters[number][0]) for number in sums), default=0)):
        beside: dict[int, list[int]] = {}
        for number, whole in sums.items():
            skeleton = clusters[number][0]
            if (
                at < len(skeleton)
                and _is_word(token := skeleton[at])
                and not _tells(token)
                and not _is_named(skeleton, at)
            ):
                beside.setdefault(whole - hash((at, token)), []).append(number)
        for numbers in beside.values():
            if len(numbers) < MANY_WORDS:
                continue
            by_rest: dict[Tokens, list[int]] = {}  # different ones may have one hash
            for number in numbers:
                skeleton = clusters[number][0]
                by_rest.setdefault(skeleton[:at] + skeleton[at + 1 :], []).append(number)
            yield from ((at, rest, those) for rest, those in by_rest.items() if len(those) >= MANY_WORDS)


def _template(members: Sequence[Tokens]) -> Tokens:
    columns = zip(*members, strict=True)
    return tuple(values[0] if len(set(values)) == 1 else WILDCARD for values in columns)


def _readable(text: str, template: Tokens) -> str:
    """``text`` with its varying tokens blanked: spaces as in the text, at most MAX_TEMPLATE characters."""
    if tokens_of(text) == template:
        return text[:MAX_TEMPLATE]
    own = tokens_of(text)
    varying = {token for token, kept in zip(own, template, strict=True) if kept == WILDCARD and token != WILDCARD}
    pieces: list[str] = []
    end = 0
    at = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if at < len(own) and token == own[at]:
            kept = template[at]
            at += 1
        else:
            kept = WILDCARD if token in varying else token
        pieces.append(text[end : match.start()] + kept)
        end = match.end()
    return "".join(pieces)[:MAX_TEMPLATE]
