"""Which templates are one failure: those that differ only in parts which the same failure is told with or without.

A template has a core, the words that every telling of the failure has, and parts: the exception's class in front, a
wrapper, what is in parentheses, further sentences, of what kind the value is (*for order <*>*). Templates of one core
are one failure unless a part tells them apart: where two of them have different parts of one kind, that kind tells, and
who lacks it stands alone. So *timed out (read)* and *timed out* are one failure until there is a *timed out (connect)*.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from redrive.classification.stack_traces import CUT, FRAME
from redrive.classification.values_and_names import BLANK, is_of_consumer
from redrive.classification.word_lists import WORDS, any_of

#: A core of so many words is one failure whatever its class is called.
LONG: Final = 3
#: What has fewer words says nothing on its own.
MIN_WORDS: Final = 2

_CLASS = re.compile(
    r"(?P<name>(?:[A-Za-z_$][\w$]*(?:[.]|::|\\))*"
    r"(?:[A-Z][\w$]*(?:[a-z][A-Z]|Error|Exception|Fault|Failure|Violation|Warning)[\w$]*|[A-Z][a-z]+[A-Z]\w*))"
    r"(?:: ?| \()"
)
_ANY_CLASS = frozenset(["Error", "Exception", "RuntimeException", "Throwable", "Fault", "Failure", "Warning"])
_SHOUT = re.compile(r"([A-Z]{3,20}) (?=[a-zA-Z][a-z'])")
_PARENS = re.compile(r"[(\uff08]([^()\uff08\uff09]*)[)\uff09]|[(\uff08]([^()\uff08\uff09]*)$")
_BEFORE = re.compile(
    rf"(?:(?<![^\W_])(?P<prep>{any_of('prepositions')}) )?(?:(?:{any_of('articles')}) )?"
    r"(?P<label>[^\W\d_][\w-]{0,40}(?: [^\W\d_][\w-]{0,40})?)?[ ]?[:=]?[ ]?$",
    re.I,
)
_LONGEST_BEFORE = 90
_GOES_ON = re.compile(r"[ <*>\"']*(?:from|for|at|in|on|by|with|after|to) ")
_COMMAS = (",", "\u3001", "\uff0c", ":", "(")
_ENDS = (",", "\u3001", "\uff0c", ";")
_WORD = re.compile(r"[^\W_][\w.'$/-]*|<\*>")
_CODES = re.compile(r"(?:[a-z_@]{2,40}=[^\s|]{1,80}(?: |$))+")
_AMOUNTS = frozenset(WORDS["amounts"])
_PREPOSITIONS = frozenset(WORDS["prepositions"])
_STOP, _TECHNICAL = frozenset(WORDS["stop"]), frozenset(WORDS["technical"])
_OF_RUNTIMES = frozenset(WORDS["of_runtimes"])
_SENTENCE = re.compile(r"(?<=[^\W\d_][^\W\d_'\")\]])[.] |[;\uff1b\u3002]")
# Of what was asked for the words of its path; and at the end, of what kind it was: with type 'OrderPlaced'
_ASKED_FOR = re.compile(r"(?<![^\s'\"(])/[a-z][a-z_-]*(?:/[a-z][a-z_-]*)*")
_OF_NAME = re.compile(rf" (?:{any_of('prepositions')}) [a-z]{{2,20}} '[^'\n]{{1,120}}'[.]?$")
# What is broken: a quoted name, a name of several words, a code.
_BROKEN = re.compile(r"'[^'\n]{2,120}'|\b\w+_\w+\b|\b[A-Z]{2,5}-[0-9]{3,5}\b")
_CODE = re.compile(r"[a-z]{2,5}-[0-9]{3,5}")
_NUMBER = re.compile(r"([0-9]{3,6}), ")
_NAME = re.compile(r"'([^'\n]{1,120})'")


class Parts(NamedTuple):
    """What a template is made of; each part "" where there is none."""

    core: str
    name: str = ""  # the exception's class
    code: str = ""  # numbers that stayed
    wrapper: str = ""
    label: str = ""  # for order <*>
    aside: str = ""  # in parentheses
    more: str = ""  # further sentences


class Signature(NamedTuple):
    """A template's parts, and the frame where it was raised."""

    frame: str
    parts: Parts
    head: str  # the words of its first clause


