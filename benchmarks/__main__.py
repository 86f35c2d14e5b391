"""``make bench``: every benchmark in turn, or those named, each with a heading; exit 1 when one missed its target."""

import argparse
import subprocess
import sys
from pathlib import Path

BENCHMARKS = {
    "throughput": "What our own code costs (memory broker, one core)",
    "redelivery": "What a redelivery does to a slow consumer (simulated)",
    "accuracy": "Accuracy of causes",
    "grouping": "Accuracy of groups",
    "lookalikes": "Failures that look alike, and one failure that looks different",
    "classification": "Speed of causes and groups, beside Drain3 (two cores)",
    "growth": "What a year of finished messages costs (SQLite)",
    "memory": "What memory each stage takes (SQLite)",
    "parsing": "What Airflow pays for 2,000 routes",
    "shovel": "The loop on a real RabbitMQ node, beside a shovel",
    "shards": "Several shards of one delivery, each waiting for its broker",
    "idle": "A run that finds nothing to do",
    "small_batches": "A small batch, with a Spark that is started for it and with one that is there",
}


def main(arguments: list[str] | None = None) -> int:
    """Run them; the worst exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__.replace("``", "") if __doc__ else "",
        epilog="\n".join(f"  {name:16}{title}" for name, title in BENCHMARKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help="of those below; all of them unless some are named")
    names = parser.parse_args(arguments).name or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    worst = 0
    for name in names:
        title = BENCHMARKS[name]
        print(f"\n{title}\n{'-' * len(title)}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False, cwd=Path(__file__).parents[1])
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
