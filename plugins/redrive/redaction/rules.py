"""A route's rules, and what masks texts by them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

from redrive.errors import SelectorError
from redrive.redaction import pairs, paths
from redrive.redaction.cards import without_cards
from redrive.redaction.credentials import is_called_secret, without_credentials
from redrive.redaction.emails import without_emails
from redrive.redaction.masks import MASK, MASK_CREDENTIALS
from redrive.selectors import Kind, Selector, parse_path

EMAIL: Final = "email"
CARD: Final = "card"
CREDENTIALS: Final = "credentials"
ATTRIBUTE: Final = "attribute:"
#: A JSON text within a JSON string within …: so deep is looked.
MAX_NESTED_TEXTS: Final = 3

#: So many characters more than are shown of a text are read, and masked.
MARGIN: Final = 500


class Redacts(Protocol):
    """Anything with rules, such as a route's settings."""

    @property
    def redact(self) -> Sequence[str]: ...

    @property
    def evidence(self) -> Sequence[Selector]: ...


class Redactor:
    """Masks texts by rules; a call takes a text and gives the text that may be shown."""

    def __init__(self, rules: Iterable[str], told_by: Iterable[str] = ()) -> None:
        """Raises :class:`~redrive.errors.SelectorError` for a rule that can't be read. ``told_by``: headers that
        failure texts are taken from, so that what they are called hides nothing."""
        chosen = [check(rule) for rule in rules]
        self._email = EMAIL in chosen
        self._card = CARD in chosen
        self._credentials = CREDENTIALS in chosen
        self._headers = {name.lower() for one in chosen if (name := header_of(one)) is not None}
        self._told_by = {name.lower() for name in told_by}
        self._paths = tuple(dict.fromkeys(paths.parse(one) for one in chosen if one.startswith("$")))
        names = {next((step for step in reversed(path) if isinstance(step, str)), "") for path in self._paths}
        self._has_nameless = "" in names  # such as $.* or $[0]
        self._names = paths.before_values_of(names - {""}) if names - {""} else None

    def __call__(self, text: str) -> str:
        """``text`` with everything masked that the rules name, but headers, which only :meth:`header` knows."""
        if self._paths:
            text = self._by_path(text, 0)
        if self._credentials:  # first: a password in front of a host looks like a mail address
            text = pairs.without_pairs(without_credentials(text))
        if self._email:
            text = without_emails(text)
        if self._card:
            text = without_cards(text)
        return text

    def beginning(self, text: str, length: int) -> str:
        """About the first ``length`` characters of a text as they may be shown. What was read of it goes on for
        :data:`MARGIN` more: cut first, half of what is masked would not be known by its look."""
        shown, more = self(text), len(text) - length
        while more > 0 and not shown.endswith(text[-more:]):
            more -= 1  # what is masked there stays whole
        return shown[:-more] if more > 0 else shown

    def header(self, name: str, value: str) -> str:
        """A header's value as it may be shown."""
        short = name.lower()
        if short in self._headers:
            return MASK
        if self._credentials and short not in self._told_by and is_called_secret(short):
            return MASK_CREDENTIALS
        return self(value)

    def shows(self, selector: str, value: str) -> bool:
        """Whether ``value``, which ``selector`` found (:mod:`redrive.selectors`), may be seen as it is."""
        kind, _, where = selector.partition(":")
        if kind == "attribute":
            return self.header(where, value) == value
        if kind != "body" or not self._paths:
            return self(value) == value
        path = parse_path(where)
        text = value if value[:1] in ("{", "[") else json.dumps(value)
        for step in reversed(path):  # as it stood in its body
            text = f"{{{json.dumps(step)}:{text}}}" if isinstance(step, str) else f"[{'null,' * step}{text}]"
        return self(text) == text and self(value) == value

    def headers(self, stored: str) -> str:
        """Headers as the review table holds them (JSON ``[[name, type, value], …]``), as they may be shown."""
        try:
            found = json.loads(stored)
            shown = [[name, kind, self.header(str(name), str(value))] for name, kind, value in found]
        except (ValueError, TypeError, RecursionError):
            return MASK if self._headers or self._credentials else self(stored)
        return json.dumps(shown, ensure_ascii=False)

    def changes(self, stored: str) -> str:
        """Corrections of headers as the review table holds them (a JSON object by name), as they may be shown."""
        try:
            found = json.loads(stored)
            shown = {
                name: value
                if value is None
                else [*value[:-1], self.header(name, str(value[-1]))]
                if isinstance(value, list)
                else self.header(name, str(value))
                for name, value in found.items()
            }
        except (ValueError, TypeError, AttributeError, IndexError, RecursionError):
            return MASK if self._headers or self._credentials else self(stored)
        return json.dumps(shown, ensure_ascii=False)

    def __bool__(self) -> bool:
        """Whether there is anything to mask."""
        return bool(self._email or self._card or self._credentials or self._headers or self._paths)

    def _by_path(self, text: str, depth: int) -> str:
        if (begin := paths.begins_at(text)) is not None:
            front = text[:begin]
            text, proper = paths.Walk(text[begin:], self._paths, self._nested(depth)).masked()
            text = front + text
            if proper:
                return text
        if self._has_nameless:
            text = paths.without_brackets(text)
        return text if self._names is None else paths.without_values(text, self._names)

    def _nested(self, depth: int) -> Callable[[str], str]:
        if depth >= MAX_NESTED_TEXTS:
            return lambda text: text
        return lambda text: self._by_path(text, depth + 1)


def redactor(route: Redacts) -> Redactor:
    """What masks texts of this route; ``redactor(route)(text)`` is what may be shown of ``text``."""
    told_by = sorted(one.name.lower() for one in route.evidence if one.kind is Kind.ATTRIBUTE)
    return of_rules(tuple(route.redact), tuple(told_by))


def redactor_of(name: str, routes: Mapping[str, Redacts]) -> Redactor:
    """What masks texts of the route called ``name``. Of one that is not among ``routes``, because it was renamed or
    removed, nobody knows any more what it masked: that is whatever any of them masks, mail addresses and cards."""
    if name in routes:
        return redactor(routes[name])
    rules = {rule for one in routes.values() for rule in one.redact}
    return of_rules((*sorted(rules), *sorted({EMAIL, CARD} - rules)))


@lru_cache(maxsize=256)
def of_rules(rules: tuple[str, ...], told_by: tuple[str, ...] = ()) -> Redactor:
    """The same by the rules alone, and the headers that failure texts are taken from."""
    return Redactor(rules, told_by)


def as_example(text: str) -> str:
    """``text`` as it may be kept as the example of its group, which people of every route may see."""
    return of_rules((EMAIL, CARD, CREDENTIALS))(text)


def header_of(rule: str) -> str | None:
    """The name of the header whose value the rule masks; None where it names none."""
    return rule.removeprefix(ATTRIBUTE) if rule.startswith(ATTRIBUTE) else None


def check(rule: str) -> str:
    """The rule, if it is one; raises :class:`~redrive.errors.SelectorError` if not."""
    if rule in (EMAIL, CARD, CREDENTIALS):
        return rule
    if rule.startswith(ATTRIBUTE) and 0 < len(rule) - len(ATTRIBUTE) <= 256:
        return rule
    if rule.startswith("$"):
        paths.parse(rule)
        return rule
    raise SelectorError(
        f"{rule[:80]!r}: write email, card, credentials or a path such as $.customer.name, or attribute:NAME"
    )
