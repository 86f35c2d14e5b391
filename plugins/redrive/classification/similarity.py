"""Which templates are one failure: those that differ only in parts which the same failure is told with or without.

Templates of one core (:mod:`redrive.classification.template_parts`) are one failure unless a part tells them apart:
where two of them have different parts of one kind, that kind tells, and who lacks it stands alone. So *timed out
(read)* and *timed out* are one failure until there is a *timed out (connect)*. And a telling that ends sooner is the
one that goes on, as long as all that go on are one.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from redrive.classification.stack_traces import CUT, FRAME
from redrive.classification.template_parts import (
    MIN_WORDS,
    NEAREST,
    Parts,
    Signature,
    codes_of,
    names_in,
    names_what_is_broken,
    quoted_in,
    signature_of,
    values_behind,
)
from redrive.classification.values_and_names import BLANK, is_of_consumer, is_of_failures
from redrive.classification.word_lists import WORDS

#: A core of so many words is one failure whatever its class is called.
LONG: Final = 3
#: A core of so many words is one failure whatever says it: also what is no exception, such as a function.
WIDE: Final = 5
#: Fields that say where a failure was, not what it was.
_WHERE: Final = frozenset(["domain", "component", "category", "stage"])
#: So many words have to be told before one that says more is the same failure.
LEFT_OUT: Final = 4
#: So many values count as words there.
MOST_VALUES: Final = 2
#: So many of a text of which the last word may have been cut.
AT_LENGTH: Final = 8
#: From so many values on with a word, sets of them are held against each other, not one by one.
_MANY: Final = 64
_NAMES: Final = frozenset(WORDS["names"])
_Key = TypeVar("_Key", bound=tuple[str, ...])


def clusters(templates: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """template -> what names its failure; equal for those that are one."""
    signatures = {template: signature_of(template) for template in templates}
    frames: dict[str, set[str]] = {}
    for one in signatures.values():
        frames.setdefault(one.parts.core, set()).add(one.frame)
    whole = {core: sorted(frame for frame in some if not frame.endswith(CUT)) for core, some in frames.items()}
    by_core: dict[tuple[str, str], list[tuple[str, Parts]]] = {}
    for template, one in signatures.items():
        by_core.setdefault((_whole(one.frame, whole[one.parts.core]), one.parts.core), []).append((template, one.parts))
    into = _longer(signatures, by_core) | _cut_short(by_core) | _with_fewer_codes(by_core)
    for key in sorted(into):
        if (to := _end_of(key, into)) != key:
            by_core.setdefault(to, []).extend((template, Parts(to[1])) for template, _ in by_core.pop(key))
    found: dict[str, tuple[str, ...]] = {}
    for key, members in by_core.items():
        _tell_apart(key, members, _IN_TURN, found)
    return _with_what_is_left_out(found, signatures)


def _with_what_is_left_out(
    found: dict[str, tuple[str, ...]], signatures: Mapping[str, Signature]
) -> dict[str, tuple[str, ...]]:
    """``found`` where a telling that ends sooner is the one that goes on, if all that go on are one telling."""
    told: dict[tuple[str, tuple[str, ...]], set[tuple[str, ...]]] = {}
    said: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    cut: set[tuple[str, ...]] = set()
    for template, one in signatures.items():
        words = one.words
        if _is_told(template, words):
            told.setdefault((one.frame, words), set()).add(found[template])
            said.setdefault((one.frame, words), []).append(template)
            if _may_be_cut(template, words):
                cut.add(words)
    into: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    ordered = sorted(told)
    for at, (frame, words) in enumerate(ordered):
        longest = words
        for following in range(at + 1, len(ordered)):
            other_frame, others = ordered[following]
            if other_frame != frame or not _goes_on(words, others, cut):
                break
            if not _goes_on(longest, others, cut):  # they go on differently
                longest = words
                break
            longest = others
        if longest is not words and not _has_a_value_instead(
            said[frame, words], said[frame, longest], len(words), longest[len(words)]
        ):
            for key in told[frame, words]:
                into.setdefault(key, set()).update(told[frame, longest])
    ends = {key: next(iter(some)) for key, some in into.items() if len(some) == 1}
    return {template: _end_of(key, ends) for template, key in found.items()}


def _has_a_value_instead(shorter: Iterable[str], longer: Collection[str], words: int, following: str) -> bool:
    """Whether one of the ``shorter``, of so many ``words``, ends with a value where the ``longer`` have a name as
    ``following`` word: *in table 7*, *in table 'hats'*."""
    is_name = "_" in following or "/" in following or any(following in quoted_in(one) for one in longer)
    return (
        is_name
        and any(words in values_behind(one) for one in shorter)
        and not any(words in values_behind(one) for one in longer)
    )


def _is_told(template: str, words: Sequence[str]) -> bool:
    """Whether ``words`` tell a failure that may be told at more length; with values a few will do, unless they only say
    that it failed."""
    if len(words) >= LEFT_OUT:
        return True
    values = min(template.count(BLANK), MOST_VALUES)
    return len(words) >= MIN_WORDS and len(words) + values >= LEFT_OUT and not is_of_consumer(words[-1])


def _goes_on(words: tuple[str, ...], others: tuple[str, ...], cut: Collection[tuple[str, ...]]) -> bool:
    """Whether ``others`` are ``words`` and more; the last one of those that are ``cut`` may go on too."""
    last = len(words) - 1
    if others[:last] != words[:last] or len(others) <= last:
        return False
    return others[last] == words[last] or (
        words in cut and len(others) > len(words) and others[last].startswith(words[last])
    )


def _may_be_cut(template: str, words: Sequence[str]) -> bool:
    """Whether the last of ``words`` may be the beginning of one, as a text that was cut without a mark ends: it is told
    at length, and neither a name nor a number is told last. Else *field brim* would be *field brimless*."""
    last = words[-1]
    is_name = words[-2] in _NAMES or last in quoted_in(template)
    return len(words) >= AT_LENGTH and not is_name and not any(map(str.isdigit, last))


def _tell_apart(
    key: tuple[str, ...], members: Sequence[tuple[str, Parts]], rest: Sequence[int], found: dict[str, tuple[str, ...]]
) -> None:
    """Name ``members``, which have ``key`` in common, by what tells them apart: one part after the other.

    What the first parts told apart need not be told apart by the others: what differs beside another number is dress
    as long as nothing with the same number differs in it.
    """
    frame, core = key[:2]
    # Where many words are the same, what the exception is called tells nothing more.
    same = len(core.split()) + min(len(f"{parts.wrapper} {parts.more}".split()) for _, parts in members)
    codes = {parts.code for _, parts in members}
    same += 2 * (len(codes) == 1 and "" not in codes)
    named = all(names_what_is_broken(template) for template, _ in members)
    # And where it was raised tells more than who caught it.
    raised = bool(frame) and frame != CUT
    for number, at in enumerate(rest if len(members) > 1 else (), 1):
        few = (named or raised) and at in _OF_TELLER
        said = {template: names_in(parts[at], quoted_in(template)) if few else parts[at] for template, parts in members}
        if at == _CLASS_NAME and (same >= LONG or named or raised):
            is_dress = same >= WIDE
            said = {template: "" if is_dress or parts.name.islower() else parts.name for template, parts in members}
        if at == _IN_FRONT and "" in said.values():
            # What some tell without a front, others tell with the name of a program in front.
            said = {template: _of_failures(front) for template, front in said.items()}
        cut = {value for template, value in said.items() if _may_go_on(template, value)}
        telling = _telling(set(said.values()), cut, is_in_front=at == _IN_FRONT)
        if telling:
            apart: dict[str, list[tuple[str, Parts]]] = {}
            for template, parts in members:
                apart.setdefault(telling[said[template]], []).append((template, parts))
            for value, some in apart.items():
                _tell_apart((*key, f"{at}:{value}"), some, rest[number:], found)
            return
    found.update(dict.fromkeys((template for template, _ in members), key))


def _of_failures(front: str) -> str:
    """Those words in front of a failure that could be one."""
    return " ".join(word for word in front.split() if word == NEAREST or is_of_failures(word))


#: The parts of a template beside its core, those that tell most first.
_IN_TURN = tuple(Parts._fields.index(part) for part in ("code", "label", "wrapper", "aside", "more", "name"))
_CLASS_NAME, _IN_FRONT = Parts._fields.index("name"), Parts._fields.index("wrapper")
#: The parts in which the failure's teller is told.
_OF_TELLER = tuple(Parts._fields.index(part) for part in ("name", "wrapper", "aside"))


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


def _whole(frame: str, whole: Sequence[str]) -> str:
    """A frame whose end was cut off is the only one of the ``whole`` that begins so."""
    only = _only_one_with(frame[:-1], whole) if frame.endswith(CUT) else None
    return frame if only is None else only


def _only_one_with(beginning: str, ordered: Sequence[str]) -> str | None:
    """The only one of ``ordered`` texts with that beginning; None where there is none or more."""
    at = bisect_left(ordered, beginning)
    fitting = [one for one in ordered[at : at + 2] if one.startswith(beginning)]
    return fitting[0] if len(fitting) == 1 else None


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


def _end_of(key: _Key, into: Mapping[_Key, _Key]) -> _Key:
    """Where ``key`` leads, one after the other; itself where that goes round in a circle (*a: b* and *b: a*)."""
    to, seen = key, set[_Key]()
    while to in into:
        if to in seen:
            return key
        seen.add(to)
        to = into[to]
    return to


def _with_fewer_codes(
    by_core: Mapping[tuple[str, str], Sequence[tuple[str, Parts]]],
) -> dict[tuple[str, str], tuple[str, str]]:
    """Cores of codes, and the only one that has all their codes and says besides where it was, if nothing else differs:
    not every client tells each field."""
    told: dict[tuple[str, frozenset[Parts]], dict[str, frozenset[str]]] = {}
    for (frame, core), members in by_core.items():
        if codes := codes_of(members[0][0]):
            beside = frozenset(parts._replace(core="") for _, parts in members)
            told.setdefault((frame, beside), {})[core] = codes
    into = {}
    for (frame, _), cores in told.items():
        for core, above in _above(cores).items():
            more = [one for one in above if _tell_where(cores[one] - cores[core])]
            if len(more) == 1:
                into[frame, core] = frame, more[0]
    return into


def _tell_where(codes: frozenset[str]) -> bool:
    return all(code.partition("=")[0] in _WHERE for code in codes)


def _cut_short(
    by_core: Mapping[tuple[str, str], Sequence[tuple[str, Parts]]],
) -> dict[tuple[str, str], tuple[str, str]]:
    """Cores that were cut short, and the only one that begins so."""
    whole: dict[tuple[str, str], list[str]] = {}
    cut: list[tuple[str, str]] = []
    for key, members in by_core.items():
        if all(template.partition(FRAME)[0].endswith(CUT) for template, _ in members):
            cut.append(key)
        else:
            words = key[1].split()[:MIN_WORDS]
            whole.setdefault((key[0], " ".join(words)), []).append(key[1])
    for cores in whole.values():
        cores.sort()
    into = {}
    for key in cut:
        words = key[1].split()
        if len(words) <= MIN_WORDS:
            continue
        core = _only_one_with(" ".join(words), whole.get((key[0], " ".join(words[:MIN_WORDS])), ()))
        if core is not None:
            into[key] = key[0], core
    return into


def _may_go_on(template: str, value: str) -> bool:
    """Whether the last word of a part may be the beginning of one: a text was cut there, or others have a longer path.
    What stands in quotes is whole: *model 'Order'* is not *model 'OrderLine'*."""
    last = value.rpartition(" ")[2]
    return last not in quoted_in(template) or f"/{last}" in template.lower()


def _telling(values: set[str], cut: Collection[str], *, is_in_front: bool = False) -> dict[str, str]:
    """Of the values of a part that tells failures apart, which of them are one; {} of one that doesn't.

    A value that says less is the only one that says all of it and more; of those that are ``cut`` the last word is the
    one that begins so. Of what is in front of a failure, *settle: load
    claim* may be told without *settle*, not without *load claim*, which is next to it.
    """
    if len(values) <= 1:
        return {}
    sets = {value: frozenset(value.split()) - {NEAREST} for value in sorted(values)}
    having = _by_word(sets)
    every = sorted(having)
    for value in sorted(cut):
        last = value.rpartition(" ")[2]
        if last and (at := bisect_right(every, last)) < len(every) and every[at].startswith(last):
            rest = sets[value] - {last}
            if any(rest <= sets[one] for one in having[every[at]]):
                sets[value] = rest | {every[at]}
    above = _above(sets)
    if is_in_front:
        nearest = {value: frozenset(value.rpartition(NEAREST)[2].split()) for value in values}
        for value, more in above.items():
            above[value] = [one for one in more if not nearest[value] or not nearest[value].isdisjoint(nearest[one])]
    if len({words for value, words in sets.items() if not above[value]}) <= 1:
        return {}
    found = {}
    for value, words in sets.items():
        over = {sets[other] for other in above[value] if not above[other]}
        found[value] = " ".join(sorted(over.pop() if len(over) == 1 else words))
    return found


def _above(sets: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """By value those that say all that it says and more. Each is held against those only that have its rarest word;
    where that is in many, against those only that have all of its words."""
    having = _by_word(sets)
    values = list(sets)
    numbers = {value: number for number, value in enumerate(values)}
    masks: dict[str, int] = {}
    found: dict[str, list[str]] = {}
    for value, words in sets.items():
        rarest = min(words, key=lambda word: (len(having[word]), word), default=None)
        others = values if rarest is None else having[rarest]
        if words and len(others) > _MANY:
            every = -1
            for word in words:
                if word not in masks:
                    masks[word] = _mask_of(numbers[one] for one in having[word])
                every &= masks[word]
            others = [values[number] for number in _numbers_in(every)]
        found[value] = [other for other in others if words < sets[other]]
    return found


def _mask_of(numbers: Iterable[int]) -> int:
    """An integer with these bits."""
    digits = bytearray()
    for number in numbers:
        if number >> 3 >= len(digits):
            digits.extend(bytes((number >> 3) + 1 - len(digits)))
        digits[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(digits, "little")


def _numbers_in(mask: int) -> Iterable[int]:
    """The bits of an integer, in their order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _by_word(sets: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """The values that have each word."""
    having: dict[str, list[str]] = {}
    for value, words in sets.items():
        for word in words:
            having.setdefault(word, []).append(value)
    return having
