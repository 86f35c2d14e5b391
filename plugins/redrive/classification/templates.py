"""Templates of masked texts: which of them differ only in words that vary.

Masks blank what is a value by its form. What is left are values that look like words: user names, host
names, queues, classes. They are found by statistics over the *distinct* masked texts of one batch:

1. A text becomes tokens, and runs of equal tokens one (a list of three ids and one of five are the same).
2. Texts with equally many tokens that differ only in tokens of an identifier's form (digits, dots,
   underscores inside) are one template, except for names of exceptions, which always tell failures apart.
3. Templates that differ in a single place, in which many different words occur, are one template; so are those in
   which it is one of few names that stand for each other in other templates too.

Known groups come first: a text that fits a known template has that template, so ids stay what they are.
The answer depends on the set of texts only, never on their order.
"""

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations
from operator import eq
from typing import Final, NamedTuple

from redrive.classification.values_and_names import HOLDERS, is_of_failures, says_broken
from redrive.classification.word_lists import WITHOUT_BLANKS, WORDS

WILDCARD: Final = "<*>"

#: From so many different words in one place on, the place is a value.
MANY_WORDS: Final = 5
#: Where a word in front says that the place names a part of a program, it is a value from so many on: not so many
#: modules are broken at once, but what loads them. Columns, fields and codes are apart however many there are.
MANY_PARTS: Final = 12
#: Words that stand for each other in so many contexts are names.
CONTEXTS: Final = 3
#: So many, those that say least, are held against each other.
_MOST_CONTEXTS: Final = 32
#: Templates with fewer words than this say too little to be joined; with one less, where there are as many.
MIN_WORDS: Final = 3
#: A value has so many tokens at most where it is told by its place.
LONGEST_VALUE: Final = 6
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
_TOKEN: Final = re.compile(r"(?:[^\s,;=:()\[\]{}\"'`|.]++|[.](?![.]))+|[.]{2,}|[^\s]", re.ASCII)
_IDENTIFIER: Final = re.compile(
    r"<[*a-z]{1,5}>|[0-9]|[A-Za-z0-9][.$#@/\\][A-Za-z0-9]|^[KMGT]?i?B$|^[mun]?s$|^secs?$|^[A-Z][a-z]{2}$", re.ASCII
)
# These tell failures apart even where they vary: names of exceptions, and the codes that masks have left.
_TELLING: Final = re.compile(
    r"(?:Exception|Error|Fault|Failure|Failed|Violation|Timeout)[A-Za-z]{0,20}$|(?:_ERROR|_EXCEPTION|_FAILED)$|^-?[0-9]{1,9}[\uff09\u3001\u3002]?$|"
    r"^[A-Z]{2,5}-[0-9]{3,5}$|^AADSTS[0-9]{4,7}$|^[A-Z][A-Z0-9]{2}(?:\^[0-9]{1,2}){1,4}$|^[A-Z][A-Z0-9]{2}-[0-9]{1,2}(?:[.][0-9])?$|^[A-Z]{3}[+][0-9]{1,3}$|^[45][.][0-9][.][0-9]{1,3}$|^[0-9]{4}[A-Z]{1,2}$|^0[xX][0-9A-Fa-f]{2,8}$|^E?[A-Z0-9]{4,5}$|"
    r"^(?i:code|status|cause|reason|field|tag|kennzahl|number|(?:win)?errno|(?:win)?error|rc|signal|fehler|erreur|errore|felkod)"
    r"-[0-9]{1,3}[A-Z]?$",
    re.ASCII,
)
# A constant of words is a name, whatever digit one of them has: X509_V_ERR_CERT_REVOKED, HTTP2_REFUSED_STREAM.
_CONSTANT: Final = re.compile(
    r"(?=(?:[A-Z0-9]+_)*[A-Z]{3,}_(?:[A-Z0-9]+_)*[A-Z]{3,}(?:_|$))[A-Z][A-Z0-9]{0,20}(?:_[A-Z][A-Z0-9]{0,20})+"
)
# What was asked for tells, and the way to a field: /api/orders, customer.taxId
_OF_NAMES: Final = re.compile(
    r"[A-Za-z_]+(?:[.][A-Za-z_]+){1,3}|[A-Z][A-Za-z]+[.][a-z]+[A-Z][A-Za-z]*[0-9]{1,2}|[a-z][a-z_-]*/[a-z][a-z_-]*|(?:/[A-Za-z][A-Za-z_-]*){1,6}",
    re.ASCII,
)
_WITHOUT_BLANKS: Final = re.compile(f"[{WITHOUT_BLANKS}]")
_SHOUTED: Final = re.compile(r"[A-Z]{2,4}")
_WORD: Final = re.compile(r"[A-Za-z0-9]", re.ASCII)
#: What stands between a name and the word that says so; behind a quoted name that word is near: 'sku' is a required
#: property.
_BETWEEN: Final = frozenset("'\"(:=[")
_NEAR: Final = 4
_BETWEEN_VALUE: Final = frozenset("'\":=#")
_OF_AN_ID: Final = frozenset(["with", "for", "by", "exists", "found", "id", "ID", "Id", "number", "no", "key", "uuid"])
_NAMES: Final = frozenset(WORDS["names"])
_STOP: Final = frozenset(WORDS["stop"])
#: Beside words in a value: quotes, and what stands in names.
_IN_VALUES: Final = frozenset(["'", "-", "&", "<*>"])
# An index and a key may be data; the others keep what looks like an id.
_OF_TABLES: Final = frozenset(["index", "key"])
_KINDS: Final = _NAMES - _OF_TABLES
_OF_PROGRAMS: Final = frozenset(["module", "package", "extension", "function", "class", "service"])
_KINDS_OF_THINGS: Final = frozenset(
    word
    for kind in ("names", "nouns", "context", "values", "owners", "stop", "tellers", "units", "technical", "amounts")
    for word in WORDS[kind]
)
#: Yes and no: of what asks for one, both are answers.
_ANSWERS: Final = frozenset(
    form for word in ("true", "false", "yes", "no", "on", "off") for form in (word, word.title(), word.upper())
)
_BEFORE_ANSWERS: Final = (":", "=")
_TELLING_WORDS: Final = _NAMES | frozenset(WORDS["tells"])
_TELLING_BUT_TABLES: Final = _TELLING_WORDS - _OF_TABLES
_QUOTES: Final = ("'", "'")
#: What is quoted behind one of these names something: else it is blank by now.
_BEFORE_QUOTED_NAMES: Final = frozenset(["name", "path"])

