"""A row group of a staging file, read column by column: what most messages have in common is asked of all at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from redrive.classification.arrow_numpy import Integers, has_nul, integers, numbers
from redrive.classification.failure_text import CODE_HEADERS, EVIDENCE_HEADERS
from redrive.message import Header
from redrive.staging import file_schemas

_EVIDENCE, _CODES = frozenset(EVIDENCE_HEADERS), frozenset(CODE_HEADERS)


class RowGroup:
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
            column = file_schemas.read_group(self._file, self._number, [name]).column(name)
            array = pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
            self._arrays[name] = array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array
        return self._arrays[name]

    def values(self, name: str) -> list[Any]:
        """A column's values."""
        if name not in self._values:
            array = self.array(name)
            self._values[name] = [None] * self.count if array.null_count == self.count else array.to_pylist()
        return self._values[name]


class RowGroupHeaders:
    """The headers of a row group that are asked for, whatever messages they are of."""

    def __init__(self, rows: RowGroup, asked_names: frozenset[str]) -> None:
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
