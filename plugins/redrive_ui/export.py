"""Escalated messages as CSV for a spreadsheet, in which no cell is taken for a formula."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

COLUMNS = (
    "escalation_id", "message_id", "route", "group_id", "cause", "status", "reason", "error_text", "source",
    "destination", "message_key", "attempts", "size_bytes", "first_enqueued_at", "escalated_at", "decision",
    "decided_by", "decided_at", "approved_by", "note", "refusal",
)  # fmt: skip
#: A file beyond this is for SQL.
MAX_ROWS = 100_000


_Mask = Callable[[str, str], str]


def portions(rows: Iterable[dict[str, Any]], mask: _Mask, opening: _Mask, *, cut: bool = False) -> Iterator[str]:
    """A header, then the rows, several lines at a time; ``mask`` takes route and text, ``opening`` of what was read in
    part.

    Where it is ``cut`` the last line says so.
    """
    yield _line(COLUMNS)
    ahead = iter(rows)
    while portion := list(islice(ahead, 500)):
        yield "".join(_line([_cell(row, name, mask, opening) for name in COLUMNS]) for row in portion)
    if cut:
        yield _line([f"cut here: the newest {MAX_ROWS:,} rows; take the rest by SQL"])


def _cell(row: dict[str, Any], name: str, mask: _Mask, opening: _Mask) -> Any:
    value = row[name]
    if value and name in ("reason", "error_text", "refusal"):
        return opening(row["route"], value)
    return mask(row["route"], value) if value and name == "note" else value


def neutral(value: object) -> str:
    """``value`` as a cell that a spreadsheet shows and doesn't run.

    Excel, LibreOffice and Sheets take a cell for a formula by its first character, also after white space.
    """
    text = "" if value is None else str(value)
    text = text.replace("\0", "")
    if isinstance(value, str) and text.lstrip(" \t\r\n\u00a0\ufeff")[:1] in (
        "=",
        "+",
        "-",
        "@",
        "\uff1d",
        "\uff0b",
        "\uff0d",
        "\uff20",
    ):
        return "'" + text
    if isinstance(value, str) and text[:1] in ("\t", "\r", "\n"):
        return "'" + text
    return text


def _line(cells: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerow([neutral(cell) for cell in cells])
    return out.getvalue()
