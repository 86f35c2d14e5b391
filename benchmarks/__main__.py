"""``make bench``: every benchmark in turn, or those named, each with a heading; exit 1 when one missed its target."""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.page import SECTIONS


def main(arguments: list[str] | None = None) -> int:
    """Run them; the worst exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__.replace("``", "") if __doc__ else "",
        epilog="\n".join(f"  {section.benchmark:16}{section.heading}" for section in SECTIONS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help="of those below; all of them unless some are named")
    parser.add_argument(
        "--record",
        action="store_true",
        help="each with the arguments of docs/benchmarks.md, in which the figures are kept (an hour and more)",
    )
    asked = parser.parse_args(arguments)
    known = {section.benchmark: section for section in SECTIONS}
    names = asked.name or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    worst = 0
    for name in names:
        for extra in ([*run, "--record"] for run in known[name].runs) if asked.record else [[]]:
            title = " ".join([known[name].heading, *extra])
            print(f"\n{title}\n{'-' * len(title)}", flush=True)
            command = [sys.executable, "-m", f"benchmarks.{name}", *extra]
            done = subprocess.run(command, check=False, cwd=Path(__file__).parents[1])
            worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
