"""The Spark job: what it reads, what it writes, and that it agrees with Python on every text."""

import csv
import datetime as dt
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests import classifying
from tests.unit.failure_samples import SAMPLES
from tests.unit.hostile_texts import HOSTILE

from redrive.classification import executor, explain
from redrive.classification.cases import Case
from redrive.message import body_hash
from redrive.spark import job
from redrive.spark.job import in_order, run
from redrive.staging import file_schemas

pytestmark = pytest.mark.spark

NOON = dt.datetime(2026, 1, 2, 12, 0, tzinfo=dt.UTC)


def staged(row: int, **facts: Any) -> dict[str, Any]:
    body = facts.pop("body", b'{"id": 1}')
    headers = [
        {
            "name": name,
            "type": "String",
            "text": value if isinstance(value, str) else None,
            "data": None if isinstance(value, str) else value,
        }
        for name, value in facts.pop("headers", [])
    ]
    return {
        "batch_id": 7,
        "row": row,
        "route": "orders",
        "source": "orders-dlq",
        "kind": "dead_letter",
        "broker": "amazon_sqs",
        "broker_message_id": f"m-{row}",
        "body": body,
        "body_hash": body_hash(body),
        "headers": headers,
        "properties": [],
        "enqueued_at": NOON,
        "first_received_at": NOON,
        "received_at": NOON + dt.timedelta(seconds=10),
        "deliveries": 5,
        "redelivered": False,
        **facts,
    }


