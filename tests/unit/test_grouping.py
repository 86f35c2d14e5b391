"""The same failure is one group, another failure another, on every day and machine."""

import importlib
import pkgutil
import random
import re
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from failure_samples import SAMPLES

from redrive import classification
from redrive.classification import grouping
from redrive.classification.explain import explain
from redrive.classification.grouping import templates
from redrive.classification.templates import KnownGroup, KnownTemplates, tokens_of


def groups_of(*texts: str) -> list[str]:
    return [line["group"] for line in explain({"text": text} for text in texts)]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        pytest.param("order 4711 took 12.5 s", "order <*> took <*> s", id="numbers"),
        pytest.param("id 3f2b8c1d-0a9e-4b7c-8d6e-5f4a3b2c1d0e", "id <*>", id="uuid"),
        pytest.param("host 10.0.3.7:5432 and fe80:0:0:0:1:2:3:4", "host <*> and <*>", id="addresses"),
        pytest.param("at 2026-01-02T03:04:05.678Z done", "at <*> done", id="time"),
        pytest.param("GET https://api.acme.test/v1/x?id=7 failed", "GET https://<*>/v1/x?<*> failed", id="url"),
        pytest.param("mail ana.b@acme.test bounced", "mail <*> bounced", id="address"),
        pytest.param("open /var/lib/app/7/x.tmp failed", "open <path> failed", id="path"),
        pytest.param("key 9f86d081884c7d65 and 0xdeadbeef", "key <*> and <*>", id="hexadecimal"),
        pytest.param("blk_1234 of job-77", "blk_<*> of job-<*>", id="number in a name"),
        pytest.param("\x1b[31mERROR\x1b[0m\x07 x", " ERROR   x", id="terminal colours"),
    ],
)
def test_what_varies_is_blanked(text: str, masked: str) -> None:
    assert grouping.mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "503 Service Unavailable",
        "status code 429",
        "HTTP 502",
        "SQLSTATE[40001]: failure",
        "SQLSTATE 25006",
        "ORA-00060: x",
        "[Errno 111] x",
        "(1205, 'Lock wait')",
        "Error 1452: x",
        "Msg 1222, x",
        "cURL error 28: x",
        "E11000 duplicate",
        "java.net.ConnectException",
        "x509: x",
        '{"code":503}',
        "exit code 137",
        "errno -111",
        "JSON-RPC error -32601",
        "SQLCODE -803",
        "error code: -530",
        "exit code -1073741819",
    ],
)
def test_codes_and_class_names_stay(text: str) -> None:
    assert grouping.mask(text) == text


@pytest.mark.parametrize(
    "said",
    [
        "JSON-RPC error -32{:03}",
        "librdkafka error -{}",
        "SQLCODE={}, brim not sewn",
        "SQLCODE=-{}, brim not sewn",
        "the hat could not be fetched (NSURLErrorDomain error -1{:03}.)",
        "exit code -1073740{:03}",
    ],
)
def test_a_code_below_zero_tells_failures_apart(said: str) -> None:
    assert len(set(groups_of(*(said.format(number) for number in (204, 407, 530, 551, 803, 911))))) == 6


@pytest.mark.parametrize(
    "said",
    [
        "Carrier refused the hat: error {}",
        "Carrier refused the hat: error={}",
        "Hut abgelehnt, Fehlercode {}",
        "hat refused (code={})",
        '{{"errorCode":{},"message":"hat refused"}}',
        '{{"error_code":"{}","message":"hat refused"}}',
        "帽子被拒绝\uff0c错误码\uff1a{}",
        "帽子の登録に失敗しました\uff08エラーコード {}\uff09",
        "エラーコード{}",
        "모자 거절, 오류코드 {}",
    ],
)
def test_a_code_of_six_digits_tells_failures_apart(said: str) -> None:
    numbers = (120802, 120124, 310045, 310187, 880012, 990031)
    assert len(set(groups_of(*map(said.format, numbers)))) == len(numbers)


