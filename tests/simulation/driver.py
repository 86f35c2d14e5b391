"""Runs the product in a world: settings, ledger, staging, all stages, with the world's clock and dice.

This, ``life.py`` and ``client.py`` are the only modules here that know Redrive's code.
"""

import atexit
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
import yaml
from sqlalchemy.engine import make_url

from redrive.brokers.rabbitmq import measured as rabbitmq
from redrive.errors import RedriveError, RouteBusy, RoutePaused, SettingsError
from redrive.ledger import leases, schema
from redrive.ledger.delivery import breakers, in_flight
from redrive.ledger.dialects import Sqlite, sqlite_file
from redrive.ledger.engine import Ledger
from redrive.ledger.selecting import Selection
from redrive.settings import Settings, parse
from redrive.stages import deliver as deliver_stage
from redrive.stages import notify, pipeline
from redrive.stages.beside import Beside
from redrive.stages.context import Run
from redrive.stages.preview import preview
from redrive.staging import batch_files, batch_writer
from redrive_ui import failure_queries, message_queries, result_queries, route_queries
from redrive_ui.filters import Filter
from tests import scratch
from tests.classifying import classify
from tests.simulation import life, sql
from tests.simulation.client import connect
from tests.simulation.life import Died, Life, Mortal, living
from tests.simulation.world import World
from tests.simulation.world.systems import EPOCH, MINUTE

#: Memory that the ledgers and files of one process need, with plenty to spare.
ENOUGH = 1 << 30
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Errors of the product that a run may end with while things go wrong; anything else is a defect.
EXPECTED = RedriveError


