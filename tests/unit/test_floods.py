"""A flood: failures of which hardly two say the same, since words in them are values."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redrive.classification import explain, grouping, rare_words
from redrive.classification.case_finder import CaseSettings
from redrive.classification.cases import Case
from redrive.classification.executor import Batch, write
from redrive.classification.rare_words import RareWords
from redrive.staging import file_schemas

#: What consumers say, each with a name in it that no two messages share.
FAILURES = (
    "connection refused while {name} was asked for its stock",
    "KeyError: 'sku' in the basket of {name}",
    "HTTP 429 Too Many Requests from the shop {name}, request 0f3a9c77d1",
    'relation "orders" does not exist, 2026-11-24T10:15:00Z, shop {name}',
)


def names(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choice("bdgklmnprst") + chance.choice("aeiou") for _ in range(6)) for _ in range(count)]


def flood(count: int) -> list[str]:
    return [FAILURES[number % len(FAILURES)].format(name=name) for number, name in enumerate(names(count))]


def staged(folder: Path, texts: Sequence[str], group: int) -> Batch:
    """A staging file of these failures, in row groups of so many."""
    rows = [
        {
            **dict.fromkeys(file_schemas.STAGED.names),
            "batch_id": 7,
            "row": row,
            "kind": "dead_letter",
            "source": "orders-dlq",
            "headers": [{"name": "error", "type": "String", "text": text, "data": None}],
        }
        for row, text in enumerate(texts)
    ]
    pq.write_table(pa.Table.from_pylist(rows, file_schemas.STAGED), folder / "batch.parquet", row_group_size=group)
    return Batch(7, str(folder / "batch.parquet"))


def cases_of(
    folder: Path, texts: Sequence[str], settings: CaseSettings, group: int = 500
) -> tuple[dict[Case, int], list[Case]]:
    """(the cases of a share and their messages, the case of each message), as a task writes them."""
    found = write([staged(folder, texts, group)], settings, str(folder / "out")).to_pylist()
    by_key = {one["case_key"]: Case(one["masked"], one["reason"], one["hint"]) for one in found}
    written = pq.read_table(folder / "out" / file_schemas.messages_file(7)).column("case_key").to_pylist()
    counts = Counter(by_key[key] for key in written)
    assert counts == {Case(one["masked"], one["reason"], one["hint"]): one["messages"] for one in found}
    return counts, [by_key[key] for key in written]


def test_a_flood_comes_down_to_what_its_failures_have_in_common(tmp_path: Path) -> None:
    texts = flood(4_000)
    counts, case_of = cases_of(tmp_path, texts, CaseSettings(room=400))
    assert len(counts) == len(FAILURES)
    exact = explain.explain_cases({Case(grouping.mask(text)): 1 for text in texts[:40]})
    shaped = explain.explain_cases(counts)
    for text, case in zip(texts[:40], case_of, strict=False):
        alone = exact[Case(grouping.mask(text))]
        assert shaped[case] == alone, "the same cause and the same group as where each is told apart"


def test_usual_failures_are_told_apart_word_by_word(tmp_path: Path) -> None:
    """Many, each with more than one message; and few, of which each has one."""
    columns = [f'column "{name}" does not exist' for name in names(900)]
    for texts in (columns * 3, columns[:300]):
        counts, _ = cases_of(tmp_path, texts, CaseSettings(room=400), group=3_000)
        assert {case.masked for case in counts} == set(texts)


@pytest.mark.parametrize(("same", "cases"), [(1_501, 1_500), (1_500, 2)])
def test_whether_it_is_a_flood_is_decided_by_all_texts_of_a_row_group(tmp_path: Path, same: int, cases: int) -> None:
    """It begins with a thousand that are all different, and goes on with one: half of its messages, or more."""
    texts = [f'column "{name}" does not exist' for name in names(1_500)]
    texts = [*texts[:-1], *[texts[-1]] * same]
    counts, _ = cases_of(tmp_path, texts, CaseSettings(room=400), group=len(texts))
    assert len(counts) == cases


def test_a_failure_that_is_frequent_within_a_flood_keeps_its_words(tmp_path: Path) -> None:
    texts = flood(2_000)
    texts[::100] = ["the frobnicator of the warehouse is ajar"] * 20
    counts, _ = cases_of(tmp_path, texts, CaseSettings(room=400))
    assert counts[Case("the frobnicator of the warehouse is ajar")] == 20


def test_the_answer_is_the_same_when_a_task_runs_again(tmp_path: Path) -> None:
    """Spark may take the file of one try and the cases of another."""
    texts = flood(3_000)
    first = cases_of(tmp_path, texts, CaseSettings(room=400))
    cases_of(tmp_path, flood(700)[::-1], CaseSettings(room=100))  # what the same worker did in between
    assert cases_of(tmp_path, texts, CaseSettings(room=400)) == first


def test_what_stays_different_is_blanked_the_sooner_the_more_of_it_there_is(tmp_path: Path) -> None:
    """Of two hundred names each occurs many times; with four others in a text nearly all texts are different."""
    chance, some = random.Random(3), names(200)
    texts = [f"no route from {' to '.join(chance.choices(some, k=5))}" for _ in range(20_000)]
    counts, _ = cases_of(tmp_path, texts, CaseSettings(room=400))
    assert len(counts) < 8_000


def manifest(**group: str) -> dict[str, object]:
    return {"known_groups": [{"fingerprint": "f" * 16, "cause": "unclassified", "template": "", **group}]}


def test_a_known_group_is_found_in_a_flood(tmp_path: Path) -> None:
    """Its gate and its decisions hold for what belongs to it: one message of it must not slip by among others."""
    texts = [*flood(2_000), "the frobnicator of zyxwvut is ajar"]
    asked = manifest(template="the frobnicator of zyxwvut is ajar")
    settings = CaseSettings.by(asked, shares=16)
    assert settings.room < 2_000
    counts, _ = cases_of(tmp_path, texts, settings)
    assert Case("the frobnicator of zyxwvut is ajar") in counts
    assert Case("the frobnicator of zyxwvut is ajar") not in cases_of(tmp_path, texts, CaseSettings(room=400))[0]


def test_what_people_split_a_group_by_stays_in_a_flood(tmp_path: Path) -> None:
    texts = [*flood(2_000), "no price for the Zyxwvuts of today"]
    counts, _ = cases_of(tmp_path, texts, CaseSettings.by(manifest(words="ZYXWVUT"), shares=16))
    assert any("Zyxwvuts" in case.masked for case in counts)


def test_a_routes_own_rule_sees_the_words(tmp_path: Path) -> None:
    texts = [*flood(2_000), "no price for the zyxwvut of today"]
    _, case_of = cases_of(tmp_path, texts, CaseSettings(rules=("zyxwvut",), room=400))
    assert [case.hint for case in case_of if case.hint] == ["route:1"]


def blank(words: RareWords, texts: Iterable[str]) -> list[str]:
    return [words.shown(grouping.mask(text)) for text in words.blanked(texts, 0)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("user ogufemi is gone", "user <*> is gone"),
        ("users ogufemi, kadiro, temuli are gone", "users <*> are gone"),
        ("connection refused by ogufemi-db-3.internal:5432", "connection refused by <*>-db-<*>.internal:<*>"),
        ("request 3f2b1c9e-aaaa-bbbb-cccc-0123456789ab: timeout", "request <*>: timeout"),
        ("2026-11-24T10:15:00.123Z timeout after 500ms", "<*> timeout after <*>ms"),
        ("at 20261124T101500Z HTTP 503 from ogufemi", "at <*> HTTP 503 from <*>"),
        ("OgufemiException: no price", "OgufemiException: no price"),
        ("mail to ogufemi@kadiro.example bounced", "mail to <*> bounced"),
        ("no account KX7QZ9PLT", "no account <*>"),
        ("пользователь огуфеми не найден", "<*> не найден"),
    ],
)
def test_rare_words_go_and_what_masks_see_to_stays(text: str, shown: str) -> None:
    assert blank(RareWords(1_000), [text]) == [shown]


def test_a_flood_stays_one() -> None:
    words = RareWords(10)
    assert not words.is_flood(10, 10), "there is room"
    assert not words.is_flood(11, 22), "two messages of each case"
    assert words.is_flood(11, 21)
    assert words.is_flood(1, 1_000)
    assert RareWords(10).is_flood(81, 1_000_000), "so many that it is one whatever their number of messages"


def test_memory_is_bounded_however_many_words_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rare_words, "MOST_WORDS", 1_000)
    words = RareWords(10)
    some = names(5_000)
    texts = [f"the frobnicator is {' '.join(some[at : at + 10])}" for at in range(0, 5_000, 10)]
    assert set(words.blanked(texts, 0)) == {"the frobnicator is qzxvzq" + " qzxvzq" * 9}
    assert len(words._texts_with) <= 1_000
    assert words._texts_with["frobnicator"] == 500, "what is frequent is known"
