"""Why did each staged message fail? Reads staging batches, writes causes and groups.

    spark-submit --py-files redrive.zip classify_messages.py --manifest s3://…/manifest.json
    python spark_jobs/classify_messages.py --manifest var/…/manifest.json     (starts a local session)

Three Spark jobs, whatever the number of messages: (1) evidence and masks as Columns, cached, and the
distinct cases counted; (2) messages joined with the judgement of their case and written; (3) one row
per group. The rules run between (1) and (2) on the driver, in plain Python, over the distinct cases
only: see docs/adr/0007-spark-classification.md. Running it again overwrites its own output.
"""

import argparse
import base64
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from redrive import classified, explain, spark_session
from redrive.cause_model import Model
from redrive.causes import Cause
from redrive.message import ROW_BITS
from redrive.selectors import parse as parse_selector
from redrive.template_mining import KnownGroup
from transforms.evidence import with_evidence
from transforms.masking import with_masked
from transforms.selecting import selected

_CASE = ("masked", "broker_reason", "hint")
_ANSWERS = pa.schema(
    [(name, pa.string()) for name in (*_CASE, "cause", "rule")]
    + [("confidence", pa.float32()), ("fingerprint", pa.string())]
)
_WANTED = pa.schema(
    [(name, pa.string()) for name in ("fingerprint", "cause", "template")]
    + [("messages", pa.int64()), ("message_id", pa.int64())]
)
#: No two values are equal, so the attempt to build a dictionary of them is lost time.
_NO_DICTIONARY = {
    f"parquet.enable.dictionary#{name}": "false"
    for name in (
        "message_id",
        "broker_message_id",
        "body_hash",
        "message_key",
        "row",
        "enqueued_at",
        "dead_lettered_at",
    )
}
_COPIED = (
    "batch_id",
    "row",
    "source",
    "kind",
    "broker_message_id",
    "body_hash",
    "enqueued_at",
    "dead_lettered_at",
    "received_at",
    "deliveries",
    "origin",
    "ordering_key",
    "redrive_id",
    "redrive_attempt",
)


