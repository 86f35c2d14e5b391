"""Which failures are the same failure: masking, templates, similarity, fingerprints.

A failure text goes through four steps. :func:`mask` blanks what varies from message to message
(numbers, ids, hosts, paths, times) and keeps what tells failures apart (status codes, SQLSTATE,
vendor codes, class names). Equal masked texts are then handled once. :mod:`~redrive.classification.normalization` takes
off what the same failure is told with or without, which gives a text its template. :func:`spots` finds among the
distinct templates those that differ only in words that vary (:mod:`~redrive.classification.templates`) or in optional
parts (:mod:`~redrive.classification.similarity`). The fingerprint of a group is :func:`fingerprint` of its cause and
its template's parts, so it is the same on every machine and every day.

:data:`MASKS` is the one list of patterns: ASCII classes spelled out, every repetition possessive or bounded so that
hostile text costs linear time, replacements without groups. What they can see of digits and ids is what
:mod:`redrive.classification.bulk_masking` rests on.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from redrive.classification import normalization, similarity
from redrive.classification.stack_traces import FRAME
from redrive.classification.template_parts import Signature, signature_of
from redrive.classification.templates import WILDCARD, KnownGroup, KnownTemplates, Place, mine, tokens_of

#: What stands for a value in masked texts and templates.
BLANK = WILDCARD


class Mask(NamedTuple):
    """One replacement."""

    name: str
    pattern: str
    replacement: str
    #: The pattern can match only in a text that holds one literal of each of these.
    literals: tuple[tuple[str, ...], ...] = ()


# Directory names, without quotes, blanks and brackets, so that a path ends where prose goes on.
_SEGMENT = r"[A-Za-z0-9_.@%+=~$-]"
# The slash first and then what is before it: almost every position fails at the first character.
# An escaped line break or tab is none, nor is a character as JSON writes it.
_PATH_START = r"(?!\\(?:[nrt](?:[\\ *<\"A-Z]|at )|u[0-9a-fA-F]{4}))[/\\](?<![A-Za-z0-9_.>~-][/\\])"
# A path after one of these is that of a request.
_NOT_ASKED_FOR = "".join(
    f"(?<!{before}/)"
    for before in (
        "GET ",
        "POST ",
        "PUT ",
        "PATCH ",
        "DELETE ",
        "HEAD ",
        "path=",
        'path="',
        '"path":"',
        '"path": "',
        "uri=",
        "url: ",
        "URL: ",
        # Of JSON:API and JSON Schema: the way to what is wrong.
        '"pointer":"',
        '"pointer": "',
        '"pointer":"#',
        '"pointer": "#',
        '"instancePath":"',
        '"instancePath": "',
    )
)
_SLASHES = ("/", "\\")
_SOURCE = r"(?:py|php|js|ts|mjs|cjs|jsx|tsx|rb|go|java|kt|scala|cs|rs|cpp|cc|ex|exs|pm|pl)(?![A-Za-z0-9])"

_HL7 = "PID|PV1|PV2|MSH|OBX|OBR|ORC|NK1|IN1|AL1|DG1|EVN|MSA|SCH|RXA|SPM|FT1|GT1"
# In scripts without blanks: behind a colon, a blank, or nothing.
_IN_SCRIPT = "|".join(
    f"(?<=[^\\x00-\\x7f]{end})(?:"
    + "|".join(
        f"(?<=(?:{words}){end})"
        for words in ("错误|錯誤|误码|誤碼|오류|에러", "误代码|誤代碼|エラー|류코드|러코드", "ラーコード")
    )
    + ")"
    for end in ("", "[ :=\uff1a]", "[:\uff1a] ")
)
# A number after one of these is a code, not a value; each look-behind has a fixed width. They are tried only
# where a number begins, which costs far less than looking for the words in the whole text.
_WORDS_OF_CODES = (
    "[Cc]ode[ :=]",
    "[Cc]ode[:=] ",
    "[Cc]ode = ",
    "[Cc]ode [\"'(]",
    "[Cc]ode[\"'][:=]",
    "[Cc]ode[\"'][:=] ",
    "ode[:=]-",
    "CODE[ :=]",
    "CODE[:=] ",
    "CODE[:=]-",
    "CODE: -",
    "[Ss]tatus[ :=]",
    # Not after a quoted request: there it is a line of an access log, whose status is a value.
    '(?<!" )[Ss]tatus[:=] ',
    "[Ss]tatus[\"'][:=]",
    "[Ss]tatus[\"']: ",
    "STATUS[ :=]",
    "HTTP[ :/]",
    "HTTP/[12] ",
    "HTTP/[12][.][01] ",
    "HTTP response ",
    "[Rr]esponse[ :]",
    "[Ee]rror[ :#=]",
    "[Ee]rror: ",
    "[Ee]rror[(]",
    "ERROR[ :]",
    "ERROR: ",
    "[Ee]rrno[ :=]",
    "[Ee]rrno[:=] ",
    "Msg ",
    "STATE[ :=\\[]",
    "STATE[:=] ",
    "[Ss][Qq][Ll][Ss]tate[ :=\\[]",
    "sqlstate: ",
    "[Ss]ignal[ :=]",
    "[Ss]ignal: ",
    "[Ee]xit ",
    "ORA-",
    "TNS-",
    "DPY-",
    "DPI-",
    "PLS-",
    "SQL-",
    "ERR ",
    "error, data ",
    "\\^",
    "[Rr]eason[ =]",
    "[Rr]eason: ",
    "[Rr]eason '",
    '[Cc]ode":"',
    '[Cc]ode": "',
    "[Cc]ause=",
    "[Ff]ield ",
    "[Tt]ag ",
    "Kennzahl ",
    "alert number ",
    "SQLERRMC=",
    "COLNO=",
    "STATE\\[[0-9A-Z]{5}\\] \\[",
    "[Ee]rro ",
    "[Ee]rreur ",
    "Fehler ",
    "(?:rrore|elkod|b\u0142\u0119du|\u00f3digo) ",
    "(?:rreur|rrore|elkod|b\u0142\u0119du|\u00f3digo): ",
    "rreur : ",
    # of mainframes
    "(?<![A-Za-z0-9_])[Rr][Cc]=",
    "Rejei\u00e7\u00e3o ",
    # SAP: the number of a message of a class
    "[Mm]essage [A-Z][A-Z0-9] ",
    "[Mm]essage [A-Z][A-Z0-9][A-Z0-9] ",
    # HL7: the field of a segment; EDIFACT: of what it is, as the first element of a segment says; X12
    *(f"(?:{_HL7}){field}" for field in ("-", "-[0-9][.]", "-[0-9]{2}[.]")),
    "(?:DTM|MOA|QTY|LOC|TDT|BGM|PCD|TAX|CUX|PAT|MEA|STS)[+]",
)
# Some codes are below zero: errno -111, SQLCODE -803.
_CODE_BEFORE = (
    "".join(f"(?<!{words})" for words in _WORDS_OF_CODES)
    + f"(?!{_IN_SCRIPT})"
    + "(?:(?<!-)|"
    + "".join(f"(?<!{words}-)" for words in _WORDS_OF_CODES)
    + ")"
)
# encode 7, postcode 30291: no code of a failure
_OF_OTHER_CODES = "(?<=(?:en|de|st|ip|ar|eo)code )"
# ValidationError: 536 is greater than the maximum; but field 59 is invalid, PID-3 is required
_IS_SUBJECT = (
    r"(?<![Ff]ield )(?<![Tt]ag )(?<![Ll]oop )(?<![A-Z0-9][-+])(?<!-[0-9][.])(?<!-[0-9]{2}[.])"
    r"(?=-?[0-9]++(?:[.,][0-9]++)? (?:is|are|was|were|exceeds|has|does|must) )"
)
# Words that say of which code it is, by their ends.
_WHOSE_CODE = "(?:rror|hler|turn|ason|atus|onse|sult|ault|tion)"
# So many digits are mostly an id: error 120802
_LONG_CODE = (
    "(?!(?=[0-9]{6,9}(?![0-9A-Za-z]|[.,:-][0-9]))(?:"
    + "|".join(
        f"(?<={words})"
        for words in (
            "[(][Cc]ode[ =]",
            *(
                f"{_WHOSE_CODE}{between}[Cc]ode{end}"
                for between in ("", "[_ -]")
                for end in ("[ :=]", "[:=] ", "[\"'][:=]", "[\"'][:=] ", '":"', '": "')
            ),
        )
    )
    + f"|{_IN_SCRIPT}|(?=[0-9]{{6,7}}(?![0-9]))(?:"
    + "|".join(
        f"(?<={words})" for words in ("[Ee]rror[ :#=]", "[Ee]rror: ", "ERROR[ :]", "Fehler ", "rreur ", "rrore ")
    )
    + ")))"
)
# 550 5.1.1, as mail servers say more of a status; F5 201, a message of SAP
_CODE_OF_TWO = (
    "(?!(?=[45][.])(?<=(?<![A-Za-z0-9])[45][0-9]{2}[ -])[45][.][0-9][.][0-9]{1,3}(?![0-9.]|[ -]?[A-Za-z<(\\[]))"
    "(?!(?<=(?<![A-Za-z0-9])[45][0-9]{2}[ -][45][.])[0-9][.][0-9]{1,3}(?![0-9.]|[ -]?[A-Za-z<(\\[]))"
    "(?!(?<=(?<![A-Za-z0-9])[45][0-9]{2}[ -][45][.][0-9][.])[0-9]{1,3}(?![0-9.]|[ -]?[A-Za-z<(\\[]))"
    "(?!(?=[0-9]{3})(?<=(?<![A-Za-z0-9])[A-Z][0-9] )[0-9]{3}(?![0-9A-Za-z,:/-]|[.][0-9]| [a-z0-9]))"
)
# loop 2010AA
_LOOP = "(?!(?=[0-9]{4})(?<=[Ll]oop )[0-9]{4}[A-Z]{0,2}(?![0-9A-Za-z]))"
# What is hexadecimal after one of these is a code: an HRESULT, an NTSTATUS, the status of a protocol.
_HEXADECIMAL_CODE = "".join(
    f"(?<!{words})"
    for words in (
        "HRESULT: ",
        "HRESULT ",
        "[Ss]tatus=",
        "STATUS ",
        "[Cc]ode ",
        "[Cc]ode=",
        "[Cc]ode: ",
        "[Ee]rror ",
        "[Ee]rror [(]",
    )
)
# exit code -1073741819: an NTSTATUS, or an HRESULT, as a number with a sign
_NO_STATUS_BELOW_ZERO = "".join(
    f"(?<!{words}-)" for words in ("[Cc]ode ", "[Cc]ode: ", "[Cc]ode=", "[Ss]tatus ", "[Ee]xit ", "[Ee]rror ")
)
_CODE_AFTER = (
    "(?![1-5][0-9]{2}[ :-]{1,3}[(]?(?:Bad|Unauth|Payment|Forbidden|Not|Method|Proxy|Request|Conflict|Gone|"
    "Precondition|Payload|Content|URI|Unsupported|Range|Expectation|Unprocessable|Locked|Failed|Too|Internal|"
    "Server|Client|Service|Gateway|HTTP|Insufficient|Network|error|[45][.][0-9]))"
    # (404) Not Found; in square brackets a process may have that number: [407] ERROR
    "(?![45][0-9]{2}[)] (?!in |of |with |parts ))(?!(?<=\\[)[45][0-9]{2}\\] [A-Z][a-z])"
    "(?![0-9]{3,5}, [bu]?[\"'(\u201c\u2018])"
)

#: Replacements in the order in which they are applied.
MASKS: tuple[Mask, ...] = (
    # Terminal colours and control characters would tell equal texts apart, and must not reach a terminal again.
    Mask("control", r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029](?:(?<=\x1b)\[[0-9;?]{0,16}[A-Za-z])?", " "),
    # Of an address the host is a value; the words of its path say what was asked for.
    Mask("host", r"://[^ \t\n\"'<>,;()\[\]{}|\\^`/?#]++", "://" + BLANK, (("://",),)),
    Mask(
        "query",
        r"[?][A-Za-z0-9_.$%\[\]-]{1,60}+=[^ \t\n\"'<>,;()\[\]{}|\\^`]*+",
        "?" + BLANK,
        (("?",), ("=",)),
    ),
    # Frames of libraries and of the application differ in their directory; the file name is kept.
    Mask(
        "library path",
        _PATH_START + r"(?:" + _SEGMENT + r"{1,80}+[/\\]{1,2}+){0,16}"
        r"(?:site-packages|dist-packages|node_modules|vendor|gems|mod|lib[/\\]python[0-9.]{1,5})[/\\]{1,2}+",
        "<lib>/",
        (_SLASHES, ("site-packages", "dist-packages", "node_modules", "vendor", "gems", "mod", "python")),
    ),
    Mask(
        "source path",
        # No more directories than this: between doubled slashes a path begins at each of them.
        _PATH_START + r"(?:" + _SEGMENT + r"++[/\\]{1,2}+){0,40}+"
        r"(?=[A-Za-z0-9_-]{1,60}+(?:[.][A-Za-z0-9_-]{1,20}){0,2}?[.]" + _SOURCE + r")",
        "<path>/",
        (_SLASHES,),
    ),
    Mask(
        "path",
        _PATH_START
        + _NOT_ASKED_FOR
        + r"(?:"
        + _SEGMENT
        + r"++[/\\]{1,2}+(?!\"))++"
        + _SEGMENT
        + r"*+(?:[?][^ \t\n\"'<>,;()\[\]{}|]*+)?",
        "<path>",
        (_SLASHES,),
    ),
    Mask(
        "address",
        r"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}+@[A-Za-z0-9-]++(?:[.][A-Za-z0-9-]++)++",
        BLANK,
        (("@",),),
    ),
    Mask(
        "value",
        r"(?<![A-Za-z0-9])(?:"
        # what begins with letters or a digit: only where a digit, a colon or a hyphen follows the letters
        r"(?=[A-Za-z]{0,40}+[0-9:-])(?:"
        # UUID
        r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
        # date, with or without a time
        r"|[0-9]{4}[/-][0-9]{2}[/-][0-9]{2}(?:[T _-][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?"
        r"(?:Z|[ ]?[+-][0-9]{2}:?[0-9]{2})?)?(?![A-Za-z0-9])"
        # 0x…, MAC and IPv6 addresses, clock times
        r"|" + _HEXADECIMAL_CODE + r"0[xX][0-9a-fA-F]++"
        r"|[0-9a-fA-F]{1,4}+(?::{1,2}[0-9a-fA-F]{1,4}+){2,20}(?:[.,][0-9]{1,9}+)?(?![A-Za-z0-9])"
        # hexadecimal ids: at least six characters with a digit among them
        r"|(?=[a-fA-F]{0,40}+[0-9])(?!E[0-9]{5}(?![0-9]))"
        + _NO_STATUS_BELOW_ZERO
        + _LONG_CODE
        + _LOOP
        + r"[0-9a-fA-F]{6,}+(?![A-Za-z0-9])"
        # random ids: letters and digits in turn, at least sixteen
        r"|(?=[A-Za-z]{0,20}+[0-9]{1,20}+[A-Za-z]{1,20}+[0-9]{1,20}+[A-Za-z])[A-Za-z0-9_]{16,}+(?![A-Za-z0-9])"
        r")"
        # numbers, versions, IPv4 addresses with ports
        r"|(?=-?[0-9])(?!0[xX][0-9a-fA-F])(?:"
        + _CODE_BEFORE
        + "|"
        + _OF_OTHER_CODES
        + "|"
        + _IS_SUBJECT
        + ")"
        + _CODE_AFTER
        + _CODE_OF_TWO
        + _LOOP
        + r"-?[0-9]++(?:[.,:][0-9]++)*+"
        r")",
        BLANK,
    ),
)

_COMPILED = tuple((re.compile(mask.pattern, re.ASCII), mask.replacement, mask.literals) for mask in MASKS)


def mask(text: str) -> str:
    """``text`` with everything blanked that varies from message to message.

    ``text`` is already cut (:func:`redrive.classification.failure_text.cut`).
    """
    for pattern, replacement, literals in _COMPILED:
        if not literals or _may_match(text, literals):
            text = pattern.sub(replacement, text)
    return text


def _may_match(text: str, literals: tuple[tuple[str, ...], ...]) -> bool:
    for some in literals:
        for literal in some:
            if literal in text:
                break
        else:
            return False
    return True


def mask_and_places(text: str) -> tuple[str, list[int]]:
    """:func:`mask`, and of each of its characters the place in ``text``; -1 of one that a mask brought in."""
    places = [*range(len(text))]
    for pattern, replacement, literals in _COMPILED:
        if not _may_match(text, literals):
            continue
        pieces: list[str] = []
        kept: list[int] = []
        at = 0
        for match in pattern.finditer(text):
            pieces += text[at : match.start()], replacement
            kept += places[at : match.start()]
            kept += [-1] * len(replacement)
            at = match.end()
        text = "".join([*pieces, text[at:]])
        places = kept + places[at:]
    return text, places


#: What fingerprints of this release begin with: how they are made has changed twice.
VERSION: Final = "v3"


def fingerprint(cause: str, template: str) -> str:
    """Sixteen characters that name the group of ``cause`` and ``template`` everywhere and for ever: the version, then
    hexadecimal digits. Case, punctuation and quotes of a template don't matter."""
    signature = signature_of(template)
    named = "\0".join([cause, signature.frame, *signature.parts])
    return VERSION + hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[: 16 - len(VERSION)]