@pytest.mark.parametrize(
    "said",
    [
        "errno {}",
        "OSError: [Errno {}]",
        "worker was killed by signal {}",
        "CreateFile failed: Windows error {}",
        "Chapeau refusé, code erreur {}",
        "Code d'erreur : {}",
        "rc={} from the hat factory",
        "hats: RC={}",
        "エラーコード: {}",
        "错误码: {}",
        "SMTP error 550 5.1.{}",
        "Field {}A: missing",
        "Tag {} missing",
        "field {} is required",
        "PID-{} is required",
        "OBX-3.{} is missing",
        "DTM+{} missing",
        "loop 20{}AA missing",
        "SAP error F5 1{}",
        "hat not booked: M7 0{}",
    ],
)
def test_a_short_code_and_the_number_of_a_field_tell_failures_apart(said: str) -> None:
    numbers = range(1, 9) if "5.1.{}" in said or "3.{}" in said else range(11, 17)
    assert len(set(groups_of(*map(said.format, numbers)))) == len(numbers)


@pytest.mark.parametrize(
    "said",
    [
        "Error for order {}: hat is lost",
        "no hat for postal code {}",
        "商品コード: {} の在庫が不足しています",
        '{{"productCode":{},"message":"hat refused"}}',
        "Validation error: {} is not a price of a hat",
        "LIN+{} has no hat",
        "hats overlap in UTC+{} somewhere",
    ],
)
def test_a_number_that_is_no_code_is_a_value(said: str) -> None:
    assert len(set(groups_of(*(said.format(number) for number in (120802, 4711003))))) == 1


@pytest.mark.parametrize(
    "said", ["hall F{} {} seats sold twice", "no price for A{} {} sheets", "dock B{} {}: is closed"]
)
def test_a_number_behind_a_letter_and_a_digit_goes_on_as_a_value(said: str) -> None:
    assert len(set(groups_of(said.format(5, 201), said.format(7, 808)))) == 1


@pytest.mark.parametrize(
    "said",
    [
        "panicked at src/{}.rs:{}:5: index out of bounds",
        "thread 'main' panicked at src/{}.rs:{}:5: index out of bounds",
        "assertion failed: brim >= crown, src/{}.rs:{}:5",
        "assertion failed at {}.c:{}",
        "Assertion failed: brim > 0, file src\\{}.c, line {}",
        "no value ({}.py:{})",
    ],
)
def test_the_file_of_the_code_tells_failures_apart_and_its_lines_do_not(said: str) -> None:
    one, moved, other = groups_of(said.format("felt", 10), said.format("felt", 77), said.format("straw", 10))
    assert one == moved != other


def test_a_place_in_parentheses_may_be_left_out() -> None:
    assert len(set(groups_of("hat has no brim (felt.py:10)", "hat has no brim"))) == 1


@pytest.mark.parametrize(
    "said",
    [
        "ClassNotFoundException: com.acme.{}V1",
        "NoClassDefFoundError: com/acme/{}",
        "NoClassDefFoundError: Could not initialize class com.acme.{}V1",
        "class com.acme.{}V2 not found",
        "Missing config key {}.url",
        "required configuration key '{}.url' is missing",
        "Queue '{}' does not exist",
        "Queue {} not found",
        "Topic {} does not exist",
        "NOT_FOUND - no queue 'hats.{}' in vhost '/'",
        "exchange '{}' in vhost '/' not found",
        "Unknown topic '{}'",
        'role "{}" does not exist',
        "bucket '{}' existiert nicht",
    ],
)
def test_the_name_of_what_is_missing_tells_failures_apart(said: str) -> None:
    names = ("Brim", "Crown", "Band", "Felt", "Lining", "Ribbon")
    assert len(set(groups_of(*map(said.format, names)))) == len(names)


