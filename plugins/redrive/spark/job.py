"""The Spark job: why did each staged message fail? Reads staging batches, writes causes and groups.

1. Executors look at every message once and write an answer beside it (:mod:`redrive.classification.executor`).
2. Spark reduces what they found to distinct cases, and executors read what each of the most frequent says by itself.
3. The driver compares and explains these, up to a limit that bounds its memory; executors explain the others.
4. The driver writes the file of cases, last and in one step: where it is, the answer is complete.

Running the job again overwrites its own output. Why it is so: docs/adr/0007-spark-classification.md.

``spark-submit`` is given :mod:`redrive.spark.application` and an archive of the library (:mod:`redrive.spark.submit`);
``python -m redrive.spark.job --manifest URI --master local[*,4]`` starts a session of its own.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from redrive.classification import executor, explain
from redrive.classification.cases import Case, RouteRule
from redrive.classification.causes import Cause
from redrive.classification.executor import Batch, CaseSettings
from redrive.classification.templates import KnownGroup
from redrive.connections import storage
from redrive.redaction import as_example
from redrive.spark import session_conf
from redrive.staging import file_schemas, filesystems

#: A task is given at least LEAST messages, to be worth its start, and at most MOST; between these the work is divided
#: into TASKS shares, so that all cores end at about one time. Each share has a copy of the cases that all have, which
#: Spark brings together.
LEAST, MOST, TASKS = 5_000, 250_000, 8
#: So many bytes of a staging file count as one message, so that shares of large messages have fewer: 100 MB.
WEIGHT = 400
#: Answers that are written at once.
PORTION = 10_000


def local_session(master: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session that this process starts; ``conf`` is added to what the job needs."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(session_conf.APPLICATION_NAME).master(master)
    ours = {**session_conf.SESSION, **session_conf.LOCAL, **session_conf.here(conf or {})}
    for key, value in (ours | dict(conf or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run(manifest: Mapping[str, Any], spark: SparkSession, access: filesystems.Access | None = None) -> dict[str, Any]:
    """Classify the batches that ``manifest`` names; ``access`` opens their files.

    Returns ``messages``, ``delays``, ``groups``, ``cases``, ``causes`` (messages per cause) and ``seconds``.
    """
    started = time.monotonic()
    output = str(manifest["output"]).rstrip("/")
    filesystem, folder = filesystems.locate(output, access)
    _remove_answers(filesystem, folder)
    application = _describe(spark, manifest)
    with filesystems.appearing_whole(filesystem, f"{folder}/{file_schemas.APPLICATION_FILE}") as sink:
        sink.write(json.dumps({"application": application}).encode())
    rules = [RouteRule(rule["match"], Cause(rule["cause"])) for rule in manifest.get("rules") or ()]
    known = _known_groups(manifest)
    folder_of_messages = f"{output}/{file_schemas.MESSAGES_DIR}"
    tasks = shares(manifest)
    found = distinct_cases(spark, tasks, CaseSettings.by(manifest, len(tasks)), folder_of_messages, access)
    first, others = most_frequent(found, of=sum(batch["rows"] for batch in manifest["batches"]))
    rows = sorted(zip(*(column.to_pylist() for column in first.columns), strict=True), key=lambda row: row[2])
    delays = sum(messages for key, messages, *_ in rows if key is None)
    cases = {
        Case(masked, reason, hint): (key, messages, text)
        for key, messages, _, masked, reason, hint, text, _ in rows
        if key is not None
    }
    readings = {masked: executor.reading_of(reading) for _, _, _, masked, _, _, _, reading in rows if reading}
    counts = {case: messages for case, (_, messages, _) in cases.items()}
    explanations = explain.explain_cases(
        counts, rules, known, executor.model_of(manifest.get("model")), told_apart=len(counts), readings=readings
    )
    groups = explain.groups_of(explanations.values())
    written = _Written()
    path = f"{folder}/{file_schemas.CASES_FILE}"
    # The commit: the messages' files are all there, and without this one nobody reads them.
    with (
        filesystems.appearing_whole(filesystem, path) as sink,
        pq.ParquetWriter(sink, file_schemas.CASES, write_page_checksum=True) as out,
    ):
        written.write(out, ((*cases[case], *explanations[case]) for case in cases))
        if others is not None:
            written.write(out, _explained(others, rules, [*known, *groups], manifest.get("model")))
    return {
        "messages": written.causes.total() + delays,
        "delays": delays,
        "groups": len(written.groups),
        "cases": written.cases,
        "causes": dict(written.causes),
        "seconds": round(time.monotonic() - started, 3),
    }


def _describe(spark: SparkSession, manifest: Mapping[str, Any]) -> str:
    """Label the jobs in Spark's own pages; returns the application's id, "" where Spark doesn't tell it."""
    label = session_conf.label(manifest)
    spark.addTag(label.replace(",", " "))  # its one forbidden character
    try:
        spark.sparkContext.setJobDescription(label)
    except PySparkException:
        pass  # over Spark Connect there is none
    return str(spark.conf.get("spark.app.id", "") or "")


