"""What a template says: its core, the words that every telling of the failure has, and the parts beside it.

Parts are what the same failure is told with or without: the exception's class in front, a wrapper, what is in
parentheses, further sentences, of what kind a value is (*for order <*>*). Which of them tell failures apart is decided
in :mod:`redrive.classification.similarity`, over all templates.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from redrive.classification.stack_traces import CUT, FRAME
from redrive.classification.values_and_names import BLANK, METHOD, PARTICLES, is_of_consumer, is_of_failures
from redrive.classification.word_lists import WITHOUT_BLANKS, WORDS, any_of, says

#: What has fewer words says nothing on its own.
MIN_WORDS: Final = 2
#: In the words in front of a failure, where the clause begins that is next to it.
NEAREST: Final = "|"

_CLASS = re.compile(
    r"(?P<name>(?:[A-Za-z_$][\w$]*(?:[.]|::|\\))*"
    r"(?:[A-Z][\w$]*(?:[a-z][A-Z]|Error|Exception|Fault|Failure|Violation|Warning)[\w$]*|[A-Z][a-z]+[A-Z]\w*))"
    r"(?:: ?| \()"
)
_THEN_CLASS = re.compile(rf": (?={_CLASS.pattern})")
_RAISED = re.compile(any_of("raised"))
_ANY_CLASS = frozenset(["Error", "Exception", "RuntimeException", "Throwable", "Fault", "Failure", "Warning"])
_SHOUT = re.compile(r"([A-Z]{3,20}) (?=[a-zA-Z][a-z'])")
_OPENING = ("(", "\uff08")
_PARENS = re.compile(r"[(\uff08]([^()\uff08\uff09]*)[)\uff09]|[(\uff08]([^()\uff08\uff09]*)$")
_BEFORE = re.compile(
    rf"(?:(?<![^\W_])(?P<prep>{any_of('prepositions')}) )?(?:(?:{any_of('articles')}) )?"
    r"(?P<label>[^\W\d_][\w-]{0,40}+(?: [^\W\d_][\w-]{0,40}+)?+)?[ ]?[:=]?[ ]?$",
    re.I,
)
_LONGEST_BEFORE = 90
_MAY_INTRODUCE = "_- :=\n"
_GOES_ON = re.compile(r"[ <*>\"']*(?:from|for|at|in|on|by|with|after|to) ")
_BETWEEN_VALUES = (",", "\u3001", "\uff0c")
_COMMAS, _ENDS = (*_BETWEEN_VALUES, ":", "("), (*_BETWEEN_VALUES, ";")
_WORD = re.compile(r"[^\W_][\w.'$/-]*|<\*>")
# self-signed, as others write self signed
_HYPHENATED = re.compile(r"[a-z]{3,20}-[a-z]{1,20}")
_CODES = re.compile(r"(?:[a-z_@]{2,40}=[^\s|]{1,80}(?: |$))+")
_AMOUNTS = frozenset(WORDS["amounts"])
_PREPOSITIONS = frozenset(WORDS["prepositions"])
_STOP, _TECHNICAL = frozenset(WORDS["stop"]), frozenset(WORDS["technical"])
_OF_RUNTIMES = frozenset(WORDS["of_runtimes"])
_CONTEXT = frozenset(WORDS["context"])
_ENDS_OF_SENTENCES = (". ", ";", "\uff1b", "\u3002")
_SENTENCE = re.compile(r"(?:(?<=[^\W\d_][^\W\d_])|(?<=[^\W\d_]['\")\]])|(?<=<[*]>))[.] |[;\uff1b\u3002]")
# 担当: Max: in scripts without blanks, a value with its label
_LABEL = rf"[{WITHOUT_BLANKS}]{{1,8}}[:\uff1a] ?"
_LABELLED = re.compile(rf"\s*{_LABEL}[^\n]{{1,80}}$")
# Of what was asked for the words of its path; and at the end, of what kind it was: with type 'OrderPlaced'
_ASKED_FOR = re.compile(r"(?<![^\s'\"(])/[A-Za-z][A-Za-z_-]*(?:/[A-Za-z][A-Za-z_-]*)*")
# GET /hats, Post '/hats': whether it was asked for or sent tells nothing but where just that was not allowed.
_METHOD = re.compile(rf"(?<![\w-])(?:{METHOD}) (?=/[A-Za-z]|<[*]>|'/)")
_OF_METHODS = re.compile(r"(?<![0-9])40[35](?![0-9])|ethod|orbidden|enied|not allowed")
_OF_NAME = re.compile(rf" (?:{any_of('prepositions')}) [a-z]{{2,20}} '[^'\n]{{1,120}}'[.]?$")
# What is broken: a quoted name, a name of several words, a code.
_BROKEN = re.compile(r"'[^'\n]{2,120}'|\b\w+_\w+\b|\b[A-Z]{2,5}-[0-9]{3,5}\b|\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
_CODE = re.compile(r"[a-z]{2,5}-[0-9]{3,5}")
_NAME_OF = frozenset(["name", "field", "column", "property", "param", "path", "attribute"])
#: So many words of a runtime that name nothing tell what failed by themselves.
_TELLS_ALONE: Final = 5
_NAME_OF_ONE = re.compile(r"[A-Z][A-Z0-9]{3,11}")
_BETWEEN_NAMES = frozenset(["&", *PARTICLES])
_SHORT_NAME = re.compile(r"[A-Z][A-Z0-9-]{0,11}")
_PLAIN_VALUE = re.compile(r"[^\W\d_]{2,20}(?:[.-][^\W\d_]{1,20}){0,2}")
_OF_BUILDS = frozenset(["version", "build", "official", "release", "revision"])
_OF_CODES = frozenset([*WORDS["names"], *WORDS["of_failures"], *WORDS["tells"], "errno", "sqlstate", "type", "cause"])
_NO_LABELS = _OF_CODES | _STOP
_NUMBER = re.compile(r"([0-9]{3,6}), ")
# Rejection 204: what is the matter
_NUMBER_IN_FRONT = re.compile(r"[^\W\d_a-z][^\W\d_]{2,20} ([0-9]{3,6}): ")
# 'shop'.'orders': the schema is where the database stands
_OF_SCHEMA = re.compile(r"(?:'[^'\n]{1,60}'|<\*>)[.](?=')")
# (no reason given) Mandate <*>: a value behind parentheses is one more
_TAIL = re.compile(r"(?<=[)]) (?=[^\W\d_][\w-]{0,30} <\*>$)")
# Labels of what tells: why, and which field.
_TELLS = (
    rf"(?![^:\uff1a ]*(?:{any_of('names_in_scripts')}|理由|原因|エラー|错误|状态|ステータス|代码|コード|異常|异常|"
    "项目|表|テーブル|类型|種別|步骤|ステップ|工程))"
)
# (口座番号:<*>) 受取人名:タナカ: in scripts without blanks, one more value with its label; behind a comma: , 订单 <*>
_LABELLED_TAIL = re.compile(
    rf"(?:(?<=[)\uff09])|[,\uff0c\u3001\u3002]) ?{_TELLS}"
    rf"(?:{_LABEL}[^\n,\uff0c\u3001\u3002]{{1,40}}|[{WITHOUT_BLANKS}]{{1,8}} ?<\*>)$"
)
# (契約者:アクメ), (客户 Max): so too in parentheses, unless it says why
_LABELLED_ASIDE = re.compile(rf"{_TELLS}(?:{_LABEL}|[{WITHOUT_BLANKS}]{{1,8}} )[^\n]{{1,60}}$")
# (IntegrityError) as SQLAlchemy puts a driver's class in front
_DRIVER = re.compile(r"[(]([\w.]{1,80}(?:Error|Exception|Warning))[)] (?=[^ ])")
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
    words: tuple[str, ...] = ()  # all that it says, in its order


@lru_cache(maxsize=1 << 15)
def signature_of(template: str) -> Signature:
    """What a whole template, with its frame, tells."""
    said, _, frame = template.partition(FRAME)
    if _METHOD.search(said) and not _OF_METHODS.search(said):
        said = _METHOD.sub("GET ", said)
    if frame:  # who caught it, in front of the exception, tells nothing
        said = said[max((match.end() for match in _THEN_CLASS.finditer(said)), default=0) :]
    parts = _parts(said)
    if (
        frame
        and parts.name in _OF_RUNTIMES
        and (
            (names := sorted(quoted_in(said)))
            or BLANK in said
            or len(f"{parts.core} {parts.more}".split()) < _TELLS_ALONE
        )
    ):
        # A value in the place of a name is none.
        parts = Parts(parts.name, label=" ".join(names) or (BLANK if BLANK in said else ""))
    head = (
        parts.more
        if _CODES.match(said)
        else ""
        if frame
        else " ".join(_words(_without_values(said.split(": ")[0].split(" (")[0], [])))
    )
    whole = _class_of(_peeled(said.removesuffix(CUT)))[1]
    return Signature(frame.lower(), parts, head, tuple(_words(whole)))


@lru_cache(maxsize=1 << 15)
def values_behind(template: str) -> frozenset[int]:
    """Behind how many words of a template a value stands."""
    said = template.partition(FRAME)[0].removesuffix(CUT)
    found, words = set[int](), 0
    for word in _WORD.findall(_class_of(_peeled(said))[1]):
        if word == BLANK:
            found.add(words)
        else:
            words += len(_words(word))
    return frozenset(found)


def _parts(said: str) -> Parts:
    text = said if said.isascii() else _LABELLED_TAIL.sub("", said)
    text = _TAIL.sub(", ", _begun(_OF_SCHEMA.sub("", _peeled(text))))
    codes = number = ""
    driver = ""
    if match := _DRIVER.match(text):
        driver, text = match[1].rpartition(".")[2].lower(), _peeled(text[match.end() :].strip())
    if match := _NUMBER.match(text):  # (1062, "…")
        number, text = match[1], text[match.end() :]
    if match := _CODES.match(text):
        codes, text = match[0].strip(), text[match.end() :].lstrip("| ")
    name, text = _class_of(text)
    name = name or driver
    text, aside = _asides(text)
    text = text.rstrip()
    parts = _SENTENCE.split(text) if says(text, _ENDS_OF_SENTENCES) else [text]
    sentences = [part for part in parts if part.strip()] or [text]
    while len(sentences) > 1 and len(_words(sentences[0])) < MIN_WORDS:
        sentences[:2] = [" ".join(sentences[:2])]
    wrapper, clause = _unwrapped(sentences[0])
    if (match := _NUMBER_IN_FRONT.match(sentences[0])) and not number:
        number = match[1]
    labels: list[str] = []

    def label(match: re.Match[str]) -> str:
        labels.extend(_words(match[0].replace("/", " ")))
        return " "

    asked = _ASKED_FOR.sub(label, clause)
    clause = asked if asked != clause and len(_words(asked)) >= MIN_WORDS else clause
    if (match := _OF_NAME.search(clause)) and len(_words(clause[: match.start()])) >= MIN_WORDS:
        clause = label(match).join([clause[: match.start()], clause[match.end() :]])
    kinds: list[str] = []
    words = _words(_without_values(clause, kinds))
    if len(words) < MIN_WORDS:
        words, kinds = _words(clause), []
    labels += kinds
    core = " ".join(word for word in words if not word.isdigit()) or " ".join(words)
    more = [" ".join(_told_further(part)) for part in sentences[1:]]
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


def _told_further(sentence: str) -> list[str]:
    if _LABELLED.match(sentence):
        return []
    words = _words(_without_values(sentence))
    # Where nothing but what introduces values is told, in several words, that is what is told.
    return words or (several if len(several := _words(sentence)) > MIN_WORDS else [])


def _peeled(text: str) -> str:
    """``text`` out of parentheses that go round all of it."""
    while text.startswith("(") and text.endswith(")"):
        depths = list(accumulate((char == "(") - (char == ")") for char in text))
        if 0 not in depths[:-1] and depths[-1] == 0:
            text = text[1:-1]
        else:
            break
    return text


def _begun(text: str) -> str:
    """``text`` out of parentheses with which it begins, if they say enough: *(LDAP: error code 49); remaining name*."""
    if match := _PARENS.match(text):
        inside = match[1] or match[2] or ""
        if len(_words(inside)) > MIN_WORDS and ":" in inside:
            return inside + text[match.end() :]
    return text


def _class_of(text: str) -> tuple[str, str]:
    """The class that is nearest to the message, or what a server shouts there, and the message.

    What is no exception (*ParseInt: *) keeps its capitals: it may be what failed, and not only who tells it.
    """
    name = ""
    while (match := _CLASS.match(text)) and _WORD.search(text, match.end()):
        last = re.split(r"[.:\\]", match["name"])[-1]
        name = name if last in _ANY_CLASS else last.lower() if _RAISED.search(last) else last
        text = text[match.end() :]
    if (match := _SHOUT.match(text)) and len(_words(text[match.end() :])) > MIN_WORDS:
        return match[1].lower(), text[match.end() :]
    return name, text


def _asides(text: str) -> tuple[str, list[str]]:
    """``text`` without what is in parentheses, and the words of that."""
    if not says(text, _OPENING):
        return text, []
    found: list[str] = []

    def aside(match: re.Match[str]) -> str:
        inside = match[1] or match[2] or ""
        words = inside.replace(" :", ":").split()
        if _is_labelled(words):
            return " "
        if _LABELLED_ASIDE.match(inside):
            return " "
        if _OF_BUILDS.issuperset(_words(inside)):
            return " "
        # What was at hand, each with its value: only names tell.
        if BLANK in inside and any(comma in inside for comma in _BETWEEN_VALUES):
            found.extend(_words(" ".join(_BROKEN.findall(inside))))
            return " "
        if len(words) > 2 and words[0].endswith(":") and words[0][:-1].lower() not in _OF_CODES:
            words = words[1:]  # insured: Ana Lima
        elif len(words) > 2 and words[0].islower() and words[0].isalpha() and words[0] not in _NO_LABELS:
            words = words[1:]  # source Norges Bank
        # Names of people and places, as values are: every word has a capital, but those that stand between names.
        names = [word for word in words if word not in _BETWEEN_NAMES]
        if len(words) < 2 or not all(word[:1].isupper() for word in names):
            found.extend(_words(_without_values(inside)))
        return " "

    bare = text
    for _ in range(3):  # of those in parentheses that are in parentheses, as deep as people read
        if not says(bare, _OPENING):
            break
        bare = _PARENS.sub(aside, bare)
    is_enough = len(_words(bare)) >= MIN_WORDS or (not found and _words(bare))
    return (bare, found) if is_enough else (text, [])


def _is_labelled(words: Sequence[str]) -> bool:
    """Whether ``words`` are a label and what somebody or something is called: *partner ITAOM*, *sending facility ED*,
    *clerk: vogt*. A word of failures is no such label: what is behind *step* or *signal* tells."""
    *label, called = words or [""]
    bare = [word.rstrip(":") for word in label]
    if not 1 <= len(bare) <= 2 or not all(map(str.isalpha, bare)) or _OF_CODES.intersection(map(str.lower, bare)):
        return False
    if len(bare) == 1 and bare[0].islower() and _NAME_OF_ONE.fullmatch(called):
        return True
    if is_of_failures(bare[-1].lower()):
        return False
    if label[-1].endswith(":"):
        return _PLAIN_VALUE.fullmatch(called) is not None or _SHORT_NAME.fullmatch(called) is not None
    return bare[0].islower() and _SHORT_NAME.fullmatch(called) is not None


def _unwrapped(sentence: str) -> tuple[list[str], str]:
    """The words that wrap the last clause which says something, and that clause with what follows it."""
    pieces = sentence.split(": ")
    for at in range(len(pieces) - 1, 0, -1):
        piece = pieces[at]
        words = _words(_without_values(piece, []))
        if len(words) >= MIN_WORDS and not _AMOUNTS.issuperset(words) and not _GOES_ON.match(piece):
            nearest, outer = _front(pieces[at - 1]), _front(": ".join(pieces[: at - 1]))
            wrapper = [*outer, NEAREST, *nearest] if outer and nearest else outer + nearest
            if all(is_of_consumer(word) for word in outer + nearest):
                wrapper = []
            return wrapper, ": ".join(pieces[at:])
    return [], sentence


def _front(text: str) -> list[str]:
    """The words of what wraps a failure, without those that every driver says and what every consumer deals with."""
    kinds: list[str] = []
    _without_values(text, kinds, every=True)
    dealt_with = _CONTEXT.intersection(" ".join(kinds).split())
    words = [part for word in _words(text, hyphens=True) if word not in dealt_with for part in word.split("/")]
    return [word for word in words if word and word not in _TECHNICAL and not word.isdigit()]


def _words(text: str, *, hyphens: bool = False) -> list[str]:
    """The words of ``text``; of those that are joined by ``hyphens``, as in names of queues, one each."""
    words = _WORD.findall(text)
    if not hyphens and "-" in text:
        words = [part for word in words for part in (word.split("-") if _HYPHENATED.fullmatch(word) else (word,))]
    return [stem for word in words if (stem := _stem(word))]


@lru_cache(maxsize=1 << 15)
def _stem(word: str) -> str:
    """A word in small letters and the singular, "" of one that says nothing."""
    word = word.strip(".'-").lower()
    if word == BLANK or word in _STOP:
        return ""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _without_values(text: str, labels: list[str] | None = None, *, every: bool = False) -> str:
    """``text`` without its values and what introduces them: *for order <*>*, *, limit: <*>*.

    Of what kind a value is goes to ``labels`` where it could tell failures apart, or of ``every`` one.
    """
    if BLANK not in text:
        return text
    pieces = text.split(BLANK)
    for number, piece in enumerate(pieces[:-1]):
        if not (piece[-1:].isalnum() or piece[-1:] in _MAY_INTRODUCE):
            continue  # in quotes, in parentheses
        match = _BEFORE.search(piece, max(0, len(piece) - _LONGEST_BEFORE))
        if match is None or match.start() == len(piece):
            continue
        start = match.start()
        label = match["label"] or ""
        if (last := label.rpartition(" "))[2].lower() in _PREPOSITIONS and last[0]:  # index: ean in <*>
            pieces[number] = piece[: match.start("label") + len(last[0])]
            continue
        # What comes after a colon is no part of what is before it.
        if labels is None or every or (match["prep"] and ":" not in match[0]):
            if labels is not None and match["label"]:
                labels.append(" ".join(_words(match["label"])))
            pieces[number] = piece[:start]
            continue
        following = pieces[number + 1]
        ends = not following.strip(f" .){CUT}") or following.lstrip().startswith(_ENDS)
        if ends and piece[:start].rstrip().endswith(_COMMAS) and (number or start):
            pieces[number] = piece[:start]
    return " ".join(pieces)


def names_in(words: str, quoted: Collection[str] = ()) -> str:
    """Those of ``words`` that name a column, a constraint or a code, as their form says, or the word in front, or
    because they are ``quoted``."""
    said = words.split()
    return " ".join(
        word
        for before, word in zip(["", *said], said, strict=False)
        if "_" in word.strip("_") or _CODE.fullmatch(word) or word in quoted or before in _NAME_OF
    )


@lru_cache(maxsize=1 << 15)
def quoted_in(template: str) -> frozenset[str]:
    """The words that a template quotes: names."""
    return frozenset(word for name in _NAME.findall(template.partition(FRAME)[0]) for word in _words(name))


def codes_of(template: str) -> frozenset[str]:
    """What fields name in front of it, ``code=expired reason=token``, each for itself."""
    match = _CODES.match(_peeled(template.partition(FRAME)[0]))
    return frozenset(match[0].split()) if match else frozenset()


@lru_cache(maxsize=1 << 15)
def names_what_is_broken(template: str) -> bool:
    """Whether a column, a constraint or a code is named: then who says it, and when, tells nothing more."""
    parts = signature_of(template).parts
    if codes_of(template):
        return False
    return bool(names_in(parts.core) or names_in(parts.aside) or quoted_in(template).intersection(parts.core.split()))
