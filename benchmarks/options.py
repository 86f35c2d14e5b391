"""What a benchmark says for ``--help``, before it measures anything."""

import argparse

from benchmarks import results


def parser(name: str, doc: str | None, *, kept: bool = True) -> argparse.ArgumentParser:
    """A parser for ``python -m benchmarks.{name}``, which tells what the benchmark's ``doc`` does; with the options of
    :func:`results.finish` where what it measures can be ``kept``."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(doc or "").replace("``", ""))
    if kept:
        results.add_options(made)
    return made
