"""The demo's place on disk: what it owns there, what it may remove, and the environment of its runs."""

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from redrive.connections.lookup import variable_of
from redrive.dev.demo import world
from redrive.errors import UsageError
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from redrive.settings import Settings, checkout

ROUTE = "orders"
BROKER_CONNECTION, DATABASE_CONNECTION = "sqs_demo", "orders_db"


def root() -> Path:
    """The folder that holds dags/, plugins/ and config/: the demo runs this code, whatever $REDRIVE_CONFIG says."""
    found = checkout()
    if found is None:
        raise UsageError(
            "the demo needs what an installed package leaves out, its shop's broker and configuration: clone the"
            " repository and say `make run` there"
        )
    return found


@dataclass(frozen=True, slots=True)
class Workspace:
    """``var/redrive.db``, ``var/staging`` and ``var/demo`` below ``home``."""

    home: Path

    @property
    def folder(self) -> Path:
        """Logs, the shop's databases, and the marker."""
        return self.home / "var" / "demo"

    @property
    def ledger_file(self) -> Path:
        return self.home / "var" / "redrive.db"

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.ledger_file}"

    @property
    def staging(self) -> Path:
        return self.home / "var" / "staging"

    @property
    def marker(self) -> Path:
        """Says which ledger the demo made."""
        return self.folder / "made-by-demo.json"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other demos out of this workspace; raises :class:`UsageError` if one is in it."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with (self.home / "var" / "demo.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"a demo or `make up` already runs in {self.home / 'var'}; end it first, "
                    "or run this one elsewhere: REDRIVE_HOME=/some/folder redrive demo"
                ) from None
            yield

    def claim(self, *, fresh: bool) -> None:
        """Make the folder the demo's; with ``fresh``, remove what an earlier demo left.

        Raises :class:`UsageError` without touching anything if a ledger or staged payloads are there that no
        demo made: they may be somebody's messages.
        """
        self._refuse_foreign()
        if fresh:
            for suffix in ("", "-wal", "-shm", "-journal"):
                self.ledger_file.with_name(self.ledger_file.name + suffix).unlink(missing_ok=True)
            shutil.rmtree(self.staging, ignore_errors=True)
            # The marker goes last, so that a removal that was cut short can be repeated.
            shutil.rmtree(self.folder, ignore_errors=True)
        self.announce()

    def announce(self) -> None:
        """Say that the ledger which is about to be made here is the demo's; one that is here already is not.

        This comes before the ledger: a demo that dies in between must not lock the next one out.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.marker.exists() and not _is_something(self.ledger_file):
            self.marker.write_text(json.dumps({"ledger": str(self.ledger_file), "ledger_id": None}))

    def open_ledger(self, now: datetime) -> Ledger:
        """Create or upgrade the ledger, and write into the marker which one it is."""
        ledger = Ledger(self.ledger_url)
        schema.upgrade(ledger, now)
        with ledger.read() as connection:
            ledger_id = schema.ledger_id(connection)
        self.marker.write_text(json.dumps({"ledger": str(self.ledger_file), "ledger_id": ledger_id}))
        return ledger

    def environment(self, endpoint: str, orders_db: Path, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with everything pointed at this workspace, and at nothing else.

        Whatever the user's shell says about AWS, Redrive or the two connections is left out, so that the demo
        can't read or write somebody's real queues.
        """
        kept = {key: value for key, value in base.items() if not key.startswith(("AWS_", "REDRIVE_"))}
        return (
            kept
            | connections(endpoint, orders_db)
            | past_proxies(kept)
            | {
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "REDRIVE_HOME": str(self.home),
                "REDRIVE_CONFIG": str(root() / "config" / "redrive.yaml"),
                "REDRIVE_DATABASE_URL": self.ledger_url,
                "REDRIVE_STAGING_URI": str(self.staging),
            }
        )

    def _refuse_foreign(self) -> None:
        if _is_something(self.ledger_file):
            ledger_id, routes = _inside(self.ledger_file)
            if routes - {ROUTE}:
                problem = (
                    f"{self.ledger_file} holds other routes than the demo's: {', '.join(sorted(routes - {ROUTE}))}"
                )
            elif self._marked_id() in ("", ledger_id):
                return
            else:
                problem = f"{self.ledger_file} was not made by the demo"
        elif self.staging.is_dir() and any(self.staging.iterdir()) and not self.marker.exists():
            problem = f"{self.staging} was not made by the demo"
        else:
            return
        raise UsageError(
            f"{problem}, so the demo leaves it alone; "
            "move it away, or run the demo elsewhere: REDRIVE_HOME=/some/folder redrive demo"
        )

    def _marked_id(self) -> str | None:
        """The ledger id in the marker; "" if the demo died before it knew it, None without a marker."""
        try:
            return json.loads(self.marker.read_text())["ledger_id"] or ""
        except (OSError, ValueError, KeyError):
            return None


def connections(endpoint: str, orders_db: Path) -> dict[str, str]:
    """The environment variables of the two Airflow connections of the demo's route."""
    world.refuse_remote(endpoint)
    broker = {
        "conn_type": "aws",
        "login": world.ACCESS_KEY,
        "password": world.SECRET_KEY,
        "extra": {"region_name": world.REGION, "endpoint_url": endpoint},
    }
    return {
        variable_of(BROKER_CONNECTION): json.dumps(broker),
        variable_of(DATABASE_CONNECTION): json.dumps({"conn_type": "sqlite", "host": str(orders_db)}),
    }


def past_proxies(base: Mapping[str, str]) -> dict[str, str]:
    """What keeps loopback traffic out of the proxies that ``base`` names, beside what it excepts already."""
    excepted = base.get("no_proxy") or base.get("NO_PROXY") or ""
    hosts = ",".join(filter(None, [excepted, "127.0.0.1,localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def refuse_other_configuration(settings: Settings) -> None:
    """Raise :class:`UsageError` if config/redrive.yaml has been changed into somebody's own."""
    route = settings.routes.get(ROUTE)
    if route is None or (route.broker, route.connection) != ("amazon_sqs", BROKER_CONNECTION):
        raise UsageError(
            f"config/redrive.yaml no longer has the demo's route {ROUTE!r} on connection "
            f"{BROKER_CONNECTION!r}, so the demo would touch queues that are not its own; "
            "restore the file to run the demo"
        )


@contextmanager
def terminable() -> Iterator[None]:
    """Make ``kill`` and a closing terminal stop the demo as Ctrl-C does, with everything it started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {which: signal.signal(which, interrupt) for which in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _is_something(file: Path) -> bool:
    """Whether ``file`` is there and more than a database without tables, which is what is left of an upgrade that was
    killed, and of a look at a ledger that was not there yet."""
    if not file.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as ledger:
            return ledger.execute("select 1 from sqlite_master").fetchone() is not None
    except sqlite3.Error:
        return True


def _inside(file: Path) -> tuple[str, set[str]]:
    """The id of the ledger in ``file`` and the routes that it knows; "?" for what is no ledger."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as ledger:
            row = ledger.execute("select ledger_id from ledger_identity").fetchone()
            routes = ledger.execute("select route from runs union select route from staging_batches").fetchall()
    except sqlite3.Error:
        return "?", set()
    return str(row[0]) if row else "?", {route for (route,) in routes}
