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

from redrive.classification import error_fields, printed_errors
from redrive.classification.dress import TWO_LETTERS, without_end, without_front
from redrive.classification.error_fields import BETWEEN
from redrive.classification.stack_traces import CUT, FRAME, Trace, may_tell_its_file, with_its_file
from redrive.classification.values_and_names import phrase
from redrive.classification.word_lists import any_of, says
from redrive.classification.wordings import as_others_say

MAX_TEMPLATE: Final = 1000
#: Lines of a text, beside those of its frames, that are looked at.
_MAX_LINES: Final = 12
#: Characters of prose of which a template is made.
_LONGEST: Final = 2_000
#: Letters of two words, in pairs, before an answer in JSON.
_WORDS_BEFORE: Final = 6
#: So many causes are looked behind.
_MAX_CAUSES = 8

_INNER: Final = re.compile(
    r"(?:Lost task [^ \n]{1,12} in stage [^\n]{1,80}?executor (?:<\*>|[0-9]{1,6})\):|"
    r"nested exception is|Write error: (?=WriteError)|[Ww]ith linked exception:?\s*\[|[Cc]aused by:?|"
    r"[( ,;][Cc]ause(?:d by)?[:=]|[Rr]oot cause:?|--->|"
    r"(?<!End of )[Ii]nner exception(?: is)?:?|[Ee]rror_?[Mm]essage[:=]|reply-text=|(?<=[{ ,])message=)\s*"
)
#: One of these is in every text of which it finds some, lower case.
_WORDS_OF_INNER: Final = (
    *("cause", "inner exception", "linked exception", "nested exception is", "errormessage", "error_message"),
    *("message=", "reply-text=", "--->", "lost task ", "write error: "),
)
# What is said after the failure: what was done meanwhile, and that the text was cut short.
_WHILE: Final = re.compile(
    r"[:;,]? ?\b[Ww]hile (?:executing|processing|reading|writing|parsing|handling) [^:;]{1,200}$"
)
_LONGEST_END: Final = 60
_CUT_SIGNS: Final = ("...", "\u2026", "trunc", "cut", "snip", "more")
_CUT_SHORT: Final = re.compile(
    r"\s{0,9}(?:[(\[<]?(?:[.]{3}|\u2026)?\s?(?:truncated|trunc|cut|snip|more)(?:[.]{3}|\u2026)?[)\]>]?|[(\[<]?(?:\u2026|[.]{3})[)\]>]?)\s*$"
)
# What Kafka Connect, and Spring's recoverer, write into headers: the failure is one of them.
_IN_HEADER: Final = re.compile(r"\b_{0,2}(?:connect[.]errors|kafka_dlt|x)[.-]exception[.-]message[=:] ?(?=[^\s])")
# What an object mapper says of the database's message, and the statement.
_MAPPED: Final = re.compile(
    r"(?:could not|cannot|unable to) (?:execute|prepare|extract|perform|insert|update) [\w ]{1,30} ?[\[(]"
    r"(?!\))(?=.{20})"
)
_SQL: Final = re.compile(r";? ?\[?SQL:? ?[\[(:].*$|;? SQL \[.*$", re.S)
# ValueError('unknown plan'): as Python prints an exception
_PRINTED = re.compile(r"\b((?=[A-Z])\w{0,60}(?:Error|Exception|Warning|Failure|Fault))\(([\"'])([^\n]{3,600}?)\2,?\)")
_PRINTED_BREAK = re.compile(r"(?:\\r)?\\n(?=[A-Z][a-z]+ )")
_STATEMENT = re.compile(r" ?[\[(](?:Connection: [\w ,:-]{1,60}, )?SQL: .*$", re.S)
_QUOTED = re.compile(r"([\"'])([^\"'\n]{3,1500})\1(?=$|[\s,;)\]}])")
# (through reference chain: shop.Order["lines"]->java.util.ArrayList[0]->shop.Line["due"])
_REFERENCES = re.compile(r"through reference chain: ([^\n)]{1,600})")
_REFERENCE = re.compile(r"\[\"([A-Za-z_]\w{0,60})\"\]")
# - property iban has failed the following constraints: isIBAN, isNotEmpty
_REFUSED = re.compile(r"- property ([A-Za-z_][\w.]{0,80}) has failed the following constraints: (\w{1,40})")
_MOST_FIELDS = 3
# rpc error: code = PermissionDenied desc = …: but for those of which any failure may be
_RPC_STATUS = re.compile(r"rpc error: code = (?!Unknown|Internal|Unavailable)([A-Z][A-Za-z]{2,30}) desc = ")
_PLAIN = re.compile(r"(?<![\w<])[^\W\d_]{2,40}(?:_[^\W\d_]{2,40}){0,6}(?![\w*])")
_DETAIL = re.compile(rf"\s*(?:{any_of('details')}|LINE [0-9<]|[A-ZÄÖÜÀÂÇÉÈÊÍÓÚÑ]{{3,20}}(?: [0-9]+)? ?: )")
_ADDED = re.compile(r"\s*(?:ORA-06512: |[A-ZÄÖÜÀÂÇÉÈÊÍÓÚÑ]{4,20} ?: )")
# Of a stack of Oracle's errors the first is what failed.
_ADDED_BY_ORACLE = re.compile(rf"\s*ORA-[0-9<]|{_ADDED.pattern}")
# The way to a field, on a line of its own.
_WAY = re.compile(r"[a-z_]\w{0,40}(?:[.][A-Za-z_]\w{0,40}){1,4}")
_NESTED = re.compile(r" \| |[()]")
# Of an answer's names those that say what failed.
_NO_REASON = re.compile(
    r"(?<!\S)(?!\w*(?:code|reason|error|type|field|param|name|property|path|column)=)\w+=\S+ ?(?:\| )?"
)
_PAGES: Final = ("<html", "<!doctype")
_HTML = re.compile(r"[:;\s]\s{0,9}<(?:!doctype|html)\b.*", re.I | re.S)
# '{"urn:iso:std:iso:<*>":ChrgBr}'. One of '{..}' is expected: as SAX calls an element, and what could stand there
_OF_SCHEMA = re.compile(r"'\{\"[^\"\n]{1,200}\":([A-Za-z][\w.-]{0,80})\}'")
_COULD_STAND = re.compile(r"[.]? One of '\{[^'\n]{1,1500}(?:\}' is expected[.]?|$)")
_COMMAND = re.compile(r"(?:[A-Z]\w{0,30}: )?Command failed(?: with exit code [^:\n]{1,12})?: ")
_LINK = re.compile(r"\s*https?://\S+\s*$")
_COPIED = re.compile(r"\bCOPY [\w.\"]{1,120}, line [^ ,]{1,12}, column (\w{1,60})")
_OF_COLUMN = re.compile(r"\b(?:column|constraint|Spalte|colonne)\b")
_INDEX = re.compile(r"(?<=[a-z\]])[.]<\*>(?=[.]|$)|\[<\*>\](?=[.\[]|$)")


