"""Peek: what lies in a route's dead-letter sources, where the broker lets it be looked at without touching it.

Nothing is received, nothing is staged, no delivery is counted. What is seen is grouped by why it died, as a run would
group it, by the broker's reason and by what kind of message it is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

from redrive.brokers import open_broker, registry
from redrive.brokers.base import Broker, Peeks
from redrive.classification import failure_text, grouping, route_rules
from redrive.classification.cases import ROUTE_HINT, Case, RouteRule
from redrive.classification.explain import explain_cases
from redrive.classification.learned_model import Model
from redrive.classification.templates import KnownGroup
from redrive.ledger.selecting import Selection
from redrive.message import TYPE_ATTRIBUTE, DeadLetter, message_type, named_type
from redrive.redaction import Redactor, redactor
from redrive.settings import Settings
from redrive.stages import source_expansion

EVERYTHING = Selection()
#: Of each source so many messages are looked at, unless told.
LOOKED_AT = 1_000


def can_peek(settings: Settings, route: str) -> bool:
    """Whether the route's broker lets its sources be looked at."""
    return registry.kind(settings.route(route).broker).capabilities.peeks


def depths(
    settings: Settings, route: str, *, selection: Selection = EVERYTHING, broker: Broker | None = None
) -> dict[str, int | None]:
    """How many messages each source of ``route`` holds that the selection takes; None where the broker doesn't tell."""
    asked = settings.route(route)
    covers = registry.kind(asked.broker).covers
    opened = broker or open_broker(asked.broker, asked.connection or "")
    try:
        return {
            source.queue: opened.depth(source.queue).total
            for source in source_expansion.as_the_broker_says(asked, lambda: opened).sources
            if _is_one_of(source.queue, selection.sources, covers)
        }
    finally:
        if broker is None:
            opened.close()


def peek(
    settings: Settings,
    route: str,
    *,
    selection: Selection = EVERYTHING,
    known: Iterable[KnownGroup] = (),
    model: Model | None = None,
    broker: Broker | None = None,
) -> list[dict[str, Any]]:
    """What lies in the dead-letter sources of ``route``, most messages first: ``source, origin, type, reason, cause,
    template, messages``. Up to the selection's limit of each source (:data:`LOOKED_AT`) are looked at, the oldest ones,
    and of those counted what it takes by source, attribute, type and cause. What the route's ``redact`` names is
    masked.
    """
    asked = settings.route(route)
    covers, wanted = registry.kind(asked.broker).covers, selection.wanted_attributes()
    opened = broker or open_broker(asked.broker, asked.connection or "")
    try:
        letters = [
            (source.queue, letter)
            for source in source_expansion.as_the_broker_says(asked, lambda: opened).sources
            if source.kind == "dead_letter" and _is_one_of(source.queue, selection.sources, covers)
            for letter in cast("Peeks", opened).peek(source.queue, selection.limit or LOOKED_AT)
            if _carries(letter, wanted)
        ]
    finally:
        if broker is None:
            opened.close()
    picked = [
        failure_text.pick(
            letter.headers,
            letter.body,
            description=letter.description,
            reason=letter.reason,
            evidence=asked.evidence,
            ordering_key=letter.ordering_key,
            broker_message_id=letter.broker_message_id,
        )
        for _, letter in letters
    ]
    rules = [RouteRule(rule.match, rule.cause) for rule in asked.rules]
    matched = route_rules.first_matches([one.text for one in picked], [rule.match for rule in rules])
    cases = [
        Case(grouping.mask(one.text), one.reason, f"{ROUTE_HINT}{number}" if number else "")
        for one, number in zip(picked, matched, strict=True)
    ]
    explained = explain_cases(Counter(cases), rules, known, model)
    mask = redactor(asked)
    rows = Counter(
        (
            queue,
            letter.origin,
            _shown_type(letter, mask),
            letter.reason and mask(letter.reason),
            explained[case].cause.value,
            mask(explained[case].template),
        )
        for (queue, letter), case in zip(letters, cases, strict=True)
        if not selection.causes or explained[case].cause in selection.causes
    )
    names = ("source", "origin", "type", "reason", "cause", "template")
    return [dict(zip(names, key, strict=True), messages=count) for key, count in rows.most_common()]


def _shown_type(letter: DeadLetter, mask: Redactor) -> str | None:
    """What kind of message it says it is, as that may be shown."""
    found = named_type(letter.headers, letter.properties)
    return found and mask.header(*found)


def _is_one_of(queue: str, chosen: Sequence[str], covers: Callable[[str, str], bool]) -> bool:
    return not chosen or any(covers(one, queue) for one in chosen)


def _carries(letter: DeadLetter, wanted: Mapping[str, AbstractSet[str]]) -> bool:
    """Whether the letter has a wanted value of every wanted name."""
    if not wanted:
        return True
    said = {header.name: header.value for header in letter.headers}
    said[TYPE_ATTRIBUTE] = message_type(letter.headers, letter.properties) or ""
    return all(said.get(name) in values for name, values in wanted.items())
