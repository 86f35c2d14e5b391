"""Why did each staged message fail? Reads staging batches, writes causes and groups.

    spark-submit --py-files redrive.zip classify_messages.py --manifest s3://…/manifest.json
    python spark_jobs/classify_messages.py --manifest var/…/manifest.json     (starts a local session)

Every message is looked at once: evidence, masks and the key of its case are Columns, and what they find is written.
Then the keys are counted, and the text of each case is read back from its first message. The rules run on the driver,
in plain Python, over the distinct cases only: see docs/adr/0007-spark-classification.md. Running it again overwrites
its own output.
"""

import argparse
import base64
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from redrive import classified, explain, grouping, spark_session
from redrive.cause_model import Model
from redrive.causes import Cause
from redrive.message import ROW_BITS
from redrive.selectors import parse as parse_selector
from redrive.template_mining import KnownGroup
from transforms.evidence import with_evidence
from transforms.masking import with_masked
from transforms.selecting import selected

_CASE = ("masked", "broker_reason", "hint")
_WRITE_OPTIONS: Mapping[str, str] = {
    # No two values are equal, so the attempt to build a dictionary of them is lost time.
    **{f"parquet.enable.dictionary#{n}": "false" for n in ("message_id", "message_key", "order_key", "text")},
    "parquet.compression.codec.zstd.level": "1",  # read twice at most, and then removed
}


class Found(NamedTuple):
    """A distinct case, how many messages it has, and the failure text of the first of them, cut to an example."""

    case: explain.Case
    messages: int
    text: str


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
    uris = [str(batch["uri"]) for batch in manifest["batches"]]
    messages_uri = f"{output}/{classified.MESSAGES_DIR}"
    staged = spark.read.schema(classified.STAGED_DDL).parquet(*uris)
    found_out = with_cases(staged, manifest, rules).select(*classified.MESSAGES.names)
    found_out.sortWithinPartitions("message_id").write.options(**_WRITE_OPTIONS).mode("overwrite").parquet(messages_uri)
    written = spark.read.schema(classified.MESSAGES_DDL).parquet(messages_uri)
    counted, delays = _counted(written)
    found = _cases(spark, written, counted)
    judgements = explain.judge({f.case: f.messages for f in found.values()}, rules, known, _model(manifest))
    _write_cases(spark, found, judgements, f"{output}/{classified.CASES_DIR}")
    causes: Counter[str] = Counter()
    for one in found.values():
        causes[judgements[one.case].cause.value] += one.messages
    return {
        "messages": causes.total() + delays,
        "delays": delays,
        "groups": len({judgement.fingerprint for judgement in judgements.values()}),
        "cases": len(found),
        "causes": dict(causes),
        "seconds": round(time.monotonic() - started, 3),
    }


def _model(manifest: Mapping[str, Any]) -> Model | None:
    """What the site has learned, if the manifest brings it."""
    learned = manifest.get("model")
    return Model.from_bytes(base64.b64decode(learned)) if learned else None


def with_cases(staged: DataFrame, manifest: Mapping[str, Any], rules: Sequence[explain.RouteRule]) -> DataFrame:
    """One row of ``classified.MESSAGES`` per message, and beside it ``masked``, its text as its case has it."""
    selectors = [parse_selector(text) for text in manifest.get("evidence") or ()]
    rows = with_evidence(staged, selectors)
    failed = F.col("kind") != "delay"
    rows = with_masked(rows.withColumn("to_mask", F.when(failed, F.col("text"))), "to_mask", "masked")
    return rows.withColumn("hint", F.when(failed, _hint(manifest, rules))).select(
        (F.shiftleft(F.col("batch_id"), ROW_BITS) + F.col("row")).alias("message_id"),
        F.when(F.col("masked").isNotNull(), F.xxhash64(*_CASE)).alias("case_key"),
        _key(manifest.get("message_key")).alias("message_key"),
        _key(manifest.get("order_key")).alias("order_key"),
        F.when(failed, F.col("text")).alias("text"),
        *_CASE,
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


def _counted(written: DataFrame) -> tuple[dict[int, tuple[int, int]], int]:
    """By case key (how many messages, the first of them), and how many messages have none."""
    counted = written.groupBy("case_key").agg(F.count("*").alias("n"), F.min("message_id").alias("first")).toArrow()
    columns = (counted.column(name).to_pylist() for name in ("case_key", "n", "first"))
    by_key = {key: (n, first) for key, n, first in zip(*columns, strict=True)}
    delays, _ = by_key.pop(None, (0, 0))
    return by_key, delays


def _cases(spark: SparkSession, written: DataFrame, counted: Mapping[int, tuple[int, int]]) -> dict[int, Found]:
    """The cases in the order of their first messages, whose texts they take."""
    firsts = pa.array(sorted(first for _, first in counted.values()), pa.int64())
    wanted = F.broadcast(spark.createDataFrame(pa.table({"message_id": firsts})))
    found = written.join(wanted, "message_id", "left_semi").select("case_key", "text", *_CASE[1:]).toArrow()
    columns = (found.column(name).to_pylist() for name in ("case_key", "text", *_CASE[1:]))
    return {
        # The same masks as above, by the Python whose patterns they are.
        key: Found(explain.Case(grouping.mask(text), reason, hint), counted[key][0], text[: classified.MAX_EXAMPLE])
        for key, text, reason, hint in sorted(zip(*columns, strict=True), key=lambda row: counted[row[0]][1])
    }


def _write_cases(
    spark: SparkSession, found: Mapping[int, Found], judgements: Mapping[explain.Case, explain.Judgement], uri: str
) -> None:
    shown: set[str] = set()
    rows = []
    for key, one in found.items():
        judged = judgements[one.case]
        example = None if judged.fingerprint in shown else explain.without_personal_data(one.text)
        shown.add(judged.fingerprint)
        answer = (judged.cause.value, judged.rule, judged.confidence, judged.fingerprint, judged.template)
        rows.append((key, one.messages, *answer, example))
    columns = zip(*rows, strict=True) if rows else [()] * len(classified.CASES)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, classified.CASES, strict=True)]
    table = pa.table(arrays, schema=classified.CASES)
    spark.createDataFrame(table).coalesce(1).write.mode("overwrite").parquet(uri)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job once; the last line on standard output is its counts as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--manifest", required=True, help="URI of the JSON that says what to read and write")
    parser.add_argument("--master", default=None, help="start a session here instead of joining the submitted one")
    options = parser.parse_args(arguments)
    manifest = None if "://" in options.manifest else read_manifest(options.manifest)
    # Of a manifest that can't be read before there is a session: many.
    messages = spark_session.messages_of(manifest) if manifest else spark_session.FEW_FOR_JVM + 1
    # spark-submit tells its child the port of the JVM that waits for it; Connect tells the server.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
    spark = (
        SparkSession.builder.appName("redrive-classify").getOrCreate()
        if submitted and options.master is None
        else local_session(messages, options.master or "local[*]")
    )
    try:
        counts = run(manifest or read_manifest(options.manifest, spark), spark)
    finally:
        spark.stop()
    print(json.dumps(counts), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