def split_fingerprint(of: str, words: str) -> str:
    """As :func:`fingerprint`, the name of what people split off a group: what says ``words``."""
    named = "\0".join(["split", of, plain_words(words)])
    return VERSION + hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[: 16 - len(VERSION)]


def plain_words(text: str) -> str:
    """``text`` as words are looked for in it: spaces and case don't matter."""
    return " ".join(text.split()).casefold()


class Splits:
    """What people split off groups by words; built of all groups that are known."""

    def __init__(self, known: Iterable[KnownGroup]) -> None:
        self._by_group: dict[str, list[tuple[str, KnownGroup]]] = {}
        self._made: set[str] = set()
        for group in known:
            if group.words:
                self._made.add(group.fingerprint)
                self._by_group.setdefault(group.of, []).append((plain_words(group.words), group))

    def others(self, known: Iterable[KnownGroup]) -> list[KnownGroup]:
        """Those of ``known`` that texts are compared with: what was split off has no template of its own."""
        return [group for group in known if group.fingerprint not in self._made] if self._made else list(known)

    def find(self, fingerprint: str, masked: str) -> KnownGroup | None:
        """Where a text of the group ``fingerprint`` belongs; None: there."""
        if fingerprint not in self._by_group:
            return None
        text = plain_words(masked)
        return next((group for words, group in self._by_group[fingerprint] if words in text), None)


