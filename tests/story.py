"""The stories of ``redrive demo --broker …`` as tests tell them: the command in this process, causes without Spark."""

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from redrive.cli.app import app
from redrive.dev.demo import play
from redrive.dev.demo.workspace import Workspace
from redrive.spark import submit
from tests.classifying import classify


def perform(told: str | play.Story, connection: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tell a story, or that of a broker, on the server of that connection; what was said. Fails if it ended badly."""
    monkeypatch.setattr(submit, "classify", lambda _, manifest: classify(manifest))
    place = Workspace(folder)
    place.claim(fresh=True)
    said = io.StringIO()
    console = Console(file=said, width=160)
    served = play.Served("a server of the tests", connection)
    story = play.find(told) if isinstance(told, str) else told
    with play.Play.begun(story, served, place, console, _here) as performance:
        ended_well = performance.perform()
    assert ended_well, said.getvalue()
    titles = re.findall(r"^(\S.*?) ─+$", said.getvalue(), re.MULTILINE)
    assert titles
    assert [title for title in titles if len(title) > 77] == [], "cut off on a terminal of 80 columns"
    return said.getvalue()


def _here(words: Sequence[str], environment: Mapping[str, str], given: str, say: Callable[[str], None]) -> int:
    """``redrive`` without a process of its own."""
    set_before = dict(os.environ)
    try:
        done = CliRunner().invoke(app, list(words), input=given, env=dict(environment))
    finally:
        os.environ.clear()
        os.environ.update(set_before)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    for line in done.output.splitlines():
        say(line)
    return done.exit_code
