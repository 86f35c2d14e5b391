"""Which failures are the same failure: masking, stack-trace keys, templates, fingerprints.

A failure text goes through three steps. :func:`mask` blanks what varies from message to message
(numbers, ids, hosts, paths, times) and keeps what tells failures apart (status codes, SQLSTATE,
vendor codes, class names). Equal masked texts are then handled once. :func:`templates` finds among the
distinct masked texts those that differ only in words that vary, and gives every text its template. The
fingerprint of a group is :func:`fingerprint` of its cause and template, so it is the same on every
machine and every day.

:data:`MASKS` is the one list of patterns: ASCII classes spelled out, every repetition possessive or bounded so that
hostile text costs linear time, replacements without groups. What they can see of digits and ids is what
:mod:`redrive.classification.bulk_masking` rests on.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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
_PATH_START = r"[/\\](?<![A-Za-z0-9_.>~-][/\\])"
_SLASHES = ("/", "\\")
_SOURCE = r"(?:py|php|js|ts|mjs|cjs|jsx|tsx|rb|go|java|kt|scala|cs|rs|cpp|cc|ex|exs)(?![A-Za-z0-9])"

# A number after one of these is a code, not a value; each look-behind has a fixed width. They are tried only
# where a number begins, which costs far less than looking for the words in the whole text.
_CODE_BEFORE = "".join(
    f"(?<!{words})"
    for words in (
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
        "[Ee]rror[ :#]",
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
    )
)
_CODE_AFTER = (
    "(?![1-5][0-9]{2}[ :-]{1,3}[(]?(?:Bad|Unauth|Payment|Forbidden|Not|Method|Proxy|Request|Conflict|Gone|"
    "Precondition|Payload|Content|URI|Unsupported|Range|Expectation|Unprocessable|Locked|Failed|Too|Internal|"
    "Server|Client|Service|Gateway|HTTP|Insufficient|Network|error|[45][.][0-9]))"
    # Not after a colon: `log.go:547] ` is a line of code.
    "(?!(?<!:)[45][0-9]{2}[)\\]] )"
    "(?![0-9]{3,5}, [bu]?[\"'(\u201c\u2018])"
)

#: Replacements in the order in which they are applied.
MASKS: tuple[Mask, ...] = (
    # Terminal colours and control characters would tell equal texts apart, and must not reach a terminal again.
    Mask("control", r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029](?:(?<=\x1b)\[[0-9;?]{0,16}[A-Za-z])?", " "),
    Mask("url", r"://[^ \t\n\"'<>,;()\[\]{}|\\^`]++", "://" + BLANK, (("://",),)),
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
        _PATH_START + r"(?:" + _SEGMENT + r"++[/\\]{1,2}+)*+"
        r"(?=[A-Za-z0-9_-]{1,60}+(?:[.][A-Za-z0-9_-]{1,20}){0,2}?[.]" + _SOURCE + r")",
        "<path>/",
        (_SLASHES,),
    ),
    Mask(
        "path",
        _PATH_START + r"(?:" + _SEGMENT + r"++[/\\]{1,2}+)++" + _SEGMENT + r"*+(?:[?][^ \t\n\"'<>,;()\[\]{}|]*+)?",
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
        r"|0[xX][0-9a-fA-F]++"
        r"|[0-9a-fA-F]{1,4}+(?::{1,2}[0-9a-fA-F]{1,4}+){2,20}(?:[.,][0-9]{1,9}+)?(?![A-Za-z0-9])"
        # hexadecimal ids: at least six characters with a digit among them
        r"|(?=[a-fA-F]{0,40}+[0-9])(?!E[0-9]{5}(?![0-9]))[0-9a-fA-F]{6,}+(?![A-Za-z0-9])"
        # random ids: letters and digits in turn, at least sixteen
        r"|(?=[A-Za-z]{0,20}+[0-9]{1,20}+[A-Za-z]{1,20}+[0-9]{1,20}+[A-Za-z])[A-Za-z0-9_]{16,}+(?![A-Za-z0-9])"
        r")"
        # numbers, versions, IPv4 addresses with ports
        r"|(?=-?[0-9])" + _CODE_BEFORE + _CODE_AFTER + r"-?[0-9]++(?:[.,:][0-9]++)*+"
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
        if all(any(literal in text for literal in some) for some in literals):
            text = pattern.sub(replacement, text)
    return text


def mask_and_places(text: str) -> tuple[str, list[int]]:
    """:func:`mask`, and of each of its characters the place in ``text``; -1 of one that a mask brought in."""
    places = [*range(len(text))]
    for pattern, replacement, literals in _COMPILED:
        if not all(any(literal in text for literal in some) for some in literals):
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


def fingerprint(cause: str, template: str) -> str:
    """16 hexadecimal digits that name the group of ``cause`` and ``template`` everywhere and for ever."""
    return hashlib.sha256(f"{cause}\0{template}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def templates(masked_texts: Mapping[str, int], known: Sequence[KnownGroup] = ()) -> dict[str, Place]:
    """The template of each of ``masked_texts`` (distinct, with the number of messages of each).

    ``known`` templates are matched first, so a text that fits one keeps its group. The answer depends on
    the set of texts and ``known`` only, not on their order.
    """
    keys: dict[str, tuple[str, str]] = {}
    by_frame: dict[str, dict[str, int]] = {}
    for text, count in masked_texts.items():
        said, _, frame = trace_key(text).partition(_FRAME)
        keys[text] = said, frame
        weights = by_frame.setdefault(frame, {})
        weights[said] = weights.get(said, 0) + count
    known_by_frame: dict[str, list[KnownGroup]] = {}
    for group in known:
        said, _, frame = group.template.partition(_FRAME)
        known_by_frame.setdefault(frame, []).append(group._replace(template=said))
    # Failures in different frames are different, however alike their words and the frames' names are.
    found = {frame: mine(weights, known_by_frame.get(frame, ())) for frame, weights in by_frame.items()}
    places: dict[str, Place] = {}
    for text, (said, frame) in keys.items():
        place = found[frame][said]
        places[text] = place._replace(template=place.template + _FRAME + frame) if frame else place
    return places


class Known:
    """Groups that are known, to be asked which of them a single text belongs to."""

    def __init__(self, groups: Iterable[KnownGroup]) -> None:
        by_frame: dict[str, list[KnownGroup]] = {}
        for group in groups:
            said, _, frame = group.template.partition(_FRAME)
            by_frame.setdefault(frame, []).append(group._replace(template=said))
        self._by_frame = {frame: KnownTemplates(some) for frame, some in by_frame.items()}

    def place(self, text: str) -> Place | None:
        """The place of a masked text whose template is known, as :func:`templates` would find it; else None."""
        said, _, frame = trace_key(text).partition(_FRAME)
        templates = self._by_frame.get(frame)
        group = templates.match(tokens_of(said)) if templates is not None else None
        if group is None:
            return None
        return Place(group.template + _FRAME + frame if frame else group.template, group.fingerprint)


def merges(groups: Sequence[KnownGroup]) -> dict[str, str]:
    """Which of ``groups`` turned out to be one: fingerprint of a later group -> that of the earliest it belongs to.

    ``groups`` are in the order of their age. Two are one where the same words in one batch would have had one
    template: a place that held one user's name has by now held five. The earliest keeps its name.
    """
    kinds: dict[tuple[str, str], list[tuple[str, KnownGroup]]] = {}
    for group in groups:
        said, _, frame = group.template.partition(_FRAME)
        kinds.setdefault((group.cause, frame), []).append((said, group))
    found: dict[str, str] = {}
    for members in kinds.values():
        if len(members) == 1:
            continue
        places = mine({said: 1 for said, _ in members})
        earliest: dict[str, str] = {}
        for said, group in members:
            first = earliest.setdefault(places[said].template, group.fingerprint)
            if first != group.fingerprint:
                found[group.fingerprint] = first
    return found


# Between what a trace says and its frame, in keys and templates.
_FRAME = "\n  at "


def trace_key(text: str) -> str:
    """What stands for ``text`` in grouping: a stack trace is reduced to what names the failure.

    That is the first line, the line of the root cause and the nearest frame of the application's own code,
    without line numbers and generated names. A text without frames stands for itself.
    """
    if "\n" not in text:
        return text
    trace = _Trace(text.split("\n"))
    if not trace.frames:
        return text
    return trace.key()


# Classes and places that are not the application's: the runtimes and what applications are usually built on.
_LIBRARY = re.compile(
    r"^(?:async |new )?(?:<lib>|<frozen |node:|internal/|\(?<anonymous>|native |"
    r"(?:java|javax|jdk|sun|jakarta|kotlin|kotlinx|scala|groovy|akka|reactor|okhttp3|okio|retrofit2|feign|rx|zio|cats)[./]|java[.][a-z]+/|"
    r"com[.](?:sun|fasterxml|google|amazonaws|mysql|microsoft|azure|rabbitmq|zaxxer|netflix|mongodb|datastax|oracle|github[.])|"
    r"org[.](?:springframework|apache|hibernate|postgresql|jboss|eclipse|slf4j|codehaus|aspectj|junit|mariadb|quartz|redisson|elasticsearch)[.]|"
    r"io[.](?:netty|grpc|micrometer|lettuce|vertx|quarkus|micronaut|github|opentelemetry|projectreactor|smallrye|reactivex|dapr)[.]|"
    r"software[.]amazon|net[.]sf|System[.]|Microsoft[.]|Newtonsoft|MassTransit|NServiceBus|Npgsql|MySql|RabbitMQ|Azure[.]|Amazon[.]|Grpc[.]|Polly|"
    r"StackExchange|Illuminate|Symfony|Doctrine|GuzzleHttp|Monolog|processTicksAndRejections|process[.]|Module[.]|Object[.]|Function[.]|Promise|"
    r"JSON[.]|runtime[.]|net/|database/sql|encoding/|reflect[.]|testing[.]|panic\(|std::|core::|tokio|alloc::)",
)
_LIBRARY_PATH = re.compile(r"<lib>|node:internal|<frozen|/usr/local/go|node_modules|\[internal function\]")
_AT = re.compile(r"^[ \t]{0,16}at (.+)$")
_PYTHON = re.compile(r'^[ \t]{0,8}File "([^"]*)", line [^,\n]*(?:, in (.*))?$')
_PHP = re.compile(r"^#[0-9<*>]{1,4} (.+)$")
_RUBY = re.compile(r"^[ \t]{0,16}(?:from )?([^ \t]+[.](?:rb|erb|rake)[:(].*in .*)$")
_GO = re.compile(r"^\t([^ \t]+[.]go:.*)$")
_NO_NEWS = re.compile(
    r"^(?:traceback \(most recent|\s*[.]{3} |stack ?trace:|\s*--- end of|goroutine |\s*[~^]+\s*$|\s*$|\[stacktrace\]|"
    r"the above exception was|"
    r"during handling of the above)",
    re.IGNORECASE,
)
_ROOT = re.compile(r"^\s*(?:caused by:?|cause by:?|\[cause\]:?|--->|root cause:?)", re.IGNORECASE)
_GENERATED = re.compile(
    r"\$\$[A-Za-z]{1,40}(?:\$\$|\$)?[0-9a-f<*>/x]{0,40}|\$Proxy[0-9]{1,6}|(?<![a-z])[0-9a-f]{8,}|[0-9]+"
)
_QUOTED = re.compile(r"'[^'\n]{1,120}'|\"[^\"\n]{1,120}\"|`[^`'\n]{1,120}[`']")
_MAX_LINE = 300


class _Trace:
    """The lines of one stack trace, told apart."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.frames: list[tuple[int, str, bool]] = []  # line number, frame, whether it is the application's
        self.said: list[tuple[int, str]] = []  # lines that are not frames
        self.python = False
        after_python = False
        for number, line in enumerate(lines):
            if match := _PYTHON.match(line):
                self.python = after_python = True
                self._add(number, f"{match[1]} in {match[2] or '?'}", match[1])
                continue
            if after_python and line[:4] == "    ":
                continue  # the code of the frame
            after_python = False
            if match := _AT.match(line) or _PHP.match(line) or _RUBY.match(line):
                self._add(number, match[1], match[1])
            elif match := _GO.match(line):
                function = self.said.pop()[1].strip() if self.said else ""
                self._add(number, function.partition("(")[0], function + " " + match[1])
            elif not _NO_NEWS.match(line):
                self.said.append((number, line.strip()[:_MAX_LINE]))
        self.chained = [
            n for n, line in enumerate(lines) if line.startswith(("The above exception", "During handling of"))
        ]

    def _add(self, number: int, frame: str, place: str) -> None:
        own = not _LIBRARY.match(place) and not _LIBRARY_PATH.search(place)
        self.frames.append((number, frame, own))

    def key(self) -> str:
        """First line, root cause, first own frame."""
        first, root, root_line = self._root()
        parts = [_QUOTED.sub("'<*>'", first)]
        if root and root != first:
            parts.append(_QUOTED.sub("'<*>'", root))
        frame = self._own_frame(root_line)
        frame = _FRAME + _GENERATED.sub(BLANK, frame)[:_MAX_LINE] if frame else ""
        return "\n".join(parts) + frame

    def _root(self) -> tuple[str, str, int]:
        if not self.said:
            return "", "", 0
        first = self.said[0][1]
        if self.python:
            end = self.chained[0] if self.chained else self.said[-1][0] + 1
            before = [item for item in self.said if item[0] < end]
            # The exception's own line follows its last frame; a message of several lines begins there.
            frames = [number for number, _, _ in self.frames if number < end]
            last_frame = frames[-1] if frames else -1
            after = [item for item in before if item[0] > last_frame]
            number, root = (after or before or self.said)[0]
            return (self.said[-1][1] if self.chained else first), root, number
        roots = [item for item in self.said if _ROOT.match(item[1])]
        if roots:
            return first, roots[-1][1], roots[-1][0]
        return first, "", 0

    def _own_frame(self, root_line: int) -> str:
        if self.python:
            own = [frame for number, frame, is_own in self.frames if is_own and number < root_line]
            return own[-1] if own else ""
        near = [frame for number, frame, is_own in self.frames if is_own and number > root_line]
        own = near or [frame for _, frame, is_own in self.frames if is_own]
        return own[0] if own else ""
