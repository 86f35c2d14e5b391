"""Normalization: a masked text becomes the one line that names the failure, its template.

Decoration goes: whatever the same failure is told with or without, such as what a logger puts in front, wrappers, how
a driver quotes, details and hints, how long a list is. Values go: what differs from message to message. What is left,
the names of what is broken and the words about it, is the template. It is a function of the text alone, so it is the
same in every batch and on every machine. Which templates are one failure all the same is decided in
:mod:`redrive.classification.similarity`.

Every expression is linear or bounded: the texts come from outside.
"""

import re
from typing import Final

from redrive.classification import error_fields
from redrive.classification.stack_traces import FRAME, Trace, panic
from redrive.classification.values_and_names import phrase
from redrive.classification.word_lists import any_of

MAX_TEMPLATE: Final = 1000
#: Lines of a text, beside those of its frames, that are looked at.
_MAX_LINES: Final = 12
#: Characters of prose of which a template is made.
_LONGEST: Final = 2_000
#: So many things in front of a text are taken off, one after the other, and so many causes looked behind.
_MAX_FRONT, _MAX_CAUSES = 10, 8

_FRONT: Final = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        # Mar 11 <*> host app[<*>]:
        (r"[A-Z][a-z]{2} {1,2}(?:<\*>|[0-9]{1,2}) (?:<\*>) [^ \n]{1,80} [^ \n:]{1,60}: ", 0),
        # E0311 <*> <*> file.go:<*>]
        (r"[EWIF](?:[0-9]{4}|<\*>) <\*>\s{1,8}(?:<\*>|[0-9]+) [^ \n\]]{1,60}\] ", 0),
        # what is in brackets: a time, a level, a thread, an id; not a sentence
        (r"\[(?![\"'{\[])(?:[^\]\n ]{1,80} ?){1,3}\](?=[ :|\[-])[:| -]{0,3}", 0),
        (rf"(?:{any_of('levels')})(?:(?:[:|]| -)[ ]*|(?=  ?\[)\s*|[ ]+(?=[A-Z<\[\"'(]))", 0),
        (r"(?:error|err|warning|fatal|exception|failed|failure|fehler|erreur)[:|] *", re.I),
        (r"<\*>(?: ?[,.:;|/\]-]{1,2}(?= )| ?\|)? *(?=[^ ,.:;/])", 0),
        # attempt <*>/<*>:
        (rf"(?:(?:{any_of('counted')})\b[ #:=]*(?:<\*>[ /]*|[0-9]+[ /]*)*){{1,4}}(?:[:|](?!:)|[)\]]) *", re.I),
        # a logger's name
        (r"(?![A-Z_]+ )[A-Za-z_$][A-Za-z0-9_.$/<*>-]{1,80} - (?=[^ ])", 0),
        (r"(?:[a-z_][a-z0-9_]{0,40}[.]){1,8}[A-Za-z_$][A-Za-z0-9_$]{0,60}(?<!Exception)(?<!Error):(?=[^ :])", 0),
        (r"(?:[a-z]{1,12}-){0,4}reason: (?=[a-z_]+(?: |$))", 0),
        (r"[|] *", 0),
        (r"[^\s|]{1,60} \| (?=[^ ])", 0),
        (r"PHP (?:Fatal error|Parse error|Warning|Notice|Recoverable fatal error): *", 0),
        (r"(?:Uncaught|Unhandled)(?: exception| rejection| error)?:? (?=[A-Z])", re.I),
    )
)
# The same words, as the SDKs of one maker say them.
_SDK: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"(?:(?:[\w.]{1,120}): )?An error occurred \(([\w.]{1,80})\) when calling the \w{1,60} operation"
            r"(?: \([^()\n]{0,60}\))?: ",
            r"\1: ",
        ),
        (
            r"operation error [\w ]{1,60}: \w{1,60}, (?:exceeded maximum number of attempts, [^ ,]{1,20}, )?"
            r"https response error StatusCode: [^ ,]{1,10}, "
            r"(?:RequestID: [^ ,]{0,90}, )?(?:HostID: [^,]{0,120}, )?(?:api error )?",
            "",
        ),
        (r" ?\(Service: [^;,()\n]{1,60}[;,] Status Code: [^()\n]{1,600}\)?", ""),
    )
)
_INNER: Final = re.compile(
    r"(?:nested exception is|[Cc]aused by:?|[( ,;][Cc]ause(?:d by)?[:=]|[Rr]oot cause:?|--->|"
    r"[Ii]nner exception(?: is)?:?|[Ee]rror_?[Mm]essage[:=]|reply-text=|(?<=[{ ,])message=)\s*"
)
_TWO_LETTERS = re.compile(r"[^\W\d_]{2}")
_DETAIL = re.compile(rf"\s*(?:{any_of('details')}|LINE [0-9<]|[A-ZÄÖÜÀÂÇÉÈÊÍÓÚÑ]{{3,20}}(?: [0-9]+)? ?: )")
_ADDED = re.compile(r"\s*(?:ORA-06512: |[A-ZÄÖÜÀÂÇÉÈÊÍÓÚÑ]{4,20} ?: )")
_INDEX = re.compile(r"(?<=[a-z\]])[.]<\*>(?=[.]|$)|\[<\*>\](?=[.\[]|$)")