class Spot(NamedTuple):
    """Where a text belongs."""

    template: str
    #: By cause the known group that it is.
    known: Mapping[str, KnownGroup] = {}
    #: The template of the text alone.
    own: str = ""
    #: That, with the words blanked that vary among the texts. A group may be told in several ways.
    telling: str = ""


def spots(
    masked_texts: Collection[str], known: Sequence[KnownGroup] = (), templates: Mapping[str, str] = {}
) -> dict[str, Spot]:
    """Where each of ``masked_texts`` belongs, as far as texts tell; a group has one cause besides.

    A text that fits a ``known`` group belongs to it. What was told apart, or together, with all tellings of the known
    groups at hand stays so: a telling that is known has its group, whatever else is told by now. The answer depends on
    the set of texts and ``known`` only, not on their order. ``templates`` are those that somebody wrote already, by
    text.
    """
    shown = _shown(known)
    own = {text: templates[text] if text in templates else normalization.template(text) for text in masked_texts}
    old: dict[str, list[KnownGroup]] = {}
    for group in known:
        old.setdefault(_today(group), []).append(group)
    mined = _mined(set(own.values()), old)
    names = similarity.clusters(sorted({*mined.values(), *old}))
    members: dict[tuple[str, ...], list[str]] = {}
    for template in old:
        members.setdefault(names[template], []).append(template)
    found: dict[str, Spot] = {}
    together: dict[tuple[str, ...], list[str]] = {}
    for template in sorted(set(mined.values())):
        groups: dict[str, KnownGroup] = {}
        fitting = [other for other in members.get(names[template], ()) if similarity.covers(other, template)]
        for other in [template] * (template in old) + sorted(fitting):
            for group in sorted(old[other]):
                groups.setdefault(group.cause, group._replace(template=shown[group.fingerprint]))
        if groups:
            found[template] = Spot(next(iter(groups.values())).template, groups)
        else:
            together.setdefault(names[template], []).append(template)
    for some in together.values():
        spot = Spot(similarity.fullest(some))
        found.update(dict.fromkeys(some, spot))
    placed = {
        template: found[telling]._replace(own=template, telling=telling)
        for template, telling in ((template, mined[template]) for template in set(own.values()))
    }
    return {text: placed[template] for text, template in own.items()}


