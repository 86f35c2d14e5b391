"""Speed of the classification: our Spark job against Drain3, on the same failure texts and the same two cores.

``python -m benchmarks.classification [--texts 2000000] [--no-double] [--invented 'in one place']``. Texts are made from
``$REDRIVE_DATA`` (:mod:`benchmarks.failure_texts`) and staged as a drain stages them, before anything is measured.

- Drain3 runs in one process with the masking and the settings of its own documentation; measured is
  ``add_log_message`` over all texts, which are in memory. It lives in an environment of its own
  (``requirements-bench.txt``, made by ``make bench``).
- Ours is ``redrive.spark.job.run`` with ``local[2]``: read staging, evidence, masks, causes, groups, and write the
  messages and groups as Parquet. The start of the session is not measured, but every class that Spark loads later is.
- Then twice the texts: the time may grow to twice at most, and the driver's memory hardly at all.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import drain3_peer, options
from benchmarks.drain3_peer import CORES, DRAIN3_PYTHON, ROOT
from benchmarks.failure_texts import PLACES, lines
from benchmarks.results import Cell, Figure, Table, finish

BATCH = 5_000  # copies of a staging file: the default of drain.flush_messages
#: Goals: times as fast as Drain3, also where every text is distinct; times as long for twice the texts.
RATIO, OF_DISTINCT, SCALING = 5.0, 2.0, 2.0


def main() -> int:
    """Print rates, their ratio and the scaling; 1 when a target was missed."""
    asked = _options(PLACES)

    if not any(lines()):
        print("no data: set REDRIVE_DATA to a folder with failures/*.jsonl and loghub/*.csv")
        return 0
    if not DRAIN3_PYTHON.exists() and not asked.drain3_python:
        print(f"no {DRAIN3_PYTHON.relative_to(ROOT)}: `make bench` makes it")
        return 1
    with tempfile.TemporaryDirectory(dir=os.environ.get("REDRIVE_BENCH_DIR")) as folder:
        once = _stage(Path(folder) / "once", asked.texts, seed=1, invented=asked.invented)
        peer = _child([asked.drain3_python or str(DRAIN3_PYTHON), drain3_peer.__file__, str(once)])
        ours = _ours(once)
        ratio = ours["texts"] / ours["seconds"] / (peer["texts"] / peer["seconds"])
        goal = RATIO if asked.invented == PLACES[0] else OF_DISTINCT
        ratios: list[list[Cell]] = [["times as fast as Drain3", Figure(ratio, least=goal)]]
        rows = [_row("Drain3, one process", peer), _row(f"ours, local[{CORES}]", ours)]
        if asked.double:
            twice = _stage(Path(folder) / "twice", 2 * asked.texts, seed=2, invented=asked.invented)
            double = _ours(twice)
            rows.append(_row("ours, twice the texts", double))
            scaling = double["seconds"] / ours["seconds"]
            ratios.append(["times as long for twice the texts", Figure(scaling, most=SCALING)])
    variant = "" if asked.invented == PLACES[0] else f"invented-{asked.invented.replace(' ', '-')}"
    columns = ("", "texts", "seconds", "texts/s", "cases", "groups", "peak MiB", "JVM", "workers")
    return finish(
        asked, "classification", Table(("ratio", ""), ratios), Table(columns, rows), variant=variant,
        details={"drain3": peer, "ours": ours},
    )  # fmt: skip


def _options(places: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("classification", (__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=2_000_000)
    parser.add_argument("--no-double", dest="double", action="store_false", help="leave out twice the texts")
    parser.add_argument(
        "--invented", choices=places, default=places[0], help="a word of each text is invented: all are distinct"
    )
    parser.add_argument("--drain3-python", help="a Python that has drain3")
    return parser.parse_args()


def _row(name: str, found: dict[str, Any]) -> list[Cell]:
    """What one of them took; only ours has cases, a JVM and workers."""
    return [
        name,
        found["texts"],
        Figure(found["seconds"], 1),
        Figure(found["texts"] / found["seconds"], 0),
        found.get("cases", ""),
        found["groups"],
        Figure(found["driver_mib"], 0),
        *(Figure(found[name], 0) if name in found else "" for name in ("java_mib", "python_mib")),
    ]


def _child(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _ours(folder: Path) -> dict[str, Any]:
    return _child([sys.executable, "-m", "benchmarks.classification", "ours", str(folder)])


# --- the texts, made and staged before anything is measured ---------------------------------------------------


def _stage(folder: Path, count: int, seed: int, *, invented: str) -> Path:
    """Staging files, a manifest that names them, and the texts alone as JSON lines."""
    folder.mkdir(parents=True)
    numbers = range(1, -(-count // BATCH) + 1)
    with ProcessPoolExecutor(CORES) as pool:
        batches = list(
            pool.map(
                _stage_batch,
                [folder] * len(numbers),
                numbers,
                [min(BATCH, count - (number - 1) * BATCH) for number in numbers],
                [seed * 1_000_003 + number for number in numbers],
                [invented] * len(numbers),
                chunksize=4,
            )
        )
    manifest = {
        "batches": batches,
        "output": str(folder / "classified"),
        "route": "orders",
        "broker": "amazon_sqs",
        "sources": {"orders-dlq": {"kind": "dead_letter", "lease_seconds": 30}},
        "evidence": [],
        "rules": [],
        "message_key": "attribute:message_id",
        "order_key": None,
        "known_groups": [],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def _stage_batch(folder: Path, number: int, count: int, seed: int, invented: str) -> dict[str, Any]:
    from benchmarks.failure_texts import texts  # noqa: PLC0415
    from redrive.message import DeadLetter, Header  # noqa: PLC0415
    from redrive.staging.batch_files import Staging  # noqa: PLC0415

    staging = Staging(str(folder))
    name = f"batch-{number}.parquet"
    writer = staging.writer(
        name, batch_id=number, route="orders", source="orders-dlq", kind="dead_letter", broker="amazon_sqs"
    )
    enqueued = 1_750_000_000_000_000 + number * BATCH
    with (folder / f"texts-{number:06}.jsonl").open("w", encoding="utf-8") as lines:
        letters = []
        for row, text in enumerate(texts(count, seed, invented)):
            lines.write(json.dumps(text) + "\n")
            letters.append(
                DeadLetter(
                    f"{seed:08x}-0000-0000-0000-{row:012x}",
                    b'{"order": %d, "customer": "c-%d", "lines": [{"sku": "A-%d", "count": 1}]}'
                    % (number * BATCH + row, seed + row, row),
                    (Header("message_id", "String", f"order-{number}-{row}"), Header("error", "String", text)),
                    (("SenderId", "AIDAIENQZJOLO23YVJ4VO"),),
                    enqueued + row,
                    first_received_at=enqueued + row + 1_000_000,
                    deliveries=5,
                    origin="orders",
                )
            )
        writer.add(letters, enqueued + 600_000_000)
    writer.close()
    staging.close()
    return {"batch_id": number, "uri": str(folder / name), "rows": count}


# --- in the measured processes --------------------------------------------------------------------------------


def _run_ours(folder: Path) -> dict[str, Any]:
    from redrive.spark import job  # noqa: PLC0415

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    spark = job.local_session(f"local[{CORES}]")
    spark.sparkContext.setLogLevel("ERROR")
    watch = _Watch()
    started = time.perf_counter()
    counts = job.run(manifest, spark)
    seconds = time.perf_counter() - started
    found = {
        "texts": counts["messages"],
        "seconds": seconds,
        "groups": counts["groups"],
        "cases": counts["cases"],
        "driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **{f"{kind}_mib": most for kind, most in watch.stop().items()},
    }
    spark.stop()
    return found


class _Watch:
    """The most memory that the JVM and the Python workers below this process were seen to have, in MiB."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._most = {"java": 0.0, "python": 0.0}
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(1):
            self._measure()

    def _measure(self) -> None:
        now = dict.fromkeys(self._most, 0.0)
        for process in _below(os.getpid()):
            try:
                kind = "java" if Path(f"/proc/{process}/comm").read_text().strip() == "java" else "python"
                # What forked workers share counts once.
                rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            except OSError:
                continue  # it has ended
            now[kind] += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
        self._most = {kind: max(most, now[kind]) for kind, most in self._most.items()}

    def stop(self) -> dict[str, float]:
        self._done.set()
        self._thread.join()
        self._measure()
        return self._most


def _below(process: int) -> Iterator[int]:
    """The processes that any thread of ``process`` started, and theirs."""
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = thread.read_text().split()
        except OSError:
            continue  # it has ended
        for child in map(int, children):
            yield child
            yield from _below(child)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ours"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        print(json.dumps(_run_ours(Path(sys.argv[2]))))
    else:
        sys.exit(main())
