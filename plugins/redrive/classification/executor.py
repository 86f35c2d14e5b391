"""The executors' part of the Spark job: why the messages of staging files failed, file by file.

Of every message the failure text is picked and masked, and its key and its case's key are written beside each other,
one file for one batch. What goes back to the driver is the distinct cases. Columns are read as they are needed and a
row group at a time, and what most messages have in common is decided for the whole column; what is left is
:func:`redrive.classification.failure_text.pick` and :func:`redrive.classification.grouping.mask` themselves, so that
``redrive explain`` and the job can't disagree.

Nothing here knows Spark: a task calls :func:`write` with the batches of its share.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from redrive.classification import explain, failure_text, route_rules
from redrive.classification.arrow_numpy import Integers, has_nul, integers, numbers, strings
from redrive.classification.bulk_masking import Masked
from redrive.classification.cases import (
    LEASE_HINT,
    MAYBE_LEASE_HINT,
    ROUTE_HINT,
    Case,
    RouteRule,
    key_of,
    lease_ran_out,
)
from redrive.classification.failure_text import CODE_HEADERS, EVIDENCE_HEADERS, Evidence
from redrive.classification.learned_model import Model
from redrive.classification.templates import KnownGroup
from redrive.message import ROW_BITS, Header
from redrive.selectors import Kind, Selector
from redrive.selectors import parse as parse_selector
from redrive.staging import file_schemas, filesystems

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
#: What is given back of a case that is explained on its own.
EXPLAINED = pa.schema(
    [
        ("case_key", pa.int64()),
        ("messages", pa.int64()),
        ("text", pa.string()),
        ("cause", pa.string()),
        ("rule", pa.string()),
        ("confidence", pa.float64()),
        ("template", pa.string()),
        ("fingerprint", pa.string()),
    ]
)
_EVIDENCE, _CODES = frozenset(EVIDENCE_HEADERS), frozenset(CODE_HEADERS)
#: Remembers from task to task of a worker what masks alike.
_MASKED = Masked()


class _Unreadable(Exception):
    """A staging file is missing or damaged, or its store can't be reached."""


class Batch(NamedTuple):
    """A staging file."""

    batch_id: int
    uri: str


@dataclass(frozen=True, slots=True)
class CaseSettings:
    """What a manifest has read from each message."""

    evidence: tuple[Selector, ...] = ()
    message_key: Selector | None = None
    order_key: Selector | None = None
    search: tuple[Selector, ...] = ()
    rules: tuple[str, ...] = ()  # patterns of the route's own rules
    leases: Mapping[str, float] = field(default_factory=dict)  # seconds, of the sources where time is evidence

    @classmethod
    def by(cls, manifest: Mapping[str, Any]) -> "CaseSettings":
        """As ``manifest`` names it."""
        sources = manifest.get("sources") or {}
        message_key, order_key = manifest.get("message_key"), manifest.get("order_key")
        return cls(
            evidence=tuple(parse_selector(text) for text in manifest.get("evidence") or ()),
            message_key=parse_selector(message_key) if message_key else None,
            order_key=parse_selector(order_key) if order_key else None,
            search=tuple(parse_selector(text) for text in manifest.get("search") or ()),
            rules=tuple(rule["match"] for rule in manifest.get("rules") or ()),
            leases={
                source: float(facts["lease_seconds"]) for source, facts in sources.items() if facts.get("lease_seconds")
            },
        )


class _Found:
    """A case of a share, while it is counted."""

    __slots__ = ("first", "key", "messages", "text")

    def __init__(self, case: Case, first: int, text: str) -> None:
        self.key = key_of(case)
        self.messages = 0
        self.first = first
        self.text = text[: file_schemas.MAX_EXAMPLE]


def write(
    batches: Iterable[Batch], asked: CaseSettings, output: str, access: filesystems.Access | None = None
) -> pa.RecordBatch:
    """Write ``{output}/batch-N.parquet`` (columns :data:`~redrive.staging.file_schemas.MESSAGES`) for each; the cases.

    A file appears complete or not at all; writing it again gives the same file. Memory is
    proportional to the cases of this share and the largest row group. For a batch whose staging file can't be read to
    its end an answer without rows is written: it stops no other batch, and the load finds out why.
    """
    look = _Look(asked)
    filesystem, folder = filesystems.locate(output, access)
    filesystem.create_dir(folder, recursive=True)
    for batch in batches:
        path = f"{folder}/{file_schemas.messages_file(batch.batch_id)}"
        # Spark may run a task twice at the same time.
        try:
            with filesystems.appearing_whole(filesystem, path) as sink, _writer(sink) as out:
                for table in _tables(batch, look, access):
                    out.write_table(table)
        except _Unreadable:
            with filesystems.appearing_whole(filesystem, path) as sink, _writer(sink):
                pass
    return look.found()


