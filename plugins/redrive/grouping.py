"""Which failures are the same failure: masking, stack-trace keys, templates, fingerprints.

A failure text goes through three steps. :func:`mask` blanks what varies from message to message
(numbers, ids, hosts, paths, times) and keeps what tells failures apart (status codes, SQLSTATE,
vendor codes, class names). Equal masked texts are then handled once. :func:`templates` finds among the
distinct masked texts those that differ only in words that vary, and gives every text its template. The
fingerprint of a group is :func:`fingerprint` of its cause and template, so it is the same on every
machine and every day.

:data:`MASKS` is the one list of patterns. Spark applies it with ``regexp_replace`` (Java), this module
with ``re.sub``; the patterns are written in the subset on which the two agree: ASCII classes spelled
out, no ``.``, ``$``, ``\\b``, ``\\d``, ``\\w`` or ``\\s``, look-behinds of fixed width, every repetition
possessive or bounded so that hostile text costs linear time, replacements without groups.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from redrive.template_mining import WILDCARD, KnownGroup, Place, mine

#: What stands for a value in masked texts and templates.
BLANK = WILDCARD


class Mask(NamedTuple):
    """One replacement; ``pattern`` means the same in Java and in Python (with ``re.ASCII``)."""

    name: str
    pattern: str
    replacement: str


# Directory names, without quotes, blanks and brackets, so that a path ends where prose goes on.
_SEGMENT = r"[A-Za-z0-9_.@%+=~$-]"
_PATH_START = r"(?<![A-Za-z0-9_.>~-])"
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
        "[Ss]tatus[:=] ",
        "[Ss]tatus[\"'][:=]",
        "[Ss]tatus[\"']: ",
        "STATUS[ :=]",
        "HTTP[ :/]",
        "HTTP/[12] ",
        "HTTP/[12][.][01] ",
        "HTTP/[12][.][01][\"'] ",
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
        "[Ss]tate[ :=\\[]",
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
    "(?![45][0-9]{2}[)\\]] )"
    "(?![0-9]{3,5}, [bu]?[\"'(“‘])"
)

#: Replacements in the order in which they are applied.
MASKS: tuple[Mask, ...] = (
    # Terminal colours and control characters would tell equal texts apart, and must not reach a terminal again.
    Mask("control", r"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]", " "),
    Mask("url", r"://[^ \t\n\"'<>,;()\[\]{}|\\^`]++", "://" + BLANK),
    # Frames of libraries and of the application differ in their directory; the file name is kept.
    Mask(
        "library path",
        _PATH_START + r"[/\\](?:" + _SEGMENT + r"{1,80}+[/\\]{1,2}+){0,16}"
        r"(?:site-packages|dist-packages|node_modules|vendor|gems|mod|lib[/\\]python[0-9.]{1,5})[/\\]{1,2}+",
        "<lib>/",
    ),
    Mask(
        "source path",
        _PATH_START + r"[/\\](?:" + _SEGMENT + r"++[/\\]{1,2}+)*+"
        r"(?=[A-Za-z0-9_-]{1,60}+(?:[.][A-Za-z0-9_-]{1,20}){0,2}?[.]" + _SOURCE + r")",
        "<path>/",
    ),
    Mask("path", _PATH_START + r"[/\\](?:" + _SEGMENT + r"++[/\\]{1,2}+)++" + _SEGMENT + r"*+", "<path>"),
    Mask(
        "value",
        r"(?<![A-Za-z0-9])(?:"
        # e-mail address
        r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}+@[A-Za-z0-9-]++(?:[.][A-Za-z0-9-]++)++"
        # UUID
        r"|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
        # date, with or without a time
        r"|[0-9]{4}[/-][0-9]{2}[/-][0-9]{2}(?:[T _-][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?"
        r"(?:Z|[ ]?[+-][0-9]{2}:?[0-9]{2})?)?(?![A-Za-z0-9])"
        # 0x…, MAC and IPv6 addresses, clock times
        r"|0[xX][0-9a-fA-F]++"
        r"|[0-9a-fA-F]{1,4}+(?::{1,2}[0-9a-fA-F]{1,4}+){2,9}(?![A-Za-z0-9])"
        # hexadecimal ids: at least six characters with a digit among them
        r"|(?=[a-fA-F]{0,40}+[0-9])[0-9a-fA-F]{6,}+(?![A-Za-z0-9])"
        # random ids: letters and digits in turn, at least sixteen
        r"|(?=[A-Za-z]{0,20}+[0-9]{1,20}+[A-Za-z]{1,20}+[0-9]{1,20}+[A-Za-z])[A-Za-z0-9_]{16,}+(?![A-Za-z0-9])"
        # numbers, versions, IPv4 addresses with ports
        r"|" + _CODE_BEFORE + _CODE_AFTER + r"-?[0-9]++(?:[.,:][0-9]++)*+"
        r")",
        BLANK,
    ),
)

_COMPILED = tuple((re.compile(mask.pattern, re.ASCII), mask.replacement) for mask in MASKS)


def mask(text: str) -> str:
    """``text`` with everything blanked that varies from message to message.

    The same as Spark's ``regexp_replace`` over :data:`MASKS`, character for character. ``text`` is already
    cut (:func:`redrive.failure_text.cut`).
    """
    for pattern, replacement in _COMPILED:
        text = pattern.sub(replacement, text)
    return text


def fingerprint(cause: str, template: str) -> str:
    """16 hexadecimal digits that name the group of ``cause`` and ``template`` everywhere and for ever."""
    return hashlib.sha256(f"{cause}\0{template}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def templates(masked_texts: Mapping[str, int], known: Sequence[KnownGroup] = ()) -> dict[str, Place]:
    """The template of each of ``masked_texts`` (distinct, with the number of messages of each).

    ``known`` templates are matched first, so a text that fits one keeps its group. The answer depends on
    the set of texts and ``known`` only, not on their order.
    """
    keys: dict[str, str] = {}
    weights: dict[str, int] = {}
    for text, count in masked_texts.items():
        key = trace_key(text)
        keys[text] = key
        weights[key] = weights.get(key, 0) + count
    found = mine(weights, known)
    return {text: found[key] for text, key in keys.items()}


def trace_key(text: str) -> str:
    """What stands for ``text`` in grouping: a stack trace gives its exceptions and first own frame."""
    return text
