"""Secrets in brackets, as values of JSON or of what Python prints, piece by piece."""

import re

from redrive.redaction.complaints import says_what_is_wrong
from redrive.redaction.escapes import Unescaped
from redrive.redaction.values import SECRETS, in_one_text

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


def secrets_within(text: str, unescaped: Unescaped, start: int, quote: str) -> tuple[list[tuple[int, int, str]], int]:
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
        if not is_closed and (further := in_one_text(self._text, self._unescaped, end, SECRETS[opening[0]])) > end:
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
            if first < last and not says_what_is_wrong(said[first:last], self._tells):
                self.places.append((first, last, ""))
        elif _IS_NUMBER.fullmatch(said, first, last):
            if self._quote and not self._tells:
                self.places.append((first, last, self._quote))
        elif said[first:last].lower() not in _SAYS_NOTHING:
            return 0
        return end