def _shown(known: Iterable[KnownGroup]) -> dict[str, str]:
    """By fingerprint the template that gave a group its name; of the ``known`` ones there is one for each telling."""
    named: dict[str, str] = {}
    others: dict[str, str] = {}
    for group in sorted(known):
        is_name = fingerprint(group.cause, group.template) == group.fingerprint
        (named if is_name else others).setdefault(group.fingerprint, group.template)
    return others | named


def _today(group: KnownGroup) -> str:
    """The template of a group, as this release would write it."""
    return group.template if group.fingerprint.startswith(VERSION) else normalization.template(group.template)


def _mined(templates: Collection[str], known: Collection[str] = ()) -> dict[str, str]:
    """Each of ``templates`` with the words blanked that vary among them, or as one of ``known`` that it fits."""
    by_frame: dict[str, dict[str, int]] = {}
    for template in templates:
        said, _, frame = template.partition(FRAME)
        by_frame.setdefault(frame, {})[said] = 1
    known_by_frame: dict[str, list[KnownGroup]] = {}
    for template in sorted(known):
        said, _, frame = template.partition(FRAME)
        known_by_frame.setdefault(frame, []).append(KnownGroup("", "", said))
    found: dict[str, str] = {}
    # Failures in different frames are different, however alike their words and the frames' names are.
    for frame, weights in by_frame.items():
        for said, place in mine(weights, known_by_frame.get(frame, ()), at_one_place=bool(frame)).items():
            end = FRAME + frame if frame else ""
            found[said + end] = place.template + end
    return found


