"""What can be told by its look, wherever it stands: mail addresses, numbers of payment cards, credentials."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from redrive.redaction.escapes import Unescaped
from redrive.redaction.masks import MASK_CARD, MASK_CREDENTIALS, MASK_EMAIL
from redrive.redaction.paths import begins_at

#: From the at sign on; URLs may spell it otherwise.
_AT_DOMAIN = re.compile(r"(?:@|%40)(?:[\w-]{1,63}\.){1,8}(?:xn--[\w-]{1,59}|[^\W\d_]{2,63}+)(?![^\W\d_])")
#: What can't be part of the name before it.
_NOT_IN_NAME = re.compile(r"[\s@<>\"'(),:;\[\]{}|\\=/]")
_MAX_NAME = 256
_PREFIXES = frozenset("burfBURF")


def without_emails(text: str) -> str:
    """``text`` with every mail address masked, also as JSON or a URL spells it, and with its name in quotes."""
    unescaped = Unescaped(text)
    said = unescaped.text
    if "@" not in said and "%40" not in said:
        return text
    parts, at, shown_to = [], 0, 0
    for found in _AT_DOMAIN.finditer(said):
        start = _in_quotes_before(said, found.start(), at)
        while start > at and found.start() - start < _MAX_NAME and _is_of_name(said, start - 1):
            start -= 1
        if start == found.start():
            continue
        parts += [text[shown_to : unescaped.place(start)], MASK_EMAIL]
        at = found.end()
        shown_to = unescaped.place(at)
    parts.append(text[shown_to:])
    return "".join(parts)


def _in_quotes_before(text: str, end: int, first: int) -> int:
    """Where the name in quotes begins that ends at ``end``, from ``first`` on; ``end`` where there is none."""
    if text[end - 1 : end] != '"':
        return end
    closed = _backslashes_before(text, end - 1)
    start = end - 1 - closed
    while (start := text.rfind('"', max(first, end - _MAX_NAME), start)) >= 0:
        opened = _backslashes_before(text, start)
        if opened == closed:
            start -= opened
            return start if start >= first and "\n" not in text[start:end] else end
        if opened < closed:
            break
    return end


def _backslashes_before(text: str, end: int) -> int:
    """How many backslashes, up to a few, stand in front of ``end``."""
    start = max(0, end - 8)
    return end - start - len(text[start:end].rstrip("\\"))


def _is_of_name(text: str, at: int) -> bool:
    """Whether the character there may be part of the name in front of an at sign."""
    if text[at] != "'":
        return not _NOT_IN_NAME.match(text[at])
    before = text[max(0, at - 2) : at]  # mary.o'hara; but u'ana is how Python prints a text
    is_printed = before[-1:] in _PREFIXES and not before[:-1].isalpha()
    return before[-1:].isalpha() and text[at + 1].isalpha() and not is_printed


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


@lru_cache(maxsize=1024)
def is_called_secret(name: str) -> bool:
    """Whether what is so called, a header or a field, is a secret."""
    return CALLED_AT_END.search(name.strip()[-_LONGEST_NAME:]) is not None


_LONGEST_NAME = 256
_OPENING = re.compile(r"\\{0,7}[\"']|")
# How a value begins that is the lines below, further in than its name, as YAML writes it; and what is in front of it.
_BLOCK = re.compile(r"[|>][+-]?\d?[+-]?[ \t]{0,8}(?:\n|\r\n|(?P<escape>\\{1,7})n)[ \t]{0,60}")
_BLOCK_NAME = re.compile(r"(?P<indent>[ \t]*+(?:- {1,4}){0,4})[\"']?[\w.-]*+")
_LONGEST_INDENT = 60
# In quotes up to where they are closed; else up to a blank, or to what begins something else.
_SECRETS = {
    '"': re.compile(r"(?:[^\"\\\n]|\\.)*+"),
    "'": re.compile(r"(?:[^'\\\n]|\\.)*+"),
    "\\": re.compile(r"[^\"'\\\n]*+"),  # within a text in quotes
    "{": re.compile(r"\{[^{}\n]{1,200}\}(?=[;\s]|$)"),
    "": re.compile(
        r"(?:[^\s\"'\\;,&<:.)\]}]|\\(?![\"'nrt])|<(?!/)|[,&](?!\s|$|\\{0,7}[\"']|[\w.-]{1,40}+=)|[:.)\]}](?![\s,;:.)\]}]|$))++",
        re.ASCII,
    ),
}
# Said in a secret's place about it, or where it is, but none itself.
_NO_SECRET = re.compile(
    r"(?:null|none|nil|undefined|true|false|yes|no|not|missing|required|empty|blank|unset|(?:in)?valid|expired|wrong|"
    r"incorrect|unknown|denied|rejected|refused|failed|mismatch|(?:may|must|can|should|does|could)(?:n.t|not)?|is|are|"
    r"was|were|has|have|too|at (?:least|most)|this (?:field|value)|value|field|string|str|length|min|max|minimum|"
    r"maximum|expected|unexpected|unauthorized|forbidden|please|error|eof|timeout|connection|context)(?![\w@#$%*+=!-])"
    r"|/(?:home|var|usr|app|opt|tmp|srv|root|run|etc|mnt)/|projects/|arn:|https?://|\[redacted[ \]]",
    re.ASCII | re.IGNORECASE,
)
# Options of a command that are secrets; and what is said of one behind its name.
_OPTION = (
    r"(?:[a-z0-9]{1,20}-){0,4}(?:passw(?:or)?d|passphrase|pwd|secret|token|"
    r"(?:api|access|secret|account|auth|client|encryption|private)-?key)"
)
_NONE_OF_OPTION = (
    rf"{_NO_SECRET.pattern}|(?:options?|flags?|arguments?|parameters?|switch|and|or|to|in|on|with|for|from|of|by|as|if|"
    r"when|instead|takes?|expects?|needs?|requires?|only|but|which|that|via|using|also|the|an?|given|provided|"
    r"specified|set|used|cannot|twice)(?![\w@#$%*+=!-])"
)
# The same as the whole of a text in quotes that has a name in quotes: there a secret may begin with any word.
_SUBJECT = (
    r"(?:(?:the|this|your|an?|no) )?(?:(?:bearer|access|refresh|api|session|csrf|auth|client|new|old|current)[ _-]?)?"
    r"(?:password|passphrase|passcode|token|secret|key|value|field|string|header|cookie|credential|jwt|signature|"
    r"session|authorization)s?(?: (?:confirmation|field|value|header|format|length|verification|cookie|type|token))?"
)
_COMPLAINT = re.compile(
    r"(?:string )?(?:must|should) match .{1,200}|"
    r"(?:(?:null|none|nil|undefined|true|false|yes|no|missing|required|empty|blank|unset|(?:in)?valid|expired|wrong|"
    r"incorrect|unknown|denied|rejected|refused|failed|mismatch|string|str|unauthorized|forbidden|error)|"
    r"(?:(?:may|must|should|does|could|cannot|can)(?:n?['\u2019]t|not)?|not|is|are|was|were|has|have|too|"
    r"at (?:least|most)|ensure|this (?:field|value)|value|field|string|length|minimum|maximum|expected|unexpected|"
    r"(?:in)?valid|missing|expired|(?:shorter|longer) than|enter an?|size (?:must|is|has)|"
    rf"unknown {_SUBJECT}|{_SUBJECT} (?:must|is|are|was|were|do|does|did|has|have|can|cannot|may|should|not|too|"
    r"expired|missing|(?:in)?valid|required|failed|denied|rejected|revoked|malformed|mismatch|unknown|needs))"
    r"(?:[ ,.:;()/-]{1,3}(?:[a-z]{1,20}(?:['\u2019][a-z]{1,2})?|"
    r"\d{4}-\d\d-\d\d(?:t\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?z?)?|\d{1,6}|\\?['\"`]?[,;:(){}\[\]<>=]{1,2}\\?['\"`]?))*+\)?)[.!]?",
    re.ASCII | re.IGNORECASE,
)
_LONGEST_COMPLAINT = 300
# Behind quotes that end a text of JSON, or of what Python prints, and open none: {"m": "password=", "n": 1}
_TEXT_ENDED = re.compile(
    r"\s{0,4}(?:,\s{0,4}(?:\\{0,7}[\"']|[\[{\d-]|(?:true|false|null)\b)|(?:\s{0,4}[}\])]){1,8}(?=[\s,\\\"'.;]|$)|$)"
)
#: A sign that a parser came upon.
_SIGN = re.compile(r"[^\w\s]{1,2}")
# Within brackets, what reads as a sentence says what is wrong: three words and more, of any language.
_SENTENCE = re.compile(
    r"[^\W\d_]{1,20}(?:[ ,.:;()/\u2019'-]{1,3}(?:[^\W\d_]{1,20}|\d{1,6}(?![^\W\d_]))){2,60}+\)?[.!?]?"
)
_OF_SENTENCES = re.compile(
    r"^[^\W\d_a-z]|[.!?]$|\b(?:is|are|was|be|must|may|not|no|the|an?|to|of|at|in|than|ist|nicht|est|pas|es|non)\b",
    re.IGNORECASE,
)
# The pieces of a value in brackets: of JSON, also within a text in quotes, and of what Python prints.
_PIECE = re.compile(
    r"(?:\s|\\{1,7}[nrt])*+(?:[bBuU](?=[\"']))?(?:(?P<open>[\[{])|(?P<close>[\]}])|(?P<comma>,)|(?P<colon>:|=>)|"
    r"(?P<double>\"(?:[^\"\\\n]++|\\.)*+\"?)|(?P<single>'(?:[^'\\\n]++|\\.)*+'?)|"
    r"(?P<escaped>(?P<run>\\{1,7})\"(?:[^\"\\\n]++|\\++(?!\")|(?P=run)\\++\")*+(?:(?P=run)\")?)|"
    r"(?P<bare>[^\s\"'\\\[\]{},:]++))",
    re.DOTALL,
)
_CLOSES = {"[": "]", "{": "}"}
_IS_NAME = re.compile(r"\s{0,4}(?::|=>)")
_IS_NUMBER = re.compile(r"-?\d[\d.eE+-]*")
_SAYS_NOTHING = frozenset({"null", "true", "false", "none"})
# Fields of an object that tell what is wrong, or where; unless they hold something random.
_TELLS = re.compile(
    r"(?i:error|status)?[_-]?(?i:codes?)|(?i:type|kind|msg|messages?|errors?|reason|details?|description|hint|rule|"
    r"constraint|validation|lines?|col|column|pos|position|offset|start|end|length|size|count|index|status|name|"
    r"namespace|expected|received|required|path|loc|location|field|property|format|title|region|severity|resource)|"
    r"_errors|(?i:min|max)(?i:imum|[A-Z_-]\w{0,40})?"
)
_RANDOM = re.compile(r"(?=[^\s\d]*+\d)(?=[^\sa-z]*+[a-z])\S{16,}+", re.ASCII | re.IGNORECASE)
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
# What tells by its look, or by what is in front of it, that it is a secret; the first group is kept. Each
# is looked for where one of its words is in the text.
_OTHER_SECRETS = tuple(
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
            r"(?-i:sk)-(?:(?:proj|ant|svcacct)-[\w-]{20,}+|(?:[a-z0-9]{1,8}-){0,3}[a-z0-9]{32,}+(?![\w-])))",
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


def without_credentials(text: str) -> str:
    """``text`` with every bearer token masked, what stands behind ``password=`` and the like, and passwords of
    addresses; what is JSON stays JSON."""
    lower = Unescaped(text).text.lower()
    for words, pattern in _OTHER_SECRETS:
        if any(word in lower for word in words):
            unescaped = Unescaped(text)
            found = pattern.finditer(unescaped.text)
            places = ((unescaped.place(one.end(1)), unescaped.place(one.end())) for one in found)
            text = replaced(text, ((start, end, MASK_CREDENTIALS) for start, end in places))
    return replaced(text, _named_secrets(text))


def replaced(text: str, places: Iterable[tuple[int, int, str]]) -> str:
    """``text`` with something else at each of these places."""
    parts, at = [], 0
    for start, end, instead in places:
        parts += [text[at:start], instead]
        at = end
    parts.append(text[at:])
    return "".join(parts)


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
            places, at = _secrets_within(text, unescaped, found.end(), "" if found["many"] else quote)
        elif place := _place_of_secret(said, found):
            start, end, is_bare = place
            if start > found.end() and not is_bare and (quoted := _SECRETS.get(said[found.end()])):
                end = _in_one_text(text, unescaped, end, quoted)
            at = end
            places = [(start, end, quote if is_bare else "")]  # a number of a JSON text: it stays JSON
        else:
            continue
        for start, end, quotes in places:
            begin, until = unescaped.place(start), unescaped.place(end)
            if begin >= shown_to:
                yield begin, until, f"{quotes}{MASK_CREDENTIALS}{quotes}"
                shown_to = until


def _in_one_text(text: str, unescaped: Unescaped, end: int, more: re.Pattern[str]) -> int:
    """Where a text in quotes goes on to that seems to end its line at ``end``, but has only the escape of one there."""
    said = unescaped.text
    while said[end : end + 1] == "\n" and text[unescaped.place(end)] == "\\":
        found = more.match(said, end + 1)
        end = found.end() if found else end + 1
    return end


def _secrets_within(text: str, unescaped: Unescaped, start: int, quote: str) -> tuple[list[tuple[int, int, str]], int]:
    """Where values are within the brackets that open at ``start``, each with the quotes that its mask needs, and where
    they end: with the brackets, or where this is no JSON any more, as what is cut off is not. Without a ``quote`` a
    number is no secret."""
    walk = _Brackets(text, unescaped, quote)
    end = start
    while (piece := _PIECE.match(unescaped.text, end)) and (until := walk.after(piece)):
        end = until
        if walk.is_over:
            break
    return walk.places, end


class _Brackets:
    """Walks through the pieces of a value in brackets."""

    def __init__(self, text: str, unescaped: Unescaped, quote: str) -> None:
        self.places: list[tuple[int, int, str]] = []
        self.is_over = False
        self._text = text
        self._unescaped = unescaped
        self._quote = quote
        self._closing: list[str] = []
        self._expected = "value"
        self._tells = False  # whether the field's name says that it is about what is wrong

    def after(self, piece: re.Match[str]) -> int:
        """Where the next piece begins; 0 where this one can't be there."""
        kind = piece.lastgroup or ""
        if kind in ("double", "single", "escaped", "bare"):
            return self._text_or_number(piece, kind)
        is_right = self._bracket(piece[kind]) if kind in ("open", "close") else self._sign(kind)
        return piece.end() if is_right else 0

    def _bracket(self, bracket: str) -> bool:
        closes = _CLOSES.get(bracket)
        if closes is None:
            if not self._closing or self._closing.pop() != bracket:
                return False
            self._expected, self._tells, self.is_over = "comma", False, not self._closing
            return True
        if self._expected != "value":
            return False
        self._closing.append(closes)
        self._expected = "name" if bracket == "{" else "value"
        return True

    def _sign(self, kind: str) -> bool:
        if kind != self._expected:
            return False
        self._expected = "name" if kind == "comma" and self._closing[-1] == "}" else "value"
        return True

    def _text_or_number(self, piece: re.Match[str], kind: str) -> int:
        said, (start, end) = self._unescaped.text, piece.span(kind)
        run = piece["run"] or ""
        opening = "" if kind == "bare" else said[start : start + len(run) + 1]
        is_closed = kind == "bare" or (end - start >= 2 * len(opening) and said.endswith(opening, start, end))
        if not is_closed and (further := _in_one_text(self._text, self._unescaped, end, _SECRETS[opening[0]])) > end:
            is_closed = said.startswith(opening, further)
            end = further + len(opening) * is_closed
        first, last = start + len(opening), end - len(opening) * is_closed
        if self._expected == "name":
            self._expected = "colon"
            self._tells = _TELLS.fullmatch(said, first, last) is not None
            return end if _IS_NAME.match(said, end) else 0
        if self._expected != "value":
            return 0
        self._expected = "comma"
        self.is_over = not is_closed
        if kind != "bare":
            if first < last and not _says_what_is_wrong(said[first:last], self._tells):
                self.places.append((first, last, ""))
        elif _IS_NUMBER.fullmatch(said, first, last):
            if self._quote and not self._tells:
                self.places.append((first, last, self._quote))
        elif said[first:last].lower() not in _SAYS_NOTHING:
            return 0
        return end