def _place() -> Path:
    scratch.use_memory(needed=ENOUGH)
    folder = Path(tempfile.mkdtemp(prefix="redrive-simulation-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Place:
    """Where this process keeps its ledgers and files: one folder, in memory where possible."""

    folder: Path | None = None
    template: Path | None = None
    made = 0

    @classmethod
    def fresh(cls) -> Path:
        cls.folder = cls.folder or _place()
        cls.made += 1
        made = cls.folder / f"{os.getpid()}-{cls.made}"
        made.mkdir()
        return made

    @classmethod
    def empty_ledger(cls, path: Path) -> None:
        """A copy of an empty, migrated SQLite ledger."""
        if cls.template is None:
            cls.template = cls.fresh() / "empty.db"
            ledger = Ledger(f"sqlite:///{cls.template}")
            schema.upgrade(ledger, _moment(EPOCH))
            with ledger.write() as connection:
                connection.exec_driver_sql("update ledger_identity set ledger_id = 'simulate'")
            ledger.engine.dispose()
            Engines.leave()
            for name in ("-wal", "-shm"):
                Path(f"{cls.template}{name}").unlink(missing_ok=True)
        shutil.copyfile(cls.template, path)


def _as_it_is(_: str, text: str) -> str:
    """The mask of a route that masks nothing, as those of a story."""
    return text


def _moment(now: int) -> datetime:
    return _EPOCH + timedelta(microseconds=now)


RECORDS = "records.db"


class Records:
    """What a consumer has processed, as it writes it down: numbers of orders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: set[str] = set()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("create table processed (order_number text primary key)")

    def __call__(self, body: bytes) -> None:
        number = self.number(body)
        if number is not None and number not in self.known:
            self.known.add(number)
            with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
                connection.execute("pragma synchronous = off")
                connection.execute("insert into processed values (?)", (number,))

    @staticmethod
    def number(body: bytes) -> str | None:
        found = json.loads(body).get("n")
        return None if found is None else str(found)


class Engines:
    """One engine per kind of database, which stays: stages open theirs again and again, and what SQLAlchemy does for a
    new one (it compiles every statement anew) costs more than they do."""

    made: ClassVar[dict[str, Any]] = {}
    url = ""  # which ledger it is connected to now
    create = staticmethod(sa.create_engine)

    @classmethod
    def one(cls, url: Any, **how: Any) -> Any:
        if str(url.database).endswith(RECORDS):
            return cls.create(url, **how)
        kind = url.get_backend_name()
        if kind not in cls.made:
            if kind == "sqlite":
                # Nobody else works on it, so who waits for a lock waits for ever.
                given = {**how["connect_args"], "timeout": 0.5}
                how |= {"creator": lambda: sqlite3.connect(make_url(cls.url).database or "", **given)}
            else:
                how |= {"creator": lambda: cls._postgresql(how["connect_args"])}
            cls.made[kind] = cls.create(url, **how)
            cls.made[kind].dispose = lambda close=True: None
        shown = url.render_as_string(hide_password=False)
        if shown != cls.url:
            cls.leave()
            cls.url = shown
        return cls.made[kind]

    @classmethod
    def leave(cls) -> None:
        """Close all connections."""
        for one in cls.made.values():
            one.pool.dispose()
        cls.url = ""

    @classmethod
    def _postgresql(cls, how: dict[str, Any]) -> Any:
        return psycopg.connect(cls.url.replace("postgresql+psycopg", "postgresql"), **how)


_prepare_sqlite = sqlite_file.prepare


def _unsynced(connection: Any, record: Any) -> None:
    _prepare_sqlite(connection, record)
    connection.execute("pragma synchronous = off")


class _AtOnce(Beside):
    """What is done beside a delivery is done when it is given, and counts as under way for as long as possible."""

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work())
        except Exception as error:  # whoever dies in the middle of it is dead
            done.set_exception(error)
        self._given.append(done)
        return done

    @property
    def busy(self) -> bool:
        return bool(self._given)

    def check(self) -> None:
        if any(one.exception() for one in self._given):
            super().check()


@contextlib.contextmanager
def simulated(world: World, seed: int) -> Iterator[None]:
    """All that is random or takes time in the product comes from the world, in here."""
    dice = random.Random(seed)
    random.seed(seed)  # tenacity's jitter
    clock = world.clock
    fake_uuid = types.SimpleNamespace(uuid4=lambda: types.SimpleNamespace(hex=f"{dice.getrandbits(128):032x}"))
    fake_time = types.SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep, time=lambda: clock.now / 1e6)
    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            before = getattr(owner, name)
            setattr(owner, name, value)
            stack.callback(setattr, owner, name, before)

        put(pipeline, "uuid", fake_uuid)
        put(
            batch_files,
            "secrets",
            types.SimpleNamespace(token_hex=lambda size=8: f"{dice.getrandbits(8 * size):0{2 * size}x}"),
        )
        put(pipeline, "time", fake_time)
        put(rabbitmq, "time", fake_time)
        put(notify, "time", fake_time)
        put(
            deliver_stage.deliver,
            "__kwdefaults__",
            (deliver_stage.deliver.__kwdefaults__ or {})
            | {
                "monotonic": clock.monotonic,
                "sleep": clock.sleep,
                "reader": _AtOnce,
                "beside": _AtOnce,
            },
        )
        # As if a server did the work, in every other story: slices are claimed and closed beside each other then.
        put(Sqlite, "writers_beside", seed % 2 == 1)
        put(deliver_stage, "LOOK_AGAIN", deliver_stage.GIVE_UP / 2)  # meanwhile nobody does anything
        put(sqlite_file, "prepare", _unsynced)
        put(batch_writer, "_fsync", lambda *_paths: life.life().reach("fsync"))
        put(sa, "create_engine", Engines.one)
        stack.enter_context(life.mortality())
        yield


#: Folders have other names when a seed is played again.
_PATHS = re.compile(r"\S*/redrive-simulation-[^/]+/[^/]+/|\S*postgresql\S+")


#: Seconds of a processor that a run of a few messages may take. It takes a fraction of one.
LONGEST = 8.0


class TooLong(BaseException):
    """A run would not end."""


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """What is done in here takes no longer than :data:`LONGEST`: nothing in a world takes time but the product."""

    def over(_number: int, _frame: object) -> None:
        raise TooLong(f"a run has worked for {LONGEST:g} s")

    if signal.getitimer(signal.ITIMER_VIRTUAL)[0]:  # it is another's, who met this one
        yield
        return
    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Outcome:
    """How a run or another command ended."""

    def __init__(self, status: str, error: BaseException | None = None, report: dict[str, Any] | None = None) -> None:
        self.status = status  # done | paused | busy | died | interrupted | failed
        self.error = error
        self.report = report or {}

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.status}: {type(self.error).__name__}: {_PATHS.sub('…', str(self.error))[:300]}"
        kept = ("new", "returned", "duplicates", "suspected", "redelivered", "escalated", "unknown", "waiting", "held")
        counts = ", ".join(f"{name} {self.report[name]}" for name in kept if self.report.get(name))
        return self.status + (f" ({counts})" if counts else "")


class Product:
    """Redrive, configured for one world."""

    def __init__(self, world: World, config: dict[str, Any], database: str | None = None) -> None:
        self.world = world
        self.folder = Place.fresh()
        self.config = config
        if database is None:
            Place.empty_ledger(self.folder / "redrive.db")
        else:
            ledger = Ledger(database)
            schema.upgrade(ledger, _moment(EPOCH))
            with ledger.write() as connection:
                connection.exec_driver_sql("update ledger_identity set ledger_id = 'simulate'")
        self.database = database or f"sqlite:///{self.folder}/redrive.db"
        self.skew = 0  # microseconds by which the next process's clock differs
        self.settings: Settings = self.configure()
        self.backups: list[Path] = []
        self.backup_at = 0  # so many sends had been made when the last one was taken

    def configure(self) -> Settings:
        """Read the configuration again, as the next process will."""
        text = yaml.safe_dump({"database": self.database, "staging": str(self.folder / "staging"), **self.config})
        self.settings = parse(text, env=os.environ, root=self.folder)
        return self.settings

    def records(self) -> "Records":
        """A table of the consumer's, of which the configuration knows as connection ``records``."""
        os.environ["AIRFLOW_CONN_RECORDS"] = json.dumps({"conn_type": "sqlite", "host": f"{self.folder}/{RECORDS}"})
        return Records(self.folder / RECORDS)

    def refused(self) -> str:
        """Why the configuration can't be as it is; "" if it can."""
        try:
            self.configure()
        except SettingsError as error:
            return str(error).splitlines()[0][:200]
        return ""

    def close(self) -> None:
        Engines.leave()
        shutil.rmtree(self.folder, ignore_errors=True)

    def now(self) -> datetime:
        return _moment(self.world.clock.now + self.skew)

    def broker(self, route: str) -> Any:
        return Mortal(connect(self.world.systems[self.config["routes"][route]["connection"]]))

    # --- commands -----------------------------------------------------------------------------------------

    def run(
        self,
        route: str,
        one: Life | None = None,
        *,
        retries: int = 0,
        twice: str = "",
        shards: int = 1,
        together: bool = False,
        even_if_paused: bool = False,
        watch: Callable[[str, dict[str, Any]], None] = lambda _stage, _counts: None,
    ) -> Outcome:
        """A whole run, task by task; a task that fails is tried again ``retries`` times, and task ``twice`` is cleared
        and runs once more when it is done. ``together``: while the first shard of a drain holds messages, the others
        work."""
        settings, common = self.settings, {"clock": self.now, "broker": self.broker(route)}

        def sharded(stage: Callable[..., dict[str, Any]]) -> Callable[[Run], dict[str, Any]]:
            def all_of_them(run: Run) -> dict[str, Any]:
                counts: dict[str, Any] = {}
                if together and shards > 1 and stage is pipeline.drain:
                    own = life.life()

                    def others() -> None:
                        for number in range(1, shards):
                            stage(settings, run, shard=number, shards=shards, **common)

                    own.meet_of, own.open_points, own.meet[0] = "after receive", 0, others
                    counts = stage(settings, run, shard=0, shards=shards, **common)
                    own.meet_of = ""
                    if own.meet.pop(0, None) is not None:
                        others()
                    return counts
                for number in range(shards):
                    counts = stage(settings, run, shard=number, shards=shards, **common)
                return counts

            return all_of_them

        def classified(run: Run) -> dict[str, Any]:
            manifest = pipeline.prepare_classification(settings, run, **common)
            if manifest is not None:
                classify(manifest)
            return {}

        tasks: dict[str, Callable[[Run], dict[str, Any]]] = {
            "observe": lambda run: pipeline.observe(settings, run, **common),
            "drain": sharded(pipeline.drain),
            "classify": classified,
            "load": lambda run: pipeline.load(settings, run, **common),
            "resolve": lambda run: pipeline.resolve(settings, run, **common),
            "plan": lambda run: pipeline.plan(settings, run, **common),
            "deliver": sharded(pipeline.deliver),
            "escalate": lambda run: pipeline.escalate(settings, run, **common),
            "report": lambda run: pipeline.report(settings, run, **common),
        }

        def whole() -> dict[str, Any]:
            run = pipeline.begin(
                settings,
                route,
                trigger="simulation",
                holder=f"process {self.world.number()}",
                clock=self.now,
                even_if_paused=even_if_paused,
            )
            status, counts, left = "failed", {}, retries
            try:
                for name, task in tasks.items():
                    while True:
                        try:
                            counts = task(run)
                            break
                        except EXPECTED as error:
                            if not left:
                                raise
                            left -= 1
                            said = str(error).replace(str(self.folder), "…")  # another one each time
                            self.world.tell(f"    {name} is tried again after {type(error).__name__}: {said}")
                    if name == twice:
                        self.world.tell(f"    {name} is cleared and runs again")
                        counts = task(run)
                    watch(name, counts)
                status = "succeeded"
                return counts
            finally:
                life.life().ending = True
                if not life.life().dead:
                    with contextlib.suppress(EXPECTED):
                        pipeline.finish(settings, run, status, self.now)

        return self._in_a_process(whole, one)

    def review(self, route: str, one: Life | None = None) -> Outcome:
        """Apply decisions."""
        return self._in_a_process(lambda: pipeline.apply_decisions(self.settings, route, clock=self.now), one)

    def restore(self, route: str, one: Life | None = None) -> Outcome:
        """The way out."""

        def whole() -> dict[str, Any]:
            settings = self.settings
            run = pipeline.begin(
                settings, route, trigger="restore", holder="restore", clock=self.now, even_if_paused=True
            )
            status = "failed"
            try:
                counts = pipeline.restore(settings, run, clock=self.now, broker=self.broker(route))
                status = "succeeded"
                return counts
            finally:
                if not life.life().dead:
                    with contextlib.suppress(EXPECTED):
                        pipeline.finish(settings, run, status, self.now)

        return self._in_a_process(whole, one)

    def adopt(self, route: str) -> Outcome:
        """Take in the files that a restored ledger doesn't know."""

        def whole() -> dict[str, Any]:
            settings = self.settings
            run = pipeline.begin(settings, route, trigger="adopt", holder="adopt", clock=self.now, even_if_paused=True)
            status = "failed"
            try:
                counts = pipeline.adopt(settings, run, restored=True, clock=self.now, broker=self.broker(route))
                status = "succeeded"
                return counts
            finally:
                pipeline.finish(settings, run, status, self.now)

        return self._in_a_process(whole, None)

    def audit(self) -> list[str]:
        return list(pipeline.audit(self.settings, now=self.now())["problems"])

    def pages(self, route: str) -> str:
        """What the review page shows somebody who may read this route alone."""

        def read(ledger: Ledger) -> str:
            with ledger.read() as connection:
                shown = {route}
                groups = [
                    one
                    for tab in failure_queries.TABS
                    for one in failure_queries.failures(connection, shown, _as_it_is, tab=tab)[0]
                ]
                results = result_queries.results(connection, shown, _as_it_is, "1 = 1", {})
                filters = [Filter.read({"route": route}), Filter.read({"route": route, "header": "tenant=acme"})]
                told = [
                    failure_queries.group(connection, route, one["group_id"], shown, _as_it_is, self.now())
                    for one in groups
                ]
                pages = [message_queries.page(connection, one, shown) for one in filters]
                return repr([groups, told, pages, results, route_queries.gates_of(connection, route, shown, _as_it_is)])

        return str(self._with_ledger(read))

    def foretold(self, route: str) -> Counter[str]:
        """What a dry run says of the route: messages by verdict."""
        broker = connect(self.world.systems[self.config["routes"][route]["connection"]])
        told: Counter[str] = Counter()
        for row in preview(self.settings, route, Selection(), now=self.now(), broker=broker)["plan"]:
            told[row["verdict"]] += row["messages"]
        return told

    def files(self) -> dict[int, Path]:
        """The staging files of batches that were recorded."""
        with sql.reading(self.database) as ledger:
            rows = ledger.rows("select batch_id, uri from staging_batches where state in ('recorded', 'settled')")
        found = {batch: self.folder / "staging" / uri for batch, uri in rows}
        return {batch: path for batch, path in found.items() if path.exists()}

    def retention(self, one: Life | None = None) -> Outcome:
        return self._in_a_process(lambda: pipeline.retention(self.settings, self.now()), one)

    def pause(self, route: str) -> None:
        self._with_ledger(lambda ledger: leases.pause(ledger, route, by="ana", reason="simulation", now=self.now()))

    def resume(self, route: str) -> None:
        self._with_ledger(lambda ledger: leases.resume(ledger, route, by="ana", now=self.now()))

    def release(self, route: str, group: int) -> None:
        canary = self.settings.route(route).canary
        first = canary.first if canary else None
        self._with_ledger(
            lambda ledger: breakers.release_group(ledger, route, group, first=first, by="ana", now=self.now())
        )

    def release_destination(self, route: str, queue: str) -> None:
        self._with_ledger(lambda ledger: breakers.release_destination(ledger, route, queue, by="ana", now=self.now()))

    def vouch(self, route: str, queue: str) -> None:
        """Somebody says that the destination has worked off what was sent to it."""
        self._with_ledger(lambda ledger: in_flight.vouch(ledger, route, queue, by="ana", now=self.now()))

    def backup(self) -> None:
        """A copy of the ledger as it is, for later."""
        path = self.folder / f"backup-{len(self.backups)}.db"
        with (
            contextlib.closing(sqlite3.connect(self.folder / "redrive.db")) as source,
            contextlib.closing(sqlite3.connect(path)) as target,
        ):
            source.backup(target)
        self.backups.append(path)
        self.backup_at = len(self.world.book.arrivals)

    def restore_backup(self, number: int) -> None:
        """The ledger is lost and comes back as it was; staging stays as it is."""
        Engines.leave()
        for name in ("", "-wal", "-shm"):
            (self.folder / f"redrive.db{name}").unlink(missing_ok=True)
        shutil.copyfile(self.backups[number], self.folder / "redrive.db")

    # --- inside -------------------------------------------------------------------------------------------

    def _with_ledger(self, work: Callable[[Ledger], Any]) -> Any:
        with living(Life()):
            ledger = Ledger(self.settings.database)
            try:
                return work(ledger)
            finally:
                ledger.close()

    def _in_a_process(self, work: Callable[[], dict[str, Any]], one: Life | None) -> Outcome:
        """Errors that are not the product's own go through: they are defects."""
        with living(one or Life()) as lived:
            try:
                with _in_time():
                    return Outcome("done", report=work())
            except Died as died:
                lived.buried()
                return Outcome("died", died)
            except KeyboardInterrupt as interrupt:
                lived.ended()
                # In the middle of letting go of its route it can't do that once more: its lease ends.
                return Outcome("died" if lived.interrupted_at_its_end else "interrupted", interrupt)
            except RoutePaused:
                return Outcome("paused")
            except RouteBusy as busy:
                return Outcome("busy", busy)
            except EXPECTED as error:
                return Outcome("failed", error)


LEASE = 2 * MINUTE
