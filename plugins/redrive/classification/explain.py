"""From what a message says to its cause and its group: the one path that Spark and ``redrive explain`` share.

Spark brings texts down to distinct :class:`~redrive.classification.cases.Case` values (masked text,
broker reason, hint) and counts;
:func:`judge` gives each its cause, rule, confidence, template and fingerprint. ``explain`` does the same
with the lines of its input.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from redrive.classification import failure_text, grouping, route_rules
from redrive.classification.cases import LEASE_HINT, ROUTE_HINT, Case, RouteRule
from redrive.classification.causes import Cause, default_verdict
from redrive.classification.learned_model import OVERRULES, Model, shipped
from redrive.classification.rules import HINTS, Finding, find, find_reason
from redrive.classification.templates import KnownGroup
from redrive.message import Header


class Judgement(NamedTuple):
    """Why a case failed and where it belongs."""

    cause: Cause
    rule: str  # stable id of the rule that decided
    confidence: float  # 0 to 1
    template: str
    fingerprint: str


def judge(
    cases: Mapping[Case, int],
    rules: Sequence[RouteRule] = (),
    known: Iterable[KnownGroup] = (),
    model: Model | None = None,
) -> dict[Case, Judgement]:
    """The judgement of every case; the values of ``cases`` are numbers of messages.

    ``model`` is asked about what the table of rules leaves open; None stands for the one that we ship. Memory is
    proportional to the number of cases. A group has one cause: templates are mined within a cause.
    """
    known = list(known)
    believed = _believed(cases, known, model or shipped())
    findings = {case: _cause_of(case, rules, believed) for case in cases}
    by_cause: dict[Cause, dict[str, int]] = {}
    for case, (cause, _, _) in findings.items():
        texts = by_cause.setdefault(cause, {})
        text = case.masked or _nothing_said(case)
        texts[text] = texts.get(text, 0) + cases[case]
    known_of: dict[str, list[KnownGroup]] = {}
    for group in known:
        known_of.setdefault(group.cause, []).append(group)
    found = {cause: grouping.templates(texts, known_of.get(cause, ())) for cause, texts in by_cause.items()}
    judgements: dict[Case, Judgement] = {}
    for case, (cause, rule, confidence) in findings.items():
        place = found[cause][case.masked or _nothing_said(case)]
        judgements[case] = Judgement(
            cause,
            rule,
            confidence,
            place.template,
            place.fingerprint or grouping.fingerprint(cause, place.template),
        )
    return judgements


def explain(
    lines: Iterable[Mapping[str, Any]],
    rules: Sequence[RouteRule] = (),
    known_groups: Iterable[KnownGroup] = (),
    model: Model | None = None,
) -> Iterator[dict[str, Any]]:
    """Each line with ``cause, rule, confidence, verdict, group, template``, in order, grouped as one batch.

    A line has ``text`` and may have ``reason`` (the broker's) and ``attributes`` (name to value). Lines are
    kept until the last is read, because grouping needs all of them; texts are kept once each.
    """
    known = list(known_groups)
    kept: list[tuple[dict[str, Any], failure_text.Evidence]] = []
    seen: dict[failure_text.Evidence, int] = {}
    for line in lines:
        evidence = failure_text.pick(
            [Header(str(name), "String", str(value)) for name, value in _attributes(line)],
            b"",
            given=_text(line.get("text")),
            reason=_text(line.get("reason")),
        )
        seen[evidence] = seen.get(evidence, 0) + 1
        kept.append((dict(line), evidence))
    matched = route_rules.first_matches([one.text for one in seen], [rule.match for rule in rules])
    cases = {
        one: Case(grouping.mask(one.text), one.reason, f"{ROUTE_HINT}{number}" if number else "")
        for one, number in zip(seen, matched, strict=True)
    }
    counts: dict[Case, int] = {}
    for evidence, count in seen.items():
        counts[cases[evidence]] = counts.get(cases[evidence], 0) + count
    judgements = judge(counts, rules, known, model)
    for line, evidence in kept:
        cause, rule, confidence, template, fingerprint = judgements[cases[evidence]]
        yield line | {
            "cause": cause.value,
            "rule": rule,
            "confidence": round(confidence, 3),
            "verdict": default_verdict(cause).value,
            "group": fingerprint,
            "template": template,
        }


def _cause_of(
    case: Case, rules: Sequence[RouteRule], believed: Mapping[str, Finding | None]
) -> tuple[Cause, str, float]:
    if case.hint.startswith(ROUTE_HINT):
        rule = rules[int(case.hint.removeprefix(ROUTE_HINT)) - 1]
        return rule.cause, case.hint, 1.0
    if case.masked:
        finding = believed[case.masked]
        # "Too often" and "too old" in a text say no more than the broker's own reason does.
        by_reason = find_reason(case.reason)
        if finding is not None and not (finding.last_resort and by_reason is not None):
            return finding.cause, finding.rule, finding.confidence
        if by_reason is not None:
            return by_reason.cause, by_reason.rule, by_reason.confidence
        return Cause.UNCLASSIFIED, "none", 0.0
    by_reason = find_reason(case.reason)
    if by_reason is not None:
        return by_reason.cause, by_reason.rule, by_reason.confidence
    if case.hint == LEASE_HINT:
        return Cause.LEASE_EXPIRED, "lease.time_per_delivery", 0.6
    return Cause.MAX_DELIVERIES, "broker.nothing_said", 0.3


def _believed(cases: Mapping[Case, int], known: Sequence[KnownGroup], model: Model | None) -> dict[str, Finding | None]:
    """What to believe of every text: what the rules say, and where they say little, what the model says.

    Single words are weighed, and the model is asked, in the template and not in each text, so that a name in it
    doesn't split a group; and what belongs to a known group has that group's cause, so that a new model doesn't
    either.
    """
    believed: dict[str, Finding | None] = {}
    texts: dict[str, int] = {}
    for case, count in cases.items():
        if case.masked and not case.hint.startswith(ROUTE_HINT):
            if case.masked not in believed:
                believed[case.masked] = find(case.masked)
            finding = believed[case.masked]
            if finding is None or finding.weak:
                texts[case.masked] = texts.get(case.masked, 0) + count
    if not texts:
        return believed
    decided = [group for group in known if group.cause != Cause.UNCLASSIFIED]
    cause_of = {group.fingerprint: Cause(group.cause) for group in decided}
    asked: dict[str, tuple[Finding | None, Finding | None]] = {}
    for text, place in grouping.templates(texts, decided).items():
        if place.template not in asked:
            learned = model.find(place.template) if model is not None else None
            asked[place.template] = learned, find(place.template)
        by_rule, (by_model, of_template) = believed[text], asked[place.template]
        if by_rule is None or by_rule.rule == HINTS:
            by_rule = of_template if of_template is not None and of_template.rule == HINTS else None
        elif by_model is not None and by_model.confidence < OVERRULES:
            by_model = None
        found = by_model or by_rule
        cause = cause_of.get(place.fingerprint or "")
        if cause is not None and (found is None or found.cause is not cause):
            found = Finding(cause, "group.known", by_model.confidence if by_model else 0.3, weak=True)
        believed[text] = found
    return believed


def _nothing_said(case: Case) -> str:
    if case.reason:
        return f"no failure text, broker reason {case.reason}"
    if case.hint == LEASE_HINT:
        return "no failure text, time per delivery reaches the lease"
    return "no failure text"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _attributes(line: Mapping[str, Any]) -> list[tuple[str, Any]]:
    attributes = line.get("attributes")
    return list(attributes.items()) if isinstance(attributes, Mapping) else []


#: What an example may not show: e-mail addresses, things like card numbers, bearer tokens and passwords.
_PERSONAL: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.ASCII), replacement)
    for pattern, replacement in (
        (r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}+@[A-Za-z0-9-]++(?:[.][A-Za-z0-9-]++)++", "<email>"),
        (r"(?<![0-9A-Za-z.])[0-9](?:[ -]?[0-9]){12,18}(?![0-9A-Za-z.])", "<card>"),
        (r"(?i)(?<![a-z])(?:bearer|basic) [a-z0-9._~+/=-]{12,}+", "<credentials>"),
        (r"(?i)(?<=ord=|swd=|pwd=|ret=|key=|ken=)[^ \t\n;&,\"']++", "<secret>"),
    )
)


def without_personal_data(text: str) -> str:
    """``text`` as it may be shown as the example of its group."""
    for pattern, replacement in _PERSONAL:
        text = pattern.sub(replacement, text)
    return text
