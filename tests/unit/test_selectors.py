"""Selectors find the value that the configuration points at, and survive whatever a message holds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import SelectorError
from redrive.message import Header
from redrive.selectors import MAX_BODY_BYTES, Kind, Selector, parse, parse_path


def found(selector: str, body: bytes = b"", **rest: object) -> str | None:
    headers = rest.pop("headers", ())
    return parse(selector).evaluate(headers, body, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("attribute:error", Selector(Kind.ATTRIBUTE, name="error")),
        ("attribute:a:b c", Selector(Kind.ATTRIBUTE, name="a:b c")),
        ("body:$.a.b[0].c", Selector(Kind.BODY, path=("a", "b", 0, "c"))),
        ("body:$['an odd. name'][12]", Selector(Kind.BODY, path=("an odd. name", 12))),
        ("key", Selector(Kind.KEY)),
        ("message_group", Selector(Kind.MESSAGE_GROUP)),
        ("broker_id", Selector(Kind.BROKER_ID)),
    ],
)
def test_a_selector_is_parsed_and_written_as_it_was(text: str, selector: Selector) -> None:
    assert parse(text) == selector
    assert str(selector) == text


def test_the_path_is_written_as_spark_reads_it() -> None:
    assert parse("body:$.a[0]['b c']").json_path == "$.a[0]['b c']"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "error",
        "attribute",
        "attribute:",
        "attributes:x",
        "key:x",
        "body:",
        "body:$",
        "body:a.b",
        "body:$..a",
        "body:$.a[*]",
        "body:$.*",
        "body:$.a[-1]",
        "body:$.a[0",
        "body:$.a b",
        "body:$['']",
        "body:$" + ".a" * 33,
    ],
)
def test_what_is_not_a_selector_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        parse(text)


def test_a_refusal_says_what_to_write() -> None:
    with pytest.raises(SelectorError, match=r"attribute:NAME, body:\$\.path, key, message_group or broker_id"):
        parse("header:error")


def test_an_attribute_is_found_by_its_exact_name_and_the_last_one_counts() -> None:
    headers = (
        Header("error", "String", "old"),
        Header("error", "String", "new"),
        Header("Error", "String", "x"),
    )
    assert found("attribute:error", headers=headers) == "new"
    assert found("attribute:missing", headers=headers) is None


def test_undecodable_bytes_in_an_attribute_are_replaced() -> None:
    assert found("attribute:e", headers=(Header("e", "Binary", b"caf\xe9"),)) == "caf\ufffd"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.text", "ö"),
        ("$.yes", "true"),
        ("$.big", "12345678901234567890123"),
        ("$.fraction", "1.50"),
        ("$.nothing", None),
        ("$.empty", None),
        ("$.list[1].x", "y"),
        ("$.list[2]", None),
        ("$.list.x", None),
        ("$.text.x", None),
        ("$['a.b']", "dotted"),
        ("$.list", '[1,{"x":"y"}]'),
    ],
)
def test_a_place_in_a_json_body(path: str, value: str | None) -> None:
    body = (
        '{"text": "ö", "yes": true, "big": 12345678901234567890123, "fraction": 1.50, "nothing": null,'
        ' "empty": "", "list": [1, {"x": "y"}], "a.b": "dotted"}'
    )
    assert found(f"body:{path}", body.encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not json", id="text"),
        pytest.param(b"\xff\xfe\x00", id="binary"),
        pytest.param(b'{"a": NaN}', id="not a number"),
        pytest.param(b'{"a": "x"', id="cut off"),
        pytest.param(b'{"a":' * 100_000, id="nested objects"),
        pytest.param(b"[" * 1_000_000, id="nested lists"),
        pytest.param(b'{"a":' + b"[" * 400_000 + b"]" * 400_000 + b"}", id="nested and closed"),
        pytest.param(b'{"a": "' + b"x" * MAX_BODY_BYTES + b'"}', id="over the limit"),
    ],
)
def test_a_hostile_body_gives_nothing(body: bytes) -> None:
    assert found("body:$.a", body) is None


def test_a_number_of_a_million_digits_costs_nothing_special() -> None:
    assert found("body:$.a", b'{"a":' + b"9" * 900_000 + b"}") == "9" * 900_000


def test_what_no_database_stores_is_replaced() -> None:
    assert found("body:$.a", b'{"a": "x\\ud800y\\u0000z"}') == "x\ufffdy\ufffdz"
    assert found("body:$.a", b'{"a": "\\ud83d\\ude00"}') == "\U0001f600"


def test_ordering_key_and_broker_id() -> None:
    assert found("key", ordering_key="k1") == "k1"
    assert found("message_group", ordering_key="k1") == "k1"
    assert found("key") is None
    assert found("broker_id", broker_message_id="m-1") == "m-1"
    assert found("broker_id") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, st.sampled_from(["a", "b", 0, 1]))
def test_any_json_evaluates_to_storable_text_or_nothing(value: object, step: str | int) -> None:
    body = json.dumps({"a": value, "b": [value]}).encode()
    text = Selector(Kind.BODY, path=("b", step) if isinstance(step, int) else (step,)).evaluate((), body)
    assert text is None or (text.encode() and "\0" not in text)


@given(st.binary(max_size=200))
def test_any_bytes_evaluate_without_an_error(body: bytes) -> None:
    assert found("body:$.a", body) is None or body.lstrip().startswith(b"{")


@given(st.text(max_size=40))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        selector = parse(text)
    except SelectorError:
        return
    assert parse(str(selector)) == selector


def test_a_path_can_be_parsed_alone() -> None:
    assert parse_path("$.customer.name") == ("customer", "name")
