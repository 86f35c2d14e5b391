"""Which case each message of a row group is, and by which keys it is known.

What most messages have in common is decided for the whole column; what is left is
:func:`redrive.classification.failure_text.pick` and :func:`redrive.classification.grouping.mask` themselves, so that
``redrive explain`` and the job can't disagree.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from redrive.classification import failure_text, route_rules
from redrive.classification.arrow_numpy import Integers, integers, numbers, strings
from redrive.classification.bulk_masking import JoinedMasks, Masked, Masks
from redrive.classification.cases import (
    LEASE_HINT,
    MAYBE_LEASE_HINT,
    ROUTE_HINT,
    Case,
    key_of,
    lease_ran_out,
)
from redrive.classification.failure_text import Evidence
from redrive.classification.rare_words import RareWords, words_of
from redrive.classification.row_groups import RowGroup, RowGroupHeaders
from redrive.message import ROW_BITS, Header
from redrive.selectors import Kind, Selector
from redrive.selectors import parse as parse_selector
from redrive.staging import file_schemas

#: What a task gives back: one row per case of its share.
FOUND = pa.schema(
    [
        ("case_key", pa.int64()),  # null: messages of delay sources, which have no case
        ("messages", pa.int64()),
        ("first", pa.int64()),  # the lowest message id
        ("masked", pa.string()),
        ("reason", pa.string()),
        ("hint", pa.string()),
        ("text", pa.string()),  # of the first message, cut to an example
    ]
)
#: Remembers from task to task of a worker what masks alike.
_MASKED = Masked()
#: For so many cases a job has room before it is looked at as a flood; each share has its part of it, and at least so
#: much that a share of usual failures is none.
ROOM, LEAST_ROOM = 8_000, 1_000


@dataclass(frozen=True, slots=True)
class CaseSettings:
    """What a manifest has read from each message."""

    evidence: tuple[Selector, ...] = ()
    message_key: Selector | None = None
    order_key: Selector | None = None
    search: tuple[Selector, ...] = ()
    rules: tuple[str, ...] = ()  # patterns of the route's own rules
    leases: Mapping[str, float] = field(default_factory=dict)  # seconds, of the sources where time is evidence
    known_words: frozenset[str] = frozenset()  # of the templates of known groups
    split_words: frozenset[str] = frozenset()  # by which people split groups
    room: int = ROOM  # for so many cases a share is not looked at as a flood

    @classmethod
    def by(cls, manifest: Mapping[str, Any], shares: int = 1) -> "CaseSettings":
        """As ``manifest`` names it; its messages are looked at in so many ``shares``."""
        sources = manifest.get("sources") or {}
        message_key, order_key = manifest.get("message_key"), manifest.get("order_key")
        known = manifest.get("known_groups") or ()
        return cls(
            evidence=tuple(parse_selector(text) for text in manifest.get("evidence") or ()),
            message_key=parse_selector(message_key) if message_key else None,
            order_key=parse_selector(order_key) if order_key else None,
            search=tuple(parse_selector(text) for text in manifest.get("search") or ()),
            rules=tuple(rule["match"] for rule in manifest.get("rules") or ()),
            leases={
                source: float(facts["lease_seconds"]) for source, facts in sources.items() if facts.get("lease_seconds")
            },
            known_words=words_of(group["template"] for group in known),
            split_words=words_of(group.get("words") or "" for group in known),
            room=max(ROOM // max(shares, 1), LEAST_ROOM),
        )


class _Found:
    """A case of a share, while it is counted."""

    __slots__ = ("first", "key", "messages", "text")

    def __init__(self, case: Case, first: int, text: str) -> None:
        self.key = key_of(case)
        self.messages = 0
        self.first = first
        self.text = text[: file_schemas.MAX_EXAMPLE]


class CaseFinder:
    """Looks at row groups, and remembers the cases that it has seen."""

    def __init__(self, asked: CaseSettings) -> None:
        self._asked = asked
        self._found: dict[tuple[str, str, str], _Found] = {}
        self._messages = self._delays = 0
        self._rare_words = RareWords(asked.room, asked.known_words, asked.split_words)
        selected = (*asked.evidence, asked.message_key, asked.order_key, *asked.search)
        self._attributes = frozenset(
            one.name.lower() for one in selected if one is not None and one.kind is Kind.ATTRIBUTE
        )

    def found(self) -> pa.RecordBatch:
        """The cases of all row groups so far."""
        cases, found = list(self._found), list(self._found.values())
        counts = [[one.key for one in found], [one.messages for one in found], [one.first for one in found]]
        texts = [*([case[part] for case in cases] for part in range(3)), [one.text for one in found]]
        if self._delays:
            counts = [[*column, value] for column, value in zip(counts, (0, self._delays, 0), strict=True)]
            texts = [[*column, ""] for column in texts]
        has_case = np.arange(len(counts[0])) < len(cases)
        keys, *others = (np.array(column, np.int64) for column in counts)
        arrays = [integers(keys, has_case), *map(integers, others), *map(strings, texts)]
        return pa.record_batch(arrays, schema=FOUND)

    def at(self, rows: RowGroup) -> pa.Table:
        """One row of :data:`~redrive.staging.file_schemas.MESSAGES` for each of ``rows``."""
        headers = RowGroupHeaders(rows, self._attributes)
        ids = _ids(rows)
        columns = [
            integers(ids),
            self._case_keys(rows, headers, ids),
            self._keys(rows, headers, self._asked.message_key),
            self._keys(rows, headers, self._asked.order_key),
            self._searched(rows, headers),
        ]
        return pa.table(columns, schema=file_schemas.MESSAGES)

    def keys(self, rows: RowGroup) -> pa.Table:
        """Of :meth:`at` the ids and keys alone."""
        headers = RowGroupHeaders(rows, self._attributes)
        return pa.table(
            {
                "message_id": integers(_ids(rows)),
                "message_key": self._keys(rows, headers, self._asked.message_key),
                "order_key": self._keys(rows, headers, self._asked.order_key),
            }
        )

    def _case_keys(self, rows: RowGroup, headers: RowGroupHeaders, ids: Integers) -> pa.Array:
        texts, reasons = self._evidence(rows, headers)
        rules = route_rules.first_matches(texts, self._asked.rules)
        masks = self._masks(texts)
        has_failed = np.array([kind != "delay" for kind in rows.values("kind")], np.bool_)
        self._delays += rows.count - int(has_failed.sum())
        keys = np.zeros(rows.count, np.int64)
        # By far the most say something, and what they say is all that decides their case.
        is_plain = np.array([bool(text) and not rule for text, rule in zip(texts, rules, strict=True)], np.bool_)
        is_plain[list(reasons)] = False
        plain = np.flatnonzero(is_plain)
        by_mask = np.zeros(len(masks.distinct), np.int64)
        different = np.unique(masks.which[plain], return_index=True, return_counts=True)
        for mask, first, messages in zip(*(column.tolist() for column in different), strict=True):
            number = plain[first]
            by_mask[mask] = self._key(masks.distinct[mask], "", "", int(ids[number]), texts[number], messages)
        keys[plain] = by_mask[masks.which[plain]]
        for number in np.flatnonzero(has_failed & ~is_plain).tolist():
            text, reason, rule = texts[number], reasons.get(number, ""), rules[number]
            hint = f"{ROUTE_HINT}{rule}" if rule else "" if text else self._hint(rows, number, reason)
            keys[number] = self._key(masks.distinct[masks.which[number]], reason, hint, int(ids[number]), text, 1)
        return integers(keys, has_failed)

    def _key(self, masked: str, reason: str, hint: str, first: int, text: str, messages: int) -> int:
        """The key of a case of which so many more ``messages`` were found; ``first`` is the first of these."""
        case = masked, reason, hint
        one = self._found.get(case)
        if one is None:
            one = self._found[case] = _Found(Case(*case), first, text)
        one.messages += messages
        return one.key

    def _masks(self, texts: Sequence[str]) -> Masks:
        """The masked texts; in a flood without the words that hardly any other has."""
        words, cases, messages = self._rare_words, len(self._found), self._messages
        self._messages += len(texts)
        if not words.is_flood(cases, messages):
            joined = JoinedMasks()
            new: set[str] = set()
            for masks in _MASKED.portions(texts):
                joined.add(masks)
                new.update(mask for mask in masks.distinct if (mask, "", "") not in self._found)
                # With more cases it would be one all the more, so nobody looks at the rest.
                if words.is_flood(cases + len(new), self._messages):
                    break
            else:
                return joined.masks()
        joined = JoinedMasks()
        for masks in _MASKED.portions(words.blanked(texts, cases)):
            joined.add(Masks([words.shown(mask) for mask in masks.distinct], masks.which))
        return joined.masks()

    def _evidence(self, rows: RowGroup, headers: RowGroupHeaders) -> tuple[list[str], dict[int, str]]:
        """The failure text of each message, "" of one that has not failed, and of which the broker gave what reason."""
        kinds, broker_reasons = rows.values("kind"), rows.values("reason")
        # By far the most messages have one header that says it all.
        alone: list[str | None] = [None] * rows.count if self._asked.evidence else headers.only_texts()
        texts: list[str] = []
        reasons: dict[int, str] = {}
        for number, (kind, reason, text) in enumerate(zip(kinds, broker_reasons, alone, strict=True)):
            if kind == "delay":
                texts.append("")
            elif text and not reason and (said := text[: failure_text.MAX_PART].strip(failure_text.BLANKS)):
                is_whole = len(said) <= failure_text.UNCUT and said.isascii() and failure_text.ESCAPED not in said
                texts.append(said if is_whole else failure_text.cut(said))
            else:
                said, known = self._picked(rows, number, headers.of(number), reason)
                texts.append(said)
                if known:
                    reasons[number] = known
        return texts, reasons

    def _picked(self, rows: RowGroup, number: int, own: Sequence[Header], reason: str | None) -> Evidence:
        selectors = self._asked.evidence
        return failure_text.pick(
            own,
            rows.values("body")[number] or b"",
            description=rows.values("description")[number],
            reason=reason,
            evidence=selectors,
            ordering_key=rows.values("ordering_key")[number] if selectors else None,
            broker_message_id=(rows.values("broker_message_id")[number] or "") if selectors else "",
        )

    def _hint(self, rows: RowGroup, number: int, reason: str) -> str:
        """Of a message that says nothing."""
        if reason or not self._asked.leases:
            return ""
        lease = self._asked.leases.get(rows.values("source")[number])
        if lease is None:
            return ""
        # Where a broker does not tell when it moved a message, the end may be as late as our own receive: then the time
        # is an upper bound. That errs towards "may have succeeded", whose verdict is the more careful one.
        start, end = (
            next((value for name in names if (value := rows.values(name)[number]) is not None), None)
            for names in (("first_received_at", "enqueued_at"), ("dead_lettered_at", "received_at"))
        )
        if not lease_ran_out(lease, start, end, rows.values("deliveries")[number]):
            return ""
        return MAYBE_LEASE_HINT if rows.values("first_received_at")[number] is None else LEASE_HINT

    def _searched(self, rows: RowGroup, headers: RowGroupHeaders) -> pa.Array:
        """By message, JSON of what it is found by: the beginning of each value, by its selector."""
        if not self._asked.search:
            return pa.nulls(rows.count, pa.string())
        columns = [self._keys(rows, headers, selector).to_pylist() for selector in self._asked.search]
        names = [str(selector) for selector in self._asked.search]
        found = []
        for values in zip(*columns, strict=True):
            said = {
                name: value[: file_schemas.MAX_SEARCHED] for name, value in zip(names, values, strict=True) if value
            }
            found.append(json.dumps(said, ensure_ascii=False) if said else None)
        return strings(found)

    def _keys(self, rows: RowGroup, headers: RowGroupHeaders, selector: Selector | None) -> pa.Array:
        if selector is None:
            return pa.nulls(rows.count, pa.string())
        match selector.kind:
            case Kind.ATTRIBUTE:
                texts = headers.last_texts(selector.name)
                if texts is not None:
                    return _none_if_empty(texts)
                keys = [selector.evaluate(headers.of(number), b"") for number in range(rows.count)]
            case Kind.BODY:
                keys = [selector.evaluate((), body or b"") for body in rows.values("body")]
            case Kind.KEY | Kind.MESSAGE_GROUP:
                keys = [selector.evaluate((), b"", key) for key in rows.values("ordering_key")]
            case Kind.BROKER_ID:
                keys = [selector.evaluate((), b"", None, one or "") for one in rows.values("broker_message_id")]
        return strings(keys)


def _ids(rows: RowGroup) -> Integers:
    return (numbers(rows.array("batch_id")) << ROW_BITS) + numbers(rows.array("row"))


def _none_if_empty(texts: pa.Array) -> pa.Array:
    ends = numbers(texts, offsets=True)
    empty = ends[1:] == ends[:-1]
    if empty.sum() == texts.null_count:
        return texts
    return texts.take(integers(np.arange(len(texts)), ~empty))
