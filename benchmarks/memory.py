"""What memory each stage takes: ``python -m benchmarks.memory [--messages 1000000] [--database sqlite|postgresql]``.

Three runs of a route on a broker in memory, an hour apart, each stage in a process of its own: the first drains and
sends so many messages, one in five goes to people; the second sees that the destination is worked off, the third
concludes what became of them. Then audit and retention of all of it. The peak of each process, imports and all, is held
against that with 10,000 messages. The goal is 1.2.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import options, workload
from benchmarks.databases import database, variant
from benchmarks.processes import in_a_process, peak_memory
from benchmarks.results import Cell, Figure, Table, finish
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.ledger import schema
from redrive.ledger.engine import Ledger
from redrive.settings import Settings
from redrive.stages import pipeline
from redrive.stages.context import Run, utc_now

GOAL = 1.2
FEW = 10_000
#: What a process of its own does, of which run; ``classified`` is what Spark would write, and is not measured.
FIRST = (
    "begin",
    "observe",
    "drain",
    "classified",
    "load",
    "resolve",
    "plan",
    "deliver",
    "escalate",
    "review",
    "report",
)
LATER_ON = ("begin", "observe", "drain", "load", "resolve", "plan", "deliver", "escalate", "review", "report")
RUNS = (FIRST, LATER_ON, LATER_ON)
NOT_MEASURED = frozenset({"begin", "classified"})
#: A month and more later all is finished and old, but for what people have not decided.
OLD = timedelta(days=40)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table; 1 when a stage takes more than its goal."""
    parser = options.parser("memory", __doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    for hidden in ("--child", "--url", "--stage", "--run"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.child:
        print(json.dumps(_child(Path(asked.child), asked.url, asked.stage, asked.messages, asked.run)))
        return 0
    few, many = (_measured(asked.database, messages) for messages in (FEW, asked.messages))
    rows: list[list[Cell]] = [
        [name, Figure(peak / few[name], most=GOAL), Figure(few[name], 0), Figure(peak, 0)]
        for name, peak in many.items()
    ]
    table = Table(("stage", "ratio", f"MiB, {FEW:,} messages", f"{asked.messages:,} messages"), rows)
    return finish(asked, "memory", table, variant=variant(asked.database))


def _measured(kind: str, messages: int) -> dict[str, float]:
    """The peak of each stage's process in MiB, by its name and the run's number."""
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, database(Path(folder), kind) as (url, _):
        for number, stages in enumerate(RUNS):
            run = ""
            for stage in stages:
                found = _stage(folder, url, stage, messages, json.dumps([number, run]))
                run = found["run"] or run
                if stage not in NOT_MEASURED:
                    peaks[f"{stage}, run {number + 1}"] = found["peak"]
        for stage in _WHOLE:
            peaks[stage] = _stage(folder, url, stage, messages, json.dumps([2, ""]))["peak"]
    return peaks


def _stage(folder: str, url: str, stage: str, messages: int, run: str) -> dict[str, Any]:
    return in_a_process(  # type: ignore[no-any-return]
        *("-m", "benchmarks.memory", "--child", folder, "--url", url),
        *("--stage", stage, "--messages", str(messages), "--run", run),
    )


# --- in the measured process --------------------------------------------------------------------------------


def _child(folder: Path, url: str, stage: str, messages: int, of: str) -> dict[str, Any]:
    number, given = json.loads(of)
    settings = workload.settings(folder, url)
    if stage in _WHOLE:
        _WHOLE[stage](settings)
        return {"run": "", "peak": peak_memory()}

    def now() -> datetime:
        return utc_now() + timedelta(hours=number)

    if stage == "begin":
        ledger = Ledger(settings.database)
        schema.upgrade(ledger, now())
        ledger.close()
        run = pipeline.begin(settings, "orders", trigger="bench", holder="bench", lease=timedelta(hours=4), clock=now)
        return {"run": run.to_json(), "peak": 0.0}
    run = Run.from_json(given)
    world = MemoryWorld(patience=timedelta(0))
    world.create("orders-dlq", lease=timedelta(minutes=10))
    world.create("orders", sink=True)
    if number == 0 and stage in ("observe", "drain"):
        workload.dead_letters(world, messages)
    broker = MemoryBroker(world)
    if stage == "classified":
        workload.classify(settings, broker, run, for_people=workload.GROUPS // 5)
    else:
        counts = getattr(pipeline, stage)(settings, run, broker=broker, clock=now)
        expected = _EXPECTED.get((number, stage))
        if expected:
            name, share = expected
            assert counts[name] == messages * share // 5, counts
    if stage == "report":
        pipeline.finish(settings, run, "succeeded", clock=now)
    return {"run": "", "peak": peak_memory()}


#: Fifths of the messages, by the name under which a stage counts them.
_EXPECTED: Mapping[tuple[int, str], tuple[str, int]] = {
    (0, "drain"): ("settled", 5),
    (0, "load"): ("new", 5),
    (0, "plan"): ("planned", 5),
    (0, "deliver"): ("redelivered", 4),
    (0, "escalate"): ("escalated", 1),
    (2, "resolve"): ("presumed", 4),
}


def _audited(settings: Settings) -> None:
    problems = pipeline.audit(settings)["problems"]
    assert not problems, problems[:3]


def _forgotten(settings: Settings) -> None:
    pipeline.retention(settings, now=utc_now() + OLD)


_WHOLE: Mapping[str, Callable[[Settings], object]] = {"audit": _audited, "retention": _forgotten}


if __name__ == "__main__":
    sys.exit(main())
