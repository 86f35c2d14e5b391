"""The ``redrive`` command."""

from redrive.cli.app import main

__all__ = ["main"]
