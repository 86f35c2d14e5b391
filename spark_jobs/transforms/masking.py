"""Masks as Columns: :func:`redrive.grouping.mask` on the executors, in Java's regular expressions."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from redrive.grouping import MASKS, Mask

#: Nearly all texts are of these characters alone. Single characters, not ranges: of those Java makes one table.
_PLAIN = (
    "[\\t\\n" + "".join(f"\\{chr(code)}" if not chr(code).isalnum() else chr(code) for code in range(32, 127)) + "]"
)


def with_masked(frame: DataFrame, text: str, name: str) -> DataFrame:
    """``frame`` with column ``name``: column ``text`` with everything blanked that varies from message to message.

    A pattern is tried only on texts that hold one of its literals: finding a literal costs a tenth of that.
    Each mask is a column of its own, so that the text before it is computed once and not where it is mentioned.
    """
    frame = frame.withColumn(name, F.col(text))
    for mask in MASKS:
        replaced = F.regexp_replace(name, F.lit(mask.pattern), F.lit(mask.replacement))
        needed = F.expr(_needed(mask, name))
        frame = frame.withColumn(name, F.when(needed, replaced).otherwise(F.col(name)))
    return frame


def _needed(mask: Mask, name: str) -> str:
    if mask.literals:
        return " OR ".join(f"contains({name}, {_quoted(literal)})" for literal in mask.literals)
    if mask.name == "control":
        return f"NOT {name} RLIKE {_quoted(f'^{_PLAIN}*+' + chr(92) + 'z')}"
    return f"{name} RLIKE '[0-9:-]'"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
