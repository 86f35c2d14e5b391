"""Credentials told by their own look, or by what stands in front of them: tokens of services, options of commands."""

import re

from redrive.redaction.complaints import NO_SECRET
from redrive.redaction.escapes import Unescaped
from redrive.redaction.masks import MASK_CREDENTIALS, replaced

# Options of a command that are secrets; and what is said of one behind its name.
_OPTION = (
    r"(?:[a-z0-9]{1,20}-){0,4}(?:passw(?:or)?d|passphrase|pwd|secret|token|"
    r"(?:api|access|secret|account|auth|client|encryption|private)-?key)"
)
_NONE_OF_OPTION = (
    rf"{NO_SECRET.pattern}|(?:options?|flags?|arguments?|parameters?|switch|and|or|to|in|on|with|for|from|of|by|as|if|"
    r"when|instead|takes?|expects?|needs?|requires?|only|but|which|that|via|using|also|the|an?|given|provided|"
    r"specified|set|used|cannot|twice)(?![\w@#$%*+=!-])"
)
# The first group of each is kept. It is looked for where one of its words is in the text.
_TOKENS = tuple(
    (words, re.compile(pattern, re.ASCII | re.IGNORECASE))
    for words, pattern in (
        # user:password@host; the user may have an at sign
        (("://",), r"(://[^\s/?#:\"'<>\[\]]{0,80}:)(?!\[redacted)[^\s/\"'<>]{1,256}(?=@)"),
        # the password may have a slash, where it is no port, nor a path as git writes it
        (
            ("://",),
            r"((?<!ssh)(?<!git)://[^\s/?#:\"'<>\[\]]{0,80}:)(?!\[redacted|\d{1,5}[/,?#])"
            r"[^\s\"'<>]{1,256}(?=@[\w\[])",
        ),
        # what a service of the cloud signed; a key in an address
        (("sig", "key="), r"((?<![a-z])(?:sig|signature)(?:=|%3d)|[?&]key=)(?!\[redacted)[^\s;&,\"'<>]++"),
        # key= something random, not of a row
        (("key=",), r"((?<![a-z_-])key=)(?=[a-z+/_-]{0,60}\d)(?=[\d+/_-]{0,60}[a-z])[\w+/-]{20,}+={0,2}"),
        (("cookie",), r"((?<![a-z])cookie[\"']?:\s{0,4}[\"']?)(?!\[redacted)(?=[\w.-]{1,80}=)[^\n\"']++"),
        # how one logs in over HTTP
        (
            ("bearer",),
            r"((?<![a-z]))bearer(?:[ \t]{1,8}|%20|\+)"
            r"(?:\"[a-z0-9._~+/=-]{12,}+\"|[\"']?(?!auth|cred|token)[a-z0-9._~+/=-]{12,}+)",
        ),
        (
            ("authorization",),
            r"(authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?)(?:basic|digest|apikey|token|key|bearer)"
            r"(?:[ \t]{1,8}|%20|\+)(?!auth|cred|realm|token )[a-z0-9._~+/=-]{4,}+",
        ),
        (
            ("basic",),
            r"((?<![a-z]))basic(?:[ \t]{1,8}|%20|\+)[\"']?"
            r"(?=[a-z+/]{0,60}(?:[0-9=]|(?-i:[A-Z][a-z][A-Z]|[a-z][A-Z]{2})))"
            r"[a-z0-9+/_-]{8,}+={0,2}",
        ),
        # a web token; a key in a file
        (("eyj",), r"((?<![\w-]))(?-i:eyJ)[\w-]{16,}+(?:[.][\w-]*+){0,4}"),
        (
            ("private key",),
            r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----)(?!\[redacted)(?:[^-]++|-(?!----))++",
        ),
        # what services begin their tokens with, as they document it for those who look for leaks
        (
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_", "pypi-", "hf_", "dop_v1_"),
            r"((?<![\w-]))(?:gh[opsur]_[a-z0-9]{36,}+|github_pat_\w{22,}+|glpat-[\w-]{20,}+|npm_[a-z0-9]{36,}+|"
            r"(?-i:pypi-AgE)[\w-]{32,}+|hf_[a-z0-9]{30,}+|dop_v1_[0-9a-f]{32,}+)",
        ),
        (
            ("xox", "xapp-", "sk_live_", "sk_test_", "rk_live_", "rk_test_", "aiza", "ya29.", "sg.", "sk-"),
            r"((?<![\w-]))(?:xox[abeprs]-[\w-]{10,}+|xapp-\d-[\w-]{10,}+|[sr]k_(?:live|test)_[a-z0-9]{16,}+|"
            r"(?-i:AIza)[\w-]{35}|ya29\.[\w-]{20,}+|(?-i:SG)\.[\w-]{22}\.[\w-]{43}|"
            r"(?-i:sk)-(?:(?:proj|ant|svcacct|lf)-[\w-]{20,}+|(?:[a-z0-9]{1,8}-){0,3}[a-z0-9]{32,}+(?![\w-])))",
        ),
        # of a command: --password …; the same as a list of its words
        (
            ("--",),
            rf"((?<![\w-])--{_OPTION}[ \t]{{1,4}}(?:\\{{0,7}}[\"'])?)(?!-|{_NONE_OF_OPTION})[^\s\"'\\,;:)\]}}<>]++",
        ),
        (
            ("--",),
            rf"((?<=[\"'])--{_OPTION}\\{{0,7}}[\"'],\s{{0,4}}\\{{0,7}}[\"'])(?!--|\[redacted)[^\n\"'\\]++"
            r"(?=\\{0,7}[\"']\s{0,4}[,\])])",
        ),
    )
)


def without_tokens(text: str) -> str:
    """``text`` with every such credential masked."""
    lower = Unescaped(text).text.lower()
    for words, pattern in _TOKENS:
        if any(word in lower for word in words):
            unescaped = Unescaped(text)
            found = pattern.finditer(unescaped.text)
            places = ((unescaped.place(one.end(1)), unescaped.place(one.end())) for one in found)
            text = replaced(text, ((start, end, MASK_CREDENTIALS) for start, end in places))
    return text
