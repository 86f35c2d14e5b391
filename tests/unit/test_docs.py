"""What the documents say is so: commands exist, examples are right, SQL runs, links lead somewhere, proofs exist."""

import json
import re
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer.main
from sqlalchemy.exc import DBAPIError, IntegrityError

from redrive.audit_actions import Action
from redrive.brokers import registry
from redrive.classification.explain import explain
from redrive.cli import app
from redrive.ledger import schema, tables
from redrive.ledger.engine import Ledger
from redrive.lifecycle import MOVES, Decision, Outcome, Plan, ReviewStatus, State
from redrive.policy.gates import Stage
from redrive.settings.file import parse

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
WITH_SQL = ("docs/review.md", "docs/operations.md", "docs/notifications.md")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fenced(page: str, language: str) -> list[str]:
    """The blocks of ``language``, also indented ones."""
    return [
        block for _, block in re.findall(rf"^([ ]*)```{language}\n(.*?)^\1```", page, re.MULTILINE | re.DOTALL)
    ]  # fmt: skip


def without_code(page: str) -> str:
    return re.sub(r"^[ ]*```.*?^[ ]*```", "", page, flags=re.MULTILINE | re.DOTALL)


# --- links ----------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in anchors(linked), f"{target}: there is no such heading"


# --- commands -------------------------------------------------------------------------------------------------