Tokens = tuple[str, ...]


def tokens_of(text: str) -> Tokens:
    """The tokens of a masked text; a run of equal tokens, or of equal pairs, counts once."""
    every = _TOKEN.findall(text)
    if not (any(map(eq, every, every[1:])) or any(map(eq, every, every[2:]))):
        return tuple(every[:MAX_TOKENS])  # nothing is told twice in a row
    tokens: list[str] = []
    for token in every:
        tokens.append(token)
        if len(tokens) >= 2 and tokens[-1] == tokens[-2]:
            tokens.pop()
        elif len(tokens) >= 4 and tokens[-2:] == tokens[-4:-2]:
            del tokens[-2:]
        if len(tokens) >= MAX_TOKENS:
            break
    return tuple(tokens)


def mine(
    weights: Mapping[str, int], known: Sequence[KnownGroup] = (), *, at_one_place: bool = False
) -> dict[str, Place]:
    """The place of each text of ``weights`` (text to number of messages).

    Where all were raised ``at_one_place`` of the code, a key that is looked up may be data.
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
    for tokens_list, template in _clusters({*open_texts, *finder.by_tokens}, at_one_place):
        groups = [finder.by_tokens[tokens] for tokens in tokens_list if tokens in finder.by_tokens]
        if groups:
            first = min(groups)
            place = Place(first.template, first.fingerprint)
        else:
            shown = min(tokens for tokens in tokens_list if len(tokens) == len(template))
            place = Place(_readable(open_texts[shown][0], shown, template))
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


def _clusters(texts: Iterable[Tokens], at_one_place: bool) -> list[tuple[list[Tokens], Tokens]]:
    """``texts`` in clusters of one template each; a template has WILDCARD where its texts differ."""
    skeletons: dict[Tokens, list[Tokens]] = {}
    for tokens in sorted(texts):
        skeleton = tuple(
            WILDCARD
            if token in _ANSWERS and _is_answer(tokens, at)
            else token
            if (kept := _skeleton(token)) != token and (_follows(tokens, at, _KINDS) or _is_quoted_name(tokens, at))
            else kept
            for at, token in enumerate(tokens)
        )
        skeletons.setdefault(skeleton, []).append(tokens)
    clusters = _joined(list(skeletons.items()))
    found = _with_named_values([(members, _template(members)) for _, members in clusters], at_one_place)
    return _with_names_in_turn(found)


def _with_names_in_turn(clusters: list[tuple[list[Tokens], Tokens]]) -> list[tuple[list[Tokens], Tokens]]:
    """``clusters`` where two words that stand for each other in several contexts are one place that varies: *alice* and
    *bob* in *cannot resolve host of _* and in *added _ to the group* are names. Words of failures do so in one."""
    while True:
        slots = _slots(clusters)
        names = _names_in_turn(slots, [template for _, template in clusters])
        taken: set[int] = set()
        merged: list[tuple[list[Tokens], Tokens]] = []
        for at, words in slots if names else ():
            called = [word for word in words if not names.get(word, frozenset()).isdisjoint(words)]
            numbers = {number for word in called for number in words[word]} - taken
            if len({clusters[number][1][at] for number in numbers}) <= 1:
                continue
            whole = clusters[min(numbers)][1]
            template = (*whole[:at], WILDCARD, *whole[at + 1 :])
            if tokens_of(" ".join(template)) == template:  # else nothing would fit it when it is known
                taken |= numbers
                merged.append((sorted(tokens for number in numbers for tokens in clusters[number][0]), template))
        if not merged:
            return clusters
        clusters = [cluster for number, cluster in enumerate(clusters) if number not in taken] + merged


def _names_in_turn(
    slots: Sequence[tuple[int, dict[str, list[int]]]], templates: Sequence[Tokens]
) -> dict[str, set[str]]:
    """By name the others that stand for it in several contexts: each of these says what no other does, beside what
    varies in it too. Of two words with which failures are told neither is a name."""
    varying: dict[int, set[int]] = {}
    for at, words in slots:
        for number in chain.from_iterable(words.values()):
            varying.setdefault(number, set()).add(at)
    contexts: dict[tuple[str, str], set[frozenset[str]]] = {}
    for _, words in slots:
        number = min(map(min, words.values()))
        said = frozenset(
            token
            for at, token in enumerate(templates[number])
            if token.isalpha() and token not in _STOP and at not in varying[number]
        )
        for pair in combinations(sorted(words), 2):
            if not all(map(is_of_failures, pair)):
                contexts.setdefault(pair, set()).add(said)
    names: dict[str, set[str]] = {}
    for (one, other), every in contexts.items():
        told = heapq.nsmallest(_MOST_CONTEXTS, every, key=lambda said: (len(said), sorted(said)))
        if sum(not any(less < said for less in told) for said in told) >= CONTEXTS:
            names.setdefault(one, set()).add(other)
            names.setdefault(other, set()).add(one)
    return names


def _slots(clusters: Sequence[tuple[list[Tokens], Tokens]]) -> list[tuple[int, dict[str, list[int]]]]:
    """Places in which several names stand beside the same words: the place, and by name the clusters."""
    sums = {
        number: hash(len(template)) + sum(map(hash, enumerate(template)))
        for number, (_, template) in enumerate(clusters)
        if _words_in(template) >= MIN_WORDS
    }
    found: list[tuple[int, dict[str, list[int]]]] = []
    for at in range(max((len(clusters[number][1]) for number in sums), default=0)):
        beside: dict[int, list[int]] = {}
        for number, whole in sums.items():
            template = clusters[number][1]
            if at < len(template):
                beside.setdefault(whole - hash((at, template[at])), []).append(number)
        every = (
            [number for number in numbers if _may_be_name_at(clusters[number][1], at)]
            for numbers in beside.values()
            if len(numbers) > 1
        )
        for numbers in sorted(every):  # in the order of the first cluster of each, which is that of what is found
            by_rest: dict[Tokens, dict[str, list[int]]] = {}  # different ones may have one hash
            for number in numbers:
                template = clusters[number][1]
                rest = template[:at] + template[at + 1 :]
                by_rest.setdefault(rest, {}).setdefault(template[at], []).append(number)
            found += [(at, words) for _, words in sorted(by_rest.items()) if 1 < len(words) <= MANY_PARTS]
    return found


@lru_cache(maxsize=1 << 16)
def _may_be_name(token: str) -> bool:
    """Whether a token may be what somebody or something is called: no kind of thing, nor a column or a class."""
    return (
        token == token.lower()
        and "_" not in token
        and token != WILDCARD
        and _is_word(token)
        and not _tells(token)
        and token not in _KINDS_OF_THINGS
    )


def _may_be_name_at(template: Tokens, at: int) -> bool:
    return _may_be_name(template[at]) and not _is_named(template, at)


def _with_named_values(
    clusters: list[tuple[list[Tokens], Tokens]], at_one_place: bool
) -> list[tuple[list[Tokens], Tokens]]:
    """``clusters`` where a place that holds a value in one template holds one in the others too: *ward ICU* beside
    *ward <*>*. The value may have several words, none of which failures are told with."""
    places: dict[int, dict[int, tuple[int, int]]] = {}
    for number, (_, template) in enumerate(clusters):
        if WILDCARD in template and sum(1 for token in template if token != WILDCARD and _is_word(token)) >= MIN_WORDS:
            before, behind = _hashes_before(template), _hashes_behind(template)
            for at, token in enumerate(template):
                if token == WILDCARD:
                    places.setdefault(before[at], {}).setdefault(behind[at + 1], (number, at))
    into: dict[int, int] = {}
    for number, (_, template) in enumerate(clusters):
        found = _value_elsewhere(template, places, number, at_one_place)
        if found is not None:
            other, at, end = found
            whole = clusters[other][1]
            if whole[:at] == template[:at] and whole[at + 1 :] == template[end:]:  # different ones may have one hash
                into[number] = other
    merged = {number: list(members) for number, (members, _) in enumerate(clusters)}
    for number in into:
        to = number
        while to in into:  # each has fewer words than the one before
            to = into[to]
        merged[to] += merged.pop(number)
    return [(sorted(members), clusters[number][1]) for number, members in merged.items()]


def _value_elsewhere(
    template: Tokens,
    places: Mapping[int, Mapping[int, tuple[int, int]]],
    number: int,
    at_one_place: bool,
) -> tuple[int, int, int] | None:
    """Another template that has a value where this one has words, as its number, and where they begin and end.

    ``places`` are those of values, by the hash of what is before them, and by that of what is behind.
    """
    before = _hashes_before(template)
    if places.keys().isdisjoint(before):
        return None
    behind = _hashes_behind(template)
    naming = _TELLING_BUT_TABLES if at_one_place else _TELLING_WORDS
    for at in range(len(template)):
        ends = places.get(before[at])
        if (
            ends is None
            or not _may_be_value(template[at])
            or _follows(template, at, naming)
            or _is_quoted_name(template, at)
        ):
            continue
        if _is_named_behind(template, at) or (_introduces_value(template, at) and not _SHOUTED.fullmatch(template[at])):
            continue
        if at_one_place and template[at : at + 3 : 2] == _QUOTES:
            other = ends.get(behind[at + 3])
            if other is not None and other[1] == at:
                return other[0], at, at + 3
        has_word = False
        for end in range(at + 1, min(at + LONGEST_VALUE, len(template)) + 1):
            if not _may_be_value(template[end - 1]):
                break
            has_word |= template[end - 1].isalpha() and not is_of_failures(template[end - 1].lower())
            other = ends.get(behind[end])
            if has_word and other is not None and other != (number, at) and other[1] == at:
                return other[0], at, end
    return None


def _hashes_before(tokens: Tokens) -> list[int]:
    """By place a hash of what is before."""
    found = [0]
    for token in tokens:
        found.append(hash((found[-1], token)))
    return found


def _hashes_behind(tokens: Tokens) -> list[int]:
    """By place a hash of what is from there on."""
    return _hashes_before(tokens[::-1])[::-1]


@lru_cache(maxsize=1 << 16)
def _may_be_value(token: str) -> bool:
    """Whether a token may be a part of a value that consists of words: no word with which failures are told."""
    if not _is_word(token):
        return token in _IN_VALUES
    if _tells(token) or token.lower() in _STOP:
        return False
    return token[0].isupper() or not is_of_failures(token)


@lru_cache(maxsize=1 << 16)
def _skeleton(token: str) -> str:
    if _IDENTIFIER.search(token) and not _tells(token):
        # Where blanks part no words, a token is a whole clause.
        return token if _WITHOUT_BLANKS.search(token) else WILDCARD
    return token


def _is_answer(tokens: Tokens, at: int) -> bool:
    """Whether a yes or a no is all that is said behind a colon: *possible: yes*, *force:false*, but *: no route*."""
    is_behind = at > 0 and tokens[at - 1] in _BEFORE_ANSWERS
    return is_behind and (at + 1 == len(tokens) or not _is_word(tokens[at + 1]))


@lru_cache(maxsize=1 << 16)
def _tells(token: str) -> bool:
    return any((_TELLING.search(token), _OF_NAMES.fullmatch(token), _CONSTANT.fullmatch(token))) or says_broken(token)


def _is_named(tokens: Tokens, at: int) -> bool:
    """Whether the word before, or behind, says that this one names what is broken: *column 'email'*."""
    if _follows(tokens, at, _NAMES) or _is_quoted_name(tokens, at):
        return True
    return _is_named_behind(tokens, at) or _introduces_value(tokens, at)


def _is_named_behind(tokens: Tokens, at: int) -> bool:
    """Whether a word behind says that this quoted one names what is broken: *'sku' is a required property*."""
    is_quoted = at + 2 < len(tokens) and tokens[at + 1] == "'"
    return is_quoted and any(token in _NAMES for token in tokens[at + 2 : at + 2 + _NEAR])


def _follows(tokens: Tokens, at: int, words: frozenset[str]) -> bool:
    """Whether the word before, in front of quotes and the like, is one of ``words``."""
    before = at - 1
    while before >= 0 and tokens[before] in _BETWEEN:
        before -= 1
    return before >= 0 and tokens[before].lower() in words


def _is_quoted_name(tokens: Tokens, at: int) -> bool:
    """Whether this stands in quotes where values are blank already: *name 'total' is not defined*."""
    return at > 1 and tokens[at - 1] == "'" and tokens[at - 2].lower() in _BEFORE_QUOTED_NAMES


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
            if not free or len({clusters[number][0][at] for number in free}) < _least(clusters[free[0]][0], at):
                continue
            taken.update(free)
            skeleton = clusters[free[0]][0]
            members = sorted(tokens for number in free for tokens in clusters[number][1])
            merged.append(((*skeleton[:at], WILDCARD, *skeleton[at + 1 :]), members))
            changed = True
        clusters = [cluster for number, cluster in enumerate(clusters) if number not in taken] + merged
    return clusters


def _least(skeleton: Tokens, at: int) -> int:
    """How many words there have to be at a place for it to hold a value."""
    is_plain = _words_in(skeleton) >= MIN_WORDS and not _follows(skeleton, at, _OF_PROGRAMS | HOLDERS)
    return MANY_WORDS if is_plain else MANY_PARTS


def _may_vary(tokens: Tokens, at: int) -> bool:
    """Whether a place may hold a value if many words occur there: it names nothing, or a part of a program."""
    if not _is_named(tokens, at):
        return True
    return _follows(tokens, at, _OF_PROGRAMS) and not (_is_named_behind(tokens, at) or _introduces_value(tokens, at))


def _words_in(skeleton: Tokens) -> int:
    return sum(1 for token in skeleton if token != WILDCARD and _is_word(token))


def _alike(clusters: Sequence[tuple[Tokens, list[Tokens]]]) -> Iterator[tuple[int, Tokens, list[int]]]:
    """A place, what is beside it, and the clusters that have a word there and are alike beside it: many, or none.

    What is beside a place is told by a sum of hashes without that place's, so that of a text of n tokens not n texts of
    n - 1 are made; and one place is looked at after the other, so that memory is that of one.
    """
    sums: dict[int, int] = {}
    for number, (skeleton, _) in enumerate(clusters):
        if _words_in(skeleton) >= MIN_WORDS - 1:
            sums[number] = hash(len(skeleton)) + sum(map(hash, enumerate(skeleton)))
    for at in range(max((len(clusters[number][0]) for number in sums), default=0)):
        beside: dict[int, list[int]] = {}
        for number, whole in sums.items():
            skeleton = clusters[number][0]
            if at < len(skeleton):
                beside.setdefault(whole - hash((at, skeleton[at])), []).append(number)
        for numbers in beside.values():
            if len(numbers) < MANY_WORDS:  # fewer are never asked for
                continue
            by_rest: dict[Tokens, list[int]] = {}  # different ones may have one hash
            for number in numbers:
                skeleton = clusters[number][0]
                if not _is_word(token := skeleton[at]) or _tells(token) or not _may_vary(skeleton, at):
                    continue
                by_rest.setdefault(skeleton[:at] + skeleton[at + 1 :], []).append(number)
            for rest, those in by_rest.items():
                if len(those) >= _least(clusters[those[0]][0], at):
                    yield at, rest, those


def _template(members: Sequence[Tokens]) -> Tokens:
    columns = zip(*members, strict=True)
    return tuple(values[0] if len(set(values)) == 1 else WILDCARD for values in columns)


def _readable(text: str, own: Tokens, template: Tokens) -> str:
    """``text``, which has its ``own`` tokens, with those blanked that vary: spaces as in the text, at most MAX_TEMPLATE
    characters."""
    if own == template:
        return text[:MAX_TEMPLATE]
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
