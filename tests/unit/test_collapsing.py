"""Masking many texts at once gives what masking each of them gives."""

import random
import re
from collections.abc import Iterator

import pytest
from tests.unit.failure_samples import SAMPLES
from tests.unit.hostile_texts import HOSTILE

from redrive.classification import bulk_masking, failure_text, grouping
from redrive.classification.bulk_masking import Masked, distinct_skeletons

#: What patterns look for, what may reach into a value, and what ends one.
PIECES = (
    *(
        "code ",
        "code: ",
        "code=",
        "Error: ",
        "error(",
        "status ",
        "Status: ",
        '" status: ',
        "HTTP/1.1 ",
        "HTTP/2 ",
        "HTTP ",
    ),
    *("error code ", "(code=", "Fehler ", "rc=", "F5 ", "loop ", "550 ", "451-", "field ", "PID-", "DTM+", " is "),
    *("errno ", "Msg ", "SQLSTATE[", "SQLSTATE: ", "exit ", "signal ", "ORA-", "SQL-", "E", "0x", "0X", "ERR "),
    *(" Bad", " (Not", " - Service", " 5.7.1", " 4.0", ", '", ', "', ", b'", ")] ", "] ", ") "),
    *(
        "T",
        "Z",
        "_",
        "-",
        "+",
        " +",
        " -",
        ".",
        ",",
        ":",
        "::",
        " ",
        "  ",
        "/",
        "\\",
        "@",
        "://",
        "=",
        "#",
        "(",
        "[",
        '"',
    ),
    *(
        "\n",
        "\t",
        "%",
        "~",
        "$",
        "?",
        ";",
        "host",
        "a.b.example",
        "/var/lib/",
        "/usr/lib/python3.11/",
        "site-packages/",
    ),
    *(
        "node_modules/",
        "vendor/",
        "mod/",
        "gems/",
        ".py",
        ".cc",
        ".js:",
        "order",
        "x",
        "g",
        "dead",
        "beef",
        "BAD",
        "CAFE",
    ),
)
#: Texts whose characters are drawn anew: 9 a digit, f a lower-case hexadecimal digit, F an upper-case one.
SHAPES = (
    *(
        "9",
        "99",
        "999",
        "9999",
        "99999",
        "999999",
        "9999999999",
        "9999-99-99",
        "9999-99-99 99:99:99",
        "99:99",
        "99:99:99.999",
    ),
    *(
        "9.9.9",
        "9.99",
        "99.9.9.99:9999",
        "ffffff",
        "fffffffffffff",
        "ffffffffffffffff99ffffffffffffffffffffff",
        "FFFFFF",
    ),
    *(
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "ffff:ffff:ffff",
        "ff:ff:ff:ff:ff:ff",
        "ffff::ffff",
        "a9b9c9d9e9f9a9b9",
        "x9y9z9",
    ),
    *("9999-99-99 99:99:99+fffffffff", "999 9.9.9 said", "a9b9c_ffffffffff9", "HTTP/9.9 99", "9xff"),
    *("999999999", "9999A", "99A", "9.9.99", " 999 ", "F9 999"),
    *("-99", "-999", "+9999", "999 ", "9f9f9f", "f9f9f9f9-99", "E99999", "E999999", "9e99", "ffff9", "fffff", "g99999"),
)
_DRAWN = {"9": "0123456789", "f": "0123456789abcdef", "F": "0123456789ABCDEF"}


def drawn(shape: str, chance: random.Random) -> str:
    return "".join(chance.choice(_DRAWN.get(character, character)) for character in shape)


def alike(chance: random.Random, copies: int) -> Iterator[str]:
    """Texts of one form, with digits and ids of their own."""
    form = [chance.choice((PIECES, SHAPES)) for _ in range(chance.randrange(1, 9))]
    chosen = [(kind is SHAPES, chance.choice(kind)) for kind in form]
    for _ in range(copies):
        yield "".join(drawn(piece, chance) if is_shape else piece for is_shape, piece in chosen)


@pytest.mark.parametrize("seed", range(8))
def test_texts_of_every_form_are_masked_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    texts = [text for _ in range(1_500) for text in alike(chance, 12)]
    for text, masked in zip(texts, Masked().all(texts), strict=True):
        assert masked == grouping.mask(text), repr(text)


def test_samples_and_hostile_texts_are_masked_as_one_by_one() -> None:
    texts = [text for _, text in SAMPLES] + [failure_text.cut(text) for text in HOSTILE.values()]
    texts += [
        "",
        "\x1b[31fade12 34",
        "caf\u00e9 12",
        "12\x00 34",
        "\u0663 12",
        "7",
        "a\r\n7",
        r"a \u0001 \ud83c",
        r"a \u0002 \ud83d",
    ]
    assert Masked().all(texts) == [grouping.mask(text) for text in texts]


def test_texts_with_ids_of_their_own_are_masked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = grouping.mask_and_places
    monkeypatch.setattr(grouping, "mask_and_places", lambda text: seen.append(text) or real(text))
    chance = random.Random(1)
    shape = "order ffffffff-ffff-ffff-ffff-ffffffffffff on 99999999 broke: fffffffffffffff9, HTTP 999"
    texts = [drawn(shape, chance) for _ in range(2_000)]
    masked = Masked().all(texts)
    assert len(seen) <= 3, "one for each class of a number of three digits"
    assert len(set(masked)) > 800, "the status stays"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_masking, "_REMEMBERED", 10_000)
    monkeypatch.setattr(bulk_masking, "_PORTION", 1_000)
    masks = Masked()
    for number in range(3_000):
        text = f"word{'x' * (number % 97)} {'y' * (number // 97)}"
        assert masks.all([text]) == [grouping.mask(text)]
        assert sum(len(skeleton) for skeleton in masks._known) <= 10_000 + len(text)


def test_a_skeleton_keeps_what_patterns_see_of_digits() -> None:
    """Digits that patterns name are in classes that a skeleton keeps apart: a new one has to be thought of here."""
    named = set(re.findall(r"\[[0-9](?:-?[0-9])*\]|0\[xX\]", "".join(mask.pattern for mask in grouping.MASKS)))
    assert named == {"[0-9]", "[1-5]", "[45]", "[12]", "[01]", "0[xX]"}
    (one, two), _ = distinct_skeletons(["HTTP/1.1 503 0x5 4.7.1", "HTTP/2.0 503 0x5 4.7.1"])
    assert one != two


def test_no_text_is_slow() -> None:
    """Neither looking for a skeleton nor the patterns."""
    import time  # noqa: PLC0415

    for name, text in HOSTILE.items():
        cut = failure_text.cut(text)
        started = time.thread_time()  # of computing, however busy the machine is
        Masked().all([cut] * 3)
        assert time.thread_time() - started < 0.5, name  # a slow case takes seconds
