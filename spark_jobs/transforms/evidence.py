"""What each message says about its failure: the Columns of :func:`redrive.failure_text.pick`."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from redrive import failure_text as ft
from redrive.selectors import Selector
from transforms.selecting import FEW, body_text, selected

_BLANKS = " \t\n\r"


_BARE_CODE = ft.BARE_CODE.replace("$", r"\z")


def _trim(text: str) -> str:
    """SQL that trims ``text``, a column's name: nearly never needed, and asking first costs far less."""
    at_an_end = " OR ".join(f"{side}({text}, {blank})" for side in ("startswith", "endswith") for blank in _BLANK_SQL)
    return f"CASE WHEN {at_an_end} THEN trim(BOTH {_BLANKS_SQL} FROM {text}) ELSE {text} END"


_BLANK_SQL = ("' '", r"'\t'", r"'\n'", r"'\r'")
_BLANKS_SQL = r"' \t\n\r'"


def _limited(text: str, limit: int) -> str:
    """SQL that cuts ``text``, a column's name, to ``limit`` characters; a look at its bytes tells most apart."""
    return f"CASE WHEN octet_length({text}) > {limit} THEN substring({text}, 1, {limit}) ELSE {text} END"


def _none_if_empty(text: Column) -> Column:
    return F.when(text != "", text)


def _names(values: Sequence[str]) -> str:
    # One parsed expression: a call into the JVM for each literal would take longer than a small batch.
    return ", ".join(f"'{value}'" for value in values)


def _with_header_text(frame: DataFrame) -> DataFrame:
    """``frame`` with ``said_header``, the texts of all headers in which frameworks leave an exception, or "".

    Nearly all messages carry none or one such header. Its position is found without lambdas, which Spark
    interprets, element by element, at ten times the price.
    """
    hits = [f"coalesce(lower(headers[{n}].name) IN ({_names(ft.EVIDENCE_HEADERS)}), false)" for n in range(FEW)]
    first = "CASE " + " ".join(f"WHEN hit_{n} THEN {n}" for n in range(FEW)) + " END"
    count = " + ".join(f"CAST(hit_{n} AS INT)" for n in range(FEW))
    return (
        frame.withColumns({f"hit_{n}": F.expr(f"size(headers) > {n} AND {hit}") for n, hit in enumerate(hits)})
        .withColumns(
            {"hit": F.expr(first), "hits": F.expr(f"CASE WHEN size(headers) > {FEW} THEN 99 ELSE {count} END")}
        )
        .drop(*(f"hit_{n}" for n in range(FEW)))
        .withColumn("only", F.expr("CASE WHEN hits = 1 THEN get(headers, hit) END"))
        .withColumn(
            "said_header",
            F.expr(
                "coalesce(only.text, "
                "CASE WHEN only.data IS NOT NULL THEN try_validate_utf8(CAST(only.data AS STRING)) END, '')"
            ),
        )
        .withColumn("said_header", F.expr(_limited("said_header", ft.MAX_PART)))
        .withColumn("said_header", F.expr(_trim("said_header")))
        .withColumn(
            "said_header",
            F.when(F.col("hits") > 1, _from_many_headers())
            .when(
                F.expr(f"lower(only.name) IN ({_names(ft.CODE_HEADERS)})") & F.col("said_header").rlike(_BARE_CODE),
                F.concat(F.lit(ft.CODE_WORD), "said_header"),
            )
            .otherwise(F.col("said_header")),
        )
        .drop("hit", "hits", "only")
    )


def _from_many_headers() -> Column:
    names = F.expr(f"array({_names(ft.EVIDENCE_HEADERS)})")
    known = F.expr(f"filter(headers, header -> lower(header.name) IN ({_names(ft.EVIDENCE_HEADERS)}))")
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
    return F.array_join(worded, "\n")


def _header_part(header: Column) -> Column:
    text = F.coalesce(header["text"], F.try_validate_utf8(header["data"].cast("string")), F.lit(""))
    return F.btrim(F.substring(text, 1, ft.MAX_PART), F.lit(_BLANKS))


