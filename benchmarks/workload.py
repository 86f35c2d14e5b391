"""What benchmarks work on: a route of a broker in memory, its dead letters of 1 KiB, a classification without Spark."""

import json
import os
import random
import time
from pathlib import Path

from redrive import settings as configuration
from redrive.brokers.memory import MemoryBroker, MemoryWorld
from redrive.message import DeadLetter, Header, message_id_of
from redrive.settings import Settings
from redrive.stages import pipeline
from redrive.stages.context import Run
from redrive.staging import file_schemas

#: The groups of all messages.
GROUPS = 50
#: Behind a body of 776 bytes, so that it has 1 KiB.
_PADDING = b" " * 248


def settings(folder: Path, ledger_url: str, *, canary: str = '"off"') -> Settings:
    """The route ``orders``, with its staging below ``folder``; ``canary`` as in YAML."""
    return configuration.parse(
        f"""
database: {ledger_url}
staging: {folder}/staging
routes:
  orders:
    broker: memory
    connection: bench
    sources: [{{queue: orders-dlq, kind: dead_letter}}]
    destination: {{queue: orders}}
    canary: {canary}
    drain: {{limit: 10000000, wait: 0s}}
    # A fifth of a second at the goal's rate, in five windows; the defaults (1,000 and 200) are for hundreds a second.
    deliver: {{run_for: 1h, slice: 5000, confirm_window: 1000}}
    rate: {{per_second: 100000000, max_in_flight: 100000000}}
""",
        env=os.environ,
        root=folder,
    )


def dead_letters(world: MemoryWorld, size: int, *, start: int = 0) -> None:
    """Fill the queue ``orders-dlq`` with ``size`` messages, all different, numbered from ``start``."""
    noise = random.Random(1).randbytes(1 << 20).hex().encode()
    first = int(time.time() * 1_000_000) - 3_600_000_000
    error = Header("error", "String", "ConnectionResetError: [Errno 104] Connection reset by peer")
    properties = (("SenderId", "AIDAIENQZJOLO23YVJ4VO"),)

    def letter(number: int) -> DeadLetter:
        # It is made while a drain is measured: as cheaply as it goes.
        number += start
        begins = 2 * ((number * 7919) % ((1 << 20) - 512))
        return DeadLetter(
            f"00000000-0000-0000-0000-{number:012d}",
            b'{"order": %012d, "lines": "%b"}%b' % (number, noise[begins : begins + 740], _PADDING),
            (Header("message_id", "String", f"order-{number}"), error),
            properties,
            first + number,
            deliveries=3,
            origin="orders",
        )

    world.fill("orders-dlq", size, letter)


def classify(settings: Settings, broker: MemoryBroker, run: Run, *, for_people: int = 0) -> None:
    """What Spark would write, made directly: the load and the delivery are measured, not the job. The first
    ``for_people`` groups are of a cause that people decide about."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    manifest = json.loads(Path(pipeline.prepare_classification(settings, run, broker=broker) or "").read_text())
    output = Path(manifest["output"])
    (output / file_schemas.MESSAGES_DIR).mkdir(parents=True)
    for batch in manifest["batches"]:
        count = pq.read_metadata(batch["uri"]).num_rows
        made = {
            "message_id": pa.array([message_id_of(batch["batch_id"], row) for row in range(count)], pa.int64()),
            "case_key": pa.array([row % GROUPS for row in range(count)], pa.int64()),
        }
        columns = [made.get(field.name, pa.nulls(count, field.type)) for field in file_schemas.MESSAGES]
        path = output / file_schemas.MESSAGES_DIR / file_schemas.messages_file(batch["batch_id"])
        pq.write_table(pa.table(columns, schema=file_schemas.MESSAGES), path)
    cases = [
        {
            "case_key": number,
            "messages": 1,
            "cause": "application_bug" if number < for_people else "transient_network",
            "rule": "bench",
            "confidence": 0.9,
            "fingerprint": f"{number:016x}",
            "template": f"{number:016x}",
            "example": f"{number:016x}",
        }
        for number in range(GROUPS)
    ]
    pq.write_table(pa.Table.from_pylist(cases, file_schemas.CASES), output / file_schemas.CASES_FILE)