def explain_others(
    batches: Iterable[pa.RecordBatch], rules: Sequence[RouteRule], known: Sequence[KnownGroup], learned: str | None
) -> Iterator[pa.RecordBatch]:
    """Judge cases (:data:`FOUND`) on their own; ``known`` are the groups of the ledger and those found in this job."""
    others = explain.Others(rules, known, model_of(learned))
    shown: set[str] = set()
    for batch in batches:
        rows = []
        for key, messages, _, masked, reason, hint, text in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            explained = others.explain(Case(masked, reason, hint))
            rows.append((key, messages, "" if explained.fingerprint in shown else text, *explained))
            shown.add(explained.fingerprint)
        columns = zip(*rows, strict=True) if rows else [()] * len(EXPLAINED)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, EXPLAINED, strict=True)]
        yield pa.record_batch(arrays, schema=EXPLAINED)


def model_of(learned: str | None) -> Model | None:
    """What the site has learned, as a manifest brings it."""
    return Model.from_bytes(base64.b64decode(learned)) if learned else None


def _writer(sink: pa.NativeFile) -> pq.ParquetWriter:
    # Ids and keys are all different, so a dictionary of them would only cost time.
    return pq.ParquetWriter(
        sink,
        file_schemas.MESSAGES,
        compression="zstd",
        compression_level=1,
        use_dictionary=["case_key", "order_key"],
        write_statistics=False,
    )


def _tables(batch: Batch, look: "_Look", access: filesystems.Access | None) -> Iterator[pa.Table]:
    try:
        source, path = filesystems.locate(batch.uri, access)
        with source.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            for number in range(file.num_row_groups):
                yield look.at(_Rows(file, number))
    except (OSError, pa.ArrowException) as error:
        raise _Unreadable(batch.uri) from error


class _Rows:
    """A row group of a staging file, whose columns are read when they are first asked for."""

    def __init__(self, file: pq.ParquetFile, number: int) -> None:
        self._file = file
        self._number = number
        self.count: int = file.metadata.row_group(number).num_rows
        self._arrays: dict[str, pa.Array] = {}
        self._values: dict[str, list[Any]] = {}

    def array(self, name: str) -> pa.Array:
        """A column, as one array; times as microseconds."""
        if name not in self._arrays:
            column = self._file.read_row_group(self._number, columns=[name], use_threads=False).column(name)
            array = pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
            self._arrays[name] = array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array
        return self._arrays[name]

    def values(self, name: str) -> list[Any]:
        """A column's values."""
        if name not in self._values:
            array = self.array(name)
            self._values[name] = [None] * self.count if array.null_count == self.count else array.to_pylist()
        return self._values[name]


class _Headers:
    """The headers of a row group that are asked for, whatever messages they are of."""

    def __init__(self, rows: _Rows, asked_names: frozenset[str]) -> None:
        """``asked_names`` in lower case, beside those of evidence."""
        lists = rows.array("headers")
        flat = lists.flatten()
        by_name = flat.field("name").dictionary_encode("encode")
        #: The different names, few however many messages there are, and which of them each header here has.
        self.names: list[str] = [name or "" for name in by_name.dictionary.to_pylist()]
        lower = [name.lower() for name in self.names]
        indices = numbers(by_name.indices)
        picked = np.flatnonzero(
            np.array([name in _EVIDENCE or name in asked_names for name in lower], np.bool_)[indices]
        )
        at = integers(picked)
        self.name_of = indices[picked]
        self.owners = numbers(pc.list_parent_indices(lists).take(at))
        self.texts = flat.field("text").take(at)
        self._data = flat.field("data").take(at)
        self._is_evidence = np.array([name in _EVIDENCE for name in lower], np.bool_)
        self._is_code = np.array([name in _CODES for name in lower], np.bool_)
        self._count = rows.count
        self._headers: dict[int, list[Header]] | None = None

    def of(self, number: int) -> Sequence[Header]:
        """Those of one message, in its order."""
        if self._headers is None:
            self._headers = {}
            names, texts, data = self.name_of.tolist(), self.texts.to_pylist(), self._data.to_pylist()
            for owner, name, text, raw in zip(self.owners.tolist(), names, texts, data, strict=True):
                header = Header(self.names[name], "", (raw or b"") if text is None else text)
                self._headers.setdefault(owner, []).append(header)
        return self._headers.get(number, ())

    def only_texts(self) -> list[str | None]:
        """By message, its evidence where that is a single header with a text that stands for itself."""
        evidence = np.flatnonzero(self._is_evidence[self.name_of])
        alone = np.bincount(self.owners[evidence], minlength=self._count)[self.owners[evidence]] == 1
        texts: list[str | None] = self._placed(evidence[alone & ~self._is_code[self.name_of[evidence]]]).to_pylist()
        return texts

    def last_texts(self, name: str) -> pa.Array | None:
        """By message, the text of the last header of that name; None where that takes a closer look."""
        if name not in self.names:
            return self._placed(np.zeros(0, np.int64))
        found = self._placed(np.flatnonzero(self.name_of == self.names.index(name)))
        closer = self._data.null_count < len(self._data) or has_nul(found)
        return None if closer else found

    def _placed(self, at: Integers) -> pa.Array:
        """The texts at these places, each where its message is; of one message the last."""
        by_message = np.full(self._count, -1, np.int64)
        by_message[self.owners[at]] = at
        return self.texts.take(integers(by_message, by_message >= 0))


