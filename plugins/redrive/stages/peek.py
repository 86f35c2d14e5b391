"""Peek: what lies in a route's dead-letter sources, where the broker lets it be looked at without touching it.

Nothing is received, nothing is staged, no delivery is counted. What is seen is grouped by why it died, as a run would
group it, by the broker's reason and by what kind of message it is.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

from redrive.brokers import open_broker, registry
from redrive.brokers.base import Broker, Peeks
from redrive.classification import failure_text, grouping, route_rules
from redrive.classification.cases import ROUTE_HINT, Case, RouteRule
from redrive.classification.explain import explain_cases
from redrive.classification.learned_model import Model
from redrive.classification.templates import KnownGroup
from redrive.message import DeadLetter
from redrive.redaction import redactor
from redrive.settings import Settings
from redrive.stages import many

#: Of each source so many messages are looked at, unless told.
LOOKED_AT = 1_000
#: Headers and properties that name the type of a message: NServiceBus, MassTransit, and what brokers have for it.
_TYPES = ("NServiceBus.EnclosedMessageTypes", "MT-MessageType", "MessageType", "message-type", "type", "Subject")


def can_peek(settings: Settings, route: str) -> bool:
    """Whether the route's broker lets its sources be looked at."""
    return registry.kind(settings.route(route).broker).capabilities.peeks


def peek(
    settings: Settings,
    route: str,
    *,
    limit: int | None = None,
    known: Iterable[KnownGroup] = (),
    model: Model | None = None,
    broker: Broker | None = None,
) -> list[dict[str, Any]]:
    """What lies in the dead-letter sources of ``route``, most messages first: ``source, origin, type, reason, cause,
    template, messages``. Up to ``limit`` messages of each source (:data:`LOOKED_AT`) are looked at, the oldest ones.
    """
    asked = settings.route(route)
    opened = broker or open_broker(asked.broker, asked.connection or "")
    try:
        letters = [
            (source.queue, letter)
            for source in many.as_the_broker_says(asked, lambda: opened).sources
            if source.kind == "dead_letter"
            for letter in cast("Peeks", opened).peek(source.queue, limit or LOOKED_AT)
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
            message_type(letter),
            letter.reason,
            explained[case].cause.value,
            mask(explained[case].template),
        )
        for (queue, letter), case in zip(letters, cases, strict=True)
    )
    names = ("source", "origin", "type", "reason", "cause", "template")
    return [dict(zip(names, key, strict=True), messages=count) for key, count in rows.most_common()]


def message_type(letter: DeadLetter) -> str | None:
    """What kind of message it says it is; of a list of types the first, without its assembly."""
    said = {header.name: header.value for header in letter.headers} | dict(letter.properties)
    for name in _TYPES:
        told = said.get(name)
        if isinstance(told, str) and told.strip():
            return told.partition(";")[0].partition(",")[0].strip()[:200]
    return None