def local_session(messages: int, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session in this process for about so many messages; ``conf`` is added to what the job needs."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("redrive-classify").master(master)
    ours = {**spark_session.SESSION, **spark_session.LOCAL, **spark_session.for_messages(messages)}
    for key, value in (ours | dict(conf or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run(manifest: Mapping[str, Any], spark: SparkSession) -> dict[str, Any]:
    """Classify what ``manifest`` names; counts and seconds.

    The answer has ``messages, delays, groups, cases, causes`` (messages per cause) and ``seconds``.
    """
    started = time.monotonic()
    for key in spark_session.OF_A_QUERY:
        spark.conf.set(key, spark_session.SESSION[key])
    output = str(manifest["output"]).rstrip("/")
    rules = [explain.RouteRule(rule["match"], Cause(rule["cause"])) for rule in manifest.get("rules") or ()]
    known = _known_groups(spark, manifest.get("known_groups"))
    uris = [batch["uri"] for batch in manifest["batches"]]
    staged = spark.read.schema(classified.STAGED_DDL).parquet(*uris)
    rows = with_cases(staged, manifest, rules).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        cases = _distinct_cases(rows)
        failures = {case: count for case, (count, _) in cases.items() if case is not None}
        judgements = explain.judge(failures, rules, known, _model(manifest))
        _write_messages(spark, rows, judgements, f"{output}/{classified.MESSAGES_DIR}")
        groups = _groups(cases, judgements)
        _write_groups(spark, rows, groups, f"{output}/{classified.GROUPS_DIR}")
    finally:
        rows.unpersist()
    causes: dict[str, int] = {}
    for case, judgement in judgements.items():
        causes[judgement.cause.value] = causes.get(judgement.cause.value, 0) + failures[case]
    return {
        "messages": sum(count for count, _ in cases.values()),
        "delays": cases.get(None, (0, 0))[0],
        "groups": len(groups),
        "cases": len(failures),
        "causes": causes,
        "seconds": round(time.monotonic() - started, 3),
    }


def _model(manifest: Mapping[str, Any]) -> Model | None:
    """What the site has learned, if the manifest brings it."""
    learned = manifest.get("model")
    return Model.from_bytes(base64.b64decode(learned)) if learned else None


def with_cases(staged: DataFrame, manifest: Mapping[str, Any], rules: Sequence[explain.RouteRule]) -> DataFrame:
    """One narrow row per message: what is copied to the output, its case, and a text for the example."""
    selectors = [parse_selector(text) for text in manifest.get("evidence") or ()]
    rows = with_evidence(staged, selectors)
    failed = F.col("kind") != "delay"
    rows = with_masked(rows.withColumn("to_mask", F.when(failed, F.col("text"))), "to_mask", "masked")
    return rows.withColumn("hint", F.when(failed, _hint(manifest, rules))).select(
        (F.shiftleft(F.col("batch_id"), ROW_BITS) + F.col("row")).alias("message_id"),
        *_COPIED,
        F.octet_length("body").alias("body_bytes"),
        _key(manifest.get("message_key")).alias("message_key"),
        _key(manifest.get("order_key")).alias("order_key"),
        F.when(F.octet_length("text") <= classified.MAX_EXAMPLE, F.col("text"))
        .otherwise(F.substring("text", 1, classified.MAX_EXAMPLE))
        .alias("text"),
        *_CASE,
        F.when(F.col("masked").isNotNull(), F.xxhash64(*_CASE)).alias("case_key"),
    )


def _key(selector: str | None) -> Column:
    return F.lit(None).cast("string") if selector is None else selected(parse_selector(selector))


def _hint(manifest: Mapping[str, Any], rules: Sequence[explain.RouteRule]) -> Column:
    hint = F.lit("")
    lease = F.lit(None).cast("double")
    if manifest.get("broker") in explain.LEASE_BROKERS:
        for source, facts in (manifest.get("sources") or {}).items():
            if facts.get("lease_seconds"):
                lease = F.when(F.col("source") == source, F.lit(float(facts["lease_seconds"]))).otherwise(lease)
    # SQS does not tell when it moved a message, so the end may be as late as our own receive: then the time is
    # an upper bound. That errs towards "may have succeeded", whose verdict is the more careful one.
    end = F.unix_micros(F.coalesce("dead_lettered_at", "received_at"))
    start = F.unix_micros(F.coalesce("first_received_at", "enqueued_at"))
    seconds = (end - start) / F.lit(1e6) / F.greatest(F.coalesce("deliveries", F.lit(1)), F.lit(1))
    silent = (F.col("text") == "") & (F.col("broker_reason") == "")
    hint = F.when(silent & (seconds >= lease * explain.LEASE_SHARE), explain.LEASE_HINT).otherwise(hint)
    for number, rule in reversed(list(enumerate(rules, 1))):
        hint = F.when(F.col("text").rlike(rule.match), f"{explain.ROUTE_HINT}{number}").otherwise(hint)
    return hint


def _distinct_cases(rows: DataFrame) -> dict[explain.Case | None, tuple[int, int]]:
    """Messages per case, and the first message of each; None stands for delayed messages."""
    counted = rows.groupBy(*_CASE).agg(F.count("*").alias("n"), F.min("message_id").alias("first")).toArrow()
    columns = (counted.column(name).to_pylist() for name in (*_CASE, "n", "first"))
    return {
        None if masked is None else explain.Case(masked, reason, hint): (n, first)
        for masked, reason, hint, n, first in zip(*columns, strict=True)
    }


def _write_messages(
    spark: SparkSession, rows: DataFrame, judgements: Mapping[explain.Case, explain.Judgement], uri: str
) -> None:
    answers = spark.createDataFrame(
        _table(
            [(*case, j.cause.value, j.rule, j.confidence, j.fingerprint) for case, j in judgements.items()], _ANSWERS
        )
    ).select(F.xxhash64(*_CASE).alias("case_key"), "cause", "rule", "confidence", "fingerprint")
    (
        rows.join(F.broadcast(answers), "case_key", "left")
        .select(*classified.MESSAGES.names)
        .sortWithinPartitions("message_id")
        .write.options(**_NO_DICTIONARY)
        .mode("overwrite")
        .parquet(uri)
    )


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """``rows`` as Arrow: Spark would send tuples of Python one by one."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _groups(
    cases: Mapping[explain.Case | None, tuple[int, int]], judgements: Mapping[explain.Case, explain.Judgement]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for case, judgement in judgements.items():
        count, first = cases[case]
        group = groups.setdefault(
            judgement.fingerprint,
            {"cause": judgement.cause.value, "template": judgement.template, "messages": 0, "first": first},
        )
        group["messages"] += count
        group["first"] = min(group["first"], first)
    return groups


def _write_groups(spark: SparkSession, rows: DataFrame, groups: Mapping[str, Mapping[str, Any]], uri: str) -> None:
    wanted = spark.createDataFrame(
        _table([(f, g["cause"], g["template"], g["messages"], g["first"]) for f, g in groups.items()], _WANTED)
    )
    example = F.col("text")
    for pattern, replacement in explain.REDACTIONS:
        example = F.regexp_replace(example, F.lit(pattern), F.lit(replacement))
    (
        rows.select("message_id", "text")
        .join(F.broadcast(wanted), "message_id")
        .withColumn("example", example)
        .select(*classified.GROUPS.names)
        .coalesce(1)
        .write.mode("overwrite")
        .parquet(uri)
    )


def _known_groups(spark: SparkSession, known: Any) -> list[KnownGroup]:
    if not known:
        return []
    if isinstance(known, str):
        reader = spark.read.schema("fingerprint string, cause string, template string")
        frame = reader.parquet(known) if known.endswith(".parquet") else reader.json(known)
        return [KnownGroup(*row) for row in frame.select("fingerprint", "cause", "template").collect()]
    return [KnownGroup(group["fingerprint"], group["cause"], group["template"]) for group in known]


def read_manifest(uri: str, spark: SparkSession | None = None) -> dict[str, Any]:
    """The manifest at ``uri``: a path, ``file://…``, or anything that Spark's filesystems reach."""
    path = re.sub("^file:/{0,2}(?=/)", "", uri)
    if "://" not in path:
        text = Path(path).read_text(encoding="utf-8")
    elif spark is not None:
        text = spark.read.text(uri, wholetext=True).collect()[0][0]
    else:
        raise ValueError(f"{uri}: needs a Spark session to be read")
    manifest: dict[str, Any] = json.loads(text)
    return manifest


def _messages(manifest: Mapping[str, Any] | None) -> int:
    """How many it names; of one that can't be read before there is a session, many."""
    return sum(int(batch["rows"]) for batch in manifest["batches"]) if manifest else spark_session.FEW_FOR_JVM + 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job once; the last line on standard output is its counts as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--manifest", required=True, help="URI of the JSON that says what to read and write")
    parser.add_argument("--master", default=None, help="start a session here instead of joining the submitted one")
    options = parser.parse_args(arguments)
    manifest = None if "://" in options.manifest else read_manifest(options.manifest)
    # spark-submit tells its child the port of the JVM that waits for it; Connect tells the server.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
    spark = (
        SparkSession.builder.appName("redrive-classify").getOrCreate()
        if submitted and options.master is None
        else local_session(_messages(manifest), options.master or "local[*]")
    )
    try:
        counts = run(manifest or read_manifest(options.manifest, spark), spark)
    finally:
        spark.stop()
    print(json.dumps(counts), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