def classify(
    spark: SparkSession, folder: Path, rows: list[dict[str, Any]], **manifest: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(messages, each with what its case says; groups) of ``rows``, in the order of message ids."""
    file = folder / "batch.parquet"
    columns = {field.name: [row.get(field.name) for row in rows] for field in file_schemas.STAGED}
    pq.write_table(pa.table(columns, schema=file_schemas.STAGED), file, compression="zstd")
    asked = {
        "batches": [{"batch_id": 7, "uri": str(file), "rows": len(rows)}],
        "output": str(folder / "out"),
        "route": "orders",
        "broker": "amazon_sqs",
        "sources": {"orders-dlq": {"kind": "dead_letter", "lease_seconds": 30}, "orders-delay": {"kind": "delay"}},
        "evidence": [],
        "rules": [],
        "message_key": None,
        "order_key": None,
        "known_groups": [],
        **manifest,
    }
    run(asked, spark)
    found = answers(folder / "out")
    assert said(*found) == said(*plainly(asked, folder))
    return found


def plainly(manifest: dict[str, Any], folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What comes of the same manifest message by message, without Spark."""
    file = folder / "plain.json"
    file.write_text(json.dumps({**manifest, "output": str(folder / "plain")}))
    classifying.classify(str(file))
    return answers(folder / "plain")


def said(messages: list[dict[str, Any]], groups: list[dict[str, Any]]) -> tuple[list[Any], set[Any]]:
    """Everything but the keys of cases and what is done to examples."""
    names = (
        "message_id",
        "message_key",
        "order_key",
        "fields",
        "cause",
        "rule",
        "confidence",
        "fingerprint",
        "template",
    )
    return (
        [tuple(message[name] for name in names) for message in messages],
        {(group["fingerprint"], group["cause"], group["template"], group["messages"]) for group in groups},
    )


def answers(output: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(messages, each with what its case says; groups) that were written."""
    messages = read(sorted((output / file_schemas.MESSAGES_DIR).iterdir()), file_schemas.MESSAGES)
    cases = {case["case_key"]: case for case in read([output / file_schemas.CASES_FILE], file_schemas.CASES)}
    assert None not in cases
    assert Counter(m["case_key"] for m in messages if m["case_key"] is not None) == {
        key: case["messages"] for key, case in cases.items()
    }
    groups: dict[str, dict[str, Any]] = {}
    for case in cases.values():
        group = groups.setdefault(case["fingerprint"], {**case, "messages": 0, "example": None})
        assert (group["cause"], group["template"]) == (case["cause"], case["template"])
        assert group["example"] is None or case["example"] is None, "a group shows one example"
        group["messages"] += case["messages"]
        group["example"] = group["example"] or case["example"]
    nothing = dict.fromkeys(file_schemas.CASES.names)
    return [{**cases.get(m["case_key"], nothing), **m} for m in messages], list(groups.values())


def read(files: list[Path], schema: pa.Schema) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in files:
        table = pq.read_table(file)
        assert table.schema.equals(schema)
        rows += table.to_pylist()
    return sorted(rows, key=lambda row: row.get("message_id", 0))


def test_a_batch_becomes_messages_and_groups(spark: SparkSession, tmp_path: Path) -> None:
    messages, groups = classify(
        spark,
        tmp_path,
        [
            staged(0, headers=[("error", "HTTP 429 for order 1")], ordering_key="k1"),
            staged(1, headers=[("error", "HTTP 429 for order 22")]),
            staged(2, body=b'{"error":{"type":"KeyError","message":"total of ana@acme.test"},"customer":"c9"}'),
            staged(3, source="orders-delay", kind="delay", headers=[("error", "ignored")]),
        ],
        message_key="body:$.customer",
        order_key="message_group",
    )
    assert [m["message_id"] for m in messages] == [(7 << 20) | row for row in range(4)]
    assert [m["cause"] for m in messages] == ["throttled", "throttled", "application_bug", None]
    assert [m["message_key"] for m in messages] == [None, None, "c9", None]
    assert messages[0]["order_key"] == "k1"
    assert messages[0]["fingerprint"] == messages[1]["fingerprint"] != messages[2]["fingerprint"]
    assert messages[3]["fingerprint"] is None
    assert {(g["cause"], g["messages"]) for g in groups} == {("throttled", 2), ("application_bug", 1)}
    assert {g["example"] for g in groups} == {"HTTP 429 for order 1", "KeyError\ntotal of [redacted email]"}


def test_it_runs_twice_with_the_same_result(spark: SparkSession, tmp_path: Path) -> None:
    rows = [staged(n, headers=[("error", text)]) for n, (_, text) in enumerate(SAMPLES[:40])]
    once = classify(spark, tmp_path, rows)
    assert classify(spark, tmp_path, rows) == once


def test_the_lease_is_suspected_only_where_time_says_so(spark: SparkSession, tmp_path: Path) -> None:
    messages, _ = classify(
        spark,
        tmp_path,
        [
            staged(0, received_at=NOON + dt.timedelta(seconds=135)),  # 27 s each: 0.9 of the lease
            staged(1, received_at=NOON + dt.timedelta(seconds=134)),
            staged(2, received_at=NOON + dt.timedelta(hours=9), dead_lettered_at=NOON + dt.timedelta(seconds=20)),
            staged(3, received_at=NOON + dt.timedelta(hours=9), reason="rejected"),
            staged(4, first_received_at=None, received_at=NOON + dt.timedelta(seconds=200)),
            staged(5, deliveries=None, enqueued_at=None, first_received_at=None),
            staged(6, source="elsewhere", received_at=NOON + dt.timedelta(hours=9)),
        ],
    )
    assert [m["cause"] for m in messages] == [
        "lease_expired",
        "max_deliveries",
        "max_deliveries",
        "unclassified",
        "max_deliveries",
        "max_deliveries",
        "max_deliveries",
    ]
    assert messages[4]["rule"] == "lease.may_have_run_out", "from the enqueue on: it may have waited in a backlog"


def test_a_routes_rules_come_first(spark: SparkSession, tmp_path: Path) -> None:
    messages, _ = classify(
        spark,
        tmp_path,
        [staged(0, headers=[("error", "SKU a-7 not in catalogue, timeout")])],
        rules=[{"match": r"SKU \S+ not in catalogue", "cause": "missing_data"}],
    )
    assert (messages[0]["cause"], messages[0]["rule"]) == ("missing_data", "route:1")


def test_known_groups_keep_their_fingerprints(spark: SparkSession, tmp_path: Path) -> None:
    known = [{"fingerprint": "feedfeedfeedfeed", "cause": "unclassified", "template": "frobnicated <*> by hand"}]
    rows = [staged(0, headers=[("error", "frobnicated shelf-12 by hand")])]
    messages, groups = classify(spark, tmp_path, rows, known_groups=known)
    assert messages[0]["fingerprint"] == groups[0]["fingerprint"] == "feedfeedfeedfeed"


def test_keys_are_what_selectors_find(spark: SparkSession, tmp_path: Path) -> None:
    headers = [
        [("id", "a"), ("error", "x")],
        [("id", "a"), ("id", "b"), ("ID", "c")],
        [("id", "")],
        [("Id", "other")],
        [],
        [("id", "nul \0 here")],
        [("id", b"\xff bytes")],
        [("id", "a"), ("id", b"\xc3\xa9")],
        [("id", "\u00e9\u65e5")],
    ]
    for some in (headers[:5], headers[8:], headers):
        rows = [staged(n, headers=own, ordering_key=None if n % 2 else f"k\0{n}") for n, own in enumerate(some)]
        for message_key, order_key in (
            ("attribute:id", "key"),
            ("attribute:gone", "attribute:id"),
            ("broker_id", "body:$.id"),
        ):
            messages, _ = classify(
                spark, tmp_path, rows, message_key=message_key, order_key=order_key, search=[message_key, order_key]
            )
            if message_key == "attribute:id":
                wanted = ["a", "b", None, None, None, "nul \ufffd here", "\ufffd bytes", "\u00e9", "\u00e9\u65e5"]
                assert [m["message_key"] for m in messages] == [wanted[headers.index(own)] for own in some]


def test_messages_without_a_failure_are_counted_however_few_they_are_beside_too_many_cases() -> None:
    """They have no case: cut off as one too many, they would be missing from what the run adds up to."""
    counts = [(7, 5, 20), (None, 1, 0), (8, 9, 30), (9, 5, 10)]
    rows = [dict(zip(("case_key", "messages", "first"), row, strict=True)) for row in counts]
    found = pa.Table.from_pylist(rows, schema=pa.schema([executor.READ.field(name) for name in rows[0]]))
    assert in_order(found).column("case_key").to_pylist() == [None, 8, 9, 7]


@pytest.mark.parametrize("shares", [1, 3])
def test_too_many_cases_are_judged_by_the_executors_as_they_would_be_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: int
) -> None:
    monkeypatch.setattr(explain, "TOLD_APART", 6)
    often = [f"no account of {word} in this shop" for word in ("amber", "birch", "cedar", "delta", "ember")]
    rare = ["no account of zebra in this shop", "connection refused by gizmo", "the gizmo is ajar", *"klmnopq"]
    ajar = Case("the gizmo is ajar")
    cause = explain.explain_cases({ajar: 1})[ajar].cause
    known = [{"fingerprint": "0" * 16, "cause": cause.value, "template": "the <*> is ajar"}]
    batches = []
    for number in range(1, shares + 1):
        texts = [*often * 3, *rare[number - 1 :: shares]]
        rows = [staged(n, batch_id=number, headers=[("error", text)]) for n, text in enumerate(texts)]
        rows.append(staged(len(rows), batch_id=number, kind="delay"))
        columns = {field.name: [row.get(field.name) for row in rows] for field in file_schemas.STAGED}
        pq.write_table(pa.table(columns, schema=file_schemas.STAGED), tmp_path / f"{number}.parquet")
        batches.append({"batch_id": number, "uri": str(tmp_path / f"{number}.parquet"), "rows": 1_000_000})
    asked = {
        "batches": batches, "output": str(tmp_path / "out"), "broker": "rabbitmq", "known_groups": known,
        "sources": {}, "evidence": [], "rules": [], "message_key": None, "order_key": None,
    }  # fmt: skip
    counts = run(asked, spark)
    assert (counts["cases"], counts["delays"], counts["messages"]) == (15, shares, shares * 15 + 10 + shares)
    found = answers(tmp_path / "out")
    monkeypatch.setattr(explain, "TOLD_APART", 5)  # in the job messages without a failure are one of them
    assert said(*found) == said(*plainly(asked, tmp_path))
    of = {group["template"]: group for group in found[1]}
    assert of["no account of <*> in this shop"]["messages"] == 15 * shares + 1
    assert of["the <*> is ajar"]["fingerprint"] == "0" * 16
    shared = [group for group in found[1] if group["template"] == explain.OVERFLOW]
    assert sum(group["messages"] for group in shared) == 8
    assert all(group["example"] for group in shared)


def test_cases_of_many_tasks_come_together(spark: SparkSession, tmp_path: Path) -> None:
    errors = ["HTTP 429 for order 1", "KeyError: 'sku-1'", "connection refused by 10.0.0.1:5432"]
    batches = []
    for number in range(1, 6):
        rows = [
            staged(
                n,
                batch_id=number,
                headers=[("error", errors[(n + number) % 3])],
                kind="delay" if n == 6 else "dead_letter",
            )
            for n in range(7)
        ]
        columns = {field.name: [row.get(field.name) for row in rows] for field in file_schemas.STAGED}
        pq.write_table(pa.table(columns, schema=file_schemas.STAGED), tmp_path / f"{number}.parquet", row_group_size=3)
        # As if they were large: each is a task of its own.
        batches.append({"batch_id": number, "uri": (tmp_path / f"{number}.parquet").as_uri(), "rows": 1_000_000})
    counts = run({"batches": batches, "output": str(tmp_path / "out")}, spark)
    assert (counts["messages"], counts["delays"], counts["cases"], counts["groups"]) == (35, 5, 3, 3)
    messages, groups = answers(tmp_path / "out")
    assert [m["message_id"] for m in messages] == [number << 20 | row for number in range(1, 6) for row in range(7)]
    assert Counter(m["cause"] for m in messages) == Counter({None: 5}) + Counter(
        {group["cause"]: group["messages"] for group in groups}
    )


def test_shares_go_by_bytes_where_messages_are_large() -> None:
    def sizes(rows: int, size: int) -> list[int]:
        some = [{"batch_id": n, "uri": f"{n}", "rows": rows, "bytes": size} for n in range(40)]
        return [len(share) for share in job.shares({"batches": some})]

    assert sizes(1_000, 200_000) == [5] * 8, "messages of a usual size: by their number"
    assert sizes(100_000, 1_000_000) == [2] * 20, "of many messages no task has more than 250,000"
    assert sizes(1_000, 100_000_000) == [1] * 40, "100 KB each"
    assert sizes(1, 1_000) == [40]


def test_spark_says_whose_job_it_is(spark: SparkSession, tmp_path: Path) -> None:
    classify(spark, tmp_path, [staged(0, headers=[("error", "timeout")])], run="r-7")
    assert spark.sparkContext.getLocalProperty("spark.job.description") == "redrive-classify orders r-7"
    assert "redrive-classify orders r-7" in spark.getTags()
    told = json.loads((tmp_path / "out" / file_schemas.APPLICATION_FILE).read_text())
    assert told == {"application": spark.sparkContext.applicationId}


def test_what_a_session_was_told_is_not_overruled(spark: SparkSession, tmp_path: Path) -> None:
    told = {"spark.sql.shuffle.partitions": "3", "spark.sql.adaptive.enabled": "true"}
    before = {name: spark.conf.get(name) for name in told}
    try:
        for name, value in told.items():
            spark.conf.set(name, value)
        classify(spark, tmp_path, [staged(0, headers=[("error", "timeout")])])
        assert {name: spark.conf.get(name) for name in told} == told, "the configuration's spark.conf wins over ours"
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or "")


def test_what_an_earlier_try_left_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    classify(spark, tmp_path, [staged(0, headers=[("error", "timeout")])])
    (tmp_path / "out" / file_schemas.MESSAGES_DIR / "batch-9.parquet").write_text("of another manifest")
    (tmp_path / "out" / "somebody.txt").write_text("else's")
    classify(spark, tmp_path, [staged(0, headers=[("error", "timeout")])])
    assert (tmp_path / "out" / "somebody.txt").exists()


def test_a_staging_file_that_is_missing_or_damaged_is_answered_without_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    for path in (damaged, tmp_path / "gone.parquet"):
        manifest = {"batches": [{"batch_id": 1, "uri": str(path), "rows": 1}], "output": str(tmp_path / "out")}
        assert run(manifest, spark)["messages"] == 0
        answer = tmp_path / "out" / file_schemas.MESSAGES_DIR / file_schemas.messages_file(1)
        assert pq.read_table(answer).num_rows == 0
        assert (tmp_path / "out" / file_schemas.CASES_FILE).exists()


def test_an_empty_batch_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    assert classify(spark, tmp_path, [])[1] == []


def every_text() -> list[str]:
    texts = [text for _, text in SAMPLES] + [text[:100_000] for text in HOSTILE.values()]
    texts += [
        "K\u212a \u017f 12é é12 ٣٤ 12٣ 日本 12",
        "😀 12 😀34",
        "x\r\ny\r\n 3",
        " \t\n 7\n",
        "\u00a0 5 \u00a0",
        "\x85 1\u2028 2",
    ]
    # The measured sets, where they are at hand: the more texts, the better.
    data = Path(os.environ.get("REDRIVE_DATA", "../shared/data"))
    if (data / "failures/dev.jsonl").exists():
        texts += [
            json.loads(line)["text"] for line in (data / "failures/dev.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    for file in sorted(data.glob("loghub/*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            texts += sorted({row["text"] for row in csv.DictReader(lines)})
    return texts


def test_python_and_spark_agree_on_every_text(spark: SparkSession, tmp_path: Path) -> None:
    texts = every_text()
    messages, groups = classify(
        spark,
        tmp_path,
        [staged(n, headers=[("error", text)], broker="rabbitmq") for n, text in enumerate(texts)],
        broker="rabbitmq",
    )
    template = {group["fingerprint"]: group["template"] for group in groups}
    for text, message, answer in zip(texts, messages, explain.explain({"text": text} for text in texts), strict=True):
        assert (message["cause"], message["rule"], message["fingerprint"], template[message["fingerprint"]]) == (
            answer["cause"],
            answer["rule"],
            answer["group"],
            answer["template"],
        ), text[:200]


def test_python_and_spark_agree_on_evidence(spark: SparkSession, tmp_path: Path) -> None:
    deep = b'{"error": ' * 3_000
    cases: list[dict[str, Any]] = [
        {"headers": [("Error", " x \n"), ("error", "y"), ("x-exception-message", "z")]},
        {"headers": [("ErrorCode", "429"), ("ErrorMessage", "slow")]},
        {"headers": [("ErrorCode", "AccessDenied"), ("error", "")]},
        {"headers": [("kafka_dlt-exception-message", "é".encode()), ("stacktrace", b"\xff\xfe")]},
        {"headers": [("route-evidence", "here"), ("error", "there")]},
        {"headers": [("route-evidence", b"\xff bytes")]},
        {"description": "said", "reason": "MaxDeliveryCountExceeded"},
        {"description": "Message could not be consumed after 10 delivery attempts.", "body": b'{"error": "disk"}'},
        {
            "description": "Message could not be consumed after 10 delivery attempts.\nmore",
            "body": b'{"error": "disk"}',
        },
        {"reason": "ValidationFailed", "description": "no sku"},
        {"reason": " Rejected "},
        {"reason": "OnlyReason"},
        {"body": b'{"errorType":"A","errorMessage":"b","stackTrace":["x"]}'},
        {"body": b'{"message":{"exceptions":[{"exceptionType":"A","message":"b","stackTrace":"c"}]}}'},
        {"body": b'{"error":{"code":5,"message":"  m "}} trailing'},
        {"body": b'{"error":"a","error":"b"}'},
        {"body": b'{"error":"\\ud800"}'},
        {"body": b'{"error": NaN}'},
        {"body": b'{"error":"\xff"}'},
        {"body": b'[{"error":"x"}]'},
        {"body": b'"error"'},
        {"body": b""},
        {"body": deep},
        {"body": b"[" * 200_000 + b'"error"'},
        {"body": b'{"error":"' + b"x" * 300_000 + b'"}'},
        {"headers": [("error", "x" * 200_000)]},
        {"headers": [("error", "\u00a0x\u2003")]},
    ]
    selectors = ["attribute:route-evidence", "body:$.why.text"]
    rows = [staged(n, **case) for n, case in enumerate(cases)]
    messages, _ = classify(spark, tmp_path, rows, evidence=selectors)
    assert len({message["fingerprint"] for message in messages}) > len(cases) // 2, "they are told apart"
    classify(spark, tmp_path, rows)


def test_a_poison_message_hurts_only_itself(spark: SparkSession, tmp_path: Path) -> None:
    bodies = [b"", b"\x00\xff" * 500_000, b"{" * 1_000_000, b'{"error":' * 100_000, b'"error":"' + b"x" * 1_000_000]
    rows = [staged(n, body=body, description="") for n, body in enumerate(bodies)]
    rows.append(staged(len(bodies), headers=[("error", "connection refused")]))
    messages, _ = classify(spark, tmp_path, rows)
    assert [m["cause"] for m in messages] == ["max_deliveries"] * len(bodies) + ["transient_network"]
