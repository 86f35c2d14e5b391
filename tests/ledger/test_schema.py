"""The schema: what migrations build is what the code expects, and upgrading is harmless."""

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.command import downgrade
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from redrive.errors import LedgerBusy, LedgerError, SchemaOutdated, SettingsError
from redrive.ledger import schema, tables
from redrive.ledger.dialects import postgresql
from redrive.ledger.engine import Ledger, sql
from tests.ledger.planting import NOW, Plant


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database in which there is nothing yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/redrive.db"
    return str(request.getfixturevalue("postgres_database"))


#: What others rely on: "Tables" in the public contract.
PUBLIC = {
    "messages": (
        "message_id redrive_id parent_id route source broker_message_id state cause group_id attempts first_enqueued_at"
        " dead_lettered_at next_attempt_at"
    ),
    "redelivery_attempts": "message_id attempt claimed_at sent_at unknown_at outcome outcome_at",
    "failure_groups": "group_id fingerprint cause template",
    "escalated_messages": (
        "message_id route group_id cause reason error_text payload status decision decided_by decided_at note"
        " corrected_body refusal"
    ),
    "review_groups": "route group_id open_messages",
    "failure_issues": "route group_id status owner ticket ignored_until_at",
    "issue_comments": "route group_id written_by written_at text",
    "issue_state": "route group_id status owner ticket",
    **dict.fromkeys(
        (
            "runs", "route_state", "staging_batches", "group_state", "standing_decisions", "queue_observations",
            "consumer_health", "audit_events", "message_balance", "route_summary", "cause_trend",
            "group_trend",
        ),
        "",
    ),
}  # fmt: skip


def test_migrations_build_exactly_the_tables_of_the_code(ledger: Ledger) -> None:
    here = ledger.dialect.name
    with ledger.read() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": here != "sqlite",
                "include_object": lambda one, *_: one.info.get("only_on", here) == here,
            },
        )
        assert compare_metadata(context, tables.metadata) == []


def test_migrations_build_the_same_constraints_as_the_code(ledger_url: str) -> None:
    """Alembic's comparison does not see CHECK constraints and table options; their definitions do."""
    ledger = Ledger(ledger_url)
    schema.upgrade(ledger, NOW)
    migrated = _definitions(ledger)
    _empty(ledger)
    tables.metadata.create_all(ledger.engine)
    assert _definitions(ledger) == migrated
    assert "ck_messages_state" in str(migrated)
    ledger.close()


def _empty(ledger: Ledger) -> None:
    with ledger.write() as connection:
        if ledger.dialect.name != "sqlite":
            connection.exec_driver_sql("drop schema redrive cascade")
            connection.exec_driver_sql("create schema redrive")
            return
        for kind in ("view", "table"):
            names = connection.execute(
                sql("select name from sqlite_master where type = :kind and name not like 'sqlite%'"), {"kind": kind}
            ).scalars()
            for name in list(names):
                connection.exec_driver_sql(f"drop {kind} {name}")


def _definitions(ledger: Ledger) -> dict[str, list[str]]:
    with ledger.read() as connection:
        if ledger.dialect.name != "sqlite":
            constraints = connection.execute(
                sql(
                    "select conname, pg_get_constraintdef(oid) from pg_constraint"
                    " where connamespace = to_regnamespace('redrive') and conname not like 'alembic%'"
                    " and contype <> 't'"
                    " union all select indexname, indexdef from pg_indexes"
                    " where schemaname = 'redrive' and indexname not like 'alembic%'"
                )
            )
            return {name: [text] for name, text in constraints}
        rows = connection.execute(
            sql("select name, sql from sqlite_master where type in ('table', 'index') and sql is not null")
        ).all()
    return {
        row.name: sorted(line.strip(" \t,") for line in row.sql.splitlines())
        for row in rows
        if not row.name.startswith(("alembic", "sqlite"))
    }


def test_every_public_column_exists_and_every_view_selects(ledger: Ledger) -> None:
    with ledger.read() as connection:
        for name, columns in PUBLIC.items():
            found = set(connection.execute(sql(f"select * from {name}")).keys())
            assert set(columns.split()) <= found, name


def test_views_select_with_rows_in_them(plant: Plant) -> None:
    group = plant.group()
    plant.messages(2, group_id=group)
    plant.send()
    plant.change("update messages set state = 'presumed'")
    plant.change("update redelivery_attempts set outcome = 'presumed', outcome_at = :now", now=plant.now)
    assert [(r[1], r[2], int(r[3])) for r in plant.rows("select * from cause_trend")] == [
        ("2025-10-09", "transient_network", 2)
    ]
    assert [(*r[1:3], *map(int, r[3:])) for r in plant.rows("select * from group_trend")] == [
        (group, "2025-10-09", 2, 2, 0)
    ]
    ((messages, p50),) = plant.rows("select messages, p50_seconds from route_summary")
    assert (int(messages), float(p50)) == (2, pytest.approx(0, abs=0.01))