def templates(masked_texts: Collection[str]) -> dict[str, str]:
    """The template of each of ``masked_texts`` where nothing is known."""
    return {text: spot.template for text, spot in spots(masked_texts).items()}


class Known:
    """Groups that are known, to be asked which of them a single text belongs to."""

    def __init__(self, groups: Iterable[KnownGroup]) -> None:
        groups = sorted(groups)
        self._shown = _shown(groups)
        by_frame: dict[str, list[KnownGroup]] = {}
        self._by_parts: dict[Signature, KnownGroup] = {}
        for group in groups:
            template = _today(group)
            said, _, frame = template.partition(FRAME)
            by_frame.setdefault(frame, []).append(group._replace(template=said))
            self._by_parts.setdefault(signature_of(template), group)
        self._by_frame = {frame: KnownTemplates(some) for frame, some in by_frame.items()}

    def place(self, template: str) -> Place | None:
        """The place of a text whose template is known, as :func:`spots` would find it; else None."""
        group = self._by_parts.get(signature_of(template))
        if group is None:
            said, _, frame = template.partition(FRAME)
            finder = self._by_frame.get(frame)
            group = finder.match(tokens_of(said)) if finder is not None else None
        return Place(self._shown[group.fingerprint], group.fingerprint) if group is not None else None


