"""Drain3, which groups log lines for a living, beside ours: how fast it is, and which lines it takes for one statement.

It has an environment of its own (``make bench`` makes it), so this is a program: ``drain3_peer.py FOLDER`` reads
``texts-*.jsonl`` of a folder and prints how long it took; without a folder it reads lists of texts, a list a line, and
prints the cluster of each text. Masking and settings are those of Drain3's own documentation.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DRAIN3_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
CORES = 2  # that its speed, and ours, is measured on

#: The example of Drain3's documentation (examples/drain3.ini).
_MASKS = (
    (r"((?<=[^A-Za-z0-9])|^)(([0-9a-f]{2,}:){3,}([0-9a-f]{2,}))((?=[^A-Za-z0-9])|$)", "ID"),
    (r"((?<=[^A-Za-z0-9])|^)(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})((?=[^A-Za-z0-9])|$)", "IP"),
    (r"((?<=[^A-Za-z0-9])|^)([0-9a-f]{6,} ?){3,}((?=[^A-Za-z0-9])|$)", "SEQ"),
    (r"((?<=[^A-Za-z0-9])|^)([0-9A-F]{4} ?){4,}((?=[^A-Za-z0-9])|$)", "SEQ"),
    (r"((?<=[^A-Za-z0-9])|^)(0x[a-f0-9A-F]+)((?=[^A-Za-z0-9])|$)", "HEX"),
    (r"((?<=[^A-Za-z0-9])|^)([\-\+]?\d+)((?=[^A-Za-z0-9])|$)", "NUM"),
    (r"(?<=executed cmd )(\".+?\")", "CMD"),
)


def clusters(systems: Iterable[Sequence[str]]) -> list[list[str]] | None:
    """For each text of each system the cluster that Drain3 has for it; None where Drain3 is not installed."""
    if not DRAIN3_PYTHON.exists():
        return None
    asked = "".join(json.dumps(list(texts)) + "\n" for texts in systems)
    done = subprocess.run([str(DRAIN3_PYTHON), __file__], input=asked, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- in Drain3's environment --------------------------------------------------------------------------------


def _miner() -> Any:
    from drain3 import TemplateMiner  # noqa: PLC0415
    from drain3.masking import MaskingInstruction  # noqa: PLC0415
    from drain3.template_miner_config import TemplateMinerConfig  # noqa: PLC0415

    config = TemplateMinerConfig()
    config.drain_sim_th, config.drain_depth, config.drain_max_children = 0.4, 4, 100
    config.drain_max_clusters, config.drain_extra_delimiters = 1024, ["_"]
    config.masking_instructions = [MaskingInstruction(pattern, name) for pattern, name in _MASKS]
    return TemplateMiner(config=config)


def _time(folder: Path) -> dict[str, Any]:
    texts = [
        json.loads(line)
        for file in sorted(folder.glob("texts-*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    miner = _miner()
    started = time.perf_counter()
    for text in texts:
        miner.add_log_message(text)
    seconds = time.perf_counter() - started
    return {
        "texts": len(texts),
        "seconds": seconds,
        "groups": len(miner.drain.clusters),
        "driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _group(texts: Sequence[str]) -> list[str]:
    miner = _miner()
    return [str(miner.add_log_message(text)["cluster_id"]) for text in texts]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        print(json.dumps(_time(Path(sys.argv[1]))))
    else:
        for line in sys.stdin:
            print(json.dumps(_group(json.loads(line))))
