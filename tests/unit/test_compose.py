"""docker-compose.yml is held against the code, the docs and Compose's own check; `make matrix` starts its services."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from tests.servers import Postgres, ServerMissing, missing

from redrive import settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z0-9_]+)(:[?-])?([^}]*)\}")
each_service = pytest.mark.parametrize("name", SERVICES)


def is_one_shot(service: dict[str, Any]) -> bool:
    return service.get("restart") == "no"


def pinned_version(package: str) -> str:
    match = re.search(rf"^{package}==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert match, package
    return match[1]


def test_the_components_are_there() -> None:
    airflow = {"api-server", "scheduler", "dag-processor", "triggerer", "init"}
    assert set(SERVICES) == airflow | {"postgres", "spark-master", "spark-worker", "sqs"}
    assert {SERVICES[name].get("command") for name in airflow - {"init"}} == airflow - {"init"}


@each_service
def test_images_are_pinned(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].partition(":")
    assert image
    assert re.match(r"\d+\.\d+", tag), f"{name}: {image}:{tag or 'latest'}"


def test_versions_are_those_of_the_requirements() -> None:
    image = (ROOT / "requirements-image.txt").read_text()
    for package in ("apache-airflow", "pyspark", "sqlalchemy", "boto3"):
        assert f"\n{package}=={pinned_version(package)} " in f"\n{image}"
    assert "python:3.11-" in (ROOT / "Dockerfile").read_text(), "the pins were made for it"
    for name in ("spark-master", "spark-worker"):
        assert SERVICES[name]["image"] == SERVICES["scheduler"]["image"], "executors run the driver's Python"


@each_service
def test_every_service_tells_its_health_or_ends(name: str) -> None:
    service = SERVICES[name]
    if is_one_shot(service):
        assert "healthcheck" not in service
    else:
        assert {"test", "interval", "timeout", "retries"} <= set(service["healthcheck"])


@each_service
def test_services_wait_for_what_they_need(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        wanted = "service_completed_successfully" if is_one_shot(SERVICES[needed]) else "service_healthy"
        assert how == {"condition": wanted}


@each_service
def test_nothing_grows_without_end(name: str) -> None:
    assert SERVICES[name]["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}
    assert re.fullmatch(r"\d+[mg]", SERVICES[name]["mem_limit"])


def test_airflow_starts_and_goes_on_without_spark_and_lets_tasks_end() -> None:
    for name, service in SERVICES.items():
        assert name.startswith("spark") or not [one for one in service.get("depends_on", {}) if one.startswith("spark")]
    assert SERVICES["scheduler"]["stop_grace_period"] == "5m"
    assert all(service["init"] for service in SERVICES.values() if service["image"].startswith("redrive:"))


def test_it_says_what_it_is_not() -> None:
    assert "This is not production" in TEXT


@each_service
def test_ports_are_on_loopback(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")


def test_no_secret_has_a_default() -> None:
    secret = re.compile(r"PASSWORD|SECRET|KEY|TOKEN")
    for name, kind, _ in VARIABLE.findall(TEXT):
        if secret.search(name):
            assert kind == ":?", f"{name} needs to be given"
    for service, content in SERVICES.items():
        for name, value in content.get("environment", {}).items():
            if secret.search(name) and not name.endswith("_FILE"):
                assert re.fullmatch(r"\$\{[A-Z_]+:\?run make env\}", str(value)), f"{service}: {name}"
            # No user:password@ with a literal password, in whatever variable.
            for password in re.findall(r"://[^:/\s]+:([^@\s]+)@", str(value)):
                assert password.startswith("${"), f"{service}: {name}"


def test_every_variable_is_in_the_example_and_none_is_left_over() -> None:
    example = dict(
        line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if re.match(r"[A-Z]", line)
    )
    used = {name: (kind, default) for name, kind, default in VARIABLE.findall(TEXT)}
    assert set(example) == set(used)
    for name, (kind, default) in used.items():
        assert example[name] == (default if kind == ":-" else ""), name


def test_our_variables_are_known_to_configuration_or_code() -> None:
    known = (ROOT / "config" / "redrive.yaml").read_text()
    known += "".join(path.read_text() for path in (ROOT / "plugins" / "redrive").rglob("*.py"))
    names = {name for service in SERVICES.values() for name in service.get("environment", {})}
    # The init script of the database is the only one that takes passwords under these names.
    known += (ROOT / "docker" / "postgres-init.sh").read_text()
    for name in names:
        if name.startswith("REDRIVE_"):
            assert name in known, name


def test_the_example_route_finds_its_connections() -> None:
    environment = SERVICES["scheduler"]["environment"]
    route = settings.load(env={"REDRIVE_HOME": str(ROOT)}).route("orders")
    assert route.processed_check is not None
    for connection in (route.connection, route.processed_check.connection):
        assert f"AIRFLOW_CONN_{connection}".upper() in environment


def test_the_configuration_takes_what_compose_gives() -> None:
    environment = {name: VARIABLE.sub("x", str(value)) for name, value in SERVICES["scheduler"]["environment"].items()}
    read = settings.load(env={**environment, "REDRIVE_HOME": str(ROOT)})
    assert read.database.startswith("postgresql+psycopg://ledger:x@postgres:5432/ledger")
    assert read.spark.runner == "submit"
    assert read.spark.master == "spark://spark-master:7077"
    volumes = {mount.split(":")[1] for mount in SERVICES["spark-worker"]["volumes"]}
    assert any(read.staging.startswith(volume) for volume in volumes), "executors have to see staging"


def test_the_queues_of_the_example_are_made() -> None:
    queues = (ROOT / "docker" / "elasticmq.conf").read_text()
    for source in settings.load(env={"REDRIVE_HOME": str(ROOT)}).route("orders").sources:
        assert f"{source.queue} {{" in queues


@each_service
def test_mounts_are_in_the_repository_or_named(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source = mount.split(":")[0]
        if source.startswith("."):
            assert (ROOT / source).exists(), source
            assert mount.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("script", ["docker/postgres-init.sh", "docker/make_env", ".ci/run", ".ci/prerequisites"])
def test_scripts_can_be_executed(script: str) -> None:
    assert (ROOT / script).stat().st_mode & stat.S_IXUSR


def test_fresh_secrets_fill_every_gap_and_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "docker" / "make_env", tmp_path / "docker")
    shutil.copy(ROOT / ".env.example", tmp_path)
    command = [sys.executable, str(tmp_path / "docker" / "make_env")]
    subprocess.run(command, check=True, capture_output=True)
    written = tmp_path / ".env"
    values = dict(line.split("=", 1) for line in written.read_text().splitlines() if re.match(r"[A-Z]", line))
    assert all(values.values())
    assert len(set(values.values())) == len(values)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    before = written.read_text()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1
    assert written.read_text() == before


def test_compose_itself_accepts_the_file(tmp_path: Path) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        missing("docker-compose is not installed")
    assert program
    given = tmp_path / "given.env"
    given.write_text(re.sub(r"=$", "=x", (ROOT / ".env.example").read_text(), flags=re.MULTILINE))
    empty = tmp_path / "empty.env"
    empty.touch()

    def config(env_file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, "--env-file", str(env_file), "config", "-q"],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )

    accepted = config(given)
    assert accepted.returncode == 0, accepted.stderr
    refused = config(empty)
    assert refused.returncode != 0
    assert "run make env" in refused.stderr


@pytest.mark.server
def test_the_init_script_makes_databases_that_only_their_users_enter() -> None:
    psql = shutil.which("psql")
    if psql is None:
        missing("psql is not installed")
    server = Postgres()
    try:
        server.start()
    except ServerMissing as reason:
        missing(str(reason))
    try:
        environment = {
            **os.environ,
            "PGHOST": "127.0.0.1",
            "PGPORT": str(server.port),
            "POSTGRES_USER": "redrive",
            "AIRFLOW_DATABASE_PASSWORD": "it's one",
            "REDRIVE_DATABASE_PASSWORD": "two",
            "SHOP_DATABASE_PASSWORD": "three",
        }
        subprocess.run([str(ROOT / "docker" / "postgres-init.sh")], check=True, env=environment, capture_output=True)
        address = {"host": "127.0.0.1", "port": server.port, "autocommit": True}
        with psycopg.connect(user="shop", dbname="shop", **address) as shop:
            assert shop.execute("select count(*) from processed").fetchone() == (0,)
        with psycopg.connect(user="ledger", dbname="ledger", **address) as ledger:
            ledger.execute("create schema redrive")
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(user="shop", dbname="ledger", **address)
    finally:
        server.__exit__(None, None, None)