def template(masked: str) -> str:
    """The template of a masked text: what it says, and for a stack trace where, after :data:`FRAME`."""
    if may_tell_its_file(masked) and (found := with_its_file(without_front(masked))):
        return _said(found[0])[:MAX_TEMPLATE] + FRAME + found[1]
    if "\n" in masked:
        trace = Trace(without_front(masked).split("\n"))
        if trace.frames:
            words, frame = _traced(trace)
            return words[:MAX_TEMPLATE] + (FRAME + frame if frame else "")
    said, at, frame = (_line(masked) or masked).partition(FRAME)
    if (more := _told_apart_from_it(masked)) and more not in said:
        said = f"{said} ({more})"  # not every client tells it
    if not TWO_LETTERS.search(said) and (told := _PLAIN.findall(masked[:_LONGEST])):
        said = " ".join(told)  # whatever it is, it is not what every other is
    frame, parted, others = frame.partition(BETWEEN)
    return (said + parted + others.replace(FRAME, " at "))[:MAX_TEMPLATE] + at + frame


def _told_apart_from_it(masked: str) -> str:
    """What some tell of a failure beside what it says: gRPC's status, the field that Jackson could not read or that a
    class-validator refused."""
    if status := _RPC_STATUS.search(masked):
        return status[1]
    if (chain := _REFERENCES.search(masked)) and (fields := _REFERENCE.findall(chain[1])):
        return f"field '{'.'.join(fields)}'"
    refused = _REFUSED.findall(masked)
    return ", ".join(f"field '{field}' {rules}" for field, rules in sorted(set(refused))[:_MOST_FIELDS])


