"""From what a message says to its cause and its group: the one path that Spark and ``redrive explain`` share.

Spark brings texts down to distinct :class:`~redrive.classification.cases.Case` values (masked text,
broker reason, hint) and counts;
:func:`explain_cases` gives each its cause, rule, confidence, template and fingerprint. ``explain`` does the same
with the lines of its input.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redrive.classification import failure_text, grouping, normalization, route_rules, similarity
from redrive.classification.cases import LEASE_HINT, MAYBE_LEASE_HINT, ROUTE_HINT, Case, RouteRule
from redrive.classification.causes import Cause, default_verdict
from redrive.classification.dress import without_front
from redrive.classification.grouping import BLANK, Spot
from redrive.classification.learned_model import GUESS, OVERRULES, Model, shipped
from redrive.classification.named_faults import without_named_faults
from redrive.classification.refusals import last_attempt, perhaps_done, refusal_of
from redrive.classification.rules import Finding, find, find_reason, is_of_business, is_of_machines, says_nothing
from redrive.classification.templates import KnownGroup, Place, tokens_of
from redrive.message import Header

#: So many cases, those with the most messages, are told apart by which of their words vary. What more there are at
#: once belongs to a group that is known by then, or shares one with all others of its cause: nobody looks at more
#: groups, and telling a million texts apart that have nothing in common takes memory for each.
TOLD_APART: Final = 50_000
#: The template of what more there is.
OVERFLOW: Final = "(too many different failures at once to tell them apart)"


#: So likely the model has to find a cause that is sent again by itself, in a text about machines and in any other.
LIKELY: Final = 0.5
VERY_LIKELY: Final = 0.8

# A value in quotes, of a few words, and that there are fields, which quote what they say.
_QUOTED: Final = re.compile(r"(?<![\w'\"`])(['\"`])[^'\"`\n]{1,40}\1(?![\w'\"`])")
_FIELD: Final = re.compile(r"[\"'] ?: ?[\"'\[{0-9<]|=[\"']")


# That a thing of some name is down says nothing about a message, whatever it is called.
_ONLY_DOWN: Final = re.compile(
    r"(?:\S{1,40} ){1,3}(?:is |are |was )?(?:currently )?(?:down|offline|(?:down for|under|in) maintenance)[.!]?",
    re.IGNORECASE,
)

# What is left of a text that only names a fault: a value, a setting or a name is wrong.
_ONLY_NAMED: Final = Finding(Cause.MALFORMED_PAYLOAD, "malformed.named_fault", 0.5)


# What the last of several attempts failed for, where no rule knows it and it says something: not what the others did.
_OF_LAST_ATTEMPT: Final = Finding(Cause.UNCLASSIFIED, "attempts.last", 0.3)


class Explanation(NamedTuple):
    """Why a case failed and where it belongs."""

    cause: Cause
    rule: str  # stable id of the rule that decided
    confidence: float  # 0 to 1
    template: str
    fingerprint: str
    #: What the case itself says, by which the group is found again; "" where that has the group's name anyway.
    telling: str = ""


class Reading(NamedTuple):
    """What a masked text says by itself: its template, and what the table of rules finds."""

    template: str
    finding: Finding | None

    @classmethod
    def of(cls, masked: str) -> "Reading":
        """What ``masked`` says."""
        return cls(normalization.template(masked), finding_of(masked))


def finding_of(masked: str) -> Finding | None:
    """What the table of rules finds in ``masked``.

    Not in what loggers and consumers put in front of it: what a class or a tenant is called says nothing about the
    failure. And nothing is sent again for a fault that is only named (:mod:`~redrive.classification.named_faults`), nor
    for what a value says, where what is said of it asks for a person: *Hat 'rate limit' not found*. Nor for what a
    business ran out of time for and may have been done.
    """
    said = without_front(masked)
    found = find(said)
    if found is None:
        perhaps = perhaps_done(said)
        return perhaps if perhaps is not None and is_of_business(said) else None
    if not _goes_by_itself(found.cause):
        return found
    if (bare := without_named_faults(said)) != said:
        # Where nothing else is said, it is said of what is named.
        found = find(bare) or _ONLY_NAMED
        found, said = found._replace(weak=False), bare
    if _goes_by_itself(found.cause) and not _FIELD.search(said):
        bare = _QUOTED.sub(BLANK, said)
        itself = find(bare) if bare != said else None
        if itself is not None and not itself.weak and not _goes_by_itself(itself.cause):
            return itself
    return _of_last_attempt(masked, _unless_refused(said, found))


def _of_last_attempt(masked: str, found: Finding) -> Finding:
    """``found``, or where ``masked`` tells of several attempts and the last one failed for a person, what that says."""
    last = last_attempt(masked) if _goes_by_itself(found.cause) else ""
    if not last:
        return found
    itself = find(last)
    if itself is None or itself.last_resort:
        return found if says_nothing(last) else itself or _OF_LAST_ATTEMPT
    return found if _goes_by_itself(itself.cause) else itself


def _unless_refused(said: str, found: Finding) -> Finding:
    """``found``, but not where it would send again what ``said`` that another try is no use for."""
    return (_goes_by_itself(found.cause) and refusal_of(said, found)) or found


def explain_cases(
    cases: Mapping[Case, int],
    rules: Sequence[RouteRule] = (),
    known: Iterable[KnownGroup] = (),
    model: Model | None = None,
    told_apart: int | None = None,
    readings: Mapping[str, Reading] = {},
) -> dict[Case, Explanation]:
    """The explanation of every case; the values of ``cases`` are numbers of messages.

    ``model`` is asked about what the table of rules leaves open; None stands for the one that we ship. Time grows with
    the number of cases, and so does memory up to ``told_apart`` (:data:`TOLD_APART`) of them, those with the most
    messages; the rest :class:`Others` judges. ``readings`` are of masked texts that somebody read already. A group has
    one cause.
    """
    known = list(known)
    told_apart = TOLD_APART if told_apart is None else told_apart
    if len(cases) <= told_apart:
        return _told_apart(cases, rules, known, model, readings)
    first = heapq.nsmallest(told_apart, cases, key=lambda case: (-cases[case], case))
    explanations = _told_apart({case: cases[case] for case in first}, rules, known, model, readings)
    others = Others(rules, [*known, *groups_of(explanations.values())], model)
    return explanations | {case: others.explain(case) for case in cases if case not in explanations}


class Others:
    """Judges cases one by one: their causes, and the groups that are known, or else the one that all others share.

    This needs no memory for what it has explained, and may run in many processes.
    """

    def __init__(
        self, rules: Sequence[RouteRule] = (), known: Iterable[KnownGroup] = (), model: Model | None = None
    ) -> None:
        known = list(known)
        self._splits = grouping.Splits(known)
        known = self._splits.others(known)
        self._rules = rules
        self._model = model or shipped()
        decided = _decided(known)
        self._decided = grouping.Known(decided)
        self._cause_of = {group.fingerprint: Cause(group.cause) for group in decided}
        self._known = {cause: grouping.Known(some) for cause, some in _by_cause(known).items()}

    def explain(self, case: Case) -> Explanation:
        """The explanation of one case."""
        text = case.masked
        template = normalization.template(text or _nothing_said(case))
        believed: dict[str, Finding | None] = {}
        if text and not case.hint.startswith(ROUTE_HINT):
            by_rule = finding_of(text)
            believed[text] = by_rule if by_rule is not None and not by_rule.weak else self._weighed(template, by_rule)
        cause, rule, confidence = _cause_of(case, self._rules, believed)
        place = self._known[cause].place(template) if cause in self._known else None
        if place is None:
            template = OVERFLOW if text else _nothing_said(case)
            return Explanation(cause, rule, confidence, template, grouping.fingerprint(cause, template))
        split = self._splits.find(place.fingerprint, text)
        if split is not None:
            place = Place(split.template, split.fingerprint)
        return Explanation(cause, rule, confidence, *place)

    def _weighed(self, template: str, by_rule: Finding | None) -> Finding | None:
        place = self._decided.place(template) or Place(template)
        learned = _learned(self._model, place.template)
        return _weigh(by_rule, learned, self._cause_of.get(place.fingerprint))


def groups_of(explanations: Iterable[Explanation]) -> set[KnownGroup]:
    """The groups that were found, each with every telling."""
    found: set[KnownGroup] = set()
    for one in explanations:
        found.add(KnownGroup(one.fingerprint, one.cause, one.template))
        if one.telling:
            found.add(KnownGroup(one.fingerprint, one.cause, one.telling))
    return found


def overflow_groups() -> frozenset[str]:
    """The fingerprints of the groups that :data:`OVERFLOW` makes, one for a cause."""
    return frozenset(grouping.fingerprint(cause, OVERFLOW) for cause in Cause)


def _by_cause(known: Iterable[KnownGroup]) -> dict[str, list[KnownGroup]]:
    found: dict[str, list[KnownGroup]] = {}
    for group in known:
        found.setdefault(group.cause, []).append(group)
    return found


def _decided(known: Iterable[KnownGroup]) -> list[KnownGroup]:
    return [group for group in known if group.cause != Cause.UNCLASSIFIED]


def _told_apart(
    cases: Mapping[Case, int],
    rules: Sequence[RouteRule],
    known: Sequence[KnownGroup],
    model: Model | None,
    readings: Mapping[str, Reading],
) -> dict[Case, Explanation]:
    splits = grouping.Splits(known)
    counts: dict[str, int] = {}
    for case, count in cases.items():
        text = case.masked or _nothing_said(case)
        counts[text] = counts.get(text, 0) + count
    templates = {text: reading.template for text, reading in readings.items()}
    spots = grouping.spots(counts, splits.others(known), templates)
    said = {
        case.masked: readings[case.masked].finding if case.masked in readings else finding_of(case.masked)
        for case in cases
        if case.masked and not case.hint.startswith(ROUTE_HINT)
    }
    said |= {
        text: found for text in said if (found := _beside_what_varies(text, said[text], spots[text])) != said[text]
    }
    believed = _believed(said, spots, model or shipped())
    explanations: dict[Case, Explanation] = {}
    for case in cases:
        cause, rule, confidence = _cause_of(case, rules, believed)
        spot = spots[case.masked or _nothing_said(case)]
        group = spot.known.get(cause)
        place = (
            (group.template, group.fingerprint)
            if group
            else (spot.template, grouping.fingerprint(cause, spot.template))
        )
        telling = spot.telling if grouping.fingerprint(cause, spot.telling) != place[1] else ""
        if split := splits.find(place[1], case.masked):
            place, telling = (split.template, split.fingerprint), ""
        explanations[case] = Explanation(cause, rule, confidence, *place, telling)
    return explanations


def explain(
    lines: Iterable[Mapping[str, Any]],
    rules: Sequence[RouteRule] = (),
    known_groups: Iterable[KnownGroup] = (),
    model: Model | None = None,
) -> Iterator[dict[str, Any]]:
    """Each line with ``cause, rule, confidence, verdict, group, template``, in order, grouped as one batch.

    A line has ``text`` and may have ``reason`` (the broker's) and ``attributes`` (name to value). Lines are
    kept until the last is read, because grouping needs all of them; texts are kept once each. Of more than
    :data:`TOLD_APART` different ones the rest shares a group for each cause, whose template says so.
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
    explanations = explain_cases(counts, rules, known, model)
    for line, evidence in kept:
        cause, rule, confidence, template, fingerprint, _ = explanations[cases[evidence]]
        yield line | {
            "cause": cause.value,
            "rule": rule,
            "confidence": round(confidence, 3),
            "verdict": default_verdict(cause).value,
            "group": fingerprint,
            "template": template,
        }


def compare(
    one: str, other: str, known_groups: Iterable[KnownGroup] = (), model: Model | None = None
) -> dict[str, Any]:
    """Whether two failure texts are one group, and why: ``same, because`` (sentences), ``texts`` (explained)."""
    answers = list(explain([{"text": one}, {"text": other}], known_groups=known_groups, model=model))
    left, right = answers
    same = left["group"] == right["group"]
    alone = [next(explain([{"text": text}], model=model))["template"] for text in (one, other)]
    because = similarity.reasons(*alone)
    if left["cause"] != right["cause"]:
        because.insert(0, f"their causes differ: {left['cause']} / {right['cause']}")
    if same and known_groups and len({*alone}) > 1:
        because.append("in this ledger both belong to one known group")
    return {"same": same, "because": because, "texts": answers}


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
        if finding is not None and not (by_reason is not None and _says_more(by_reason, finding)):
            return finding.cause, finding.rule, finding.confidence
        if by_reason is not None:
            return by_reason.cause, by_reason.rule, by_reason.confidence
        return Cause.UNCLASSIFIED, "none", 0.0
    by_reason = find_reason(case.reason)
    if by_reason is not None:
        return by_reason.cause, by_reason.rule, by_reason.confidence
    if case.hint == LEASE_HINT:
        return Cause.LEASE_EXPIRED, "lease.time_per_delivery", 0.6
    if case.hint == MAYBE_LEASE_HINT:
        return Cause.MAX_DELIVERIES, "lease.may_have_run_out", 0.3
    return Cause.MAX_DELIVERIES, "broker.nothing_said", 0.3


def _says_more(reason: Finding, text: Finding) -> bool:
    """Whether a broker's reason outweighs what its text was found to say.

    It does where the text says no more than that it was too often or too late, and where that is a guess and the reason
    is none: weak evidence never beats strong. That there were too many deliveries says nothing about why.
    """
    guessed = text.weak or text.rule.startswith(GUESS)
    outweighs = text.confidence < reason.confidence and reason.cause is not Cause.MAX_DELIVERIES
    return text.last_resort or (guessed and outweighs)


def _beside_what_varies(masked: str, finding: Finding | None, spot: Spot) -> Finding | None:
    """``finding`` of a text, but not because of words that vary in its place: of *Marking 'hmac' as a filter* and
    forty others none is about a signature."""
    if finding is None or spot.own == spot.telling:
        return finding
    varying = set(tokens_of(spot.own)).difference(tokens_of(spot.telling))
    words = [word for word in sorted(varying) if word in masked and BLANK not in word and word[:1].isalnum()]
    if not words:
        return finding
    return finding_of(re.sub(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)", BLANK, masked))


def _believed(
    found: Mapping[str, Finding | None], spots: Mapping[str, Spot], model: Model | None
) -> dict[str, Finding | None]:
    """What to believe of every text: what the rules ``found``, and where they say little, what the model says.

    Where the rules say little of a text and much of another way to tell the same failure, that holds for both. The
    model is asked about the template and not about each text, so that a name in it doesn't split a group; and what
    belongs to a known group has that group's cause, so that a new model doesn't either.
    """
    believed = dict(found)
    said: dict[str, dict[Cause, Finding]] = {}
    for text, finding in believed.items():
        if finding is not None and not finding.weak:
            best = said.setdefault(spots[text].template, {})
            best[finding.cause] = max(finding, best.get(finding.cause, finding), key=_surer)
    asked: dict[str, Finding | None] = {}
    for text, finding in believed.items():
        if finding is not None and not finding.weak:
            continue
        spot = spots[text]
        sure = said.get(spot.template, {})
        if len(sure) == 1:
            believed[text] = next(iter(sure.values()))
            continue
        if spot.template not in asked:
            asked[spot.template] = _learned(model, spot.template)
        causes = [Cause(cause) for cause in spot.known if cause != Cause.UNCLASSIFIED]
        # Where there is a group for each of several causes, what is found says which; so does that nothing is.
        by_itself = _weigh(finding, asked[spot.template], None)
        if by_itself is None and Cause.UNCLASSIFIED in spot.known:
            causes = []
        likely = [one.cause for one in (by_itself, finding) if one is not None and one.cause in causes]
        known = next(iter([*likely, *causes]), None)
        believed[text] = _weigh(finding, asked[spot.template], known)
    believed |= _agreed(believed, spots)
    return believed | _joined(believed, spots)


def _learned(model: Model | None, template: str) -> Finding | None:
    """What ``model`` says of a template; nothing is sent again for a guess of few words that may mean anything."""
    found = model.find(template) if model is not None else None
    if found is None:
        return None
    if not _goes_by_itself(found.cause):
        return None if _ONLY_DOWN.fullmatch(template) else found
    if found.confidence < LIKELY:
        return None
    if is_of_business(template) or (found.confidence < VERY_LIKELY and not is_of_machines(template)):
        return None
    return _unless_refused(template, found)


def _joined(believed: Mapping[str, Finding | None], spots: Mapping[str, Spot]) -> dict[str, Finding]:
    """What to believe of texts that nothing is known of: what is believed of the others of their failure.

    Only where that asks a person: nothing is sent again because of another's words.
    """
    others: dict[str, dict[Cause, Finding]] = {}
    for text, finding in believed.items():
        if finding is not None:
            best = others.setdefault(spots[text].template, {})
            best[finding.cause] = max(finding, best.get(finding.cause, finding), key=_surer)
    found: dict[str, Finding] = {}
    for text, finding in believed.items():
        said = others.get(spots[text].template, {})
        if finding is None and len(said) == 1 and default_verdict(next(iter(said))).needs_person:
            found[text] = next(iter(said.values()))
    return found


def _agreed(believed: Mapping[str, Finding | None], spots: Mapping[str, Spot]) -> dict[str, Finding]:
    """What to believe instead of texts of one template of which different things are believed.

    What is told with a failure (a line of a stack, a logger's name) can make a rule match. The group that the ledger
    has decides, then what the template itself says, and where that says none of it, the surest. Left apart is what
    would be sent again by itself and what would not: then both may be right.
    """
    together: dict[tuple[str, bool], dict[str, Finding]] = {}
    for text, finding in believed.items():
        if finding is not None:
            together.setdefault((spots[text].own, _goes_by_itself(finding.cause)), {})[text] = finding
    found: dict[str, Finding] = {}
    for (template, automatic), findings in together.items():
        sure = {finding.cause: finding for finding in sorted(findings.values(), key=_surer)}
        known = [Cause(cause) for cause in spots[next(iter(findings))].known if cause != Cause.UNCLASSIFIED]
        known = [cause for cause in known if _goes_by_itself(cause) is automatic]
        if len(known) == 1 and known[0] not in sure:
            least = min(finding.confidence for finding in sure.values())
            sure[known[0]] = Finding(known[0], "group.known", least, weak=True)
        if len(sure) > 1 and len(known) < 2:
            itself = find(template)
            cause = known[0] if known else itself.cause if itself else None
            deciding = sure[cause] if cause in sure else max(sure.values(), key=_surer)
            found |= dict.fromkeys(findings, deciding)
    return found


def _goes_by_itself(cause: Cause) -> bool:
    return default_verdict(cause).automatic


def _surer(finding: Finding) -> tuple[float, str]:
    return finding.confidence, finding.rule


def _weigh(by_rule: Finding | None, by_model: Finding | None, known: Cause | None) -> Finding | None:
    """What to believe of a text about which the rules say little; ``known`` is the cause of its group."""
    if by_rule is not None and by_model is not None and by_model.confidence < OVERRULES:
        by_model = None
    found = by_model or by_rule
    if known is not None and (found is None or found.cause is not known):
        return Finding(known, "group.known", by_model.confidence if by_model else 0.3, weak=True)
    return found


def _nothing_said(case: Case) -> str:
    if case.reason:
        return f"no failure text, broker reason {case.reason}"
    if case.hint == LEASE_HINT:
        return "no failure text, time per delivery reaches the lease"
    if case.hint == MAYBE_LEASE_HINT:
        return "no failure text, leases may have run out, or it waited in a backlog"
    return "no failure text"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _attributes(line: Mapping[str, Any]) -> list[tuple[str, Any]]:
    attributes = line.get("attributes")
    return list(attributes.items()) if isinstance(attributes, Mapping) else []
