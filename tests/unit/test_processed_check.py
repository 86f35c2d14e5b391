"""The processed check: parameters, batches, and a failure that is never an answer."""

import base64
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

import redrive
from redrive.connections import processed_check
from redrive.connections.processed_check import Checker
from redrive.errors import CheckFailed, KeysRefused
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


class Typed:
    """A column of numbers."""

    def __init__(self) -> None:
        self.questions = 0

    def ask(self, keys: Sequence[str], seconds: float) -> set[str]:
        self.questions += 1
        if not all(key.isdigit() for key in keys):
            raise sa.exc.DataError("select", None, ValueError("invalid input syntax for type bigint"))
        return {key for key in keys if int(key) % 2}

    def close(self) -> None: ...


def test_a_key_that_can_not_be_asked_about_keeps_no_answer_from_others() -> None:
    checker = Checker(a_check())
    checker._records = records = Typed()
    keys = [str(number) for number in range(400)]
    assert checker.processed([*keys, "x-1", *keys, "x-2"]) == {key for key in keys if int(key) % 2}
    assert checker.refused == {"x-1", "x-2"}
    assert records.questions < 50
    assert checker.processed(keys) == {key for key in keys if int(key) % 2}
    assert checker.refused == set()
    checker.close()


@pytest.mark.parametrize("odd", [1, processed_check.MOST_REFUSED + 1, 500])
def test_where_all_or_many_can_not_be_asked_about_it_is_the_check_that_is_wrong(odd: int) -> None:
    checker = Checker(a_check())
    checker._records = records = Typed()
    with pytest.raises(KeysRefused, match="invalid input syntax"):
        checker.processed([*(f"x-{number}" for number in range(odd)), *("7" for _ in range(odd - 1))])
    assert records.questions < 100
    checker.close()


def test_a_key_is_a_value_and_never_sql(shop: sqlite3.Connection) -> None:
    shop.execute("insert into processed values ('m-1')")
    shop.commit()
    checker = Checker(a_check())
    assert checker.processed(["x') or 1=1 --", "'; drop table processed; --"]) == set()
    assert checker.processed(["m-1"]) == {"m-1"}
    checker.close()


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (
            "select message_id from processed where message_id in :keys or 1 = 1",
            "has 1 of 2 keys that it was not asked",
        ),
        ("select upper(message_id) from processed where message_id in :keys", "has 1 of 1 keys that it was not asked"),
        ("select message_id || ' ' from processed where message_id in :keys", "has 1 of 1 keys that it was not asked"),
        ("select rowid from processed where message_id in :keys", "has 1 of 1 keys that it was not asked"),
        ("select null from processed where message_id in :keys", "rows without a key"),
    ],
)
def test_an_answer_about_something_else_is_a_failure(shop: sqlite3.Connection, query: str, why: str) -> None:
    shop.executemany("insert into processed values (?)", [("m-1",), ("kim@example.org",)])
    shop.commit()
    checker = Checker(a_check(query))
    with pytest.raises(CheckFailed, match=f"orders_db: .*{why}") as failed:
        checker.processed(["m-1", "None"])
    assert "kim@" not in "".join(traceback.format_exception(failed.value))
    checker.close()


def test_a_key_that_the_database_has_as_a_number_is_the_same_key(shop: sqlite3.Connection) -> None:
    shop.execute("create table numbered (id integer)")
    shop.execute("insert into numbered values (17)")
    shop.commit()
    checker = Checker(a_check("select id from numbered where cast(id as text) in :keys"))
    assert checker.processed(["17", "18"]) == {"17"}
    checker.close()


def test_no_key_is_in_the_trace_of_a_check_that_fails(shop: sqlite3.Connection) -> None:
    checker = Checker(a_check("select id from nowhere where id in :keys"))
    keys = [f"{name}@example.org" for name in ("kim", "lee")]
    with pytest.raises(CheckFailed, match="nowhere") as failed:
        checker.processed(keys)
    assert "kim@" not in "".join(traceback.format_exception(failed.value))
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