def _says_what_is_wrong(said: str, tells: bool) -> bool:
    """Whether a text within brackets is none that is a secret: its field tells what is wrong (``tells``), or it reads
    so."""
    if is_complaint(said) or (tells and not _RANDOM.fullmatch(said)):
        return True
    return (
        len(said) <= _LONGEST_COMPLAINT
        and _SENTENCE.fullmatch(said) is not None
        and _OF_SENTENCES.search(said) is not None
    )


def is_complaint(said: str) -> bool:
    """Whether a text in quotes only says what is wrong with a secret, or is masked already."""
    return said.startswith("[redacted") or (
        len(said) <= _LONGEST_COMPLAINT and (_COMPLAINT.fullmatch(said.strip()) or _SIGN.fullmatch(said)) is not None
    )


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
        secret = _SECRETS[kind].match(text, start)
        return (start, secret.end(), False) if secret and secret[0] and not is_complaint(secret[0]) else None
    if not kind and found["sign"] == ":" and (block := _block(text, found, at)):
        return (*block, False)
    if _NO_SECRET.match(text, start):
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
        return None if _NO_SECRET.match(listed[1]) else (listed.start(1), listed.end(1), False)
    secret = _SECRETS[kind].match(text, start) if kind in _SECRETS else None
    if secret is None or not secret[0] or (kind and _SIGN.fullmatch(secret[0])):
        return None
    if found["quote"] and found["may_be_none"] and _COUNT.fullmatch(secret[0]):
        return None
    return start, secret.end(), kind in ("", "{")