class _Look:
    """Looks at row groups, and remembers the cases that it has seen."""

    def __init__(self, asked: CaseSettings) -> None:
        self._asked = asked
        self._found: dict[tuple[str, str, str], _Found] = {}
        self._delays = 0
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

    def at(self, rows: _Rows) -> pa.Table:
        """One row of ``classified.MESSAGES`` for each of ``rows``."""
        headers = _Headers(rows, self._attributes)
        ids = (numbers(rows.array("batch_id")) << ROW_BITS) + numbers(rows.array("row"))
        columns = [
            integers(ids),
            self._case_keys(rows, headers, ids),
            self._keys(rows, headers, self._asked.message_key),
            self._keys(rows, headers, self._asked.order_key),
            self._searched(rows, headers),
        ]
        return pa.table(columns, schema=file_schemas.MESSAGES)

    def _case_keys(self, rows: _Rows, headers: _Headers, ids: Integers) -> pa.Array:
        evidence = self._evidence(rows, headers)
        masked = _MASKED.all([text for text, _ in evidence])
        kinds = rows.values("kind")
        rules = route_rules.first_matches([text for text, _ in evidence], self._asked.rules)
        found = self._found
        keys: list[int] = []
        for number, ((text, reason), mask, kind, rule) in enumerate(zip(evidence, masked, kinds, rules, strict=True)):
            if kind == "delay":
                self._delays += 1
                keys.append(0)
                continue
            hint = f"{ROUTE_HINT}{rule}" if rule else "" if text else self._hint(rows, number, reason)
            case = mask, reason, hint
            one = found.get(case)
            if one is None:
                one = found[case] = _Found(Case(*case), int(ids[number]), text)
            one.messages += 1
            keys.append(one.key)
        failed = np.array([kind != "delay" for kind in kinds], np.bool_)
        return integers(np.array(keys, np.int64), failed)

    def _evidence(self, rows: _Rows, headers: _Headers) -> list[tuple[str, str]]:
        """(failure text, broker's reason) of each message; both "" of one that has not failed."""
        kinds, reasons = rows.values("kind"), rows.values("reason")
        # By far the most messages have one header that says it all.
        alone: list[str | None] = [None] * rows.count if self._asked.evidence else headers.only_texts()
        found: list[tuple[str, str]] = []
        for number, (kind, reason, text) in enumerate(zip(kinds, reasons, alone, strict=True)):
            if kind == "delay":
                found.append(("", ""))
            elif text and not reason and (said := text[: failure_text.MAX_PART].strip(failure_text.BLANKS)):
                found.append((said if len(said) <= failure_text.UNCUT else failure_text.cut(said), ""))
            else:
                found.append(self._picked(rows, number, headers.of(number), reason))
        return found

    def _picked(self, rows: _Rows, number: int, own: Sequence[Header], reason: str | None) -> Evidence:
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

    def _hint(self, rows: _Rows, number: int, reason: str) -> str:
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

    def _searched(self, rows: _Rows, headers: _Headers) -> pa.Array:
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

    def _keys(self, rows: _Rows, headers: _Headers, selector: Selector | None) -> pa.Array:
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


def _none_if_empty(texts: pa.Array) -> pa.Array:
    ends = numbers(texts, offsets=True)
    empty = ends[1:] == ends[:-1]
    if empty.sum() == texts.null_count:
        return texts
    return texts.take(integers(np.arange(len(texts)), ~empty))
