"""What the demo may remove, and that nothing of the user's own set-up gets into its runs."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from redrive import settings
from redrive.connections import lookup
from redrive.dev.demo import workspace
from redrive.dev.demo.workspace import Workspace
from redrive.errors import UsageError

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ENDPOINT = "http://127.0.0.1:4599"


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def a_demo_that_ran(place: Workspace) -> None:
    place.claim(fresh=True)
    place.open_ledger(NOW).close()
    place.staging.mkdir(parents=True, exist_ok=True)
    (place.staging / "batch.parquet").write_bytes(b"PAR1")


def test_a_fresh_demo_removes_what_the_last_one_made(place: Workspace) -> None:
    a_demo_that_ran(place)

    place.claim(fresh=True)

    assert not place.ledger_file.exists()
    assert not place.staging.exists()


def test_a_demo_that_is_not_fresh_goes_on_with_its_ledger(place: Workspace) -> None:
    a_demo_that_ran(place)

    place.claim(fresh=False)

    assert place.ledger_file.exists()
    assert (place.staging / "batch.parquet").exists()


@pytest.mark.parametrize("fresh", [True, False])
def test_a_ledger_that_no_demo_made_is_left_alone(place: Workspace, fresh: bool) -> None:
    a_demo_that_ran(place)
    place.marker.unlink()

    with pytest.raises(UsageError, match="not made by the demo"):
        place.claim(fresh=fresh)

    assert place.ledger_file.exists()
    assert (place.staging / "batch.parquet").exists()


def test_a_ledger_that_took_the_place_of_the_demos_is_left_alone(place: Workspace) -> None:
    a_demo_that_ran(place)
    with closing(sqlite3.connect(place.ledger_file)) as other, other:
        other.execute("update ledger_identity set ledger_id = 'somebody'")

    with pytest.raises(UsageError, match="not made by the demo"):
        place.claim(fresh=True)


def test_a_demo_ledger_that_went_on_to_hold_somebodys_route_is_left_alone(place: Workspace) -> None:
    a_demo_that_ran(place)
    with closing(sqlite3.connect(place.ledger_file)) as theirs, theirs:
        theirs.execute(
            "insert into runs (run_id, route, trigger, holder, fence, status, started_at)"
            " values ('r', 'payments', 'schedule', 'worker-1', 1, 'succeeded', '2026-03-01 00:00:00.000000')"
        )

    with pytest.raises(UsageError, match="holds other routes than the demo's: payments"):
        place.claim(fresh=True)

    assert place.ledger_file.exists()


def test_a_ledger_that_make_up_began_is_the_demos_too(place: Workspace) -> None:
    place.announce()
    marker = place.marker.read_text()
    place.open_ledger(NOW).close()
    place.marker.write_text(marker)  # `make up` makes the ledger by itself

    place.claim(fresh=True)

    assert not place.ledger_file.exists()


def test_announcing_does_not_make_somebodys_ledger_the_demos(place: Workspace) -> None:
    a_demo_that_ran(place)
    place.marker.unlink()

    place.announce()

    with pytest.raises(UsageError, match="not made by the demo"):
        place.claim(fresh=True)


@pytest.mark.parametrize("made", ["create table t (a); drop table t", ""])
def test_a_database_without_tables_is_in_nobodys_way(place: Workspace, made: str) -> None:
    place.ledger_file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(place.ledger_file)) as empty:
        empty.executescript(made)

    place.claim(fresh=False)
    place.open_ledger(NOW).close()
    place.claim(fresh=True)

    assert not place.ledger_file.exists()


def test_staged_payloads_beside_a_database_without_tables_are_left_alone(place: Workspace) -> None:
    place.staging.mkdir(parents=True)
    (place.staging / "batch.parquet").write_bytes(b"PAR1")
    place.ledger_file.touch()

    with pytest.raises(UsageError, match="staging was not made by the demo"):
        place.claim(fresh=True)


def test_a_file_that_is_no_ledger_is_left_alone(place: Workspace) -> None:
    a_demo_that_ran(place)
    place.ledger_file.write_text("my notes, not a database")

    with pytest.raises(UsageError, match="not made by the demo"):
        place.claim(fresh=True)


def test_staged_payloads_without_a_marker_are_left_alone(place: Workspace) -> None:
    place.staging.mkdir(parents=True)
    (place.staging / "batch.parquet").write_bytes(b"PAR1")

    with pytest.raises(UsageError, match="staging was not made by the demo"):
        place.claim(fresh=True)


def test_a_demo_that_died_before_it_knew_its_ledger_does_not_lock_out_the_next(place: Workspace) -> None:
    place.claim(fresh=True)
    marker = place.marker.read_text()
    place.open_ledger(NOW).close()
    place.marker.write_text(marker)

    place.claim(fresh=True)

    assert not place.ledger_file.exists()


def test_runs_see_the_demos_server_whatever_the_shell_says(place: Workspace) -> None:
    shell = {
        "AIRFLOW_CONN_SQS_DEMO": "aws://real:secret@?region_name=eu-west-1",
        "AIRFLOW_CONN_ORDERS_DB": "postgres://prod/orders",
        "AWS_PROFILE": "production",
        "AWS_ENDPOINT_URL": "https://sqs.eu-west-1.amazonaws.com",
        "REDRIVE_CONFIG": "/etc/redrive/production.yaml",
        "REDRIVE_DATABASE_URL": "postgresql://prod/redrive",
        "PATH": "/usr/bin",
    }

    env = place.environment(ENDPOINT, place.folder / "orders.db", shell)

    assert lookup.get("sqs_demo", env).extra["endpoint_url"] == ENDPOINT
    assert str(lookup.sqlalchemy_url(lookup.get("orders_db", env))).endswith("/demo/orders.db")
    assert settings.load(env=env).database == place.ledger_url
    assert env["PATH"] == "/usr/bin"
    assert "AWS_PROFILE" not in env
    assert not any("amazonaws" in value or "prod" in value for value in env.values())


def test_a_connection_to_elsewhere_can_not_even_be_written_down(place: Workspace) -> None:
    with pytest.raises(UsageError, match="only sends to this machine"):
        workspace.connections("https://sqs.eu-west-1.amazonaws.com", place.folder / "orders.db")


def test_the_example_configuration_is_the_demos(place: Workspace) -> None:
    env = place.environment(ENDPOINT, place.folder / "orders.db", {})
    workspace.refuse_other_configuration(settings.load(env=env))


@pytest.mark.parametrize("change", [("connection: sqs_demo", "connection: prod"), ("orders:\n", "bills:\n")])
def test_a_configuration_of_somebodys_own_is_refused(place: Workspace, change: tuple[str, str]) -> None:
    text = (workspace.root() / "config" / "redrive.yaml").read_text().replace(*change)
    own = settings.parse(text, env={}, root=place.home)

    with pytest.raises(UsageError, match="no longer has the demo's route"):
        workspace.refuse_other_configuration(own)


def test_the_marker_names_the_ledger(place: Workspace) -> None:
    a_demo_that_ran(place)

    assert json.loads(place.marker.read_text())["ledger_id"]


def test_two_demos_do_not_share_a_workspace(place: Workspace) -> None:
    with place.alone(), pytest.raises(UsageError, match="already runs"), Workspace(place.home).alone():
        pytest.fail("the second one came in")

    with place.alone():
        pass  # free again