@lru_cache(maxsize=1 << 15)
def signature_of(template: str) -> Signature:
    """What a whole template, with its frame, tells."""
    said, _, frame = template.partition(FRAME)
    parts = _parts(said)
    if frame and parts.name in _OF_RUNTIMES:
        names = sorted({word for name in _NAME.findall(said) for word in _words(name)})
        # A value in the place of a name is none.
        parts = Parts(parts.name, label=" ".join(names) or (BLANK if BLANK in said else ""))
    head = (
        parts.more
        if _CODES.match(said)
        else ""
        if frame
        else " ".join(_words(_without_values(said.split(": ")[0].split(" (")[0], [])))
    )
    return Signature(frame.lower(), parts, head)


def _parts(said: str) -> Parts:
    text = _peeled(said)
    codes = number = ""
    if match := _NUMBER.match(text):  # (1062, "…")
        number, text = match[1], text[match.end() :]
    if match := _CODES.match(text):
        codes, text = match[0].strip(), text[match.end() :].lstrip("| ")
    name, text = _class_of(text)
    text, aside = _asides(text)
    sentences = [part for part in _SENTENCE.split(text) if part.strip()] or [text]
    while len(sentences) > 1 and len(_words(sentences[0])) < MIN_WORDS:
        sentences[:2] = [" ".join(sentences[:2])]
    wrapper, clause = _unwrapped(sentences[0])
    labels: list[str] = []

    def label(match: re.Match[str]) -> str:
        labels.extend(_words(match[0].replace("/", " ")))
        return " "

    asked = _ASKED_FOR.sub(label, clause)
    clause = asked if len(_words(asked)) >= MIN_WORDS else clause
    if (match := _OF_NAME.search(clause)) and len(_words(clause[: match.start()])) >= MIN_WORDS:
        clause = label(match).join([clause[: match.start()], clause[match.end() :]])
    kinds: list[str] = []
    words = _words(_without_values(clause, kinds))
    if len(words) < MIN_WORDS:
        words, kinds = _words(clause), []
    labels += kinds
    core = " ".join(word for word in words if not word.isdigit()) or " ".join(words)
    more = [" ".join(_words(_without_values(part))) for part in sentences[1:]]
    if codes:  # they tell more than any words beside them
        more = [" ".join([*wrapper, core]), *more] if core else more
        core, wrapper = (codes.partition("=")[2] if codes.count("=") == 1 else codes).lower(), []
    return Parts(
        core or said.lower(),
        name,
        " ".join([number] * bool(number) + [word for word in words if word.isdigit()]),
        " ".join(wrapper),
        " ".join(labels),
        " ".join(aside),
        " ".join(part for part in more if part),
    )


def _peeled(text: str) -> str:
    """``text`` out of parentheses that go round all of it."""
    while text.startswith("(") and text.endswith(")"):
        depths = list(accumulate((char == "(") - (char == ")") for char in text))
        if 0 not in depths[:-1] and depths[-1] == 0:
            text = text[1:-1]
        else:
            break
    return text


def _class_of(text: str) -> tuple[str, str]:
    """The class that is nearest to the message, or what a server shouts there, and the message."""
    name = ""
    while (match := _CLASS.match(text)) and _WORD.search(text, match.end()):
        last = re.split(r"[.:\\]", match["name"])[-1]
        name = name if last in _ANY_CLASS else last.lower()
        text = text[match.end() :]
    if (match := _SHOUT.match(text)) and len(_words(text[match.end() :])) > MIN_WORDS:
        return match[1].lower(), text[match.end() :]
    return name, text