def merges(
    groups: Sequence[KnownGroup], same_words: Mapping[str, str] = {}, beside: Iterable[KnownGroup] = ()
) -> dict[str, str]:
    """Which of ``groups`` turned out to be one: fingerprint of a later group -> that of the earliest it belongs to.

    ``groups`` are in the order of their age. Two are one where one batch would have made them one: a place that held
    one user's name has by now held five, or one tells what the other does with a part more. The earliest keeps its
    name. ``same_words``: a word -> the one that it stands for, as people's rulings taught. Groups ``beside`` them are
    not merged, but what they say may tell others apart.
    """
    by_cause: dict[str, list[tuple[str, KnownGroup]]] = {}
    for group in groups:
        by_cause.setdefault(group.cause, []).append((_today(group), group))
    telling: dict[str, set[str]] = {}
    for group in beside:
        telling.setdefault(group.cause, set()).add(_today(group))
    found: dict[str, str] = {}
    for cause, members in by_cause.items():
        if len(members) == 1:
            continue
        mined = _mined({template for template, _ in members})
        names = similarity.clusters(sorted({*mined.values(), *telling.get(cause, ())}))
        earliest: dict[tuple[str, ...], str] = {}
        for template, group in members:
            name = similarity.with_same_words(names[mined[template]], same_words)
            first = earliest.setdefault(name, group.fingerprint)
            if first != group.fingerprint:
                found[group.fingerprint] = first
    return found
