"""``redrive up``: Airflow with every DAG scheduled, and what else the routes need, until Ctrl-C."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import MappingProxyType

from redrive import settings as configuration
from redrive.connections.lookup import variable_of
from redrive.dev import local_airflow, local_spark
from redrive.dev.local_airflow import Airflow
from redrive.errors import UsageError
from redrive.settings import Settings

DEFAULT_PORT = 8080
#: Starts something below a home folder, and yields the environment by which its connections are found.
World = Callable[[Path], AbstractContextManager[Mapping[str, str]]]


def up(
    settings: Settings,
    port: int | None = None,
    *,
    worlds: Mapping[str, World] = MappingProxyType({}),
    say: Callable[[str], None] = print,
) -> int:
    """``redrive up``: run Airflow with every DAG scheduled until Ctrl-C; returns the exit code.

    ``port`` defaults to ``$PORT`` or 8080. ``worlds`` says, by connection id, what can be started for routes of
    which that connection is and the environment doesn't define it: the demo's broker and shop. An empty ledger is
    made; one of another version is refused with :class:`~redrive.errors.SchemaOutdated`. Where the configuration
    lets the environment choose Spark's runner and nobody has chosen, a Spark Connect server is started as well; one
    that ends is started again, and :class:`~redrive.dev.local_spark.SparkFailed` raised when that doesn't help.
    """
    chosen = port if port is not None else port_from(os.environ.get("PORT"))
    local_airflow.refuse_taken(chosen)
    signal.signal(signal.SIGTERM, _interrupt)  # `kill` and a closing terminal stop the children as Ctrl-C does
    signal.signal(signal.SIGHUP, _interrupt)
    home = configuration.home()
    try:
        with ExitStack() as stack:
            base = dict(os.environ)
            for connection in sorted({route.connection or "" for route in settings.routes.values()}):
                if connection in worlds and variable_of(connection) not in os.environ:
                    say(f"connection {connection} is not defined: starting the demo's ...")
                    base |= stack.enter_context(worlds[connection](home))
            _make_ledger(settings)
            server = None
            if spark_is_ours(base):
                say("starting Spark Connect ...")
                server = stack.enter_context(local_spark.started(home, settings.spark))
                base |= server.environment
            say("starting Airflow: about 20 seconds ...")
            airflow, watch = stack.enter_context(local_airflow.started(home, chosen, base=base))
            watch.until_healthy(airflow, timeout=180)
            if server is not None:
                server.until_ready()
            for line in _greeting(airflow, settings, server):
                say(line)
            watch.until_one_ends((lambda: server.revive(say)) if server is not None else None)
    except KeyboardInterrupt:
        say("stopped")
    return 0


def spark_is_ours(env: Mapping[str, str]) -> bool:
    """Whether the configuration takes Spark's runner and address from the environment, and ``env`` says none."""
    if env.get(local_spark.RUNNER_VARIABLE):
        return False
    probe = "sc://localhost:1"
    asked = {local_spark.RUNNER_VARIABLE: "connect", local_spark.REMOTE_VARIABLE: probe}
    spark = configuration.load(env={**env, **asked}).spark
    return (spark.runner, spark.remote) == ("connect", probe)


def _make_ledger(settings: Settings) -> None:
    from datetime import UTC, datetime  # noqa: PLC0415

    from redrive.ledger import schema  # noqa: PLC0415
    from redrive.ledger.engine import Ledger  # noqa: PLC0415

    ledger = Ledger(settings.database)
    try:
        if schema.revision(ledger) is None:
            schema.upgrade(ledger, datetime.now(UTC))
        schema.check(ledger)
    finally:
        ledger.close()


def _greeting(airflow: Airflow, settings: Settings, server: local_spark.ConnectServer | None) -> Iterator[str]:
    yield f"Airflow      {airflow.url}"
    yield f"review page  {airflow.url}/plugin/redrive"
    yield f"user         {airflow.user}"
    yield f"password     {airflow.password}   (kept in {airflow.home / 'simple_auth_manager_passwords.json'})"
    if server is not None:
        yield f"Spark        Connect at {server.remote}, for these DAGs only; log {server.log}"
    yield "scheduled"
    for name, route in settings.routes.items():
        when = route.schedule or "by hand"
        yield f"  redrive_{name:<22} {when}"
    yield "  redrive_review and redrive_audit, for all routes"
    yield f"logs         {airflow.home}"
    yield "Ctrl-C stops everything."


def port_from(text: str | None) -> int:
    """The port that ``$PORT`` says, else the default; raises :class:`~redrive.errors.UsageError` where it is none."""
    if not text:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise UsageError(f"PORT={text!r} is not a port; a number from 1 to 65535 is")
    return int(text)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