def _asides(text: str) -> tuple[str, list[str]]:
    """``text`` without what is in parentheses, and the words of that."""
    found: list[str] = []

    def aside(match: re.Match[str]) -> str:
        inside = match[1] or match[2] or ""
        words = inside.split()
        if BLANK in inside and "," in inside:  # what was at hand, each with its value: only names tell
            found.extend(_words(" ".join(_BROKEN.findall(inside))))
            return " "
        # Names of people and places, as values are: every word has a capital.
        if len(words) < 2 or not all(word[:1].isupper() for word in words):
            found.extend(_words(_without_values(inside)))
        return " "

    bare = text
    for _ in range(3):  # of those in parentheses that are in parentheses, as deep as people read
        if "(" not in bare and "\uff08" not in bare:
            break
        bare = _PARENS.sub(aside, bare)
    return (bare, found) if len(_words(bare)) >= MIN_WORDS else (text, [])


def _unwrapped(sentence: str) -> tuple[list[str], str]:
    """The words that wrap the last clause which says something, and that clause with what follows it."""
    pieces = sentence.split(": ")
    for at in range(len(pieces) - 1, 0, -1):
        piece = pieces[at]
        words = _words(_without_values(piece, []))
        if len(words) >= MIN_WORDS and not _AMOUNTS.issuperset(words) and not _GOES_ON.match(piece):
            before = _words(_without_values(": ".join(pieces[:at])))
            before = [part for word in before for part in word.split("/")]
            wrapper = [word for word in before if word and word not in _TECHNICAL and not word.isdigit()]
            if all(is_of_consumer(word) for word in wrapper):
                wrapper = []
            return wrapper, ": ".join(pieces[at:])
    return [], sentence


def _words(text: str) -> list[str]:
    return [stem for word in _WORD.findall(text) if (stem := _stem(word))]


@lru_cache(maxsize=1 << 15)
def _stem(word: str) -> str:
    """A word in small letters and the singular, "" of one that says nothing."""
    word = word.strip(".'-").lower()
    if word == BLANK or word in _STOP:
        return ""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _without_values(text: str, labels: list[str] | None = None) -> str:
    """``text`` without its values and what introduces them: *for order <*>*, *, limit: <*>*.

    Of what kind a value is goes to ``labels`` where it could tell failures apart.
    """
    if BLANK not in text:
        return text
    pieces = text.split(BLANK)
    for number, piece in enumerate(pieces[:-1]):
        match = _BEFORE.search(piece, max(0, len(piece) - _LONGEST_BEFORE))
        if match is None or match.start() == len(piece):
            continue
        start = match.start()
        label = match["label"] or ""
        if (last := label.rpartition(" "))[2].lower() in _PREPOSITIONS and last[0]:  # index: ean in <*>
            pieces[number] = piece[: match.start("label") + len(last[0])]
            continue
        # What comes after a colon is no part of what is before it.
        if labels is None or (match["prep"] and ":" not in match[0]):
            if labels is not None and match["label"]:
                labels.append(" ".join(_words(match["label"])))
            pieces[number] = piece[:start]
            continue
        following = pieces[number + 1]
        ends = not following.strip(" .)") or following.lstrip().startswith(_ENDS)
        if ends and piece[:start].rstrip().endswith(_COMMAS) and (number or start):
            pieces[number] = piece[:start]
    return " ".join(pieces)


