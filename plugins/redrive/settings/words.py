"""The words of the configuration file: durations, sizes, schedules; how they are read and written."""

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_SHORT = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?(?:ms|[smhdw]))+")
_SHORT_PART = re.compile(r"([0-9.]+)(ms|[smhdw])")
_ISO = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,6})?)S)?)?"
)
_LONGEST = timedelta(days=3650)

_SIZE = re.compile(r"([0-9]{1,12})\s*([kmg]i?b|b)?", re.IGNORECASE)
_SIZE_UNITS: Final = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}


def parse_duration(value: object) -> timedelta:
    """``30s``, ``1h30m``, ``4d``, ``PT5M`` as a timedelta of at most ten years, else ValueError."""
    if isinstance(value, timedelta):
        return value
    text = value.strip() if isinstance(value, str) else ""
    iso = _ISO.fullmatch(text)
    try:
        if _SHORT.fullmatch(text):
            duration = sum((float(n) * _UNITS[unit] for n, unit in _SHORT_PART.findall(text)), timedelta())
        elif iso:
            weeks, days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
            duration = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        else:
            raise ValueError(f"{quoted(value)} is not a duration; write 30s, 5m, 6h, 4d, 1w or PT5M")
    except OverflowError:
        duration = timedelta.max
    if duration > _LONGEST:
        raise ValueError(f"{quoted(value)} is longer than ten years")
    return duration


def format_duration(duration: timedelta) -> str:
    """As people write it: ``90s``, ``5m``, ``14d``, ``0s``."""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(duration, _UNITS[unit])
        if count and not rest:
            return f"{count}{unit}"
    return f"{duration / _UNITS['ms']:g}ms" if duration else "0s"


def parse_size(value: object) -> int:
    """``64MiB``, ``5MB`` or a plain number of bytes; ValueError says what is wrong."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{quoted(value)} is not a size; write 64MiB, 5MB or a number of bytes")
    return int(match[1]) * _SIZE_UNITS[(match[2] or "b").lower()]


def format_size(size: int) -> str:
    """The shortest way to write it: ``64MiB``, ``1500``."""
    for unit in ("GiB", "MiB", "KiB"):
        count, rest = divmod(size, _SIZE_UNITS[unit.lower()])
        if count and not rest:
            return f"{count}{unit}"
    return str(size)


_CRON_BOUNDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_CRON_PART = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
_CRON_PRESETS: Final = ("@hourly", "@daily", "@weekly", "@monthly")


def check_schedule(text: str) -> str:
    """``text`` if it is a cron expression of five fields with numbers, or one of ``@hourly`` and the like."""
    fields = text.split()
    if text in _CRON_PRESETS:
        return text
    if len(fields) != 5:
        raise ValueError(f"{quoted(text)} is not a schedule; write five cron fields or {', '.join(_CRON_PRESETS)}")
    for field, (lowest, highest) in zip(fields, _CRON_BOUNDS, strict=True):
        for part in field.split(","):
            match = _CRON_PART.fullmatch(part)
            numbers = [int(n) for n in match.groups()[:2] if n] if match else []
            if (
                match is None
                or not all(lowest <= n <= highest for n in numbers)
                or numbers != sorted(numbers)
                or match[3] in ("0", "00")
            ):
                raise ValueError(f"{quoted(text)}: {part!r} is not between {lowest} and {highest}, * or */n")
    return text


def check_timezone(text: str) -> str:
    """``text`` if it is a time zone of the IANA database."""
    import zoneinfo  # noqa: PLC0415  few routes name one

    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{quoted(text)} is not a time zone{nearest(text, zoneinfo.available_timezones())}") from None
    return text


def quoted(value: object) -> str:
    """A value as an error text shows it: not longer than a few words."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean …?`` where one of ``known`` is close to ``word``, else nothing."""
    from difflib import get_close_matches  # noqa: PLC0415  only for a mistake

    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