def commands(page: str) -> Iterator[list[str]]:
    """Every ``redrive …`` and ``make …`` of a page, in shell blocks and between backticks, as words."""
    lines = [line for block in fenced(page, "sh") for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", without_code(page))
    for line in lines:
        for part in re.split(r"\s*\|\s*|\s*&&\s*|;\s+", line.split("#")[0]):
            words = part.removeprefix("$ ").removeprefix(".venv/bin/").split()
            if len(words) > 1 and words[0] in ("redrive", "make"):
                yield words


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_command_exists(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for words in commands(path.read_text()):
        if words[0] == "make":
            for word in words[1:]:
                assert "=" in word or re.search(rf"^{word}:", makefile, re.MULTILINE), f"{' '.join(words)}: no target"
        else:
            refuse_unknown_command(words)


def refuse_unknown_command(words: list[str]) -> None:
    text, command, rest = " ".join(words), typer.main.get_command(app.app), words[1:]
    while hasattr(command, "commands") and rest and re.fullmatch(r"[a-z][a-z|-]*", rest[0]):
        for name in rest[0].split("|"):
            assert name in command.commands, f"{text}: there is no command {name!r}"
        command, rest = command.commands[rest[0].split("|")[0]], rest[1:]
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    for option in [word.split("=")[0] for word in rest if word.startswith("--")]:
        assert option in known | {"--help"}, f"{text}: there is no option {option}"


def test_commands_are_really_found() -> None:
    found = [" ".join(words) for words in commands(README)]
    assert "make run" in found
    assert "redrive doctor orders" in found
    with pytest.raises(AssertionError):
        refuse_unknown_command(["redrive", "dance"])
    with pytest.raises(AssertionError):
        refuse_unknown_command(["redrive", "run", "orders", "--faster"])


# --- examples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "brokers").glob("*.md")), ids=lambda page: page.stem)
def test_a_brokers_page_leads_with_what_people_see_and_a_route_to_copy(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.index("## What you see") < text.index("## Connection"), "before how it is connected"
    first = textwrap.dedent(fenced(text, "yaml")[0])
    assert text.index("```yaml") < text.index("## Connection")
    settings = parse(first, env={}, root=ROOT)
    assert {route.broker for route in settings.routes.values()} == {page.stem}


def test_the_door_names_each_brokers_symptom_and_its_page() -> None:
    text = (ROOT / "docs" / "symptoms.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "brokers").glob("*.md"):
        assert f"(brokers/{page.name}#what-you-see)" in text
    assert "docs/symptoms.md" in README.partition("## Two commands")[0]


def test_the_readmes_route_is_a_route() -> None:
    (text,) = [textwrap.dedent(block) for block in fenced(README, "yaml")]
    route = parse(text, env={}, root=ROOT).route("orders")
    assert (route.broker, route.connection) == ("amazon_sqs", "sqs_orders")


def test_the_explanation_is_the_real_one() -> None:
    page = (ROOT / "docs" / "getting-started.md").read_text()
    (shown,) = [json.loads(block) for block in fenced(page, "json")]
    (real,) = explain([{"text": shown["text"]}])
    assert list(real) == list(shown)
    tuned = ("rule", "confidence")  # which rule says so, and how surely, may change at any time
    assert {k: v for k, v in real.items() if k not in tuned} == {k: v for k, v in shown.items() if k not in tuned}


# --- SQL ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """A fresh ledger on each database, with one group under review."""
    ledger = Ledger(ledger_url)
    schema.upgrade(ledger, NOW)
    with ledger.write() as connection:
        connection.execute(
            tables.failure_groups.insert(),
            [
                {
                    "group_id": group, "fingerprint": f"{group:016x}", "cause": "application_bug",
                    "template": "KeyError: <*>", "first_seen_at": NOW, "last_seen_at": NOW,
                }
                for group in (7, 8)
            ],
        )  # fmt: skip
        for message, group in ((1048578, 8), (1048579, 7), (1048580, 7)):
            connection.execute(
                tables.messages.insert().values(
                    message_id=message, redrive_id=f"k3v9q2-{message:014x}", route="orders", source="orders-dlq",
                    kind="dead_letter", broker_message_id=str(message), body_hash=b"0" * 16, body_bytes=2,
                    copy_id=message, state="escalated", cause="application_bug", group_id=group, changed_at=NOW,
                )
            )  # fmt: skip
            connection.execute(
                tables.escalated_messages.insert().values(
                    message_id=message, route="orders", group_id=group, cause="application_bug", reason="a bug",
                    payload="{}", size_bytes=2, source="orders-dlq", attempts=0, escalated_at=NOW,
                )
            )  # fmt: skip
    yield ledger
    ledger.close()


def statements(name: str) -> list[str]:
    found = []
    for block in fenced((ROOT / name).read_text(), "sql"):
        found += [one for one in re.split(r";\s*(?:\n|$)", block) if re.sub(r"--.*", "", one).strip()]
    return found


def execute(ledger: Ledger, statement: str) -> int:
    """Run it as a person's client does; how many rows it changed."""
    with ledger.write() as connection:
        escaped = statement if ledger.dialect.name == "sqlite" else statement.replace("%", "%%")
        return int(connection.exec_driver_sql(escaped).rowcount)


@pytest.mark.parametrize("name", WITH_SQL)
def test_every_statement_runs_on_both_databases(name: str, ledger: Ledger) -> None:
    assert statements(name)
    for statement in statements(name):
        try:
            execute(ledger, statement)
        except DBAPIError as error:
            raise AssertionError(f"{statement}\n{error.orig}") from error


def test_a_decision_is_made_and_taken_back(ledger: Ledger) -> None:
    changes = [one for one in statements("docs/review.md") if "update escalated_messages" in one]
    (whole_group, edit, back) = (
        next(one for one in changes if sign in one) for sign in ("-- A whole group", "-- One message", "-- Change your")
    )

    def rows() -> list[tuple[object, ...]]:
        query = "select message_id, status, decision from escalated_messages where group_id = 7 order by message_id"
        with ledger.read() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]

    assert execute(ledger, edit) == 1
    assert rows() == [(1048579, "decided", "edit"), (1048580, "open", None)]
    assert execute(ledger, whole_group) == 1
    assert execute(ledger, back) == 2
    assert rows() == [(1048579, "open", None), (1048580, "open", None)]


def test_a_decision_without_a_name_is_refused_as_the_page_says(ledger: Ledger) -> None:
    with pytest.raises(IntegrityError):
        execute(ledger, "update escalated_messages set decision = 'discard' where group_id = 7")


# --- the map --------------------------------------------------------------------------------------------------


def moves() -> str:
    """Every move and who makes it, as a table."""
    order = list(State)
    sources: dict[tuple[State, str], list[State]] = {}
    for source in order:
        for target in sorted(MOVES[source], key=order.index):
            sources.setdefault((target, MOVES[source][target]), []).append(source)
    alike: dict[tuple[tuple[State, ...], str], list[State]] = {}
    for (target, why), from_ in sources.items():
        alike.setdefault((tuple(from_), why), []).append(target)
    rows = [
        f"| {', '.join(f'`{one}`' for one in from_)} | {', '.join(f'`{one}`' for one in to)} | {why} |\n"
        for (from_, why), to in sorted(alike.items(), key=lambda row: order.index(row[0][0][0]))
    ]
    return "| from | to | by, when |\n|---|---|---|\n" + "".join(rows)


def actions() -> str:
    """Every word of the audit trail, as a table."""
    alike: dict[str, list[str]] = {}
    for action in Action:
        alike.setdefault(action.meaning, []).append(f"`{action}`")
    rows = [f"| {', '.join(names)} | {meaning} |\n" for meaning, names in alike.items()]
    return "| `action` | what happened |\n|---|---|\n" + "".join(rows)


def test_the_page_of_states_is_current() -> None:
    page = (ROOT / "docs" / "states.md").read_text()
    assert moves() in page, f"docs/states.md should have:\n{moves()}"
    assert actions() in page, f"docs/states.md should have:\n{actions()}"
    review = (ROOT / "docs" / "review.md").read_text()
    for where, words in ((page, (State, Plan, Outcome, Stage)), (review, (ReviewStatus, Decision))):
        for enum in words:
            assert set(re.findall(r"^\| `(\w+)` \|", where, re.MULTILINE)) >= set(enum), enum


def test_every_module_is_explained() -> None:
    part = ARCHITECTURE.split("\n## Modules")[1].split("\n### ")[0]
    named = set(re.findall(r"^\| `(.+?)` \|", part, re.MULTILINE))
    library = ROOT / "plugins" / "redrive"
    folders = {f"{path.parent.relative_to(library)}/" for path in library.glob("*/__init__.py")}
    folders |= {f"{path.parent.relative_to(library)}/" for path in library.glob("ledger/*/__init__.py")}
    files = {path.name for path in library.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert named == folders | files


def test_every_table_of_the_ledger_is_explained() -> None:
    part = ARCHITECTURE.split("### The ledger's tables")[1].split("\n## ")[0]
    explained = {one for row in re.findall(r"^\| (`.+?) \|", part, re.MULTILINE) for one in re.findall(r"`(\w+)`", row)}
    assert explained == set(tables.metadata.tables)


def test_every_test_that_is_named_as_proof_exists() -> None:
    proofs = (ROOT / "docs" / "crash-windows.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", ARCHITECTURE + proofs)
    assert len(named) > 10
    for file, test in named:
        text = (ROOT / file).read_text()
        assert not test or f"def {test}(" in text, f"{file} has no {test}"


# --- what is said to be there, or not yet ---------------------------------------------------------------------


def test_the_table_of_brokers_is_current() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (works) \|", README, re.MULTILINE)
    assert {name for name, _ in rows} == set(registry.names()) - {"memory"}
    for page in ROOT.glob("docs/brokers/*.md"):
        assert f"(docs/brokers/{page.name})" in README, f"README.md's table of brokers doesn't link {page.name}"