@pytest.mark.parametrize(
    "said",
    [
        "Queue hats-{} not found",
        "NOT_FOUND - no queue 'hats.v{}' in vhost '/'",
        "bucket 'hats-{}' does not exist",
        "queue 'hats-{}' is full of hats",
    ],
)
def test_one_of_many_that_are_numbered_is_a_value(said: str) -> None:
    assert len(set(groups_of(*map(said.format, (3, 7))))) == 1


def test_a_known_group_whose_template_blanked_more_takes_what_is_told_as_before() -> None:
    known = KnownGroup("feedfeedfeedfeed", "routing_failure", "Queue <*> does not exist")
    (found,) = explain([{"text": "Queue 'brims' does not exist"}], known_groups=[known])
    assert found["group"] == "feedfeedfeedfeed"


NAMES_OF_HATS = ("brim", "crown", "hat_band", "feltKind", "Lining", "sweatband")


@pytest.mark.parametrize(
    "said",
    [
        "Invalid column name '{}'.",
        "Invalid object name 'dbo.{}'.",
        "Missing property name '{}'",
        "unknown attribute name '{}'",
        'Unknown field name "{}" in hat',
        "Element name '{}' is not expected",
        "NameError: name '{}' is not defined",
        "ImportError: cannot import name '{}' from 'hats.parts' (/srv/hats/parts.py)",
        "ValidationError: Path `{}` is required.",
        "Path `{}` (-5) is less than minimum allowed value (0).",
    ],
)
def test_the_name_of_a_part_tells_failures_apart_however_many_there_are(said: str) -> None:
    assert len(set(groups_of(*map(said.format, NAMES_OF_HATS)))) == len(NAMES_OF_HATS)


@pytest.mark.parametrize(
    "said",
    [
        "customer name '{}' is not known",
        "Invalid user name '{}'",
        "file name '{}' is too long",
        "name '{}' is already taken",
        "service name '{}' was not started",
        "path '{}' is not readable",
    ],
)
def test_the_name_of_somebody_is_a_value(said: str) -> None:
    assert len(set(groups_of(*(said.format(name) for name in NAMES_OF_HATS[:2])))) == 1


@pytest.mark.parametrize("said", ["delta -{} too small", "Error: -{} is out of range", "hat -{} lost", "row 5-{} lost"])
def test_a_value_below_zero_is_one(said: str) -> None:
    assert len(set(groups_of(*(said.format(number) for number in (204, 407))))) == 1


def test_a_status_with_a_sign_is_the_one_in_hexadecimal() -> None:
    assert len(set(groups_of("exit code -1073741819", "exit code 0xC0000005"))) == 1


JAVA = """java.lang.IllegalStateException: cannot book order {order}
\tat com.acme.Booking.lambda$book${n}(Booking.java:{line})
\tat java.base/java.util.ArrayList.forEach(ArrayList.java:1511)
\tat com.acme.Worker.handle(Worker.java:{line})
Caused by: java.net.ConnectException: Connection refused
\tat java.base/sun.nio.ch.Net.connect0(Native Method)
\tat {frame}(Stock.java:{line})
\t... 12 more"""

PYTHON = """Traceback (most recent call last):
  File "{root}/app/worker.py", line {line}, in handle
    book(order)
  File "{root}/app/stock.py", line {line}, in {function}
    return session.get(url)
  File "{root}/.venv/lib/python3.11/site-packages/requests/sessions.py", line 600, in get
    return self.request("GET", url)
requests.exceptions.ConnectionError: connection to {host} failed"""


def test_traces_differ_in_lines_and_lambdas_but_not_in_group() -> None:
    same = [
        JAVA.format(order=order, n=n, line=line, frame="com.acme.Stock.reserve")
        for order, n, line in [(1, 0, 10), (77, 3, 12), (4711, 12, 99)]
    ]
    other = JAVA.format(order=1, n=0, line=10, frame="com.acme.Stock.release")
    found = groups_of(*same, other)
    assert len(set(found[:3])) == 1
    assert found[3] != found[0]