def test_a_missing_driver_is_a_failure_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)  # as if it were not installed
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "mysql://reader:secret@db.example:3306/shop")
    checker = Checker(a_check())
    with pytest.raises(CheckFailed, match=r"orders_db: its driver .* 'pymysql' \(pip install pymysql\)") as failure:
        checker.processed(["m-1"])
    assert "secret" not in str(failure.value)
    checker.close()


def test_the_missing_driver_of_postgresql_is_an_extra_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "postgres://reader:secret@db.example:5432/shop")
    checker = Checker(a_check())
    with pytest.raises(CheckFailed, match=r"'psycopg' \(pip install 'redrive\[postgres\]'\)"):
        checker.processed(["m-1"])
    checker.close()


def test_a_missing_connection_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "{not json")
    checker = Checker(a_check())
    with pytest.raises(CheckFailed, match="orders_db"):
        checker.processed(["m-1"])
    checker.close()


def test_an_answer_that_takes_too_long_is_a_failure(shop: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()  # the answer comes after the test
    monkeypatch.setattr(Checker, "_run", lambda self, keys: over.wait(60))
    checker = Checker(a_check().model_copy(update={"timeout": timedelta(seconds=0.1)}))
    with pytest.raises(CheckFailed, match="no answer within"):
        checker.processed(["m-1"])
    over.set()
    checker.close()


def test_no_program_waits_at_its_end_for_a_database_that_never_answers(tmp_path: Path) -> None:
    """A program of its own: a thread that the interpreter joins would hold it."""
    endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select x from n where x in :keys"
    code = (
        "from datetime import timedelta; from redrive.connections.processed_check import Checker;"
        "from redrive.settings import ProcessedCheck;"
        f"check = ProcessedCheck(connection='orders_db', query={endless!r}, key='key', timeout=timedelta(seconds=0.2));"
        "Checker(check).processed(['-1'])"
    )
    env = os.environ | {
        "AIRFLOW_CONN_ORDERS_DB": json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "orders.db")}),
        "PYTHONPATH": str(Path(redrive.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 1
    assert "no answer within 0:00:00.2" in done.stderr


def test_a_question_whose_time_was_over_before_it_began_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, over = list[str](), threading.Event()

    def run(_: Checker, keys: Sequence[str]) -> set[str]:
        asked.extend(keys)
        over.wait(60)
        return set()

    monkeypatch.setattr(Checker, "_run", run)
    checker = Checker(a_check().model_copy(update={"timeout": timedelta(seconds=0.1)}))
    for key in ("m-1", "m-2"):
        with pytest.raises(CheckFailed, match="no answer within"):
            checker.processed([key])
    over.set()
    assert checker.processed(["m-3"]) == set()
    assert asked == ["m-1", "m-3"]
    checker.close()


# --- an HTTP endpoint ------------------------------------------------------------------------------------------


class Service:
    """A consumer's service on loopback; ``answer`` says how it behaves."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.done: set[str] = set()
        self.answer: Callable[[BaseHTTPRequestHandler, list[str]], None] = self.truthfully
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append(question)
                service.paths.append(self.path)
                service.headers.append(dict(self.headers))
                service.answer(self, question.get("keys", question))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def truthfully(self, request: BaseHTTPRequestHandler, keys: list[str]) -> None:
        say(request, json.dumps({"processed": [key for key in keys if key in self.done]}))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def say(request: BaseHTTPRequestHandler, text: str, status: int = 200, **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(text.encode())))
    request.end_headers()
    request.wfile.write(text.encode())


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.stop()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, service: Service) -> Callable[..., None]:
    """Define the connection ``orders_api`` to the service, with these fields changed."""

    def define(**fields: object) -> None:
        known = {"conn_type": "http", "host": "127.0.0.1", "port": service.port} | fields
        monkeypatch.setenv("AIRFLOW_CONN_ORDERS_API", json.dumps(known))

    define()
    return define


def an_endpoint(**more: object) -> ProcessedCheck:
    return ProcessedCheck.model_validate(
        {"connection": "orders_api", "path": "/v1/processed", "key": "attribute:message_id", **more}
    )


def ask(*keys: str, **more: object) -> set[str]:
    checker = Checker(an_endpoint(**more))
    try:
        return checker.processed(keys)
    finally:
        checker.close()


def test_an_endpoint_is_asked_in_batches_and_finds_what_was_processed(
    service: Service, connect: Callable[..., None]
) -> None:
    keys = [f"m-{number}" for number in range(2 * processed_check.BATCH + 1)]
    service.done = set(keys[::3])
    assert ask(*keys) == service.done
    assert [len(question["keys"]) for question in service.asked] == [processed_check.BATCH, processed_check.BATCH, 1]
    assert set(service.paths) == {"/v1/processed"}
    assert all(list(question) == ["keys"] for question in service.asked)


def test_an_endpoint_that_closes_each_connection_is_asked_again_on_a_new_one(
    service: Service, connect: Callable[..., None]
) -> None:
    def once(request: BaseHTTPRequestHandler, keys: list[str]) -> None:
        say(request, json.dumps({"processed": keys[:1]}), Connection="close")

    service.answer = once
    assert len(ask(*[f"m-{number}" for number in range(2 * processed_check.BATCH)])) == 2


def test_keys_of_any_kind_arrive_as_they_are(service: Service, connect: Callable[..., None]) -> None:
    strange = ['"}]', "größe 漢字", "a\nb", "🙂"]
    service.done = set(strange)
    assert ask(*strange) == set(strange)


def test_credentials_and_headers_come_from_the_connection(service: Service, connect: Callable[..., None]) -> None:
    connect(login="redrive", password="geheim", extra={"X-Shop": "7", "timeout": 3, "verify": True})
    ask("m-1")
    (headers,) = service.headers
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"redrive:geheim").decode()
    assert headers["X-Shop"] == "7"
    assert headers["Content-Type"] == "application/json"
    assert not {"timeout", "verify"} & set(headers), "options of Airflow's hook are no headers"
    connect(extra={"Authorization": "Bearer token"})
    ask("m-1")
    assert service.headers[-1]["Authorization"] == "Bearer token"


def test_a_host_may_be_a_whole_address_with_a_path(service: Service, connect: Callable[..., None]) -> None:
    connect(host=f"http://127.0.0.1:{service.port}/shop/", port=None)
    ask("m-1")
    assert service.paths == ["/shop/v1/processed"]


# --- records that are asked, and that answer, in their own words --------------------------------------------------

#: Elasticsearch and OpenSearch.
SEARCH: dict[str, Any] = {
    "path": "/orders/_mget?_source=false",
    "request": {"ids": "{keys}"},
    "answer": {"items": "docs", "key": "_id", "when": {"found": True}},
}
#: A key-value table behind an API: DynamoDB's words.
TABLE: dict[str, Any] = {
    "path": "/",
    "request": {"RequestItems": {"processed": {"Keys": [{"pk": {"S": "{key}"}}], "ConsistentRead": True}}},
    "answer": {"items": "Responses.processed", "key": "pk.S", "empty": ["UnprocessedKeys"]},
    "batch": 100,
}


def search(*found: str, **odd: dict[str, Any]) -> Callable[[BaseHTTPRequestHandler, Any], None]:
    """A search index that has ``found``; of ``odd`` keys it answers that."""

    def answer(request: BaseHTTPRequestHandler, question: Any) -> None:
        docs = [{"_id": key, **odd.get(key, {"found": key in found})} for key in question["ids"]]
        say(request, json.dumps({"docs": docs}))

    return answer


def test_a_search_index_is_asked_for_many_documents_at_once(service: Service, connect: Callable[..., None]) -> None:
    service.answer = search("m-1", "m-3")
    assert ask("m-1", "m-2", "m-3", **SEARCH) == {"m-1", "m-3"}
    assert service.asked == [{"ids": ["m-1", "m-2", "m-3"]}]
    assert service.paths == ["/orders/_mget?_source=false"]


@pytest.mark.parametrize(
    "odd",
    [{"error": {"type": "index_not_found_exception"}}, {"found": None}, {"found": "true"}],
    ids=["an error", "null", "another type"],
)
def test_a_document_of_which_the_index_does_not_say_whether_it_is_there_is_a_failure(
    service: Service, connect: Callable[..., None], odd: dict[str, Any]
) -> None:
    service.answer = search("m-1", **{"m-2": odd})
    with pytest.raises(CheckFailed, match="the answer"):
        ask("m-1", "m-2", **SEARCH)


def test_an_index_that_does_not_answer_for_every_key_is_a_failure(
    service: Service, connect: Callable[..., None]
) -> None:
    service.answer = lambda request, _: say(request, '{"docs": [{"_id": "m-1", "found": false}]}')
    with pytest.raises(CheckFailed, match="1 of 2 keys"):
        ask("m-1", "m-2", **SEARCH)


def test_a_table_is_asked_key_by_key_in_one_request_and_in_its_batches(
    service: Service, connect: Callable[..., None]
) -> None:
    def table(request: BaseHTTPRequestHandler, question: Any) -> None:
        keys = [one["pk"]["S"] for one in question["RequestItems"]["processed"]["Keys"]]
        rows = [{"pk": {"S": key}, "at": {"N": "7"}} for key in keys if key.endswith("0")]
        say(request, json.dumps({"Responses": {"processed": rows}, "UnprocessedKeys": {}}))

    service.answer = table
    assert len(ask(*(f"m-{n}" for n in range(250)), **TABLE)) == 25
    assert [len(one["RequestItems"]["processed"]["Keys"]) for one in service.asked] == [100, 100, 50]


def test_what_a_table_did_not_come_to_is_a_failure(service: Service, connect: Callable[..., None]) -> None:
    told = {"Responses": {"processed": []}, "UnprocessedKeys": {"processed": {"Keys": [{"pk": {"S": "m-1"}}]}}}
    service.answer = lambda request, _: say(request, json.dumps(told))
    with pytest.raises(CheckFailed, match="UnprocessedKeys"):
        ask("m-1", **TABLE)


@pytest.mark.parametrize(
    "answer",
    [{}, {"Responses": {}}, {"Responses": {"processed": {}}}, {"Responses": {"processed": [{"pk": "m-1"}]}}, []],
    ids=["nothing", "no list", "another kind", "no key", "a list"],
)
def test_an_answer_in_other_words_than_the_route_says_is_a_failure(
    service: Service, connect: Callable[..., None], answer: object
) -> None:
    service.answer = lambda request, _: say(request, json.dumps(answer))
    with pytest.raises(CheckFailed, match="the answer"):
        ask("m-1", **TABLE)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"request": {"ids": "keys"}}, "exactly once"),
        ({"request": {"ids": "{keys}", "more": ["{key}"]}}, "exactly once"),
        ({"request": {"id": "{key}"}}, "list"),
        ({"batch": 0}, "greater than or equal"),
        ({"batch": 501}, "less than or equal"),
    ],
    ids=["no key", "two", "no list", "none", "too many"],
)
def test_a_request_that_asks_for_no_keys_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        an_endpoint(**{**SEARCH, **wrong})


ANSWERS: dict[str, str] = {
    "nothing": "",
    "no json": "<html>fine</html>",
    "a list": '["m-1"]',
    "another key": '{"done": ["m-1"]}',
    "null": '{"processed": null}',
    "an object": '{"processed": {"m-1": true}}',
    "numbers": '{"processed": [1]}',
    "a key that was not asked": '{"processed": ["m-1", "m-2"]}',
    "nesting": "[" * 100_000,
}


@pytest.mark.parametrize("text", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_cannot_be_understood_is_a_failure(
    service: Service, connect: Callable[..., None], text: str
) -> None:
    service.answer = lambda request, _: say(request, text)
    with pytest.raises(CheckFailed, match="orders_api: the answer"):
        ask("m-1")


@pytest.mark.parametrize("status", [204, 206, 401, 404, 429, 500, 503])
def test_only_200_is_an_answer(service: Service, connect: Callable[..., None], status: int) -> None:
    service.answer = lambda request, _: say(request, "" if status == 204 else '{"processed": ["m-1"]}', status)
    with pytest.raises(CheckFailed, match=f"it answered {status}"):
        ask("m-1")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_takes_no_credentials_along(
    service: Service, connect: Callable[..., None], status: int
) -> None:
    elsewhere = Service()
    service.answer = lambda request, _: say(
        request, "", status, Location=f"http://127.0.0.1:{elsewhere.port}/v1/processed"
    )
    connect(login="redrive", password="geheim")
    with pytest.raises(CheckFailed, match="redirect"):
        ask("m-1")
    assert elsewhere.asked == []
    elsewhere.stop()


def test_a_service_that_is_silent_or_drips_is_a_failure_in_good_time(
    service: Service, connect: Callable[..., None]
) -> None:
    over = threading.Event()

    def silent(_request: BaseHTTPRequestHandler, _keys: list[str]) -> None:
        over.wait(30)

    def drip(request: BaseHTTPRequestHandler, _keys: list[str]) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        while not over.wait(0.05):
            request.wfile.write(b" ")

    for behaviour in (silent, drip):
        service.answer = behaviour
        started = time.monotonic()
        with pytest.raises(CheckFailed, match="orders_api"):
            ask("m-1", timeout="300ms")
        assert time.monotonic() - started < 20
    over.set()


def test_an_answer_that_ends_too_early_is_a_failure(service: Service, connect: Callable[..., None]) -> None:
    def break_off(request: BaseHTTPRequestHandler, _keys: list[str]) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b'{"processed": []}')
        request.close_connection = True

    service.answer = break_off
    with pytest.raises(CheckFailed, match="ended too early"):
        ask("m-1")


def test_an_endless_answer_is_a_failure(
    service: Service, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processed_check, "MAX_ANSWER_BYTES", 1000)
    service.answer = lambda request, _: say(request, " " * 100_000)
    with pytest.raises(CheckFailed, match="longer than 1000 bytes"):
        ask("m-1")


def test_a_service_that_is_not_there_is_a_failure(service: Service, connect: Callable[..., None]) -> None:
    service.stop()
    with pytest.raises(CheckFailed, match="orders_api"):
        ask("m-1")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"conn_type": "sqlite"}, "needs http"),
        ({"host": "ftp://example.org"}, "no address"),
        ({"host": ""}, "no address"),
        ({"host": "http://user:geheim@127.0.0.1"}, "no address"),
        ({"extra": {"X-Bad": "a\r\nHost: evil"}}, "no header"),
    ],
)
def test_a_connection_that_is_no_endpoint_is_told_and_its_secrets_are_not(
    connect: Callable[..., None], fields: dict[str, object], problem: str
) -> None:
    connect(**fields)
    with pytest.raises(CheckFailed, match=problem) as caught:
        ask("m-1")
    assert "geheim" not in str(caught.value)


def test_a_check_asks_in_one_way() -> None:
    for both_or_none in ({"query": QUERY}, {"path": None}):
        with pytest.raises(ValidationError):
            an_endpoint(**both_or_none)
    with pytest.raises(ValidationError):
        an_endpoint(path="https://elsewhere.example/processed")
