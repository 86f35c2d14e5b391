"""``python -m redrive`` is the ``redrive`` command."""

from redrive.cli.app import main

main()