def clusters(templates: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """template -> what names its failure; equal for those that are one."""
    signatures = {template: signature_of(template) for template in templates}
    frames: dict[str, set[str]] = {}
    for one in signatures.values():
        frames.setdefault(one.parts.core, set()).add(one.frame)
    by_core: dict[tuple[str, str], list[tuple[str, Parts]]] = {}
    for template, one in signatures.items():
        by_core.setdefault((_whole(one.frame, frames[one.parts.core]), one.parts.core), []).append(
            (template, one.parts)
        )
    into = _longer(signatures, by_core) | _cut_short(by_core)
    for key in sorted(into):
        if (to := _end_of(key, into)) != key:
            by_core.setdefault(to, []).extend((template, Parts(to[1])) for template, _ in by_core.pop(key))
    found: dict[str, tuple[str, ...]] = {}
    for (frame, core), members in by_core.items():
        keys = {template: [frame, core] for template, _ in members}
        if len(members) > 1:
            # Where many words are the same, what the exception is called tells nothing more.
            same = len(core.split()) + min(len(f"{parts.wrapper} {parts.more}".split()) for _, parts in members)
            named = all(_names_what_is_broken(template) for template, _ in members)
            for at in range(2 if same >= LONG or named else 1, len(Parts._fields)):
                few = named and at in _OF_TELLER
                said = {template: _names_in(parts[at]) if few else parts[at] for template, parts in members}
                telling = _telling(set(said.values()))
                if telling:
                    for template, value in said.items():
                        keys[template].append(f"{at}:{telling[value]}")
        found.update({template: tuple(key) for template, key in keys.items()})
    return found


#: The parts in which the failure's teller is told.
_OF_TELLER = tuple(Parts._fields.index(part) for part in ("name", "wrapper", "aside"))


def _names_in(words: str) -> str:
    return " ".join(word for word in words.split() if "_" in word.strip("_") or _CODE.fullmatch(word))


@lru_cache(maxsize=1 << 15)
def _names_what_is_broken(template: str) -> bool:
    """Whether a column, a constraint or a code is named: then who says it, and when, tells nothing more."""
    said = template.partition(FRAME)[0]
    parts = signature_of(template).parts
    if _CODES.match(_peeled(said)):
        return False
    quoted = {word for name in _NAME.findall(said) for word in _words(name)}
    return bool(_names_in(parts.core) or _names_in(parts.aside) or quoted.intersection(parts.core.split()))


#: What the parts of a template are called in front of people.
_CALLED = {
    "name": "the exception's class",
    "code": "the number",
    "wrapper": "what is in front",
    "label": "the kind of thing",
    "aside": "what is in parentheses",
    "more": "what is said further",
}


def reasons(one: str, other: str) -> list[str]:
    """Sentences about why two templates are one failure, or are two."""
    a, b = signature_of(one), signature_of(other)
    names = clusters([one, other])
    same = names[one] == names[other]
    found = [f"both say: {a.parts.core}"] if a.parts.core == b.parts.core else []
    if a.frame != b.frame:
        found.append(f"raised at different places: {a.frame or 'no frame'} / {b.frame or 'no frame'}")
    if not found or (a.parts.core != b.parts.core and not same):
        found.append(f"they say different things: {a.parts.core} / {b.parts.core}")
    if a.parts.core != b.parts.core:
        return [*found, "one is the first clause of the other"] if same else found
    for part, called in _CALLED.items():
        left, right = getattr(a.parts, part), getattr(b.parts, part)
        if left != right:
            at = Parts._fields.index(part)
            tells = not same and any(key.startswith(f"{at}:") for key in names[one][2:])
            end = "which tells them apart" if tells else "which does not tell them apart"
            found.append(f"{called} differs ({left or 'none'} / {right or 'none'}), {end}")
    return found


def different_word(one: str, other: str) -> tuple[str, str] | None:
    """The one word in which two templates differ that are alike otherwise, in both; None where it is more or less."""
    a, b = signature_of(one), signature_of(other)
    if (a.frame, a.parts[1:]) != (b.frame, b.parts[1:]):
        return None
    left, right = a.parts.core.split(), b.parts.core.split()
    if len(left) != len(right):
        return None
    pairs = [pair for pair in zip(left, right, strict=True) if pair[0] != pair[1]]
    if len(pairs) != 1 or not all(word.isalpha() for word in pairs[0]):
        return None
    first, second = sorted(pairs[0])
    return first, second


def with_same_words(name: tuple[str, ...], same_words: Mapping[str, str]) -> tuple[str, ...]:
    """A name that :func:`clusters` gave, with the words of its core that stand for others in their place."""
    if not same_words:
        return name
    frame, core, *rest = name
    return frame, " ".join(same_words.get(word, word) for word in core.split()), *rest


def covers(wider: str, template: str) -> bool:
    """Whether ``wider`` says all that ``template`` does."""
    one, other = signature_of(wider).parts, signature_of(template).parts
    return all(set(part.split()) <= set(more.split()) for part, more in zip(other[1:], one[1:], strict=True))


def fullest(templates: Iterable[str]) -> str:
    """That of ``templates`` which says the most; the same whatever their order."""
    return min(templates, key=lambda one: (-sum(len(part) for part in signature_of(one).parts), one))


def _whole(frame: str, frames: set[str]) -> str:
    """A frame whose end was cut off is the only one that begins so."""
    if not frame.endswith("\u2026"):
        return frame
    fitting = [other for other in frames if not other.endswith("\u2026") and other.startswith(frame[:-1])]
    return fitting[0] if len(fitting) == 1 else frame


def _longer(
    signatures: Mapping[str, Signature], by_core: Mapping[tuple[str, str], Sequence[tuple[str, Parts]]]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Cores that are the first clause of one other and of no more: the same failure, told without its cause."""
    longer: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for one in signatures.values():
        key = (one.frame, one.parts.core)
        shorter = (one.frame, one.head)
        if one.head != one.parts.core and len(one.head.split()) >= 3 and shorter in by_core and key in by_core:
            longer.setdefault(shorter, set()).add(key)
    into = {key: next(iter(some)) for key, some in longer.items() if len(some) == 1 and next(iter(some)) != key}
    # What two different failures would be told as is not one of them.
    taken = Counter(into.values())
    return {key: to for key, to in into.items() if taken[to] == 1}


def _end_of(key: tuple[str, str], into: Mapping[tuple[str, str], tuple[str, str]]) -> tuple[str, str]:
    """Where ``key`` leads, one after the other; itself where that goes round in a circle (*a: b* and *b: a*)."""
    to, seen = key, set[tuple[str, str]]()
    while to in into:
        if to in seen:
            return key
        seen.add(to)
        to = into[to]
    return to


def _cut_short(
    by_core: Mapping[tuple[str, str], Sequence[tuple[str, Parts]]],
) -> dict[tuple[str, str], tuple[str, str]]:
    """Cores that were cut short, and the only one that begins so."""
    whole: dict[tuple[str, str], list[tuple[str, str]]] = {}
    cut: list[tuple[str, str]] = []
    for key, members in by_core.items():
        if all(template.partition(FRAME)[0].endswith(CUT) for template, _ in members):
            cut.append(key)
        else:
            words = key[1].split()[:MIN_WORDS]
            whole.setdefault((key[0], " ".join(words)), []).append(key)
    into = {}
    for key in cut:
        words = key[1].split()
        if len(words) <= MIN_WORDS:
            continue
        begun = " ".join(words)
        fitting = [to for to in whole.get((key[0], " ".join(words[:MIN_WORDS])), ()) if to[1].startswith(begun)]
        if len(fitting) == 1:
            into[key] = fitting[0]
    return into


def _telling(values: set[str]) -> dict[str, str]:
    """Of the values of a part that tells failures apart, which of them are one; {} of one that doesn't."""
    if len(values) <= 1:
        return {}
    sets = {value: frozenset(value.split()) for value in values}
    every = sorted(frozenset().union(*sets.values()))
    for value in values:  # a last word that was cut short is the word that begins so
        words = value.split()
        if words and (at := bisect_right(every, words[-1])) < len(every) and every[at].startswith(words[-1]):
            longer = [one for one in sets if sets[value] - {words[-1]} <= sets[one] and every[at] in sets[one]]
            if longer:
                sets[value] = sets[value] - {words[-1]} | {every[at]}
    widest = [one for one in dict.fromkeys(sets.values()) if not any(one < other for other in sets.values())]
    if len(widest) <= 1:
        return {}
    found = {}
    for value in values:
        above = [other for other in widest if sets[value] <= other]
        found[value] = " ".join(sorted(above[0] if len(above) == 1 else sets[value]))
    return found
