"""What each message says about its failure: the Columns of :func:`redrive.failure_text.pick`."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from redrive import failure_text as ft
from redrive.selectors import Selector
from transforms.selecting import body_text, selected

_BLANKS = " \t\n\r"


def _trim(text: Column) -> Column:
    return F.btrim(text, F.lit(_BLANKS))


def _none_if_empty(text: Column) -> Column:
    return F.when(text != "", text)


def _texts(values: Sequence[str]) -> Column:
    # One parsed expression: a call into the JVM for each literal would take longer than a small batch.
    return F.expr("array(" + ", ".join(f"'{value}'" for value in values) + ")")


def from_headers() -> Column:
    """The texts of all headers in which frameworks leave an exception, in reading order; "" if there is none."""
    names = _texts(ft.EVIDENCE_HEADERS)
    quoted = ", ".join(f"'{name}'" for name in ft.EVIDENCE_HEADERS)
    known = F.expr(f"filter(headers, header -> lower(header.name) IN ({quoted}))")
    # Of a header that occurs more than once the last counts: sort it first within its rank, keep the first.
    ranked = F.array_sort(
        F.filter(
            F.transform(
                known,
                lambda header, position: F.struct(
                    F.array_position(names, F.lower(header["name"])).alias("rank"),
                    (-position).alias("position"),
                    _header_part(header).alias("text"),
                ),
            ),
            lambda part: part["text"] != "",
        )
    )
    last = F.filter(
        ranked,
        lambda part, position: (position == 0) | (F.get(ranked, position - 1)["rank"] != part["rank"]),
    )
    worded = F.transform(
        last,
        lambda part: F.when(
            (part["rank"] <= len(ft.CODE_HEADERS)) & part["text"].rlike(_BARE_CODE),
            F.concat(F.lit(ft.CODE_WORD), part["text"]),
        ).otherwise(part["text"]),
    )
    # Nearly all messages carry none or one such header: no sorting for them.
    only = F.get(known, F.lit(0))
    text = _header_part(only)
    is_code = F.lower(only["name"]).isin(*ft.CODE_HEADERS)
    single = F.when(is_code & text.rlike(_BARE_CODE), F.concat(F.lit(ft.CODE_WORD), text)).otherwise(text)
    return F.when(F.size(known) == 0, "").when(F.size(known) == 1, single).otherwise(F.array_join(worded, "\n"))


_BARE_CODE = ft.BARE_CODE.replace("$", r"\z")


def _header_part(header: Column) -> Column:
    text = F.coalesce(header["text"], F.try_validate_utf8(header["data"].cast("string")), F.lit(""))
    return _trim(F.substring(text, 1, ft.MAX_PART))


def from_body() -> Column:
    """The texts of an error envelope in a JSON body; "" if there is none."""
    text = body_text(ft.MAX_BODY_BYTES)
    document = F.try_parse_json(text)
    # One lambda over the places instead of an expression for each: the plan stays small, and so does the time
    # that Spark takes to compile it.
    places = _texts([_place(path) for path in ft.ENVELOPE_PATHS])
    parts = F.transform(
        places,
        lambda place: F.when(
            F.schema_of_variant(F.try_variant_get(document, place, "variant")) == "STRING",
            _trim(F.substring(F.try_variant_get(document, place, "string"), 1, ft.MAX_PART)),
        ),
    )
    joined = F.array_join(F.array_distinct(F.filter(parts, lambda part: part != "")), "\n")
    return F.coalesce(F.when(text.rlike(ft.ENVELOPE_FIELD), joined), F.lit(""))


def _place(path: Sequence[str | int]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def cut(text: Column) -> Column:
    """The Column of :func:`redrive.failure_text.cut`."""
    short = F.when(
        F.char_length(text) > ft.HEAD + ft.TAIL,
        F.concat(F.substring(text, 1, ft.HEAD), F.lit(ft.GAP), F.substring(text, -ft.TAIL, ft.TAIL)),
    ).otherwise(text)
    return _trim(short)


def with_evidence(staged: DataFrame, selectors: Sequence[Selector]) -> DataFrame:
    """``staged`` with ``text`` (cut; "" where nothing is said) and ``broker_reason`` (known words only)."""
    own = _trim(F.substring(F.coalesce("reason", F.lit("")), 1, ft.MAX_REASON))
    said = _trim(F.substring(F.coalesce("description", F.lit("")), 1, ft.MAX_PART))
    known = F.lower(own).isin(*sorted(ft.BROKER_REASONS))
    generic = said.rlike(ft.GENERIC_DESCRIPTION.replace("$", r"\z"))
    first = [_none_if_empty(_trim(selected(selector))) for selector in selectors]
    rest = [
        _none_if_empty(from_headers()),
        F.when(~generic & (said != ""), said),
        _none_if_empty(from_body()),
        said,
    ]
    staged = staged.withColumn("said", F.coalesce(*first, *rest)).withColumn("own", own)
    worded = (
        F.when((F.col("own") == "") | known, F.col("said"))
        .when(F.col("said") == "", F.col("own"))
        .otherwise(F.concat("own", F.lit(": "), "said"))
    )
    return (
        staged.withColumn("text", cut(worded))
        .withColumn("broker_reason", F.when(known, F.lower("own")).otherwise(""))
        .drop("said", "own")
    )