def _line(text: str) -> str:
    """The template of a text without frames."""
    text = without_front(text.strip())
    if "xception" in text and (told := _IN_HEADER.search(text)) and TWO_LETTERS.search(text, told.end()):
        text = without_front(text[told.end() :])
    if "'{\"" in text:
        text = _COULD_STAND.sub("", _OF_SCHEMA.sub(r"'\1'", text))
    if "\n" in text and (trace := Trace(text.split("\n"))).frames:  # in a field
        words, frame = _traced(trace)
        return f"{words}{FRAME}{frame}" if frame else words
    # What was answered comes behind: 404 Not Found: {"code": ...}
    at = text.find('{"')
    if at > 0 and "{" not in text[:at] and len(TWO_LETTERS.findall(text[:at])) >= _WORDS_BEFORE:
        before = _said(text[:at].rstrip(" [:=-\n"))
        # Of one that was cut short nobody knows what it said; that it failed is known.
        answer = _NO_REASON.sub("", error_fields.message_of(text[at:], _line)) if text.endswith(("}", "]", '"')) else ""
        return f"{before} ({_NESTED.sub(' ', answer.partition(FRAME)[0])})" if answer else before
    return error_fields.message_of(text, _line) or _said(text)


def _traced(trace: Trace) -> tuple[str, str]:
    """What the root of a trace says, and where."""
    root, frame = trace.root_and_frame()
    return error_fields.message_of(root, _line) or _said(root) or root, frame


def _said(text: str) -> str:
    """The template of prose: the innermost cause, without decoration."""
    if "\\n" in text:  # of a text that was printed
        text = _PRINTED_BREAK.sub("\n", text)
    if (
        says(text.lower(), _PAGES)
        and (page := _HTML.search(text))
        and len(TWO_LETTERS.findall(text[: page.start()])) >= _WORDS_BEFORE
    ):
        text = text[: page.start()]
    text = printed_errors.told(text)
    text = _one_line(text)
    inner = [*_INNER.finditer(text)] if says(text.lower(), _WORDS_OF_INNER) else []
    for match in reversed(inner[-_MAX_CAUSES:]):
        rest = text[match.end() :].strip()
        while rest.endswith(")") and rest.count(")") > rest.count("("):
            rest = rest[:-1]
        if len(TWO_LETTERS.findall(rest[:200])) > 1:
            # What is quoted is a message here, however few its words are.
            quoted = _QUOTED.match(rest)
            text = quoted[2] if quoted and " " in quoted[2] else rest
            break
    if mapped := _MAPPED.search(text):
        text = _SQL.sub("", text[mapped.end() :]).rstrip(" ;)]")
    end = text[-_LONGEST_END:]
    cut = _CUT_SHORT.search(text, len(text) - len(end)) if says(end, _CUT_SIGNS) else None
    text = without_end(without_front(text[: cut.start()] if cut else text))
    if (
        "hile " in text
        and (meanwhile := _WHILE.search(text))
        and len(TWO_LETTERS.findall(text[: meanwhile.start()])) > 3
    ):
        text = text[: meanwhile.start()]
    if "SQL: " in text:
        text = _STATEMENT.sub("", text)
    if "('" in text or '("' in text:
        text = _PRINTED.sub(r"\1: \3", text)
    text = as_others_say(text)
    return phrase(text[:_LONGEST]).strip(" :;,-|") + (CUT if cut else "")


def _one_line(text: str) -> str:
    """The lines of a message as one, without details and hints."""
    if "\n" not in text:
        return text
    lines = [line for line in text.split("\n")[:_MAX_LINES] if line.strip()]
    if len(lines) > 1 and _COMMAND.match(lines[0]):
        lines = lines[1:]  # why, as the command said
    # What a database adds comes last, and goes on over several lines.
    added = _ADDED_BY_ORACLE if lines and "ORA-" in lines[0] else _ADDED
    end = next((number for number, line in enumerate(lines) if number and added.match(line)), len(lines))
    kept = [
        line for number, line in enumerate(lines[:end]) if number == 0 or not (_DETAIL.match(line) or _LINK.match(line))
    ]
    if (copied := _COPIED.search(text)) and not _OF_COLUMN.search(kept[0]):
        kept.append(f"(column '{copied[1]}')")  # of a detail what is broken, where else nobody says it
    # A report of several errors of one kind says the same several times.
    whole = (_INDEX.sub("", " ".join(line.split())) for line in kept)
    return " ; ".join(dict.fromkeys(line.replace(".", "/") if _WAY.fullmatch(line) else line for line in whole))
