"""Credentials told by their names: what stands behind ``password=``, ``"clientSecret":`` and the like."""

import re
from collections.abc import Iterator
from functools import lru_cache

from redrive.redaction.brackets import secrets_within
from redrive.redaction.complaints import NO_SECRET, SIGN, is_complaint
from redrive.redaction.escapes import Unescaped
from redrive.redaction.masks import MASK_CREDENTIALS, replaced
from redrive.redaction.tokens import without_tokens
from redrive.redaction.values import LONGEST_NAME, SECRETS, block, in_one_text

#: What is called a secret by its end, whatever is in front of it: db_password, clientSecret, access-token.
CALLED = (
    r"(?:passw(?:or)?d|passwort|passphrase|passcode|pwd|secret|(?P<only_as_name>jwt)|"
    r"token(?<!unexpected token)(?<!(?:page|next|sync)token)(?<!(?:page|next|sync)[-_]token)(?<!continuationtoken)"
    r"(?<!continuation[-_]token)(?<!idempotencytoken)(?<!idempotency[-_]token)(?<!max[-_]token)(?<!(?:total|limit|reset)"
    r"[-_]token)(?<!remaining[-_]token)|"
    r"(?P<may_be_none>credentials?|pass(?<!bypass)(?<!compass)(?<!trespass)(?<!boardingpass)(?<!boarding[-_ ]pass))|"
    r"(?P<key>(?:api|access|account|admin|app|auth|client|"
    r"encryption|functions|license|master|private|secret|secret[-_ ]?access|session|shared|shared[-_ ]?access|signing|"
    r"storage|subscription)[-_ ]?key)|"
    # With a dot, as Hadoop, Spark and Java spell settings; private.key is a file.
    r"(?:secret|access|api|encryption|signing|account)\.key(?:(?<=account\.key)\.[a-z0-9]{1,24}\.[a-z]{1,8}\.core"
    r"(?:\.[a-z]{1,16}){1,4})?|(?P<header>authorization|cookie(?<![a-z]cookie)))(?P<many>(?<!s)s)?"
)
CALLED_AT_END = re.compile(rf"{CALLED}$", re.ASCII | re.IGNORECASE)
_NAMED = re.compile(
    rf"(?P<element><[\w:.-]{{0,60}}?)?{CALLED}"
    r"(?P<quote>\\{0,7}[\"'])?(?:\s{0,4}(?P<sign>==?>?|%3d|:(?!:)=?)\s{0,4}|(?P<end>(?(element)(?:\s[^<>]{0,500}+)?)>))",
    re.ASCII | re.IGNORECASE,
)
_OPENING = re.compile(r"\\{0,7}[\"']|")
# Behind quotes that end a text of JSON, or of what Python prints, and open none: {"m": "password=", "n": 1}
_TEXT_ENDED = re.compile(
    r"\s{0,4}(?:,\s{0,4}(?:\\{0,7}[\"']|[\[{\d-]|(?:true|false|null)\b)|(?:\s{0,4}[}\])]){1,8}(?=[\s,\\\"'.;]|$)|$)"
)
_LIST = re.compile(r"\[([^\[\]\n]{1,1000})\]")
# Beside a name that is no header's: one that is no word.
_LISTED_SECRET = re.compile(r"\[((?=[^\d\]]{0,60}\d)(?=[^a-z\]]{0,60}[a-z])[\w.~+/-]{6,1000}={0,2})\]", re.ASCII | re.I)
# What begins a field of its own.
_BEGINS = re.compile(r"(?:^|[,;&|({\n\t]) {0,4}$|[-_]$")
_LOOKED_BACK = 8
_IN_QUOTES = re.compile(r"[\[{\"']|\\{1,7}[\"']")
#: "pass": 3, "fail": 1
_COUNT = re.compile(r"\d{1,3}")
_NO_WORD = re.compile(r"(?=\S{6})(?=[^\s\d]{0,60}\d)(?=[^\sa-z]{0,60}[a-z])", re.ASCII | re.IGNORECASE)