def template(masked: str) -> str:
    """The template of a masked text: what it says, and for a stack trace where, after :data:`FRAME`."""
    if "panicked at" in masked[:400] and (found := panic(without_front(masked))):
        return _said(found[0])[:MAX_TEMPLATE] + FRAME + found[1]
    if "\n" in masked:
        trace = Trace(without_front(masked).split("\n"))
        if trace.frames:
            root, frame = trace.root_and_frame()
            words = (_said(root) or root)[:MAX_TEMPLATE]
            return words + FRAME + frame if frame else words
    return (_line(masked) or masked)[:MAX_TEMPLATE]


def without_front(text: str) -> str:
    """``text`` without what loggers and retries put in front of it, as long as something is left."""
    for _ in range(_MAX_FRONT):
        for pattern in _FRONT:
            match = pattern.match(text)
            if match is not None and match.end() and _TWO_LETTERS.search(text, match.end()):
                text = text[match.end() :].lstrip()
                break
        else:
            return text
    return text


def _line(text: str) -> str:
    """The template of a text without frames."""
    text = without_front(text.strip())
    return error_fields.message_of(text, _line) or _said(text)


def _said(text: str) -> str:
    """The template of prose: the innermost cause, without decoration."""
    text = _one_line(text)
    for match in reversed([*_INNER.finditer(text)][-_MAX_CAUSES:]):
        rest = text[match.end() :].strip()
        while rest.endswith(")") and rest.count(")") > rest.count("("):
            rest = rest[:-1]
        if len(_TWO_LETTERS.findall(rest[:200])) > 1:
            text = rest
            break
    text = without_front(text)
    if "rror" in text or "(Service:" in text:
        for pattern, replacement in _SDK:
            text = pattern.sub(replacement, text)
    return phrase(text[:_LONGEST]).strip(" :;,-|")


def _one_line(text: str) -> str:
    """The lines of a message as one, without details and hints."""
    if "\n" not in text:
        return text
    lines = [line for line in text.split("\n")[:_MAX_LINES] if line.strip()]
    # What a database adds comes last, and goes on over several lines.
    end = next((number for number, line in enumerate(lines) if number and _ADDED.match(line)), len(lines))
    kept = [line for number, line in enumerate(lines[:end]) if number == 0 or not _DETAIL.match(line)]
    # A report of several errors of one kind says the same several times.
    return " ; ".join(dict.fromkeys(_INDEX.sub("", " ".join(line.split())) for line in kept))
