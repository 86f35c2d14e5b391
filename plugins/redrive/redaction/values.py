"""How far a secret reaches that stands behind its name: in quotes, bare, or as lines of YAML."""

import re
from typing import Final

from redrive.redaction.escapes import Unescaped, backslashes_before

#: So many characters of a name are read.
LONGEST_NAME: Final = 256
#: By how it begins: in quotes up to where they are closed; else up to a blank, or to what begins something else.
SECRETS = {
    '"': re.compile(r"(?:[^\"\\\n]|\\.)*+"),
    "'": re.compile(r"(?:[^'\\\n]|\\.)*+"),
    "\\": re.compile(r"[^\"'\\\n]*+"),  # within a text in quotes
    "{": re.compile(r"\{[^{}\n]{1,200}\}(?=[;\s]|$)"),
    "": re.compile(
        r"(?:[^\s\"'\\;,&<:.)\]}]|\\(?![\"'nrt])|<(?!/)|[,&](?!\s|$|\\{0,7}[\"']|[\w.-]{1,40}+=)|[:.)\]}](?![\s,;:.)\]}]|$))++",
        re.ASCII,
    ),
}
# How a value begins that is the lines below, further in than its name, as YAML writes it; and what is in front of it.
_BLOCK = re.compile(r"[|>][+-]?\d?[+-]?[ \t]{0,8}(?:\n|\r\n|(?P<escape>\\{1,7})n)[ \t]{0,60}")
_BLOCK_NAME = re.compile(r"(?P<indent>[ \t]*+(?:- {1,4}){0,4})[\"']?[\w.-]*+")
_LONGEST_INDENT = 60


def in_one_text(text: str, unescaped: Unescaped, end: int, more: re.Pattern[str]) -> int:
    """Where a text in quotes goes on to that seems to end its line at ``end``, but has only the escape of one there."""
    said = unescaped.text
    while said[end : end + 1] == "\n" and text[unescaped.place(end)] == "\\":
        found = more.match(said, end + 1)
        end = found.end() if found else end + 1
    return end


def block(text: str, name_at: int, at: int) -> tuple[int, int] | None:
    """Where the lines are that are a value of YAML at ``at``: those further in than its name, which stands at
    ``name_at``, up to one that is not; None where no such value begins."""
    header = _BLOCK.match(text, at)
    if header is None:
        return None
    end_of_line = f"{header['escape']}n" if header["escape"] else "\n"
    looked_from = max(0, name_at - LONGEST_NAME)
    begun = text.rfind(end_of_line, looked_from, name_at)
    begun = begun + len(end_of_line) if begun >= 0 else looked_from
    if header["escape"]:  # or where the text begins that it is in
        begun = max(begun, text.rfind('"', looked_from, name_at) + 1)
    name = _BLOCK_NAME.match(text, begun, name_at)
    if name is None or name.end() != name_at:
        return None
    start = end = header.end()
    indent, line = len(name["indent"]), text.rfind(end_of_line, at, start) + len(end_of_line)
    while line < len(text):
        said = text[line : line + _LONGEST_INDENT + 1]
        further_in = len(said) - len(said.lstrip(" \t"))
        is_blank = text.startswith(("\r\n", end_of_line), line + further_in)
        if further_in <= indent and not is_blank:
            break
        behind = text.find(end_of_line, line)
        behind = len(text) if behind < 0 else behind
        if header["escape"] and (quote := text.find('"', line, behind)) >= 0:  # the end of the text that it is in
            end = max(end, quote - backslashes_before(text, quote))
            break
        if not is_blank:
            end = behind - text.startswith("\r", behind - 1)
        line = behind + len(end_of_line)
    return (start, end) if end > start else None