def test_a_python_trace_is_named_by_its_nearest_own_frame() -> None:
    one, moved, other = (
        PYTHON.format(root="/srv", line=7, function="reserve", host="10.0.0.1"),
        PYTHON.format(root="/opt/releases/42", line=9, function="reserve", host="10.0.0.2"),
        PYTHON.format(root="/srv", line=7, function="release", host="10.0.0.1"),
    )
    found = groups_of(one, moved, other)
    assert found[0] == found[1] != found[2]
    assert grouping.templates([masked := grouping.mask(one)])[masked].endswith("\n  at stock.py in reserve")


def test_user_names_make_no_groups_but_states_do() -> None:
    users = [
        f"session for user {name} could not be opened by gateway" for name in ("ana", "bob", "cy", "dan", "eve", "fay")
    ]
    states = ["order moved from OPEN to PAID in ledger", "order moved from OPEN to VOID in ledger"]
    found = groups_of(*users, *states)
    assert len(set(found[:6])) == 1
    assert len(set(found)) == 3


def test_exceptions_always_tell_failures_apart() -> None:
    found = groups_of(*[f"handler failed with com.acme.{name}Exception for order" for name in "ABCDEFGH"])
    assert len(set(found)) == 8


def test_a_known_group_keeps_its_id_however_the_new_texts_look() -> None:
    known = KnownGroup("feedfeedfeedfeed", "unclassified", "frobnication of <*> stopped half way")
    lines = [
        {"text": "frobnication of web-7.acme.test stopped half way"},
        {"text": "frobnication of x stopped half way"},
    ]
    assert [line["group"] for line in explain(lines, known_groups=[known])] == ["feedfeedfeedfeed"] * 2


def test_a_new_value_joins_the_group_of_an_old_one() -> None:
    (first,) = explain([{"text": "queue web-1.acme.test drained with leftovers"}])
    known = KnownGroup(first["group"], first["cause"], first["template"])
    (second,) = explain([{"text": "queue web-2.acme.org drained with leftovers"}], known_groups=[known])
    assert second["group"] == first["group"]


def test_the_order_of_the_lines_does_not_matter() -> None:
    texts = [text for _, text in SAMPLES]
    once = dict(zip(texts, groups_of(*texts), strict=True))
    shuffled = texts[:]
    random.Random(7).shuffle(shuffled)
    assert dict(zip(shuffled, groups_of(*shuffled), strict=True)) == once


def test_the_fingerprint_is_fixed_for_ever() -> None:
    assert grouping.fingerprint("throttled", "HTTP 429") == "v311cdea09f17c3c"
    assert grouping.fingerprint("throttled", "http 429.") == "v311cdea09f17c3c"


def test_groups_that_one_batch_would_have_made_one_are_merged_into_the_earliest() -> None:
    names = ["ana", "ben", "cleo", "dora", "emil"]
    groups = [
        KnownGroup(f"{number:016x}", "auth_failure", f"cannot open session beside gnome {name}")
        for number, name in reversed(list(enumerate(names)))
    ]
    assert grouping.merges(groups[:4]) == {}
    assert grouping.merges(groups) == dict.fromkeys((group.fingerprint for group in groups[1:]), groups[0].fingerprint)


def test_groups_of_other_causes_or_frames_are_not_merged() -> None:
    names = ["ana", "ben", "cleo", "dora", "emil"]
    texts = [f"cannot open session beside gnome {name}" for name in names]
    causes = ["auth_failure", "throttled"] * 3
    assert grouping.merges([KnownGroup(t, c, t) for t, c in zip(texts, causes, strict=False)]) == {}
    frames = [f"{text}\n  at com.acme.{name.title()}.run(<*>)" for text, name in zip(texts, names, strict=True)]
    assert grouping.merges([KnownGroup(frame, "auth_failure", frame) for frame in frames]) == {}


