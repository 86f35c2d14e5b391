"""The processed check: parameters, batches, and a failure that is never an answer."""

import json
import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from redrive import processed_check
from redrive.errors import CheckFailed
from redrive.processed_check import Checker
from redrive.settings import ProcessedCheck

QUERY = "select message_id from processed where message_id in :keys"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "orders.db"
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    connection = sqlite3.connect(path)
    connection.execute("create table processed (message_id text primary key)")
    yield connection
    connection.close()


def a_check(query: str = QUERY, **more: object) -> ProcessedCheck:
    return ProcessedCheck.model_validate(
        {"connection": "orders_db", "query": query, "key": "attribute:message_id", **more}
    )


def test_it_finds_what_was_processed_over_many_batches(shop: sqlite3.Connection) -> None:
    done = {f"m-{number}" for number in range(0, 3 * processed_check.BATCH, 2)}
    shop.executemany("insert into processed values (?)", [(one,) for one in done])
    shop.commit()
    checker = Checker(a_check())
    assert checker.processed(f"m-{number}" for number in range(3 * processed_check.BATCH)) == done
    checker.close()


def test_a_key_is_a_value_and_never_sql(shop: sqlite3.Connection) -> None:
    shop.execute("insert into processed values ('m-1')")
    shop.commit()
    checker = Checker(a_check())
    assert checker.processed(["x') or 1=1 --", "'; drop table processed; --"]) == set()
    assert checker.processed(["m-1"]) == {"m-1"}
    checker.close()


def test_no_keys_ask_nothing(shop: sqlite3.Connection) -> None:
    checker = Checker(a_check("select nonsense from nowhere where x in :keys"))
    assert checker.processed([]) == set()
    checker.close()


def test_a_failing_query_is_a_failure_that_names_the_connection(shop: sqlite3.Connection) -> None:
    checker = Checker(a_check("select nonsense from nowhere where x in :keys"))
    with pytest.raises(CheckFailed, match="orders_db: no such table"):
        checker.processed(["m-1"])
    checker.close()


def test_a_missing_connection_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "{not json")
    checker = Checker(a_check())
    with pytest.raises(CheckFailed, match="orders_db"):
        checker.processed(["m-1"])
    checker.close()


def test_an_answer_that_takes_too_long_is_a_failure(shop: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checker, "_run", lambda self, keys: time.sleep(2))
    checker = Checker(a_check().model_copy(update={"timeout": timedelta(seconds=0.1)}))
    with pytest.raises(CheckFailed, match="no answer within"):
        checker.processed(["m-1"])
    checker.close()
