"""How values look on the page: as text, whatever they hold. Nothing here trusts what it is given.

Jinja escapes every string; the functions that build markup escape each piece themselves.
"""

import json
import re
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

#: Characters that change how others look, or that a terminal would obey: shown by their number instead.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_MAX_SHOWN = 65_536
_MAX_FORMATTED = 65_536
_MAX_HEX = 1_024


def picker(text: str) -> str:
    """A time as the value of a ``datetime-local`` field, in UTC where it has an offset; "" where it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return ""
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%dT%H:%M}"


def visible(value: object, limit: int = _MAX_SHOWN) -> Markup:
    """``value`` as text in which nothing hides: control, bidirectional and invisible characters show their number."""
    text = str(value if value is not None else "")
    cut = len(text) - limit
    text = text[:limit].replace("\r\n", "\n")
    out, last = [], 0
    for match in _UNSEEN.finditer(text):
        out += [
            escape(text[last : match.start()]),
            Markup('<span class="unseen">U+{:04X}</span>').format(ord(match[0])),
        ]
        last = match.end()
    out.append(escape(text[last:]))
    if cut > 0:
        out.append(Markup('<span class="unseen">… {} more characters</span>').format(f"{cut:,}"))
    return Markup("").join(out)


def plain(text: str) -> str:
    """As :func:`visible`, for where no markup can be, such as the value of a field."""
    return _UNSEEN.sub(lambda match: f"U+{ord(match[0]):04X}", text.replace("\n", "U+000A"))


def brief(value: object, limit: int = 160) -> Markup:
    """The beginning of ``value`` on one line."""
    text = " ".join(str(value if value is not None else "").split())
    return visible(text if len(text) <= limit else text[: limit - 1] + "…")


def gist(value: object, limit: int = 180) -> Markup:
    """What a failure text says in one line: of a Python traceback the last line, which names the error."""
    text = str(value if value is not None else "")
    if "Traceback (most recent call last)" in text:
        lines = [line for line in text.splitlines() if line.strip()]
        text = next((line for line in reversed(lines) if not line.startswith((" ", "\t"))), text)
    return brief(text, limit)


def formatted(text: str | None) -> str | None:
    """``text`` laid out, where it is JSON that reads better so; None where it isn't."""
    if not text or len(text) > _MAX_FORMATTED or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        # Numbers stay as they are written: an id of twenty digits must not become another one.
        value = json.loads(text, parse_int=_Verbatim, parse_float=_Verbatim, object_pairs_hook=_Pairs)
        laid_out = "".join(_layout(value, 0))
    except (ValueError, RecursionError):
        return None
    return laid_out if laid_out != text else None


class _Verbatim(str):
    """A number as it stood in the text."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """An object whose keys may repeat."""


def _layout(value: Any, depth: int) -> list[str]:
    pad, end = "  " * (depth + 1), "  " * depth
    match value:
        case _Verbatim():
            return [str(value)]
        case _Pairs() if value:
            out = ["{\n"]
            for i, (key, item) in enumerate(value):
                out += [pad, json.dumps(key, ensure_ascii=False), ": ", *_layout(item, depth + 1)]
                out.append(",\n" if i + 1 < len(value) else "\n")
            return [*out, end, "}"]
        case _Pairs():
            return ["{}"]
        case list() if value:
            out = ["[\n"]
            for i, item in enumerate(value):
                out += [pad, *_layout(item, depth + 1), ",\n" if i + 1 < len(value) else "\n"]
            return [*out, end, "]"]
    return [json.dumps(value, ensure_ascii=False)]


def hexadecimal(body: bytes) -> str:
    """The first KiB of ``body`` as offset, bytes and ASCII, as ``hexdump -C`` has it."""
    lines = []
    for at in range(0, min(len(body), _MAX_HEX), 16):
        part = body[at : at + 16]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {text}")
    if len(body) > _MAX_HEX:
        lines.append(f"… {len(body) - _MAX_HEX:,} more bytes")
    return "\n".join(lines)


def number(value: float | None) -> str:
    """A count with its thousands apart; nothing for None."""
    return "" if value is None else f"{value:,.0f}"


def share(part: float | None, whole: float | None) -> str:
    """``part`` of ``whole`` in per cent; a dash where there is no whole."""
    if not whole or part is None:
        return "-"
    percent = 100 * part / whole
    if 0 < percent < 1 or 99 < percent < 100:
        return f"{percent:.1f} %"
    return f"{percent:.0f} %"


def duration(seconds: float | None) -> str:
    """A span in its two largest units."""
    if seconds is None:
        return "-"
    left = max(0, int(seconds))
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for position, (name, size) in enumerate(units):
        if left >= size or size == 1:
            whole, rest = divmod(left, size)
            if position + 1 < len(units) and whole < 10 and (smaller := rest // units[position + 1][1]):
                return f"{whole} {name} {smaller} {units[position + 1][0]}"
            return f"{whole} {name}"
    return "0 s"


def moment(value: datetime | None) -> Markup:
    """A point in time, to the second, in UTC; the page's script tells it in the zone that is chosen in Airflow."""
    if value is None:
        return Markup("")
    utc = value.astimezone(UTC)
    return Markup('<time datetime="{0}" title="{0}" data-moment>{1} UTC</time>').format(
        iso(value), f"{utc:%Y-%m-%d %H:%M:%S}"
    )


def iso(value: datetime | None) -> str:
    """A point in time as programs write it, to the second, in UTC."""
    return "" if value is None else f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def ago(value: datetime | None, now: datetime) -> str:
    """How long ago, or how far ahead."""
    if value is None:
        return "-"
    seconds = (now - value).total_seconds()
    return f"in {duration(-seconds)}" if seconds < -1 else f"{duration(seconds)} ago"


def words(value: str | None) -> str:
    """A name of ours as people read it: ``max_deliveries`` becomes ``max deliveries``."""
    return (value or "").replace("_", " ")