#: So often something is repeated; and seconds that no expression needs for it unless it takes it in every way.
REPEATED, EXPONENTIAL = 22, 0.05
#: What of a text could be taken in several ways, where it is repeated.
UNITS = (
    *("a", "A", "Aa", "1", "\u00e9", "\u91d1", " ", ".", ":", "-", "/", "\\", "(", "[", "{", '"', "'", "\n"),
    *(
        "a_",
        "a.",
        "a-",
        "a/",
        "a:",
        "a::",
        "a=",
        "a=1 ",
        "a, ",
        "a ",
        "Ab ",
        "1.",
        "<*>",
        "<*> ",
        "a_<*>_",
        "'a' ",
        "a; ",
    ),
)


def expressions() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Every expression that a module of classification has compiled, in tables too."""
    for module in pkgutil.iter_modules(classification.__path__):
        for name, value in vars(importlib.import_module(f"{classification.__name__}.{module.name}")).items():
            for one in _compiled_in(value):
                yield f"{module.name}.{name}: {one.pattern[:80]}", one


def _compiled_in(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _compiled_in(one)


class TestCost:
    """What many texts cost: as often as there are more of them, so much more."""

    @staticmethod
    def texts(count: int, tokens: int) -> dict[str, int]:
        """All different, in every place."""
        return {
            " ".join(f"word{chr(97 + at % 26)}x{'abcdefghij'[n % 10]}{'k' * (n // 10)}" for at in range(tokens)): 1
            for n in range(count)
        }

    def test_memory_does_not_grow_with_the_square_of_a_texts_length(self) -> None:
        peaks = []
        for tokens in (15, 60):
            texts = self.texts(300, tokens)
            tracemalloc.start()
            templates(texts)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peaks[1] < 6 * peaks[0]

    def test_no_expression_takes_exponential_time(self) -> None:
        """Texts come from outside: one field of forty letters would have stopped a route for ever."""
        hostile = [unit * REPEATED + end for unit in UNITS for end in ("!", "-b", "\n!")]
        slow = []
        for name, pattern in expressions():
            for text in hostile:
                began = time.process_time()
                pattern.fullmatch(text)
                pattern.search(text)
                if time.process_time() - began > EXPONENTIAL:
                    slow.append((name, text))
                    break
        assert not slow

    def test_what_is_known_is_not_looked_through_for_each_text(self) -> None:
        def compared(count: int) -> int:
            finder = KnownTemplates(
                KnownGroup(f"{n:016x}", "throttled", f"queue <*> of shop{'x' * n} is full") for n in range(count)
            )
            looked = 0
            text = tokens_of("queue orders of nobody is full")

            class Counted(dict[Any, Any]):
                def get(self, key: Any, default: Any = None) -> Any:
                    nonlocal looked
                    looked += len(found := super().get(key, default))
                    return found

            finder._by_place = Counted(finder._by_place)
            assert finder.match(text) is None
            return looked

        assert compared(1_000) <= compared(10)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[email]: must be provided", "[phone]: must be provided"),
        ("[price] must be positive", "[quantity] must be positive"),
        ("[email] is required", "[vat_number] is required"),
        ("[email] can't be blank", "[phone] can't be blank"),
        ("[colour] ist erforderlich", "[groesse] ist erforderlich"),
    ],
)
def test_a_field_in_brackets_of_which_something_is_said_tells_failures_apart(one: str, other: str) -> None:
    assert len(set(groups_of(one, other))) == 2, "it is what is broken, and no name of a logger"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[main] connection to 10.0.0.1 refused", "[worker] connection to 10.0.0.1 refused"),
        ("[ERROR] value is required", "[WARN] value is required"),
        ("[orders] order 17 not found", "[payments] order 18 not found"),
    ],
)
def test_what_says_it_in_brackets_does_not(one: str, other: str) -> None:
    assert len(set(groups_of(one, other))) == 1
