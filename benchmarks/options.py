"""What a benchmark says for ``--help``, before it measures anything."""

import argparse


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for ``python -m benchmarks.{name}``, which tells what the benchmark's ``doc`` does."""
    return argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(doc or "").replace("``", ""))
