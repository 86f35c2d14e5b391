"""Masks as Columns: :func:`redrive.grouping.mask` on the executors, in Java's regular expressions."""

from string import ascii_lowercase, ascii_uppercase, digits

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from redrive.grouping import MASKS

#: Nearly all texts are of these characters alone.
_PLAIN = (
    "[\\t\\n" + "".join(f"\\{chr(code)}" if not chr(code).isalnum() else chr(code) for code in range(32, 127)) + "]"
)
_RANGES = {"A-Z": ascii_uppercase, "a-z": ascii_lowercase, "0-9": digits, "A-F": "ABCDEF", "a-f": "abcdef"}


def _in_java(pattern: str) -> str:
    """The same pattern with the characters of its ranges one by one.

    Java looks up a class of single characters in a table, and asks one range of a class after the other.
    """
    for written, meant in _RANGES.items():
        pattern = pattern.replace(written, meant)
    return pattern


def with_masked(frame: DataFrame, text: str, name: str) -> DataFrame:
    """``frame`` with column ``name``: column ``text`` with everything blanked that varies from message to message.

    A pattern is tried only on texts that hold its literals: finding a literal costs a tenth of that, and is done
    once for all masks that need the same ones, since no mask brings in a literal that wasn't there.
    Each mask is a column of its own, so that the text before it is computed once and not where it is mentioned.
    """
    frame = frame.withColumn(name, F.col(text))
    tests: dict[tuple[str, ...], str] = {}
    for mask in MASKS:
        for literals in mask.literals:
            shared = sum(literals in other.literals for other in MASKS) > 1
            if shared and literals not in tests:
                tests[literals] = f"holds_{len(tests)}"
                frame = frame.withColumn(tests[literals], F.expr(_holds(name, literals)))
        replaced = F.regexp_replace(name, F.lit(_in_java(mask.pattern)), F.lit(mask.replacement))
        needed = " AND ".join(f"({tests.get(literals) or _holds(name, literals)})" for literals in mask.literals)
        if mask.name == "control":
            needed = f"NOT {name} RLIKE {_quoted(f'^{_PLAIN}*' + chr(92) + 'z')}"
        frame = frame.withColumn(name, F.when(F.expr(needed), replaced).otherwise(F.col(name)) if needed else replaced)
    return frame.drop(*tests.values())


def _holds(name: str, literals: tuple[str, ...]) -> str:
    return " OR ".join(f"contains({name}, {_quoted(literal)})" for literal in literals)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
