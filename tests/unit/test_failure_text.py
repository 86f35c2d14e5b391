"""Where a message says why it failed."""

import json

import pytest
from hostile_texts import HOSTILE

from redrive.classification.failure_text import HEAD, MAX_BODY_BYTES, MAX_TEXT, TAIL, cut, pick, readable
from redrive.message import Header
from redrive.selectors import parse


def headers(**values: str | bytes) -> list[Header]:
    return [Header(name.replace("__", "-"), "String", value) for name, value in values.items()]


def test_the_route_knows_best() -> None:
    found = pick(
        headers(why="A", error="B"), b"{}", description="C", evidence=[parse("body:$.x"), parse("attribute:why")]
    )
    assert found.text == "A"


def test_headers_come_before_the_description_and_that_before_the_body() -> None:
    body = json.dumps({"error": {"message": "from body"}}).encode()
    assert pick(headers(error="from header"), body, description="described").text == "from header"
    assert pick([], body, description="described").text == "described"
    assert pick([], body).text == "from body"


def test_class_message_and_trace_are_read_in_this_order() -> None:
    found = pick(
        [
            Header("kafka_dlt-exception-stacktrace", "binary", b"at x"),
            Header("kafka_dlt-exception-message", "binary", b"boom"),
            Header("kafka_dlt-exception-fqcn", "binary", b"a.BException"),
        ],
        b"",
    )
    assert found.text == "a.BException\nboom\nat x"


def test_of_a_repeated_header_the_last_counts() -> None:
    assert pick([Header("error", "", "old"), Header("ERROR", "", "new")], b"").text == "new"


def test_a_bare_code_gets_its_word_back() -> None:
    assert pick(headers(ErrorCode="429", ErrorMessage="slow"), b"").text == "error code 429\nslow"


def test_what_the_broker_says_by_itself_is_last() -> None:
    body = b'{"error": "disk full"}'
    said = "Message could not be consumed after 10 delivery attempts."
    assert pick([], body, description=said, reason="MaxDeliveryCountExceeded") == (
        "disk full",
        "maxdeliverycountexceeded",
    )
    assert pick([], b"", description=said, reason="MaxDeliveryCountExceeded").text == said


def test_a_reason_that_a_consumer_wrote_is_part_of_the_text() -> None:
    assert pick([], b"", reason="ValidationFailed", description="no sku") == ("ValidationFailed: no sku", "")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(
            {"responsePayload": {"errorType": "KeyError", "errorMessage": "'x'"}}, "KeyError\n'x'", id="lambda"
        ),
        pytest.param({"message": {"exceptions": [{"exceptionType": "A", "message": "b"}]}}, "A\nb", id="masstransit"),
        pytest.param({"error": "plain"}, "plain", id="text"),
        pytest.param({"error": {"code": 5}}, "", id="a number is no text"),
        pytest.param({"order": {"error": "x"}}, "", id="not an envelope"),
    ],
)
def test_envelopes_in_the_body(body: object, text: str) -> None:
    assert pick([], json.dumps(body).encode()).text == text


@pytest.mark.parametrize("number", ["9" * 5_000, "-" + "9" * 5_000, "9" * 5_000 + ".5", "1e999999", "0.1"])
def test_no_number_hides_what_a_body_says(number: str) -> None:
    body = f'{{"error": {{"message": "hat lost", "code": {number}}}, "n": {number}}}'
    assert pick([], body.encode()).text == "hat lost"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\x00",
        b'{"error": "x"' + b"[" * 100_000,
        b'{"error": ' * 5_000,
        b'{"error": "a", "error": "b"}',
        b'{"error": "' + b"x" * MAX_BODY_BYTES + b'"}',
        b'{"error": NaN}',
        b'{"error": "\\ud800"}',
    ],
    ids=["empty", "binary", "open lists", "deep", "twice", "huge", "no number", "half a character"],
)
def test_a_poison_body_says_nothing(body: bytes) -> None:
    assert pick([], body).text == ""


def test_beginning_and_end_are_kept() -> None:
    found = cut("a" * 100_000 + "z" * 100_000)
    assert found == "a" * HEAD + "\n...\n" + "z" * TAIL
    assert len(found) == MAX_TEXT


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_is_cut(name: str) -> None:
    assert len(pick([], HOSTILE[name].encode(), description=HOSTILE[name]).text) <= MAX_TEXT


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r'{"detail":"Stra\u00dfe 7"}', '{"detail":"Stra\u00dfe 7"}'),
        (r'{"detail":"\u5e93\u5b58"}', '{"detail":"\u5e93\u5b58"}'),
        (r'{"log":"{\"a\":\"\\u5e93\"}"}', '{"log":"{\\"a\\":\\"\u5e93\\"}"}'),
        (r"hat \ud83c\udfa9 lost", "hat \U0001f3a9 lost"),
        (r"a\u0022b", r"a\"b"),
        (r"a \u0000 b \u001b[31m c \u0085", r"a \u0000 b \u001b[31m c \u0085"),
        (r"half \ud83c of a pair", r"half \ud83c of a pair"),
        (r"C:\users\update.txt", r"C:\users\update.txt"),
        ("Can\u2019t reach it", "Can't reach it"),
        ("Ho\u0308he \uff12\uff10\uff10", "H\u00f6he 200"),
        ("\ufeffcon\u200bnection\u00a0lost", "connection lost"),
        ("\uff34\uff49\uff4d\uff45\uff4f\uff55\uff54", "Timeout"),
        ("\uff80\uff72\uff91\uff71\uff73\uff84", "\u30bf\u30a4\u30e0\u30a2\u30a6\u30c8"),
        ("\u5931\u8d25\uff1a\u5e93\u5b58\uff08\u96f6\uff09", "\u5931\u8d25\uff1a\u5e93\u5b58\uff08\u96f6\uff09"),
    ],
)
def test_a_text_is_looked_at_as_people_read_it(written: str, read: str) -> None:
    assert readable(written) == read
    assert cut(written) == pick([], b"", description=written).text == pick([], b"", given=written).text == read
