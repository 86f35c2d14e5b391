"""Spark Connect for real: a server on loopback, whole cycles over it, and what is said when it is not there.

A process that has talked to Spark Connect has no classic Spark any more, so all clients run in a process aside.
"""

import multiprocessing
import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests import workshop
from tests.workshop import KEY_ERROR, REFUSED, Workshop

from redrive.dev import local_spark
from redrive.dev.local_spark import TOKEN_VARIABLE, ConnectServer
from redrive.errors import ClassificationFailed
from redrive.spark import submit

pytestmark = pytest.mark.spark

MESSAGES = 500
#: Generous, for busy machines; benchmarks/small_batches.py holds the real figure to its target.
SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with local_spark.running(tmp_path_factory.mktemp("connect")) as one:
        yield one


@pytest.fixture
def aside() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def connected(folder: Path, environment: Mapping[str, str]) -> Workshop:
    """A workshop whose Spark is behind the server that ``environment`` tells of."""
    os.environ.update(environment)
    shop = Workshop(folder)
    shop.settings = shop.settings.model_copy(
        update={
            "spark": shop.settings.spark.model_copy(
                update={"runner": "connect", "remote": environment[local_spark.REMOTE_VARIABLE]}
            )
        }
    )
    workshop.classify = lambda manifest: submit.classify(shop.settings, manifest)
    return shop


def cycles(folder: Path, environment: Mapping[str, str], count: int) -> list[tuple[float, dict[str, Any]]]:
    """Whole cycles of :data:`MESSAGES` new messages each: seconds and report; fails if anything doesn't add up."""
    shop = connected(folder, environment)
    found = []
    for cycle in range(count):
        halves = [f'{{"order": {cycle * MESSAGES + number}}}' for number in range(MESSAGES)]
        shop.die(*halves[::2], error=REFUSED)
        shop.die(*halves[1::2], error=KEY_ERROR)
        started = time.monotonic()
        report = shop.cycle()
        found.append((time.monotonic() - started, report))
        shop.advance(minutes=1)
        shop.consume()
    assert shop.audit() == []
    return found


def failing_cycle(folder: Path, environment: Mapping[str, str]) -> tuple[float, str]:
    """What a cycle says that can't classify, and after how many seconds; the messages stay with us."""
    shop = connected(folder, environment)
    shop.die('{"order": 1}')
    started = time.monotonic()
    with pytest.raises(ClassificationFailed) as failure:
        shop.cycle()
    assert shop.audit() == []
    return time.monotonic() - started, str(failure.value)


def answer(environment: Mapping[str, str]) -> int:
    """What the server computes for us."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.update(environment)
    session = SparkSession.builder.remote(environment[local_spark.REMOTE_VARIABLE]).create()
    try:
        return int(session.sql("select 42").collect()[0][0])
    finally:
        session.stop()


def test_a_cycle_of_500_new_messages_takes_seconds(
    server: ConnectServer, aside: ProcessPoolExecutor, tmp_path: Path, record_property: Any
) -> None:
    _, warm = aside.submit(cycles, tmp_path, server.environment, 2).result()
    seconds, report = warm
    assert (report["new"], report["redelivered"], report["escalated"]) == (MESSAGES, MESSAGES // 2, MESSAGES // 2)
    record_property("seconds", round(seconds, 2))
    print(f"{MESSAGES} new messages over Spark Connect: {seconds:.2f} s")
    assert seconds < SECONDS


def test_who_has_another_token_is_refused(server: ConnectServer, aside: ProcessPoolExecutor, tmp_path: Path) -> None:
    stranger = server.environment | {TOKEN_VARIABLE: "guessed"}
    seconds, text = aside.submit(failing_cycle, tmp_path, stranger).result()
    assert "spark.remote" in text
    assert "UNAUTHENTICATED" in text
    assert "guessed" not in text
    assert seconds < SECONDS


def test_the_token_is_in_no_argument_and_in_no_file(server: ConnectServer) -> None:
    token = server.environment[TOKEN_VARIABLE]
    arguments = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert b"SparkConnectServer" in arguments
    assert token.encode() not in arguments
    assert stat.S_IMODE(server.log.stat().st_mode) == 0o600
    assert token not in server.log.read_text()


def test_a_server_that_died_is_told_within_seconds_and_started_again_at_the_same_address(
    server: ConnectServer, aside: ProcessPoolExecutor, tmp_path: Path
) -> None:
    said: list[str] = []
    server.revive(said.append)
    assert said == [], "it lives"
    os.killpg(server.pid or 0, signal.SIGKILL)
    seconds, text = aside.submit(failing_cycle, tmp_path, server.environment).result()
    assert f"{server.remote} (spark.remote): UNAVAILABLE" in text
    assert seconds < 2 * SECONDS, "PySpark itself would ask for ten minutes"

    before = server.pid
    server.revive(said.append)
    assert server.pid != before
    assert str(server.log) in said[0]
    assert aside.submit(answer, server.environment).result() == 42