def _block(text: str, found: re.Match[str], at: int) -> tuple[int, int] | None:
    """Where the lines are that are a value of YAML: those further in than the name in front, up to one that is not."""
    header = _BLOCK.match(text, at)
    if header is None:
        return None
    end_of_line = f"{header['escape']}n" if header["escape"] else "\n"
    looked_from = max(0, found.start() - _LONGEST_NAME)
    begun = text.rfind(end_of_line, looked_from, found.start())
    begun = begun + len(end_of_line) if begun >= 0 else looked_from
    if header["escape"]:  # or where the text begins that it is in
        begun = max(begun, text.rfind('"', looked_from, found.start()) + 1)
    name = _BLOCK_NAME.match(text, begun, found.start())
    if name is None or name.end() != found.start():
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
            end = max(end, quote - _backslashes_before(text, quote))
            break
        if not is_blank:
            end = behind - text.startswith("\r", behind - 1)
        line = behind + len(end_of_line)
    return (start, end) if end > start else None


# Of any script. On a track of a card, a letter stands in front.
_BLANK = r"[ \u00a0\u2000-\u200a\u202f\u3000]"
_DASH = r"[-\u2010-\u2015\u2212\uff0d]"
_DIGITS = re.compile(rf"(?:(?<![\dA-Za-z])|(?<=%B))\d+(?:(?:{_BLANK}{{1,2}}|{_DASH}|[._/\t])\d+)*")
_GROUP = re.compile(r"\d+")
#: What may be between groups of any length that are of one card.
_NEAR = re.compile(rf"{_BLANK}|{_DASH}|[.]")
#: Digits of a group beside anything else: else columns of numbers, dates and paths would be cards.
_IN_GROUP = range(4, 7)


