"""Texts that somebody could send to slow the classification down."""

MEGABYTE = 1 << 20


def _repeat(piece: str) -> str:
    return (piece * (MEGABYTE // len(piece) + 1))[:MEGABYTE]


#: Name to text; each is about a megabyte on one line, or nested, or almost a match of many patterns.
HOSTILE: dict[str, str] = {
    "one letter": _repeat("a"),
    "one digit": _repeat("1"),
    "hexadecimal": _repeat("deadbeef0"),
    "hexadecimal without end": _repeat("abcdef") + "g",
    "dots": _repeat("."),
    "numbers and dots": _repeat("1."),
    "numbers and colons": _repeat("a1:"),
    "slashes": _repeat("/"),
    "path": _repeat("/a"),
    "windows path": _repeat("\\a"),
    "doubled slashes": _repeat("a//"),
    "doubled backslashes": _repeat("a\\\\"),
    "directories and slashes": _repeat("/a/"),
    "directories and backslashes": _repeat("\\a\\"),
    "path to almost a source file": _repeat("/a.p"),
    "library path that never comes": _repeat("/site-package"),
    "blanks": _repeat(" "),
    "tabs and at": _repeat("\tat "),
    "frames": _repeat("\n\tat a.b.C.d(C.java:1)"),
    "python frames": _repeat('\n  File "/a/b.py", line 1, in f\n    x'),
    "almost frames": _repeat('\n  File "'),
    "causes": _repeat("Caused by: "),
    "nested exceptions": _repeat("nested exception is x; "),
    "arrows": _repeat("---> "),
    "almost an address": _repeat("a.b-c_d%"),
    "addresses": _repeat("a@b."),
    "ats": _repeat("@"),
    "urls": _repeat("http://"),
    "quotes": _repeat("'\"`"),
    "open brackets": _repeat("(["),
    "deep json": _repeat('{"a":'),
    "json in json": _repeat('"{\\"a\\":\\"'),
    "escapes": _repeat("\x1b["),
    "escape without end": _repeat("\x1b[0;"),
    "control characters": _repeat("\x00\x07\x85\u2028"),
    "mixed scripts": _repeat("a\u0430\u0663\u65e5\U0001f600"),
    "status words": _repeat("status code status "),
    "error words": _repeat("error code: "),
    "receipt handle": _repeat("receipt handle "),
    "bytes": _repeat("exceeds limit of <*> "),
    "camel": _repeat("aB"),
    "snake": _repeat("a_"),
    "letters and digits": _repeat("a1"),
    "random": _repeat("x9Yq2_"),
    "certificate": _repeat("certificate "),
    "does not have": _repeat("does not have any "),
    "relation": _repeat('relation "'),
    "masked": _repeat("<*> "),
    "reason": _repeat("reason: "),
}
