"""What people are not shown: the values that a route's ``redact`` names, masked in any text on its way to eyes.

Rules are ``email``, ``card`` (a payment card's number with a right check digit), ``credentials`` (bearer tokens, and
what stands behind ``password=`` and the like), ``attribute:NAME`` (a header's value; a route's settings refuse one that
failure texts are taken from) and paths into JSON such as ``$.customer.name``, ``$.items[*].phone`` or ``$..iban`` (at
any depth).

Masking is for pages, examples and logs. Staging, the review table and what is redelivered are never touched. It errs
on the side of masking: a body that is cut off or no proper JSON is walked as far as it goes, and what looks like a
value of the last name of a path is masked there too; where a path has no name, as ``$.*``, all from the first bracket
on. Everything here takes time linear in the length of the text and
raises nothing, whatever the text is.
"""

from redrive.redaction.masks import MASKED
from redrive.redaction.rules import (
    CARD,
    EMAIL,
    MARGIN,
    Redactor,
    as_example,
    check,
    header_of,
    of_rules,
    redactor,
    redactor_of,
)

__all__ = [
    "CARD", "EMAIL", "MARGIN", "MASKED", "Redactor", "as_example", "check", "header_of", "of_rules", "redactor",
    "redactor_of", "said_by",
]  # fmt: skip


def said_by(mask: Redactor, text: str) -> str:
    """``text``, who or what before the first colon, as it may be shown: names stay, and what is said is masked."""
    who, colon, said = text.partition(": ")
    return f"{who}{colon}{mask(said)}"