class _Written:
    """The answers as they are written, a portion at a time, and what they add up to."""

    def __init__(self) -> None:
        self.cases = 0
        self.causes: Counter[str] = Counter()
        self.groups: set[str] = set()

    def write(self, out: pq.ParquetWriter, answers: Iterable[tuple[Any, ...]]) -> None:
        """Write ``(key, messages, text, cause, rule, confidence, template, fingerprint, telling)`` of each case."""
        answers = iter(answers)
        while portion := list(islice(answers, PORTION)):
            rows = []
            for key, messages, text, cause, rule, confidence, template, fingerprint, telling in portion:
                example = None if fingerprint in self.groups else as_example(text)
                self.groups.add(fingerprint)
                self.causes[cause] += messages
                rows.append(
                    (key, messages, str(cause), rule, confidence, fingerprint, template, example, telling or None)
                )
            columns = zip(*rows, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, file_schemas.CASES, strict=True)]
            out.write_table(pa.table(arrays, schema=file_schemas.CASES))
            self.cases += len(portion)


def _explained(
    others: DataFrame, rules: Sequence[RouteRule], known: Sequence[KnownGroup], learned: str | None
) -> Iterator[tuple[Any, ...]]:
    """The explanations of the less frequent cases: made by the executors, and brought here part by part."""

    def explained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return executor.explain_others(batches, rules, known, learned)

    yield from map(tuple, others.mapInArrow(explained, _ddl(executor.EXPLAINED)).toLocalIterator())


def _remove_answers(filesystem: pafs.FileSystem, folder: str) -> None:
    """Remove what an earlier try left: it says nothing about this one. What else lies there is not ours."""
    cases, messages = filesystem.get_file_info(
        [f"{folder}/{file_schemas.CASES_FILE}", f"{folder}/{file_schemas.MESSAGES_DIR}"]
    )
    if cases.type == pafs.FileType.File:
        filesystem.delete_file(cases.path)
    if messages.type == pafs.FileType.Directory:
        filesystem.delete_dir(messages.path)
    filesystem.create_dir(folder, recursive=True)


