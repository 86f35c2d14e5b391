"""Classification without Spark, for tests of everything around it: same rules, same files, one process.

Message by message and as plainly as it can be said; the Spark job's own tests hold the job to the same answers.
"""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from redrive import selectors
from redrive.classification import explain, failure_text, grouping, route_rules
from redrive.classification.cases import LEASE_HINT, LEASE_SHARE, MAYBE_LEASE_HINT, ROUTE_HINT, Case, RouteRule
from redrive.classification.causes import Cause
from redrive.classification.templates import KnownGroup
from redrive.message import ROW_BITS, DeadLetter, message_id_of
from redrive.staging import file_schemas
from redrive.staging.batch_files import Staging


def classify(manifest_uri: str) -> None:
    """Do what ``python -m redrive.spark.job --manifest`` does, for a local manifest."""
    manifest = json.loads(Path(manifest_uri).read_text())
    output = Path(manifest["output"])
    staged = [row for batch in manifest["batches"] for row in _rows(batch["uri"])]
    evidence = [selectors.parse(text) for text in manifest["evidence"]]
    rules = [RouteRule(rule["match"], Cause(rule["cause"])) for rule in manifest["rules"]]
    cases: dict[Case, int] = {}
    case_of: list[Case | None] = []
    texts: dict[Case, str] = {}
    for row, letter in staged:
        if row["kind"] == "delay":
            case_of.append(None)
            continue
        said = failure_text.pick(
            letter.headers, letter.body, description=letter.description, reason=letter.reason, evidence=evidence
        )
        case = Case(grouping.mask(said.text), said.reason, _hint(manifest, rules, row, letter, said))
        cases[case] = cases.get(case, 0) + 1
        texts.setdefault(case, said.text)
        case_of.append(case)
    known = [KnownGroup(**group) for group in manifest["known_groups"]]
    judged = explain.explain_cases(cases, rules, known)
    keys = {case: number for number, case in enumerate(cases)}
    messages = [
        {
            "message_id": message_id_of(row["batch_id"], row["row"]),
            "case_key": keys[case] if case is not None else None,
            "message_key": _key(manifest["message_key"], letter),
            "order_key": _key(manifest["order_key"], letter),
            "fields": _fields(manifest.get("search", []), letter),
        }
        for (row, letter), case in zip(staged, case_of, strict=True)
    ]
    answers = []
    shown: set[str] = set()
    for case, key in keys.items():
        explanation = judged[case]
        answers.append(
            {
                "case_key": key,
                "messages": cases[case],
                "cause": explanation.cause.value,
                "rule": explanation.rule,
                "confidence": explanation.confidence,
                "fingerprint": explanation.fingerprint,
                "template": explanation.template,
                "example": None if explanation.fingerprint in shown else texts[case],
                "telling": explanation.telling or None,
            }
        )
        shown.add(explanation.fingerprint)
    for batch in manifest["batches"]:
        own = [one for one in messages if one["message_id"] >> ROW_BITS == batch["batch_id"]]
        path = output / file_schemas.MESSAGES_DIR / file_schemas.messages_file(batch["batch_id"])
        _write(path, own, file_schemas.MESSAGES)
    _write(output / file_schemas.CASES_FILE, answers, file_schemas.CASES)


def _rows(uri: str) -> list[tuple[dict[str, Any], DeadLetter]]:
    folder, _, name = uri.rpartition("/")
    table = pq.read_table(uri)
    letters = chain.from_iterable(Staging(folder).letters(name, range(table.num_rows)))
    return list(zip(table.drop_columns(["body", "headers"]).to_pylist(), letters, strict=True))


def _hint(
    manifest: dict[str, Any],
    rules: list[RouteRule],
    row: dict[str, Any],
    letter: DeadLetter,
    said: failure_text.Evidence,
) -> str:
    """What a route's own rule or the time per delivery points to."""
    (number,) = route_rules.first_matches([said.text], [rule.match for rule in rules])
    if number:
        return f"{ROUTE_HINT}{number}"
    lease = manifest["sources"].get(row["source"], {}).get("lease_seconds")
    if said.text or said.reason or not lease:
        return ""
    start = letter.first_received_at or letter.enqueued_at
    end = letter.dead_lettered_at or row["received_at"].timestamp() * 1e6
    if start is None or (end - start) / 1e6 / max(letter.deliveries or 1, 1) < lease * LEASE_SHARE:
        return ""
    return MAYBE_LEASE_HINT if letter.first_received_at is None else LEASE_HINT


def _fields(search: list[str], letter: DeadLetter) -> str | None:
    found = {selector: value for selector in search if (value := _key(selector, letter))}
    return json.dumps(found, ensure_ascii=False) if found else None


def _key(selector: str | None, letter: DeadLetter) -> str | None:
    if selector is None:
        return None
    return selectors.parse(selector).evaluate(
        letter.headers, letter.body, letter.ordering_key, letter.broker_message_id
    )


def _write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
