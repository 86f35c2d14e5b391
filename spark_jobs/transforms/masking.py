"""Masks as Columns: :func:`redrive.grouping.mask` on the executors, in Java's regular expressions."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from redrive.grouping import MASKS


def masked(text: Column) -> Column:
    """``text`` with everything blanked that varies from message to message."""
    for mask in MASKS:
        text = F.regexp_replace(text, F.lit(mask.pattern), F.lit(mask.replacement))
    return text