def test_upgrading_twice_is_harmless(plant: Plant) -> None:
    plant.messages(1)
    identity = plant.rows("select * from ledger_identity")
    assert schema.upgrade(plant.ledger, NOW) == schema.head()
    assert plant.rows("select * from ledger_identity") == identity
    assert plant.states() == {"classified": 1}
    schema.check(plant.ledger)


def test_upgrades_at_once_wait_for_each_other(ledger_url: str) -> None:
    errors: list[BaseException] = []

    def upgrade() -> None:
        ledger = Ledger(ledger_url)
        try:
            schema.upgrade(ledger, NOW)
        except BaseException as error:
            errors.append(error)
        finally:
            ledger.close()

    threads = [threading.Thread(target=upgrade) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    ledger = Ledger(ledger_url)
    schema.check(ledger)
    with ledger.read() as connection:
        assert connection.execute(sql("select count(*) from ledger_identity")).scalar_one() == 1
    ledger.close()


def test_an_empty_database_says_what_to_run(ledger_url: str) -> None:
    ledger = Ledger(ledger_url)
    with pytest.raises(SchemaOutdated, match=r"is at nothing, this version needs .* run `redrive db upgrade`"):
        schema.check(ledger)
    ledger.close()


def test_only_an_upgrade_makes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new folder #1" / "redrive.db"
    ledger = Ledger(f"sqlite:///{path}")
    with pytest.raises(SchemaOutdated, match=r"is at nothing.* it is not there"):
        schema.check(ledger)
    absent = "is at nothing: there is no such file. Run `redrive db upgrade`"
    with pytest.raises(SchemaOutdated, match=absent), ledger.write():
        pass
    assert not path.parent.exists()
    schema.upgrade(ledger, NOW)
    schema.check(ledger)
    path.unlink()
    with pytest.raises(SchemaOutdated, match=absent), ledger.read():  # its connections still have what was removed
        pass
    assert not path.exists()
    ledger.close()


def test_an_address_that_names_no_file_of_ours_is_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    ledger = Ledger(f"sqlite:///file:{path}?uri=true")
    schema.upgrade(ledger, NOW)
    schema.check(ledger)
    assert path.exists()
    ledger.close()
    assert not Ledger("sqlite:///:memory:").is_absent()


def test_an_older_schema_says_what_to_run(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_revisions", lambda: {"0001", "0002"})
    with pytest.raises(SchemaOutdated, match=r"is at 0001, this version needs 0002: run `redrive db upgrade`"):
        schema.check(ledger)


def test_a_schema_of_another_version_is_left_alone(plant: Plant) -> None:
    plant.messages(1)
    plant.change("update alembic_version set version_num = '0017'")
    for attempt in (lambda: schema.check(plant.ledger), lambda: schema.upgrade(plant.ledger, NOW)):
        with pytest.raises(SchemaOutdated, match=r"is at 0017, which this version does not know; its newest is 0001"):
            attempt()
    assert plant.states() == {"classified": 1}


def test_a_schema_of_a_checkout_from_before_the_release_is_left_alone(plant: Plant) -> None:
    plant.messages(1)
    plant.change("alter table delivery_slices drop column task_try")
    with pytest.raises(SchemaOutdated, match=r"delivery_slices has no task_try\. Nothing was changed"):
        schema.upgrade(plant.ledger, NOW)
    assert plant.states() == {"classified": 1}


def test_the_head_is_what_alembic_says() -> None:
    assert schema.head() == ScriptDirectory.from_config(schema._config()).get_current_head()


def test_going_back_is_refused_and_loses_nothing(plant: Plant) -> None:
    plant.messages(1)
    config = schema._config()
    with plant.ledger.engine.begin() as connection:
        config.attributes["connection"] = connection
        with pytest.raises(NotImplementedError, match="only goes forward"):
            downgrade(config, "base")
    schema.check(plant.ledger)
    assert plant.states() == {"classified": 1}


def test_another_database_than_ours_is_refused() -> None:
    with pytest.raises(SettingsError, match="mysql is not supported"):
        Ledger("mysql://127.0.0.1/redrive")


@pytest.mark.server
class TestPostgres:
    """What only PostgreSQL can get wrong."""

    def test_everything_lives_in_schema_redrive(self, postgres_database: str) -> None:
        ledger = Ledger(postgres_database)
        schema.upgrade(ledger, NOW)
        with ledger.read() as connection:
            found = connection.execute(
                sql(
                    "select distinct schemaname from pg_tables where schemaname not in ('pg_catalog',"
                    " 'information_schema')"
                )
            ).scalars()
            assert list(found) == ["redrive"]
        ledger.close()

    def test_a_days_changes_are_tidied_up_however_many_messages_there_are(self, postgres_database: str) -> None:
        ledger = Ledger(postgres_database)
        schema.upgrade(ledger, NOW)
        changing = sql(
            "select option_value from pg_class, pg_options_to_table(reloptions)"
            " where relnamespace = 'redrive'::regnamespace and relname = :table and option_name in"
            " ('autovacuum_vacuum_scale_factor', 'autovacuum_vacuum_insert_scale_factor',"
            " 'autovacuum_analyze_scale_factor')"
        )
        with ledger.read() as connection:
            for table in ("messages", "redelivery_attempts", "escalated_messages"):
                shares = [float(share) for share in connection.execute(changing, {"table": table}).scalars()]
                assert len(shares) == 3
                assert max(shares) * 5_000_000 <= 10_000, "of a year's messages, those of an hour or a few"
        ledger.close()

    def test_another_tools_migrations_in_the_same_database_are_left_alone(self, postgres_database: str) -> None:
        engine = sa.create_engine(postgres_database)
        with engine.begin() as connection:
            connection.exec_driver_sql("create table public.alembic_version (version_num text)")
            connection.exec_driver_sql("insert into public.alembic_version values ('theirs')")
        ledger = Ledger(postgres_database)
        with pytest.raises(SchemaOutdated):
            schema.check(ledger)
        schema.upgrade(ledger, NOW)
        with engine.begin() as connection:
            theirs = connection.exec_driver_sql("select version_num from public.alembic_version").scalars().all()
        assert theirs == ["theirs"]
        ledger.close()
        engine.dispose()

    def test_who_left_a_transaction_open_does_not_stop_everybody_else(
        self, postgres_database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An upgrade waits for who reads a view, and whoever comes next would wait for the upgrade."""
        monkeypatch.setattr(postgresql, "_UPGRADE_PATIENCE", "1s")
        ledger = Ledger(postgres_database)
        schema.upgrade(ledger, NOW)
        elsewhere = sa.create_engine(ledger.url)
        with elsewhere.connect() as lunch:
            lunch.exec_driver_sql("select * from redrive.group_state")
            with pytest.raises(LedgerBusy, match="Somebody else has the same open"):
                schema.upgrade(ledger, NOW)
            lunch.rollback()
            schema.upgrade(ledger, NOW)
        elsewhere.dispose()
        ledger.close()

    def test_what_people_built_on_a_view_survives_an_upgrade(self, postgres_database: str) -> None:
        ledger = Ledger(postgres_database)
        schema.upgrade(ledger, NOW)
        with ledger.write() as connection:
            connection.exec_driver_sql("create view public.ours as select * from redrive.message_balance")
        schema.upgrade(ledger, NOW)
        with ledger.read() as connection:
            assert connection.exec_driver_sql("select * from public.ours").all() == []
        ledger.close()

    def test_a_view_whose_columns_changed_is_made_anew_or_says_who_is_in_the_way(self, postgres_database: str) -> None:
        ledger = Ledger(postgres_database)
        schema.upgrade(ledger, NOW)
        with ledger.write() as connection:
            connection.exec_driver_sql("drop view route_summary, message_balance")
            connection.exec_driver_sql("create view message_balance as select 'an older version' as something")
        schema.upgrade(ledger, NOW)
        with ledger.write() as connection:
            assert "copies_difference" in set(connection.execute(sql("select * from message_balance")).keys())
            connection.exec_driver_sql("drop view route_summary, message_balance")
            connection.exec_driver_sql("create view message_balance as select 'an older version' as something")
            connection.exec_driver_sql("create view public.ours as select * from redrive.message_balance")
        with pytest.raises(LedgerError, match=r"(?s)message_balance has to change.*ours"):
            schema.upgrade(ledger, NOW)
        ledger.close()

    def test_an_owner_without_the_right_to_create_schemas_upgrades_an_existing_one(
        self, postgres_database: str
    ) -> None:
        admin = sa.create_engine(postgres_database, isolation_level="AUTOCOMMIT")
        name = f"app_{postgres_database.rpartition('/')[2]}"
        with admin.connect() as connection:
            connection.exec_driver_sql(f"create role {name} login nosuperuser nocreaterole")
            connection.exec_driver_sql(f"create schema redrive authorization {name}")
        ledger = Ledger(postgres_database.replace("//redrive@", f"//{name}@"))
        schema.upgrade(ledger, NOW)
        schema.check(ledger)
        ledger.close()
        with admin.connect() as connection:
            connection.exec_driver_sql(f"drop owned by {name} cascade")
            connection.exec_driver_sql(f"drop role {name}")
        admin.dispose()
