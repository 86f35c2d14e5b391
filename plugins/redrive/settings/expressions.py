"""Which regular expressions a rule may use: those that Python and Java both take and that can't run away."""

import re
import warnings
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
      (?P<escape>\\.?)
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]?)
    | (?P<flags>\(\?[ims]{1,3}\))
    | (?P<open>\((?:\?(?:[:=!>]|<[=!]|[ims]{1,3}:)|(?!\?)))
    | (?P<foreign>\(\?.{0,3})
    | (?P<close>\))
    | (?P<repeat>[*+]|\{(?P<low>[0-9]{1,6})(?P<comma>,(?P<high>[0-9]{0,6}))?\})
    | (?P<lazy>\?)
    | (?P<brace>\{)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
#: From this count on a bounded repetition costs as much as one without limit when it is nested.
_MANY = 50
#: A repetition without limit may be repeated this often: each time adds a power to what a match can cost.
_FEW = 3


def check_expression(text: str) -> str:
    """``text`` itself; ValueError says why a rule can't have it.

    Rules meet hostile texts, so a repetition without limit must not contain another one. And what Java reads
    differently is refused, so that a rule means the same wherever a site applies it, in Spark's SQL for instance.
    """
    if problem := next(_problems(text), None):
        raise ValueError(problem)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # [a&&b] means an intersection in Java; Python only warns
            re.compile(text)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _problems(text: str) -> Iterator[str]:
    """What is wrong with the shape of an expression, in one pass from left to right."""
    unlimited = [False]  # for each open group: does it contain a repetition without limit?
    atom = False  # does what was just read, and may be repeated next, contain one?
    repeated = False  # was what was just read itself a repetition?
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup, token[0]
        if kind in ("low", "high", "comma"):
            kind = "repeat"
        was_repeated, repeated = repeated, kind == "repeat"
        match kind:
            case "repeat":
                most = _most(token)
                if was_repeated:
                    yield f"{word!r} after a repetition: possessive repetitions are not known to every Python"
                if atom and most > _FEW:
                    yield (
                        "a repetition without limit is repeated itself, like (a+)+: hostile text would "
                        "stall it; bound one of them, as in {1,9}"
                    )
                unlimited[-1] |= most >= _MANY
                atom = False
            case "open":
                unlimited.append(False)
                atom = False
            case "close":
                atom = unlimited.pop() if len(unlimited) > 1 else False
                unlimited[-1] |= atom
            case "lazy":
                pass
            case _:
                atom = False
                if reason := _foreign(kind, word):
                    yield reason


def _most(repetition: re.Match[str]) -> float:
    """How often a repetition repeats at most."""
    low, comma, high = repetition["low"], repetition["comma"], repetition["high"]
    if low is None or (comma and not high):
        return float("inf")
    return int(high or low)


def _foreign(kind: str | None, word: str) -> str | None:
    """Why a token means something else in the other dialect; None if it doesn't."""
    reason = None
    if kind == "foreign":
        reason = f"{word!r}: named groups, conditions and such differ between Python and Java; write (?:"
    elif kind == "brace":
        reason = "a bare { is refused by Java; write \\{"
    elif kind == "set" and "[" in re.sub(r"\\.", "", word[1:]):
        reason = "a bare [ inside [...] begins a set of sets in Java; write \\["
    elif kind == "escape" and word[1:].isdigit() and word != r"\0":
        reason = "back references can't be matched in bounded time"
    elif kind == "escape" and word[1:] in ("Z", "z", "U", "N"):
        reason = f"{word} means different things in Python and Java" + ("; write $" if word[1] in "Zz" else "")
    return reason
