"""What benchmarks keep of what they measured, and the page that is made of it."""

import argparse
import importlib.util
from pathlib import Path

import pytest
from benchmarks import __main__ as every
from benchmarks import page, results
from benchmarks.results import Figure, Result, Table

SMALL = Table(("stage", "to the shovel", "messages/s"), [("drain", Figure(2.5, least=2.2), 7_150), ("plan", "", 12)])
RESULT = Result("shovel", [SMALL], "postgresql", "--rounds 3", "a processor, 2 cores", "abc1234", "2026-11-26 12:00")


def _asked(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"json": None, "record": False, "commit": "abc1234", **given})


def test_the_page_is_made_of_what_was_recorded() -> None:
    written = page.PAGE.read_text(encoding="utf-8")
    assert written == page.document(page.read()), "run: python -m benchmarks.page"


def test_every_figure_on_the_page_is_of_a_commit() -> None:
    for one in page.read():
        assert one.commit, one.name
        assert not one.commit.endswith("+"), f"{one.name}: files differed from the commit"
        assert one.machine, one.name
        assert one.date, one.name


def test_every_benchmark_has_its_place_on_the_page() -> None:
    there = {file.stem for file in Path(page.__file__).parent.glob("*.py") if "\ndef main(" in file.read_text()}
    assert {section.benchmark for section in page.SECTIONS} == there - {"__main__"}


def test_what_is_kept_is_read_again() -> None:
    kept = Result.from_json(RESULT.to_json())
    assert kept.to_json() == RESULT.to_json()
    assert list(kept.tables[0].figures()) == list(SMALL.figures())


@pytest.mark.parametrize(
    ("figure", "missed"),
    [
        (Figure(1.19, least=1.2), True),
        (Figure(1.2, least=1.2), False),
        (Figure(1.31, most=1.3), True),
        (Figure(1.3, most=1.3), False),
        (Figure(0.0, most=0.0), False),
        (Figure(0.1), False),
    ],
    ids=str,
)
def test_a_goal_that_is_missed_is_told(
    figure: Figure, missed: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = Table(("what", "ratio"), [("deliver", figure)])
    assert results.finish(_asked(json=tmp_path / "out.json"), "shovel", table) == int(missed)
    assert ("missed: deliver, ratio" in capsys.readouterr().out) is missed
    kept = Result.from_json((tmp_path / "out.json").read_text())
    assert f"| deliver | {'**' * missed}{figure.shown}{'**' * missed} |" in page.document([kept])


def test_the_page_leads_with_goals_and_says_where_and_when() -> None:
    written = page.document([RESULT])
    goals, _, rest = written.partition("## The loop beside a shovel")
    assert (
        "[The loop beside a shovel](#the-loop-beside-a-shovel): postgresql, drain, to the shovel | 2.50 | at least 2.2"
        in goals
    )
    assert "| drain | 2.50 | 7,150 |" in rest
    assert "`python -m benchmarks.shovel --rounds 3`: commit abc1234, 2026-11-26 12:00 UTC, a processor" in rest


def test_of_many_figures_with_one_goal_the_worst_leads_the_page() -> None:
    pages = Table(("page", "ratio"), [(f"/{n}", Figure(1 + n / 10, most=1.3)) for n in range(6)])
    goals = page.document([Result("growth", [pages])]).partition("## A year")[0]
    assert goals.count("A year of finished messages") == 1
    assert "/5, ratio; the worst of 6, 2 miss it | **1.50** | at most 1.3" in goals


def test_recording_keeps_the_figures_and_makes_the_page_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (results, page):
        monkeypatch.setattr(module, "FOLDER", tmp_path / "results")
    written: list[Path] = []
    monkeypatch.setattr(page, "write", lambda: written.append(tmp_path / "results" / "shovel-postgresql.json"))
    monkeypatch.setattr("sys.argv", ["shovel", "--rounds", "3", "--json", str(tmp_path / "x"), "--record"])
    results.finish(_asked(record=True), "shovel", SMALL, variant="postgresql", details={"rounds": [1]})
    kept = Result.from_json(written[0].read_text())
    assert (kept.arguments, kept.variant, kept.details) == ("--rounds 3", "postgresql", {"rounds": [1]})
    assert [one.name for one in page.read()] == ["shovel-postgresql"]


def test_a_name_that_is_no_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        every.main(["shovle"])
    assert "there is no benchmark shovle; there are shovel, throughput" in capsys.readouterr().err


@pytest.mark.parametrize("section", page.SECTIONS, ids=lambda section: section.benchmark)
def test_a_benchmark_is_a_module(section: page.Section) -> None:
    assert importlib.util.find_spec(f"benchmarks.{section.benchmark}")
