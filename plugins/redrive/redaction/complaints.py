"""What is said about a secret in its place, such as that it is missing: none itself, and it stays readable."""

import re

# Said in a secret's place about it, or where it is, but none itself.
NO_SECRET = re.compile(
    r"(?:null|none|nil|undefined|true|false|yes|no|not|missing|required|empty|blank|unset|(?:in)?valid|expired|wrong|"
    r"incorrect|unknown|denied|rejected|refused|failed|mismatch|(?:may|must|can|should|does|could)(?:n.t|not)?|is|are|"
    r"was|were|has|have|too|at (?:least|most)|this (?:field|value)|value|field|string|str|length|min|max|minimum|"
    r"maximum|expected|unexpected|unauthorized|forbidden|please|error|eof|timeout|connection|context)(?![\w@#$%*+=!-])"
    r"|/(?:home|var|usr|app|opt|tmp|srv|root|run|etc|mnt)/|projects/|arn:|https?://|\[redacted[ \]]",
    re.ASCII | re.IGNORECASE,
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
#: A sign that a parser came upon.
SIGN = re.compile(r"[^\w\s]{1,2}")
# Within brackets, what reads as a sentence says what is wrong: three words and more, of any language.
_SENTENCE = re.compile(
    r"[^\W\d_]{1,20}(?:[ ,.:;()/\u2019'-]{1,3}(?:[^\W\d_]{1,20}|\d{1,6}(?![^\W\d_]))){2,60}+\)?[.!?]?"
)
_OF_SENTENCES = re.compile(
    r"^[^\W\d_a-z]|[.!?]$|\b(?:is|are|was|be|must|may|not|no|the|an?|to|of|at|in|than|ist|nicht|est|pas|es|non)\b",
    re.IGNORECASE,
)
# What is random, and so may be a secret, in a field that tells what is wrong.
_RANDOM = re.compile(r"(?=[^\s\d]*+\d)(?=[^\sa-z]*+[a-z])\S{16,}+", re.ASCII | re.IGNORECASE)


def is_complaint(said: str) -> bool:
    """Whether a text in quotes only says what is wrong with a secret, or is masked already."""
    return said.startswith("[redacted") or (
        len(said) <= _LONGEST_COMPLAINT and (_COMPLAINT.fullmatch(said.strip()) or SIGN.fullmatch(said)) is not None
    )


def says_what_is_wrong(said: str, tells: bool) -> bool:
    """Whether a text within brackets is none that is a secret: its field tells what is wrong (``tells``), or it reads
    so."""
    if is_complaint(said) or (tells and not _RANDOM.fullmatch(said)):
        return True
    return (
        len(said) <= _LONGEST_COMPLAINT
        and _SENTENCE.fullmatch(said) is not None
        and _OF_SENTENCES.search(said) is not None
    )
