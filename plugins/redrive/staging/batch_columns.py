"""Dead letters as the columns of a batch file, and back: thousands at once, so column by column."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redrive.message import (
    FIRST_MOMENT,
    LAST_MOMENT,
    TYPE_ATTRIBUTE,
    DeadLetter,
    Header,
    Micros,
    as_tuples,
    body_hash,
    message_type,
    read_tracking,
)
from redrive.staging import file_schemas
from redrive.staging.odd_copies import as_far_as_possible

SCHEMA = file_schemas.STAGED
_TIME = SCHEMA.field("enqueued_at").type
_HEADER = SCHEMA.field("headers").type.value_type
_PROPERTY = SCHEMA.field("properties").type.value_type
#: What Arrow and Python say of a value that can't become one of a column.
_NOT_CONVERTED = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)

_NONE = type(None)


def to_table(letters: list[DeadLetter], received: list[Micros], constants: dict[str, Any], first: int) -> pa.Table:
    """The copies as a table of :data:`SCHEMA`: ``first`` is the first one's row, ``constants`` are the batch's columns.

    A copy with a value that can't be converted keeps neither the others nor itself out: what can be staged of it is.
    """
    try:
        return _to_table(letters, received, constants, first)
    except MemoryError:
        raise
    except _NOT_CONVERTED:  # of thousands, most often one
        return _one_by_one(letters, received, constants, first)


def _to_table(letters: list[DeadLetter], received: list[Micros], constants: dict[str, Any], first: int) -> pa.Table:
    # Column by column from plain lists: about ten times cheaper than a dict per row.
    count = len(letters)
    (ids, bodies, headers, properties, enqueued, dead, first_received, deliveries) = ([] for _ in range(8))
    (origins, keys, types, reasons, descriptions, redelivered) = ([] for _ in range(6))
    redrive_ids: list[str | None] = []
    attempts: list[int | None] = []
    for letter in letters:
        (a, b, c, d, e, f, g, h, i, j, k, m, n, o) = letter
        ids.append(a)
        bodies.append(b)
        headers.append(c)
        properties.append(d)
        enqueued.append(e)
        dead.append(f)
        first_received.append(g)
        deliveries.append(h)
        origins.append(i)
        keys.append(j)
        types.append(k)
        reasons.append(m)
        descriptions.append(n)
        redelivered.append(o)
        tracking = read_tracking(c) if c else None
        redrive_ids.append(tracking.redrive_id if tracking else None)
        attempts.append(tracking.attempt if tracking else None)
    if None in deliveries:
        raise TypeError("a count that is None")  # the ledger has a number for each
    constant = [pa.repeat(pa.scalar(constants[name], SCHEMA.field(name).type), count) for name in SCHEMA.names[:5]]
    columns = [
        *constant,
        pa.array(range(first, first + count), pa.int32()),
        _texts(ids),
        pa.array(bodies, pa.binary()),
        pa.array([body_hash(body) for body in bodies], pa.binary()),
        pa.array([len(body) for body in bodies], pa.int32()),
        _header_column(headers),
        _property_column(properties),
        _times(enqueued),
        _times(dead),
        _times(first_received),
        _times(received),
        pa.array(deliveries, pa.int32()),
        _strings(origins),
        _strings(keys),
        _strings(types),
        _strings(reasons),
        _strings(descriptions),
        pa.array(redelivered, pa.bool_()),
        pa.array(redrive_ids, pa.string()),
        pa.array(attempts, pa.int32()),
    ]
    return pa.table(columns, schema=SCHEMA)


def _one_by_one(
    letters: Sequence[DeadLetter], received: Sequence[Micros], constants: dict[str, Any], first: int
) -> pa.Table:
    """As :func:`_to_table`, copy by copy: those that can't be converted as they are, as far as possible."""
    rows = []
    for number, (letter, moment) in enumerate(zip(letters, received, strict=True), first):
        try:
            rows.append(_to_table([letter], [moment], constants, number))
        except MemoryError:
            raise
        except _NOT_CONVERTED:
            rows.append(_to_table([as_far_as_possible(letter)], [moment], constants, number))
    return pa.concat_tables(rows).combine_chunks()


def _strings(values: list[Any]) -> pa.Array:
    """Raises where a value is neither a text nor None, for Arrow takes bytes as well; or is a text that UTF-8 can't
    hold: one with half of a surrogate pair, from a broker that does not check its text."""
    for kind in set(map(type, values)):
        if kind is not str and kind is not _NONE and not issubclass(kind, str):
            raise TypeError(f"{kind.__name__} for a text")
    return pa.array(values, pa.string())


def _texts(values: list[Any]) -> pa.Array:
    """As :func:`_strings`, where each has to be there."""
    "".join(values)  # which takes texts only, in no time
    return pa.array(values, pa.string())


def _times(values: Sequence[Micros | None]) -> pa.Array:
    array = pa.array(values, pa.int64())
    bounds = pc.min_max(array).as_py()
    if bounds["min"] is not None and not FIRST_MOMENT <= bounds["min"] <= bounds["max"] <= LAST_MOMENT:
        raise ValueError("a time beyond the year 9999")  # nothing could read it
    return array.cast(_TIME)


