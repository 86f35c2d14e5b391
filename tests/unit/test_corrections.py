"""What people may correct of a message, and what is refused at once, with the name of what is to blame."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from redrive import body_schemas
from redrive.brokers import registry
from redrive.corrections import (
    Bounds,
    Correction,
    NewValue,
    Original,
    changed,
    objection,
    read_changes,
)
from redrive.errors import SettingsError
from redrive.message import Header
from redrive.settings import parse

HEADERS = [["tenant", "String", "red"], ["retries", "Number", "2"]]
JSON = Original('{"order": 1}', "application/json", is_binary=False, headers=json.dumps(HEADERS), size_bytes=12)


def of(broker: str, **more: Any) -> Bounds:
    kind = registry.kind(broker)
    return Bounds(kind, kind.capabilities.failure_headers, **more)


def problem(changes: dict[str, Any], bounds: Bounds | None = None, original: Original = JSON) -> str:
    return objection(Correction(None, json.dumps(changes)), original, bounds or Bounds()) or ""


def test_headers_change_by_name_and_the_rest_stays_as_it_is() -> None:
    was = (Header("a", "Number.int", "1"), Header("b", "Binary", b"\xff"), Header("c", "String", "x"))
    changes = read_changes('{"a": "2", "c": null, "n": "new", "typed": ["Number", "7"]}')
    assert changed(was, changes) == (
        Header("a", "Number.int", "2"),
        Header("b", "Binary", b"\xff"),
        Header("n", "String", "new"),
        Header("typed", "Number", "7"),
    )
    assert read_changes('{"c": ["Number", "3"]}') == {"c": NewValue("Number", "3")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "has to be an object"),
        ('{"a": 1}', "header 'a': its value is a text"),
        ('{"a": ["Number"]}', "header 'a'"),
        ('{"a": "1", "a": "2"}', "names 'a' twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_change_is_told(text: str, said: str) -> None:
    assert said in (objection(Correction(None, text), JSON, Bounds()) or "")


@pytest.mark.parametrize(
    ("last", "said"), [("h39999", "names 'h39999' twice"), ("other", "has to be an object")], ids=["twice", "once"]
)
def test_tens_of_thousands_of_names_keep_nobody_waiting(last: str, said: str) -> None:
    text = json.dumps({f"h{number}": "x" for number in range(40_000)})
    started = time.process_time()
    with pytest.raises(ValueError, match=said):
        read_changes(f'{text[:-1]}, "{last}": "y"}}')
    assert time.process_time() - started < 5  # a slow case takes a minute


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x-redrive-id": "7"}, "header 'x-redrive-id' is written by Redrive alone"),
        ({"X-Redrive-Edited": None}, "header 'X-Redrive-Edited' is written by Redrive alone"),
        ({"x-death": "[]"}, "header 'x-death' says why the message failed before"),
        ({"tenant": "[redacted]"}, "header 'tenant' holds [redacted]"),
        ({"tenant": "\ud800"}, "header 'tenant' holds half of a character"),
        ({"": "x"}, "has to have a name"),
    ],
)
def test_what_nobody_may_write_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    assert said in problem(changes, of("rabbitmq"))


@pytest.mark.parametrize(
    ("broker", "changes", "said"),
    [
        ("amazon_sqs", {f"h{n}": "x" for n in range(9)}, "11 headers, the last of them 'h8'; SQS takes at most 10"),
        ("amazon_sqs", {"a b": "x"}, "attribute 'a b' has a name that SQS does not allow"),
        ("amazon_sqs", {"tenant": ""}, "attribute tenant is empty"),
        ("amazon_sqs", {"retries": "many"}, "attribute retries is of type Number, and its value is no number"),
        ("amazon_sqs", {"new": ["Boolean", "true"]}, "attribute new: 'Boolean' is no type"),
        ("amazon_sqs", {"big": "x" * 1_100_000}, "bytes with headers; SQS takes at most 1,048,576"),
        ("google_pubsub", {"googclient": "x"}, "attribute 'googclient' begins with goog"),
        ("google_pubsub", {"tenant": "x" * 1025}, "attribute tenant is longer than 1024 bytes"),
        ("google_pubsub", {"new": ["Number", "1"]}, "attribute new can't be of type 'Number'"),
        ("apache_pulsar", {"new": ["int", "1"]}, "property 'new' can't be of type 'int'"),
        ("rabbitmq", {"n": ["int", "1.5"]}, "header 'n' is no int"),
        ("rabbitmq", {"n": ["int", "99999999999"]}, "header 'n' is no int"),
        ("rabbitmq", {"flag": ["bool", "yes"]}, "header 'flag' is of type bool"),
        ("rabbitmq", {"n": ["integer", "1"]}, "header 'n': 'integer' is no type"),
        ("rabbitmq", {"CC": "elsewhere"}, "header 'CC' is not sent on"),
        ("rabbitmq", {"n" * 256: "x"}, "AMQP allows at most 255"),
        ("rabbitmq", {"big": "x" * 140_000}, "header 'big' has 140,"),
        ("azure_service_bus", {"n": ["int", "1.5"]}, "property n: '1.5' is no int"),
        ("azure_service_bus", {"n": ["byte", "300"]}, "property n: '300' is no byte"),
        ("azure_service_bus", {"n": ["float", "1e39"]}, "property n: '1e39' is no float"),
        ("azure_service_bus", {"n": ["text", "1"]}, "property n: 'text' is no type"),
        ("azure_service_bus", {"big": "x" * 65_536}, "'big' the last; Service Bus takes at most 65536"),
    ],
)  # fmt: skip
def test_what_the_broker_can_not_carry_is_refused_at_once_by_name(
    broker: str, changes: dict[str, Any], said: str
) -> None:
    original = JSON
    if broker in ("google_pubsub", "apache_pulsar"):
        original = JSON._replace(headers='[["tenant", "String", "red"]]')
    assert said in problem(changes, of(broker), original)


@pytest.mark.parametrize(
    ("broker", "changes"),
    [
        ("amazon_sqs", {"tenant": "blue", "retries": "-3.5e2", "new": ["String.uuid", "x"]}),
        ("google_pubsub", {"tenant": "blue", "new": "x"}),
        ("apache_pulsar", {"tenant": "blue", "new": ""}),
        ("rabbitmq", {"n": ["int", "-5"], "t": ["table", '{"a": 1}'], "at": ["timestamp", "2026-01-01T00:00:00Z"]}),
        ("azure_service_bus", {"n": ["int", "-5"], "flag": ["boolean", "true"], "id": "x"}),
        ("memory", {"anything": ["of any type", "x"]}),
    ],
)
def test_what_the_broker_can_carry_is_taken(broker: str, changes: dict[str, Any]) -> None:
    original = JSON if broker == "amazon_sqs" else JSON._replace(headers='[["tenant", "String", "red"]]')
    assert problem(changes, of(broker), original) == ""


def test_a_body_with_its_headers_has_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"text": "x" * (256 * 1024)})
    assert "Service Bus takes at most 262,144" in (
        objection(Correction(body, None), JSON, of("azure_service_bus")) or ""
    )


# --- the route's schema ------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "required": ["order"],
    "properties": {"order": {"type": "integer", "minimum": 1}, "customer": {"$ref": "#/$defs/customer"}},
    "$defs": {"customer": {"type": "object", "required": ["name"]}},
}


def against(schema: Any, body: str) -> str:
    return objection(Correction(body, None), JSON, Bounds(schema=schema)) or ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"order": "secret"}', "$.order: type has to be \"integer\""),
        ('{"order": 0}', "$.order: minimum has to be 1"),
        ("{}", "'order' is a required property"),
        ('{"order": 1, "customer": {}}', "$.customer: 'name' is a required property"),
    ],
)  # fmt: skip
def test_a_body_is_checked_against_the_schema_of_its_route(body: str, said: str) -> None:
    assert said in against(SCHEMA, body)
    assert "secret" not in against(SCHEMA, body), "it may be masked"
    assert against(SCHEMA, '{"order": 7, "customer": {"name": "Kim"}}') == ""
    assert objection(Correction(None, '{"tenant": "blue"}'), JSON, Bounds(schema=SCHEMA)) is None, "the body stays"


def test_a_schema_in_a_file_is_read_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    assert "No such file" in against(path, "{}")
    path.write_text("[")
    assert "order.json" in against(path, "{}")
    path.write_text(json.dumps(SCHEMA))
    assert "'order' is a required property" in against(path, "{}")


def test_nothing_is_fetched_for_a_schema() -> None:
    asked = []

    class Anything(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Anything)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        for place in (f"http://127.0.0.1:{server.server_port}/schema.json", "file:///etc/hostname"):
            assert "body_schema can't be used" in against({"$ref": place}, "{}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == []


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#/nowhere"}]}], ids=["refers to itself", "refers to nothing"]
)
def test_a_schema_that_leads_nowhere_is_told(schema: dict[str, Any]) -> None:
    assert "body_schema can't be used" in against(schema, "{}")


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ({"pattern": r"^(\w+\s?)+$"}, "a" * 40 + "!"),
        ({"patternProperties": {r"^(\w+\s?)+$": True}, "additionalProperties": False}, {"a" * 40 + "!": 1}),
        ({"uniqueItems": True}, [{"i": i} for i in range(20_000)] + [{"i": 17}]),
        ({"uniqueItems": True}, [i * ((1 << 61) - 1) for i in range(20_000)] + [0]),
        ({"items": {"enum": [{"i": i} for i in range(3_000)]}}, [{"i": 2_999}] * 20_000 + [{"i": -1}]),
    ],
    ids=["pattern", "names", "items", "numbers of one hash", "one of many"],
)
def test_a_small_body_occupies_nobody(rule: dict[str, Any], value: Any) -> None:
    started = time.process_time()
    said = against({"properties": {"n": rule}}, json.dumps({"n": value}))
    assert "corrected_body is not what" in said
    assert time.process_time() - started < 5  # it was minutes, or for ever


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_parts_that_a_schema_refers_to_are_checked_in_the_same_way(draft: str) -> None:
    words = {"type": "string", "pattern": r"^(\w+\s?)+$"}
    schema = {"$schema": draft, "properties": {"n": words, "in": {"$ref": "#"}}}
    started = time.process_time()
    assert "$.in.n: pattern" in against(schema, json.dumps({"in": {"n": "a" * 40 + "!"}}))
    assert "type" in against(schema, '{"in": {"in": {"n": 1}}}')
    assert time.process_time() - started < 5


def test_a_schema_takes_what_jsonschema_takes() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"pattern": "^[A-Z]{2}-[0-9]+$"}, "tags": {"uniqueItems": True}},
        "patternProperties": {"^x-": {"type": "string"}, "ü$": False},
        "additionalProperties": False,
    }
    for body in (
        {"id": "AB-17", "tags": [1, True, "1", [1], {"a": 1}, 0, False, None, 1.5, [True]], "x-a": "b"},
        {"id": "ab-17"}, {"id": 17}, {"id": "\ud800"}, {"tags": [1, 1.0]}, {"tags": [True, True]}, {"tags": {}},
        {"tags": [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]}, {"x-a": 1}, {"fü": "b"}, {"x-ü": "b"}, {"n": 1}, {},
    ):  # fmt: skip
        for others in (False, True, {"type": "integer"}):
            rules = {**schema, "additionalProperties": others}
            taken = against(rules, json.dumps(body)) == ""
            assert taken is jsonschema.Draft202012Validator(rules).is_valid(body), (body, others)
    assert '$.id: pattern has to be "^[A-Z]{2}-[0-9]+$"' in against(schema, '{"id": "ab-17"}')
    assert "('n' was unexpected)" in against(schema, '{"n": 1}')


@pytest.mark.parametrize(
    ("expression", "takes", "refuses"),
    [
        (r"^\p{L}+$", "é", "1"),
        (r"^\u00e9$", "é", "e"),
        (r"^[\u0410-\u044f]+$", "Жя", "z"),
        (r"^\ud83d\ude00$", "\U0001f600", "x"),
        (r"^\\u00e9$", r"\u00e9", "é"),
    ],
)
def test_an_expression_is_read_as_json_schemas_write_it(expression: str, takes: str, refuses: str) -> None:
    names = {"patternProperties": {expression: True}, "additionalProperties": False}
    assert body_schemas.problem({"pattern": expression}) is body_schemas.problem(names) is None
    assert against({"pattern": expression}, json.dumps(takes)) == against(names, json.dumps({takes: 1})) == ""
    assert against({"pattern": expression}, json.dumps(refuses))
    assert against(names, json.dumps({refuses: 1}))


def test_a_value_of_many_is_known_whatever_writes_it() -> None:
    schema = {"enum": [1, "1", None, True, {"a": 1, "b": [2]}, 0.5]}
    bodies: list[Any] = [1, 1.0, "1", None, True, False, {"b": [2.0], "a": 1}, {"a": 1}, 0.5, 0, [], "None"]
    for body in bodies:
        taken = against(schema, json.dumps(body)) == ""
        assert taken is jsonschema.Draft202012Validator(schema).is_valid(body), body
    assert against({"properties": {"n": {"enum": ["a"]}}}, '{"n": "secret"}').endswith('$.n: enum has to be ["a"]')


def test_what_can_not_be_checked_in_a_bounded_time_is_refused() -> None:
    for schema, why in (
        ({"properties": {"n": {"pattern": "^(?=a)"}}}, "has the expression '^(?=a)', which RE2 does not take"),
        ({"$defs": {"n": {"patternProperties": {r"(a)\1": {}}}}}, "which RE2 does not take"),
        ({"unevaluatedProperties": False}, "has unevaluatedProperties: no time bounds it; write additionalProperties"),
        ({"properties": {"n": {"contains": {}, "unevaluatedItems": False}}}, "has unevaluatedItems: no time bounds"),
        ({"properties": {"default": {"pattern": "(?!x)"}}}, "which RE2 does not take"),
        ({"$defs": {"enum": {"unevaluatedItems": False}}}, "no time bounds it"),
        ({"patternProperties": {"const": {"pattern": "(?!x)"}}}, "which RE2 does not take"),
        ({"properties": {"n": {"pattern": "^.{1,2000}$"}}}, "say a length by minLength and maxLength"),
    ):
        assert why in (body_schemas.problem(schema) or "")
    field = {"properties": {"unevaluatedItems": {"type": "string"}, "pattern": {"type": "integer"}}}
    assert body_schemas.problem(field) is None, "a field so called is no keyword"
    assert "no time bounds it" in against({"default": {"unevaluatedItems": False}, "$ref": "#/default"}, "[1]")
    assert body_schemas.problem({"properties": {"pattern": {"enum": [{"pattern": "(?=a)"}]}}}) is None, "data"
    large = json.dumps({"order": "x" * body_schemas.MAX_BODY})
    assert "too many to hold it against body_schema" in against(SCHEMA, large)


def test_a_schema_that_is_none_is_refused_with_the_file() -> None:
    text = """
    routes:
      orders: {{broker: memory, sources: [{{queue: dead}}], body_schema: {given}}}
    """
    assert "no JSON Schema" in (body_schemas.problem({"type": "objekt"}) or "")
    for given in ("{type: objekt}", "https://example.org/order.json", '" "'):
        with pytest.raises(SettingsError, match=r"routes\.orders\.body_schema"):
            parse(text.format(given=given), env={}, root=Path("/r"))
    settings = parse(text.format(given="schemas/order.json"), env={}, root=Path("/r"))
    assert settings.routes["orders"].body_schema == "/r/schemas/order.json"