def shares(manifest: Mapping[str, Any]) -> list[list[Batch]]:
    """The batches of ``manifest`` divided into shares of about equal weight, one for each task."""
    weights = [max(batch["rows"], batch.get("bytes", 0) // WEIGHT) for batch in manifest["batches"]]
    size = min(MOST, max(LEAST, sum(weights) // TASKS))
    found: list[list[Batch]] = []
    room = 0
    for batch, weight in zip(manifest["batches"], weights, strict=True):
        if room < weight or not found:
            found.append([])
            room = max(size, weight)
        found[-1].append(Batch(batch["batch_id"], str(batch["uri"])))
        room -= weight
    return found


def distinct_cases(
    spark: SparkSession,
    some: Sequence[Sequence[Batch]],
    asked: CaseSettings,
    output: str,
    access: filesystems.Access | None = None,
) -> DataFrame | None:
    """The distinct cases of all shares, each a row of ``executor.FOUND``; None where there are no shares."""

    def take(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield executor.write(some[number], asked, output, access)

    if not some:
        return None
    found = spark.range(0, len(some), 1, numPartitions=len(some)).mapInArrow(take, _ddl(executor.FOUND))
    if len(some) == 1:
        return found
    total, first = F.sum("messages").alias("messages"), F.min("first").alias("first")
    said = F.min_by(F.struct("masked", "reason", "hint", "text"), "first").alias("said")
    # Said here, because a cluster's own number of parts may be made for far more than some thousand rows.
    found = found.repartition(2 * TASKS, "case_key").groupBy("case_key").agg(total, first, said)
    return found.select("case_key", "messages", "first", "said.*")


def most_frequent(found: DataFrame | None, of: int) -> tuple[pa.Table, DataFrame | None]:
    """The :data:`~redrive.classification.explain.TOLD_APART` cases with the most messages, and a frame of the others.

    ``of`` is how many messages there are. Only the frequent cases come to this process, and the executors have read
    their texts (``executor.READ``).
    """
    if found is None:
        return executor.READ.empty_table(), None
    most = explain.TOLD_APART
    if of <= most:
        return _read(found), None
    found = found.persist()  # asked twice, and each time would look at every message
    is_case = F.col("case_key").isNotNull()
    first = _read(found.orderBy(is_case, F.desc("messages"), "first").limit(most + 1).repartition(TASKS))
    if len(first) <= most:
        return first, None
    first = in_order(first).slice(0, most)
    messages, at = (first.column(name)[most - 1].as_py() for name in ("messages", "first"))
    # No two cases have their first message in common, so the others are all behind the last of these.
    rarer = F.col("messages") < messages
    later = (F.col("messages") == messages) & (F.col("first") > at)
    return first, found.where(is_case & (rarer | later)).repartition(2 * TASKS)


def in_order(cases: pa.Table) -> pa.Table:
    """``cases`` as :func:`most_frequent` takes them: what has no case first, however few such messages there are, then
    those with the most messages."""
    keys = {"is_case": cases.column("case_key").is_valid(), "messages": cases.column("messages")}
    ranked = pa.table(keys | {"first": cases.column("first")})
    return cases.take(
        pc.sort_indices(ranked, [("is_case", "ascending"), ("messages", "descending"), ("first", "ascending")])
    )


def _read(cases: DataFrame) -> pa.Table:
    return cases.mapInArrow(executor.read, _ddl(executor.READ)).toArrow()


def _ddl(schema: pa.Schema) -> str:
    """``schema``, of integers, numbers and texts, as Spark writes it."""
    names = {pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}
    return ", ".join(f"{field.name} {names[field.type]}" for field in schema)


def _known_groups(manifest: Mapping[str, Any]) -> list[KnownGroup]:
    return [KnownGroup(**group) for group in manifest.get("known_groups") or ()]


def _ends_with_this_process(spark: SparkSession) -> bool:
    """``spark-submit`` stops the local session that it started when this process ends. PySpark's own stop waits up to a
    second more, for the thread that collects accumulators to look whether it is to end."""
    return "SPARK_REMOTE" not in os.environ and spark.sparkContext.master.startswith("local")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job once; the last line on standard output is its counts as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--manifest", required=True, help="URI of the JSON that says what to read and write")
    parser.add_argument(
        "--master",
        default=None,
        help="start a session here, such as local[*,4]; needed where spark-submit has started none",
    )
    parser.add_argument(
        "--connection", default="", help="Airflow connection id of whoever may read and write there, never a secret"
    )
    options = parser.parse_args(arguments)
    access = storage.access_of_job(options.connection, options.manifest)
    manifest = filesystems.read_json(options.manifest, access)
    # spark-submit tells its child the port of the JVM that waits for it; Connect tells the server.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
    if options.master is not None:
        spark = local_session(options.master)
    elif submitted:
        spark = SparkSession.builder.appName(session_conf.label(manifest)).getOrCreate()
    else:
        parser.error("--master is needed: no spark-submit has started a session")
    try:
        counts = run(manifest, spark, access)
    finally:
        if not (submitted and _ends_with_this_process(spark)):
            spark.stop()
    print(json.dumps(counts), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
