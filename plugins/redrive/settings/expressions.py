"""Which regular expressions a rule may use: those of RE2 that Java takes too, up to a size."""

import re
from collections.abc import Iterator

from redrive.classification import route_rules

_TOKEN = re.compile(
    r"""
      (?P<escape>\\.?)
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]?)
    | (?P<flags>\(\?[ims]{1,3}\))
    | (?P<open>\((?:\?(?::|[ims]{1,3}:)|(?!\?)))
    | (?P<look>\(\?(?:[=!>]|<[=!]))
    | (?P<foreign>\(\?.{0,3})
    | (?P<close>\))
    | (?P<repeat>[*+]|\{(?P<low>[0-9]{1,6})(?P<comma>,(?P<high>[0-9]{0,6}))?\})
    | (?P<lazy>\?)
    | (?P<brace>\{)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
#: So many characters, sets and the like an expression may have once its counted repetitions are written out. RE2 looks
#: at no more than that many for each character of a text, and texts are cut: together that is the time a text may take.
MAX_STEPS = 500


def check_expression(text: str) -> str:
    """``text`` itself; ValueError says why a rule can't have it.

    Rules meet hostile texts. RE2 takes no expression whose time could grow faster than the text; what it takes costs at
    most :data:`MAX_STEPS` for each character. And what Java reads differently is refused, so that a rule means the same
    wherever a site applies it, in Spark's SQL for instance.
    """
    if problem := next(_problems(text), None):
        raise ValueError(problem)
    if problem := route_rules.problem(text):
        raise ValueError(f"not a regular expression of RE2: {problem}")
    return text


def _problems(text: str) -> Iterator[str]:
    """What is wrong with the shape of an expression, in one pass from left to right."""
    steps = [0]  # for each open group: its steps so far
    atom = 0  # the steps of what was just read, and may be repeated next
    repeated = False  # was what was just read itself a repetition?
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup, token[0]
        if kind in ("low", "high", "comma"):
            kind = "repeat"
        was_repeated, repeated = repeated, kind == "repeat"
        match kind:
            case "repeat":
                if was_repeated:
                    yield f"{word!r} after a repetition: RE2 knows no possessive repetitions, and needs none"
                steps[-1] += atom * (_times(token) - 1)
                atom = 0
            case "open":
                steps.append(0)
                atom = 0
            case "close":
                atom = steps.pop() if len(steps) > 1 else 0
                steps[-1] += atom
            case "flags" | "lazy":
                pass
            case _:
                steps[-1] += 1
                atom = 1
                if reason := _foreign(kind, word):
                    yield reason
    if sum(steps) > MAX_STEPS:
        yield (
            f"{sum(steps)} steps once its counted repetitions are written out, and {MAX_STEPS} is what a text may take:"
            " write + or * for a {…} with a large number"
        )


def _times(repetition: re.Match[str]) -> int:
    """How often what is repeated is there when the repetition is written out."""
    low, high = repetition["low"], repetition["high"]
    return 1 if low is None else max(int(high or low), 1)


def _foreign(kind: str | None, word: str) -> str | None:
    """Why a token can't be had, or means something else in the other dialect; None if neither."""
    reason = None
    if kind == "look":
        reason = f"{word!r}: RE2 looks neither ahead nor behind, because that can't be done in bounded time"
    elif kind == "foreign":
        reason = f"{word!r}: named groups, conditions and such differ between RE2 and Java; write (?:"
    elif kind == "brace":
        reason = "a bare { is refused by Java; write \\{"
    elif kind == "set" and "[" in re.sub(r"\\.", "", word[1:]):
        reason = "a bare [ inside [...] begins a set of sets in Java; write \\["
    elif kind == "set" and "&&" in word:
        reason = "&& inside [...] is an intersection in Java; write \\&"
    elif kind == "escape" and word[1:].isdigit() and word != r"\0":
        reason = "back references can't be matched in bounded time"
    elif kind == "escape" and word[1:] in ("Z", "z", "C"):
        reason = f"{word} means different things in RE2 and Java" + ("; write $" if word[1] in "Zz" else "")
    return reason