def without_credentials(text: str) -> str:
    """``text`` with every bearer token masked, what stands behind ``password=`` and the like, and passwords of
    addresses; what is JSON stays JSON."""
    text = without_tokens(text)
    return replaced(text, _named_secrets(text))


@lru_cache(maxsize=1024)
def is_called_secret(name: str) -> bool:
    """Whether what is so called, a header or a field, is a secret."""
    return CALLED_AT_END.search(name.strip()[-LONGEST_NAME:]) is not None


def _named_secrets(text: str) -> Iterator[tuple[int, int, str]]:
    """Where secrets are by their names, each with what is shown instead."""
    unescaped = Unescaped(text)
    said, at, shown_to = unescaped.text, 0, 0
    for found in _NAMED.finditer(said):
        if found.start() < at:
            continue
        quote = found["quote"] or ""
        if (found["many"] or found["only_as_name"]) and not (quote and _IN_QUOTES.match(said, found.end())):
            continue
        if quote and said[found.end() : found.end() + 1] in ("[", "{"):
            if found["may_be_none"]:
                continue
            places, at = secrets_within(text, unescaped, found.end(), "" if found["many"] else quote)
        elif place := _place_of_secret(said, found):
            start, end, is_bare = place
            if start > found.end() and not is_bare and (quoted := SECRETS.get(said[found.end()])):
                end = in_one_text(text, unescaped, end, quoted)
            at = end
            places = [(start, end, quote if is_bare else "")]  # a number of a JSON text: it stays JSON
        else:
            continue
        for start, end, quotes in places:
            begin, until = unescaped.place(start), unescaped.place(end)
            if begin >= shown_to:
                yield begin, until, f"{quotes}{MASK_CREDENTIALS}{quotes}"
                shown_to = until


def _place_of_secret(text: str, found: re.Match[str]) -> tuple[int, int, bool] | None:
    """Where the secret is whose name was ``found``, and whether without quotes; None where none is told."""
    at = found.end()
    if found["end"]:  # <password>
        end = text.find("<", at) if found["element"] and text[at - 2] != "/" else -1
        return (at, end, False) if at < end and text.startswith("</", end) else None
    opening = _OPENING.match(text, at)
    start = opening.end() if opening else at
    kind = text[at:start][:1]
    if kind and not found["quote"] and _TEXT_ENDED.match(text, start):
        return None
    if found["header"] and not (found["quote"] or text[start : start + 1] == "["):
        return None  # in prose they are told by what follows
    if kind and found["quote"]:
        secret = SECRETS[kind].match(text, start)
        return (start, secret.end(), False) if secret and secret[0] and not is_complaint(secret[0]) else None
    if not kind and found["sign"] == ":" and (lines := block(text, found.start(), at)):
        return (*lines, False)
    if NO_SECRET.match(text, start):
        return None
    of_header = found["header"] or found["key"] or text[max(0, found.start() - 1) : found.start()] == "-"
    listed = None if kind else (_LIST if of_header else _LISTED_SECRET).match(text, start)
    if not kind and text[start : start + 1] in ("[", "{") and listed is None:
        kind = "{" if found["sign"] == "=" and text[start] == "{" else "["
    if not kind and found["sign"][0] == ":" and not (found["quote"] or found["key"]):
        # In prose what was wrong with it may follow: failed to read the token: unexpected end
        before = text[max(0, found.start() - _LOOKED_BACK) : found.start()]
        looked_at = start + (listed is not None)
        if not ((not found["may_be_none"] and _BEGINS.search(before)) or _NO_WORD.match(text, looked_at)):
            return None
    if listed is not None:  # as Java prints headers
        return None if NO_SECRET.match(listed[1]) else (listed.start(1), listed.end(1), False)
    secret = SECRETS[kind].match(text, start) if kind in SECRETS else None
    if secret is None or not secret[0] or (kind and SIGN.fullmatch(secret[0])):
        return None
    if found["quote"] and found["may_be_none"] and _COUNT.fullmatch(secret[0]):
        return None
    return start, secret.end(), kind in ("", "{")
