"""What stands where something is not shown."""

import re
from collections.abc import Iterable
from typing import Final

MASK: Final = "[redacted]"
MASK_EMAIL: Final = "[redacted email]"
MASK_CARD: Final = "[redacted card]"
MASK_CREDENTIALS: Final = "[redacted credentials]"
#: What tells a text that was copied from where it had been masked, or locked (``restored_values``).
MASKED: Final = re.compile(r"\[redacted(?: email| card| credentials| [0-9]{1,6})?\]")


def replaced(text: str, places: Iterable[tuple[int, int, str]]) -> str:
    """``text`` with something else at each of these places."""
    parts, at = [], 0
    for start, end, instead in places:
        parts += [text[at:start], instead]
        at = end
    parts.append(text[at:])
    return "".join(parts)