def _with_body_text(frame: DataFrame, needed: Column) -> DataFrame:
    """``frame`` with ``said_body``: the texts of an error envelope in a JSON body where ``needed``, else ""."""
    # One lambda over the places instead of an expression for each: the plan stays small, and so does the time
    # that Spark takes to compile it. The document is a column, so it is parsed once and not for each place.
    places = F.expr(f"array({_names([_place(path) for path in ft.ENVELOPE_PATHS])})")
    parts = F.transform(
        places,
        lambda place: F.when(
            F.schema_of_variant(F.try_variant_get("document", place, "variant")) == "STRING",
            F.btrim(
                F.substring(F.try_variant_get("document", place, "string"), 1, ft.MAX_PART),
                F.lit(_BLANKS),
            ),
        ),
    )
    joined = F.array_join(F.array_distinct(F.filter(parts, lambda part: part != "")), "\n")
    return (
        frame.withColumn("document", F.when(needed, body_text(ft.MAX_BODY_BYTES)))
        .withColumn("document", F.when(F.col("document").rlike(ft.ENVELOPE_FIELD), F.try_parse_json("document")))
        .withColumn("said_body", F.when(F.col("document").isNull(), "").otherwise(F.coalesce(joined, F.lit(""))))
        .drop("document")
    )


def _place(path: Sequence[str | int]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _cut(text: str) -> str:
    """SQL of :func:`redrive.failure_text.cut`; ``text``, a column's name, has no blanks at its ends."""
    gap = ft.GAP.replace("\n", r"\n")
    return (
        f"CASE WHEN octet_length({text}) > {ft.HEAD + ft.TAIL} AND char_length({text}) > {ft.HEAD + ft.TAIL} "
        f"THEN concat(substring({text}, 1, {ft.HEAD}), '{gap}', substring({text}, -{ft.TAIL}, {ft.TAIL})) "
        f"ELSE {text} END"
    )


def with_evidence(staged: DataFrame, selectors: Sequence[Selector]) -> DataFrame:
    """``staged`` with ``text`` (cut; "" where nothing is said) and ``broker_reason`` (known words only).

    Step by step, each a column: what is mentioned twice in one expression is computed twice.
    """
    frame = (
        staged.withColumn("own", F.expr(f"substring(coalesce(reason, ''), 1, {ft.MAX_REASON})"))
        .withColumn("own", F.expr(_trim("own")))
        .withColumn(
            "broker_reason",
            F.expr(f"CASE WHEN lower(own) IN ({_names(sorted(ft.BROKER_REASONS))}) THEN lower(own) ELSE '' END"),
        )
        .withColumn("described", F.expr("coalesce(description, '')"))
        .withColumn("described", F.expr(_limited("described", ft.MAX_PART)))
        .withColumn("described", F.expr(_trim("described")))
    )
    frame = _with_header_text(frame)
    generic = (F.col("described") == "") | F.col("described").rlike(ft.GENERIC_DESCRIPTION.replace("$", r"\z"))
    if selectors:
        first = [_none_if_empty(F.btrim(selected(selector), F.lit(_BLANKS))) for selector in selectors]
        frame = frame.withColumn("said_header", F.coalesce(*first, "said_header"))
    frame = frame.withColumn(
        "said",
        F.when(F.col("said_header") != "", F.col("said_header")).when(~generic, F.col("described")).otherwise(""),
    )
    frame = _with_body_text(frame, F.col("said") == "")
    return (
        frame.withColumn("said", F.coalesce(*(_none_if_empty(F.col(c)) for c in ("said", "said_body")), "described"))
        .withColumn(
            "text",
            F.when((F.col("own") == "") | (F.col("broker_reason") != ""), F.col("said"))
            .when(F.col("said") == "", F.col("own"))
            .otherwise(F.concat("own", F.lit(": "), "said")),
        )
        .withColumn("text", F.expr(_cut("text")))
        .drop("said", "said_header", "said_body", "described", "own")
    )
