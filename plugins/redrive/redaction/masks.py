"""What stands where something is not shown."""

import re
from typing import Final

MASK: Final = "[redacted]"
MASK_EMAIL: Final = "[redacted email]"
MASK_CARD: Final = "[redacted card]"
MASK_CREDENTIALS: Final = "[redacted credentials]"
#: What tells a text that was copied from where it had been masked, or locked (``restored_values``).
MASKED: Final = re.compile(r"\[redacted(?: email| card| credentials| [0-9]{1,6})?\]")