def without_cards(text: str) -> str:
    """``text`` with every number masked that a payment card may have, in digits of any script; what is JSON stays
    JSON."""
    unescaped = Unescaped(text)
    parts, at = [], 0
    is_json = begins_at(text) is not None
    for run in _DIGITS.finditer(unescaped.text):
        if len(run[0]) < 13:
            continue
        for first, last in _cards(run[0]):
            start, end = unescaped.place(first + run.start()), unescaped.place(last + run.start())
            bare = (
                is_json
                and text[end : end + 1] in (",", "}", "]", "\n", "\r")
                and _before(text, start) in (":", ",", "[")
            )
            quote = '"' if bare else ""  # a number of a JSON text: it stays JSON
            parts += [text[at:start], quote, MASK_CARD, quote]
            at = end
    parts.append(text[at:])
    return "".join(parts)


def _before(text: str, end: int) -> str:
    """The last character in front of ``end`` that is no blank."""
    while end and text[end - 1].isspace():
        end -= 1
    return text[end - 1 : end]


def _cards(run: str) -> Iterable[tuple[int, int]]:
    """Where card numbers are in a run of digits and separators: whole groups of digits, 13 to 19 of them together."""
    groups = list(_GROUP.finditer(run))
    first = 0
    while first < len(groups):
        digits, found = "", None
        for last in range(first, min(first + 19, len(groups))):
            if last > first and not _go_together(run, groups[last - 1], groups[last]):
                break
            digits += _as_ascii(groups[last][0])
            if len(digits) > 19:
                break
            if len(digits) >= 13 and digits[0] in "23456" and _luhn(digits):
                found = last
        if found is None:
            first += 1
        else:
            yield groups[first].start(), groups[found].end()
            first = found + 1


def _go_together(run: str, one: re.Match[str], following: re.Match[str]) -> bool:
    """Whether two groups of digits may be of one card."""
    near = _NEAR.fullmatch(run, one.end(), following.start())
    return near is not None or (len(one[0]) in _IN_GROUP and len(following[0]) in range(1, 7))


def _as_ascii(digits: str) -> str:
    return digits if digits.isascii() else "".join([str(int(digit)) for digit in digits])


def _luhn(digits: str) -> bool:
    """Whether the check digit is right."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0
