"""``make bench``: every benchmark in turn, each with a heading; exit 1 when one missed its target."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = {
    "What our own code costs (memory broker, one core)": ["benchmarks.throughput"],
    "What a redelivery does to a slow consumer (simulated)": ["benchmarks.redelivery"],
    "Accuracy of causes": ["benchmarks.accuracy"],
    "Accuracy of groups": ["benchmarks.grouping"],
    "Speed of causes and groups, beside Drain3 (two cores)": ["benchmarks.classification"],
    "The loop on a real RabbitMQ node, beside a shovel": ["benchmarks.shovel"],
    "A small batch, with a Spark that is started for it and with one that is there": ["benchmarks.small_batches"],
}


def main() -> int:
    """Run them all; the worst exit code."""
    worst = 0
    for title, module in BENCHMARKS.items():
        print(f"\n{title}\n{'-' * len(title)}", flush=True)
        done = subprocess.run([sys.executable, "-m", *module], check=False, cwd=Path(__file__).parents[1])
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
