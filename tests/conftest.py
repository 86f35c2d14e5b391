"""Fixtures that all layers share: the servers that tests start."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from redrive.garbage import fewer_collections
from tests import aws_models, blank, engines, scratch
from tests.elasticmq_server import ElasticMq
from tests.pulsar_server import Pulsar
from tests.real_airflow import House, shop  # noqa: F401 - a fixture
from tests.scheduling import Scheduling, unit_of
from tests.server_report import ServerReport, no_skip
from tests.servers import Ministack, Postgres, RabbitMQ, Server, ServerMissing, missing

scratch.use_memory()
engines.share()
aws_models.share()

# Tests talk to loopback only: no proxy between, and nobody's AWS account within reach.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull

# Importing Airflow writes there: never into somebody's own, nor into another worker's.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="redrive-airflow-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

# Tests start hundreds of Pythons, and without compiled files each would compile Airflow or SQLAlchemy anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


#: What stops what a unit of tests started and nobody else needs, by the unit's name.
_STOPS = pytest.StashKey[dict[str, Callable[[], object]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ServerReport(), "redrive-server-report")
    config.pluginmanager.register(Scheduling(), "redrive-scheduling")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Each worker keeps all tests to its end: no garbage is looked for in them, neither now nor later."""
    with fewer_collections():
        found = yield
    gc.freeze()
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make matrix` runs what takes too long for every change, and only it."""
    if not os.environ.get("REDRIVE_MATRIX"):
        left_out = [item for item in items if item.get_closest_marker("matrix")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip is a failure where nothing may skip."""
    return no_skip((yield), os.environ)


def _run(server: Server) -> Iterator[Server]:
    try:
        with server:
            yield server
    except ServerMissing as reason:
        missing(str(reason))


@pytest.fixture(scope="session")
def ministack() -> Iterator[Server]:
    """One SQS-compatible server for the session; tests make queues with names of their own."""
    yield from _run(Ministack())


@pytest.fixture(scope="session")
def elasticmq() -> Iterator[Server]:
    """Another SQS-compatible server for the session."""
    yield from _run(ElasticMq())


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[Server]:
    """One RabbitMQ node for the session; tests make queues with names of their own."""
    yield from _run(RabbitMQ())


@pytest.fixture(scope="session")
def pulsar_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One Apache Pulsar for the tests that stay together for it; they make topics with names of their own."""
    for server in _run(Pulsar()):
        request.config.stash.setdefault(_STOPS, {})["pulsar"] = server.stop
        yield server


@pytest.fixture(scope="session")
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The Airflow of the tests that stay together for it; each file has a shop of its own."""
    one = House(tmp_path_factory.mktemp("house"))
    request.config.stash.setdefault(_STOPS, {})["airflow"] = one.stop
    yield one
    one.stop()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop with the last of its tests what takes a core for nothing: Airflow, and Pulsar when its memory is full."""
    unit = unit_of(item.nodeid)
    if (nextitem is None or unit_of(nextitem.nodeid) != unit) and (
        stop := item.config.stash.get(_STOPS, {}).pop(unit, None)
    ):
        stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One PostgreSQL for the session."""
    yield from _run(Postgres())


@pytest.fixture
def postgres_database(postgres: Postgres) -> Iterator[str]:
    """The URL of a fresh, empty PostgreSQL database."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a ledger database of the test's own: what holds on SQLite must hold on PostgreSQL too.

    On SQLite there is nothing yet, on PostgreSQL there is the schema: :mod:`tests.blank` makes ledgers of both.
    """
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/redrive.db"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    url = blank.database(postgres.database_url("postgres"))
    yield url
    postgres.drop_database(url)