def _header_column(rows: list[tuple[Header, ...]]) -> pa.Array:
    offsets, total = [0], 0
    for row in rows:
        total += len(row)
        offsets.append(total)
    flat = [header for row in rows for header in row]
    values = [header[2] for header in flat]
    texts = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    data = pa.array([value if isinstance(value, bytes) else None for value in values], pa.binary())
    if texts.null_count + data.null_count != len(values):
        raise TypeError("a header that is neither text nor bytes")  # its value would be lost
    struct = pa.StructArray.from_arrays(
        [_texts([header[0] for header in flat]), _texts([header[1] for header in flat]), texts, data],
        fields=list(_HEADER),
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), struct)


def _property_column(rows: list[tuple[tuple[str, str], ...]]) -> pa.Array:
    offsets, total = [0], 0
    for row in rows:
        total += len(row)
        offsets.append(total)
    names = [name for row in rows for name, _ in row]
    values = [value for row in rows for _, value in row]
    struct = pa.StructArray.from_arrays([_texts(names), _texts(values)], fields=list(_PROPERTY))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), struct)


def carriers_of(headers: pa.ChunkedArray, wanted: Mapping[str, AbstractSet[str]]) -> AbstractSet[int]:
    """Positions in ``headers`` that carry one of the values of every wanted name."""
    array = headers.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    owners, flat = pc.list_parent_indices(array), pc.list_flatten(array)
    names, texts, data = (pc.struct_field(flat, field) for field in ("name", "text", "data"))
    carriers: set[int] | None = None
    for name, values in wanted.items():
        if name == TYPE_ATTRIBUTE:
            continue
        named = pc.equal(names, name)
        columns = [column.filter(named).to_pylist() for column in (owners, texts, data)]
        last = {
            owner: raw.decode("utf-8", "replace") if text is None and raw is not None else text
            for owner, text, raw in zip(*columns, strict=True)
        }
        carrying = {owner for owner, value in last.items() if value in values}
        carriers = carrying if carriers is None else carriers & carrying
    return set(range(len(array))) if carriers is None else carriers


def of_types(table: pa.Table, rows: Sequence[int], start: int, types: AbstractSet[str]) -> list[int]:
    """Those of ``rows``, counted from ``start`` in ``table``, whose message says that it is of one of the ``types``."""
    picked = table.take(pa.array([row - start for row in rows], pa.int64()))
    each = zip(rows, *(_lists(picked.column(name), _LISTS[name]) for name in ("headers", "properties")), strict=True)
    return [row for row, headers, properties in each if message_type(headers, properties) in types]


def to_letters(table: pa.Table) -> list[DeadLetter]:
    """Each copy of ``table``, which has the payload columns."""
    # Column by column and without a name for each field: a slice of a delivery makes thousands of these.
    columns = [
        _lists(table.column(name), _LISTS[name]) if name in _LISTS else _column(table, name)
        for name in DeadLetter._fields
    ]
    return list(as_tuples(DeadLetter, zip(*columns, strict=True)))


def _column(table: pa.Table, name: str) -> list[Any]:
    column = table.column(name)
    if column.null_count == len(column):
        return [None] * len(column)
    return list((column.cast(pa.int64()) if column.type == _TIME else column).to_pylist())


def _lists(column: pa.ChunkedArray, make: Callable[[pa.StructArray], list[Any]]) -> list[tuple[Any, ...]]:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    flat = make(array.flatten())
    if not flat:
        return [()] * len(array)
    lengths = array.value_lengths()
    each = len(flat) // len(array)
    if not array.null_count and pc.all(pc.equal(lengths, each)).as_py():  # as messages of one producer have
        return list(zip(*[iter(flat)] * each, strict=True))
    found, start = [], 0
    for length in lengths.to_pylist():
        end = start + (length or 0)
        found.append(tuple(flat[start:end]))
        start = end
    return found


def headers_of(column: pa.ChunkedArray) -> list[tuple[Header, ...]]:
    """The headers of each copy, from their column."""
    return _lists(column, _headers)


def _headers(struct: pa.StructArray) -> list[Header]:
    names, types = _named(struct.field(0)), _named(struct.field(1))
    texts, data = struct.field(2).to_pylist(), struct.field(3).to_pylist()
    values = (
        texts
        if struct.field(3).null_count == len(struct)
        else [text if text is not None else raw for text, raw in zip(texts, data, strict=True)]
    )
    return list(as_tuples(Header, zip(names, types, values, strict=True)))


def _properties(struct: pa.StructArray) -> list[tuple[str, str]]:
    return list(zip(_named(struct.field(0)), _named(struct.field(1)), strict=True))


def _named(column: pa.Array) -> list[str]:
    """The texts, each of which is there: a file that was written before that was held may lack some."""
    return list((pc.fill_null(column, "") if column.null_count else column).to_pylist())


_LISTS: dict[str, Callable[[Any], list[Any]]] = {"headers": _headers, "properties": _properties}
